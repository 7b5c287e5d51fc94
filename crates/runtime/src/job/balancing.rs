//! Threads of a host's ranks go to the rank that would be late. What each has before it, and what it does about it, it shows to
//! the others (`crate::host`); who gets how many is core's to say (`threads::permits`). A thread of its own looks some twenty
//! times a second, so that a trainer that stands still, a read that hangs and a rank that is gone hold up nobody.
//!
//! It is there where ranks of a host see each other's memory and nobody said how many threads one rank has. For each sample
//! only how long it took is noted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foresee_core::engine::Scout;
use foresee_core::steps::Steps;
use foresee_core::threads::loading::{Costs, Mean};
use foresee_core::threads::permits::{Permits, Plan, Shown};
use foresee_core::threads::{Allotted, Rule, Terms, ThreadPlan};
use foresee_core::units::Seconds;
use serde::Serialize;

use super::shared::Shared;
use super::state::State;
use super::wake::{Call, Wake};
use crate::host::{Crews, Stepped};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};

/// From one look to the next.
const EVERY: Duration = Duration::from_millis(50);

/// Looks between two plans: threads that were moved are to be of use before they are moved again.
const PLANNED_EVERY: u64 = 4;

/// So many steps are looked ahead.
const LOOKED_AHEAD: usize = 4;

/// Steps that the others have not done by then are not counted any more: fewer than are remembered.
const STEPS_WAITED: u64 = 128;

/// Changes of threads that are remembered.
const CHANGES_MAX: usize = 256;

/// What a job knows of its pace.
#[derive(Default)]
pub(super) struct Pace {
    /// How long threads are busy with samples.
    pub(super) costs: Costs,
    /// How long the trainer takes from one batch to asking for the next.
    trains: Mean,
    /// Looks ahead, in the course of this number.
    scout: Option<(u64, Scout)>,
}

impl Pace {
    /// The trainer took so long with a batch.
    pub(super) fn trained(&mut self, took: Seconds) {
        self.trains.note(took);
    }
}

/// What happened between ranks of a host, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BalanceStats {
    /// Ranks of the host that take part and were heard of lately.
    pub ranks: u32,
    /// Loader threads that this rank brought.
    pub brought: u32,
    /// Loader threads that it has at present.
    pub threads: u32,
    /// Steps that all ranks of the host have done.
    pub steps: u64,
    /// The part of them in which one rank waited for its data for over a tenth of a step of training, and another did not.
    pub imbalanced_steps: Option<f64>,
    /// By place on the host: steps in which a rank was late while another was not.
    pub late: Vec<u64>,
    /// How long steps took: half of them at most `p50`, and so on.
    pub steps_s: BTreeMap<String, f64>,
    /// The latest changes: from which step of this rank on each rank of the host was to have how many threads.
    pub threads_over_time: Vec<(u64, Vec<u32>)>,
}

impl fmt::Display for BalanceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_host = format!("{} of the host's ranks share threads", self.ranks);
        write!(f, "balance     {of_host}, {} here", self.threads)?;
        if let Some(part) = self.imbalanced_steps {
            let late: Vec<String> = self.late.iter().map(u64::to_string).collect();
            let part = 100.0 * part;
            write!(f, "; {part:.1} % of {} steps imbalanced", self.steps)?;
            if !late.is_empty() {
                write!(f, ", late by rank: {}", late.join(" "))?;
            }
        }
        Ok(())
    }
}

struct Inner {
    permits: Option<Permits>,
    follows: u64,
    steps: Steps,
    next_step: u64,
    noted: ThreadPlan,
    latest: BalanceStats,
    stop: bool,
}

/// The balancing of one job.
pub(super) struct Balancing {
    crews: Arc<Crews>,
    inner: Mutex<Inner>,
    stopped: Condvar,
}

impl Balancing {
    /// Nothing is done before it is started.
    pub(super) fn new(crews: Arc<Crews>) -> Self {
        let inner = Inner {
            permits: None,
            follows: 0,
            steps: Steps::default(),
            next_step: 0,
            noted: ThreadPlan::default(),
            latest: BalanceStats::default(),
            stop: false,
        };
        Self {
            crews,
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
    pub(super) fn stepped(&self, number: u64, waited: Seconds, trained: Seconds) {
        self.crews.show_step(number, Stepped { waited, trained });
    }

    /// Takes part no longer; the others see that at once.
    pub(super) fn close(&self) {
        self.inner().stop = true;
        self.stopped.notify_all();
        self.crews.show(&Shown::default());
    }

    /// What happened so far.
    pub(super) fn stats(&self) -> BalanceStats {
        self.inner().latest.clone()
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
        let (shown, decided, all) = shared.change(|state| {
            let mut all = others;
            let shown = state.shown(*follows);
            let plan = std::mem::take(&mut all[place].plan);
            all[place] = Shown {
                plan,
                ..shown.clone()
            };
            let permits = permits.get_or_insert_with(|| {
                let terms = Terms {
                    every: PLANNED_EVERY,
                    ..Terms::by(Rule::Foresee)
                };
                Permits::new(place, shown.brought, terms)
            });
            let decided = permits.look(&all, state.crew.lanes.shareable_busy());
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
        inner.note(&self.crews, &all, &shown, decided.permits);
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

impl Inner {
    /// Counts steps that all have done by now, and remembers who has how many threads.
    fn note(&mut self, crews: &Crews, all: &[Shown], shown: &Shown, threads: u32) {
        let own_steps = crews.own_steps();
        while self.next_step < own_steps {
            match crews.step(self.next_step) {
                Some(ranks) => self.note_step(&ranks),
                None if own_steps - self.next_step < STEPS_WAITED => break,
                None => {}
            }
            self.next_step += 1;
        }
        let newest = all.iter().map(|shown| &shown.plan);
        let newest = newest.max_by_key(|plan| plan.generation);
        if let Some(plan) = newest.filter(|plan| plan.generation > 0)
            && self.noted.changes().len() < CHANGES_MAX
        {
            let allotted = Allotted {
                loading: plan.threads.clone(),
                decoding: 0,
            };
            self.noted.note(own_steps, &allotted);
        }
        let changes = self.noted.changes().iter();
        self.latest = BalanceStats {
            ranks: all.iter().filter(|shown| shown.is_live).count() as u32,
            brought: shown.brought,
            threads,
            steps: self.steps.number(),
            imbalanced_steps: self.steps.imbalanced(),
            late: self.steps.late().to_vec(),
            steps_s: self.steps.quantiles(),
            threads_over_time: changes
                .map(|(step, allotted)| (*step, allotted.loading.clone()))
                .collect(),
        };
    }

    fn note_step(&mut self, ranks: &[Stepped]) {
        let trained = ranks.iter().map(|step| step.trained.0);
        let train = Seconds(trained.fold(f64::INFINITY, f64::min));
        let waited: Vec<Seconds> = ranks.iter().map(|step| step.waited).collect();
        let longest = waited
            .iter()
            .fold(Seconds::ZERO, |most, one| most.max(*one));
        self.steps.note(train + longest, train, &waited);
    }
}

impl State {
    /// What this rank has before it.
    fn shown(&mut self, follows: u64) -> Shown {
        let counts = self.ledger.counts;
        let batch = counts.samples.checked_div(counts.batches).unwrap_or(0) as usize;
        let number = self.course.number();
        let desk = &mut self.course.desk;
        let mut scout = match self.pace.scout.take() {
            Some((of, scout)) if of == number => scout,
            Some(_) | None => desk.scout(),
        };
        let unpolled = (LOOKED_AHEAD * batch).saturating_sub(self.course.slots.len());
        let mut need = desk.need(&mut scout, unpolled);
        self.pace.scout = Some((number, scout));
        for read in self.course.queued() {
            need.add(read.origin, read.bytes);
        }
        let trains = self.pace.trains.get().unwrap_or_default();
        Shown {
            is_live: true,
            brought: self.crew.lanes.own_threads(),
            queued: need.samples(),
            work: need.measured(&self.pace.costs),
            train: Seconds(trains.0 * LOOKED_AHEAD as f64),
            follows,
            plan: Plan::default(),
        }
    }

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
