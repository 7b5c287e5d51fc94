//! The memory tier: samples in the part of the arena that is theirs. What is held is shared, never copied: a sample that
//! is staged from here is a second share of its block, and one that is evicted lives on until its last user is done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_core::ids::SampleId;

use super::{Found, Kept, Tier, TierError};
use crate::arena::{Arena, Block};

/// Samples in memory.
pub struct MemoryTier {
    arena: Arc<Arena>,
    held: Mutex<HashMap<SampleId, Arc<Block>>>,
}

impl MemoryTier {
    /// In the kept part of an arena.
    pub(crate) fn new(arena: Arc<Arena>) -> Self {
        Self { arena, held: Mutex::default() }
    }

    /// A tier of its own, for so many bytes in at most `samples` samples.
    pub fn with_capacity(bytes: u64, samples: u64) -> std::io::Result<Self> {
        Ok(Self::new(Arena::new(1, bytes, samples)?))
    }

    /// A share of a sample that is held.
    pub(crate) fn share(&self, sample: SampleId) -> Option<Arc<Block>> {
        self.held().get(&sample).cloned()
    }

    /// Holds a block: in the tier's part of the arena, or for the time being in the staging buffer ([`MemoryTier::settle`]).
    pub(crate) fn hold(&self, sample: SampleId, block: Arc<Block>) {
        self.held().insert(sample, block);
    }

    /// The trainer is done with a block that is held although it lies in the staging buffer: it moves to the tier's part of
    /// the arena. False where there is no room even now; then it is not held any more.
    pub(crate) fn settle(&self, sample: SampleId, block: &Arc<Block>) -> bool {
        let is_this =
            |held: &HashMap<SampleId, Arc<Block>>| held.get(&sample).is_some_and(|held| Arc::ptr_eq(held, block));
        if block.is_kept() || !is_this(&self.held()) {
            return true;
        }
        let moved = self.arena.keep(block.bytes().len()).map(|mut filling| {
            filling.bytes_mut().copy_from_slice(block.bytes());
            filling.share()
        });
        let mut held = self.held();
        if !is_this(&held) {
            return true;
        }
        let there = moved.is_some();
        match moved {
            Some(moved) => held.insert(sample, moved),
            None => held.remove(&sample),
        };
        there
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<SampleId, Arc<Block>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier for MemoryTier {
    fn keep(&self, sample: SampleId, data: &[u8]) -> Result<Kept, TierError> {
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
        self.held().remove(&sample);
    }

    fn held(&self) -> Vec<SampleId> {
        let mut samples: Vec<SampleId> = self.held().keys().copied().collect();
        samples.sort_unstable();
        samples
    }
}
