//! The memory tier: samples in the part of the arena that is theirs. What is held is shared, never copied: a sample that
//! is staged from here is a second share of its block, and one that is evicted lives on until its last user is done.
//!
//! Nobody can write to that part of the arena. A sample that finds no room there, because evicted ones are still in use, is
//! held for the time being in memory of its own, which nobody else ever has: it moves when there is room.

use crate::sync::{Mutex, whole};
use std::collections::HashMap;
use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::{Found, Kept, Tier, TierError};
use crate::arena::{Arena, Block, Keeps};
use crate::stamp::Stamp;

/// Samples in memory.
pub struct MemoryTier {
    arena: Arc<Arena>,
    capacity_bytes: u64,
    held: Mutex<Held>,
}

/// What is held, and how much that is.
#[derive(Default)]
struct Held {
    blocks: HashMap<SampleId, Arc<Block>>,
    bytes: u64,
}

impl Held {
    fn insert(&mut self, sample: SampleId, block: Arc<Block>) {
        self.bytes += block.bytes().len() as u64;
        let old = self.blocks.insert(sample, block);
        self.bytes -= old.map_or(0, |old| old.bytes().len() as u64);
    }

    fn remove(&mut self, sample: SampleId) {
        let old = self.blocks.remove(&sample);
        self.bytes -= old.map_or(0, |old| old.bytes().len() as u64);
    }

    fn is(&self, sample: SampleId, block: &Arc<Block>) -> bool {
        self.blocks
            .get(&sample)
            .is_some_and(|held| Arc::ptr_eq(held, block))
    }

    /// A sample that is in memory of its own for the time being.
    fn unsettled(&self, sample: SampleId) -> Option<Arc<Block>> {
        self.blocks
            .get(&sample)
            .filter(|block| !block.is_kept())
            .cloned()
    }
}

impl MemoryTier {
    /// In the kept part of an arena, for so many bytes.
    pub(crate) fn new(arena: Arc<Arena>, capacity_bytes: u64) -> Self {
        Self {
            arena,
            capacity_bytes,
            held: Mutex::default(),
        }
    }

    /// What it may hold.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// A tier of its own, for so many bytes in at most `samples` samples.
    pub fn with_capacity(bytes: u64, samples: u64) -> std::io::Result<Self> {
        Ok(Self::new(
            Arena::new(
                1,
                Keeps {
                    bytes,
                    samples,
                    largest: bytes,
                },
            )?,
            bytes,
        ))
    }

    /// Drops all samples; those in other hands live on.
    pub(crate) fn clear(&self) {
        *self.held() = Held::default();
    }

    /// A share of a sample that is held, or a copy of one that has not found its place yet.
    pub(crate) fn share(&self, sample: SampleId) -> Option<Arc<Block>> {
        let block = self.held().blocks.get(&sample).cloned()?;
        Some(if block.is_kept() {
            block
        } else {
            self.moved(sample, &block).unwrap_or_else(|| block.copy())
        })
    }

    /// What is held of a sample that others have, too.
    pub(crate) fn own(&self, block: Arc<Block>) -> Arc<Block> {
        if block.is_kept() {
            return block;
        }
        self.arena
            .keep_copy(block.bytes())
            .unwrap_or_else(|| block.copy())
    }

    /// Holds a block: in the tier's part of the arena, or for the time being one that nobody else has
    /// ([`MemoryTier::own`], [`MemoryTier::settle`]).
    pub(crate) fn hold(&self, sample: SampleId, block: Arc<Block>) {
        self.held().insert(sample, block);
    }

    /// The trainer is done with a sample that may have found no room in the tier's part of the arena: it moves there. False
    /// where there is no room even now: then it is to be given up ([`MemoryTier::give_up`]).
    pub(crate) fn settle(&self, sample: SampleId) -> bool {
        let Some(block) = self.held().unsettled(sample) else {
            return true;
        };
        self.moved(sample, &block).is_some()
    }

    /// Holds a sample no more that found no room; false where it has found some by now, or is not held.
    pub(crate) fn give_up(&self, sample: SampleId) -> bool {
        let mut held = self.held();
        let is_unsettled = held.unsettled(sample).is_some();
        if is_unsettled {
            held.remove(sample);
        }
        is_unsettled
    }

    /// Moves what is held to the tier's part of the arena, if there is room now.
    fn moved(&self, sample: SampleId, block: &Arc<Block>) -> Option<Arc<Block>> {
        let moved = self.arena.keep_copy(block.bytes())?;
        let mut held = self.held();
        if held.is(sample, block) {
            held.insert(sample, Arc::clone(&moved));
        }
        Some(moved)
    }

    fn held(&self) -> crate::sync::MutexGuard<'_, Held> {
        whole(self.held.lock())
    }
}

impl Tier for MemoryTier {
    /// What is in memory is of this job: nobody asks later what it was.
    fn keep(&self, sample: SampleId, data: &[u8], _: Option<Stamp>) -> Result<Kept, TierError> {
        let held = self.held().blocks.get(&sample).cloned();
        if held.is_some_and(|held| held.bytes() == data) {
            return Ok(Kept::Yes);
        }
        self.evict(sample);
        // The arena has room for what alignment costs; the budget is for samples.
        if self.held().bytes + data.len() as u64 > self.capacity_bytes {
            return Ok(Kept::NoRoom);
        }
        let Some(block) = self.arena.keep_copy(data) else {
            return Ok(Kept::NoRoom);
        };
        self.hold(sample, block);
        Ok(Kept::Yes)
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        let Some(block) = self.share(sample) else {
            return Ok(Found::NotHeld);
        };
        into.copy_from_slice(block.bytes());
        Ok(Found::Yes)
    }

    fn evict(&self, sample: SampleId) {
        self.held().remove(sample);
    }

    fn held(&self) -> Vec<SampleId> {
        let mut samples: Vec<SampleId> = self.held().blocks.keys().copied().collect();
        samples.sort_unstable();
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::conformance;

    #[test]
    fn conforms() {
        let samples = u64::from(conformance::catalog().len());
        conformance::check(&mut |capacity| {
            Box::new(MemoryTier::with_capacity(capacity.0, samples).unwrap())
        });
    }

    #[test]
    fn an_evicted_sample_lives_on_in_the_hands_that_have_it() {
        let tier = MemoryTier::with_capacity(64, 1).unwrap();
        assert_eq!(tier.keep(SampleId(1), &[7; 64], None).unwrap(), Kept::Yes);
        let share = tier.share(SampleId(1)).unwrap();
        tier.evict(SampleId(1));
        assert!(tier.share(SampleId(1)).is_none());
        assert_eq!(share.bytes(), [7; 64]);
    }

    #[test]
    fn a_sample_that_found_no_room_moves_in_when_there_is_some() {
        let arena = Arena::new(
            64,
            Keeps {
                bytes: 64,
                samples: 0,
                largest: 64,
            },
        )
        .unwrap();
        let tier = MemoryTier::new(Arc::clone(&arena), 64);
        let old = arena.keep(64).unwrap();
        let mut filling = arena.stage(3).unwrap();
        filling.bytes_mut().copy_from_slice(b"new");
        tier.hold(SampleId(1), tier.own(filling.share()));
        assert!(!tier.share(SampleId(1)).unwrap().is_kept());
        drop(old);
        assert!(tier.settle(SampleId(1)));
        assert!(
            arena.stage(64).is_some(),
            "the staging buffer is free again"
        );
        let share = tier.share(SampleId(1)).unwrap();
        assert!(share.is_kept());
        assert_eq!(share.bytes(), b"new");
    }

    #[test]
    fn what_is_held_outside_of_its_place_nobody_else_has() {
        let arena = Arena::new(
            64,
            Keeps {
                bytes: 64,
                samples: 0,
                largest: 64,
            },
        )
        .unwrap();
        let tier = MemoryTier::new(Arc::clone(&arena), 64);
        let _old = arena.keep(64).unwrap();
        let staged = arena.stage(3).unwrap().share();
        tier.hold(SampleId(1), tier.own(Arc::clone(&staged)));
        let shares = [
            tier.share(SampleId(1)).unwrap(),
            tier.share(SampleId(1)).unwrap(),
            staged,
        ];
        let places = shares.map(|share| share.bytes().as_ptr());
        let held = tier.held().blocks[&SampleId(1)].bytes().as_ptr();
        assert!(places[0] != places[1] && !places.contains(&held));
        assert!(!tier.settle(SampleId(1)), "there is no room");
        assert!(tier.give_up(SampleId(1)) && !tier.give_up(SampleId(1)));
        assert!(tier.share(SampleId(1)).is_none());
    }
}
