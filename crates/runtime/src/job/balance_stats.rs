//! What became of sharing threads among the ranks of a host: how steps went, who was late and why, and who had how many threads
//! when. Every rank counts all of it, from what all show; memory is bounded, however long a job is.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use foresee_core::causes::Cause;
use foresee_core::ids::Rank;
use foresee_core::steps::{Steps, is_late};
use foresee_core::threads::permits::{self, Shown};
use foresee_core::threads::{Allotted, ThreadPlan};
use foresee_core::units::Seconds;
use serde::Serialize;

use crate::host::{Crews, Stepped};

/// Steps that the others have not done by then are not counted any more: fewer than are remembered.
const STEPS_WAITED: u64 = 128;

/// Changes of threads that are remembered, and those of them that are told.
const CHANGES_MAX: usize = 16_384;
const CHANGES_TOLD: usize = 256;

/// The latest imbalanced steps, which are told one by one.
const LATE_STEPS: usize = 64;

/// Bars of the distribution of steps' times.
const BARS: usize = 24;

/// What happened between ranks of a host, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BalanceStats {
    /// Ranks of the host that take part and were heard of lately.
    pub ranks: u32,
    /// All ranks of the host, by place.
    pub members: Vec<u32>,
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
    /// The same by what the rank waited for.
    pub late_by: Vec<BTreeMap<String, u64>>,
    /// The latest of these steps.
    pub late_steps: Vec<LateStep>,
    /// By place on the host: how long the rank waited for its own data, in all steps.
    pub waited_s: Vec<f64>,
    /// The part of the steps' time in which trainers had all that they needed.
    pub utilisation: Option<f64>,
    /// How long steps took: half of them at most `p50`, and so on.
    pub steps_s: BTreeMap<String, f64>,
    /// How many of them took up to how long, beyond the one before.
    pub steps_histogram: Vec<(f64, u64)>,
    /// The latest changes: from which step of this rank on each rank of the host was to have how many threads.
    pub threads_over_time: Vec<(u64, Vec<u32>)>,
    /// What threads of this rank decode, by the size of samples and by how many of the host are at work; empty where nothing is
    /// decoded.
    pub decoding: String,
}

/// A step in which some rank was late and another was not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LateStep {
    /// Counted from the start of the job.
    pub step: u64,
    /// Who was late.
    pub late: Vec<LateRank>,
}

/// A rank that was late.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LateRank {
    /// Which rank of the job.
    pub rank: u32,
    /// How long it waited for its data.
    pub waited_s: f64,
    /// Where these came from, or that they were being decoded.
    pub cause: String,
}

/// What one rank has at present.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    pub(super) live: u32,
    pub(super) brought: u32,
    pub(super) threads: u32,
}

/// What is counted.
pub(super) struct Chronicle {
    members: Vec<Rank>,
    steps: Steps,
    next_step: u64,
    waited: Vec<Seconds>,
    late_by: Vec<BTreeMap<String, u64>>,
    late_steps: VecDeque<LateStep>,
    threads: ThreadPlan,
}

impl Chronicle {
    pub(super) fn new(members: Vec<Rank>) -> Self {
        let ranks = members.len();
        Self {
            members,
            steps: Steps::default(),
            next_step: 0,
            waited: vec![Seconds::ZERO; ranks],
            late_by: vec![BTreeMap::new(); ranks],
            late_steps: VecDeque::new(),
            threads: ThreadPlan::default(),
        }
    }

    /// Counts steps that all have done by now, and remembers who is to have how many threads.
    pub(super) fn look(&mut self, crews: &Crews, all: &[Shown]) {
        let own_steps = crews.own_steps();
        while self.next_step < own_steps {
            match crews.step(self.next_step) {
                Some(ranks) => self.note_step(&ranks),
                None if own_steps - self.next_step < STEPS_WAITED => break,
                None => {}
            }
            self.next_step += 1;
        }
        if self.threads.changes().len() < CHANGES_MAX {
            let allotted = Allotted {
                loading: permits::told(all),
                decoding: 0,
            };
            self.threads.note(own_steps, &allotted);
        }
    }

    fn note_step(&mut self, ranks: &[Stepped]) {
        let trained = ranks.iter().map(|step| step.trained.0);
        let train = Seconds(trained.fold(f64::INFINITY, f64::min));
        let waited: Vec<Seconds> = ranks.iter().map(|step| step.waited).collect();
        let longest = waited
            .iter()
            .fold(Seconds::ZERO, |most, one| most.max(*one));
        for (sum, waited) in self.waited.iter_mut().zip(&waited) {
            *sum += *waited;
        }
        if self.steps.note(train + longest, train, &waited) {
            self.note_late(ranks, train);
        }
    }

    fn note_late(&mut self, ranks: &[Stepped], train: Seconds) {
        let mut late = Vec::new();
        let places = self.late_by.iter_mut().zip(&self.members).zip(ranks);
        for ((counts, rank), step) in places {
            if !is_late(step.waited, train) {
                continue;
            }
            let cause = step.cause.map_or_else(String::new, Cause::name);
            *counts.entry(cause.clone()).or_default() += 1;
            late.push(LateRank {
                rank: rank.0,
                waited_s: step.waited.0,
                cause,
            });
        }
        if self.late_steps.len() == LATE_STEPS {
            self.late_steps.pop_front();
        }
        let step = self.next_step;
        self.late_steps.push_back(LateStep { step, late });
    }

    /// Who was to have how many threads, from the start of the job.
    pub(super) fn threads(&self) -> &ThreadPlan {
        &self.threads
    }

    /// In numbers.
    pub(super) fn stats(&self, present: &Present, decoding: String) -> BalanceStats {
        let changes = self.threads.changes();
        let told = &changes[changes.len().saturating_sub(CHANGES_TOLD)..];
        BalanceStats {
            ranks: present.live,
            members: self.members.iter().map(|rank| rank.0).collect(),
            brought: present.brought,
            threads: present.threads,
            steps: self.steps.number(),
            imbalanced_steps: self.steps.imbalanced(),
            late: self.late_by.iter().map(times).collect(),
            late_by: self.late_by.clone(),
            late_steps: self.late_steps.iter().cloned().collect(),
            waited_s: self.waited.iter().map(|waited| waited.0).collect(),
            utilisation: self.steps.utilisation(),
            steps_s: self.steps.quantiles(),
            steps_histogram: self.steps.histogram(BARS),
            threads_over_time: told
                .iter()
                .map(|(step, allotted)| (*step, allotted.loading.clone()))
                .collect(),
            decoding,
        }
    }
}

fn times(by_cause: &BTreeMap<String, u64>) -> u64 {
    by_cause.values().sum()
}

impl fmt::Display for BalanceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_host = format!("{} of the host's ranks share threads", self.ranks);
        write!(f, "balance     {of_host}, {} here", self.threads)?;
        let Some(part) = self.imbalanced_steps else {
            return Ok(());
        };
        let part = 100.0 * part;
        write!(f, "; {part:.1} % of {} steps imbalanced", self.steps)?;
        if let Some(used) = self.utilisation {
            let used = 100.0 * used;
            write!(f, ", trainers busy {used:.0} % of their time")?;
        }
        let ranks = self.members.iter().zip(&self.late_by);
        for (rank, causes) in ranks.filter(|(_, causes)| !causes.is_empty()) {
            let times = times(causes);
            let causes = causes
                .iter()
                .map(|(cause, times)| format!("{cause} {times}"));
            let causes: Vec<String> = causes.collect();
            write!(
                f,
                "\nlate        rank {rank} in {times} steps: {}",
                causes.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn stepped(waited_s: f64, cause: Cause) -> Stepped {
        Stepped {
            waited: Seconds(waited_s),
            cause: (waited_s > 0.0).then_some(cause),
            trained: Seconds(1.0),
        }
    }

    #[test]
    fn who_was_late_is_told_with_the_reason_and_only_the_latest_step_by_step() {
        let mut chronicle = Chronicle::new(vec![Rank(4), Rank(5)]);
        let on_time = stepped(0.0, Cause::Source);
        for step in 0..100 {
            chronicle.next_step = step;
            let late = stepped(0.5, Cause::Source);
            chronicle.note_step(&[on_time, late]);
        }
        chronicle.next_step = 100;
        chronicle.note_step(&[stepped(1.0, Cause::Preprocess), on_time]);
        chronicle.note_step(&[on_time, on_time]);
        let stats = chronicle.stats(&Present::default(), String::new());
        assert_eq!((stats.steps, stats.late.as_slice()), (102, &[1, 100][..]));
        assert_eq!(stats.late_by[0]["preprocess"], 1);
        assert_eq!(stats.late_by[1]["source"], 100);
        assert_eq!(stats.waited_s, [1.0, 50.0]);
        assert_eq!(stats.late_steps.len(), LATE_STEPS);
        let last = stats.late_steps.last().expect("there are some");
        assert_eq!((last.step, last.late[0].rank), (100, 4));
        assert_eq!(stats.late_steps[0].step, 101 - LATE_STEPS as u64);
        let used = stats.utilisation.expect("there were steps");
        assert!((used - 102.0 / 153.0).abs() < 1e-9, "{used}");
        let bars: u64 = stats.steps_histogram.iter().map(|bar| bar.1).sum();
        assert_eq!(bars, 102);
        let text = stats.to_string();
        assert!(
            text.contains("late        rank 5 in 100 steps: source 100"),
            "{text}"
        );
    }
}
