//! What several policies share: room in tiers, an even disjoint spread of the dataset over all ranks, and orders in
//! which a rank trains on what it holds in place of what it does not.

use std::sync::Arc;

use super::{Brief, Delivery, Filling, Plan, RankPlan, Routes};
use crate::ids::{Epoch, Position, Rank, SampleId, Step, TierId};
use crate::model::{Hosts, Scope};
use crate::stream::{EpochOrder, Feistel, Orders};
use crate::tally::Count;
use crate::tier_map::TierMap;
use crate::units::Bytes;

/// Free space of the tiers of all ranks while a plan is made.
pub struct Room {
    hosts: Hosts,
    /// By tier: whose it is, and what is free by domain.
    tiers: Vec<(Scope, Vec<Bytes>)>,
}

impl Room {
    /// All tiers empty; with `only`, the others have no room.
    pub fn new(brief: &Brief, only: Option<TierId>) -> Self {
        let hosts = brief.hosts;
        let mut tiers = vec![(Scope::Rank, vec![Bytes(0); hosts.ranks() as usize])];
        for (id, tier) in brief.system.cache_tiers() {
            let capacity = if only.is_none_or(|only| only == id) { tier.capacity } else { Bytes(0) };
            tiers.push((tier.scope, vec![capacity; hosts.domains(tier.scope) as usize]));
        }
        Self { hosts, tiers }
    }

    /// The tiers as one rank may fill them by itself: of a shared tier, its even part.
    pub(super) fn of_rank(brief: &Brief, rank: Rank) -> Self {
        let mut room = Self::new(brief, None);
        for (scope, free) in &mut room.tiers {
            let domain = room.hosts.domain(*scope, rank);
            free[domain].0 /= room.hosts.members(*scope, domain).count() as u64;
        }
        room
    }

    /// Takes space in a rank's tier, if there is enough.
    pub fn take(&mut self, rank: Rank, tier: TierId, bytes: Bytes) -> bool {
        let Some((scope, free)) = self.tiers.get_mut(tier.index()) else { return false };
        let free = &mut free[self.hosts.domain(*scope, rank)];
        let fits = *free >= bytes;
        if fits {
            *free -= bytes;
        }
        fits
    }

    /// Takes space in the fastest tier of a rank that has enough.
    pub fn first_fit(&mut self, rank: Rank, bytes: Bytes) -> Option<TierId> {
        (1..self.tiers.len()).map(|tier| TierId(tier as u8)).find(|&tier| self.take(rank, tier, bytes))
    }
}

/// Who holds each sample, where at most one rank does.
#[derive(Debug)]
pub struct Holders(Vec<u32>);

/// A rank that cannot be: nobody.
const NOBODY: u32 = u32::MAX;

impl Holders {
    /// Nobody holds anything.
    pub fn nobody(samples: u32) -> Self {
        Self(vec![NOBODY; samples as usize])
    }

    /// The holder of a sample.
    #[inline]
    pub fn get(&self, sample: SampleId) -> Option<Rank> {
        let rank = self.0[sample.index()];
        (rank != NOBODY).then_some(Rank(rank))
    }

    /// Makes `rank` the holder of a sample.
    pub fn set(&mut self, sample: SampleId, rank: Rank) {
        self.0[sample.index()] = rank.0;
    }

    /// The samples of each rank, in order.
    pub fn by_rank(&self, ranks: u32) -> Vec<Vec<SampleId>> {
        let mut samples = vec![Vec::new(); ranks as usize];
        for (sample, &rank) in self.0.iter().enumerate().filter(|&(_, &rank)| rank != NOBODY) {
            samples[rank as usize].push(SampleId(sample as u32));
        }
        samples
    }
}

/// The dataset dealt evenly over all ranks, each sample to one: sample k to rank k mod N, into the fastest tier with
/// room, else to the next rank that has room. What fits nowhere has no holder.
pub(super) struct Spread {
    pub(super) holders: Arc<Holders>,
    keep: Vec<TierMap>,
    loads: Vec<Vec<Count>>,
}

impl Spread {
    /// Over all tiers, or over `only` one.
    pub(super) fn new(brief: &Brief, only: Option<TierId>) -> Self {
        let (samples, ranks) = (brief.catalog.len(), brief.hosts.ranks());
        let tiers = brief.system.tiers.len();
        let mut room = Room::new(brief, only);
        let mut holders = Holders::nobody(samples);
        let mut keep = vec![TierMap::new(samples, tiers); ranks as usize];
        let mut loads = vec![vec![Count::default(); tiers]; ranks as usize];
        // Room only shrinks: once a size has fitted nowhere, nothing of that size or above will.
        let mut hopeless = Bytes(u64::MAX);
        for sample in brief.catalog.samples() {
            let bytes = brief.catalog.size(sample);
            if bytes >= hopeless {
                continue;
            }
            let home = sample.0 % ranks;
            let fitting = (0..ranks)
                .map(|offset| Rank((home + offset) % ranks))
                .find_map(|rank| room.first_fit(rank, bytes).map(|tier| (rank, tier)));
            let Some((rank, tier)) = fitting else {
                hopeless = bytes;
                continue;
            };
            holders.set(sample, rank);
            keep[rank.index()].set(sample, Some(tier));
            let load = &mut loads[rank.index()][tier.index()];
            load.reads += 1;
            load.bytes += bytes;
        }
        Self { holders: Arc::new(holders), keep, loads }
    }

    /// A plan that brings the spread in before training.
    pub(super) fn into_plan(self, orders: Orders, delivery: Delivery, routes: Routes) -> Plan {
        Plan {
            orders,
            delivery,
            routes,
            filling: Some(Filling { loads: self.loads, same: false }),
            lockstep_epochs: 0,
            ranks: self.keep.into_iter().map(|keep| RankPlan { keep, prefetch: Vec::new() }).collect(),
        }
    }
}

/// The orders with every access that `replace` names replaced by a sample of the rank's `own`, which it goes through
/// in a shuffled order of its own each epoch.
pub(super) fn substitute(
    brief: &Brief,
    own: Vec<Vec<SampleId>>,
    replace: impl Fn(Rank, SampleId) -> bool + Send + Sync + 'static,
) -> Orders {
    let (layout, hosts, samples) = (brief.layout.clone(), brief.hosts, brief.catalog.len());
    brief.orders.rewritten(move |epoch, order| {
        let mut forward: Vec<SampleId> = (0..order.len()).map(|position| order.sample(Position(position))).collect();
        for rank in hosts.all() {
            let own = &own[rank.index()];
            let shuffle = Feistel::new(own.len() as u32, own_key(epoch, rank));
            let mut turn = 0;
            for step in (0..layout.steps()).map(Step) {
                for index in 0..layout.local_len(rank, step) {
                    let slot = &mut forward[layout.dealt(rank, step, index).position.0 as usize];
                    if replace(rank, *slot) {
                        *slot = own[shuffle.at(turn % own.len() as u32) as usize];
                        turn = turn.wrapping_add(1);
                    }
                }
            }
        }
        EpochOrder::from_samples(forward, samples)
    })
}

/// Keys the shuffle of a rank's own samples.
fn own_key(epoch: Epoch, rank: Rank) -> u64 {
    u64::from(epoch.0) << 32 | u64::from(rank.0)
}
