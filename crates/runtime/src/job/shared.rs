//! What a job's threads share, and the one place that takes the job's lock ([`Shared::change`], [`Shared::look`],
//! [`Shared::sleep`]): whoever changes the state says whom that concerns, and they are woken here, after unlocking. The guard
//! of the lock never leaves this file, and in debug builds who has it must not write files.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::balancing::{Balancing, Rules};
use super::chores::Chores;
use super::outbox::Outbox;
use super::pace::Pace;
use super::post::Post;
use super::reader::Reader;
use super::serving::{Ear, Served};
use super::sharing::Left;
use super::spec::JobSpec;
use super::state::{Ended, State};
use super::stores::{Grant, Stores};
use super::wake::{Call, Wake};
use super::work::Worker;
use crate::fork;
use crate::host::Files;
use crate::pool::{Budget, Member, Pool, Work};
use crate::tier::forbid_writes;
use crate::trace::Trace;
use crate::transport::{Serving, Transport};

/// What lies here for a rank of this host does so at least this long, however short deadlines are: it costs nobody any time.
const FETCHED_WITHIN: Duration = Duration::from_secs(1);

/// What a job's threads share.
pub(crate) struct Shared {
    pub(super) spec: Arc<JobSpec>,
    pub(super) stores: Arc<Stores>,
    pub(super) reader: Reader,
    pub(super) trace: Option<Trace>,
    /// This, for threads that end with it.
    pub(super) own: Weak<Self>,
    /// What is said to other ranks; none without peers.
    pub(super) post: Option<Post>,
    /// What is on its way to them.
    pub(super) outbox: Arc<Outbox>,
    /// What lies here for those of this host.
    pub(super) left: Left,
    /// What they keep on disk.
    pub(super) files: Files,
    /// What they got from here.
    pub(super) served: Served,
    /// What they want of disks.
    pub(super) chores: Chores,
    /// Threads that go to the rank of this host that needs them; none where they do not.
    pub(super) balancing: Option<Balancing>,
    /// Until the job is closed, what other ranks send is taken in.
    serving: Mutex<Option<Serving>>,
    /// Whether the trainer reads its samples itself, one by one.
    pub(super) on_demand: bool,
    /// What a sample takes of the staging buffer, on average and at most.
    pub(super) mean_bytes: u64,
    largest_bytes: u64,
    state: Mutex<State>,
    /// Something happened that the trainer waits for.
    ready: Condvar,
    /// Whether the trainer waits.
    waiting: AtomicBool,
    pool: Arc<Pool>,
    /// Until the job is closed.
    member: Mutex<Option<Member>>,
    /// Memory of the process's budget, given back at the end.
    grant: Mutex<Option<Grant>>,
    /// Forks before this process.
    forks_before: u32,
}

/// What a running job is made of.
pub(super) struct Parts {
    pub(super) spec: Arc<JobSpec>,
    pub(super) stores: Arc<Stores>,
    pub(super) reader: Reader,
    pub(super) trace: Option<Trace>,
    pub(super) transport: Option<Arc<dyn Transport>>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) on_demand: bool,
    pub(super) mean_bytes: u64,
    pub(super) largest_bytes: u64,
    pub(super) state: State,
    pub(super) pool: Arc<Pool>,
    pub(super) grant: Grant,
    /// How threads of the host are planned; none where they are not shared.
    pub(super) rules: Option<Rules>,
}

impl Shared {
    /// A job that loader threads work for from now on.
    pub(super) fn start(parts: Parts) -> std::io::Result<Arc<Self>> {
        let most = parts.state.crew.most();
        let pool = Arc::clone(&parts.pool);
        let deadline = parts.spec.config.peers.deadline;
        let (world, outbox) = (parts.spec.world, parts.outbox);
        let staging_bytes = parts.spec.config.staging.capacity_bytes;
        let served = Served::new(world, staging_bytes, parts.largest_bytes);
        let post = parts
            .transport
            .map(|way| Post::new(way, world, deadline, Arc::clone(&outbox)));
        let crews = parts.stores.arena.crews();
        let balancing = crews.zip(parts.rules);
        let balancing = balancing.map(|(crews, rules)| Balancing::new(Arc::clone(crews), rules));
        let mut state = parts.state;
        state.pace = balancing.is_some().then(Pace::default);
        let shared = Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            post,
            outbox,
            left: Left::new(deadline.max(FETCHED_WITHIN)),
            files: Files::default(),
            served,
            chores: Chores::default(),
            balancing,
            spec: parts.spec,
            stores: parts.stores,
            reader: parts.reader,
            trace: parts.trace,
            serving: Mutex::new(None),
            on_demand: parts.on_demand,
            mean_bytes: parts.mean_bytes,
            largest_bytes: parts.largest_bytes,
            state: Mutex::new(state),
            ready: Condvar::new(),
            waiting: AtomicBool::new(false),
            pool: parts.pool,
            member: Mutex::new(None),
            grant: Mutex::new(Some(parts.grant)),
            forks_before: fork::generation(),
        });
        let work: Arc<dyn Work> = Arc::clone(&shared) as Arc<dyn Work>;
        // Threads that begin at once and want more find the membership, or wait for it.
        let mut member = whole(shared.member.lock());
        *member = Some(pool.join(&work, most, shared.spec.place())?);
        drop(member);
        let transport = shared.post.as_ref().and_then(Post::transport);
        if let Some(transport) = transport {
            let ear = Arc::new(Ear(Arc::downgrade(&shared)));
            let serving = transport.serve(ear)?;
            *whole(shared.serving.lock()) = Some(serving);
        }
        if shared.balancing.is_some() {
            Balancing::start(&shared)?;
        }
        Ok(shared)
    }

    /// Changes the state, and wakes whom that concerns.
    pub(super) fn change<T>(&self, act: impl FnOnce(&mut State) -> (T, Wake)) -> T {
        let ((result, wake), errands) = {
            let mut state = self.lock();
            let _locked = forbid_writes();
            let changed = act(&mut state);
            (changed, state.take_errands())
        };
        self.wake(wake);
        if !errands.is_empty() {
            self.dispatch(errands);
        }
        result
    }

    /// Changes the state if nobody else is at it.
    pub(super) fn change_at_once<T>(&self, act: impl FnOnce(&mut State) -> (T, Wake)) -> Option<T> {
        let (result, wake) = {
            let mut state = self.state.try_lock().ok()?;
            let _locked = forbid_writes();
            act(&mut state)
        };
        self.wake(wake);
        Some(result)
    }

    /// Looks at the state.
    pub(super) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Sleeps until the state is as the caller wants it, until nothing more is done, or until the deadline.
    pub(super) fn sleep(&self, deadline: Instant, until: impl Fn(&State) -> bool) {
        self.waiting.store(true, Ordering::Relaxed);
        let patience = deadline.saturating_duration_since(Instant::now());
        let state = self.lock();
        let asleep = self.ready.wait_timeout_while(state, patience, |state| {
            !until(state) && state.ended().is_none()
        });
        drop(asleep);
        self.waiting.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a thread of ours is a defect, but not one that should take the trainer's data with it.
        whole(self.state.lock())
    }

    fn wake(&self, wake: Wake) {
        let Wake {
            trainer,
            threads,
            threads_most,
        } = wake;
        if trainer && self.waiting.load(Ordering::Relaxed) {
            self.ready.notify_one();
        }
        if let Some(most) = threads_most
            && let Some(member) = &*whole(self.member.lock())
        {
            member.grow(most);
        }
        match threads {
            Call::Nobody => {}
            Call::One => self.pool.signal_once(),
            Call::Another => self.pool.signal(),
        }
    }

    /// Does something that may panic: that is a defect, and ends the job, but neither the thread nor the program.
    pub(super) fn guarded<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.map_err(|cause| {
            let said = cause.downcast_ref::<String>().cloned();
            let said = said.or_else(|| cause.downcast_ref::<&str>().map(|&said| said.to_owned()));
            let said = said.unwrap_or_else(|| "for no known reason".to_owned());
            self.change(|state| ((), state.end(Ended::Defect(said))));
        })
        .ok()
    }

    /// Whether a thread that has nothing to read keeps nobody from a core: reads sleep, and are not copies.
    fn has_time(&self) -> bool {
        let state = self.state.try_lock();
        state.is_ok_and(|state| state.ended().is_none() && !state.crew.are_quick())
    }

    /// Whether it is not one that a fork brought along.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.forks_before == fork::generation()
    }

    /// Tells all jobs of the process how many they are, and threads that there is something to do.
    pub(super) fn divide_budgets(&self) {
        self.pool.divide_budgets();
    }

    /// Whether other jobs have work for the same threads.
    pub(super) fn shares_threads(&self) -> bool {
        self.pool.is_shared()
    }

    /// Threads do nothing more for this job. `is_over`: the trainer has all of its stream.
    pub(super) fn close(&self, is_over: bool) {
        self.reader.close();
        // A child's parent goes on with what both see.
        if let Some(balancing) = self
            .balancing
            .as_ref()
            .filter(|_| self.is_of_this_process())
        {
            balancing.close();
        }
        self.change(|state| ((), state.end(Ended::Closed)));
        let member = whole(self.member.lock()).take();
        // After the lock: the pool asks all jobs.
        drop(member);
        let serving = whole(self.serving.lock()).take();
        // After the lock: it waits for what is being taken in.
        drop(serving);
        self.chores.close();
        if let Some(post) = &self.post {
            post.close();
        }
        let missed = self.outbox.missed(is_over);
        if missed > 0 {
            let rank = self.spec.rank;
            let samples = if missed == 1 { "sample" } else { "samples" };
            tracing::warn!(
                "rank {rank}: {missed} {samples} could not be handed over to the ranks that keep them: whoever used one again read it from the source"
            );
        }
    }

    /// Gives back what is ours. Threads that hang in a read keep what they need until they are done, and so do samples in the
    /// trainer's hands: they need their memory, but neither the cache folder nor the budget.
    pub(super) fn give_back(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.is_busy() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if !self.is_busy() {
            self.chores.join();
            self.stores.close();
            drop(whole(self.grant.lock()).take());
        }
    }

    fn is_busy(&self) -> bool {
        self.look(|state| state.crew.is_busy()) || self.chores.is_busy()
    }
}

impl Work for Shared {
    fn work(&self) -> bool {
        let did = self.guarded(|| Worker::new(self).work());
        // Before a thread sleeps it takes some memory that others would take while they read.
        did.unwrap_or(false) || (self.has_time() && self.stores.arena.allocate_ahead())
    }

    fn urgency(&self) -> f64 {
        if self.waiting.load(Ordering::Relaxed) {
            return -1.0;
        }
        let staged = self.state.try_lock();
        staged.map_or(0, |state| state.course.slots.len()) as f64
    }

    /// Uses its part of the staging buffer when several jobs live on it, and at least what the largest sample needs.
    fn divide_budget(&self, jobs: usize) {
        let part = self.spec.config.staging.capacity_bytes / jobs.max(1) as u64;
        let most = part.max(self.largest_bytes);
        self.change(|state| ((), state.bound_window(most)));
    }

    fn budget(&self) -> Budget {
        self.spec.budget()
    }
}
