//! Where a job's samples are kept: the arena, and the tiers by their number.

use std::sync::Arc;

use foresee_core::engine::Read;
use foresee_core::ids::{SampleId, TierId};

use crate::arena::{Arena, Filling};
use crate::tier::{DiskTier, MemoryTier, Tier};

/// One tier.
pub(super) enum Store {
    /// Switched off.
    Nothing,
    Memory(MemoryTier),
    /// With what it may hold.
    Disk(Box<DiskTier>, u64),
}

impl Store {
    /// What it may hold.
    pub(super) fn capacity(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Memory(memory) => memory.capacity_bytes(),
            Self::Disk(_, capacity) => *capacity,
        }
    }
}

/// The arena and the tiers.
pub(super) struct Stores {
    pub(super) arena: Arc<Arena>,
    /// By number, from tier 1 on.
    pub(super) tiers: Vec<Store>,
}

impl Stores {
    pub(super) fn store(&self, tier: TierId) -> &Store {
        &self.tiers[tier.index() - 1]
    }

    fn tier(&self, tier: TierId) -> Option<&dyn Tier> {
        match self.store(tier) {
            Store::Nothing => None,
            Store::Memory(memory) => Some(memory),
            Store::Disk(disk, _) => Some(disk.as_ref()),
        }
    }

    /// Drops a sample.
    pub(super) fn evict(&self, sample: SampleId, tier: TierId) {
        if let Some(tier) = self.tier(tier) {
            tier.evict(sample);
        }
    }

    /// All that the tiers hold.
    pub(super) fn held(&self) -> Vec<(SampleId, TierId)> {
        let numbers = (1..=self.tiers.len()).map(|number| TierId(number as u8));
        let held = |number| self.tier(number).map(|tier| (tier.held(), number));
        numbers.filter_map(held).flat_map(|(held, tier)| held.into_iter().map(move |sample| (sample, tier))).collect()
    }

    /// A place for a sample that is staged: where it is to stay, if it stays in memory, else in the staging buffer. When
    /// nothing else is staged it gets one in any case.
    pub(super) fn place(&self, read: &Read, starving: bool) -> Option<Filling> {
        let len = read.bytes.0 as usize;
        let kept = if self.stays_in_memory(read) { self.arena.keep(len) } else { None };
        kept.or_else(|| self.arena.stage(len)).or_else(|| starving.then(|| self.arena.own(len)))
    }

    /// A place for a sample that is read for a tier only.
    pub(super) fn place_for_tier(&self, read: &Read) -> Option<Filling> {
        let len = read.bytes.0 as usize;
        if self.stays_in_memory(read) { self.arena.keep(len) } else { Some(self.arena.own(len)) }
    }

    fn stays_in_memory(&self, read: &Read) -> bool {
        read.keep.is_some_and(|tier| matches!(self.store(tier), Store::Memory(_)))
    }
}
