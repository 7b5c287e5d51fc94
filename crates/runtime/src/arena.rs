//! The memory of a job: one mapping, of which the first part is the staging buffer's and the rest belongs to the memory
//! tier. Samples are read into it by loader threads and handed to the trainer in place.
//!
//! A [`Block`] is one sample's place. It is written by one thread through [`Filling`], then shared and read-only, and its
//! space returns when the last share is dropped. A sample that finds no room in the staging buffer, because the trainer
//! holds on to what it was given, gets memory of its own: it is always better to go on than to wait for ever.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::extents::Extents;

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
    /// The tightest fit comes first, so what was used a moment ago, and is still in the processor's cache, is used again
    /// before memory that nobody has touched yet.
    staged: Extents,
    kept: Extents,
}

/// Where a block lies.
#[derive(Debug)]
enum Place {
    Staged {
        offset: u64,
    },
    Kept {
        offset: u64,
    },
    Own(Box<[u8]>),
    /// Memory of a batch that the staging buffer has no room for.
    Map(MmapRaw),
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
        let free = Free { staged: Extents::new(staging_bytes), kept: Extents::new(kept_bytes) };
        Ok(Arc::new(Self { memory: memory.into(), kept_from: staging_bytes, free: Mutex::new(free) }))
    }

    /// A place in the staging buffer, if there is room now.
    pub(crate) fn stage(self: &Arc<Self>, len: usize) -> Option<Filling> {
        let offset = self.free().staged.take(aligned(len as u64))?;
        Some(self.filling(Place::Staged { offset }, len))
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

    /// Places for the samples of a batch, `len` bytes each and one after the other, in the staging buffer if there is room
    /// now. When `anyhow`, memory apart from it is taken in its place.
    pub(crate) fn stage_batch(self: &Arc<Self>, samples: usize, len: usize, anyhow: bool) -> Option<Vec<Part>> {
        let Filling(block) = match self.stage(samples * len) {
            Some(filling) => filling,
            None if anyhow => self.filling(Place::Map(MmapMut::map_anon(samples * len).ok()?.into()), samples * len),
            None => return None,
        };
        let block = Arc::new(block);
        Some((0..samples).map(|sample| Part(Piece { block: Arc::clone(&block), at: sample * len, len })).collect())
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
        // SAFETY: offset and len come from `Extents`, which hand out ranges within the mapping and none of it twice
        // at a time; the mapping lives as long as `self`. Who has a shared reference has the `Block` of the range,
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
            Place::Staged { offset } | Place::Kept { offset } => self.0.arena.bytes_mut(*offset, len),
            Place::Map(_) => &mut [],
        }
    }

    /// What was written.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The sample is whole: from now on it is only read.
    pub(crate) fn share(self) -> Arc<Block> {
        Arc::new(self.0)
    }
}

/// Some of a block's bytes: a sample, or its place in a batch.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    block: Arc<Block>,
    at: usize,
    len: usize,
}

impl Piece {
    /// All of a block.
    pub(crate) fn whole(block: Arc<Block>) -> Self {
        let len = block.len;
        Self { block, at: 0, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.block.range(self.at, self.len)
    }

    /// The block that it is of.
    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// From the beginning of this piece to the end of another one of the same block.
    pub(crate) fn up_to<'a>(&'a self, last: &'a Self) -> Option<&'a [u8]> {
        let one = Arc::ptr_eq(&self.block, &last.block) && last.at >= self.at;
        one.then(|| self.block.range(self.at, last.at + last.len - self.at))
    }
}

/// A sample's place in a batch that is being written, while others of the batch are written by other threads.
#[derive(Debug)]
pub(crate) struct Part(Piece);

impl Part {
    /// The place itself; holds whatever was there before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Piece { block, at, len } = &self.0;
        block.range_mut(*at, *len)
    }

    /// The sample is whole: from now on it is only read.
    pub(crate) fn share(self) -> Piece {
        self.0
    }
}

/// One sample's bytes, or those of a batch.
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
        self.range(0, self.len)
    }

    #[allow(unsafe_code, reason = "threads fill different parts of one batch at the same time")]
    fn range(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len, "a piece lies within its block");
        match &self.place {
            Place::Own(memory) => &memory[at..at + len],
            Place::Staged { offset } | Place::Kept { offset } => self.arena.bytes(offset + at as u64, len),
            // SAFETY: the range lies within the mapping, which has the block's length. Pieces of a batch do not overlap,
            // and who reads one has it from `Part::share`, after it was written.
            Place::Map(memory) => unsafe { std::slice::from_raw_parts(memory.as_ptr().add(at), len) },
        }
    }

    #[allow(unsafe_code, clippy::mut_from_ref, reason = "threads fill different parts of one batch at the same time")]
    fn range_mut(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.len, "a part lies within its block");
        match &self.place {
            Place::Staged { offset } | Place::Kept { offset } => self.arena.bytes_mut(offset + at as u64, len),
            // SAFETY: as in `range`; and only `Part::bytes_mut` calls this, which has the range for itself: parts are made
            // once for each sample of a batch and cannot be copied.
            Place::Map(memory) => unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().add(at), len) },
            Place::Own(_) => unreachable!("memory of one sample alone has no parts"),
        }
    }

    /// Whether it is in the memory tier's part.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.place, Place::Kept { .. })
    }

    /// Whether it has memory of its own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.place, Place::Own(_) | Place::Map(_))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.place {
            Place::Staged { offset } => self.arena.free().staged.give_back(offset, aligned(self.len as u64)),
            Place::Kept { offset } => {
                self.arena.free().kept.give_back(offset - self.arena.kept_from, aligned(self.len as u64));
            }
            Place::Own(_) | Place::Map(_) => {}
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
