//! The LBANN data store: the whole dataset in the ranks' memory (tier 1), each sample on one rank. `dynamic` keeps what
//! a rank reads in the first epoch, in which all ranks read the source in lockstep; `preload` reads even shares before
//! training. Neither can run when the dataset is larger than the memory of all ranks.

use std::sync::Arc;

use super::placement::{Room, Spread, dealt_by, kept_at_home};
use super::{Brief, Delivery, Holders, Part, Parts, Policy, Routes, Share, Unsupported};
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, Step, TierId};
use crate::units::Bytes;

const MEMORY: TierId = TierId(1);

pub(super) struct Dynamic;

impl Policy for Dynamic {
    fn name(&self) -> &'static str {
        "lbann-dynamic"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        check_memory(brief)?;
        brief.refuse_local_alone()?;
        let homes = Arc::new(first_readers(brief));
        let orders = dealt_by(brief, &homes);
        Ok(Box::new(move |rank| Part {
            orders: orders.clone(),
            routes: Routes::Caches,
            lockstep_epochs: 1,
            keeping: kept_at_home(brief, &homes, rank),
            ..Part::cacheless(brief, rank)
        }))
    }

    fn holders(&self, brief: &Brief) -> Option<Holders> {
        Some(Holders {
            homes: Arc::new(first_readers(brief)),
            turns: None,
        })
    }
}

/// Gives each sample to the rank that reads it first and has room for it.
fn first_readers(brief: &Brief) -> Homes {
    let mut room = Room::new(brief, Some(MEMORY));
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
    homes
}

pub(super) struct Preload;

impl Policy for Preload {
    fn name(&self) -> &'static str {
        "lbann-preload"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        check_memory(brief)?;
        brief.refuse_local_alone()?;
        let spread = Spread::new(brief, Some(MEMORY));
        check_placed(brief, &spread.homes)?;
        Ok(spread.into_parts(brief, Delivery::Ahead))
    }

    fn holders(&self, brief: &Brief) -> Option<Holders> {
        Some(Spread::new(brief, Some(MEMORY)).into_holders())
    }
}

fn check_memory(brief: &Brief) -> Result<(), Unsupported> {
    let memory = if brief.system.tiers.len() > MEMORY.index() {
        brief.total_capacity(MEMORY)
    } else {
        Bytes(0)
    };
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
