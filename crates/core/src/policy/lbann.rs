//! The LBANN data store: the whole dataset in the ranks' memory (tier 1), each sample on one rank. `dynamic` keeps what
//! a rank reads in the first epoch, in which all ranks read the source in lockstep; `preload` reads even shares before
//! training. Neither can run when the dataset is larger than the memory of all ranks.

use std::sync::Arc;

use super::placement::{Room, Spread, dealt_by};
use super::{Brief, Delivery, Keeping, Plan, Policy, Routes, Unsupported};
use crate::homes::{Home, Homes};
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
        let empty = TierMap::new(brief.catalog.len(), brief.system.tiers.len());
        let mut keep = vec![empty; brief.hosts.ranks() as usize];
        let mut homes = Homes::none(brief.catalog.len());
        // The first epoch has all samples, unless it drops a tail: what it leaves out is kept when it is first read.
        for epoch in (0..brief.orders.epochs()).map(Epoch) {
            let order = brief.orders.epoch(epoch);
            for step in (0..brief.layout.steps()).map(Step) {
                for rank in brief.hosts.all() {
                    for index in 0..brief.layout.local_len(rank, step) {
                        let sample = order.sample(brief.layout.dealt(rank, step, index).position);
                        if homes.get(sample).is_none()
                            && room.take(rank, MEMORY, brief.catalog.size(sample))
                        {
                            keep[rank.index()].set(sample, Some(MEMORY));
                            homes.set(sample, Some(Home { rank, tier: MEMORY }));
                        }
                    }
                }
            }
            if u64::from(brief.layout.steps()) * u64::from(brief.layout.global_batch())
                >= brief.orders.len()
            {
                break;
            }
        }
        Ok(Plan {
            orders: dealt_by(brief, &Arc::new(homes)),
            delivery: Delivery::Ahead,
            routes: Routes::Caches,
            filling: None,
            lockstep_epochs: 1,
            ranks: keep
                .into_iter()
                .map(|keep| Keeping::Fixed {
                    keep,
                    prefetch: Vec::new(),
                })
                .collect(),
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
        check_placed(brief, &spread.homes)?;
        Ok(spread.into_plan(brief, Delivery::Ahead))
    }
}

fn check_memory(brief: &Brief) -> Result<(), Unsupported> {
    let memory = brief
        .system
        .tiers
        .get(MEMORY.index())
        .map_or(Bytes(0), |tier| {
            Bytes(
                tier.capacity
                    .0
                    .saturating_mul(u64::from(brief.hosts.domains(tier.scope))),
            )
        });
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

/// Whole samples have to fit, not only their bytes.
fn check_placed(brief: &Brief, homes: &Homes) -> Result<(), Unsupported> {
    match brief
        .catalog
        .samples()
        .find(|sample| homes.get(*sample).is_none())
    {
        None => Ok(()),
        Some(sample) => Err(Unsupported(format!(
            "sample {sample} fits into tier 1 of no rank beside the others"
        ))),
    }
}
