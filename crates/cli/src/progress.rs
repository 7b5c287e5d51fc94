//! A bar on the terminal for what will take more than a second; nothing where standard error is no terminal.

use std::ops::Deref;
use std::thread::{self, JoinHandle};
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
    bar: Turning,
    phase: String,
    shown: u64,
}

impl Progress {
    /// For `phases` phases of `length` accesses each.
    pub(crate) fn new(length: u64, phases: u64) -> Self {
        let bar = if length.saturating_mul(phases) < QUICK {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(length)
        };
        let template = "{spinner} {msg:22} {bar:40} {percent:>3} %  {elapsed} passed, {eta} left";
        Self {
            bar: Turning::new(bar, template),
            phase: String::new(),
            shown: 0,
        }
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

/// A line on the terminal whose spinner turns while there is nothing to count; cleared when dropped.
pub(crate) struct Turning {
    bar: ProgressBar,
    /// None where nothing is shown, or no thread is to be had: then the spinner turns when something is counted.
    turner: Option<JoinHandle<()>>,
}

impl Turning {
    /// A bar that looks like this.
    pub(crate) fn new(bar: ProgressBar, template: &str) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if bar.is_hidden() {
            return Self { bar, turner: None };
        }
        let shown = bar.clone();
        let turn = move || {
            while !shown.is_finished() {
                shown.tick();
                thread::park_timeout(TURN);
            }
        };
        let turner = thread::Builder::new()
            .name("foresee-bar".to_owned())
            .spawn(turn)
            .ok();
        Self { bar, turner }
    }
}

impl Deref for Turning {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some(turner) = self.turner.take() {
            turner.thread().unpark();
            // It draws no more, whatever became of it.
            let _ = turner.join();
            self.bar.finish_and_clear();
        }
    }
}
