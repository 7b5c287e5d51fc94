//! Handing samples over: the trainer's side of the staging buffer. What it asks for is taken in the order of the stream as
//! it arrives, kept until the batch is whole, and counted; the wait for it is blamed on what came last.

use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, whole};
use std::sync::Arc;
use std::time::Instant;

use foresee_core::engine::Consumed;
use foresee_core::ids::{Epoch, Rank, SampleId, Step};
use foresee_core::model::Origin;
use foresee_core::stream::{EpochOrder, Layout, Mark, Orders};
use foresee_core::tally::Event;
use foresee_core::units::{Bytes, Seconds};
use foresee_image::Scratch;

use super::error::JobError;
use super::lease::Lease;
use super::spec::OnError;
use super::state::{Polled, Staged, State};
use super::{Ask, Batch, Job, Prepared, Sample, Shared};
use crate::source::ReadError;

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
}

/// A sample that waits for the rest of its batch.
pub(super) struct Taken {
    id: SampleId,
    lease: Lease,
    origin: Origin,
    fetched: Instant,
    ready: Instant,
}

impl Taken {
    fn new(staged: &Staged, lease: Lease) -> Self {
        Self {
            id: staged.sample,
            lease,
            origin: staged.origin,
            fetched: staged.fetched,
            ready: staged.ready,
        }
    }
}

impl Job {
    /// Gathers what is asked for.
    pub(super) fn prepare_for(
        &self,
        consumer: &mut Consumer,
        ask: Ask,
        deadline: Instant,
    ) -> Result<Prepared, JobError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        if self.is_over(consumer, ask) {
            return Ok(Prepared::End);
        }
        loop {
            let shared = self.running(consumer)?;
            let prepared = self.gather_for(consumer, &shared, ask, deadline);
            if !self.is_void(&shared) {
                return prepared;
            }
            let is_mended = self.measure_again(consumer, &shared)?;
            // From now on samples that cannot be read are skipped, if they are to be.
            let is_skipped = prepared.is_err() && shared.spec.on_error == OnError::Skip;
            if !is_mended && !is_skipped {
                return prepared;
            }
        }
    }

    /// Gathers what is asked for if all of it is staged; waits for nobody and reads nothing.
    pub(super) fn prepare_staged(&self, consumer: &mut Consumer, ask: Ask) -> bool {
        let is_settled =
            consumer.skip == 0 && !consumer.reported && !self.closed.load(Ordering::Relaxed);
        if !is_settled || self.is_over(consumer, ask) {
            return false;
        }
        let Some(shared) = self
            .running
            .try_lock()
            .ok()
            .and_then(|running| running.clone())
        else {
            return false;
        };
        let Ok(mut state) = shared.state.try_lock() else {
            return false;
        };
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        let missing = wanted.saturating_sub(consumer.taking.len());
        if self.is_void(&shared) || !state.has_staged(missing) {
            return false;
        }
        consumer.since.get_or_insert_with(Instant::now);
        state.serve(shared.mean_bytes.saturating_mul(wanted as u64));
        while consumer.taking.len() < wanted
            && let Some(Ok((staged, counted))) = state.take()
        {
            consumer
                .taking
                .push(lend(&shared, &mut state, &staged, counted));
        }
        consumer.taking.len() >= wanted
    }

    fn gather_for(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        ask: Ask,
        deadline: Instant,
    ) -> Result<Prepared, JobError> {
        while consumer.skip > 0 {
            if !self.gather(consumer, shared, 1, deadline)? {
                return Ok(Prepared::NotYet);
            }
            shared.go_on(shared.state());
            consumer.taking.clear();
            consumer.skip -= 1;
        }
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        let gathered = self.gather(consumer, shared, wanted, deadline)?;
        Ok(if gathered {
            Prepared::Ready
        } else {
            Prepared::NotYet
        })
    }

    /// Hands over what was gathered, if it is what is asked for.
    pub(super) fn taken(&self, consumer: &mut Consumer, ask: Ask) -> Option<Batch> {
        if self.is_over(consumer, ask) || consumer.skip > 0 {
            return None;
        }
        let shared = self.lock_running().clone()?;
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        if consumer.taking.len() < wanted || self.is_void(&shared) {
            return None;
        }
        Some(self.hand_over(consumer, &shared, wanted))
    }

    fn is_over(&self, consumer: &Consumer, ask: Ask) -> bool {
        let epoch = consumer.mark.epoch.0;
        epoch >= self.epochs() || ask.within.is_some_and(|within| epoch != within)
    }

    /// Takes the next samples until there are `wanted`; says no where the deadline passes before.
    fn gather(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        wanted: usize,
        deadline: Instant,
    ) -> Result<bool, JobError> {
        consumer.since.get_or_insert_with(Instant::now);
        if shared.on_demand {
            return self.gather_on_demand(consumer, shared, wanted, deadline);
        }
        if std::mem::take(&mut consumer.reported) {
            // Somebody may have mended it.
            self.mend(shared);
        }
        let mut state = shared.state();
        state.serve(shared.mean_bytes.saturating_mul(wanted as u64));
        loop {
            let mut polled = Polled::More;
            state.hungry = true;
            while consumer.taking.len() < wanted {
                match state.take() {
                    Some(Ok((staged, counted))) => consumer
                        .taking
                        .push(lend(shared, &mut state, &staged, counted)),
                    Some(Err((sample, cause))) => {
                        if self.was_spared(shared, &cause) {
                            drop(state);
                            let is_mended = self.mend(shared);
                            state = shared.state();
                            if is_mended {
                                continue;
                            }
                        }
                        (consumer.reported, state.hungry) = (true, false);
                        return Err(self.broken(sample, cause));
                    }
                    None if polled == Polled::More && state.slots.is_empty() => {
                        polled = state.advance(&shared.stores);
                    }
                    None => break,
                }
            }
            if consumer.taking.len() >= wanted {
                state.hungry = false;
                return Ok(true);
            }
            if state.closed {
                return Err(state
                    .defect
                    .clone()
                    .map_or(JobError::Closed, JobError::Defect));
            }
            if polled == Polled::Full && state.forgive_if_stuck() {
                state.counts.outside += 1;
                continue;
            }
            if Instant::now() >= deadline {
                state.hungry = false;
                return Ok(false);
            }
            let missing = (wanted - consumer.taking.len()) as u64;
            if let Some(task) = state.take_own_task(missing, &shared.stores) {
                let more = state.has_more();
                drop(state);
                if more {
                    shared.pool.signal();
                }
                shared.help(task);
                state = shared.state();
                continue;
            }
            state.want(missing);
            state = wait(shared, state, deadline);
        }
    }

    /// Tries the broken sample that is next once more.
    fn mend(&self, shared: &Shared) -> bool {
        self.try_again(shared)
            .map(|staged| shared.state().mend(staged))
            .is_ok()
    }

    /// Whether a sample is skipped now that was not while all files might have been measured again.
    fn was_spared(&self, shared: &Shared, cause: &ReadError) -> bool {
        shared.spec.on_error == OnError::Skip && cause.is_other_size() && !self.is_void(shared)
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
            let mut state = shared.state();
            // One that failed before comes first.
            if state.slots.is_empty() {
                let Some(Consumed::OnDemand(read)) = state.desk.consume() else {
                    break;
                };
                state.desk.complete(&read);
                let part = state
                    .shelf
                    .as_mut()
                    .and_then(|shelf| shelf.next(&shared.stores, true));
                state.hold_failed(read.sample, part);
            }
            drop(state);
            let staged = self.try_again(shared)?;
            let mut state = shared.state();
            state.slots.clear();
            let lease = Lease::new(shared, &staged, None, state.generation);
            consumer.taking.push(Taken::new(&staged, lease));
        }
        Ok(true)
    }

    /// Tries to read the sample that was reported as broken, or is read on demand.
    fn try_again(&self, shared: &Shared) -> Result<Staged, JobError> {
        let (wanted, mut part) = shared.state().failed().unwrap_or_default();
        let image = &mut Scratch::default();
        let (read, retries) = shared.read_alone(wanted, &mut part, image);
        let read = match read {
            Ok(piece) => Ok((wanted, piece)),
            Err(cause) => {
                let skips = shared.spec.on_error == OnError::Skip && !self.is_void(shared);
                let instead = if skips {
                    shared.substitute(wanted, &cause, &mut part, image)
                } else {
                    None
                };
                instead.ok_or(cause)
            }
        };
        let mut state = shared.state();
        state.counts.retries += u64::from(retries);
        let now = Instant::now();
        match read {
            Ok((sample, piece)) => {
                state.counts.skipped += u64::from(sample != wanted);
                Ok(Staged {
                    piece,
                    sample,
                    origin: Origin::Source,
                    fetched: now,
                    ready: now,
                })
            }
            Err(cause) => {
                state.still_failed(part);
                Err(self.broken(wanted, Arc::new(cause)))
            }
        }
    }

    fn broken(&self, sample: SampleId, cause: Arc<ReadError>) -> JobError {
        let spec = self.spec();
        JobError::Sample {
            rank: spec.rank,
            sample,
            name: spec.source.name(sample),
            cause,
        }
    }

    /// Makes a batch of the first that were taken, and steps on.
    fn hand_over(&self, consumer: &mut Consumer, shared: &Shared, wanted: usize) -> Batch {
        let mut state = shared.state();
        let stall_s = self.count(consumer, &mut state, wanted);
        shared.go_on(state);
        let Mark { epoch, step } = consumer.mark;
        let first = consumer.index;
        let samples = consumer
            .taking
            .drain(..wanted)
            .zip(first..)
            .map(|(taken, index)| Sample {
                id: taken.id,
                padded: consumer
                    .layout
                    .dealt(shared.spec.rank(), step, index)
                    .padded,
                lease: taken.lease,
            });
        let batch = Batch {
            epoch: epoch.0,
            step: step.0,
            samples: samples.collect(),
        };
        consumer.index += batch.samples.len() as u32;
        if consumer.index >= consumer.layout.local_len(shared.spec.rank(), step) {
            consumer.step_on();
        }
        self.note_place(consumer);
        if let Some(trace) = &shared.trace {
            trace.batch(batch.epoch, batch.step, batch.samples.len(), stall_s);
        }
        batch
    }

    /// Counts what is about to be handed over, and blames the wait for it.
    fn count(&self, consumer: &mut Consumer, state: &mut State, wanted: usize) -> f64 {
        let now = Instant::now();
        let since = consumer.since.take().unwrap_or(now);
        let handed = &consumer.taking[..wanted];
        let last = handed.iter().max_by_key(|taken| taken.ready);
        let mut stall_s = 0.0;
        if let Some(last) = last.filter(|last| last.ready > since) {
            stall_s = (now - since).as_secs_f64();
            let fetched = last.fetched.saturating_duration_since(since).as_secs_f64();
            state
                .causes
                .blame(last.origin, [0.0, fetched, stall_s].map(Seconds));
            state.tally.record(Event::Stall(Seconds(stall_s)));
            state.waited(Seconds(stall_s));
        }
        state.counts.batches += 1;
        state.counts.samples += wanted as u64;
        state.counts.bytes += handed
            .iter()
            .map(|taken| taken.lease.bytes().len() as u64)
            .sum::<u64>();
        let first = (now - self.made).as_nanos() as u64;
        let _ = self.first_batch_ns.compare_exchange(
            0,
            first.max(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        stall_s
    }
}

impl Consumer {
    pub(super) fn new(layout: Layout, began_with: u32, mark: Mark, index: u32) -> Self {
        let (taking, since, order) = (Vec::new(), None, None);
        Self {
            layout,
            began_with,
            mark,
            index,
            taking,
            since,
            skip: index,
            order,
            reported: false,
        }
    }

    /// How many samples are asked for.
    fn wanted(&self, rank: Rank, ask: Ask) -> usize {
        let left = self.layout.local_len(rank, self.mark.step) - self.index;
        if ask.alone {
            left.min(1) as usize
        } else {
            left as usize
        }
    }

    /// Goes on elsewhere.
    pub(super) fn move_to(&mut self, mark: Mark) {
        *self = Self::new(self.layout.clone(), self.began_with, mark, 0);
    }

    /// Takes what was handed over of this step as it was, and all else of it anew.
    pub(super) fn begin_step_anew(&mut self) {
        self.taking.clear();
        (self.skip, self.reported) = (self.index, false);
    }

    fn step_on(&mut self) {
        self.index = 0;
        self.mark.step.0 += 1;
        if self.mark.step.0 >= self.layout.steps() {
            self.mark = Mark {
                epoch: Epoch(self.mark.epoch.0 + 1),
                step: Step(0),
            };
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
fn wait<'a>(
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    deadline: Instant,
) -> MutexGuard<'a, State> {
    shared.waiting.store(true, Ordering::Relaxed);
    shared.pool.signal();
    let patience = deadline.saturating_duration_since(Instant::now());
    let events = state.events;
    let asleep = shared.ready.wait_timeout_while(state, patience, |state| {
        state.events == events && !state.closed
    });
    shared.waiting.store(false, Ordering::Relaxed);
    whole(asleep).0
}

/// Puts a staged sample into the trainer's hands.
fn lend(shared: &Arc<Shared>, state: &mut State, staged: &Staged, counted: Bytes) -> Taken {
    let loan = state.lend(counted);
    if staged.piece.block().is_own() {
        state.counts.outside += 1;
    }
    let lease = Lease::new(shared, staged, Some(loan), state.generation);
    Taken::new(staged, lease)
}
