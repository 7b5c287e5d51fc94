//! What to expect of a job before it is trained: times, stalls and their cause, bytes by origin and epoch, and what more
//! hardware would change. The predicting driver gives all of it, whatever contention a scenario asks for.
//!
//! - `scale`: jobs too long to run whole are run on some of their samples.
//! - `whatif`: the smallest useful cache, and one more GiB of each tier.
//! - [`show`]: which samples a step has, and when a sample is used.

mod scale;
pub mod show;
mod whatif;

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_core::bound;
use foresee_core::catalog::Catalog;
use foresee_core::foresight::Foresight;
use foresee_core::policy::{self, Policy};
use serde::Serialize;

use self::scale::{Estimate, Small};
use crate::job::{Job, JobError};
use crate::scenario::{Scenario, ShuffleKind};

pub use self::whatif::Saving;

/// Longer jobs are predicted on some of their samples.
const WHOLE_ACCESSES_MAX: u64 = 20_000_000;
/// How many accesses are then predicted: a few seconds of work, and far more than tiers and batches need to settle.
const LONG_ACCESSES: u64 = 2_000_000;
/// What-if runs, of which there are about twenty.
const WHAT_IF_ACCESSES: u64 = 200_000;

/// Bytes for each sample's home.
const HOME_BYTES: u64 = 4;

/// Epochs whose bytes differ by less than this share of the epoch's are shown as one line.
const ALIKE: f64 = 0.01;

/// More lines than this are none that anybody reads: then all epochs from the third on are one.
const LINES_MAX: usize = 12;

/// Why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// The scenario cannot run.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The policy cannot run the job.
    #[error("policy {policy} cannot run this job: {reason}; choose another with --policy")]
    Unsupported {
        /// The policy's name.
        policy: String,
        /// Why not.
        reason: String,
    },
}

/// What to expect of one policy on one job.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// Of all that the plan is made from: ranks that show the same will plan alike.
    pub digest: String,
    /// The job in numbers.
    pub job: Facts,
    /// On how much of it the prediction ran.
    pub predicted_on: Part,
    /// From the start of the job to the end of the last step.
    pub total_s: f64,
    /// The time that no policy can beat: the trainer never waits.
    pub lower_bound_s: f64,
    /// Of the time, filling tiers before the first step.
    pub startup_s: f64,
    /// How long a rank waits for data, start-up aside; mean over ranks.
    pub stall_s: f64,
    /// The stall's share of the time.
    pub stall_share: f64,
    /// What most of the stall was spent waiting for; none without a stall.
    pub stall_cause: Option<String>,
    /// The stall by cause, mean over ranks.
    pub stall_by_s: BTreeMap<String, f64>,
    /// Until every rank has its first batch.
    pub first_batch_s: f64,
    /// The bytes that no policy which uses every sample can avoid to read from the source.
    pub source_minimum_bytes: u64,
    /// Bytes by origin, whole job.
    pub bytes: BTreeMap<String, u64>,
    /// Bytes by origin in an epoch; like epochs together.
    pub epochs: Vec<Epochs>,
    /// The smallest cache of a rank, as one tier of memory, that is as good as caching the whole dataset.
    pub smallest_useful_cache_bytes: u64,
    /// What one more GiB of each tier would save.
    pub one_more_gib: Vec<Saving>,
    /// Memory of a rank for what is known in advance.
    pub foresight_bytes: u64,
}

/// The job in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Samples of the dataset.
    pub samples: u32,
    /// Their bytes.
    pub dataset_bytes: u64,
    /// Training processes.
    pub ranks: u32,
    /// How many share a host.
    pub ranks_per_host: u32,
    /// Samples of a step.
    pub global_batch: u32,
    /// Steps of an epoch.
    pub steps_per_epoch: u32,
    /// Passes over the dataset.
    pub epochs: u32,
    /// Seed of the shuffle.
    pub seed: u64,
    /// How epochs are ordered.
    pub shuffle: &'static str,
}

/// The part of a job that was run to predict all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// One in so many samples.
    pub one_in: u32,
    /// Samples.
    pub samples: u32,
    /// Epochs.
    pub epochs: u32,
}

/// Epochs that are alike, from the first to the last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Epochs {
    /// The first of them.
    pub first: u32,
    /// The last of them.
    pub last: u32,
    /// Bytes by origin in each, on average.
    pub bytes: BTreeMap<String, u64>,
}

/// Predicts a policy on a job. `progress` is told what is being done and the accesses done, from 0 on.
pub fn forecast(
    scenario: &Scenario,
    catalog: &Arc<Catalog>,
    policy: &dyn Policy,
    mut progress: impl FnMut(&str, u64),
) -> Result<Forecast, ForecastError> {
    let job = Job::predicting(scenario, Arc::clone(catalog))?;
    let long = job.accesses() > WHOLE_ACCESSES_MAX;
    let small = Small::new(
        scenario,
        catalog,
        if long {
            LONG_ACCESSES
        } else {
            WHOLE_ACCESSES_MAX
        },
    );
    let estimate = small.predict(scenario, policy, |done| progress("predicting", done))?;
    if let Some(reason) = estimate.unsupported {
        return Err(ForecastError::Unsupported {
            policy: policy.name().to_owned(),
            reason,
        });
    }
    let bound = small.predict(scenario, policy::lower_bound(), |done| {
        progress("lower bound", done);
    })?;
    progress("what if", 0);
    let sketch = Small::new(scenario, catalog, WHAT_IF_ACCESSES);
    let smallest_useful_cache_bytes = whatif::smallest_cache(&sketch, scenario, policy)?;
    let one_more_gib = whatif::one_more_gib(&sketch, scenario, policy)?;
    let foresight = Foresight::new(
        job.brief.orders.clone(),
        job.brief.layout.clone(),
        job.brief.hosts.clone(),
    );
    let foresight_bytes = foresight.memory_bytes() + HOME_BYTES * u64::from(catalog.len());
    let stall_cause = cause(&estimate);
    Ok(Forecast {
        scenario: scenario.name.clone(),
        policy: policy.name().to_owned(),
        digest: job.digest(policy.name()).to_string(),
        job: facts(scenario, &job),
        predicted_on: small.part(),
        total_s: estimate.total_s,
        lower_bound_s: bound.total_s,
        startup_s: estimate.startup_s,
        stall_s: estimate.stall_s,
        stall_share: if estimate.total_s > 0.0 {
            estimate.stall_s / estimate.total_s
        } else {
            0.0
        },
        stall_cause,
        stall_by_s: estimate.stall_by,
        first_batch_s: estimate.first_batch_s,
        source_minimum_bytes: bound::source_minimum(&job.brief).0,
        bytes: estimate.bytes,
        epochs: grouped(&estimate.epochs),
        smallest_useful_cache_bytes,
        one_more_gib,
        foresight_bytes,
    })
}

fn facts(scenario: &Scenario, job: &Job) -> Facts {
    Facts {
        samples: job.brief.catalog.len(),
        dataset_bytes: job.brief.catalog.total().0,
        ranks: scenario.job.ranks,
        ranks_per_host: scenario.job.ranks_per_host,
        global_batch: scenario.job.global_batch,
        steps_per_epoch: job.brief.layout.steps(),
        epochs: scenario.job.epochs,
        seed: scenario.job.seed,
        shuffle: match scenario.job.shuffle {
            ShuffleKind::Feistel => "feistel",
            ShuffleKind::Torch => "torch",
        },
    }
}

/// What the largest part of the stall was spent on.
fn cause(estimate: &Estimate) -> Option<String> {
    let causes = estimate.stall_by.iter().filter(|(_, stall)| **stall > 0.0);
    causes
        .max_by(|one, other| one.1.total_cmp(other.1))
        .map(|(name, _)| name.clone())
}

/// Joins successive epochs whose bytes are alike, or all from the third on where too few are.
fn grouped(epochs: &[Epochs]) -> Vec<Epochs> {
    let alike = joined(epochs, are_alike);
    if alike.len() <= LINES_MAX {
        alike
    } else {
        joined(epochs, |group, _| group.first > 1)
    }
}

/// Joins an epoch to those before it where it belongs to them.
fn joined(epochs: &[Epochs], belongs: impl Fn(&Epochs, &Epochs) -> bool) -> Vec<Epochs> {
    let mut groups: Vec<Epochs> = Vec::new();
    for epoch in epochs {
        match groups.last_mut().filter(|group| belongs(group, epoch)) {
            Some(group) => join(group, epoch),
            None => groups.push(epoch.clone()),
        }
    }
    groups
}

fn are_alike(one: &Epochs, other: &Epochs) -> bool {
    let all: u64 = one
        .bytes
        .values()
        .sum::<u64>()
        .max(other.bytes.values().sum());
    let differs = |(origin, bytes): (&String, &u64)| {
        bytes.abs_diff(other.bytes.get(origin).copied().unwrap_or(0)) as f64 > ALIKE * all as f64
    };
    !one.bytes.iter().any(differs)
}

fn join(group: &mut Epochs, epoch: &Epochs) {
    let count = |epochs: &Epochs| u128::from(epochs.last - epochs.first + 1);
    let before = count(group);
    let more = count(epoch);
    for (origin, bytes) in &mut group.bytes {
        let other = epoch.bytes.get(origin).copied().unwrap_or(0);
        let sum = u128::from(*bytes) * before + u128::from(other) * more;
        *bytes = (sum / (before + more)) as u64;
    }
    group.last = epoch.last;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(first: u32, last: u32, source: u64, peer: u64) -> Epochs {
        let bytes =
            [("source", source), ("peer", peer)].map(|(name, bytes)| (name.to_owned(), bytes));
        Epochs {
            first,
            last,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn epochs_that_are_alike_share_a_line() {
        let each = [
            epochs(0, 0, 1000, 0),
            epochs(1, 1, 0, 1000),
            epochs(2, 2, 4, 996),
            epochs(3, 6, 0, 1001),
        ];
        assert_eq!(
            grouped(&each),
            [epochs(0, 0, 1000, 0), epochs(1, 6, 0, 1000)]
        );
    }

    #[test]
    fn many_epochs_that_differ_share_a_line_from_the_third_on() {
        let each: Vec<_> = (0..20)
            .map(|epoch| epochs(epoch, epoch, u64::from(epoch % 2) * 500, 500))
            .collect();
        let lines = grouped(&each);
        assert_eq!(
            lines
                .iter()
                .map(|line| (line.first, line.last))
                .collect::<Vec<_>>(),
            [(0, 0), (1, 1), (2, 19)]
        );
    }
}
