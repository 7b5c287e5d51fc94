//! DeepIO: before training each rank reads its even share of the dataset into memory (tier 1), as far as it fits, and
//! ranks serve each other from there. In the ordered mode what nobody holds is read when the trainer asks for it; in
//! the opportunistic mode the rank trains on a sample of its own memory instead, which changes the order.

use std::sync::Arc;

use super::placement::{Spread, substitute};
use super::{Brief, Delivery, Plan, Policy, Unsupported};
use crate::ids::TierId;

pub(super) struct Ordered;

impl Policy for Ordered {
    fn name(&self) -> &'static str {
        "deepio-ordered"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        Ok(Spread::new(brief, Some(TierId(1))).into_plan(brief, Delivery::AheadIfHeld))
    }
}

pub(super) struct Opportunistic;

impl Policy for Opportunistic {
    fn name(&self) -> &'static str {
        "deepio-opportunistic"
    }

    fn substitutes(&self) -> bool {
        true
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        brief.refuse_local()?;
        let spread = Spread::new(brief, Some(TierId(1)));
        let own = spread.homes.by_rank(brief.hosts.ranks());
        let all_held = brief
            .catalog
            .samples()
            .all(|sample| spread.homes.get(sample).is_some());
        if let Some(rank) = own.iter().position(Vec::is_empty).filter(|_| !all_held) {
            return Err(Unsupported(format!(
                "tier 1 of rank {rank} holds no sample to train on instead"
            )));
        }
        let homes = Arc::clone(&spread.homes);
        let orders = substitute(brief, own, move |_, sample| homes.get(sample).is_none());
        Ok(spread.into_plan_with(orders, Delivery::Ahead))
    }
}
