//! One rank's job on real time: a stream of batches, staged ahead by loader threads, handed over in order and in place.
//!
//! - `spec`: what a job is made from; `error`: what can be wrong with it.
//! - `state`: what threads share, behind one lock; `threads`: how many of them may be busy.
//! - `stores`: arena and tiers; `work`: what a loader thread does; `lease`: samples in the trainer's hands.
//! - `saved`: where a job stands, to go on later; `stats`: what happened so far.
//!
//! Nothing is started before the first sample is asked for. Whoever asks sleeps at most as long as it says, so that a
//! caller with signals to look after can do so and ask again: nothing is lost in between.

mod error;
mod lease;
mod saved;
mod spec;
mod start;
mod state;
mod stats;
mod stores;
mod threads;
mod work;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_core::engine::Consumed;
use foresee_core::ids::{Epoch, SampleId, Step};
use foresee_core::model::Origin;
use foresee_core::stream::{EpochOrder, Layout, Mark, Orders};
use foresee_core::units::{Bytes, Seconds};

pub use self::error::JobError;
pub use self::lease::Lease;
pub use self::saved::Saved;
pub use self::spec::{JobSpec, OnError, POLICIES};
use self::state::{Failure, Polled, Staged, State};
pub use self::stats::Stats;
use self::stores::Stores;
use crate::arena::Arena;
use crate::desk::{Desk, Entry};
use crate::pool::Pool;
use crate::trace::Trace;

/// How long a closing job waits for reads that are under way.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// What a job's threads share.
pub(crate) struct Shared {
    spec: Arc<JobSpec>,
    state: Mutex<State>,
    /// The trainer's next samples are there, or something is wrong with them.
    ready: Condvar,
    stores: Stores,
    pool: Arc<Pool>,
    trace: Option<Trace>,
    /// Whether the trainer waits.
    waiting: AtomicBool,
    /// Whether the number of threads follows the reads.
    auto: bool,
    reads: AtomicU64,
    /// Memory of the process's budget, given back at the end.
    granted_bytes: u64,
    /// Forks before this one.
    generation: u32,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in a thread of ours is a defect, but not one that should take the trainer's data with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Uses its part of the staging buffer when several jobs share it, and at least what the largest sample needs.
    fn limit_staging(&self, jobs: usize) {
        let catalog = &self.spec.catalog;
        let largest = catalog.samples().map(|sample| catalog.size(sample).0).max().unwrap_or(0);
        let bytes = (self.spec.config.staging.capacity_bytes / jobs.max(1) as u64).max(largest);
        self.state().desk.limit_staging(Bytes(bytes));
        self.stores.arena.limit_staging(bytes);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.granted_bytes > 0 {
            self.pool.take_back(&self.spec.config, self.granted_bytes);
        }
    }
}

/// A sample as it is handed over.
pub struct Sample {
    /// What it is: the sample of the stream, or the one in its place.
    pub id: SampleId,
    /// Whether it repeats a sample of this epoch to fill the tail.
    pub padded: bool,
    /// Its bytes; their place is free again when this is dropped.
    pub lease: Lease,
}

/// The samples of one rank in one step.
pub struct Batch {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Step in it, from 0.
    pub step: u32,
    /// The samples, in order. None where the world's tail leaves this rank without.
    pub samples: Vec<Sample>,
}

/// The staging buffer's memory. It stays mapped as long as this lives; loader threads write to it.
#[derive(Clone)]
pub struct StagingMemory(Arc<Arena>);

impl StagingMemory {
    /// Where it begins, and how many bytes it has.
    pub fn place(&self) -> (usize, usize) {
        self.0.staging()
    }
}

/// What asking for a batch gave.
pub enum Asked {
    /// Here it is.
    Batch(Batch),
    /// It is not there yet; ask again.
    NotYet,
    /// The job is over.
    End,
}

/// One rank's job.
pub struct Job {
    spec: Arc<JobSpec>,
    orders: Orders,
    consumer: Mutex<Consumer>,
    /// Made when it is first needed.
    running: Mutex<Option<Arc<Shared>>>,
    /// Where the consumer stands, for whoever cannot wait for it: epoch and step, then samples of the step.
    at: [AtomicU64; 2],
    /// Where this run began.
    began: Mutex<Began>,
    made: Instant,
    /// Nanoseconds from `made` to the first batch; 0 is none yet.
    first_batch_ns: AtomicU64,
    closed: AtomicBool,
}

/// Where a run began: what it can read at least depends on it.
struct Began {
    mark: Mark,
    held_bytes: u64,
}

/// Where the trainer stands.
struct Consumer {
    layout: Layout,
    /// The world that the job began with: its tail was padded or dropped for it.
    began_with: u32,
    mark: Mark,
    /// Samples of this step that were handed over one by one.
    index: u32,
    taking: Vec<Taken>,
    /// When the trainer began to wait for what it is about to get.
    since: Option<Instant>,
    /// Samples to pass over after a start in the middle of a step.
    skip: u32,
    order: Option<(Epoch, Arc<EpochOrder>)>,
    /// The sample that is next has been reported as broken.
    reported: bool,
}

/// A sample that waits for the rest of its batch.
struct Taken {
    id: SampleId,
    lease: Lease,
    origin: Origin,
    fetched: Instant,
}

impl Job {
    /// A job at its beginning. Checks all that can be checked without reading; starts nothing.
    pub fn new(spec: JobSpec) -> Result<Self, JobError> {
        let orders = spec.orders()?;
        let layout = spec.layout(orders.len())?;
        spec.policy()?;
        spec.check()?;
        let mark = Mark::START;
        Ok(Self::at(Arc::new(spec), orders, Consumer::new(layout, mark, 0)))
    }

    fn at(spec: Arc<JobSpec>, orders: Orders, consumer: Consumer) -> Self {
        let job = Self {
            spec,
            orders,
            at: [AtomicU64::new(0), AtomicU64::new(0)],
            began: Mutex::new(Began { mark: consumer.mark, held_bytes: 0 }),
            consumer: Mutex::new(consumer),
            running: Mutex::new(None),
            made: Instant::now(),
            first_batch_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        };
        job.note_place(&job.consumer());
        job
    }

    /// What it was made from.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Steps in an epoch.
    pub fn steps(&self) -> u32 {
        self.consumer().layout.steps()
    }

    /// Asks for the next batch, and waits for it no longer than `patience`.
    pub fn next_batch(&self, patience: Duration) -> Result<Asked, JobError> {
        self.next(patience, None)
    }

    /// Asks for the next sample alone; batches go on with what is left of this one.
    pub fn next_sample(&self, patience: Duration) -> Result<Asked, JobError> {
        self.next(patience, Some(1))
    }

    /// Where it stands: epoch and step of the next batch. Epoch is the number of epochs at the end.
    pub fn place(&self) -> (u32, u32) {
        let packed = self.at[0].load(Ordering::Acquire);
        ((packed >> 32) as u32, packed as u32)
    }

    fn next(&self, patience: Duration, limit: Option<u32>) -> Result<Asked, JobError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        let deadline = Instant::now() + patience;
        let mut consumer = self.consumer();
        if consumer.mark.epoch.0 >= self.spec.epochs {
            return Ok(Asked::End);
        }
        let shared = self.running(&consumer)?;
        while consumer.skip > 0 {
            if !self.gather(&mut consumer, &shared, 1, deadline)? {
                return Ok(Asked::NotYet);
            }
            consumer.taking.clear();
            consumer.skip -= 1;
        }
        let left = consumer.layout.local_len(self.spec.rank(), consumer.mark.step) - consumer.index;
        let wanted = limit.map_or(left, |limit| left.min(limit));
        if !self.gather(&mut consumer, &shared, wanted as usize, deadline)? {
            return Ok(Asked::NotYet);
        }
        Ok(Asked::Batch(self.hand_over(&mut consumer, &shared)))
    }

    /// Takes the next samples until there are `wanted`, or until the deadline.
    fn gather(
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
                    Some(Ok(staged)) => consumer.taking.push(lend(shared, &mut state, staged)),
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
            let mut state = shared.state();
            let Some(Consumed::OnDemand(read)) = state.desk.consume() else { break };
            drop(state);
            let (staged, retries) = self.read_now(shared, read.sample);
            let mut state = shared.state();
            state.desk.complete(&read);
            state.counts.retries += u64::from(retries);
            let staged = staged.map_err(|failure| self.broken(&failure))?;
            let took = Seconds(0.0);
            state.tally.record(foresee_core::tally::Event::Read { origin: Origin::Source, bytes: read.bytes, took });
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

    fn broken(&self, failure: &Failure) -> JobError {
        let (rank, sample, cause) = (self.spec.rank, failure.sample, Arc::clone(&failure.cause));
        JobError::Sample { rank, sample, name: self.spec.source.name(sample), cause }
    }

    /// Makes a batch of what was taken, and steps on.
    fn hand_over(&self, consumer: &mut Consumer, shared: &Shared) -> Batch {
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
            state.tally.record(foresee_core::tally::Event::Stall(Seconds(stall_s)));
        }
        state.counts.batches += 1;
        state.counts.samples += consumer.taking.len() as u64;
        state.counts.bytes += consumer.taking.iter().map(|taken| taken.lease.bytes().len() as u64).sum::<u64>();
        let first = (now - self.made).as_nanos() as u64;
        let _ = self.first_batch_ns.compare_exchange(0, first.max(1), Ordering::Relaxed, Ordering::Relaxed);
        stall_s
    }

    /// Moves to the beginning of an epoch that is not behind. Nothing is read to get there.
    pub fn seek(&self, epoch: u32) -> Result<(), JobError> {
        let mut consumer = self.consumer();
        let Mark { epoch: at, step } = consumer.mark;
        if epoch == at.0 && step.0 == 0 && consumer.index == 0 {
            return Ok(());
        }
        if epoch <= at.0 || epoch > self.spec.epochs {
            return Err(JobError::Seek { epoch, at: at.0, epochs: self.spec.epochs });
        }
        let layout = consumer.layout.clone();
        let began_with = consumer.began_with;
        *consumer = Consumer { began_with, ..Consumer::new(layout, Mark { epoch: Epoch(epoch), step: Step(0) }, 0) };
        self.restart(&consumer)
    }

    /// The samples that a batch has, without reading them: the indices of `step` of `epoch`.
    pub fn indices(&self, epoch: u32, step: u32) -> Vec<SampleId> {
        let mut consumer = self.consumer();
        let order = consumer.order(&self.orders, Epoch(epoch));
        let (rank, step) = (self.spec.rank(), Step(step));
        let len = consumer.layout.local_len(rank, step);
        (0..len).map(|index| order.sample(consumer.layout.dealt(rank, step, index).position)).collect()
    }

    /// Where it stands, to go on from later.
    pub fn save(&self) -> Saved {
        let consumer = self.consumer();
        Saved::of(&self.spec, &consumer.layout, consumer.began_with, consumer.mark, consumer.index)
    }

    /// Goes on where another run of this job stood, perhaps with another number of ranks.
    pub fn load(&self, saved: &Saved) -> Result<(), JobError> {
        let layout = saved.layout(&self.spec, self.orders.len())?;
        let mark = saved.mark(&self.spec, &layout)?;
        let mut consumer = self.consumer();
        let index = if saved.world == self.spec.world { saved.index } else { 0 };
        *consumer = Consumer { began_with: saved.began_with, ..Consumer::new(layout, mark, index) };
        self.note_place(&consumer);
        self.restart(&consumer)
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let running = self.lock_running().clone();
        Stats::of(self, running.as_deref())
    }

    /// All that the engine was told, where the job was made to write it down, and the desk to do it again with.
    pub fn recording(&self) -> Option<(Vec<Entry>, Desk)> {
        let shared = self.lock_running().clone()?;
        let entries = shared.state().desk.record()?.to_vec();
        let consumer = Consumer::new(self.consumer().layout.clone(), Mark::START, 0);
        let desk = self.desk(&consumer, &shared.stores, &[]).ok()?;
        Some((entries, desk))
    }

    /// The staging buffer's memory: address and length; none before the first sample is asked for.
    pub fn buffer(&self) -> Option<(usize, usize)> {
        self.lock_running().as_ref().map(|shared| shared.stores.arena.staging())
    }

    /// The staging buffer's memory; starts the job, as asking for a sample does.
    pub fn staging(&self) -> Result<StagingMemory, JobError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        let consumer = self.consumer();
        let shared = self.running(&consumer)?;
        Ok(StagingMemory(Arc::clone(&shared.stores.arena)))
    }

    /// The same job in a forked child, where the parent's threads are not.
    pub fn after_fork(&self) -> Result<Self, JobError> {
        let packed = self.at[0].load(Ordering::Acquire);
        let index = self.at[1].load(Ordering::Acquire) as u32;
        let mark = Mark { epoch: Epoch((packed >> 32) as u32), step: Step(packed as u32) };
        let layout = self.spec.layout(self.orders.len())?;
        Ok(Self::at(Arc::clone(&self.spec), self.spec.orders()?, Consumer::new(layout, mark, index)))
    }

    /// Ends the job: threads do nothing more for it. Samples in the trainer's hands stay as they are.
    pub fn close(&self) {
        self.close_within(CLOSE_MAX);
    }

    /// Ends the job, and waits for reads that are under way no longer than `patience`.
    pub fn close_within(&self, patience: Duration) {
        self.closed.store(true, Ordering::Relaxed);
        let Some(shared) = self.lock_running().take() else { return };
        shared.close();
        if let Some(trace) = &shared.trace {
            let stats = Stats::of(self, Some(&shared));
            trace.note("end", &serde_json::to_value(stats).unwrap_or_default());
        }
        // Threads that hang in a read keep what they need; what is ours is given back when they are done.
        let deadline = Instant::now() + patience;
        while Arc::strong_count(&shared) > 1 && shared.is_busy() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_running(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_place(&self, consumer: &Consumer) {
        let Mark { epoch, step } = consumer.mark;
        self.at[1].store(u64::from(consumer.index), Ordering::Release);
        self.at[0].store(u64::from(epoch.0) << 32 | u64::from(step.0), Ordering::Release);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.close();
    }
}

impl Consumer {
    fn new(layout: Layout, mark: Mark, index: u32) -> Self {
        let began_with = layout.world();
        let (taking, since, order) = (Vec::new(), None, None);
        Self { layout, began_with, mark, index, taking, since, skip: index, order, reported: false }
    }

    fn step_on(&mut self) {
        self.index = 0;
        self.mark.step.0 += 1;
        if self.mark.step.0 >= self.layout.steps() {
            self.mark = Mark { epoch: Epoch(self.mark.epoch.0 + 1), step: Step(0) };
        }
    }

    /// The order of an epoch; the last one is kept at hand.
    fn order(&mut self, orders: &Orders, epoch: Epoch) -> Arc<EpochOrder> {
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
fn lend(shared: &Arc<Shared>, state: &mut State, staged: Staged) -> Taken {
    let bytes = Bytes(staged.block.bytes().len() as u64);
    state.lend(bytes);
    if staged.block.is_own() {
        state.counts.outside += 1;
    }
    let lease = Lease::new(shared, &staged, bytes, state.generation);
    Taken { id: staged.sample, lease, origin: staged.origin, fetched: staged.fetched }
}
