//! The predicting driver: event by event, with every loader thread on its own. Reads that are under way share the
//! source, samples are staged out of order and consumed in order, and a step begins when the slowest rank has finished
//! the last. Made to be compared with real runs; `contention = "reads"` chooses it.
//!
//! A read of a thread has a latency (source only), a transfer and a write: into the staging buffer, which includes
//! decoding, or into a tier. A rank polls its idle threads whenever something of its own changes, and what waits for a
//! sample goes on when it arrives. What the threads do is in `reads`; here are events, steps and trainers.

mod balance;
mod detailed;
mod rank;
mod reads;
mod sight;
mod source;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use foresee_core::causes::Causes;
use foresee_core::engine::Consumed;
use foresee_core::ids::{Rank, SampleId, Step, TierId};
use foresee_core::model::Model;
use foresee_core::policy::{Part, Policy};
use foresee_core::steps::{Steps, Uses};
use foresee_core::tally::{Event, Tally};
use foresee_core::units::{Bytes, Seconds};

use self::balance::Sharing;
use self::rank::{RankState, Staged, Trainer};
use self::reads::{Doer, Task};
use self::sight::Sight;
use self::source::{Ordered, Source};
use self::waiting::Waiting;
use crate::copies::Copies;
use crate::fill;
use crate::job::Job;
use crate::outcome::{Outcome, Ran, Times};

pub use self::detailed::Detailed;

/// Runs a policy on a job. `progress` is told now and then how many accesses are done.
pub fn run(job: &Job, policy: &dyn Policy, progress: impl FnMut(u64)) -> Outcome {
    run_detailed(job, policy, progress).outcome
}

/// Runs a policy on a job and keeps the details.
pub fn run_detailed(job: &Job, policy: &dyn Policy, mut progress: impl FnMut(u64)) -> Detailed {
    progress(0);
    match policy.plan(&job.brief) {
        Ok(parts) => Prediction::new(job, policy, parts).finish(policy.name(), &mut progress),
        Err(reason) => Detailed::without_run(Outcome::unsupported(
            policy.name(),
            reason.0,
            job.brief.system.tiers.len(),
        )),
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The source answers: the transfer begins.
    Answered(usize),
    /// A transfer from elsewhere has ended.
    Fetched(usize),
    /// A read has been written.
    Written(usize),
    /// A sample that was handed over has arrived.
    Arrived { sample: u32, rank: u32, tier: u8 },
    /// A rank has trained on a sample.
    Trained(u32),
}

struct Prediction<'a> {
    job: &'a Job,
    model: Arc<Model>,
    ranks: Vec<RankState>,
    copies: Copies,
    source: Source,
    waiting: Waiting,
    /// Work space: the ranks that a sample wakes.
    awake: Vec<Rank>,
    tasks: Vec<Task>,
    free_tasks: Vec<usize>,
    events: BinaryHeap<Reverse<(Ordered, u64, Happening)>>,
    sequence: u64,
    now: Seconds,
    startup: Seconds,
    first_batch: Seconds,
    in_first_step: bool,
    at_barrier: u32,
    filled: Tally,
    sharing: Sharing,
    steps: Steps,
    /// Work space: how long each rank waited in a step.
    waited: Vec<Seconds>,
}

impl<'a> Prediction<'a> {
    fn new(job: &'a Job, policy: &dyn Policy, parts: Vec<Part>) -> Self {
        let brief = &job.brief;
        let tiers = brief.system.tiers.len();
        let mut copies = Copies::for_plan(brief, &parts);
        let fillings = fill::of(&parts);
        let ranks: Vec<RankState> = parts
            .into_iter()
            .map(|part| RankState::new(job, part))
            .collect();
        let mut startup = Seconds::ZERO;
        let mut filled = Tally::new(tiers);
        if !fillings.is_empty() {
            (startup, filled) = fill::fill(job, &fillings);
            for (rank, state) in brief.hosts.all().zip(&ranks) {
                copies.record_all(state.engine.holdings(), rank);
            }
        }
        Self {
            job,
            model: Arc::clone(&job.model),
            source: Source::new(Arc::clone(&job.model), brief.hosts.ranks()),
            sharing: Sharing::new(job, policy, &ranks),
            steps: Steps::default(),
            waited: Vec::new(),
            ranks,
            copies,
            waiting: Waiting::default(),
            awake: Vec::new(),
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: startup,
            startup,
            first_batch: startup,
            in_first_step: false,
            at_barrier: 0,
            filled,
        }
    }

    fn finish(mut self, policy: &str, progress: &mut impl FnMut(u64)) -> Detailed {
        let layout = &self.job.brief.layout;
        let mut done = 0;
        let mut ends: Vec<(f64, Tally)> = Vec::new();
        for rank in self.job.brief.hosts.all() {
            self.poll(rank);
        }
        for epoch in 0..self.job.brief.orders.epochs() {
            for step in (0..layout.steps()).map(Step) {
                self.in_first_step = epoch == 0 && step.0 == 0;
                self.run_step(step);
                done += layout.batch(step).end - layout.batch(step).start;
                progress(done);
            }
            ends.push((self.now.0, self.tally()));
        }
        let tally = self.tally();
        let epoch_ends_s: Vec<f64> = ends.iter().map(|(at, _)| *at).collect();
        let times = Times {
            total_s: self.now.0,
            startup_s: self.startup.0,
            first_batch_s: self.first_batch.0,
            epoch_ends_s: epoch_ends_s.clone(),
        };
        let ranks = self.job.brief.hosts.ranks();
        let mut causes = Causes::new(self.job.brief.system.tiers.len());
        self.ranks
            .iter()
            .for_each(|state| causes.merge(&state.causes));
        let mut before = Tally::new(self.job.brief.system.tiers.len());
        let epochs = ends
            .iter()
            .map(|(_, end)| end.since(&std::mem::replace(&mut before, end.clone())))
            .collect();
        let mut uses = Uses::default();
        self.ranks.iter().for_each(|state| uses.merge(state.uses));
        let ran = Ran {
            ranks,
            times: &times,
            tally: &tally,
            steps: &self.steps,
            uses,
        };
        let outcome = Outcome::ran(policy, &ran);
        Detailed {
            late: self.steps.late().to_vec(),
            threads: self.sharing.plans(),
            stall_by: causes.of(outcome.stall_s.unwrap_or(0.0)),
            outcome,
            epochs,
            epoch_ends_s,
        }
    }

    /// What all ranks did so far.
    fn tally(&self) -> Tally {
        let mut tally = self.filled.clone();
        self.ranks
            .iter()
            .for_each(|state| tally.merge(&state.tally));
        tally
    }

    /// One step of all ranks.
    fn run_step(&mut self, step: Step) {
        let began = self.now;
        self.at_barrier = 0;
        self.balance(step);
        for rank in self.job.brief.hosts.all() {
            let left = self.job.brief.layout.local_len(rank, step);
            let state = &mut self.ranks[rank.index()];
            state.left = left;
            state.trainer = Trainer::Waiting { since: self.now };
            state.computed = Seconds::ZERO;
            self.train(rank);
        }
        while (self.at_barrier as usize) < self.ranks.len() {
            self.happen();
        }
        let slowest = self
            .ranks
            .iter()
            .fold(Seconds::ZERO, |most, state| most.max(state.computed));
        for state in &mut self.ranks {
            state.tally.record(Event::Stall(self.now - began - slowest));
        }
        self.note_step(began);
    }

    /// Counts a step that began then.
    fn note_step(&mut self, began: Seconds) {
        let computed = self.ranks.iter().map(|state| state.computed.0);
        let train = Seconds(computed.fold(f64::INFINITY, f64::min));
        let waited = self.ranks.iter().map(|state| match state.trainer {
            Trainer::AtBarrier { since } => since - began - state.computed,
            Trainer::Training { .. } | Trainer::Reading | Trainer::Waiting { .. } => Seconds::ZERO,
        });
        self.waited.clear();
        self.waited.extend(waited);
        self.steps.note(self.now - began, train, &self.waited);
    }

    /// Lets the next thing happen.
    fn happen(&mut self) {
        let event = self
            .events
            .peek()
            .map(|Reverse((Ordered(at), ..))| Seconds(*at));
        let end = self.source.next_end();
        match (event, end) {
            (event, Some((at, rank))) if event.is_none_or(|event| at <= event) => {
                self.now = self.now.max(at);
                if let Some(task) = self.source.end(self.now, rank) {
                    self.fetched(task);
                }
            }
            (Some(at), _) => {
                self.now = self.now.max(at);
                if let Some(Reverse((_, _, happening))) = self.events.pop() {
                    self.handle(happening);
                }
            }
            (None, _) => unreachable!("a step ends before events run out"),
        }
    }

    fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::Answered(task) => {
                let Task { rank, read, .. } = self.tasks[task];
                self.source.begin(self.now, rank, task, read.bytes);
            }
            Happening::Fetched(task) => self.fetched(task),
            Happening::Written(task) => self.written(task),
            Happening::Arrived { sample, rank, tier } => {
                self.copies
                    .record(SampleId(sample), TierId(tier), Rank(rank), Seconds::ZERO);
                self.wake(SampleId(sample));
            }
            Happening::Trained(rank) => self.trained(Rank(rank)),
        }
    }

    fn later(&mut self, after: Seconds, happening: Happening) {
        self.sequence += 1;
        self.events.push(Reverse((
            Ordered((self.now + after).0),
            self.sequence,
            happening,
        )));
    }

    /// Lets the trainer of a rank go on, if it can.
    fn train(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank.index()];
        let Trainer::Waiting { since } = state.trainer else {
            return;
        };
        if state.left == 0 {
            state.trainer = Trainer::AtBarrier { since: self.now };
            self.at_barrier += 1;
            return;
        }
        if state.engine.next_is_staged() && !matches!(state.ready.front(), Some(Some(_))) {
            return;
        }
        let mut sight = Sight {
            copies: &self.copies,
            source: &self.source,
            model: &self.model,
            rank,
        };
        let Some(consumed) = state.engine.consume(&mut sight) else {
            return;
        };
        state.left -= 1;
        match consumed {
            Consumed::Instant(bytes) => self.start_training(rank, bytes, None),
            Consumed::Staged(bytes) => {
                if let Some(Some(Staged { origin, fetched })) = state.ready.pop_front() {
                    state.causes.blame(origin, [since, fetched, self.now]);
                }
                state.first_place += 1;
                self.begin_training(rank, bytes, Some(bytes));
            }
            Consumed::OnDemand(read) => {
                state.causes.blame(read.origin, [since, self.now, self.now]);
                state.trainer = Trainer::Reading;
                self.begin(rank, Doer::Trainer, read);
            }
        }
    }

    /// A sample has come, and the trainer begins with it.
    fn begin_training(&mut self, rank: Rank, bytes: Bytes, staged: Option<Bytes>) {
        if self.in_first_step {
            self.first_batch = self.first_batch.max(self.now);
        }
        self.start_training(rank, bytes, staged);
    }

    fn start_training(&mut self, rank: Rank, bytes: Bytes, staged: Option<Bytes>) {
        let takes = self.model.compute(bytes);
        let state = &mut self.ranks[rank.index()];
        state.trainer = Trainer::Training { staged };
        state.computed += takes;
        self.later(takes, Happening::Trained(rank.0));
    }

    /// A rank has trained on a sample.
    fn trained(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank.index()];
        if let Trainer::Training {
            staged: Some(bytes),
        } = state.trainer
        {
            state.engine.release(bytes);
        }
        state.trainer = Trainer::Waiting { since: self.now };
        self.train(rank);
        self.poll(rank);
    }
}
