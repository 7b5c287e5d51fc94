//! Where a rank keeps samples: the engine decides which, a tier only stores them. Misses and refusals are values: a tier
//! that cannot keep or find a sample costs a read of the source, never the job.

pub mod conformance;
pub mod disk;
mod memory;

use foresee_core::ids::SampleId;

pub use self::disk::{DiskError, DiskSpec, DiskTier, DiskView, OpenDisks};
pub use self::memory::MemoryTier;
use crate::stamp::Stamp;

/// A store of samples of one rank.
pub trait Tier: Send + Sync {
    /// Keeps a copy of a sample, and what the sample was in the source when it was read, where that can be told.
    fn keep(&self, sample: SampleId, data: &[u8], stamp: Option<Stamp>) -> Result<Kept, TierError>;

    /// Reads a sample that is kept; `into` is as long as what was kept.
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError>;

    /// Drops a sample; one that is not held is no error.
    fn evict(&self, sample: SampleId);

    /// All that is held, in the order of samples.
    fn held(&self) -> Vec<SampleId>;
}

/// What became of a sample that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is held.
    Yes,
    /// There is no room for it; nothing changed.
    NoRoom,
}

/// What a look into a tier gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The sample's bytes, checked.
    Yes,
    /// The tier does not hold it (any more).
    NotHeld,
}

/// What went wrong in a tier.
#[derive(Debug, thiserror::Error)]
#[error("{tier}: {what}: {cause}")]
pub struct TierError {
    /// Which tier: what it is made of, and where.
    pub tier: String,
    /// What was being done.
    pub what: String,
    /// Why it failed.
    pub cause: std::io::Error,
}
