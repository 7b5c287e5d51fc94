//! Where a job's samples are kept: the arena, and the tiers by their number.

use crate::sync::{RwLock, whole};
use std::sync::Arc;

use foresee_config::Config;
use foresee_core::engine::Read;
use foresee_core::ids::{SampleId, TierId};

use crate::arena::{Arena, Filling};
use crate::pool::Pool;
use crate::source::ReadError;
use crate::stamp::Stamp;
use crate::tier::{DiskView, Found, Kept, MemoryTier, Tier, TierError};

/// One tier.
pub(super) enum Store {
    /// Switched off.
    Nothing,
    Memory(MemoryTier),
    /// With what it may hold.
    Disk(Box<Closable>, u64),
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

/// A tier on disk that can be let go of while samples of the job are still in the trainer's hands: its folder is then free
/// for the next job.
pub(super) struct Closable(RwLock<Option<Arc<DiskView>>>);

impl Closable {
    pub(super) fn new(disk: DiskView) -> Self {
        Self(RwLock::new(Some(Arc::new(disk))))
    }

    fn disk(&self) -> Option<Arc<DiskView>> {
        whole(self.0.read()).clone()
    }

    /// Lets go of the folder; where a thread is in it, the end of its read or write does.
    fn close(&self) {
        let disk = whole(self.0.write()).take();
        // After the lock: nobody waits for files to be closed.
        drop(disk);
    }

    /// Reads a sample where nothing has to be waited for but the copy; false where it cannot be had so.
    pub(super) fn read_at_once(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> Result<bool, ReadError> {
        self.disk()
            .map_or(Ok(false), |disk| Ok(disk.read_at_once(sample, into)?))
    }

    /// Whether what it holds of a sample is what the sample is `now`.
    pub(super) fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        self.disk().is_some_and(|disk| disk.is_current(sample, now))
    }

    /// Keeps a sample whose checksum is known ([`DiskView::keep_summed`]).
    pub(super) fn keep_summed(
        &self,
        sample: SampleId,
        data: &[u8],
        sum: u64,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        self.disk().map_or(Ok(Kept::NoRoom), |disk| {
            disk.keep_summed(sample, data, sum, stamp)
        })
    }

    /// Whether so many bytes cannot be kept at present.
    fn is_closed_to(&self, bytes: u64) -> bool {
        self.disk().is_none_or(|disk| disk.is_closed_to(bytes))
    }
}

impl Tier for Closable {
    fn keep(&self, sample: SampleId, data: &[u8], stamp: Option<Stamp>) -> Result<Kept, TierError> {
        self.disk()
            .map_or(Ok(Kept::NoRoom), |disk| disk.keep(sample, data, stamp))
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        self.disk()
            .map_or(Ok(Found::NotHeld), |disk| disk.read(sample, into))
    }

    fn evict(&self, sample: SampleId) {
        if let Some(disk) = self.disk() {
            disk.evict(sample);
        }
    }

    fn held(&self) -> Vec<SampleId> {
        self.disk().map_or_else(Vec::new, |disk| disk.held())
    }
}

/// Memory of the process's budget for kept samples; given back when it is dropped.
pub(super) struct Grant {
    pool: Arc<Pool>,
    budget: Config,
    pub(super) bytes: u64,
}

impl Grant {
    /// As much as is left of a memory tier for all jobs of its configuration, and as the dataset needs.
    pub(super) fn new(pool: &Arc<Pool>, budget: &Config, wanted: u64, capacity: u64) -> Self {
        let bytes = pool.grant(budget, wanted.min(capacity), capacity);
        if bytes < wanted.min(capacity) {
            tracing::warn!(
                "the memory tier has {bytes} B left of {capacity} B: other jobs with the same configuration have the rest"
            );
        }
        Self {
            pool: Arc::clone(pool),
            budget: budget.clone(),
            bytes,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.pool.take_back(&self.budget, self.bytes);
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

    /// What each tier can hold.
    pub(super) fn capacities(&self) -> Vec<u64> {
        self.tiers.iter().map(Store::capacity).collect()
    }

    fn tier(&self, tier: TierId) -> Option<&dyn Tier> {
        match self.store(tier) {
            Store::Nothing => None,
            Store::Memory(memory) => Some(memory),
            Store::Disk(disk, _) => Some(disk.as_ref()),
        }
    }

    /// Lets go of what other jobs may want.
    pub(super) fn close(&self) {
        for store in &self.tiers {
            match store {
                Store::Disk(disk, _) => disk.close(),
                Store::Memory(memory) => memory.clear(),
                Store::Nothing => {}
            }
        }
    }

    /// Drops a sample.
    pub(super) fn evict(&self, sample: SampleId, tier: TierId) {
        if let Some(tier) = self.tier(tier) {
            tier.evict(sample);
        }
    }

    /// Whether a memory tier holds a sample no more because it has no room for it.
    pub(super) fn gives_up(&self, sample: SampleId, tier: TierId) -> bool {
        match self.store(tier) {
            Store::Memory(memory) => memory.give_up(sample),
            Store::Nothing | Store::Disk(..) => false,
        }
    }

    /// All that the tiers hold.
    pub(super) fn held(&self) -> Vec<(SampleId, TierId)> {
        let numbers = (1..=self.tiers.len()).map(|number| TierId(number as u8));
        let held = |number| self.tier(number).map(|tier| (tier.held(), number));
        numbers
            .filter_map(held)
            .flat_map(|(held, tier)| held.into_iter().map(move |sample| (sample, tier)))
            .collect()
    }

    /// A place for a sample that is staged: where it is to stay, if it stays in memory, else in the staging buffer. When
    /// nothing else is staged it gets one in any case.
    pub(super) fn place(&self, read: &Read, starving: bool) -> Option<Filling> {
        let len = read.bytes.0 as usize;
        let kept = self.place_to_stay(read);
        kept.or_else(|| self.arena.stage(len))
            .or_else(|| starving.then(|| self.arena.own(len)))
    }

    /// A place for a sample that stays in memory.
    pub(super) fn place_to_stay(&self, read: &Read) -> Option<Filling> {
        if self.stays_in_memory(read) {
            self.arena.keep(read.bytes.0 as usize)
        } else {
            None
        }
    }

    /// A place for a sample that is read for a tier only.
    pub(super) fn place_for_tier(&self, read: &Read) -> Option<Filling> {
        let len = read.bytes.0 as usize;
        match read.keep.map(|tier| self.store(tier)) {
            Some(Store::Memory(_)) => self.arena.keep(len),
            // What a full disk cannot keep need not be read for it.
            Some(Store::Disk(disk, _)) if disk.is_closed_to(read.bytes.0) => None,
            _ => Some(self.arena.own(len)),
        }
    }

    fn stays_in_memory(&self, read: &Read) -> bool {
        read.keep
            .is_some_and(|tier| matches!(self.store(tier), Store::Memory(_)))
    }
}
