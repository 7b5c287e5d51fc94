//! Jobs made small enough to be run often. Of N samples one stays; tiers shrink with the dataset, so what fits still
//! fits, while batches, sizes and rates stay what they are. Beyond ten epochs the last of them stand for the rest.
//! Numbers of the small job become those of the whole by the ratio of the bytes that they use.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::policy::Policy;
use foresee_core::tally::Tally;

use super::{Epochs, Part};
use crate::job::{Job, JobError};
use crate::outcome;
use crate::predict::{self, Detailed};
use crate::scenario::Scenario;

/// By then tiers are full and epochs are alike.
const EPOCHS_MAX: u32 = 10;

/// An epoch keeps at least so many steps, or what happens at its ends would count too much.
const STEPS_MIN: u32 = 4;

/// The staging buffer keeps room for so many local batches: it serves batches, which do not shrink.
const STAGED_BATCHES_MIN: f64 = 8.0;

/// A part of a job that stands for all of it.
pub(super) struct Small {
    catalog: Arc<Catalog>,
    part: Part,
    /// By how much tiers shrink.
    dataset_ratio: f64,
    /// By how much times and bytes grow.
    used_ratio: f64,
}

/// What the whole job comes to.
pub(super) struct Estimate {
    pub(super) unsupported: Option<String>,
    pub(super) total_s: f64,
    pub(super) startup_s: f64,
    pub(super) stall_s: f64,
    pub(super) first_batch_s: f64,
    pub(super) stall_by: BTreeMap<String, f64>,
    pub(super) bytes: BTreeMap<String, u64>,
    pub(super) epochs: Vec<Epochs>,
}

impl Small {
    /// A part of about so many accesses; the whole job where it has no more.
    pub(super) fn new(scenario: &Scenario, catalog: &Arc<Catalog>, accesses_max: u64) -> Self {
        let samples = catalog.len();
        let epochs = scenario.job.epochs;
        if u64::from(samples) * u64::from(epochs) <= accesses_max {
            let part = Part {
                one_in: 1,
                samples,
                epochs,
            };
            return Self {
                catalog: Arc::clone(catalog),
                part,
                dataset_ratio: 1.0,
                used_ratio: 1.0,
            };
        }
        let epochs = epochs.min(EPOCHS_MAX);
        let least = u64::from(scenario.job.global_batch) * u64::from(STEPS_MIN);
        let wanted = (accesses_max / u64::from(epochs)).max(least).max(1);
        let one_in = u64::from(samples).div_ceil(wanted) as u32;
        let kept = (0..samples)
            .step_by(one_in as usize)
            .map(|sample| catalog.size(SampleId(sample)).0)
            .collect();
        let small = if one_in == 1 {
            Arc::clone(catalog)
        } else {
            Arc::new(Catalog::new(kept))
        };
        let ratio = |whole: f64, part: f64| {
            if part > 0.0 {
                whole / part
            } else {
                f64::from(one_in)
            }
        };
        let used =
            |catalog: &Catalog| catalog.total().0 as f64 * used_share(scenario, catalog.len());
        Self {
            part: Part {
                one_in,
                samples: small.len(),
                epochs,
            },
            dataset_ratio: ratio(catalog.total().0 as f64, small.total().0 as f64),
            used_ratio: ratio(used(catalog), used(&small)),
            catalog: small,
        }
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    /// The whole dataset.
    pub(super) fn dataset_mb(&self) -> f64 {
        self.catalog.total().mb() * self.dataset_ratio
    }

    /// Predicts the whole job from its part. `scenario` is that of the whole job, perhaps with other tiers.
    pub(super) fn predict(
        &self,
        scenario: &Scenario,
        policy: &dyn Policy,
        progress: impl FnMut(u64),
    ) -> Result<Estimate, JobError> {
        let job = Job::predicting(&self.shrunk(scenario), Arc::clone(&self.catalog))?;
        let detailed = predict::run_detailed(&job, policy, progress);
        Ok(self.grown(detailed, scenario.job.epochs, scenario.job.ranks))
    }

    /// The scenario of the part.
    fn shrunk(&self, scenario: &Scenario) -> Scenario {
        let mut small = scenario.clone();
        small.job.epochs = self.part.epochs;
        small.dataset.samples = self.part.samples;
        for tier in &mut small.system.tiers {
            tier.capacity_mb /= self.dataset_ratio;
        }
        let mean_mb = self.catalog.total().mb() / f64::from(self.part.samples);
        let local_batch = f64::from(scenario.job.global_batch) / f64::from(scenario.job.ranks);
        let batches_mb =
            STAGED_BATCHES_MIN * local_batch * mean_mb * scenario.job.decoded_mb_per_mb;
        let staging = &mut small.system.tiers[0].capacity_mb;
        *staging = staging.max(batches_mb.min(scenario.system.tiers[0].capacity_mb));
        small
    }

    /// The numbers of the whole.
    fn grown(&self, detailed: Detailed, epochs: u32, ranks: u32) -> Estimate {
        let Detailed {
            outcome,
            epochs: tallies,
            epoch_ends_s: ends,
            stall_by,
            late: _,
            threads: _,
        } = detailed;
        let seconds = |value: Option<f64>| value.unwrap_or(0.0);
        let startup_s = seconds(outcome.startup_s);
        let kept = self.part.epochs as usize;
        let later = f64::from(epochs - self.part.epochs);
        // The second half of the epochs that ran stands for those that did not.
        let half = kept / 2;
        let late = |sum: f64| sum / (kept - half) as f64;
        let begin = if half == 0 {
            startup_s
        } else {
            ends.get(half - 1).copied().unwrap_or(0.0)
        };
        let late_s = late(seconds(outcome.total_s) - begin);
        let late_stall_s = late(
            tallies
                .iter()
                .skip(half)
                .map(|tally| tally.stall.0)
                .sum::<f64>(),
        ) / f64::from(ranks.max(1));
        let stall_small_s = seconds(outcome.stall_s);
        let stall_s = (stall_small_s + later * late_stall_s) * self.used_ratio;
        let by_ratio = if stall_small_s > 0.0 {
            stall_s / stall_small_s
        } else {
            0.0
        };
        let each = self.epochs(&tallies, epochs);
        Estimate {
            unsupported: outcome.reason,
            total_s: (seconds(outcome.total_s) + later * late_s) * self.used_ratio,
            startup_s: startup_s * self.used_ratio,
            stall_s,
            first_batch_s: startup_s * self.used_ratio + seconds(outcome.first_batch_s) - startup_s,
            stall_by: stall_by
                .into_iter()
                .map(|(cause, stall)| (cause, stall * by_ratio))
                .collect(),
            bytes: total(&each),
            epochs: each,
        }
    }

    /// Bytes by origin, epoch by epoch; those that did not run are one entry.
    fn epochs(&self, tallies: &[Tally], epochs: u32) -> Vec<Epochs> {
        let mut each: Vec<Epochs> = Vec::new();
        for (epoch, tally) in tallies.iter().enumerate() {
            let bytes = outcome::by_origin(tally).into_iter();
            let grown = bytes.map(|(origin, count)| {
                (
                    origin,
                    (count.bytes.0 as f64 * self.used_ratio).round() as u64,
                )
            });
            each.push(Epochs {
                first: epoch as u32,
                last: epoch as u32,
                bytes: grown.collect(),
            });
        }
        if self.part.epochs < epochs && !each.is_empty() {
            let late = &each[each.len() / 2..];
            let mut bytes = total(late);
            for bytes in bytes.values_mut() {
                *bytes /= late.len() as u64;
            }
            each.push(Epochs {
                first: self.part.epochs,
                last: epochs - 1,
                bytes,
            });
        }
        each
    }
}

/// The share of the dataset that an epoch uses: an incomplete last step may be dropped.
fn used_share(scenario: &Scenario, samples: u32) -> f64 {
    let dropped = if scenario.job.drop_last {
        samples % scenario.job.global_batch
    } else {
        0
    };
    f64::from(samples - dropped) / f64::from(samples)
}

fn total(epochs: &[Epochs]) -> BTreeMap<String, u64> {
    let mut total = BTreeMap::new();
    for epoch in epochs {
        for (origin, bytes) in &epoch.bytes {
            *total.entry(origin.clone()).or_insert(0) +=
                bytes * u64::from(epoch.last - epoch.first + 1);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use foresee_core::policy::by_name;

    use super::*;
    use crate::scenario::Template;

    /// A source that is too slow and tiers that hold half of the dataset.
    const SLOW: &str = r#"
        name = "slow"
        [job]
        ranks = 4
        global_batch = 64
        epochs = 16
        compute_mb_per_s = 100
        preprocess_mb_per_s = 200
        [dataset]
        samples = 40_000
        size_mb = { mean = 0.1, stddev = 0.02 }
        [system]
        network_mb_per_s = 1000
        source_link_mb_per_s = 1000
        source_read_mb_per_s = { 1 = 100 }
        extrapolate = "clamp"
        [[system.tier]]
        name = "staging"
        capacity_mb = 32
        threads = 4
        read_mb_per_s = { 4 = 10_000 }
        [[system.tier]]
        name = "ram"
        capacity_mb = 500
        threads = 2
        read_mb_per_s = { 2 = 10_000 }
    "#;

    #[test]
    fn a_part_predicts_the_whole() {
        let scenario = Template::parse("slow.toml".as_ref(), SLOW)
            .unwrap()
            .with(&[])
            .unwrap();
        let catalog = Arc::new(scenario.sizes().unwrap());
        let policy = by_name("foresee").unwrap();
        let predict = |accesses_max| {
            let small = Small::new(&scenario, &catalog, accesses_max);
            (
                small.part(),
                small.predict(&scenario, policy, |_| ()).unwrap(),
            )
        };
        let (all, whole) = predict(u64::MAX);
        let (some, part) = predict(50_000);
        assert_eq!(
            all,
            Part {
                one_in: 1,
                samples: 40_000,
                epochs: 16
            }
        );
        assert_eq!(
            some,
            Part {
                one_in: 8,
                samples: 5_000,
                epochs: 10
            }
        );
        let off = |one: f64, other: f64| (one / other - 1.0).abs();
        assert!(
            off(part.total_s, whole.total_s) < 0.015,
            "{} s, {} s",
            part.total_s,
            whole.total_s
        );
        assert!(off(part.bytes["source"] as f64, whole.bytes["source"] as f64) < 0.01);
        assert!(
            off(part.stall_s, whole.stall_s) < 0.03,
            "{} s, {} s",
            part.stall_s,
            whole.stall_s
        );
        let causes: f64 = whole.stall_by.values().sum();
        assert!(
            (causes - whole.stall_s).abs() < 1e-6 * whole.stall_s,
            "every stall has its cause"
        );
        // The rest is the decoding of each sample that the trainer waited for.
        assert!(
            whole.stall_by["source"] > 0.75 * whole.stall_s,
            "{:?}",
            whole.stall_by
        );
        assert_eq!(whole.epochs.len(), 16);
        assert_eq!(
            part.epochs.last().map(|epochs| (epochs.first, epochs.last)),
            Some((10, 15))
        );
    }
}
