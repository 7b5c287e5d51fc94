//! A trainer that does no training: it asks for batches, touches what it gets, computes for as long as it is told, and
//! notes what each epoch took.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use foresee_runtime::job::{Asked, Batch, Job, Stats};
use serde::{Deserialize, Serialize};

use super::interrupt::Interrupt;
use super::launched::Company;
use super::meter::Meter;
use super::rank::Line;

/// How long Ctrl-C may go unnoticed: nobody feels a tenth of a second.
const PATIENCE: Duration = Duration::from_millis(100);

/// Bytes that come to a core together.
const CACHE_LINE_BYTES: usize = 64;

/// What one epoch took.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct Lap {
    pub epoch: u32,
    /// Since the end of the one before; start-up counts in the first.
    pub total_s: f64,
    pub samples: u64,
    pub bytes: u64,
    pub samples_per_s: f64,
    pub mb_per_s: f64,
    pub stall_s: f64,
    /// By origin, read while the epoch was trained on: ahead of use, so some is for the next one.
    pub read_bytes: BTreeMap<String, u64>,
}

/// What a job took.
pub(super) struct Ran {
    pub laps: Vec<Lap>,
    pub stats: Stats,
    pub interrupted: bool,
}

/// What a rank waits for the others by.
#[derive(Clone, Copy)]
pub(super) enum Lockstep<'a> {
    /// The command that started them.
    Line(&'a Line),
    /// Each other.
    Company(&'a Company),
}

impl Lockstep<'_> {
    fn step(self, interrupt: &Interrupt) -> Result<()> {
        match self {
            Self::Line(line) => line.step(interrupt),
            Self::Company(company) => company.step(),
        }
    }
}

/// Who asks for batches.
pub(super) struct Trainer<'a> {
    /// How long it computes after each batch.
    pub(super) compute: Duration,
    pub(super) interrupt: &'a Interrupt,
    /// Where other ranks are waited for after each step.
    pub(super) lockstep: Option<Lockstep<'a>>,
}

impl Trainer<'_> {
    /// Runs the job to its end, or until Ctrl-C.
    pub(super) fn train(&self, job: &Job) -> Result<Ran> {
        let steps = job.steps();
        let mut meter = Meter::new(steps, job.spec().epochs);
        let mut laps = Laps {
            done: Vec::new(),
            last: job.stats(),
        };
        let interrupted = loop {
            if self.interrupt.is_raised() {
                break true;
            }
            let asked = Instant::now();
            let answer = job.next_batch(PATIENCE)?;
            meter.waited(asked.elapsed());
            let batch = match answer {
                Asked::Batch(batch) => batch,
                Asked::NotYet => continue,
                Asked::End => break false,
            };
            black_box(touch(&batch));
            let epoch = batch.epoch;
            let step = batch.step;
            meter.trained(epoch, batch.samples.len());
            drop(batch);
            pause(self.compute, self.interrupt);
            if let Some(lockstep) = self.lockstep {
                lockstep.step(self.interrupt)?;
            }
            if step + 1 == steps && !self.interrupt.is_raised() {
                laps.end(epoch, job.stats());
            }
        };
        if interrupted {
            laps.end(laps.done.len() as u32, job.stats());
        }
        Ok(Ran {
            laps: laps.done,
            stats: laps.last,
            interrupted,
        })
    }
}

/// Looks into every cache line of every sample.
fn touch(batch: &Batch) -> u64 {
    let lines = |bytes: &[u8]| {
        bytes
            .iter()
            .step_by(CACHE_LINE_BYTES)
            .map(|byte| u64::from(*byte))
            .sum::<u64>()
    };
    batch
        .samples
        .iter()
        .map(|sample| lines(sample.lease.bytes()))
        .sum()
}

/// Sleeps, but not through Ctrl-C.
fn pause(compute: Duration, interrupt: &Interrupt) {
    let end = Instant::now() + compute;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || interrupt.is_raised() {
            return;
        }
        std::thread::sleep(left.min(PATIENCE));
    }
}

/// Epochs so far, and where the last one ended.
struct Laps {
    done: Vec<Lap>,
    last: Stats,
}

impl Laps {
    /// An epoch is over; nothing is noted of one that has not begun.
    fn end(&mut self, epoch: u32, now: Stats) {
        let then = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let samples = now.samples - then.samples;
        if samples == 0 {
            return;
        }
        let total_s = now.elapsed_s - then.elapsed_s;
        let bytes = now.bytes - then.bytes;
        let before = |origin: &String| then.origins.get(origin).map_or(0, |reads| reads.bytes);
        let read = now
            .origins
            .iter()
            .map(|(origin, reads)| (origin.clone(), reads.bytes - before(origin)));
        self.done.push(Lap {
            epoch,
            total_s,
            samples,
            bytes,
            samples_per_s: samples as f64 / total_s,
            mb_per_s: bytes as f64 / 1e6 / total_s,
            stall_s: now.stall_s - then.stall_s,
            read_bytes: read.collect(),
        });
    }
}
