//! Keeps samples on a local disk: in few large files that are allocated ahead, with an index that survives the process.
//!
//! A sample is written to a free range first and noted in the index after, so what the index says was written; and since
//! nothing is synced, every read is checked against the checksum that was noted. What does not match is a miss. A disk that
//! is full, failing or read-only makes the tier refuse samples for a while, and never ends a job.
//!
//! The index in memory is behind a mutex that nobody holds while a file is read or written: to find or to evict a sample
//! takes no longer than a look into a map. Its log on disk has a mutex of its own, held while it is written. An eviction is
//! only remembered; whoever keeps the next sample notes it, before anything is put to where the evicted one lay.

mod entry;
mod error;
mod folder;
mod gate;
mod index;
mod log;
mod noting;
mod opening;
mod reach;
mod restore;
mod segments;
mod shared;
mod slot;
mod slots;
mod survey;
#[cfg(test)]
mod tests;
mod thin;
mod view;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, whole};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use rustix::io::Errno;
use twox_hash::XxHash3_64;

pub use self::error::DiskError;
pub use self::shared::OpenDisks;
pub use self::slots::HostSlot;
pub(crate) use self::survey::Tiers;
pub use self::view::DiskView;

use self::entry::Entry;
use self::folder::{Folder, Lock};
use self::gate::Gate;
use self::index::Index;
use self::log::Log;
use self::segments::Segments;
use super::{Arrived, Found, InFile, Kept, Secured, Stay, Tier, TierError};
use crate::extents::Extent;
use crate::stamp::Stamp;

/// 1 GiB: a tier of terabytes has some thousand files, and a disk is filled in steps that are small beside it.
const SEGMENT_BYTES: u64 = 1 << 30;

/// What a disk tier is to be.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// The folder that the user chose; it is created if absent, and refused if it holds anything that is not ours.
    pub folder: PathBuf,
    /// The sub-folder for this dataset and slot of the host.
    pub name: String,
    /// Sub-folders that no rank has any more, which this one has beside its own.
    pub orphans: Vec<String>,
    /// Digest of the dataset: samples of another one are not brought back.
    pub dataset: [u8; 16],
    /// Sizes of the dataset's samples.
    pub sizes: Arc<Catalog>,
    /// How many bytes of samples may be kept.
    pub capacity: Bytes,
    /// So many at most, where it may be allotted more than that later ([`Tier::allot`]).
    pub capacity_max: Bytes,
    /// How many bytes of the file system must stay free.
    pub floor: Bytes,
    /// Whether somebody else may own the folder or write to it.
    pub trusted: bool,
}

impl DiskSpec {
    fn folder(&self) -> Folder {
        Folder {
            path: self.folder.clone(),
            trusted: self.trusted,
        }
    }
}

/// What a disk tier holds and what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes of all samples that are held.
    pub held: Bytes,
    /// How often a sample was found damaged and dropped.
    pub corrupt: u64,
}

/// Samples on a local disk, in one sub-folder.
#[derive(Debug)]
pub struct DiskTier {
    label: String,
    /// What it has space for. Where less may be held, the disk is given back what is free ([`DiskTier::thin`]).
    capacity: Bytes,
    segments: Segments,
    /// The index as it is on disk. Locked before `index`, never after.
    log: Mutex<Log>,
    /// Nobody who has it reads or writes a file.
    index: Mutex<Index>,
    /// Signalled when the last reader of an evicted sample is done.
    left: Condvar,
    /// Held while a segment is allocated.
    growth: Mutex<()>,
    growing: Gate,
    writing: Gate,
    corrupt: AtomicU64,
    _lock: Lock,
}

impl DiskTier {
    /// Opens a tier, with what an earlier process kept of the same dataset.
    pub fn open(spec: &DiskSpec) -> Result<Self, DiskError> {
        let largest = spec
            .sizes
            .samples()
            .map(|sample| spec.sizes.size(sample).0)
            .max()
            .unwrap_or(0);
        Self::open_in_segments(spec, SEGMENT_BYTES.max(largest))
    }

    /// What is free on a folder's file system, if that can be told.
    pub fn free_space(folder: &Path) -> Option<Bytes> {
        segments::free(folder).ok()
    }

    /// Where a folder is: a number that processes of this host have in common which mean the same one, and no others.
    pub fn place(folder: &Path) -> Option<u64> {
        reach::place(folder)
    }

    /// The checksum of a sample.
    pub fn sum(data: &[u8]) -> u64 {
        XxHash3_64::oneshot(data)
    }

    /// The checksum that was made sure of, or that the bytes have now.
    fn secured_sum(data: &[u8], secured: &Secured) -> u64 {
        match secured {
            Secured::Sum(sum) => *sum,
            Secured::Nothing | Secured::Block(_) => Self::sum(data),
        }
    }

    /// Keeps a sample by the checksum that it had before others could change it.
    pub fn keep_summed(
        &self,
        sample: SampleId,
        data: &[u8],
        sum: u64,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let len = data.len() as u64;
        if self.restamp(sample, len, sum, stamp) {
            return Ok(Kept::Yes);
        }
        if !self.writing.is_open(Instant::now()) {
            return Ok(Kept::NoRoom);
        }
        let Some(parts) = self.reserve(sample, len) else {
            return Ok(Kept::NoRoom);
        };
        let entry = Entry::new(parts, sum);
        // What lay there before is noted as gone first: a crash in between costs it, and is not taken for damage.
        let written = self
            .note_evictions()
            .and_then(|()| self.check_thin(len))
            .and_then(|()| self.segments.write(entry.parts(), data));
        if let Err(cause) = written {
            self.index().free(&entry);
            return self.refuse(sample, cause);
        }
        if let Err(cause) = self.admit(sample, entry, stamp) {
            return self.refuse(sample, cause);
        }
        self.writing.reopen();
        self.give_back_freed();
        Ok(Kept::Yes)
    }

    /// Whether it holds so many bytes of a sample that have this checksum.
    fn holds(&self, sample: SampleId, len: u64, sum: u64) -> bool {
        self.index().holds(sample, len, sum)
    }

    /// How many bytes it holds of a sample; none where it does not.
    fn len_of(&self, sample: SampleId) -> Option<u64> {
        self.index().get(sample).map(|held| held.len())
    }

    /// What a sample that it holds was in the source.
    fn stamp_of(&self, sample: SampleId) -> Option<Stamp> {
        self.index().stamp(sample)
    }

    /// What it holds and what went wrong.
    pub fn stats(&self) -> DiskStats {
        DiskStats {
            held: Bytes(self.index().held()),
            corrupt: self.corrupt(),
        }
    }

    /// How often a sample was found damaged and dropped.
    pub fn corrupt(&self) -> u64 {
        self.corrupt.load(Ordering::Relaxed)
    }

    /// Why it keeps less than it should, if it does.
    pub fn degraded(&self) -> Option<String> {
        self.growing.reason().or_else(|| self.writing.reason())
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        locked(&self.index)
    }

    /// Takes ranges for a sample. Its old bytes make way where they must, and only where that helps.
    fn reserve(&self, sample: SampleId, len: u64) -> Option<Vec<Extent>> {
        if len > self.capacity.0 {
            return None;
        }
        self.take(len).or_else(|| {
            let mut index = self.index();
            let old = index.get(sample)?.len();
            if index.free_soon() + old < len {
                return None;
            }
            index.evict(sample);
            drop(index);
            self.take(len)
        })
    }

    /// One range if there is one, or can be after growing; then several; then those of which the last readers are about
    /// to be done.
    fn take(&self, len: u64) -> Option<Vec<Extent>> {
        loop {
            if let Some(offset) = self.index().extents.take(len) {
                return Some(vec![Extent { offset, len }]);
            }
            if !self.grow(len) {
                break;
            }
        }
        let mut index = self.index();
        while index.extents.free() < len && index.free_soon() >= len {
            index = whole(self.left.wait(index));
        }
        index.extents.take_parts(len)
    }

    /// Allocates the next segment, unless another thread has just done so; whether another look for `len` bytes is due.
    fn grow(&self, len: u64) -> bool {
        let _one_at_a_time = locked(&self.growth);
        if self.index().extents.largest() >= len {
            return true;
        }
        let Some(next) = self
            .segments
            .next()
            .filter(|_| self.growing.is_open(Instant::now()))
        else {
            return false;
        };
        let thin = self.index().remembers_freed();
        match self.segments.allocate(next, thin) {
            Ok(range) => {
                self.growing.reopen();
                self.index().extents.give_back(range.offset, range.len);
                true
            }
            Err(cause) => {
                self.growing.close(
                    Instant::now(),
                    format!("{}: cannot grow: {cause}", self.label),
                );
                false
            }
        }
    }

    fn refuse(&self, sample: SampleId, cause: io::Error) -> Result<Kept, TierError> {
        if !is_refusal(&cause) {
            return Err(self.error("keep", sample, cause));
        }
        self.writing.close(
            Instant::now(),
            format!("{}: cannot keep sample {sample}: {cause}", self.label),
        );
        Ok(Kept::NoRoom)
    }

    /// Drops a sample whose bytes are not what they were, unless it has been replaced since.
    fn drop_corrupt(&self, sample: SampleId, entry: &Arc<Entry>) {
        let mut index = self.index();
        if index
            .get(sample)
            .is_some_and(|held| Arc::ptr_eq(held, entry))
        {
            self.corrupt.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("{}: sample {sample} is damaged: dropped", self.label);
            index.evict(sample);
        }
    }

    /// Reads and checks; none where the bytes are not what they were.
    fn fetch(&self, entry: &Entry, into: &mut [u8]) -> io::Result<Option<()>> {
        match self.segments.read(entry.parts(), into) {
            Ok(()) => Ok((Self::sum(into) == entry.sum).then_some(())),
            Err(cause) if is_damage(&cause) => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    fn done_reading(&self, entry: Arc<Entry>) {
        if let Some(entry) = Arc::into_inner(entry) {
            self.index().leave(&entry);
            self.left.notify_all();
        }
    }

    fn error(&self, doing: &str, sample: SampleId, cause: io::Error) -> TierError {
        TierError {
            tier: self.label.clone(),
            what: format!("{doing} sample {sample}"),
            cause,
        }
    }
}

impl Tier for DiskTier {
    fn capacity(&self) -> Bytes {
        self.capacity
    }

    fn held(&self) -> Vec<SampleId> {
        self.index().samples()
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        let Some(entry) = self.index().get(sample).cloned() else {
            return Ok(Found::NotHeld);
        };
        let fetched = if entry.len() == into.len() as u64 {
            self.fetch(&entry, into)
        } else {
            let why = format!(
                "{} bytes are held, {} are asked for",
                entry.len(),
                into.len()
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        };
        if matches!(fetched, Ok(None)) {
            self.drop_corrupt(sample, &entry);
        }
        self.done_reading(entry);
        match fetched {
            Ok(found) => Ok(found.map_or(Found::NotHeld, |()| Found::Yes)),
            Err(cause) => Err(self.error("read", sample, cause)),
        }
    }

    fn keep_secured(
        &self,
        sample: SampleId,
        arrived: Arrived<'_>,
        secured: Secured,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let data = arrived.bytes();
        self.keep_summed(sample, data, Self::secured_sum(data, &secured), stamp)
    }

    fn evict(&self, sample: SampleId) {
        self.index().evict(sample);
    }

    fn writes_files(&self) -> bool {
        true
    }

    fn outlasts_jobs(&self) -> bool {
        true
    }

    /// None of a sample that lies in several pieces.
    fn in_file(&self, sample: SampleId) -> Option<InFile> {
        let index = self.index();
        let entry = index.get(sample)?;
        let [part] = entry.parts() else {
            return None;
        };
        let (path, offset) = self.segments.in_file(*part)?;
        let sum = entry.sum;
        Some(InFile { path, offset, sum })
    }

    fn is_closed_to(&self, bytes: Bytes) -> bool {
        bytes > self.capacity || self.degraded().is_some()
    }

    fn secure(&self, arrived: Arrived<'_>, _: Stay) -> Secured {
        Secured::Sum(Self::sum(arrived.bytes()))
    }

    /// False where the index is in use, or where the sample is not held or not whole, of which nothing is noted.
    fn read_at_once(&self, sample: SampleId, into: &mut [u8]) -> Result<bool, TierError> {
        let Ok(index) = self.index.try_lock() else {
            return Ok(false);
        };
        let Some(entry) = index
            .get(sample)
            .filter(|entry| entry.len() == into.len() as u64)
            .cloned()
        else {
            return Ok(false);
        };
        drop(index);
        let fetched = self.fetch(&entry, into);
        self.done_reading(entry);
        match fetched {
            Ok(found) => Ok(found.is_some()),
            Err(cause) => Err(self.error("read", sample, cause)),
        }
    }

    fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        self.index()
            .stamp(sample)
            .is_some_and(|then| then.still_holds(now))
    }

    fn is_comparable(&self, sample: SampleId) -> bool {
        self.stamp_of(sample).is_some_and(|then| then.trusted)
    }
}

/// Whether a failed write only says that nothing can be kept there now.
fn is_refusal(cause: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(
        cause.kind(),
        StorageFull | QuotaExceeded | ReadOnlyFilesystem | FileTooLarge
    ) || is_damage(cause)
}

/// Whether a failed read only says that the bytes are lost.
fn is_damage(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::UnexpectedEof
        || cause.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// A thread that panicked elsewhere does not end the others.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    whole(mutex.lock())
}
