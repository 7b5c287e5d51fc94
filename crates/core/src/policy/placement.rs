//! What several policies share: room in tiers, an even disjoint spread of the dataset over all ranks, and orders in
//! which a rank trains on what it holds in place of what it does not.

use std::sync::Arc;

use super::{Assignment, Brief, Delivery, Filling, Keeping, Plan, Routes};
use crate::assign;
use crate::homes::{Home, Homes};
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
            let capacity = if only.is_none_or(|only| only == id) {
                tier.capacity
            } else {
                Bytes(0)
            };
            tiers.push((
                tier.scope,
                vec![capacity; hosts.domains(tier.scope) as usize],
            ));
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
        let Some((scope, free)) = self.tiers.get_mut(tier.index()) else {
            return false;
        };
        let free = &mut free[self.hosts.domain(*scope, rank)];
        let fits = *free >= bytes;
        if fits {
            *free -= bytes;
        }
        fits
    }

    /// Whether not a byte is free in a rank's tiers.
    pub(super) fn is_full(&self, rank: Rank) -> bool {
        self.free_of(rank).iter().all(|free| *free == Bytes(0))
    }

    /// What is free in each tier of a rank.
    pub(super) fn free_of(&self, rank: Rank) -> Vec<Bytes> {
        self.tiers
            .iter()
            .map(|(scope, free)| free[self.hosts.domain(*scope, rank)])
            .collect()
    }

    /// What is free in each tier of a rank, where the tier is its own.
    pub(super) fn own_free(&self, rank: Rank) -> Vec<Bytes> {
        let free = |(scope, free): &(Scope, Vec<Bytes>)| {
            if *scope == Scope::Rank {
                free[rank.index()]
            } else {
                Bytes(0)
            }
        };
        self.tiers.iter().map(free).collect()
    }

    /// What is free in a rank's tier.
    pub(super) fn free(&self, rank: Rank, tier: TierId) -> Bytes {
        let (scope, free) = &self.tiers[tier.index()];
        free[self.hosts.domain(*scope, rank)]
    }

    /// Takes space in the fastest tier of a rank that has enough.
    pub fn first_fit(&mut self, rank: Rank, bytes: Bytes) -> Option<TierId> {
        (1..self.tiers.len())
            .map(|tier| TierId(tier as u8))
            .find(|&tier| self.take(rank, tier, bytes))
    }
}

/// The dataset dealt evenly over all ranks, each sample to one: sample k to rank k mod N, into the fastest tier with
/// room, else to the next rank that has room. What fits nowhere has no holder.
pub(super) struct Spread {
    pub(super) homes: Arc<Homes>,
    keep: Vec<TierMap>,
    loads: Vec<Vec<Count>>,
}

impl Spread {
    /// Over all tiers, or over `only` one.
    pub(super) fn new(brief: &Brief, only: Option<TierId>) -> Self {
        let (samples, ranks) = (brief.catalog.len(), brief.hosts.ranks());
        let tiers = brief.system.tiers.len();
        let mut room = Room::new(brief, only);
        let mut homes = Homes::none(samples);
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
            homes.set(sample, Some(Home { rank, tier }));
            keep[rank.index()].set(sample, Some(tier));
            let load = &mut loads[rank.index()][tier.index()];
            load.reads += 1;
            load.bytes += bytes;
        }
        Self {
            homes: Arc::new(homes),
            keep,
            loads,
        }
    }

    /// A plan that brings the spread in before training, and deals batches by holder where the job asks for it.
    pub(super) fn into_plan(self, brief: &Brief, delivery: Delivery) -> Plan {
        let orders = dealt_by(brief, &self.homes);
        self.into_plan_with(orders, delivery)
    }

    /// A plan that brings the spread in before training, with orders of the policy's own.
    pub(super) fn into_plan_with(self, orders: Orders, delivery: Delivery) -> Plan {
        Plan {
            orders,
            delivery,
            routes: Routes::Caches,
            filling: Some(Filling {
                loads: self.loads,
                same: false,
            }),
            lockstep_epochs: 0,
            ranks: self
                .keep
                .into_iter()
                .map(|keep| Keeping::Fixed {
                    keep,
                    prefetch: Vec::new(),
                })
                .collect(),
        }
    }
}

/// The orders of the job, re-dealt by homes where it asks for local batches.
pub(super) fn dealt_by(brief: &Brief, homes: &Arc<Homes>) -> Orders {
    match brief.assignment {
        Assignment::Order => brief.orders.clone(),
        Assignment::Local => assign::local(&brief.orders, &brief.layout, homes),
    }
}

/// The numbers below `count` by how much each is used, most first; equal ones keep their order.
pub(super) fn most_used_first(count: usize, uses: impl Fn(usize) -> u32) -> Vec<u32> {
    let highest = (0..count).map(&uses).max().unwrap_or(0) as usize;
    let mut starts = vec![0usize; highest + 2];
    for index in 0..count {
        starts[highest - uses(index) as usize + 1] += 1;
    }
    for bucket in 1..starts.len() {
        starts[bucket] += starts[bucket - 1];
    }
    let mut sorted = vec![0; count];
    for index in 0..count {
        let start = &mut starts[highest - uses(index) as usize];
        sorted[*start] = index as u32;
        *start += 1;
    }
    sorted
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
        let mut forward: Vec<SampleId> = (0..order.len())
            .map(|position| order.sample(Position(position)))
            .collect();
        for rank in hosts.all() {
            let own = &own[rank.index()];
            if own.is_empty() {
                continue;
            }
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
