//! A bar on the terminal for what takes more than a second; nothing where standard error is no terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is quicker than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

/// Accesses between two looks at the clock.
const STRIDE: u64 = 1 << 14;

/// Follows runs of a known length, one after another.
pub(crate) struct Progress {
    bar: ProgressBar,
    length: u64,
    started: Instant,
    label: String,
    looked_at: u64,
}

impl Progress {
    /// For runs of `length` accesses each.
    pub(crate) fn new(length: u64) -> Self {
        Self { bar: ProgressBar::hidden(), length, started: Instant::now(), label: String::new(), looked_at: 0 }
    }

    /// `done` accesses of the run called `label` are done.
    pub(crate) fn tick(&mut self, label: &str, done: u64) {
        if self.label != label {
            label.clone_into(&mut self.label);
            self.looked_at = 0;
            self.bar.set_message(self.label.clone());
        }
        if done < self.looked_at + STRIDE {
            return;
        }
        self.looked_at = done;
        if self.bar.is_hidden() && self.started.elapsed() >= QUIET {
            self.show();
        }
        self.bar.set_position(done);
    }

    fn show(&mut self) {
        self.bar = ProgressBar::with_draw_target(Some(self.length), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg:20} {bar:40} {percent:>3} %  {per_sec}  {eta} left") {
            self.bar.set_style(style);
        }
        self.bar.set_message(self.label.clone());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
