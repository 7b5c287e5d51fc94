//! Space for copies, used as Belady would: what will be used again soonest stays, and the copy whose next use is the
//! furthest away makes room, never for one that is needed sooner than itself.
//!
//! A max-heap by next use holds a live entry for each copy. When a copy is used, an entry with its next use is added and
//! the old one, now in the past, sinks; an entry of a copy that has gone is passed over when it comes up. [`CopyPool::renew`]
//! clears out both once an epoch.

use std::collections::BinaryHeap;

use super::Evicted;
use crate::catalog::Catalog;
use crate::foresight::When;
use crate::ids::{Epoch, SampleId, TierId};
use crate::model::Model;
use crate::tier_map::TierMap;
use crate::units::Bytes;

/// A time in one word, epoch above step: entries are compared often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    /// Of a copy that is never used again.
    const NEVER: Self = Self(u64::MAX);

    fn epoch(self) -> Epoch {
        Epoch((self.0 >> 32) as u32)
    }
}

impl From<When> for Key {
    fn from(when: When) -> Self {
        Self(u64::from(when.epoch.0) << 32 | u64::from(when.step.0))
    }
}

/// The copies in one tier.
#[derive(Debug)]
pub(super) struct CopyPool {
    tier: TierId,
    /// Whether others can see its copies.
    shared: bool,
    capacity: Bytes,
    free: Bytes,
    by_next_use: BinaryHeap<(Key, SampleId)>,
    /// Work space: copies that may have to go, and those that would but are busy.
    victims: Vec<(Key, SampleId)>,
    spared: Vec<(Key, SampleId)>,
}

/// What a pool works on.
pub(super) struct Space<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) model: &'a Model,
    pub(super) holdings: &'a mut TierMap,
    /// Copies that went.
    pub(super) evicted: &'a mut Vec<Evicted>,
    /// Samples that are on their way into a tier, or being read from it: their copies stay for now.
    pub(super) busy: [&'a [SampleId]; 2],
    /// The access that the staging threads are at.
    pub(super) now: When,
}

impl Space<'_> {
    pub(super) fn is_busy(&self, sample: SampleId) -> bool {
        self.busy.iter().any(|samples| samples.contains(&sample))
    }
}

impl CopyPool {
    pub(super) fn new(tier: TierId, capacity: Bytes, shared: bool) -> Self {
        Self {
            tier,
            shared,
            capacity,
            free: capacity,
            by_next_use: BinaryHeap::new(),
            victims: Vec::new(),
            spared: Vec::new(),
        }
    }

    pub(super) fn tier(&self) -> TierId {
        self.tier
    }

    /// Whether so many bytes are free.
    pub(super) fn has_room(&self, bytes: Bytes) -> bool {
        self.free >= bytes
    }

    /// The last epoch in which a copy of so many bytes may be used again to be taken in.
    pub(super) fn horizon(&self, bytes: Bytes) -> Epoch {
        match self.by_next_use.peek() {
            Some((next, _)) if self.free < bytes => next.epoch(),
            _ => Key::NEVER.epoch(),
        }
    }

    /// Takes a copy in that will be used at `next`, if room is free or can be made without harm: by copies that are
    /// used later than it.
    pub(super) fn admit(&mut self, sample: SampleId, next: When, space: &mut Space<'_>) -> bool {
        self.admit_sparing(sample, next, space, |_| false)
    }

    /// The same without harm to copies that are to be spared.
    pub(super) fn admit_sparing(
        &mut self,
        sample: SampleId,
        next: When,
        space: &mut Space<'_>,
        spares: impl Fn(SampleId) -> bool,
    ) -> bool {
        let bytes = space.catalog.size(sample);
        if bytes > self.capacity || !self.make_room(bytes, next, space, spares) {
            return false;
        }
        self.free -= bytes;
        space.holdings.set(sample, Some(self.tier));
        self.by_next_use.push((next.into(), sample));
        true
    }

    fn make_room(
        &mut self,
        bytes: Bytes,
        next: When,
        space: &mut Space<'_>,
        spares: impl Fn(SampleId) -> bool,
    ) -> bool {
        let mut free = self.free;
        let latest = Key::from(next).max(space.now.into());
        while free < bytes {
            let furthest = self.by_next_use.peek().filter(|(when, _)| *when > latest);
            let Some(&(_, victim)) = furthest else { break };
            if spares(victim) || space.is_busy(victim) {
                self.spared.extend(self.by_next_use.pop());
            } else if space.holdings.get(victim) == Some(self.tier) {
                free += space.catalog.size(victim);
                space.holdings.set(victim, None);
                self.victims.extend(self.by_next_use.pop());
            } else {
                self.by_next_use.pop();
            }
        }
        self.by_next_use.extend(self.spared.drain(..));
        let enough = free >= bytes;
        for (when, victim) in self.victims.drain(..) {
            if enough {
                space.evicted.push(Evicted {
                    sample: victim,
                    tier: self.tier,
                    shared: self.shared,
                });
            } else {
                space.holdings.set(victim, Some(self.tier));
                self.by_next_use.push((when, victim));
            }
        }
        if enough {
            self.free = free;
        }
        enough
    }

    /// A copy is used now, and then at `next`.
    pub(super) fn touch(&mut self, sample: SampleId, next: Option<When>) {
        self.by_next_use
            .push((next.map_or(Key::NEVER, Key::from), sample));
    }

    /// A copy goes.
    pub(super) fn remove(
        &mut self,
        sample: SampleId,
        catalog: &Catalog,
        holdings: &mut TierMap,
    ) -> Evicted {
        self.lose(sample, catalog, holdings);
        Evicted {
            sample,
            tier: self.tier,
            shared: self.shared,
        }
    }

    /// A copy is gone already.
    pub(super) fn lose(&mut self, sample: SampleId, catalog: &Catalog, holdings: &mut TierMap) {
        self.free += catalog.size(sample);
        holdings.set(sample, None);
    }

    /// Gives every copy that is held one entry, with its next use as `next` tells it.
    pub(super) fn renew(&mut self, holdings: &TierMap, next: impl Fn(SampleId) -> Option<When>) {
        let mut samples: Vec<SampleId> =
            self.by_next_use.drain().map(|(_, sample)| sample).collect();
        samples.sort_unstable();
        samples.dedup();
        let held = samples
            .into_iter()
            .filter(|sample| holdings.get(*sample) == Some(self.tier));
        self.by_next_use = held
            .map(|sample| (next(sample).map_or(Key::NEVER, Key::from), sample))
            .collect();
    }

    /// Clears out entries that lie in the past, where every copy has one in the future.
    pub(super) fn forget_before(&mut self, now: When) {
        let now = Key::from(now);
        self.by_next_use.retain(|(when, _)| *when >= now);
    }
}
