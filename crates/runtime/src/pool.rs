//! The loader threads of the process. Jobs share them: a thread takes the most urgent job that has something to do, does
//! it, and looks again. Threads are made when the first job needs them and end with the last; there are as many as the job with
//! the most can use, for each consumer of the process. A job is a member as long as it has its [`Member`].
//!
//! The pool's lock is never held while a job is called, so a job may be asked anything with or without its own lock; jobs
//! take the pool's without theirs.

#[cfg(not(feature = "shuttle"))]
use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use foresee_config::Config;

use crate::fork;
use crate::machine::{self, Nodes, Place};
use crate::tier::OpenDisks;

/// Something that has work for threads.
pub(crate) trait Work: Send + Sync {
    /// Works until nothing is left to do, or until somebody else may be more urgent. False when there was nothing to do.
    fn work(&self) -> bool;
    /// Lower is sooner.
    fn urgency(&self) -> f64;
    /// So many jobs live on its byte budget from now on.
    fn divide_budget(&self, jobs: usize);
    /// Which byte budget it lives on.
    fn budget(&self) -> Budget;
}

/// Memory that jobs of a process share: those with the same configuration, of the same consumer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Budget {
    pub(crate) config: Config,
    pub(crate) consumer: u32,
}

/// The threads.
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    wake: Condvar,
    /// Jobs that have joined.
    jobs: AtomicUsize,
    sleepers: AtomicUsize,
    /// Whether a thread was woken and has not looked yet.
    waking: AtomicBool,
    /// Changes when there may be something new to do.
    signals: AtomicU64,
    /// Tiers on disk that its jobs have open.
    disks: Arc<OpenDisks>,
    /// Where threads can stay.
    nodes: Nodes,
    #[cfg_attr(feature = "shuttle", expect(dead_code, reason = "no schedule forks"))]
    generation: u32,
}

struct Inner {
    jobs: Vec<Joined>,
    /// The number of the next member.
    next: u64,
    threads: usize,
    /// Memory in which jobs keep samples, by budget.
    grants: Vec<(Budget, u64)>,
    /// Whether it was said that threads are not to be had.
    said_fewer: bool,
}

/// A job that threads work for.
#[derive(Clone)]
struct Joined {
    number: u64,
    job: Weak<dyn Work>,
    /// So many threads at most.
    threads: u32,
    /// Consumers of a process have threads of their own; jobs of one share them.
    consumer: u32,
    /// Where the rank is on its host, which says where its threads stay.
    place: Place,
}

/// A job's membership: threads work for the job until this is dropped.
pub(crate) struct Member {
    pool: Arc<Pool>,
    number: u64,
}

impl Member {
    /// The job can use so many threads from now on, if these are more than before.
    pub(crate) fn grow(&self, threads: u32) {
        self.pool.grow(self.number, threads);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.pool.leave(self.number);
    }
}

/// The pool of this process; one that a fork brought along is left alone.
#[cfg(not(feature = "shuttle"))]
static POOL: AtomicPtr<Arc<Pool>> = AtomicPtr::new(std::ptr::null_mut());

#[cfg(feature = "shuttle")]
shuttle::lazy_static! {
    /// One for each schedule: what shuttle's locks know does not outlive it.
    static ref POOL: Arc<Pool> = Arc::new(Pool::new(fork::generation()));
}

impl Pool {
    /// The pool of this schedule.
    #[cfg(feature = "shuttle")]
    pub(crate) fn of_process() -> Arc<Self> {
        Arc::clone(&POOL)
    }

    /// The pool of this process.
    #[cfg(not(feature = "shuttle"))]
    #[allow(
        unsafe_code,
        reason = "a lock around the pool could be held for ever after a fork"
    )]
    pub(crate) fn of_process() -> Arc<Self> {
        let generation = fork::generation();
        loop {
            let found = POOL.load(Ordering::Acquire);
            // SAFETY: what is stored comes from `Box::into_raw` below and is never freed.
            let pool = unsafe { found.as_ref() };
            if let Some(pool) = pool.filter(|pool| pool.generation == generation) {
                return Arc::clone(pool);
            }
            let made = Box::into_raw(Box::new(Arc::new(Self::new(generation))));
            if POOL
                .compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: it was not stored, so nobody else has it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    pub(crate) fn new(generation: u32) -> Self {
        let inner = Inner {
            jobs: Vec::new(),
            next: 0,
            threads: 0,
            grants: Vec::new(),
            said_fewer: false,
        };
        Self {
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            jobs: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            waking: AtomicBool::new(false),
            signals: AtomicU64::new(0),
            disks: Arc::default(),
            nodes: if cfg!(any(feature = "shuttle", miri)) {
                Nodes::default()
            } else {
                machine::nodes()
            },
            generation,
        }
    }

    /// Tiers on disk that its jobs have open.
    pub(crate) fn disks(&self) -> &Arc<OpenDisks> {
        &self.disks
    }

    /// Works for a job too, with so many threads at most, as long as it is a member. Fewer than that are enough; with none
    /// at all the job is not joined.
    pub(crate) fn join(
        self: &Arc<Self>,
        job: &Arc<dyn Work>,
        threads: u32,
        place: Place,
    ) -> std::io::Result<Member> {
        let consumer = job.budget().consumer;
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.jobs.push(Joined {
            number,
            job: Arc::downgrade(job),
            threads,
            consumer,
            place,
        });
        if let Err(error) = self.start_threads(&mut inner, place) {
            if inner.threads == 0 {
                inner.jobs.pop();
                return Err(error);
            }
            inner.settle_for_fewer(&error);
        }
        self.jobs.store(inner.jobs.len(), Ordering::Relaxed);
        drop(inner);
        self.divide_budgets();
        Ok(Member {
            pool: Arc::clone(self),
            number,
        })
    }

    fn grow(self: &Arc<Self>, number: u64, threads: u32) {
        let mut inner = self.inner();
        let found = inner.jobs.iter_mut().find(|job| job.number == number);
        let Some(job) = found.filter(|job| job.threads < threads) else {
            return;
        };
        job.threads = threads;
        let place = job.place;
        if let Err(error) = self.start_threads(&mut inner, place) {
            inner.settle_for_fewer(&error);
        }
    }

    /// Threads that are still missing, on the nodes of a rank at this place.
    fn start_threads(self: &Arc<Self>, inner: &mut Inner, place: Place) -> std::io::Result<()> {
        let wanted = inner.wanted();
        while inner.threads < wanted {
            let pool = Arc::clone(self);
            let number = inner.threads;
            let name = format!("foresee-{number}");
            thread::Builder::new().name(name).spawn(move || {
                if let Some(cpus) = pool.nodes.of_thread(place, number) {
                    machine::stay_on(cpus);
                }
                pool.run();
            })?;
            inner.threads += 1;
        }
        Ok(())
    }

    /// Whether threads have more than one job to work for.
    pub(crate) fn is_shared(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 1
    }

    /// Tells all jobs how many live on their budget.
    pub(crate) fn divide_budgets(&self) {
        let inner = self.inner();
        let joined = inner.jobs.iter();
        let jobs: Vec<Arc<dyn Work>> = joined.filter_map(|joined| joined.job.upgrade()).collect();
        // Jobs take their own lock.
        drop(inner);
        for job in &jobs {
            let budget = job.budget();
            let on_same = jobs.iter().filter(|other| other.budget() == budget);
            job.divide_budget(on_same.count());
        }
    }

    /// Does nothing more for a job.
    fn leave(&self, number: u64) {
        let mut inner = self.inner();
        inner
            .jobs
            .retain(|other| other.number != number && other.job.strong_count() > 0);
        self.jobs.store(inner.jobs.len(), Ordering::Relaxed);
        self.signals.fetch_add(1, Ordering::SeqCst);
        // With the lock, or a thread that is about to sleep would miss it.
        self.wake.notify_all();
        drop(inner);
        self.divide_budgets();
    }

    /// Gives memory for keeping samples, as much as is left of `capacity` bytes for all jobs together.
    pub(crate) fn grant(&self, budget: &Budget, wanted: u64, capacity: u64) -> u64 {
        let mut inner = self.inner();
        let taken: u64 = inner
            .grants
            .iter()
            .filter(|grant| grant.0 == *budget)
            .map(|grant| grant.1)
            .sum();
        let granted = wanted.min(capacity.saturating_sub(taken));
        inner.grants.push((budget.clone(), granted));
        granted
    }

    /// Takes granted memory back.
    pub(crate) fn take_back(&self, budget: &Budget, bytes: u64) {
        let mut inner = self.inner();
        if let Some(place) = inner
            .grants
            .iter()
            .position(|grant| grant.1 == bytes && grant.0 == *budget)
        {
            inner.grants.swap_remove(place);
        }
    }

    /// There may be something to do.
    pub(crate) fn signal(&self) {
        self.signals.fetch_add(1, Ordering::SeqCst);
        self.wake_one();
    }

    /// There may be something to do that is not worth a second thread: one that was woken and has not looked yet is enough.
    pub(crate) fn signal_once(&self) {
        // First the signal, then the look: whoever is being woken looks for signals after it has said that it is awake.
        self.signals.fetch_add(1, Ordering::SeqCst);
        if !self.waking.load(Ordering::SeqCst) {
            self.wake_one();
        }
    }

    fn wake_one(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // With the lock, or a thread that is about to sleep would miss it.
            let inner = self.inner();
            self.waking
                .store(self.sleepers.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
            self.wake.notify_one();
            drop(inner);
        }
    }

    fn run(&self) {
        loop {
            let seen = self.signals.load(Ordering::SeqCst);
            let jobs = {
                let mut inner = self.inner();
                if inner.threads > inner.wanted() {
                    inner.threads -= 1;
                    return;
                }
                inner.jobs.clone()
            };
            let living = jobs.iter().filter_map(|joined| joined.job.upgrade());
            let jobs = most_urgent_first(living.collect());
            if !jobs.iter().any(|job| job.work()) {
                drop(jobs);
                self.sleep(seen);
            }
        }
    }

    fn sleep(&self, seen: u64) {
        let mut inner = self.inner();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.signals.load(Ordering::SeqCst) == seen && inner.threads <= inner.wanted() {
            inner = whole(self.wake.wait(inner));
            // Also if there is nothing new and it sleeps on: it may have looked just before it was woken.
            self.waking.store(false, Ordering::SeqCst);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        whole(self.inner.lock())
    }
}

/// Each is asked once: its answer changes while others are asked, and no sort can make sense of that.
fn most_urgent_first(jobs: Vec<Arc<dyn Work>>) -> Vec<Arc<dyn Work>> {
    if jobs.len() < 2 {
        return jobs;
    }
    let mut asked: Vec<(f64, Arc<dyn Work>)> =
        jobs.into_iter().map(|job| (job.urgency(), job)).collect();
    asked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    asked.into_iter().map(|(_, job)| job).collect()
}

impl Inner {
    /// As many threads as the job that wants most, of each consumer.
    fn wanted(&self) -> usize {
        let mut most: BTreeMap<u32, u32> = BTreeMap::new();
        for job in &self.jobs {
            let most = most.entry(job.consumer).or_default();
            *most = job.threads.max(*most);
        }
        most.values().map(|threads| *threads as usize).sum()
    }

    /// No job gets more threads than there are.
    fn settle_for_fewer(&mut self, error: &std::io::Error) {
        let threads = self.threads;
        if !std::mem::replace(&mut self.said_fewer, true) {
            tracing::warn!("cannot start more loader threads: {error}; going on with {threads}");
        }
        for job in &mut self.jobs {
            job.threads = job.threads.min(threads as u32);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    struct Idle;

    impl Work for Idle {
        fn work(&self) -> bool {
            false
        }
        fn urgency(&self) -> f64 {
            0.0
        }
        fn divide_budget(&self, _: usize) {}
        fn budget(&self) -> Budget {
            unreachable!("nobody asks")
        }
    }

    #[test]
    fn jobs_of_a_consumer_share_threads_and_consumers_have_their_own() {
        let joined = |(consumer, threads)| Joined {
            number: 0,
            job: Weak::<Idle>::new(),
            threads,
            consumer,
            place: Place::default(),
        };
        let wanted = |jobs: &[(u32, u32)]| {
            let inner = Inner {
                jobs: jobs.iter().copied().map(joined).collect(),
                next: 0,
                threads: 0,
                grants: Vec::new(),
                said_fewer: false,
            };
            inner.wanted()
        };
        assert_eq!(wanted(&[]), 0);
        assert_eq!(wanted(&[(0, 3), (0, 5), (0, 5), (0, 2)]), 5);
        assert_eq!(wanted(&[(0, 3), (1, 4), (1, 2), (2, 1)]), 8);
    }
}
