//! A bar on the terminal for what will take more than a second; nothing where standard error is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Work below this many accesses is done within a second.
const QUICK: u64 = 2_000_000;

/// Accesses between two looks at the bar.
const STRIDE: u64 = 1 << 14;

/// How often the spinner turns while there is nothing to count.
const TURN: Duration = Duration::from_millis(100);

/// Follows phases of a known length, one after another.
pub(crate) struct Progress {
    bar: ProgressBar,
    phase: String,
    shown: u64,
}

impl Progress {
    /// For `phases` phases of `length` accesses each.
    pub(crate) fn new(length: u64, phases: u64) -> Self {
        let bar = if length.saturating_mul(phases) < QUICK { ProgressBar::hidden() } else { ProgressBar::new(length) };
        let template = "{spinner} {msg:22} {bar:40} {percent:>3} %  {elapsed} passed, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TURN);
        Self { bar, phase: String::new(), shown: 0 }
    }

    /// `done` accesses of a phase are done.
    pub(crate) fn tick(&mut self, phase: &str, done: u64) {
        if self.phase != phase {
            phase.clone_into(&mut self.phase);
            self.shown = 0;
            self.bar.set_message(self.phase.clone());
            self.bar.reset();
        }
        if done >= self.shown + STRIDE {
            self.shown = done;
            self.bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
