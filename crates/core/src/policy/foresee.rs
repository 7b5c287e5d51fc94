//! The policy that is ours. It reaches the source minimum.
//!
//! 1. Cover first: as many bytes as fit get exactly one home, on the rank that will use the sample most often (ties:
//!    earliest first use), fast tiers first, the most used samples first.
//! 2. Replicate second: room that is left on a rank keeps copies of what it will use again soonest.
//! 3. Read once: the first user reads a sample from the source and hands it to its home; from then on everyone reads
//!    it from there. What has no home is read by each of its users.
//!
//! With local batches the home is the first user, which makes homes even, and batches are re-dealt by home.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::placement::{Room, dealt_by, most_used_first};
use super::{Assignment, Brief, Delivery, Keeping, Plan, Policy, Routes, Unsupported};
use crate::foresight::{By, Favourite, Foresight};
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, Position, Rank, SampleId, TierId};
use crate::model::{System, Tier};
use crate::stream::{Mark, Orders};
use crate::units::Bytes;

pub(super) struct Foresee;

impl Policy for Foresee {
    fn name(&self) -> &'static str {
        "foresee"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        let foresight = Foresight::new(brief.orders.clone(), brief.layout.clone(), brief.hosts);
        if !brief.peers && brief.hosts.ranks() > 1 {
            return lone(brief, &foresight);
        }
        if brief.hosts.ranks() == 1 {
            return Ok(sole(brief, &foresight));
        }
        let favourites = match brief.assignment {
            Assignment::Order => foresight.favourites(0..brief.catalog.len()),
            Assignment::Local => first_users(brief, &foresight),
        };
        let (homes, room) = cover(brief, &favourites);
        drop(favourites);
        let homes = Arc::new(homes);
        let orders = dealt_by(brief, &homes);
        let foresight = match brief.assignment {
            Assignment::Order => foresight,
            Assignment::Local => Foresight::new(orders.clone(), brief.layout.clone(), brief.hosts),
        };
        Ok(with_homes(brief, orders, &homes, &room, &foresight))
    }
}

/// Ranks that cannot serve each other: no sample lives on one rank for all, each keeps what it will use again soonest.
fn lone(brief: &Brief, foresight: &Foresight) -> Result<Plan, Unsupported> {
    brief.refuse_local()?;
    let homes = Arc::new(Homes::none(brief.catalog.len()));
    Ok(with_homes(
        brief,
        brief.orders.clone(),
        &homes,
        &Room::new(brief, None),
        foresight,
    ))
}

/// One rank uses all samples equally often. What it holds stays, then comes what it uses first: whatever is read before
/// the end of the first epoch, which may have begun in its middle, is carried on as far as there is room.
fn sole(brief: &Brief, foresight: &Foresight) -> Plan {
    let mut cover = Cover::new(brief);
    for &(sample, tier) in brief.held.iter() {
        cover.stay(
            sample,
            Home {
                rank: Rank(0),
                tier,
            },
        );
    }
    let Mark { epoch, step } = brief.start;
    let rest = epoch.0..brief.orders.epochs().min(epoch.0.saturating_add(2));
    let mut from = u64::from(step.0) * u64::from(brief.layout.global_batch());
    for epoch in rest.map(Epoch) {
        let order = brief.orders.epoch(epoch);
        for position in (from..order.len()).map(Position) {
            let sample = order.sample(position);
            if cover.homes.get(sample).is_none() {
                cover.place(sample, Rank(0));
            }
        }
        from = 0;
    }
    cover.close_gaps(&vec![
        Favourite {
            rank: Rank(0),
            uses: 1
        };
        brief.catalog.len() as usize
    ]);
    with_homes(
        brief,
        brief.orders.clone(),
        &Arc::new(cover.homes),
        &cover.room,
        foresight,
    )
}

fn with_homes(
    brief: &Brief,
    orders: Orders,
    homes: &Arc<Homes>,
    room: &Room,
    foresight: &Foresight,
) -> Plan {
    let keeping = |rank| Keeping::Homes {
        homes: Arc::clone(homes),
        spare: room.own_free(rank),
        foresight: foresight.clone(),
    };
    Plan {
        orders,
        delivery: Delivery::Ahead,
        routes: Routes::Caches,
        filling: None,
        lockstep_epochs: 0,
        ranks: brief.hosts.all().map(keeping).collect(),
    }
}

/// Each sample's first user in place of its most frequent.
fn first_users(brief: &Brief, foresight: &Foresight) -> Vec<Favourite> {
    let first = |sample| {
        let first = foresight.first_use(sample, By::Anyone);
        first.map_or(
            Favourite {
                rank: Rank(0),
                uses: 0,
            },
            |first| Favourite {
                rank: first.rank,
                uses: 1,
            },
        )
    };
    brief.catalog.samples().map(first).collect()
}

/// Gives as many bytes as fit one home each; returns the homes and the room that is left. Every rank that does this
/// with the same favourites finds the same homes.
pub fn cover(brief: &Brief, favourites: &[Favourite]) -> (Homes, Room) {
    let mut cover = Cover::new(brief);
    for sample in most_used_first(favourites.len(), |index| favourites[index].uses)
        .into_iter()
        .map(SampleId)
    {
        let favourite = &favourites[sample.index()];
        if favourite.uses > 0 {
            cover.place(sample, favourite.rank);
        }
    }
    cover.close_gaps(favourites);
    (cover.homes, cover.room)
}

struct Cover<'a> {
    brief: &'a Brief,
    homes: Homes,
    room: Room,
    /// For each tier the ranks by free room, most first; what it says of a rank may be too much by now.
    roomiest: Vec<BinaryHeap<(Bytes, Reverse<Rank>)>>,
    /// Tiers that peers read faster than a rank reads its own next tier: worth filling on another rank first.
    worth_afar: Vec<bool>,
    /// A size that fitted nowhere. Room only shrinks: nothing of that size or above will fit any more.
    hopeless: Bytes,
}

impl<'a> Cover<'a> {
    fn new(brief: &'a Brief) -> Self {
        let room = Room::new(brief, None);
        let tiers = brief.system.tiers.len();
        let roomiest = (0..tiers).map(|tier| {
            let ranks = brief.hosts.all();
            ranks
                .map(|rank| (room.free(rank, TierId(tier as u8)), Reverse(rank)))
                .collect()
        });
        let roomiest = roomiest.collect();
        let worth_afar = (0..tiers)
            .map(|tier| is_worth_afar(&brief.system, tier))
            .collect();
        let homes = Homes::none(brief.catalog.len());
        Self {
            brief,
            homes,
            room,
            roomiest,
            worth_afar,
            hopeless: Bytes(u64::MAX),
        }
    }

    /// Leaves a sample where it is, if it has room there.
    fn stay(&mut self, sample: SampleId, home: Home) {
        if self.homes.get(sample).is_none()
            && self
                .room
                .take(home.rank, home.tier, self.brief.catalog.size(sample))
        {
            self.homes.set(sample, Some(home));
        }
    }

    /// Finds a home for a sample: on its favourite rank, else, before a slow tier there, in a fast one elsewhere.
    fn place(&mut self, sample: SampleId, favourite: Rank) {
        let bytes = self.brief.catalog.size(sample);
        if bytes >= self.hopeless {
            return;
        }
        let tiers = self.brief.system.tiers.len() as u8;
        for tier in (1..tiers).map(TierId) {
            if self.room.take(favourite, tier, bytes) {
                return self.homes.set(
                    sample,
                    Some(Home {
                        rank: favourite,
                        tier,
                    }),
                );
            }
            if self.worth_afar[tier.index()] && self.place_afar(sample, bytes, tier) {
                return;
            }
        }
        for tier in (1..tiers).map(TierId) {
            if !self.worth_afar[tier.index()] && self.place_afar(sample, bytes, tier) {
                return;
            }
        }
        self.hopeless = bytes;
    }

    /// Puts a sample into the tier of the rank that has most room in it.
    fn place_afar(&mut self, sample: SampleId, bytes: Bytes, tier: TierId) -> bool {
        let roomiest = &mut self.roomiest[tier.index()];
        while let Some(mut top) = roomiest.peek_mut() {
            let rank = top.1.0;
            let free = self.room.free(rank, tier);
            if top.0 != free {
                top.0 = free;
                continue;
            }
            if free < bytes {
                return false;
            }
            self.homes.set(sample, Some(Home { rank, tier }));
            return self.room.take(rank, tier, bytes);
        }
        false
    }

    /// Samples of different sizes leave gaps at the end. Where samples are without a home, a sample that has one makes
    /// way for a larger one that fills its tier's gap better.
    fn close_gaps(&mut self, favourites: &[Favourite]) {
        let catalog = &self.brief.catalog;
        let homeless = |homes: &Homes, sample: &SampleId| {
            homes.get(*sample).is_none() && favourites[sample.index()].uses > 0
        };
        let mut waiting: Vec<(Bytes, SampleId)> = catalog
            .samples()
            .filter(|sample| homeless(&self.homes, sample))
            .map(|sample| (catalog.size(sample), sample))
            .take(GAP_CANDIDATES)
            .collect();
        if waiting.is_empty() || catalog.common_size().is_some() {
            return;
        }
        waiting.sort_unstable();
        let tiers = self.brief.system.tiers.len();
        let mut tenants: Vec<Vec<(Bytes, SampleId)>> =
            vec![Vec::new(); self.brief.hosts.ranks() as usize * tiers];
        let tenants_max = (TENANTS_MAX / tenants.len()).clamp(16, GAP_CANDIDATES);
        for sample in catalog.samples() {
            if let Some(home) = self.homes.get(sample) {
                let list = &mut tenants[home.rank.index() * tiers + home.tier.index()];
                if list.len() < tenants_max {
                    list.push((catalog.size(sample), sample));
                }
            }
        }
        for (index, list) in tenants.iter_mut().enumerate() {
            let home = Home {
                rank: Rank((index / tiers) as u32),
                tier: TierId((index % tiers) as u8),
            };
            // A gap of nearly a sample: one makes way for two smaller ones. Then each swap brings the tier closer to full.
            self.take_two_for_one(home, list, &mut waiting);
            for _ in 0..SWAPS_MAX {
                if !self.close_gap(home, list, &mut waiting) {
                    break;
                }
            }
        }
    }

    /// Puts two waiting samples in the place of one, if that fills the gap better than any one alone could.
    fn take_two_for_one(
        &mut self,
        home: Home,
        tenants: &mut Vec<(Bytes, SampleId)>,
        waiting: &mut Vec<(Bytes, SampleId)>,
    ) {
        let gap = self.room.free(home.rank, home.tier);
        let mut best: Option<(Bytes, usize, usize, usize)> = None;
        for (place, &(size, _)) in tenants.iter().enumerate().take(PAIR_TENANTS_MAX) {
            // The smallest with the largest that fits beside it, and so on inwards.
            let (mut low, mut high) = (0, waiting.len().min(PAIR_WAITING_MAX));
            while low + 1 < high {
                let pair = waiting[low].0 + waiting[high - 1].0;
                if pair > size + gap {
                    high -= 1;
                    continue;
                }
                let gain = pair.saturating_sub(size);
                if gain > best.map_or(Bytes(0), |(gain, ..)| gain) {
                    best = Some((gain, place, low, high - 1));
                }
                low += 1;
            }
        }
        let Some((gain, leaving, low, high)) = best else {
            return;
        };
        let (second, first) = (waiting.remove(high), waiting.remove(low));
        let outgoing = std::mem::replace(&mut tenants[leaving], first);
        tenants.push(second);
        self.homes.set(outgoing.1, None);
        self.homes.set(first.1, Some(home));
        self.homes.set(second.1, Some(home));
        self.room.take(home.rank, home.tier, gain);
        waiting.insert(waiting.partition_point(|other| *other < outgoing), outgoing);
    }

    /// Swaps the pair whose difference in size comes closest to the gap from below; false when there is none.
    fn close_gap(
        &mut self,
        home: Home,
        tenants: &mut [(Bytes, SampleId)],
        waiting: &mut Vec<(Bytes, SampleId)>,
    ) -> bool {
        let gap = self.room.free(home.rank, home.tier);
        let mut best: Option<(Bytes, usize, usize)> = None;
        for (place, &(size, _)) in tenants.iter().enumerate() {
            let fitting = waiting.partition_point(|&(other, _)| other <= size + gap);
            let Some(&(other, _)) = fitting.checked_sub(1).and_then(|last| waiting.get(last))
            else {
                continue;
            };
            let gain = other.saturating_sub(size);
            if gain > best.map_or(Bytes(0), |(gain, ..)| gain) {
                best = Some((gain, place, fitting - 1));
            }
        }
        let Some((gain, leaving, coming)) = best else {
            return false;
        };
        let incoming = waiting.remove(coming);
        let outgoing = std::mem::replace(&mut tenants[leaving], incoming);
        self.homes.set(outgoing.1, None);
        self.homes.set(incoming.1, Some(home));
        self.room.take(home.rank, home.tier, gain);
        waiting.insert(waiting.partition_point(|other| *other < outgoing), outgoing);
        true
    }
}

/// Samples that are looked at on each side of a swap: differences among so many come as close to a gap as it matters.
const GAP_CANDIDATES: usize = 4096;

/// Samples tried on each side for two in the place of one: the small ones count, and every pair is looked at.
const PAIR_TENANTS_MAX: usize = 64;
const PAIR_WAITING_MAX: usize = 512;

/// Swaps in one tier: each but the last uses up the largest difference in size there is.
const SWAPS_MAX: usize = 64;

/// Samples that are looked at on all ranks together: a few megabytes.
const TENANTS_MAX: usize = 1 << 18;

/// Whether a tier of another rank is faster to read than the rank's own next tier.
fn is_worth_afar(system: &System, tier: usize) -> bool {
    let read = |tier: &Tier| tier.read.at(tier.threads).shared_by(tier.threads);
    // A tier that is switched off does not count.
    let next = system
        .tiers
        .iter()
        .skip(tier + 1)
        .find(|next| next.capacity > Bytes(0));
    next.is_some_and(|next| read(&system.tiers[tier]).min(system.network) > read(next))
}
