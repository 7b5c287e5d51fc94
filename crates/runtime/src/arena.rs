//! The memory of a job: one mapping, of which the first part is the staging buffer's ring and the rest belongs to the
//! memory tier. Samples are read into it by loader threads and handed to the trainer in place.
//!
//! A [`Block`] is one sample's place. It is written by one thread through [`Filling`], then shared and read-only, and its
//! space returns when the last share is dropped. A sample whose place the ring cannot give, because the trainer holds
//! on to what it was given, gets memory of its own: it is always better to go on than to wait for ever.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::extents::Extents;
use crate::ring::Ring;

/// Places begin at multiples of this: a cache line, so that two threads never write to the same one.
const ALIGN: u64 = 64;

/// The memory of a job.
pub(crate) struct Arena {
    memory: MmapRaw,
    /// Where the memory tier's part begins.
    kept_from: u64,
    free: Mutex<Free>,
}

struct Free {
    ring: Ring,
    kept: Extents,
}

/// Where a block lies.
#[derive(Debug)]
enum Place {
    Ring { offset: u64, ticket: u64 },
    Kept { offset: u64 },
    Own(Box<[u8]>),
}

impl Arena {
    /// Room for so many staged bytes, and for so many kept ones in at most `samples` samples.
    pub(crate) fn new(staging_bytes: u64, kept_bytes: u64, samples: u64) -> std::io::Result<Arc<Self>> {
        let staging_bytes = aligned(staging_bytes);
        // What alignment costs, at most: the budget is meant for samples.
        let kept_bytes = if kept_bytes == 0 { 0 } else { aligned(kept_bytes) + samples * (ALIGN - 1) };
        let memory = MmapMut::map_anon((staging_bytes + kept_bytes) as usize)?;
        // Large pages save misses where memory is used again and again; a kernel without them is no worse off than before.
        // Kept samples are written once: for them, waiting for the kernel to find large pages was measured to take longer
        // (336 MB/s at worst) than faulting in small ones (1.5 GB/s).
        let _ = memory.advise_range(Advice::HugePage, 0, staging_bytes as usize);
        let free = Free { ring: Ring::new(staging_bytes), kept: Extents::new(kept_bytes) };
        Ok(Arc::new(Self { memory: memory.into(), kept_from: staging_bytes, free: Mutex::new(free) }))
    }

    /// A place in the staging buffer, if there is room now.
    pub(crate) fn stage(self: &Arc<Self>, len: usize) -> Option<Filling> {
        let range = self.free().ring.take(aligned(len as u64))?;
        Some(self.filling(Place::Ring { offset: range.offset, ticket: range.ticket }, len))
    }

    /// A place in the memory tier, if there is room now.
    pub(crate) fn keep(self: &Arc<Self>, len: usize) -> Option<Filling> {
        let offset = self.free().kept.take(aligned(len as u64))?;
        Some(self.filling(Place::Kept { offset: self.kept_from + offset }, len))
    }

    /// Memory apart from the arena.
    pub(crate) fn own(self: &Arc<Self>, len: usize) -> Filling {
        self.filling(Place::Own(vec![0; len].into()), len)
    }

    /// Uses only so much of the ring from now on.
    pub(crate) fn limit_staging(&self, bytes: u64) {
        self.free().ring.limit(aligned(bytes));
    }

    /// The staging buffer's memory: address and length.
    pub(crate) fn staging(&self) -> (usize, usize) {
        (self.memory.as_ptr() as usize, self.kept_from as usize)
    }

    fn filling(self: &Arc<Self>, place: Place, len: usize) -> Filling {
        Filling(Block { arena: Arc::clone(self), place, len })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        // Bookkeeping is done between two lines that cannot panic half way.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[allow(unsafe_code, reason = "threads fill different parts of one mapping at the same time")]
    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: offset and len come from `Ring` or `Extents`, which hand out ranges within the mapping and none of it
        // twice at a time; the mapping lives as long as `self`. Who has a shared reference has the `Block` of the range,
        // and no `Filling` of it exists any more.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(offset as usize), len) }
    }

    #[allow(unsafe_code, clippy::mut_from_ref, reason = "threads fill different parts of one mapping at the same time")]
    fn bytes_mut(&self, offset: u64, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; and only `Filling::bytes_mut` calls this, which has the range for itself.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(offset as usize), len) }
    }
}

/// A place that is being written.
#[derive(Debug)]
pub(crate) struct Filling(Block);

impl Filling {
    /// The place itself; holds whatever was there before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.0.len;
        match &mut self.0.place {
            Place::Own(memory) => memory,
            Place::Ring { offset, .. } | Place::Kept { offset } => self.0.arena.bytes_mut(*offset, len),
        }
    }

    /// The sample is whole: from now on it is only read.
    pub(crate) fn share(self) -> Arc<Block> {
        Arc::new(self.0)
    }
}

/// One sample's bytes.
pub(crate) struct Block {
    arena: Arc<Arena>,
    place: Place,
    len: usize,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("place", &self.place).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Block {
    /// The sample.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.place {
            Place::Own(memory) => memory,
            Place::Ring { offset, .. } | Place::Kept { offset } => self.arena.bytes(*offset, self.len),
        }
    }

    /// Whether it is in the memory tier's part.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.place, Place::Kept { .. })
    }

    /// Whether it has memory of its own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.place, Place::Own(_))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.place {
            Place::Ring { ticket, .. } => self.arena.free().ring.give_back(ticket),
            Place::Kept { offset } => {
                self.arena.free().kept.give_back(offset - self.arena.kept_from, aligned(self.len as u64));
            }
            Place::Own(_) => {}
        }
    }
}

fn aligned(len: u64) -> u64 {
    len.next_multiple_of(ALIGN).max(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_returns_when_its_last_share_is_dropped() {
        let arena = Arena::new(128, 64, 1).unwrap();
        let mut filling = arena.stage(100).unwrap();
        filling.bytes_mut().fill(7);
        let one = filling.share();
        let two = Arc::clone(&one);
        assert!(arena.stage(100).is_none());
        drop(one);
        assert!(two.bytes().iter().all(|&byte| byte == 7));
        assert!(arena.stage(100).is_none());
        drop(two);
        assert!(arena.stage(100).is_some());
    }

    #[test]
    fn staged_and_kept_samples_do_not_take_each_others_room() {
        let arena = Arena::new(64, 128, 2).unwrap();
        let staged = arena.stage(64).unwrap();
        let kept: Vec<Filling> = std::iter::from_fn(|| arena.keep(64)).collect();
        assert_eq!(kept.len(), 3, "two samples, and what alignment might have cost");
        assert!(arena.stage(1).is_none());
        drop(staged);
        assert!(arena.stage(1).is_some());
        let mut own = arena.own(5);
        own.bytes_mut().copy_from_slice(b"alone");
        assert_eq!(own.share().bytes(), b"alone");
    }
}
