//! The memory of a job: the staging buffer, and the part that belongs to the memory tier ([`Kept`]). Samples are read into
//! it by loader threads and handed to the trainer in place.
//!
//! A [`Block`] is one sample's place. It is written by one thread through [`Filling`], then shared and read-only, and its
//! space returns when the last share is dropped. A sample that finds no room in the staging buffer, because the trainer
//! holds on to what it was given, gets memory of its own: it is always better to go on than to wait for ever.
//!
//! Other ranks of the host may read what is kept, too (`crate::host`): a block that they may know of is withdrawn before its
//! space returns, which then waits for those who still use it. Blocks of theirs are used here likewise, where they lie. What
//! is read for another rank of the host is left for it in an area of its own.
//!
//! Whoever has a staged sample can write to it, whatever we say, and only harms itself: staged blocks have one user.
//! Kept ones have many, and nobody can write there.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, whole};
use std::fs::File;
use std::sync::{Arc, OnceLock};

use foresee_core::ids::{Rank, SampleId};

use crate::extents::Extents;
use crate::fork::{self, Watch};
use crate::host::{self, Borrowed, Crews, Entry, Exchanged, Neighbours, Shown};
use crate::kept::{Buffer, Kept, Space};
use crate::pages::{Pages, Private};
use crate::tier::Stay;

/// Places begin at multiples of this: a cache line, so that two threads never write to the same one.
pub(crate) const ALIGN: u64 = 64;

/// The memory of a job.
pub(crate) struct Arena {
    staging: Private,
    /// None where there is no memory tier.
    kept: Option<Kept>,
    /// What is there for alignment, beyond the budget.
    alignment_bytes: u64,
    /// Where samples lie that others of the host fetch; made when there are any.
    left: OnceLock<Kept>,
    /// What is shared with them, once it is.
    sharing: OnceLock<Sharing>,
    children: Watch,
    free: Mutex<Free>,
}

/// What ranks of a host have of each other.
struct Sharing {
    shown: Shown,
    neighbours: Neighbours,
    crews: Option<Arc<Crews>>,
}

struct Free {
    /// The tightest fit comes first, so what was used a moment ago, and is still in the processor's cache, is used again
    /// before memory that nobody has touched yet.
    staged: Extents,
    kept: Space,
    left: Space,
    /// Kept and left ones that somebody may still look at.
    withheld: Vec<Withheld>,
    /// Other ranks' that children of this process may still look at.
    resting: Vec<(Borrowed, Children)>,
    /// So many of these are there when it is looked next whether they do.
    resting_most: usize,
}

/// A place that is not used again as long as somebody may look at it.
#[derive(Clone, Copy)]
struct Withheld {
    area: Area,
    offset: u64,
    len: u64,
    /// Children of this process.
    children: Option<Children>,
    /// Other ranks, which know it as this sample.
    pinned: Option<SampleId>,
}

/// Children that saw what the trainer held while this process forked.
#[derive(Clone, Copy)]
struct Children {
    /// Forks up to when it was lent first, and until it was free again.
    after: u32,
    until: u32,
}

/// Memory that other ranks can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Kept,
    Left,
}

/// Places of other ranks that rest at least before it is looked whether they still must.
const RESTING_LEAST: usize = 64;

/// What a memory tier is to hold.
#[derive(Clone, Copy, Default)]
pub(crate) struct Keeps {
    pub(crate) bytes: u64,
    /// How many samples at most, and the size of the largest.
    pub(crate) samples: u64,
    pub(crate) largest: u64,
}

/// Where a block lies.
#[derive(Debug)]
enum Place {
    Staged {
        offset: u64,
    },
    Shared {
        area: Area,
        offset: u64,
    },
    /// In another rank's memory.
    Near(Borrowed),
    Own(Box<[u8]>),
    /// Memory of a batch that the staging buffer has no room for.
    Map(Private),
}

impl Arena {
    /// Room for so many staged bytes, and for what is to be kept.
    pub(crate) fn new(staging_bytes: u64, keeps: Keeps) -> std::io::Result<Arc<Self>> {
        Self::on(Pages::new, staging_bytes, keeps)
    }

    /// The same on memory of this process alone, which any checker of memory understands.
    #[cfg(test)]
    pub(crate) fn private(staging_bytes: u64, keeps: Keeps) -> Arc<Self> {
        match Self::on(Pages::private, staging_bytes, keeps) {
            Ok(arena) => arena,
            Err(cause) => panic!("private memory: {cause}"),
        }
    }

    /// The same, with kept samples in pages of this kind.
    fn on(
        pages: fn(u64) -> std::io::Result<Pages>,
        staging_bytes: u64,
        keeps: Keeps,
    ) -> std::io::Result<Arc<Self>> {
        let staging_bytes = aligned(staging_bytes);
        // Kept samples are written once: for them, waiting for the kernel to find large pages was measured to take longer
        // (336 MB/s at worst) than to fill small ones (1.5 GB/s).
        let staging = Private::on_large_pages(staging_bytes as usize)?;
        // What alignment costs, at most: the budget is meant for samples.
        let alignment_bytes = keeps.samples * (ALIGN - 1);
        let kept_bytes = aligned(keeps.bytes) + alignment_bytes;
        let kept = if keeps.bytes == 0 {
            None
        } else {
            Some(Kept::new(kept_bytes, aligned(keeps.largest), pages)?)
        };
        let space = kept.as_ref().map(Kept::space).unwrap_or_default();
        let free = Mutex::new(Free {
            staged: Extents::new(staging_bytes),
            kept: space,
            left: Space::default(),
            withheld: Vec::new(),
            resting: Vec::new(),
            resting_most: RESTING_LEAST,
        });
        Ok(Arc::new(Self {
            staging,
            kept,
            alignment_bytes,
            left: OnceLock::new(),
            sharing: OnceLock::new(),
            children: Watch::new(),
            free,
        }))
    }

    /// Takes a little memory for samples that are kept next, for who has nothing else to do; false where that is done.
    pub(crate) fn allocate_ahead(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::allocate_ahead)
    }

    /// A place in the staging buffer, if there is room now.
    pub(crate) fn stage(self: &Arc<Self>, len: usize) -> Option<Filling> {
        let offset = self.free().staged.take(aligned(len as u64))?;
        Some(self.filling(Place::Staged { offset }, len))
    }

    /// Kept samples that come and go get so many bytes of their own. Before anything is kept; later nothing changes.
    pub(crate) fn divide(&self, passing_bytes: u64) {
        // What is aligned takes more: of samples that are not tiny a thirty-second, and half of what there is for that.
        let more = (passing_bytes / 32).min(self.alignment_bytes / 2);
        self.free().kept.divide(passing_bytes + more);
    }

    /// A place in the memory tier, if there is room now.
    pub(crate) fn keep(self: &Arc<Self>, len: usize, stay: Stay) -> Option<Filling> {
        self.share_in(Area::Kept, len, stay)
    }

    /// A copy in the memory tier, if there is room now.
    pub(crate) fn keep_copy(self: &Arc<Self>, data: &[u8], stay: Stay) -> Option<Arc<Block>> {
        self.copy_to(Area::Kept, data, stay)
    }

    /// A copy where other ranks of the host fetch it, if there is room now.
    pub(crate) fn leave_copy(self: &Arc<Self>, data: &[u8]) -> Option<Arc<Block>> {
        self.copy_to(Area::Left, data, Stay::Lasting)
    }

    fn share_in(self: &Arc<Self>, area: Area, len: usize, stay: Stay) -> Option<Filling> {
        let offset = self.take(area, aligned(len as u64), stay)?;
        Some(self.filling_to_stay(Place::Shared { area, offset }, len, stay))
    }

    fn copy_to(self: &Arc<Self>, area: Area, data: &[u8], stay: Stay) -> Option<Arc<Block>> {
        let Filling { block, .. } = self.share_in(area, data.len(), stay)?;
        block.write(data).ok()?;
        Some(block)
    }

    fn take(&self, area: Area, len: u64, stay: Stay) -> Option<u64> {
        let mut free = self.free();
        if let Some(offset) = free.space(area).take(len, stay) {
            return Some(offset);
        }
        if free.withheld.is_empty() {
            return None;
        }
        let sharing = self.sharing.get();
        if let Some(sharing) = sharing {
            sharing.shown.forget_the_dead();
        }
        let is_in_use = |place: &Withheld| {
            let is_used = |sample| sharing.is_some_and(|sharing| sharing.shown.is_used(sample));
            let may_look = |children: Children| self.may_live(children);
            place.children.is_some_and(may_look) || place.pinned.is_some_and(is_used)
        };
        let (still, over): (Vec<_>, Vec<_>) = free.withheld.iter().copied().partition(is_in_use);
        free.withheld = still;
        for place in &over {
            free.space(place.area).give_back(place.offset, place.len);
        }
        if over.is_empty() {
            None
        } else {
            free.space(area).take(len, stay)
        }
    }

    fn may_live(&self, children: Children) -> bool {
        self.children.may_live(children.after, children.until)
    }

    /// What is offered to other ranks of the host: the memory of kept samples, and of up to so many bytes that are left for
    /// them. Once.
    pub(crate) fn offer(&self, left_bytes: u64, largest: u64) -> std::io::Result<Vec<File>> {
        let left = Kept::new(aligned(left_bytes), aligned(largest), Pages::new)?;
        let mut files = self.kept.as_ref().map_or(Ok(Vec::new()), Kept::files)?;
        files.extend(left.files()?);
        self.free().left = left.space();
        let is_first = self.left.set(left).is_ok();
        assert!(is_first, "memory is offered once");
        Ok(files)
    }

    /// What was offered can be seen by others from now on, and theirs from here.
    pub(crate) fn share(&self, exchanged: Exchanged) {
        let sharing = Sharing {
            shown: exchanged.shown,
            neighbours: exchanged.neighbours,
            crews: exchanged.crews.map(Arc::new),
        };
        let is_first = self.sharing.set(sharing).is_ok();
        assert!(is_first, "memory is shared once");
    }

    /// Whether a rank sees what is kept here.
    pub(crate) fn is_seen_by(&self, rank: Rank) -> bool {
        let sharing = self.sharing.get();
        sharing.is_some_and(|sharing| sharing.shown.is_seen_by(rank))
    }

    /// Ranks of this host.
    pub(crate) fn neighbours(&self) -> Option<&Neighbours> {
        self.sharing.get().map(|sharing| &sharing.neighbours)
    }

    /// What ranks of this host show of their threads, where all of them do.
    pub(crate) fn crews(&self) -> Option<&Arc<Crews>> {
        self.sharing.get()?.crews.as_ref()
    }

    /// A sample of so many bytes that lies in the memory of another rank of this host, to be used there.
    pub(crate) fn near(
        self: &Arc<Self>,
        rank: Rank,
        sample: SampleId,
        len: usize,
    ) -> Option<Arc<Block>> {
        let borrowed = self.neighbours()?.take(rank, sample, len)?;
        Some(self.filling(Place::Near(borrowed), len).share())
    }

    /// Memory apart from the arena.
    pub(crate) fn own(self: &Arc<Self>, len: usize) -> Filling {
        self.filling(Place::Own(vec![0; len].into()), len)
    }

    /// A copy apart from the arena.
    fn own_copy(self: &Arc<Self>, data: &[u8], stay: Stay) -> Arc<Block> {
        self.filling_to_stay(Place::Own(data.into()), data.len(), stay)
            .share()
    }

    /// Places for the samples of a batch, `len` bytes each and one after the other, in the staging buffer if there is room
    /// now. When `anyhow`, memory apart from it is taken in its place.
    pub(crate) fn stage_batch(
        self: &Arc<Self>,
        samples: usize,
        len: usize,
        anyhow: bool,
    ) -> Option<Vec<Part>> {
        let Filling { block, .. } = match self.stage(samples * len) {
            Some(filling) => filling,
            None if anyhow => {
                self.filling(Place::Map(Private::new(samples * len).ok()?), samples * len)
            }
            None => return None,
        };
        Some(
            (0..samples)
                .map(|sample| {
                    Part(Piece {
                        block: Arc::clone(&block),
                        at: sample * len,
                        len,
                    })
                })
                .collect(),
        )
    }

    /// The staging buffer's memory: address and length.
    pub(crate) fn staging(&self) -> (usize, usize) {
        (self.staging.as_ptr() as usize, self.staging.len())
    }

    fn filling(self: &Arc<Self>, place: Place, len: usize) -> Filling {
        self.filling_to_stay(place, len, Stay::Lasting)
    }

    fn filling_to_stay(self: &Arc<Self>, place: Place, len: usize, stay: Stay) -> Filling {
        let block = Block {
            arena: Arc::clone(self),
            place,
            len,
            stay,
            lent_after: AtomicU32::new(NEVER),
            told: Mutex::new(None),
        };
        Filling {
            block: Arc::new(block),
            buffer: None,
        }
    }

    /// The memory of an area, for who has a place there.
    fn memory(&self, area: Area) -> &Kept {
        let memory = match area {
            Area::Kept => self.kept.as_ref(),
            Area::Left => self.left.get(),
        };
        let Some(memory) = memory else {
            unreachable!("a place is in memory that is there")
        };
        memory
    }

    /// A place as other ranks know it: pieces are in the order in which they were offered.
    fn as_offered(&self, area: Area, offset: u64) -> host::Place {
        let (piece, offset) = self.memory(area).within(offset);
        let before = match area {
            Area::Kept => 0,
            Area::Left => self.kept.as_ref().map_or(0, Kept::len),
        };
        host::Place {
            piece: before as u8 + piece,
            offset,
        }
    }

    fn free(&self) -> crate::sync::MutexGuard<'_, Free> {
        // Bookkeeping is done between two lines that cannot panic half way.
        whole(self.free.lock())
    }

    #[allow(
        unsafe_code,
        reason = "threads fill different parts of one mapping at the same time"
    )]
    fn staged(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: offset and len come from `Extents`, which hand out ranges within the mapping and none of it twice
        // at a time; the mapping lives as long as `self`. Who has a shared reference has the `Block` of the range,
        // and no `Filling` of it exists any more.
        unsafe { std::slice::from_raw_parts(self.staging.as_ptr().add(offset as usize), len) }
    }

    #[allow(
        unsafe_code,
        clippy::mut_from_ref,
        reason = "threads fill different parts of one mapping at the same time"
    )]
    fn staged_mut(&self, offset: u64, len: usize) -> &mut [u8] {
        // SAFETY: as in `staged`; and only `Filling::bytes_mut` and `Part::bytes_mut` call this, which have the range for
        // themselves.
        unsafe {
            std::slice::from_raw_parts_mut(self.staging.as_mut_ptr().add(offset as usize), len)
        }
    }

    #[allow(
        unsafe_code,
        reason = "threads fill different parts of one mapping at the same time"
    )]
    fn shared_bytes(&self, area: Area, offset: u64, len: usize) -> &[u8] {
        // SAFETY: as in `staged`.
        unsafe { std::slice::from_raw_parts(self.memory(area).address(offset), len) }
    }

    #[allow(
        unsafe_code,
        clippy::mut_from_ref,
        reason = "threads fill different parts of one mapping at the same time"
    )]
    fn shared_bytes_mut(&self, area: Area, offset: u64, len: usize) -> Option<&mut [u8]> {
        let address = self.memory(area).address_mut(offset, len)?;
        // SAFETY: as in `staged_mut`.
        Some(unsafe { std::slice::from_raw_parts_mut(address, len) })
    }
}

/// A place that is being written. It is handed on from thread to thread, so it is small.
#[derive(Debug)]
pub struct Filling {
    /// Nobody else has it.
    block: Arc<Block>,
    /// What is written to its place when it is whole.
    buffer: Option<Buffer>,
}

impl Filling {
    /// The place itself; holds whatever was there before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(block) = Arc::get_mut(&mut self.block) else {
            unreachable!("what is being written has no other user")
        };
        let Block {
            arena, place, len, ..
        } = block;
        let len = *len;
        match place {
            Place::Own(memory) => memory,
            Place::Staged { offset } => arena.staged_mut(*offset, len),
            // One that was begun with a buffer goes on with it.
            Place::Shared { area, offset } => match arena
                .shared_bytes_mut(*area, *offset, len)
                .filter(|_| self.buffer.is_none())
            {
                Some(bytes) => bytes,
                None => self
                    .buffer
                    .get_or_insert_with(|| arena.memory(*area).buffer(len))
                    .bytes_mut(),
            },
            Place::Map(_) | Place::Near(_) => &mut [],
        }
    }

    /// What was written.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map_or_else(|| self.block.bytes(), Buffer::bytes)
    }

    /// The sample is whole: from now on it is only read. Where its place cannot be written (there is no memory), it has
    /// memory of its own.
    pub(crate) fn share(mut self) -> Arc<Block> {
        let Some(buffer) = self.buffer.take() else {
            return self.block;
        };
        let arena = Arc::clone(&self.block.arena);
        let shared_in = self.block.area();
        let block = match self.block.write(buffer.bytes()) {
            Ok(()) => self.block,
            Err(_) => arena.own_copy(buffer.bytes(), self.block.stay),
        };
        if let Some(area) = shared_in {
            arena.memory(area).put_back(buffer);
        }
        block
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
pub struct Block {
    arena: Arc<Arena>,
    place: Place,
    len: usize,
    /// How long it is kept, where it is.
    stay: Stay,
    /// How many forks there had been when it was lent to who held it during another one.
    lent_after: AtomicU32,
    /// What other ranks know it as, and what they were told.
    told: Mutex<Option<(SampleId, Entry)>>,
}

/// No fork: none has this number.
const NEVER: u32 = u32::MAX;

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block")
            .field("place", &self.place)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Block {
    /// The sample.
    pub fn bytes(&self) -> &[u8] {
        self.range(0, self.len)
    }

    #[allow(
        unsafe_code,
        reason = "threads fill different parts of one batch at the same time"
    )]
    fn range(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len, "a piece lies within its block");
        match &self.place {
            Place::Own(memory) => &memory[at..at + len],
            Place::Staged { offset } => self.arena.staged(offset + at as u64, len),
            Place::Shared { area, offset } => {
                self.arena.shared_bytes(*area, offset + at as u64, len)
            }
            // SAFETY: the range lies within what was borrowed, which has the block's length, in memory that is mapped as long
            // as it is borrowed. Its holder does not write there while it is pinned, which it is as long as this lives:
            // it was pinned before it was found, and the holder looks at pins after it withdraws what it wants to use again.
            Place::Near(borrowed) => unsafe {
                std::slice::from_raw_parts(borrowed.address().add(at), len)
            },
            // SAFETY: the range lies within the mapping, which has the block's length. Pieces of a batch do not overlap,
            // and who reads one has it from `Part::share`, after it was written.
            Place::Map(memory) => unsafe {
                std::slice::from_raw_parts(memory.as_ptr().add(at), len)
            },
        }
    }

    #[allow(
        unsafe_code,
        clippy::mut_from_ref,
        reason = "threads fill different parts of one batch at the same time"
    )]
    fn range_mut(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.len, "a part lies within its block");
        match &self.place {
            Place::Staged { offset } => self.arena.staged_mut(offset + at as u64, len),
            // SAFETY: as in `range`; and only `Part::bytes_mut` calls this, which has the range for itself: parts are made
            // once for each sample of a batch and cannot be copied.
            Place::Map(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.as_mut_ptr().add(at), len)
            },
            Place::Shared { .. } | Place::Near(_) | Place::Own(_) => {
                unreachable!("memory of one sample alone has no parts")
            }
        }
    }

    /// A copy with memory of its own, which is to be kept for so long.
    pub(crate) fn copy(&self, stay: Stay) -> Arc<Self> {
        self.arena.own_copy(self.bytes(), stay)
    }

    /// For how long it is kept, if it is.
    pub(crate) fn stay(&self) -> Stay {
        self.stay
    }

    /// Writes a sample that is to be kept to its place.
    fn write(&self, data: &[u8]) -> std::io::Result<()> {
        match &self.place {
            Place::Shared { area, offset } => self.arena.memory(*area).write(*offset, data),
            _ => unreachable!("only samples that others may read are written so"),
        }
    }

    /// Somebody is done with it to whom it was lent after so many forks.
    pub(crate) fn returned(&self, lent_after: u32) {
        if lent_after != fork::forks() {
            self.lent_after.fetch_min(lent_after, Ordering::Relaxed);
        }
    }

    /// Whether it is in the memory tier's part.
    pub(crate) fn is_kept(&self) -> bool {
        self.area() == Some(Area::Kept)
    }

    /// Whether it lies in another rank's memory.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self.place, Place::Near(_))
    }

    /// Whether nobody can write to it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.area().is_some() || self.is_near()
    }

    fn area(&self) -> Option<Area> {
        match self.place {
            Place::Shared { area, .. } => Some(area),
            _ => None,
        }
    }

    /// It is whole, and a sample: other ranks of the host may use it where it lies, until it is dropped. False where they
    /// cannot.
    pub(crate) fn publish(&self, sample: SampleId) -> bool {
        let Place::Shared { area, offset } = self.place else {
            return false;
        };
        let Some(sharing) = self.arena.sharing.get() else {
            return false;
        };
        let place = self.arena.as_offered(area, offset);
        // One at a time: what is told last is what is on the board.
        let mut told = whole(self.told.lock());
        let entry = sharing.shown.publish(sample, place);
        *told = entry.map(|entry| (sample, entry));
        told.is_some()
    }

    /// Whether it has memory of its own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.place, Place::Own(_) | Place::Map(_))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let after = *self.lent_after.get_mut();
        let children = (after != NEVER).then(|| Children {
            after,
            until: fork::forks(),
        });
        match std::mem::replace(&mut self.place, Place::Own(Box::default())) {
            Place::Staged { offset } => {
                let mut free = self.arena.free();
                free.staged.give_back(offset, aligned(self.len as u64));
            }
            Place::Shared { area, offset } => {
                let place = Withheld {
                    area,
                    offset,
                    len: aligned(self.len as u64),
                    children,
                    pinned: self.withdraw(),
                };
                self.arena.free().vacate(place);
            }
            Place::Near(borrowed) => {
                if let Some(children) = children {
                    self.arena.rest(borrowed, children);
                }
            }
            Place::Own(_) | Place::Map(_) => {}
        }
    }
}

impl Block {
    /// Other ranks do not find it any more. The sample that they know it as, if they may still use it.
    fn withdraw(&mut self) -> Option<SampleId> {
        let (sample, entry) = whole(self.told.get_mut()).take()?;
        let sharing = self.arena.sharing.get()?;
        let is_free = sharing.shown.withdraw(sample, entry);
        (!is_free).then_some(sample)
    }
}

impl Free {
    fn space(&mut self, area: Area) -> &mut Space {
        match area {
            Area::Kept => &mut self.kept,
            Area::Left => &mut self.left,
        }
    }

    /// A place is not in use any more, but for those who may still look at it.
    fn vacate(&mut self, place: Withheld) {
        if place.children.is_none() && place.pinned.is_none() {
            self.space(place.area).give_back(place.offset, place.len);
        } else {
            self.withheld.push(place);
        }
    }
}

impl Arena {
    /// A sample of another rank that children of this process may still look at stays where it is meanwhile. Whether they
    /// live is looked at now and then.
    fn rest(&self, borrowed: Borrowed, children: Children) {
        let mut free = self.free();
        free.resting.push((borrowed, children));
        if free.resting.len() < free.resting_most {
            return;
        }
        let all = std::mem::take(&mut free.resting);
        let (still, over): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|(_, children)| self.may_live(*children));
        free.resting_most = RESTING_LEAST.max(2 * still.len());
        free.resting = still;
        drop(free);
        drop(over);
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
        let arena = Arena::new(
            128,
            Keeps {
                bytes: 64,
                samples: 1,
                largest: 64,
            },
        )
        .unwrap();
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
        let arena = Arena::new(
            64,
            Keeps {
                bytes: 128,
                samples: 2,
                largest: 128,
            },
        )
        .unwrap();
        let staged = arena.stage(64).unwrap();
        let kept: Vec<Filling> = std::iter::from_fn(|| arena.keep(64, Stay::Lasting)).collect();
        assert_eq!(
            kept.len(),
            3,
            "two samples, and what alignment might have cost"
        );
        assert!(arena.stage(1).is_none());
        drop(staged);
        assert!(arena.stage(1).is_some());
        let mut own = arena.own(5);
        own.bytes_mut().copy_from_slice(b"alone");
        assert_eq!(own.share().bytes(), b"alone");
    }

    #[test]
    fn threads_that_fill_private_memory_see_their_own_bytes_alone() {
        let keeps = Keeps {
            bytes: 8 * 64,
            samples: 8,
            largest: 64,
        };
        let arena = Arena::private(8 * 64, keeps);
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for step in 0..20 {
                        let filled = |mut filling: Filling| {
                            filling.bytes_mut().fill(number ^ step);
                            filling.share()
                        };
                        let blocks = [
                            arena.stage(50).map(filled),
                            arena.keep(33, Stay::Lasting).map(filled),
                            arena.keep_copy(&[number ^ step; 7], Stay::Lasting),
                        ];
                        for block in blocks.iter().flatten() {
                            assert!(block.bytes().iter().all(|&byte| byte == number ^ step));
                        }
                    }
                });
            }
        });
        let all: Vec<Filling> = std::iter::from_fn(|| arena.stage(64)).collect();
        assert_eq!(all.len(), 8, "all of it is free again");
    }

    #[test]
    #[cfg(not(miri))]
    fn what_is_kept_lies_where_nobody_can_write() {
        let arena = Arena::new(
            64,
            Keeps {
                bytes: 4 << 20,
                samples: 2,
                largest: 4 << 20,
            },
        )
        .unwrap();
        for len in [100, 3 << 20] {
            let mut filling = arena.keep(len, Stay::Lasting).unwrap();
            filling.bytes_mut().fill(7);
            assert!(filling.bytes().iter().all(|&byte| byte == 7));
            let block = filling.share();
            assert!(block.is_kept() && block.bytes().iter().all(|&byte| byte == 7));
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert_eq!(rights(&maps, block.bytes().as_ptr() as usize), Some("r--s"));
        }
    }

    /// Of the mapping that an address lies in.
    fn rights(maps: &str, address: usize) -> Option<&str> {
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap_or(0));
            (from..to).contains(&address).then(|| &rest[..4])
        })
    }

    #[test]
    #[cfg(not(miri))]
    #[allow(unsafe_code, reason = "forks")]
    fn what_was_held_at_a_fork_is_not_used_again_while_the_child_lives() {
        let arena = Arena::new(
            64,
            Keeps {
                bytes: 64,
                samples: 0,
                largest: 64,
            },
        )
        .unwrap();
        let lent_after = fork::forks();
        let block = arena.keep(64, Stay::Lasting).unwrap().share();
        let (read, write) = std::io::pipe().unwrap();
        // SAFETY: the child only waits and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; both descriptors are open, and the buffer is there.
            unsafe {
                libc::close(std::os::fd::AsRawFd::as_raw_fd(&write));
                libc::read(
                    std::os::fd::AsRawFd::as_raw_fd(&read),
                    [0u8].as_mut_ptr().cast(),
                    1,
                );
                libc::_exit(0);
            }
        }
        block.returned(lent_after);
        drop(block);
        assert!(arena.keep(64, Stay::Lasting).is_none());
        drop(write);
        // SAFETY: a child of ours, and nobody else waits for it.
        let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(ended, child);
        // Children of other tests, forked off at the same time, end soon.
        while arena.keep(64, Stay::Lasting).is_none() {
            std::thread::yield_now();
        }
        // After forks that it was not lent during, a place is free at once.
        let block = arena.keep(64, Stay::Lasting).unwrap().share();
        block.returned(fork::forks());
        drop(block);
        assert!(arena.keep(64, Stay::Lasting).is_some());
    }

    /// What a child that looks at memory as soon as it may says: whether all of it is `byte`.
    #[cfg(not(miri))]
    #[allow(unsafe_code, reason = "forks")]
    fn looked_at_by_a_child(bytes: &[u8], byte: u8, meanwhile: impl FnOnce()) -> bool {
        use std::os::fd::AsRawFd;

        let (read, write) = std::io::pipe().unwrap();
        // SAFETY: the child only waits, looks and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; both descriptors are open, and the buffer is there.
            unsafe {
                libc::close(write.as_raw_fd());
                libc::read(read.as_raw_fd(), [0u8].as_mut_ptr().cast(), 1);
                libc::_exit(i32::from(bytes.iter().any(|&seen| seen != byte)));
            }
        }
        meanwhile();
        drop(write);
        let mut status = -1;
        // SAFETY: a child of ours, and nobody else waits for it.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(ended, child);
        status == 0
    }

    #[test]
    #[cfg(not(miri))]
    fn a_child_sees_what_the_trainer_held_whatever_its_parent_keeps_since() {
        let keeps = Keeps {
            bytes: 4 * 4096,
            samples: 0,
            largest: 4096,
        };
        let arena = Arena::new(64, keeps).unwrap();
        let keep = |byte| arena.keep_copy(&[byte; 4096], Stay::Lasting);
        let lent_after = fork::forks();
        let lent = keep(1).unwrap();
        let seen = lent.bytes().as_ptr();
        // SAFETY: the mapping lives as long as the arena; what is there is the question.
        #[allow(unsafe_code, reason = "looks as a child does, without a share")]
        let bytes = unsafe { std::slice::from_raw_parts(seen, 4096) };
        let is_as_it_was = looked_at_by_a_child(bytes, 1, || {
            // Handed back and evicted in the parent; then all room is used, and again.
            lent.returned(lent_after);
            drop(lent);
            for round in 2..6 {
                let others: Vec<_> = std::iter::from_fn(|| keep(round)).collect();
                assert!(others.len() <= 3, "the place is not used again");
            }
        });
        assert!(is_as_it_was);
    }
}
