//! What loader threads do: take a read, do it, bring it in. The lock is held before and after a read, never during it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use foresee_core::engine::Lane;
use foresee_core::ids::{SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::tally::Event;
use foresee_core::units::Seconds;

use super::Shared;
use super::spec::OnError;
use super::state::{Failure, Slot, Staged, State, Task};
use super::stores::Store;
use crate::arena::{Block, Filling};
use crate::pool::Work;
use crate::source::ReadError;
use crate::thread_time::ThreadTime;
use crate::tier::{Found, Kept, Tier};

/// A storage that stumbles gets this many more chances, each after a longer pause.
const TRIES_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_FACTOR: u32 = 5;

/// How many samples are tried in the place of one that cannot be read.
const SUBSTITUTES_MAX: u32 = 1000;

/// Of so many reads one is measured, where the number of threads follows the reads.
const MEASURE_EVERY: u64 = 4;

impl Work for Shared {
    fn work(&self, alone: bool) -> bool {
        let mut state = self.state();
        let mut did = false;
        loop {
            let events = state.events;
            let task = state.take_task(&self.stores);
            let (more, woken) = (task.is_some() && state.has_more(), state.events != events);
            drop(state);
            if woken {
                self.wake_trainer();
            }
            if more {
                self.pool.signal();
            }
            let Some(task) = task else { return did };
            state = self.perform(task);
            did = true;
            if !alone {
                return did;
            }
        }
    }

    fn urgency(&self) -> f64 {
        if self.waiting.load(Ordering::Relaxed) {
            return -1.0;
        }
        let staged = self.state.try_lock().map_or(0, |state| state.slots.len());
        staged as f64
    }

    fn share(&self, jobs: usize) {
        self.limit_staging(jobs);
    }

    fn budget(&self) -> &foresee_config::Config {
        &self.spec.config
    }
}

/// A read that was done.
struct Done {
    began: Instant,
    fetched: Instant,
    origin: Origin,
    lost_from: Option<TierId>,
    retries: u32,
    /// Time the thread slept, if it was measured.
    slept_s: Option<f64>,
}

impl Shared {
    /// Does a read and brings it in.
    fn perform(&self, mut task: Task) -> std::sync::MutexGuard<'_, State> {
        let measured = (self.auto && self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(MEASURE_EVERY))
            .then(ThreadTime::now);
        let (mut done, read) = self.fetch(&mut task);
        done.slept_s = measured.map(|before| before.slept_s(done.fetched - done.began));
        let state = match read {
            Ok(()) => self.bring_in(task, &done),
            Err(cause) => self.fail(&task, &done, cause),
        };
        self.wake_trainer();
        state
    }

    /// Wakes the trainer if it sleeps; it looks for itself whether anything happened that it waits for.
    fn wake_trainer(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.ready.notify_one();
        }
    }

    fn fetch(&self, task: &mut Task) -> (Done, Result<(), ReadError>) {
        let began = Instant::now();
        let (mut origin, mut lost_from, mut retries) = (task.origin, None, 0);
        let into = task.filling.bytes_mut();
        let mut read = Ok(());
        if let Origin::Tier(tier) = origin {
            let found = match self.stores.store(tier) {
                Store::Disk(disk, _) => disk.read(task.read.sample, into),
                Store::Memory(memory) => memory.read(task.read.sample, into),
                Store::Nothing => Ok(Found::NotHeld),
            };
            if let Err(error) = &found {
                tracing::warn!("{error}; reading from the source");
            }
            if !matches!(found, Ok(Found::Yes)) {
                (origin, lost_from) = (Origin::Source, Some(tier));
            }
        }
        if origin == Origin::Source {
            (read, retries) = self.read_source(task.read.sample, into);
        }
        (Done { began, fetched: Instant::now(), origin, lost_from, retries, slept_s: None }, read)
    }

    /// Reads a sample from the source; what may pass is tried again.
    pub(super) fn read_source(&self, sample: SampleId, into: &mut [u8]) -> (Result<(), ReadError>, u32) {
        let mut pause = PAUSE_FIRST;
        let mut tries = 0;
        loop {
            match self.spec.source.read(sample, into) {
                Err(error) if error.is_transient() && tries < TRIES_MAX && !self.is_closed() => {
                    tracing::debug!("sample {sample} ({}): {error}; trying again", self.spec.source.name(sample));
                    std::thread::sleep(pause);
                    pause *= PAUSE_FACTOR;
                    tries += 1;
                }
                outcome => return (outcome, tries),
            }
        }
    }

    /// A sample has come.
    fn bring_in(&self, task: Task, done: &Done) -> std::sync::MutexGuard<'_, State> {
        let Task { generation, lane, place, read, filling, .. } = task;
        let block = filling.share();
        let mut state = self.state();
        self.account(&mut state, &read, done);
        if state.generation != generation {
            state.lanes.end(lane);
            return state;
        }
        if let Some(place) = place {
            let staged =
                Staged { block: Arc::clone(&block), sample: read.sample, origin: done.origin, fetched: done.fetched };
            state.settle_slot(place, Slot::Ready(staged));
        }
        let Some(tier) = read.keep else {
            state.complete(&read, true);
            state.lanes.end(lane);
            return state;
        };
        let kept = match self.stores.store(tier) {
            Store::Memory(memory) => {
                memory.hold(read.sample, block);
                true
            }
            Store::Disk(disk, _) => {
                drop(state);
                self.wake_trainer();
                let kept = keep_on_disk(disk.as_ref(), read.sample, &block);
                state = self.state();
                kept
            }
            Store::Nothing => false,
        };
        state.lanes.end(lane);
        if state.generation == generation {
            state.complete(&read, kept);
        }
        // Whoever waited for it to arrive can go on.
        self.pool.signal();
        state
    }

    fn account(&self, state: &mut State, read: &foresee_core::engine::Read, done: &Done) {
        let took = Seconds((done.fetched - done.began).as_secs_f64());
        state.tally.record(Event::Read { origin: done.origin, bytes: read.bytes, took });
        state.counts.retries += u64::from(done.retries);
        if let Some(tier) = done.lost_from {
            state.lost(read.sample, tier);
        }
        if matches!(read.origin, Origin::Tier(_)) {
            state.read_from_disk(read.sample, &self.stores);
        }
        if let Some(slept_s) = done.slept_s {
            state.lanes.learn(took.0, slept_s);
        }
        if let Some(trace) = &self.trace {
            trace.read(read, done.origin, took);
        }
    }

    /// A sample could not be read.
    fn fail(&self, task: &Task, done: &Done, cause: ReadError) -> std::sync::MutexGuard<'_, State> {
        let sample = task.read.sample;
        let instead = match self.spec.on_error {
            OnError::Skip if task.place.is_some() => self.substitute(sample, &cause),
            OnError::Skip | OnError::Raise => None,
        };
        let mut state = self.state();
        state.lanes.end(task.lane);
        if state.generation != task.generation {
            return state;
        }
        state.counts.retries += u64::from(done.retries);
        state.complete(&task.read, false);
        if task.lane == Lane::Staging
            && let Some(place) = task.place
        {
            let slot = match instead {
                Some((other, block)) => {
                    state.counts.skipped += 1;
                    Slot::Ready(Staged { block, sample: other, origin: Origin::Source, fetched: done.fetched })
                }
                None => Slot::Failed(Failure { sample, cause: Arc::new(cause) }),
            };
            state.settle_slot(place, slot);
            state.events += 1;
        }
        self.pool.signal();
        state
    }

    /// The next sample of the catalog that can be read: the same on every rank and in every run.
    pub(super) fn substitute(&self, sample: SampleId, cause: &ReadError) -> Option<(SampleId, Arc<Block>)> {
        let samples = self.spec.catalog.len();
        let found = (1..samples.min(SUBSTITUTES_MAX)).find_map(|step| {
            let other = SampleId(((u64::from(sample.0) + u64::from(step)) % u64::from(samples)) as u32);
            let mut filling: Filling = self.stores.arena.own(self.spec.catalog.size(other).0 as usize);
            let (read, _) = self.read_source(other, filling.bytes_mut());
            read.ok().map(|()| (other, filling.share()))
        });
        if let Some((other, _)) = &found {
            let name = self.spec.source.name(sample);
            tracing::warn!("sample {sample} ({name}): {cause}; sample {other} is in its place");
        }
        found
    }
}

fn keep_on_disk(disk: &dyn Tier, sample: SampleId, block: &Block) -> bool {
    match disk.keep(sample, block.bytes()) {
        Ok(kept) => kept == Kept::Yes,
        Err(error) => {
            tracing::warn!("{error}; going on without");
            false
        }
    }
}
