//! What a terminal shows while a dataset is listed and while a job runs; nothing where standard error is no terminal.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::progress::Turning;

/// How often the line is drawn anew.
const TURN: Duration = Duration::from_millis(100);

/// Counts samples while a dataset is listed; cleared when dropped.
pub(super) struct Lister(Turning);

impl Lister {
    pub(super) fn new() -> Self {
        Self(Turning::new(
            ProgressBar::new_spinner(),
            "{spinner} listing: {human_pos} samples, {elapsed} passed",
        ))
    }

    /// So many samples were looked at.
    pub(super) fn tick(&self, samples: u64) {
        self.0.set_position(samples);
    }
}

/// Follows a job; cleared when dropped.
pub(super) struct Meter {
    bar: Turning,
    epochs: u32,
    began: Instant,
    drawn: Instant,
    batches: u64,
    samples: u64,
    waited: Duration,
}

impl Meter {
    pub(super) fn new(steps: u32, epochs: u32) -> Self {
        let batches = u64::from(steps) * u64::from(epochs);
        let template = "{spinner} {msg:48} {bar:30} {percent:>3} %  {elapsed} passed, {eta} left";
        let now = Instant::now();
        let bar = Turning::new(ProgressBar::new(batches), template);
        Self {
            bar,
            epochs,
            began: now,
            drawn: now,
            batches: 0,
            samples: 0,
            waited: Duration::ZERO,
        }
    }

    /// The trainer had to ask for so long.
    pub(super) fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// The trainer got a batch.
    pub(super) fn trained(&mut self, epoch: u32, samples: usize) {
        self.batches += 1;
        self.samples += samples as u64;
        if self.bar.is_hidden() || self.drawn.elapsed() < TURN {
            return;
        }
        self.drawn = Instant::now();
        let passed_s = self.began.elapsed().as_secs_f64();
        let rate = self.samples as f64 / passed_s;
        let stall = 100.0 * self.waited.as_secs_f64() / passed_s;
        self.bar.set_message(format!(
            "epoch {epoch} of {}, {rate:.0} samples/s, stall {stall:.0} %",
            self.epochs
        ));
        self.bar.set_position(self.batches);
    }
}
