//! Distributed caching without re-dealing (Yang & Cong's first step): even, disjoint shares of the dataset fill the
//! tiers of all ranks before training; a rank reads from its own tiers, from peers, and the rest from the source.

use super::placement::Spread;
use super::{Brief, Delivery, Plan, Policy, Unsupported};

pub(super) struct DistributedCache;

impl Policy for DistributedCache {
    fn name(&self) -> &'static str {
        "distributed-cache"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        Ok(Spread::new(brief, None).into_plan(brief, Delivery::Ahead))
    }
}
