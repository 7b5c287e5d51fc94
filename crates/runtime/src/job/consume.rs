//! Handing samples over: the trainer's side of the staging buffer. What it asks for is taken in the order of the stream as
//! it arrives, kept until the batch is whole, and counted; the wait for it is blamed on what came last.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_core::engine::{Consumed, Read};
use foresee_core::ids::{Epoch, SampleId, Step};
use foresee_core::model::Origin;
use foresee_core::stream::{EpochOrder, Layout, Mark, Orders};
use foresee_core::tally::Event;
use foresee_core::units::{Bytes, Seconds};

use super::error::JobError;
use super::lease::Lease;
use super::spec::OnError;
use super::state::{Failure, Polled, Staged, State};
use super::{Batch, Job, Sample, Shared};

/// Where the trainer stands.
pub(super) struct Consumer {
    pub(super) layout: Layout,
    /// The world that the job began with: its tail was padded or dropped for it.
    pub(super) began_with: u32,
    pub(super) mark: Mark,
    /// Samples of this step that were handed over one by one.
    pub(super) index: u32,
    pub(super) taking: Vec<Taken>,
    /// When the trainer began to wait for what it is about to get.
    since: Option<Instant>,
    /// Samples to pass over after a start in the middle of a step.
    pub(super) skip: u32,
    order: Option<(Epoch, Arc<EpochOrder>)>,
    /// The sample that is next has been reported as broken.
    reported: bool,
    /// The sample that is read when it is asked for, until it is there.
    on_demand: Option<Read>,
}

/// A sample that waits for the rest of its batch.
pub(super) struct Taken {
    id: SampleId,
    lease: Lease,
    origin: Origin,
    fetched: Instant,
}

impl Job {
    /// Takes the next samples until there are `wanted`, or until the deadline.
    pub(super) fn gather(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        wanted: usize,
        deadline: Instant,
    ) -> Result<bool, JobError> {
        consumer.since.get_or_insert_with(Instant::now);
        if self.spec.policy == "naive" {
            return self.gather_on_demand(consumer, shared, wanted, deadline);
        }
        if std::mem::take(&mut consumer.reported) {
            self.try_again(shared);
        }
        let mut state = shared.state();
        loop {
            let mut polled = Polled::More;
            while consumer.taking.len() < wanted {
                match state.take() {
                    Some(Ok(staged)) => consumer.taking.push(lend(shared, &mut state, &staged)),
                    Some(Err(failure)) => {
                        consumer.reported = true;
                        return Err(self.broken(&failure));
                    }
                    None if polled == Polled::More && state.slots.is_empty() => polled = state.advance(&shared.stores),
                    None => break,
                }
            }
            if consumer.taking.len() >= wanted {
                drop(state);
                // There is room again, or more to read.
                shared.pool.signal();
                return Ok(true);
            }
            if state.closed {
                return Err(JobError::Closed);
            }
            if polled == Polled::Full && state.forgive_if_stuck() {
                state.counts.outside += 1;
                continue;
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            state.want((wanted - consumer.taking.len()) as u64);
            state = wait(shared, state, deadline);
        }
    }

    /// Reads the next samples here and now, as a loader without a staging buffer would.
    fn gather_on_demand(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        wanted: usize,
        deadline: Instant,
    ) -> Result<bool, JobError> {
        let before = consumer.taking.len();
        while consumer.taking.len() < wanted {
            // One at least, or a caller without patience would never get any.
            if consumer.taking.len() > before && Instant::now() >= deadline {
                return Ok(false);
            }
            let read = if let Some(read) = consumer.on_demand {
                read
            } else {
                let Some(Consumed::OnDemand(read)) = shared.state().desk.consume() else { break };
                *consumer.on_demand.insert(read)
            };
            let (staged, retries) = self.read_or_substitute(shared, read.sample);
            let mut state = shared.state();
            state.counts.retries += u64::from(retries);
            let staged = staged.map_err(|failure| self.broken(&failure))?;
            consumer.on_demand = None;
            state.desk.complete(&read);
            state.counts.skipped += u64::from(staged.sample != read.sample);
            let took = Seconds(0.0);
            state.tally.record(Event::Read { origin: Origin::Source, bytes: read.bytes, took });
            let lease = Lease::new(shared, &staged, Bytes(0), state.generation);
            consumer.taking.push(Taken { id: staged.sample, lease, origin: Origin::Source, fetched: staged.fetched });
        }
        Ok(true)
    }

    /// Tries once more to read the sample that was reported as broken: somebody may have mended it.
    fn try_again(&self, shared: &Shared) {
        let failed = match shared.state().take() {
            Some(Err(failure)) => failure.sample,
            _ => return,
        };
        if let (Ok(staged), _) = self.read_now(shared, failed) {
            shared.state().mend(staged);
        }
    }

    fn read_now(&self, shared: &Shared, sample: SampleId) -> (Result<Staged, Failure>, u32) {
        let mut filling = shared.stores.arena.own(self.spec.catalog.size(sample).0 as usize);
        let (read, retries) = shared.read_source(sample, filling.bytes_mut());
        let staged = read
            .map(|()| Staged { block: filling.share(), sample, origin: Origin::Source, fetched: Instant::now() })
            .map_err(|cause| Failure { sample, cause: Arc::new(cause) });
        (staged, retries)
    }

    fn read_or_substitute(&self, shared: &Shared, sample: SampleId) -> (Result<Staged, Failure>, u32) {
        let (staged, retries) = self.read_now(shared, sample);
        let staged = staged.or_else(|failure| {
            let instead = match self.spec.on_error {
                OnError::Skip => shared.substitute(sample, &failure.cause),
                OnError::Raise => None,
            };
            let (sample, block) = instead.ok_or(failure)?;
            Ok(Staged { block, sample, origin: Origin::Source, fetched: Instant::now() })
        });
        (staged, retries)
    }

    fn broken(&self, failure: &Failure) -> JobError {
        let (rank, sample, cause) = (self.spec.rank, failure.sample, Arc::clone(&failure.cause));
        JobError::Sample { rank, sample, name: self.spec.source.name(sample), cause }
    }

    /// Makes a batch of what was taken, and steps on.
    pub(super) fn hand_over(&self, consumer: &mut Consumer, shared: &Shared) -> Batch {
        let stall_s = self.count(consumer, shared);
        let Mark { epoch, step } = consumer.mark;
        let taken = std::mem::take(&mut consumer.taking);
        let first = consumer.index;
        let samples = taken.into_iter().zip(first..).map(|(taken, index)| Sample {
            id: taken.id,
            padded: consumer.layout.dealt(self.spec.rank(), step, index).padded,
            lease: taken.lease,
        });
        let batch = Batch { epoch: epoch.0, step: step.0, samples: samples.collect() };
        consumer.index += batch.samples.len() as u32;
        if consumer.index >= consumer.layout.local_len(self.spec.rank(), step) {
            consumer.step_on();
        }
        self.note_place(consumer);
        if let Some(trace) = &shared.trace {
            trace.batch(batch.epoch, batch.step, batch.samples.len(), stall_s);
        }
        batch
    }

    /// Counts what is about to be handed over, and blames the wait for it.
    fn count(&self, consumer: &mut Consumer, shared: &Shared) -> f64 {
        let now = Instant::now();
        let since = consumer.since.take().unwrap_or(now);
        let last = consumer.taking.iter().max_by_key(|taken| taken.fetched);
        let mut state = shared.state();
        let mut stall_s = 0.0;
        if let Some(last) = last.filter(|last| last.fetched > since) {
            stall_s = (now - since).as_secs_f64();
            let fetched = (last.fetched - since).as_secs_f64();
            state.causes.blame(last.origin, [0.0, fetched, stall_s].map(Seconds));
            state.tally.record(Event::Stall(Seconds(stall_s)));
            if let Some(bytes) = state.window.grow() {
                shared.stage_ahead(&mut state, bytes);
            }
        }
        state.counts.batches += 1;
        state.counts.samples += consumer.taking.len() as u64;
        state.counts.bytes += consumer.taking.iter().map(|taken| taken.lease.bytes().len() as u64).sum::<u64>();
        let first = (now - self.made).as_nanos() as u64;
        let _ = self.first_batch_ns.compare_exchange(0, first.max(1), Ordering::Relaxed, Ordering::Relaxed);
        stall_s
    }
}

impl Consumer {
    pub(super) fn new(layout: Layout, began_with: u32, mark: Mark, index: u32) -> Self {
        let (taking, since, order) = (Vec::new(), None, None);
        Self { layout, began_with, mark, index, taking, since, skip: index, order, reported: false, on_demand: None }
    }

    /// Goes on elsewhere.
    pub(super) fn move_to(&mut self, mark: Mark) {
        *self = Self::new(self.layout.clone(), self.began_with, mark, 0);
    }

    fn step_on(&mut self) {
        self.index = 0;
        self.mark.step.0 += 1;
        if self.mark.step.0 >= self.layout.steps() {
            self.mark = Mark { epoch: Epoch(self.mark.epoch.0 + 1), step: Step(0) };
        }
    }

    /// The order of an epoch; the last one is kept at hand.
    pub(super) fn order(&mut self, orders: &Orders, epoch: Epoch) -> Arc<EpochOrder> {
        match &self.order {
            Some((held, order)) if *held == epoch => Arc::clone(order),
            _ => {
                let order = orders.epoch(epoch);
                self.order = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }
}

/// Sleeps until something happened that the trainer can use.
fn wait<'a>(shared: &'a Shared, state: MutexGuard<'a, State>, deadline: Instant) -> MutexGuard<'a, State> {
    shared.waiting.store(true, Ordering::Relaxed);
    shared.pool.signal();
    let patience = deadline.saturating_duration_since(Instant::now());
    let events = state.events;
    let asleep = shared.ready.wait_timeout_while(state, patience, |state| state.events == events && !state.closed);
    shared.waiting.store(false, Ordering::Relaxed);
    asleep.unwrap_or_else(PoisonError::into_inner).0
}

/// Puts a staged sample into the trainer's hands.
fn lend(shared: &Arc<Shared>, state: &mut State, staged: &Staged) -> Taken {
    let bytes = Bytes(staged.block.bytes().len() as u64);
    state.lend(bytes);
    if staged.block.is_own() {
        state.counts.outside += 1;
    }
    let lease = Lease::new(shared, staged, bytes, state.generation);
    Taken { id: staged.sample, lease, origin: staged.origin, fetched: staged.fetched }
}
