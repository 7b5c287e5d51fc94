//! Cover: as many bytes as fit get exactly one home. Every rank that does this with the same favourites and paces finds
//! the same homes.
//!
//! What is held from before stays where it is, as far as it is used and has room: to move it would be to read it again.
//! Then samples get homes, the most used first, on the rank that uses each most, fast tiers first; before a slow tier
//! there, in a fast one elsewhere. Samples of different sizes leave gaps, which swaps close in the end.
//!
//! No rank is given more than twice its even share while another one has room, or its peers would all wait for it. Even
//! is what everybody would have if homes were poured over all ranks like water, each up to its capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Brief;
use super::placement::{Room, most_used_first};
use crate::foresight::Favourite;
use crate::homes::{Home, Homes};
use crate::ids::{Rank, SampleId, TierId};
use crate::model::Paces;
use crate::units::Bytes;

/// Gives as many bytes as fit one home each; returns the homes and the room that is left.
pub fn cover(brief: &Brief, paces: &Paces, favourites: &[Favourite]) -> (Homes, Room) {
    let used = brief.catalog.samples().zip(favourites);
    let used = used.filter(|(_, favourite)| favourite.uses > 0);
    let bytes = used.map(|(sample, _)| brief.catalog.size(sample)).sum();
    let mut cover = Cover::new(brief, paces, even_share(brief, bytes));
    let order = most_used_first(favourites.len(), |index| favourites[index].uses);
    let order = order.into_iter().map(SampleId);
    let order = order.take_while(|sample| favourites[sample.index()].uses > 0);
    if !brief.held.is_empty() {
        for sample in order.clone() {
            cover.stay(sample, favourites[sample.index()].rank);
        }
    }
    for sample in order {
        if cover.homes.get(sample).is_none() {
            cover.place(sample, favourites[sample.index()].rank);
        }
    }
    cover.close_gaps(favourites);
    (cover.homes, cover.room)
}

/// What each rank with room for it has if so many bytes are spread over all ranks as evenly as their capacities allow; none
/// if they do not fit.
pub fn even_share(brief: &Brief, bytes: Bytes) -> Option<Bytes> {
    let capacity = |rank| {
        let tiers = brief.system.cache_tiers().map(|(id, tier)| {
            let sharers = brief.hosts.sharers(tier.scope, rank).len() as u64;
            brief.capacity(rank, id).0 / sharers
        });
        tiers.fold(0, u64::saturating_add)
    };
    let mut capacities: Vec<u64> = brief.hosts.all().map(capacity).collect();
    capacities.sort_unstable();
    let mut left = bytes.0;
    for (full, &capacity) in capacities.iter().enumerate() {
        let ranks = (capacities.len() - full) as u64;
        if capacity.saturating_mul(ranks) >= left {
            return Some(Bytes(left.div_ceil(ranks)));
        }
        left -= capacity;
    }
    None
}

pub(super) struct Cover<'a> {
    brief: &'a Brief,
    pub(super) homes: Homes,
    pub(super) room: Room,
    /// The bytes of the homes of each rank.
    at_home: Vec<Bytes>,
    /// So much of them a rank is given while others have room; none where all room is needed anyway.
    limit: Option<Bytes>,
    /// For each tier the ranks by what they can take, most first; what it says of a rank may be too much by now.
    roomiest: Vec<BinaryHeap<(Bytes, Reverse<Rank>)>>,
    /// Tiers that peers read faster than a rank reads its own next tier: worth filling on another rank first.
    worth_afar: Vec<bool>,
    /// A size that fitted nowhere. Room only shrinks: nothing of that size or above will fit any more.
    hopeless: Bytes,
}

impl<'a> Cover<'a> {
    pub(super) fn new(brief: &'a Brief, paces: &Paces, even: Option<Bytes>) -> Self {
        let tiers = (0..brief.system.tiers.len() as u8).map(TierId);
        let worth_afar = tiers.clone().map(|tier| is_worth_afar(brief, paces, tier));
        let mut cover = Self {
            brief,
            homes: Homes::none(brief.catalog.len()),
            room: Room::new(brief, None),
            at_home: vec![Bytes(0); brief.hosts.ranks() as usize],
            limit: even.map(|even| Bytes(even.0.saturating_mul(2))),
            roomiest: Vec::new(),
            worth_afar: worth_afar.collect(),
            hopeless: Bytes(u64::MAX),
        };
        let by_room = |tier| {
            let ranks = brief.hosts.all();
            let ranks = ranks.map(|rank| (cover.usable(rank, tier), Reverse(rank)));
            ranks.collect()
        };
        cover.roomiest = tiers.map(by_room).collect();
        cover
    }

    /// What a rank's tier can take while others have room.
    fn usable(&self, rank: Rank, tier: TierId) -> Bytes {
        let free = self.room.free(rank, tier);
        match self.limit {
            Some(limit) => free.min(limit.saturating_sub(self.at_home[rank.index()])),
            None => free,
        }
    }

    /// Takes room for so many more bytes of homes, if there is as much.
    fn take(&mut self, home: Home, bytes: Bytes) -> bool {
        let fits = self.room.take(home.rank, home.tier, bytes);
        if fits {
            self.at_home[home.rank.index()] += bytes;
        }
        fits
    }

    /// Makes this the home of a sample, if it has room.
    fn settle(&mut self, sample: SampleId, home: Home) -> bool {
        let fits = self.take(home, self.brief.catalog.size(sample));
        if fits {
            self.homes.set(sample, Some(home));
        }
        fits
    }

    /// Leaves a sample where it is held, if it has room there: with its favourite, else with the holder of the fewest homes.
    pub(super) fn stay(&mut self, sample: SampleId, favourite: Rank) {
        let mut holders: Vec<Home> = self.brief.held.holders(sample).collect();
        holders.sort_by_key(|holder| {
            let is_other = holder.rank != favourite;
            (is_other, self.at_home[holder.rank.index()], holder.rank)
        });
        for holder in holders {
            if self.settle(sample, holder) {
                return;
            }
        }
    }

    /// Finds a home for a sample: on its favourite rank, else, before a slow tier there, in a fast one elsewhere.
    pub(super) fn place(&mut self, sample: SampleId, favourite: Rank) {
        let bytes = self.brief.catalog.size(sample);
        if bytes >= self.hopeless {
            return;
        }
        let placed = self.place_within_limit(sample, bytes, favourite)
            || self.limit.is_some() && self.place_where_it_fits(sample, favourite);
        if !placed {
            self.hopeless = bytes;
        }
    }

    fn place_within_limit(&mut self, sample: SampleId, bytes: Bytes, favourite: Rank) -> bool {
        let tiers = (1..self.brief.system.tiers.len() as u8).map(TierId);
        for tier in tiers.clone() {
            let home = Home {
                rank: favourite,
                tier,
            };
            if self.usable(favourite, tier) >= bytes && self.settle(sample, home) {
                return true;
            }
            if self.worth_afar[tier.index()] && self.place_afar(sample, bytes, tier) {
                return true;
            }
        }
        for tier in tiers {
            if !self.worth_afar[tier.index()] && self.place_afar(sample, bytes, tier) {
                return true;
            }
        }
        false
    }

    /// Puts a sample into the tier of the rank that can take most.
    fn place_afar(&mut self, sample: SampleId, bytes: Bytes, tier: TierId) -> bool {
        while let Some(&(known, Reverse(rank))) = self.roomiest[tier.index()].peek() {
            let usable = self.usable(rank, tier);
            if known == usable {
                return usable >= bytes && self.settle(sample, Home { rank, tier });
            }
            if let Some(mut top) = self.roomiest[tier.index()].peek_mut() {
                top.0 = usable;
            }
        }
        false
    }

    /// Puts a sample that fits nowhere within the limit wherever it does. That is rare: only sizes that leave gaps make
    /// it so.
    fn place_where_it_fits(&mut self, sample: SampleId, favourite: Rank) -> bool {
        for tier in (1..self.brief.system.tiers.len() as u8).map(TierId) {
            let by_room = |rank: &Rank| (self.room.free(*rank, tier), Reverse(*rank));
            let roomiest = self.brief.hosts.all().max_by_key(by_room);
            for rank in [Some(favourite), roomiest].into_iter().flatten() {
                if self.settle(sample, Home { rank, tier }) {
                    return true;
                }
            }
        }
        false
    }

    /// Samples of different sizes leave gaps at the end. Where samples are without a home, a sample that has one makes
    /// way for a larger one that fills its tier's gap better.
    pub(super) fn close_gaps(&mut self, favourites: &[Favourite]) {
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
        let gap = self.usable(home.rank, home.tier);
        let mut best: Option<(Bytes, usize, usize, usize)> = None;
        for (place, &(size, _)) in tenants.iter().enumerate().take(PAIR_TENANTS_MAX) {
            // The smallest with the largest that fits beside it, and so on inwards.
            let mut low = 0;
            let mut high = waiting.len().min(PAIR_WAITING_MAX);
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
        let second = waiting.remove(high);
        let first = waiting.remove(low);
        let outgoing = std::mem::replace(&mut tenants[leaving], first);
        tenants.push(second);
        self.homes.set(outgoing.1, None);
        self.homes.set(first.1, Some(home));
        self.homes.set(second.1, Some(home));
        self.take(home, gain);
        waiting.insert(waiting.partition_point(|other| *other < outgoing), outgoing);
    }

    /// Swaps the pair whose difference in size comes closest to the gap from below; false when there is none.
    fn close_gap(
        &mut self,
        home: Home,
        tenants: &mut [(Bytes, SampleId)],
        waiting: &mut Vec<(Bytes, SampleId)>,
    ) -> bool {
        let gap = self.usable(home.rank, home.tier);
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
        self.take(home, gain);
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
fn is_worth_afar(brief: &Brief, paces: &Paces, tier: TierId) -> bool {
    // A tier that is switched off does not count.
    let next = brief
        .system
        .cache_tiers()
        .map(|(next, _)| next)
        .find(|next| *next > tier && brief.total_capacity(*next) > Bytes(0));
    next.is_some_and(|next| paces.from_afar(tier) < paces.tiers[next.index()])
}
