//! Where a rank keeps samples: the engine decides which, a tier only stores them. Misses and refusals are values: a tier
//! that cannot keep or find a sample costs a read of the source, never the job.
//!
//! [`Tier`] says all that a job can ask of a tier. A kind says nothing about what does not concern it: memory has no files,
//! a disk no places. So a new kind is one file beside these (and its line where the job opens its tiers), and passes
//! `conformance`.
//!
//! A job has a lock, and its trainer must not wait for a disk. Which calls may be made with that lock, or by the trainer,
//! stands at each; the others may write files, and only loader threads make them, without the lock. In debug builds
//! whoever must not write files says so (`forbid_writes`), and what writes them objects.

pub mod conformance;
pub mod disk;
mod guard;
mod memory;
mod nowhere;

use std::path::PathBuf;
use std::sync::Arc;

use foresee_core::engine::Read;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

pub use self::disk::{DiskError, DiskSpec, DiskTier, DiskView, HostSlot, OpenDisks};
pub(crate) use self::guard::{check_may_write, forbid_writes};
pub use self::memory::MemoryTier;
pub use self::nowhere::Nowhere;
use crate::arena::{Block, Filling};
use crate::stamp::Stamp;

/// Where a sample lies in a file, and what its bytes add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFile {
    /// Which file.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// Its checksum, as [`DiskTier::sum`] has it.
    pub sum: u64,
}

/// A store of samples of one rank.
pub trait Tier: Send + Sync {
    /// How many bytes of samples it may hold. At once: the job's lock may be held.
    fn capacity(&self) -> Bytes;

    /// Whether it may be allotted another capacity: nobody else counts on the one that it has.
    fn is_flexible(&self) -> bool {
        false
    }

    /// Gives it its capacity, as far as it is flexible, before anything is kept. What does not fit makes way. May write
    /// files.
    fn allot(&self, capacity: Bytes) {
        let _ = capacity;
    }

    /// All that is held, in the order of samples. Writes no file.
    fn held(&self) -> Vec<SampleId>;

    /// Reads a sample that is kept; `into` is as long as what was kept. For loader threads.
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError>;

    /// Keeps a sample, with what was made sure of before anybody else had its bytes ([`Tier::secure`]) and what it was in
    /// the source when it was read, where that can be told. For loader threads, unless nothing is written
    /// ([`Tier::writes_files`]); then it is done at once.
    fn keep_secured(
        &self,
        sample: SampleId,
        arrived: Arrived<'_>,
        secured: Secured,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError>;

    /// Drops a sample, whose room is free from then on, or as soon as its last reader is done; one that is not held is no
    /// error. At once: files are told later, by whoever keeps the next sample.
    fn evict(&self, sample: SampleId);

    /// Whether keeping a sample writes a file, which only loader threads may do, without the job's lock.
    fn writes_files(&self) -> bool {
        false
    }

    /// Whether it may hold what an earlier job kept: that is looked at in the source before it is served.
    fn outlasts_jobs(&self) -> bool {
        false
    }

    /// A sample that is held, where it lies; nobody can write there. At once.
    fn share(&self, sample: SampleId) -> Shared {
        let _ = sample;
        Shared::Never
    }

    /// Where a sample that is held lies in a file, in one piece, for other processes to read. At once.
    fn in_file(&self, sample: SampleId) -> Option<InFile> {
        let _ = sample;
        None
    }

    /// Of its room so many bytes are for samples that come and go, as far as it matters to it which these are. Before
    /// anything is kept; later it changes nothing.
    fn divide(&self, passing: Bytes) {
        let _ = passing;
    }

    /// Where a sample that is to be kept here is best read to. At once.
    fn place(&self, bytes: Bytes, stay: Stay) -> Place {
        let _ = (bytes, stay);
        Place::Anywhere
    }

    /// Whether a sample of so many bytes could not be kept at present, so that it need not be read for this tier alone. At
    /// once.
    fn is_closed_to(&self, bytes: Bytes) -> bool {
        let _ = bytes;
        false
    }

    /// Makes sure of a sample's bytes before the trainer has them, who may change them: what is kept is what came from the
    /// source, or a miss. By whoever read the sample, without the lock; writes no file.
    fn secure(&self, arrived: Arrived<'_>, stay: Stay) -> Secured {
        let _ = (arrived, stay);
        Secured::Nothing
    }

    /// Reads a sample for who must not wait for anything but the copy; false where it cannot be had so. At once.
    fn read_at_once(&self, sample: SampleId, into: &mut [u8]) -> Result<bool, TierError> {
        let _ = (sample, into);
        Ok(false)
    }

    /// Whether what it holds of a sample is surely what the sample is `now` in the source. Writes no file.
    fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        let _ = (sample, now);
        true
    }

    /// Whether what it holds of a sample from before can be compared with the source: what that was then is known, and every
    /// change since shows. At once.
    fn is_comparable(&self, sample: SampleId) -> bool {
        let _ = sample;
        true
    }

    /// The trainer is done with a sample that may have found no room where it should stay, and is held elsewhere for the
    /// time being: it moves there now. False where there is no room even now: then it is to be given up. At once.
    fn settle(&self, sample: SampleId) -> bool {
        let _ = sample;
        true
    }

    /// Holds a sample no more that found no room where it should stay; false where it has found some, or is not held. At
    /// once.
    fn give_up(&self, sample: SampleId) -> bool {
        let _ = sample;
        false
    }

    /// Lets go of all that other jobs may want, while samples may still be in the trainer's hands. Nothing is held from
    /// then on. May write files.
    fn close(&self) {}

    /// Keeps a sample whose bytes nobody else has.
    fn keep(&self, sample: SampleId, data: &[u8], stamp: Option<Stamp>) -> Result<Kept, TierError> {
        let arrived = Arrived::Buffer(data);
        self.keep_secured(sample, arrived, self.secure(arrived, Stay::Lasting), stamp)
    }
}

/// How long a sample is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until the job ends: this is its home.
    Lasting,
    /// Until something else is worth more: it is a copy.
    Passing,
}

impl Stay {
    /// How long what is read is to be kept: nobody else counts on a copy.
    pub fn of(read: &Read) -> Self {
        if read.shared {
            Self::Lasting
        } else {
            Self::Passing
        }
    }
}

/// A sample as it was read.
#[derive(Clone, Copy, Debug)]
pub enum Arrived<'a> {
    /// To a place in the job's memory.
    Block(&'a Arc<Block>),
    /// To a buffer of the thread.
    Buffer(&'a [u8]),
}

impl<'a> Arrived<'a> {
    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Block(block) => block.bytes(),
            Self::Buffer(bytes) => bytes,
        }
    }
}

/// What a tier made sure of.
#[derive(Debug)]
pub enum Secured {
    /// Of nothing.
    Nothing,
    /// Of bytes that nobody else can change.
    Block(Arc<Block>),
    /// Of what the bytes add up to: what is changed on its way is a miss later, never a wrong sample.
    Sum(u64),
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

/// What a tier gives of a sample without copying it.
#[derive(Debug)]
pub enum Shared {
    /// The sample.
    Block(Arc<Block>),
    /// The tier does not hold it (any more).
    NotHeld,
    /// Samples of this tier are read, not shared.
    Never,
}

/// Where a sample is read to that is to be kept.
#[derive(Debug)]
pub enum Place {
    /// Here: it stays where it is written.
    Here(Filling),
    /// Here, but there is no room at present.
    Full,
    /// It does not matter: the tier keeps a copy of its own.
    Anywhere,
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
