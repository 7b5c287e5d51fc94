//! The LBANN data store: the whole dataset in the ranks' memory (tier 1), each sample on one rank. `dynamic` keeps what
//! a rank reads in the first epoch, in which all ranks read the source in lockstep; `preload` reads even shares before
//! training. Neither can run when the dataset is larger than the memory of all ranks.

use super::placement::{Room, Spread};
use super::{Brief, Delivery, Plan, Policy, RankPlan, Routes, Unsupported};
use crate::ids::{Epoch, Step, TierId};
use crate::tier_map::TierMap;
use crate::units::Bytes;

const MEMORY: TierId = TierId(1);

pub(super) struct Dynamic;

impl Policy for Dynamic {
    fn name(&self) -> &'static str {
        "lbann-dynamic"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        check_memory(brief)?;
        let mut room = Room::new(brief, Some(MEMORY));
        let tiers = brief.system.tiers.len();
        let empty = RankPlan { keep: TierMap::new(brief.catalog.len(), tiers), prefetch: Vec::new() };
        let mut ranks = vec![empty; brief.hosts.ranks() as usize];
        let first_epoch = brief.orders.epoch(Epoch(0));
        for step in (0..brief.layout.steps()).map(Step) {
            for rank in brief.hosts.all() {
                for index in 0..brief.layout.local_len(rank, step) {
                    let sample = first_epoch.sample(brief.layout.dealt(rank, step, index).position);
                    if room.take(rank, MEMORY, brief.catalog.size(sample)) {
                        ranks[rank.index()].keep.set(sample, Some(MEMORY));
                    }
                }
            }
        }
        Ok(Plan {
            orders: brief.orders.clone(),
            delivery: Delivery::Ahead,
            routes: Routes::Caches,
            filling: None,
            lockstep_epochs: 1,
            ranks,
        })
    }
}

pub(super) struct Preload;

impl Policy for Preload {
    fn name(&self) -> &'static str {
        "lbann-preload"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        check_memory(brief)?;
        let spread = Spread::new(brief, Some(MEMORY));
        Ok(spread.into_plan(brief.orders.clone(), Delivery::Ahead, Routes::Caches))
    }
}

fn check_memory(brief: &Brief) -> Result<(), Unsupported> {
    let memory = brief
        .system
        .tiers
        .get(MEMORY.index())
        .map_or(Bytes(0), |tier| Bytes(tier.capacity.0.saturating_mul(u64::from(brief.hosts.domains(tier.scope)))));
    let dataset = brief.catalog.total();
    if dataset > memory {
        let reason = format!(
            "the dataset ({:.0} MB) is larger than tier 1 of all ranks together ({:.0} MB)",
            dataset.mb(),
            memory.mb()
        );
        return Err(Unsupported(reason));
    }
    Ok(())
}
