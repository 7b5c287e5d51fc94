//! The memory tier: samples in the part of the arena that is theirs. What is held is shared, never copied: a sample that
//! is staged from here is a second share of its block, and one that is evicted lives on until its last user is done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_core::ids::SampleId;

use super::{Found, Kept, Tier, TierError};
use crate::arena::{Arena, Block};
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
        self.blocks.get(&sample).is_some_and(|held| Arc::ptr_eq(held, block))
    }
}

impl MemoryTier {
    /// In the kept part of an arena, for so many bytes.
    pub(crate) fn new(arena: Arc<Arena>, capacity_bytes: u64) -> Self {
        Self { arena, capacity_bytes, held: Mutex::default() }
    }

    /// What it may hold.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// A tier of its own, for so many bytes in at most `samples` samples.
    pub fn with_capacity(bytes: u64, samples: u64) -> std::io::Result<Self> {
        Ok(Self::new(Arena::new(1, bytes, samples)?, bytes))
    }

    /// Drops all samples; those in other hands live on.
    pub(crate) fn clear(&self) {
        *self.held() = Held::default();
    }

    /// A share of a sample that is held.
    pub(crate) fn share(&self, sample: SampleId) -> Option<Arc<Block>> {
        self.held().blocks.get(&sample).cloned()
    }

    /// Holds a block: in the tier's part of the arena, or for the time being in the staging buffer ([`MemoryTier::settle`]).
    pub(crate) fn hold(&self, sample: SampleId, block: Arc<Block>) {
        self.held().insert(sample, block);
    }

    /// The trainer is done with a block that is held although it lies in the staging buffer: it moves to the tier's part of
    /// the arena. False where there is no room even now; then it is not held any more.
    pub(crate) fn settle(&self, sample: SampleId, block: &Arc<Block>) -> bool {
        if block.is_kept() || !self.held().is(sample, block) {
            return true;
        }
        let moved = self.arena.keep(block.bytes().len()).map(|mut filling| {
            filling.bytes_mut().copy_from_slice(block.bytes());
            filling.share()
        });
        let mut held = self.held();
        if !held.is(sample, block) {
            return true;
        }
        let there = moved.is_some();
        match moved {
            Some(moved) => held.insert(sample, moved),
            None => held.remove(sample),
        }
        there
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier for MemoryTier {
    /// What is in memory is of this job: nobody asks later what it was.
    fn keep(&self, sample: SampleId, data: &[u8], _: Option<Stamp>) -> Result<Kept, TierError> {
        if self.share(sample).is_some_and(|held| held.bytes() == data) {
            return Ok(Kept::Yes);
        }
        self.evict(sample);
        // The arena has room for what alignment costs; the budget is for samples.
        if self.held().bytes + data.len() as u64 > self.capacity_bytes {
            return Ok(Kept::NoRoom);
        }
        let Some(mut filling) = self.arena.keep(data.len()) else { return Ok(Kept::NoRoom) };
        filling.bytes_mut().copy_from_slice(data);
        self.hold(sample, filling.share());
        Ok(Kept::Yes)
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        let Some(block) = self.share(sample) else { return Ok(Found::NotHeld) };
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
        conformance::check(&mut |capacity| Box::new(MemoryTier::with_capacity(capacity.0, samples).unwrap()));
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
        let arena = Arena::new(64, 64, 0).unwrap();
        let tier = MemoryTier::new(Arc::clone(&arena), 64);
        let old = arena.keep(64).unwrap();
        let mut filling = arena.stage(3).unwrap();
        filling.bytes_mut().copy_from_slice(b"new");
        let block = filling.share();
        tier.hold(SampleId(1), Arc::clone(&block));
        drop(old);
        assert!(tier.settle(SampleId(1), &block));
        drop(block);
        assert!(arena.stage(64).is_some(), "the staging buffer is free again");
        assert_eq!(tier.share(SampleId(1)).unwrap().bytes(), b"new");
    }
}
