//! Threads of a host's ranks go to the rank that would be late. What each has before it, and what it does about it, it shows to
//! the others (`crate::host`); who gets how many is core's to say (`threads::permits`). A thread of its own looks some twenty
//! times a second, so that a trainer that stands still, a read that hangs and a rank that is gone hold up nobody.
//!
//! It is there where ranks of a host see each other's memory and nobody said how many threads one rank has. For each sample
//! only how long it took is noted (`pace`); what came of it all is in `balance_stats`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foresee_config::shown;
use foresee_core::threads::permits::{Permits, Shown};
use foresee_core::threads::{Rule, Terms, ThreadPlan};

use super::balance_stats::{BalanceStats, Chronicle, Present};
use super::error::JobError;
use super::shared::Shared;
use super::spec::JobSpec;
use super::state::State;
use super::wake::{Call, Wake};
use crate::host::{Crews, Stepped};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use crate::trace;

/// From one look to the next.
const EVERY: Duration = Duration::from_millis(50);

struct Inner {
    permits: Option<Permits>,
    follows: u64,
    chronicle: Chronicle,
    present: Present,
    stop: bool,
}

/// How threads of a host are planned in a job.
pub(super) struct Rules {
    /// Looks between two plans.
    every: u64,
    /// What an earlier job did.
    replayed: Option<ThreadPlan>,
    /// Where what was done is written in the end, by one rank of the host.
    record: Option<PathBuf>,
}

impl Rules {
    /// As the configuration has it; none where threads are not shared.
    pub(super) fn of(spec: &JobSpec, crews: Option<&Arc<Crews>>) -> Result<Option<Self>, JobError> {
        let Some(crews) = crews.filter(|_| spec.shares_threads()) else {
            return Ok(None);
        };
        let balance = &spec.config.balance;
        let first = crews.members.first().map_or(spec.rank, |rank| rank.0);
        let of_host = |path: &Path| trace::path_of(path, first, spec.world);
        let replayed = balance.replay.as_deref().map(of_host);
        let looks = balance.every.as_secs_f64() / EVERY.as_secs_f64();
        Ok(Some(Self {
            every: (looks.round() as u64).max(1),
            replayed: replayed.map(read_plan).transpose()?,
            record: balance
                .record
                .as_deref()
                .filter(|_| crews.place == 0)
                .map(of_host),
        }))
    }
}

fn read_plan(path: PathBuf) -> Result<ThreadPlan, JobError> {
    let text = std::fs::read_to_string(&path).map_err(|cause| cause.to_string());
    let plan = text.and_then(|text| {
        text.parse::<ThreadPlan>()
            .map_err(|cause| cause.to_string())
    });
    plan.map_err(|cause| JobError::ThreadPlan { path, cause })
}

/// Whole or not at all.
fn write_plan(path: &Path, plan: &ThreadPlan) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    std::fs::write(&beside, plan.to_string())?;
    std::fs::rename(&beside, path)
}

/// The balancing of one job.
pub(super) struct Balancing {
    crews: Arc<Crews>,
    rules: Rules,
    inner: Mutex<Inner>,
    stopped: Condvar,
}

impl Balancing {
    /// Nothing is done before it is started.
    pub(super) fn new(crews: Arc<Crews>, rules: Rules) -> Self {
        let inner = Inner {
            permits: None,
            follows: 0,
            chronicle: Chronicle::new(crews.members.clone()),
            present: Present::default(),
            stop: false,
        };
        Self {
            crews,
            rules,
            inner: Mutex::new(inner),
            stopped: Condvar::new(),
        }
    }

    /// Looks from now on, in a thread that ends with the job.
    pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
        let shared = Arc::downgrade(shared);
        let builder = thread::Builder::new().name("foresee-balance".into());
        builder.spawn(move || run(&shared)).map(drop)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        whole(self.inner.lock())
    }

    /// A batch was handed over, the first being 0: how long the trainer waited for it, and took before.
    pub(super) fn stepped(&self, number: u64, step: Stepped) {
        self.crews.show_step(number, step);
    }

    /// Takes part no longer; the others see that at once.
    pub(super) fn close(&self) {
        let mut inner = self.inner();
        let was_stopped = std::mem::replace(&mut inner.stop, true);
        let plan = inner.chronicle.threads().of_all();
        drop(inner);
        self.stopped.notify_all();
        self.crews.show(&Shown::default());
        let record = self.rules.record.as_ref().filter(|_| !was_stopped);
        if let Some((path, cause)) =
            record.and_then(|path| Some((path, write_plan(path, &plan).err()?)))
        {
            let path = shown(path);
            tracing::warn!(
                "plan of threads {path}: {cause}; give balance.record a file that can be written"
            );
        }
    }

    /// What happened so far. `decoding`: what threads decode, as this rank measured it.
    pub(super) fn stats(&self, decoding: String) -> BalanceStats {
        let mut inner = self.inner();
        // Steps since the last look count, too.
        inner.chronicle.look(&self.crews, &self.crews.look());
        inner.chronicle.stats(&inner.present, decoding)
    }

    /// One look. False when the job is closed.
    fn look(&self, shared: &Shared) -> bool {
        let mut inner = self.inner();
        if inner.stop {
            return false;
        }
        // The others' numbers before the lock: memory of other processes may be slow to come.
        let others = self.crews.look();
        let Inner {
            permits, follows, ..
        } = &mut *inner;
        let place = self.crews.place;
        let step = self.crews.own_steps();
        let apart = others.iter().enumerate().filter(|(at, _)| *at != place);
        let live = apart.filter(|(_, shown)| shown.is_live);
        let others_busy = live.map(|(_, shown)| shown.busy).sum();
        let (shown, decided, all) = shared.change(|state| {
            let mut all = others;
            let shown = state.shown(*follows, others_busy);
            let plan = std::mem::take(&mut all[place].plan);
            all[place] = Shown {
                plan,
                ..shown.clone()
            };
            let permits = permits.get_or_insert_with(|| {
                let terms = Terms {
                    every: self.rules.every,
                    ..Terms::by(Rule::Foresee)
                };
                let permits = Permits::new(place, shown.brought, terms);
                match &self.rules.replayed {
                    Some(plan) => permits.replaying(plan.clone()),
                    None => permits,
                }
            });
            let decided = permits.look(&all, state.crew.lanes.shareable_busy(), step);
            let wake = state.permit(decided.permits);
            ((shown, decided, all), wake)
        });
        if let Some(plan) = &decided.plan {
            self.crews.show_plan(plan);
        }
        inner.follows = decided.follows;
        self.crews.show(&Shown {
            follows: decided.follows,
            ..shown.clone()
        });
        inner.present = Present {
            live: all.iter().filter(|shown| shown.is_live).count() as u32,
            brought: shown.brought,
            threads: decided.permits,
        };
        inner.chronicle.look(&self.crews, &all);
        true
    }
}

fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let Some(balancing) = &shared.balancing else {
            return;
        };
        let goes_on = shared.guarded(|| balancing.look(&shared)).unwrap_or(false);
        if !goes_on {
            return;
        }
        let inner = balancing.inner();
        let waited = balancing
            .stopped
            .wait_timeout_while(inner, EVERY, |inner| !inner.stop);
        drop(waited);
    }
}

impl State {
    /// This rank has so many threads from now on.
    fn permit(&mut self, threads: u32) -> Wake {
        let before = self.crew.lanes.all_threads();
        self.crew.lanes.permit(threads);
        let most = self.crew.most();
        if most <= before {
            return Wake::NOBODY;
        }
        Wake {
            threads_most: Some(most),
            ..Wake::call(Call::Another)
        }
    }
}
