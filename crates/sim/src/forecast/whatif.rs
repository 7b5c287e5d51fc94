//! What other hardware would change: the same job, made small, on systems with other tiers.

use std::collections::BTreeMap;

use foresee_core::policy::Policy;
use foresee_core::units::Bytes;
use serde::Serialize;

use super::scale::Small;
use crate::job::JobError;
use crate::scenario::{Scenario, ScopeKind, TierSpec};

/// A time is as good as another within this.
const AS_GOOD: f64 = 1.01;

/// Halvings after the order of magnitude is known: the cache is found to within 1/32 of it.
const HALVINGS: u32 = 5;

const GIB_MB: f64 = (1u64 << 30) as f64 / 1e6;

/// What one more GiB of a tier for each rank would save, over the whole job. Negative: it would cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// Which tier; 0 is the staging buffer.
    pub tier: usize,
    /// What it is called.
    pub name: String,
    /// Time.
    pub saves_s: f64,
    /// Bytes that need not be read from the source.
    pub saves_source_bytes: i64,
}

/// The smallest cache of a rank, as one tier of memory, with which the job is as quick as with the whole dataset
/// cached; 0 where it is that without a cache.
pub(super) fn smallest_cache(
    small: &Small,
    scenario: &Scenario,
    policy: &dyn Policy,
) -> Result<u64, JobError> {
    let dataset_mb = small.dataset_mb();
    let time = |capacity_mb: f64| -> Result<f64, JobError> {
        let estimate = small.predict(&with_memory(scenario, capacity_mb), policy, |_| ())?;
        Ok(if estimate.unsupported.is_some() {
            f64::INFINITY
        } else {
            estimate.total_s
        })
    };
    let good_s = time(dataset_mb)? * AS_GOOD;
    if time(0.0)? <= good_s {
        return Ok(0);
    }
    let mut enough = dataset_mb;
    let mut short = dataset_mb / 2.0;
    while Bytes::from_mb(short).0 > 0 && time(short)? <= good_s {
        enough = short;
        short /= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(enough, short);
        if time(middle)? <= good_s {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Ok(Bytes::from_mb(enough).0)
}

/// The scenario with one cache tier, as fast as its staging buffer.
fn with_memory(scenario: &Scenario, capacity_mb: f64) -> Scenario {
    let mut changed = scenario.clone();
    changed.system.tiers.truncate(1);
    changed.system.tiers.push(memory(scenario, capacity_mb));
    changed
}

fn memory(scenario: &Scenario, capacity_mb: f64) -> TierSpec {
    TierSpec {
        name: "memory".to_owned(),
        capacity_mb,
        ..scenario.system.tiers[0].clone()
    }
}

/// Tier by tier; where there is no cache, of a new tier of memory.
pub(super) fn one_more_gib(
    small: &Small,
    scenario: &Scenario,
    policy: &dyn Policy,
) -> Result<Vec<Saving>, JobError> {
    let mut scenario = scenario.clone();
    if scenario.system.tiers.len() == 1 {
        scenario = with_memory(&scenario, 0.0);
    }
    let now = small.predict(&scenario, policy, |_| ())?;
    let mut savings = Vec::new();
    for tier in 0..scenario.system.tiers.len() {
        let mut more = scenario.clone();
        let changed = &mut more.system.tiers[tier];
        let sharers = match changed.scope {
            ScopeKind::Rank => 1,
            ScopeKind::Host => scenario.job.ranks_per_host,
            ScopeKind::Global => scenario.job.ranks,
        };
        changed.capacity_mb += GIB_MB * f64::from(sharers);
        let name = changed.name.clone();
        let then = small.predict(&more, policy, |_| ())?;
        let source =
            |bytes: &BTreeMap<String, u64>| bytes.get("source").copied().unwrap_or(0).cast_signed();
        savings.push(Saving {
            tier,
            name,
            saves_s: now.total_s - then.total_s,
            saves_source_bytes: source(&now.bytes) - source(&then.bytes),
        });
    }
    Ok(savings)
}
