//! Where a job's samples are kept: the arena, and the tiers by their number.

use std::sync::Arc;

use foresee_core::engine::Read;
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::units::Bytes;

use crate::arena::{Arena, Filling};
use crate::pool::{Budget, Pool};
use crate::source::Source;
use crate::tier::{Place, Stay, Tier};
use crate::transport::Payload;

/// Memory of the process's budget for kept samples; given back when it is dropped.
pub(super) struct Grant {
    pool: Arc<Pool>,
    budget: Budget,
    pub(super) bytes: u64,
}

impl Grant {
    /// As much as is left of a memory tier for all jobs that share it, and as the dataset needs.
    pub(super) fn new(pool: &Arc<Pool>, budget: Budget, wanted: u64, capacity: u64) -> Self {
        let bytes = pool.grant(&budget, wanted.min(capacity), capacity);
        if bytes < wanted.min(capacity) {
            tracing::warn!(
                "the memory tier has {bytes} B left of {capacity} B: other jobs with the same configuration have the rest"
            );
        }
        Self {
            pool: Arc::clone(pool),
            budget,
            bytes,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.pool.take_back(&self.budget, self.bytes);
    }
}

/// Does what may write a tier's files on a thread of its own, and waits for it. To open and to close tiers is asked for by
/// whoever has the job, mostly the trainer, whose thread writes no file of a tier. Without a thread to be had it does.
#[cfg(not(feature = "shuttle"))]
pub(super) fn aside<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let mut waiting = Some(act);
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("foresee-files".to_owned());
        let act = || waiting.take().map(|act| act());
        let started = thread.spawn_scoped(scope, act).ok()?;
        started
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    match (done, waiting) {
        (Some(done), _) => done,
        (None, Some(act)) => act(),
        (None, None) => unreachable!("it was done, or it waits"),
    }
}

/// The same on a thread that schedules know.
#[cfg(feature = "shuttle")]
pub(super) fn aside<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let done = crate::sync::thread::scope(|scope| scope.spawn(act).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The arena and the tiers.
pub(super) struct Stores {
    pub(super) arena: Arc<Arena>,
    /// By number, from tier 1 on.
    pub(super) tiers: Vec<Box<dyn Tier>>,
}

impl Stores {
    pub(super) fn tier(&self, tier: TierId) -> &dyn Tier {
        &*self.tiers[tier.index() - 1]
    }

    /// What each tier can hold.
    pub(super) fn capacities(&self) -> Vec<u64> {
        self.tiers.iter().map(|tier| tier.capacity().0).collect()
    }

    /// Gives each tier its capacity, of which the staging buffer's comes first. What does not fit makes way.
    pub(super) fn allot(&self, capacities: &[Bytes]) {
        let flexible = || {
            let tiers = self.tiers.iter().zip(capacities.iter().skip(1));
            tiers.filter(|(tier, _)| tier.is_flexible())
        };
        if flexible().next().is_some() {
            aside(|| flexible().for_each(|(tier, capacity)| tier.allot(*capacity)));
        }
    }

    /// Lets go of what other jobs may want.
    pub(super) fn close(&self) {
        let close = || self.tiers.iter().for_each(|tier| tier.close());
        if let Some(neighbours) = self.arena.neighbours() {
            neighbours.leave();
        }
        // Most jobs have memory only, and need no thread to let go of it.
        if self.tiers.iter().any(|tier| tier.writes_files()) {
            aside(close);
        } else {
            close();
        }
    }

    /// Of the room of each tier, the staging buffer before them, so much is for copies.
    pub(super) fn divide(&self, spare: &[Bytes]) {
        for (tier, spare) in self.tiers.iter().zip(spare.iter().skip(1)) {
            tier.divide(*spare);
        }
    }

    /// A sample that lies in the memory of another rank of this host.
    pub(super) fn near(&self, rank: Rank, sample: SampleId, bytes: Bytes) -> Option<Payload> {
        let block = self.arena.near(rank, sample, bytes.0 as usize)?;
        Some(Payload::of_block(block))
    }

    /// All that the tiers hold.
    pub(super) fn held(&self) -> Vec<(SampleId, TierId)> {
        self.numbered()
            .flat_map(|(number, tier)| {
                let held = tier.held().into_iter();
                held.map(move |sample| (sample, number))
            })
            .collect()
    }

    /// Drops what the tiers hold from before and cannot be compared with the source, since whoever gave it to a tier did not
    /// know what it was in the source, or since it had been changed a moment before: it would have to be read again wherever
    /// it is, so nobody is to count on it.
    pub(super) fn drop_incomparable(&self, source: &dyn Source) {
        let held = self.held();
        let is_comparable = |(sample, tier): &(SampleId, TierId)| {
            let tier = self.tier(*tier);
            !tier.outlasts_jobs() || tier.is_comparable(*sample)
        };
        let first = held.iter().find(|one| !is_comparable(one));
        // What cannot change need not be compared.
        if first.is_none_or(|(sample, _)| matches!(source.look(*sample), Ok(None))) {
            return;
        }
        for (sample, tier) in held.into_iter().filter(|one| !is_comparable(one)) {
            self.tier(tier).evict(sample);
        }
    }

    /// A sample that may have found no room where it should stay gets it now. Returns the tier that has no room.
    pub(super) fn settle(&self, sample: SampleId) -> Option<TierId> {
        self.numbered()
            .find(|(_, tier)| !tier.settle(sample))
            .map(|(number, _)| number)
    }

    /// A place for a sample that is staged: where it is to stay, if it stays in memory, else in the staging buffer. When
    /// nothing else is staged it gets one in any case.
    pub(super) fn place(&self, read: &Read, starving: bool) -> Option<Filling> {
        let len = read.bytes.0 as usize;
        let kept = self.place_to_stay(read);
        kept.or_else(|| self.arena.stage(len))
            .or_else(|| starving.then(|| self.arena.own(len)))
    }

    /// A place for a sample that stays where it is read to.
    pub(super) fn place_to_stay(&self, read: &Read) -> Option<Filling> {
        match self.tier(read.keep?).place(read.bytes, Stay::of(read)) {
            Place::Here(filling) => Some(filling),
            Place::Full | Place::Anywhere => None,
        }
    }

    /// A place for a sample that is read for a tier only.
    pub(super) fn place_for_tier(&self, read: &Read) -> Option<Filling> {
        let anywhere = || Some(self.arena.own(read.bytes.0 as usize));
        let Some(tier) = read.keep.map(|tier| self.tier(tier)) else {
            return anywhere();
        };
        match tier.place(read.bytes, Stay::of(read)) {
            Place::Here(filling) => Some(filling),
            Place::Full => None,
            // What a full disk cannot keep need not be read for it.
            Place::Anywhere if tier.is_closed_to(read.bytes) => None,
            Place::Anywhere => anywhere(),
        }
    }

    fn numbered(&self) -> impl Iterator<Item = (TierId, &dyn Tier)> {
        let numbers = (1..).map(TierId);
        numbers.zip(self.tiers.iter().map(|tier| &**tier))
    }
}
