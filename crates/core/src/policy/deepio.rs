//! DeepIO: before training each rank reads its even share of the dataset into memory (tier 1), as far as it fits, and
//! ranks serve each other from there. In the ordered mode what nobody holds is read when the trainer asks for it; in
//! the opportunistic mode the rank trains on a sample of its own memory instead, which changes the order.

use std::sync::Arc;

use super::placement::{Own, Spread, substitute};
use super::{Brief, Delivery, Parts, Policy, Share, Unsupported};
use crate::homes::Homes;
use crate::ids::{Rank, SampleId, TierId};

const MEMORY: TierId = TierId(1);

pub(super) struct Ordered;

impl Policy for Ordered {
    fn name(&self) -> &'static str {
        "deepio-ordered"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local_alone()?;
        Ok(Spread::new(brief, Some(MEMORY)).into_parts(brief, Delivery::AheadIfHeld))
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

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local()?;
        let spread = Spread::new(brief, Some(MEMORY));
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
        let held = HeldByAnyone { own, homes };
        let orders = substitute(brief, held);
        Ok(spread.into_parts_with(brief, orders, Delivery::Ahead))
    }
}

/// What some rank holds need not be replaced.
struct HeldByAnyone {
    own: Vec<Vec<SampleId>>,
    homes: Arc<Homes>,
}

impl Own for HeldByAnyone {
    fn len(&self, rank: Rank) -> u32 {
        self.own[rank.index()].len() as u32
    }

    fn get(&self, rank: Rank, index: u32) -> SampleId {
        self.own[rank.index()][index as usize]
    }

    fn replaces(&self, _: Rank, sample: SampleId) -> bool {
        self.homes.get(sample).is_none()
    }
}
