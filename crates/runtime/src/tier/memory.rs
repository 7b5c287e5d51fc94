//! The memory tier: samples in the part of the arena that is theirs. What is held is shared, never copied: a sample that
//! is staged from here is a second share of its block, and one that is evicted lives on until its last user is done.
//!
//! Nobody can write to that part of the arena. A sample that finds no room there, because evicted ones are still in use, is
//! held for the time being where samples lie for other ranks of the host, or in memory of its own, which nobody else ever
//! has: it moves when there is room.

use crate::sync::{Mutex, whole};
use std::collections::HashMap;
use std::sync::Arc;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::{Arrived, Found, Kept, Place, Secured, Shared, Stay, Tier, TierError};
use crate::arena::{Arena, Block, Keeps};
use crate::stamp::Stamp;

/// Samples in memory.
pub struct MemoryTier {
    arena: Arc<Arena>,
    capacity_bytes: u64,
    held: Mutex<Blocks>,
}

/// What is held, and how much that is.
#[derive(Default)]
struct Blocks {
    blocks: HashMap<SampleId, Arc<Block>>,
    bytes: u64,
}

impl Blocks {
    /// Gives what was held of the sample before.
    fn insert(&mut self, sample: SampleId, block: Arc<Block>) -> Option<Arc<Block>> {
        self.bytes += block.bytes().len() as u64;
        let old = self.blocks.insert(sample, block);
        self.bytes -= bytes_of(old.as_ref());
        old
    }

    fn remove(&mut self, sample: SampleId) -> Option<Arc<Block>> {
        let old = self.blocks.remove(&sample);
        self.bytes -= bytes_of(old.as_ref());
        old
    }

    /// What a sample takes of the budget.
    fn bytes_of(&self, sample: SampleId) -> u64 {
        bytes_of(self.blocks.get(&sample))
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

fn bytes_of(block: Option<&Arc<Block>>) -> u64 {
    block.map_or(0, |block| block.bytes().len() as u64)
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

    /// A sample that is held, or a copy of one that has not found its place yet.
    fn block(&self, sample: SampleId) -> Option<Arc<Block>> {
        let block = self.held().blocks.get(&sample).cloned()?;
        if block.is_kept() {
            return Some(block);
        }
        let moved = self.moved(sample, &block);
        Some(moved.unwrap_or_else(|| {
            if block.is_read_only() {
                block
            } else {
                block.copy(block.stay())
            }
        }))
    }

    /// A copy of a sample that found no room: what is held of it from before makes way.
    fn in_place_of(&self, sample: SampleId, data: &[u8]) -> Option<Arc<Block>> {
        let old = self.held().remove(sample);
        // Where nothing was held there was no room for what stays, either.
        let stay = old.as_ref().map_or(Stay::Passing, |old| old.stay());
        drop(old);
        self.copied(data, stay)
    }

    /// A copy where it is to stay. What lives here can stay elsewhere for the time being; a copy of what lives on another rank
    /// is not worth that.
    fn copied(&self, data: &[u8], stay: Stay) -> Option<Arc<Block>> {
        let kept = self.arena.keep_copy(data, stay);
        match stay {
            Stay::Lasting => kept.or_else(|| self.arena.leave_copy(data)),
            Stay::Passing => kept,
        }
    }

    /// Moves what is held to the tier's part of the arena, if there is room now.
    fn moved(&self, sample: SampleId, block: &Arc<Block>) -> Option<Arc<Block>> {
        let moved = self.arena.keep_copy(block.bytes(), block.stay())?;
        moved.publish(sample);
        let mut held = self.held();
        if held.is(sample, block) {
            held.insert(sample, Arc::clone(&moved));
        }
        Some(moved)
    }

    fn held(&self) -> crate::sync::MutexGuard<'_, Blocks> {
        whole(self.held.lock())
    }
}

impl Tier for MemoryTier {
    fn capacity(&self) -> Bytes {
        Bytes(self.capacity_bytes)
    }

    fn held(&self) -> Vec<SampleId> {
        let mut samples: Vec<SampleId> = self.held().blocks.keys().copied().collect();
        samples.sort_unstable();
        samples
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        let Some(block) = self.block(sample) else {
            return Ok(Found::NotHeld);
        };
        into.copy_from_slice(block.bytes());
        Ok(Found::Yes)
    }

    /// What is in memory is of this job: nobody asks later what it was.
    fn keep_secured(
        &self,
        sample: SampleId,
        arrived: Arrived<'_>,
        secured: Secured,
        _: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let block = match secured {
            Secured::Block(block) => Some(block),
            Secured::Nothing | Secured::Sum(_) => self.in_place_of(sample, arrived.bytes()),
        };
        let Some(block) = block else {
            return Ok(Kept::NoRoom);
        };
        let len = block.bytes().len() as u64;
        let mut held = self.held();
        // The arena has room for what alignment costs; the budget is for samples.
        if held.bytes - held.bytes_of(sample) + len > self.capacity_bytes {
            return Ok(Kept::NoRoom);
        }
        // Before anybody can evict it: what is on the board has a block.
        block.publish(sample);
        let old = held.insert(sample, block);
        drop(held);
        // After the lock: its memory is given back.
        drop(old);
        Ok(Kept::Yes)
    }

    fn evict(&self, sample: SampleId) {
        let old = self.held().remove(sample);
        drop(old);
    }

    fn share(&self, sample: SampleId) -> Shared {
        self.block(sample).map_or(Shared::NotHeld, Shared::Block)
    }

    fn divide(&self, passing: Bytes) {
        self.arena.divide(passing.0);
    }

    fn place(&self, bytes: Bytes, stay: Stay) -> Place {
        let place = self.arena.keep(bytes.0 as usize, stay);
        place.map_or(Place::Full, Place::Here)
    }

    /// What lies where it stays is sure; else there is a copy, there if there is room. A thread's buffer is sure as well.
    fn secure(&self, arrived: Arrived<'_>, stay: Stay) -> Secured {
        match arrived {
            Arrived::Block(block) if block.is_kept() => Secured::Block(Arc::clone(block)),
            Arrived::Block(block) => {
                let copy = self.copied(block.bytes(), stay);
                Secured::Block(copy.unwrap_or_else(|| block.copy(stay)))
            }
            Arrived::Buffer(bytes) => {
                let copy = self.copied(bytes, stay);
                copy.map_or(Secured::Nothing, Secured::Block)
            }
        }
    }

    fn settle(&self, sample: SampleId) -> bool {
        let Some(block) = self.held().unsettled(sample) else {
            return true;
        };
        self.moved(sample, &block).is_some()
    }

    fn give_up(&self, sample: SampleId) -> bool {
        let mut held = self.held();
        let is_unsettled = held.unsettled(sample).is_some();
        if is_unsettled {
            held.remove(sample);
        }
        is_unsettled
    }

    /// Samples in other hands live on.
    fn close(&self) {
        let all = std::mem::take(&mut *self.held());
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::conformance;

    #[test]
    fn conforms() {
        let samples = u64::from(conformance::catalog().len());
        let mut make = |capacity: Bytes| -> Box<dyn Tier> {
            Box::new(MemoryTier::with_capacity(capacity.0, samples).unwrap())
        };
        conformance::check(&mut make);
        conformance::check_closing(&mut make);
    }

    #[test]
    fn conforms_on_private_memory() {
        let samples = u64::from(conformance::catalog().len());
        conformance::check(&mut |capacity| {
            let keeps = Keeps {
                bytes: capacity.0,
                samples,
                largest: capacity.0,
            };
            Box::new(MemoryTier::new(Arena::private(1, keeps), capacity.0))
        });
    }

    /// Room for 64 bytes that are staged, and as many that are kept.
    fn small() -> (Arc<Arena>, MemoryTier) {
        let keeps = Keeps {
            bytes: 64,
            samples: 0,
            largest: 64,
        };
        let arena = Arena::new(64, keeps).unwrap();
        let tier = MemoryTier::new(Arc::clone(&arena), 64);
        (arena, tier)
    }

    fn keep_block(tier: &MemoryTier, sample: u32, block: &Arc<Block>) {
        let arrived = Arrived::Block(block);
        let secured = tier.secure(arrived, Stay::Lasting);
        let kept = tier.keep_secured(SampleId(sample), arrived, secured, None);
        assert_eq!(kept.unwrap(), Kept::Yes);
    }

    fn share(tier: &MemoryTier, sample: u32) -> Option<Arc<Block>> {
        match tier.share(SampleId(sample)) {
            Shared::Block(block) => Some(block),
            Shared::NotHeld => None,
            Shared::Never => unreachable!("samples in memory are shared"),
        }
    }

    #[test]
    fn an_evicted_sample_lives_on_in_the_hands_that_have_it() {
        let tier = MemoryTier::with_capacity(64, 1).unwrap();
        assert_eq!(tier.keep(SampleId(1), &[7; 64], None).unwrap(), Kept::Yes);
        let shared = share(&tier, 1).unwrap();
        tier.evict(SampleId(1));
        assert!(share(&tier, 1).is_none());
        assert_eq!(shared.bytes(), [7; 64]);
    }

    #[test]
    fn a_sample_that_found_no_room_moves_in_when_there_is_some() {
        let (arena, tier) = small();
        let old = arena.keep(64, Stay::Lasting).unwrap();
        let mut filling = arena.stage(3).unwrap();
        filling.bytes_mut().copy_from_slice(b"new");
        keep_block(&tier, 1, &filling.share());
        assert!(!share(&tier, 1).unwrap().is_kept());
        drop(old);
        assert!(tier.settle(SampleId(1)));
        assert!(
            arena.stage(64).is_some(),
            "the staging buffer is free again"
        );
        let shared = share(&tier, 1).unwrap();
        assert!(shared.is_kept());
        assert_eq!(shared.bytes(), b"new");
    }

    #[test]
    fn what_is_held_outside_of_its_place_nobody_else_has() {
        let (arena, tier) = small();
        let _old = arena.keep(64, Stay::Lasting).unwrap();
        let staged = arena.stage(3).unwrap().share();
        keep_block(&tier, 1, &staged);
        let shares = [share(&tier, 1).unwrap(), share(&tier, 1).unwrap(), staged];
        let places = shares.map(|share| share.bytes().as_ptr());
        let held = tier.held().blocks[&SampleId(1)].bytes().as_ptr();
        assert!(places[0] != places[1] && !places.contains(&held));
        assert!(!tier.settle(SampleId(1)), "there is no room");
        assert!(tier.give_up(SampleId(1)) && !tier.give_up(SampleId(1)));
        assert!(share(&tier, 1).is_none());
    }
}
