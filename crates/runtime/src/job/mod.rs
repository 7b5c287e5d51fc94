//! One rank's job on real time: a stream of batches, staged ahead by loader threads, handed over in order and in place.
//!
//! Nothing is started before the first sample is asked for. Whoever asks sleeps at most as long as it says, so that a
//! caller with signals to look after can do so and ask again: nothing is lost in between. What was prepared is only handed
//! over when it is taken, which waits for nobody.
//!
//! # The life of a sample
//!
//! 1. **Polled** (`polling`): somebody with the job's lock asks the engine for the next access. It gets a *slot* in the
//!    `course` of the stream. One that is on its way to a tier waits in its slot (`awaiting`); those behind it go on.
//! 2. **Located** (`polling`): where it is and where its bytes go is resolved, once. What lies in memory fills its slot on
//!    the spot. One at its home on another rank is asked for (`peers`), and goes on when the answer comes. All else becomes a `task`, which owns the memory that it fills, in the course's queue.
//! 3. **Read** (`work`, `reader`): a loader thread, or the trainer where it would wait, takes the task, and without the lock
//!    reads and decodes.
//! 4. **Brought in** (`state`): with the lock, the slot is filled, a memory tier keeps its share, the engine is told, and who
//!    awaited the sample goes on. What goes to a disk is written by the same thread afterwards, without the lock.
//! 5. **Gathered** (`consume`): the trainer takes slots in order until its batch is whole. Each is a loan (`loans`) that the
//!    engine counts as staged.
//! 6. **Leased** (`lease`): the batch is in the trainer's hands. The loan ends when the lease is dropped; there is room again.
//!
//! A move (`seek`, `load`, another order) replaces the course: what was begun in another one is dropped when it comes.
//!
//! # The order of locks
//!
//! A thread that has one of these may take those below it, and none above:
//!
//! 1. `Job::consumer`: one trainer at a time gathers, moves or saves.
//! 2. `Job::running`, then `Job::opened`: starting and closing.
//! 3. **The job's lock**, `Shared::state`, taken in `shared` only, and never held during a read, a write or a wake-up.
//! 4. A memory tier's map of what it holds, and a disk tier's index; the latter is never held during a write.
//! 5. The arena's free ranges.
//!
//! `balancing` has one that its thread takes before the job's, and others alone.
//!
//! Apart from these, and never taken with the job's lock: the pool's (`pool`), a trace's, a disk's log, and
//! `Shared::member` and `grant`, the stage of `meeting`. `spec`, `orders`, `course`, `peers` and `began` of [`Job`] are taken for a moment, to copy, with any.
//!
//! # Who is who
//!
//! - `spec`: what a job is made from; `error`: what can be wrong with it; `handed`: what is asked for and handed over.
//! - `shared`: what threads share, and the one place that locks and wakes; `state`: the roles behind the lock, and what
//!   concerns several of them: `course` (`slots`, `awaiting`, `shelf`), `loans`, `wants`, `ledger`; core's `crew` and `window`.
//!   A transition returns whom to `wake`.
//! - `dealings`: with other ranks; `peers`: asking them for samples; `holding`: holding samples for them; `serving`: the part
//!   of it that is done without the lock; `chores`: what of that waits for disks; `post`, `outbox`: what is said and handed to them; `lingering`: the end; `sharing`: memory of one host.
//! - `meeting`: which jobs of ranks belong together; `agreement`: what ranks tell each other before they plan; `outbox`: samples on their way to their homes.
//! - `stores`: arena and tiers; `allotment`: what they may hold; `looks`: whether what they hold is still what the source has.
//! - `balancing`: threads of a host's ranks go to the one that would be late; `pace`: what is measured for it; `balance_stats`: what came of it.
//! - `simulation` (tests): all of this among ranks and faults that a seed draws.
//! - `start`: bringing a job up; `consumer`: where the trainer stands; `saved`: to go on later; `stats`: what happened.

mod agreement;
mod allotment;
mod awaiting;
mod balance_stats;
mod balancing;
mod chores;
mod consume;
mod consumer;
mod course;
mod dealings;
mod error;
mod gathering;
mod handed;
mod holding;
mod lease;
mod ledger;
mod lingering;
mod loans;
mod looks;
mod meeting;
mod outbox;
mod outcome;
mod pace;
mod peer_stats;
mod peers;
mod polling;
mod post;
mod reader;
mod saved;
mod serving;
mod shared;
mod sharing;
mod shelf;
#[cfg(all(test, not(feature = "shuttle")))]
mod simulation;
mod slots;
mod spec;
mod start;
mod state;
mod stats;
mod stores;
mod task;
#[cfg(test)]
mod tests;
mod wake;
mod wants;
mod work;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, TryLockError, whole};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::OneLine;
use foresee_core::ids::{Epoch, SampleId, Step};
use foresee_core::stream::{Layout, Mark, Orders, Shuffle};

pub use self::agreement::AgreementError;
pub use self::balance_stats::{BalanceStats, LateRank, LateStep};
use self::consumer::Consumer;
pub use self::error::JobError;
pub use self::handed::{Ask, Asked, Batch, Prepared, Sample, StagingMemory};
pub use self::lease::Lease;
use self::meeting::Peers;
pub use self::meeting::{MEET_MAX, Open};
pub use self::peer_stats::{Faults, FetchStats, JobStats, Moved, PeerStats, Report, WayStats};
pub use self::saved::Saved;
use self::shared::Shared;
pub use self::spec::{Images, JobSpec, OnError, OnHost, policies};
use self::start::Opened;
pub use self::stats::{Reads, Stats};
use self::wake::Wake;
use self::work::Worker;
use crate::desk::{Desk, Entry};

/// How long a closing job waits for reads that are under way.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// One rank's job.
pub struct Job {
    /// Only measuring the dataset again before the first batch changes it.
    spec: RwLock<Arc<JobSpec>>,
    /// Ranks that it is to agree with; none where each serves itself alone. Only before it has started it changes.
    peers: RwLock<Option<Arc<Peers>>>,
    /// Only another order for an epoch to come changes it.
    orders: RwLock<Orders>,
    consumer: Mutex<Consumer>,
    /// Made when it is first needed.
    running: Mutex<Option<Arc<Shared>>>,
    /// What it opened, while it meets its peers.
    opened: Mutex<Option<Opened>>,
    /// What it had done when it was closed, and what its tiers could hold.
    ended: Mutex<Option<(Stats, Vec<u64>)>>,
    /// Where the consumer stands, for whoever cannot wait for it: epoch and step, then samples of the step.
    at: [AtomicU64; 2],
    /// The dealing, and the world that the job began with. Only loading a state changes it.
    course: RwLock<(Layout, u32)>,
    /// Where this run began.
    began: Mutex<Began>,
    made: Instant,
    /// Nanoseconds from `made` to the first batch; 0 is none yet.
    first_batch_ns: AtomicU64,
    /// How often the dataset was measured again.
    measured: AtomicU32,
    closed: AtomicBool,
    /// What went wrong with the trace, once the job is closed.
    untraced: Mutex<Option<String>>,
}

/// Where a run began: what it can read at least depends on it.
struct Began {
    mark: Mark,
    /// What tiers held.
    held: Vec<SampleId>,
    /// The fewest bytes that can be read from the source from there on, if that can be known; worked out when somebody
    /// asks.
    minimum_bytes: OnceCell<Option<u64>>,
}

impl Job {
    /// A job at its beginning. Checks all that can be checked without reading; starts nothing.
    pub fn new(spec: JobSpec) -> Result<Self, JobError> {
        let orders = spec.orders()?;
        let layout = spec.layout(orders.len())?;
        spec.policy()?;
        spec.check()?;
        let world = spec.dealt_to();
        Ok(Self::at(
            Arc::new(spec),
            orders,
            Consumer::new(layout, world, Mark::START, 0),
        ))
    }

    fn at(spec: Arc<JobSpec>, orders: Orders, consumer: Consumer) -> Self {
        let job = Self {
            peers: RwLock::new(None),
            spec: RwLock::new(spec),
            orders: RwLock::new(orders),
            at: [AtomicU64::new(0), AtomicU64::new(0)],
            course: RwLock::new((consumer.layout.clone(), consumer.began_with)),
            began: Mutex::new(Began {
                mark: consumer.mark,
                held: Vec::new(),
                minimum_bytes: OnceCell::new(),
            }),
            consumer: Mutex::new(consumer),
            running: Mutex::new(None),
            opened: Mutex::new(None),
            ended: Mutex::new(None),
            made: Instant::now(),
            first_batch_ns: AtomicU64::new(0),
            measured: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            untraced: Mutex::new(None),
        };
        job.note_place(&job.consumer());
        job
    }

    /// What it was made from.
    pub fn spec(&self) -> Arc<JobSpec> {
        whole(self.spec.read()).clone()
    }

    /// Steps in an epoch.
    pub fn steps(&self) -> u32 {
        self.consumer().layout.steps()
    }

    /// Asks for the next batch, and waits for it no longer than `patience`.
    pub fn next_batch(&self, patience: Duration) -> Result<Asked, JobError> {
        self.next(Ask::default(), patience)
    }

    /// Asks for the next sample alone; batches go on with what is left of this one.
    pub fn next_sample(&self, patience: Duration) -> Result<Asked, JobError> {
        self.next(
            Ask {
                alone: true,
                within: None,
            },
            patience,
        )
    }

    /// Where it stands: epoch and step of the next batch. Epoch is the number of epochs at the end.
    pub fn place(&self) -> (u32, u32) {
        let packed = self.at[0].load(Ordering::Acquire);
        ((packed >> 32) as u32, packed as u32)
    }

    fn next(&self, ask: Ask, patience: Duration) -> Result<Asked, JobError> {
        let deadline = Instant::now() + patience;
        let mut consumer = self.consumer();
        match self.prepare_for(&mut consumer, ask, deadline)? {
            Prepared::Ready => Ok(self
                .taken(&mut consumer, ask)
                .map_or(Asked::NotYet, Asked::Batch)),
            Prepared::NotYet => Ok(Asked::NotYet),
            Prepared::End => Ok(Asked::End),
        }
    }

    /// Brings together what is asked for, and waits for it no longer than `patience`. It stays with the job until somebody
    /// takes it.
    pub fn prepare(&self, ask: Ask, patience: Duration) -> Result<Prepared, JobError> {
        let deadline = Instant::now() + patience;
        self.prepare_for(&mut self.consumer(), ask, deadline)
    }

    /// Brings together what is asked for if all of it is there; waits for nobody.
    pub fn prepare_at_once(&self, ask: Ask) -> bool {
        self.consumer
            .try_lock()
            .is_ok_and(|mut consumer| self.prepare_staged(&mut consumer, ask))
    }

    /// Hands over what was prepared, without waiting for anything; none where somebody else has taken it, or is at it.
    pub fn take(&self, ask: Ask) -> Option<Batch> {
        let mut consumer = match self.consumer.try_lock() {
            Ok(consumer) => consumer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.taken(&mut consumer, ask)
    }

    /// Moves to the beginning of an epoch that is ahead. Where it is not, the job stays where it stands.
    pub fn reach(&self, epoch: u32) -> Result<(), JobError> {
        let mut consumer = self.consumer();
        if consumer.mark.epoch.0 >= epoch {
            return Ok(());
        }
        consumer.move_to(Mark {
            epoch: Epoch(epoch),
            step: Step(0),
        });
        self.restart(&consumer)
    }

    /// Moves to the beginning of an epoch that is not behind. Nothing is read to get there.
    pub fn seek(&self, epoch: u32) -> Result<(), JobError> {
        let mut consumer = self.consumer();
        let Mark { epoch: at, step } = consumer.mark;
        if epoch == at.0 && step.0 == 0 && consumer.index == 0 {
            return Ok(());
        }
        let epochs = self.epochs();
        if epoch <= at.0 || epoch > epochs {
            return Err(JobError::Seek {
                epoch,
                at: at.0,
                epochs,
            });
        }
        consumer.move_to(Mark {
            epoch: Epoch(epoch),
            step: Step(0),
        });
        self.restart(&consumer)
    }

    /// Where it stands, to go on from later.
    pub fn save(&self) -> Saved {
        let consumer = self.consumer();
        Saved::of(
            &self.spec(),
            &consumer.layout,
            consumer.began_with,
            consumer.mark,
            consumer.index,
        )
    }

    /// Goes on where another run of this job stood, perhaps with another number of ranks.
    pub fn load(&self, saved: &Saved) -> Result<(), JobError> {
        let spec = self.spec();
        let layout = saved.layout(&spec, self.orders().len())?;
        let mark = saved.mark(&spec, &layout)?;
        let mut consumer = self.consumer();
        let index = saved.index_for(&spec, &layout, mark)?;
        *whole(self.course.write()) = (layout.clone(), saved.began_with);
        *consumer = Consumer::new(layout, saved.began_with, mark, index);
        self.note_place(&consumer);
        self.restart(&consumer)
    }

    /// Goes on with a step of an epoch whose order nobody knew before, and ends with that epoch unless it is told another
    /// one; what tiers hold stays.
    pub fn reorder(&self, mark: Mark, list: Vec<SampleId>) -> Result<(), JobError> {
        let epochs = mark.epoch.0.saturating_add(1);
        let spec = self.spec();
        let orders = Orders::new(Shuffle::Explicit([list].into()), spec.catalog.len(), epochs)?;
        let layout = spec.layout(orders.len())?;
        let mark = if mark.step.0 < layout.steps() {
            mark
        } else {
            Mark {
                epoch: Epoch(epochs),
                step: Step(0),
            }
        };
        let mut consumer = self.consumer();
        *whole(self.orders.write()) = orders;
        *whole(self.course.write()) = (layout.clone(), spec.dealt_to());
        *consumer = Consumer::new(layout, spec.dealt_to(), mark, 0);
        self.restart(&consumer)
    }

    /// Gives up the batch that is next, and goes on after so many steps of this epoch: a sample of it cannot be read.
    pub fn pass_over(&self, steps: u32) -> Result<(), JobError> {
        let mut consumer = self.consumer();
        let Mark { epoch, step } = consumer.mark;
        let to = step.0.saturating_add(steps);
        let mark = if to < consumer.layout.steps() {
            Mark {
                epoch,
                step: Step(to),
            }
        } else {
            Mark {
                epoch: Epoch(epoch.0.saturating_add(1)),
                step: Step(0),
            }
        };
        consumer.move_to(mark);
        self.restart(&consumer)
    }

    /// The first sample after this one in the catalog, and after `tried` others, that can be read: how many were tried
    /// with it, its number and its bytes. None when enough were tried, or before anything was read.
    pub fn instead_of(&self, sample: SampleId, tried: u64) -> Option<(u64, SampleId, Vec<u8>)> {
        let shared = self.lock_running().clone()?;
        let mut others = shared.reader.others(sample, tried);
        others.find_map(|(tried, other)| {
            let mut data = vec![0; shared.spec.catalog.size(other).0 as usize];
            let (read, _) = Worker::new(&shared).read_counted(other, &mut data);
            read.is_ok().then_some((tried, other, data))
        })
    }

    /// Another sample has taken the place of one of which the caller could make nothing.
    pub fn note_skipped(&self, sample: SampleId, other: SampleId, why: &str) {
        if let Some(shared) = self.lock_running().clone() {
            shared.change(|state| {
                state.ledger.counts.skipped += 1;
                ((), Wake::NOBODY)
            });
            let (name, why) = (OneLine(shared.spec.source.name(sample)), OneLine(why));
            tracing::warn!("sample {sample} ({name}): {why}; sample {other} is in its place");
        }
    }

    /// What happened so far, or until the job was closed.
    pub fn stats(&self) -> Stats {
        let (counts, kept_bytes) = self.counted();
        // What was skipped need not have been read, nor what was read in its place.
        let minimum = if counts.skipped == 0 {
            self.source_minimum(kept_bytes)
        } else {
            None
        };
        match counts.job {
            Some(job) => Stats {
                job: Some(JobStats {
                    source_minimum_bytes: minimum,
                    ..job
                }),
                ..counts
            },
            None => Stats {
                source_minimum_bytes: minimum,
                ..counts
            },
        }
    }

    /// What happened so far, without the source minimum: that one takes as long as the job has epochs.
    pub fn counts(&self) -> Stats {
        self.counted().0
    }

    /// The same, and what the tiers of a job that runs or ran can hold.
    fn counted(&self) -> (Stats, Option<Vec<u64>>) {
        if let Some(shared) = self.lock_running().clone() {
            return (
                Stats::of(self, Some(&shared)),
                Some(shared.stores.capacities()),
            );
        }
        let ended = whole(self.ended.lock()).clone();
        ended.map_or_else(
            || (Stats::of(self, None), None),
            |(stats, kept_bytes)| (stats, Some(kept_bytes)),
        )
    }

    /// All that the engine was told, where the job was made to write it down, and the desk to do it again with.
    pub fn recording(&self) -> Option<(Vec<Entry>, Desk)> {
        let shared = self.lock_running().clone()?;
        let entries = shared.look(|state| state.course.desk.record().map(<[Entry]>::to_vec))?;
        let consumer = Consumer::new(
            self.consumer().layout.clone(),
            shared.spec.dealt_to(),
            Mark::START,
            0,
        );
        let desk = self.desk(&consumer, &shared.stores, &[]).ok()?;
        Some((entries, desk))
    }

    /// The staging buffer's memory: address and length; none before the first sample is asked for.
    pub fn buffer(&self) -> Option<(usize, usize)> {
        self.lock_running()
            .as_ref()
            .map(|shared| shared.stores.arena.staging())
    }

    /// The staging buffer's memory; starts the job, as asking for a sample does.
    pub fn staging(&self) -> Result<StagingMemory, JobError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        let consumer = self.consumer();
        let shared = loop {
            let deadline = Instant::now() + MEET_MAX;
            if let Some(shared) = self.running(&consumer, deadline)? {
                break shared;
            }
        };
        Ok(StagingMemory(Arc::clone(&shared.stores.arena)))
    }

    /// The same job in a forked child, where the parent's threads are not.
    pub fn after_fork(&self) -> Result<Self, JobError> {
        let packed = self.at[0].load(Ordering::Acquire);
        let index = self.at[1].load(Ordering::Acquire) as u32;
        let mark = Mark {
            epoch: Epoch((packed >> 32) as u32),
            step: Step(packed as u32),
        };
        // A lock that is only held for reading at the time of the fork can still be read.
        let (layout, began_with) = whole(self.course.read()).clone();
        let consumer = Consumer::new(layout, began_with, mark, index);
        Ok(Self::at(self.spec(), self.orders().anew(), consumer))
    }

    /// Why the trace is not whole, if it is not; known once the job is closed.
    pub fn untraced(&self) -> Option<String> {
        whole(self.untraced.lock()).clone()
    }

    fn orders(&self) -> Orders {
        whole(self.orders.read()).clone()
    }

    fn peers(&self) -> Option<Arc<Peers>> {
        whole(self.peers.read()).clone()
    }

    fn epochs(&self) -> u32 {
        whole(self.orders.read()).epochs()
    }

    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        whole(self.consumer.lock())
    }

    fn lock_running(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        whole(self.running.lock())
    }

    fn note_place(&self, consumer: &Consumer) {
        let Mark { epoch, step } = consumer.mark;
        self.at[1].store(u64::from(consumer.index), Ordering::Release);
        self.at[0].store(
            u64::from(epoch.0) << 32 | u64::from(step.0),
            Ordering::Release,
        );
    }
}

impl Drop for Job {
    /// Who wants the others served to their end closes the job.
    fn drop(&mut self) {
        self.leave(CLOSE_MAX);
    }
}
