//! Distributed caching without re-dealing (Yang & Cong's first step): even, disjoint shares of the dataset fill the
//! tiers of all ranks before training; a rank reads from its own tiers, from peers, and the rest from the source.

use super::placement::Spread;
use super::{Brief, Delivery, Holders, Parts, Policy, Share, Unsupported};

pub(super) struct DistributedCache;

impl Policy for DistributedCache {
    fn name(&self) -> &'static str {
        "distributed-cache"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local_alone()?;
        Ok(Spread::new(brief, None).into_parts(brief, Delivery::Ahead))
    }

    fn holders(&self, brief: &Brief) -> Option<Holders> {
        Some(Spread::new(brief, None).into_holders())
    }
}
