//! What several policies share: room in tiers, an even disjoint spread of the dataset over all ranks, and orders in
//! which a rank trains on what it holds in place of what it does not.

use std::sync::Arc;

use super::{Assignment, Brief, Delivery, Filling, Holders, Keeping, Part, Parts, Routes};
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
        let hosts = brief.hosts.clone();
        let mut tiers = vec![(Scope::Rank, vec![Bytes(0); hosts.ranks() as usize])];
        for (id, tier) in brief.system.cache_tiers() {
            let domains = 0..hosts.domains(tier.scope) as usize;
            let free = if only.is_none_or(|only| only == id) {
                domains
                    .map(|domain| brief.domain_capacity(id, domain))
                    .collect()
            } else {
                vec![Bytes(0); domains.len()]
            };
            tiers.push((tier.scope, free));
        }
        Self { hosts, tiers }
    }

    /// The tiers as one rank may fill them by itself: of a shared tier, its even part.
    pub(super) fn of_rank(brief: &Brief, rank: Rank) -> Self {
        let mut room = Self::new(brief, None);
        for (scope, free) in &mut room.tiers {
            let domain = room.hosts.domain(*scope, rank);
            free[domain].0 /= room.hosts.members(*scope, domain).len() as u64;
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
    /// By rank and tier.
    loads: Vec<Vec<Count>>,
}

impl Spread {
    /// Over all tiers, or over `only` one.
    pub(super) fn new(brief: &Brief, only: Option<TierId>) -> Self {
        let samples = brief.catalog.len();
        let ranks = brief.hosts.ranks();
        let tiers = brief.system.tiers.len();
        let mut room = Room::new(brief, only);
        let mut homes = Homes::none(samples);
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
            let load = &mut loads[rank.index()][tier.index()];
            load.reads += 1;
            load.bytes += bytes;
        }
        Self {
            homes: Arc::new(homes),
            loads,
        }
    }

    /// Who is to hold what.
    pub(super) fn into_holders(self) -> Holders {
        Holders {
            homes: self.homes,
            turns: None,
        }
    }

    /// Parts that bring the spread in before training, and deal batches by holder where the job asks for it.
    pub(super) fn into_parts(self, brief: &Brief, delivery: Delivery) -> Parts<'_> {
        let orders = dealt_by(brief, &self.homes);
        self.into_parts_with(brief, orders, delivery)
    }

    /// Parts that bring the spread in before training, with orders of the policy's own.
    pub(super) fn into_parts_with(
        self,
        brief: &Brief,
        orders: Orders,
        delivery: Delivery,
    ) -> Parts<'_> {
        Box::new(move |rank| Part {
            orders: orders.clone(),
            delivery,
            routes: Routes::Caches,
            filling: Some(Filling {
                loads: self.loads[rank.index()].clone(),
                same: false,
            }),
            keeping: kept_at_home(brief, &self.homes, rank),
            ..Part::cacheless(brief, rank)
        })
    }
}

/// A rank keeps for good what has its home there.
pub(super) fn kept_at_home(brief: &Brief, homes: &Homes, rank: Rank) -> Keeping {
    let mut keep = TierMap::new(brief.catalog.len(), brief.system.tiers.len());
    for sample in brief.catalog.samples() {
        if let Some(home) = homes.get(sample).filter(|home| home.rank == rank) {
            keep.set(sample, Some(home.tier));
        }
    }
    Keeping::Fixed {
        keep,
        prefetch: Vec::new(),
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

/// What ranks hold, and train on in place of what they do not.
pub(super) trait Own: Send + Sync + 'static {
    /// How many samples a rank has to train on instead.
    fn len(&self, rank: Rank) -> u32;
    /// One of them.
    fn get(&self, rank: Rank, index: u32) -> SampleId;
    /// Whether a rank trains on something else in the place of this sample.
    fn replaces(&self, rank: Rank, sample: SampleId) -> bool;
}

/// The orders with every access that `own` replaces to one of a rank's own samples, which it goes through in a shuffled
/// order of its own each epoch.
pub(super) fn substitute(brief: &Brief, own: impl Own) -> Orders {
    let layout = brief.layout.clone();
    let hosts = brief.hosts.clone();
    let samples = brief.catalog.len();
    brief.orders.rewritten(move |epoch, order| {
        let mut forward: Vec<SampleId> = (0..order.len())
            .map(|position| order.sample(Position(position)))
            .collect();
        for rank in hosts.all().filter(|rank| own.len(*rank) > 0) {
            let len = own.len(rank);
            let shuffle = Feistel::new(len, own_key(epoch, rank));
            let mut turn = 0;
            for step in (0..layout.steps()).map(Step) {
                for index in 0..layout.local_len(rank, step) {
                    let slot = &mut forward[layout.dealt(rank, step, index).position.0 as usize];
                    if own.replaces(rank, *slot) {
                        *slot = own.get(rank, shuffle.at(turn % len));
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
