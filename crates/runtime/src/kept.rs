//! The memory tier's part of an arena. Trainers get samples in place, and not every library respects that a view is
//! read-only; what they are given must not be a way to change what is kept. So the memory is a file without a name, and
//! what is handed out lies in a mapping of it that cannot be written ([`Pages`]).
//!
//! Samples come in by a system call: page for page, that takes little more than half as long as to fault in memory of a
//! file and write there, and no longer than to fault in private memory (on Linux 6.18 97 us of two threads for 106 KB, where
//! the others take 152 and 112). Large samples are written through a second mapping all the same, or each thread would need
//! as much memory again.
//!
//! Whoever writes to a file holds its lock: with one file, two threads took 120 us. So there are several, the stripes.
//!
//! To write a page that is not there yet takes a third longer (40 us for 106 KB, where it takes 30 us if a call before has
//! allocated it in 14 us). So a loader thread that has nothing to do while reads sleep allocates some ahead of those in use.
//! It does so in small steps, because it holds the file's lock meanwhile, and not where reads are copies: there it would
//! take cores from those who copy, and was measured to cost 7 % of the first epoch. What is not there is taken by who
//! writes it.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, whole};
use std::fs::File;
use std::io;

use crate::arena::ALIGN;
use crate::extents::Extents;
use crate::pages::Pages;
use crate::tier::Stay;

/// Samples up to this size are read into a buffer first: small enough to be in the processor's cache when it is copied.
const BUFFER_MAX: usize = 1 << 20;

const CACHE_LINE: usize = 64;

/// More threads than this seldom write at a time.
const STRIPES_MAX: u64 = 8;

/// A stripe has room for as many of the largest samples at least, so that what is left over at its end is not much.
const STRIPE_SAMPLES: u64 = 64;

/// So many bytes of a stripe are allocated at a time: about as long as a sample is written, whose turn it then is. With 1 MiB
/// the first epoch took a tenth longer.
const STEP_BYTES: u64 = 128 << 10;

/// So far ahead of what is in use a stripe is allocated: some dozen samples of 100 KB.
const AHEAD_BYTES: u64 = 8 << 20;

/// Memory that only loader threads can write.
pub(crate) struct Kept {
    stripes: Vec<Stripe>,
    stripe_bytes: u64,
    /// Buffers of small samples that are not in use: as many as were being read at a time.
    spare: Mutex<Vec<Buffer>>,
}

impl Kept {
    /// For so many bytes in samples of `largest` at most; `pages` makes the memory of a stripe.
    pub(crate) fn new(
        bytes: u64,
        largest: u64,
        pages: fn(u64) -> io::Result<Pages>,
    ) -> io::Result<Self> {
        let number = (bytes / largest.saturating_mul(STRIPE_SAMPLES).max(1)).clamp(1, STRIPES_MAX);
        // The end of a stripe may be too short for the next sample.
        let stripe_bytes = if number == 1 {
            bytes
        } else {
            bytes.div_ceil(number) + largest
        };
        let stripes = (0..number)
            .map(|_| pages(stripe_bytes).map(Stripe::new))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            stripes,
            stripe_bytes,
            spare: Mutex::default(),
        })
    }

    /// All of it, free.
    pub(crate) fn space(&self) -> Space {
        Space::new(self.stripes.len(), self.stripe_bytes, 0)
    }

    /// What other processes are given to read it, stripe by stripe.
    pub(crate) fn files(&self) -> io::Result<Vec<File>> {
        let files = self.stripes.iter().map(|stripe| stripe.pages.file());
        files.collect()
    }

    /// The stripe of a place, and where in it that is.
    pub(crate) fn within(&self, offset: u64) -> (u8, u64) {
        let stripe = (offset / self.stripe_bytes) as u8;
        (stripe, offset % self.stripe_bytes)
    }

    /// How many stripes there are.
    pub(crate) fn len(&self) -> usize {
        self.stripes.len()
    }

    /// What lies there, for all to see.
    pub(crate) fn address(&self, offset: u64) -> *const u8 {
        let (stripe, offset) = self.stripe(offset);
        stripe.pages.seen().wrapping_add(offset as usize)
    }

    /// The same place, for who writes it; none where small samples are written by [`Kept::write`], or where there is no
    /// memory.
    pub(crate) fn address_mut(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let (stripe, offset) = self.stripe(offset);
        if len <= BUFFER_MAX && stripe.pages.are_written_by_calls() {
            return None;
        }
        stripe.reach(offset + len as u64);
        // A page that cannot be had would end the process when it is written.
        stripe.pages.allocate(offset, len as u64).ok()?;
        Some(stripe.pages.written().wrapping_add(offset as usize))
    }

    /// Writes a sample.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (stripe, offset) = self.stripe(offset);
        stripe.reach(offset + data.len() as u64);
        stripe.pages.write(offset, data)
    }

    /// Allocates a little of what is written next, for who has nothing else to do; false where that is done.
    pub(crate) fn allocate_ahead(&self) -> bool {
        let bytes = self.stripe_bytes;
        self.stripes
            .iter()
            .any(|stripe| stripe.allocate_ahead(bytes))
    }

    /// A buffer for so many bytes, with whatever is in it.
    pub(crate) fn buffer(&self, len: usize) -> Buffer {
        if len > BUFFER_MAX {
            return Buffer::new(len);
        }
        let spare = self.spare().pop();
        Buffer {
            len,
            ..spare.unwrap_or_else(|| Buffer::new(BUFFER_MAX))
        }
    }

    /// Takes a buffer back, unless it is too large to lie about.
    pub(crate) fn put_back(&self, buffer: Buffer) {
        if buffer.len <= BUFFER_MAX {
            self.spare().push(buffer);
        }
    }

    fn stripe(&self, offset: u64) -> (&Stripe, u64) {
        (
            &self.stripes[(offset / self.stripe_bytes) as usize],
            offset % self.stripe_bytes,
        )
    }

    fn spare(&self) -> crate::sync::MutexGuard<'_, Vec<Buffer>> {
        whole(self.spare.lock())
    }
}

/// Where a sample is read to before it is written to its place. It begins with a cache line: the kernel was measured to take
/// four times as long for copies to where an allocation begins, 16 bytes behind a page's start.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + CACHE_LINE];
        let from = memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        Self { memory, from, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.len]
    }
}

/// One of the files.
struct Stripe {
    pages: Pages,
    /// Where what was written or allocated so far ends: places are given out from the beginning on.
    reached: AtomicU64,
    allocated: AtomicU64,
}

impl Stripe {
    fn new(pages: Pages) -> Self {
        Self {
            pages,
            reached: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
        }
    }

    /// Something is about to be written up to here.
    fn reach(&self, end: u64) {
        // Most writes are behind it, and need not take the line from other threads.
        if self.reached.load(Ordering::Relaxed) < end {
            self.reached.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Allocates one step ahead of what is in use, if not enough is there; false where it is.
    fn allocate_ahead(&self, bytes: u64) -> bool {
        let reached = self.reached.load(Ordering::Relaxed);
        let before = self.allocated.load(Ordering::Relaxed);
        let from = before.max(reached);
        let until = bytes.min(reached.saturating_add(AHEAD_BYTES));
        if from >= until {
            return false;
        }
        let to = until.min(from + STEP_BYTES);
        let claimed =
            self.allocated
                .compare_exchange(before, to, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_err() {
            // Another thread is at it.
            return false;
        }
        if self.pages.allocate(from, to - from).is_err() {
            // There is no memory to spare: who writes finds out whether there is any.
            self.allocated.store(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// Which places are free: one stripe after the other has its turn, so that threads write to different ones.
///
/// What comes and goes leaves holes that fit nothing else, if sizes differ. So it can be given room of its own, at the
/// beginning of each stripe: then what stays never finds holes in the place of room.
#[derive(Default)]
pub(crate) struct Space {
    stripes: Vec<Room>,
    stripe_bytes: u64,
    /// Of each stripe, what is for samples that come and go; nothing where all lie together.
    passing_bytes: u64,
    turn: usize,
}

/// What is free of a stripe.
#[derive(Clone)]
struct Room {
    passing: Extents,
    lasting: Extents,
}

impl Room {
    fn new(stripe_bytes: u64, passing_bytes: u64) -> Self {
        Self {
            passing: Extents::new(passing_bytes),
            lasting: Extents::new(stripe_bytes - passing_bytes),
        }
    }
}

impl Space {
    fn new(number: usize, stripe_bytes: u64, passing_bytes: u64) -> Self {
        Self {
            stripes: vec![Room::new(stripe_bytes, passing_bytes); number],
            stripe_bytes,
            passing_bytes,
            turn: 0,
        }
    }

    /// Gives what comes and goes about so many bytes of its own. Where something was taken before, all stays as it is.
    pub(crate) fn divide(&mut self, passing_bytes: u64) {
        let number = self.stripes.len();
        let of_each = passing_bytes / (number as u64).max(1);
        let of_each = (of_each / ALIGN * ALIGN).min(self.stripe_bytes);
        let free: u64 = self.stripes.iter().map(|room| room.lasting.free()).sum();
        if self.passing_bytes == 0 && free == self.stripe_bytes * number as u64 {
            *self = Self::new(number, self.stripe_bytes, of_each);
        }
    }

    /// Takes so many bytes, if any stripe has them in one piece.
    pub(crate) fn take(&mut self, len: u64, stay: Stay) -> Option<u64> {
        let number = self.stripes.len();
        let passing_bytes = self.passing_bytes;
        let (index, offset) = (0..number).find_map(|after| {
            let index = (self.turn + after) % number;
            let room = &mut self.stripes[index];
            let offset = if passing_bytes > 0 && stay == Stay::Passing {
                room.passing.take(len)?
            } else {
                room.lasting.take(len)? + passing_bytes
            };
            Some((index, offset))
        })?;
        self.turn = index + 1;
        Some(index as u64 * self.stripe_bytes + offset)
    }

    pub(crate) fn give_back(&mut self, offset: u64, len: u64) {
        let room = &mut self.stripes[(offset / self.stripe_bytes) as usize];
        let offset = offset % self.stripe_bytes;
        match offset.checked_sub(self.passing_bytes) {
            Some(offset) => room.lasting.give_back(offset, len),
            None => room.passing.give_back(offset, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `len` bytes until there is no room.
    fn fill(space: &mut Space, len: u64) -> Vec<u64> {
        std::iter::from_fn(|| space.take(len, Stay::Lasting)).collect()
    }

    #[test]
    fn stripes_take_turns_and_have_room_for_all_that_fits_in_one_piece() {
        let kept = Kept::new(1000 * 64, 64, Pages::new).unwrap();
        assert_eq!(kept.stripes.len(), 8);
        let mut space = kept.space();
        let places = fill(&mut space, 64);
        assert!(places.len() >= 1000);
        let mut first: Vec<u64> = places[..8]
            .iter()
            .map(|place| place / kept.stripe_bytes)
            .collect();
        first.sort_unstable();
        assert_eq!(first, (0..8).collect::<Vec<_>>());
        for place in places {
            space.give_back(place, 64);
        }
        assert!(
            fill(&mut space, kept.stripe_bytes).len() == 8,
            "all of it is free again"
        );
    }

    #[test]
    #[allow(unsafe_code, reason = "looks at memory as the arena does")]
    fn what_is_written_to_a_place_is_seen_there_alone() {
        let kept = Kept::new(128 * 64, 64, Pages::new).unwrap();
        let mut space = kept.space();
        let places = fill(&mut space, 64);
        for (number, place) in (0..).zip(&places) {
            kept.write(*place, &[number; 64]).unwrap();
        }
        for (number, place) in (0..).zip(&places) {
            // SAFETY: the place lies within the mapping, and nobody writes any more.
            let seen: &[u8] = unsafe { std::slice::from_raw_parts(kept.address(*place), 64) };
            assert_eq!(seen, [number; 64]);
        }
    }

    #[test]
    fn samples_that_are_large_beside_the_tier_lie_in_one_stripe() {
        assert_eq!(Kept::new(1000, 1000, Pages::new).unwrap().stripes.len(), 1);
        assert_eq!(
            Kept::new(1000, u64::MAX, Pages::new).unwrap().stripes.len(),
            1
        );
        assert_eq!(Kept::new(1000, 0, Pages::new).unwrap().stripes.len(), 8);
    }

    #[test]
    fn pages_are_allocated_a_little_ahead_of_what_is_in_use() {
        const STRIPE: u64 = 32 << 20;
        let kept = Kept::new(STRIPE, STRIPE, Pages::new).unwrap();
        let allocated = || kept.stripes[0].allocated.load(Ordering::Relaxed);
        let steps = || (0..1000).take_while(|_| kept.allocate_ahead()).count() as u64;
        assert_eq!(steps(), AHEAD_BYTES / STEP_BYTES);
        assert_eq!((allocated(), steps()), (AHEAD_BYTES, 0));
        kept.write(3 << 20, &[1; 100]).unwrap();
        assert!(steps() > 0);
        assert_eq!(allocated(), (3 << 20) + 100 + AHEAD_BYTES);
        // Beyond what was allocated: it goes on behind.
        kept.write(20 << 20, &[1; 100]).unwrap();
        assert!(steps() > 0);
        assert_eq!(allocated(), (20 << 20) + 100 + AHEAD_BYTES);
        kept.write(STRIPE - 100, &[1; 100]).unwrap();
        steps();
        assert!(allocated() <= STRIPE, "never more than there is");
        assert!(!kept.allocate_ahead());
    }

    #[test]
    fn what_stays_finds_all_of_its_room_however_much_came_and_went_before() {
        // Sizes differ; what stays takes as much as there is of it, in turns with what comes and goes.
        let sizes = || (0_u64..).map(|number| 64 * (1 + number * 7919 % 97));
        let (lasting_bytes, passing_bytes) = (64 * 100_000, 64 * 3_000);
        let mut space = Space::new(1, lasting_bytes + passing_bytes, 0);
        space.divide(passing_bytes);
        let mut passing: std::collections::VecDeque<(u64, u64)> = [].into();
        let mut stays = 0;
        for len in sizes() {
            if stays + len > lasting_bytes {
                break;
            }
            assert!(space.take(len, Stay::Lasting).is_some(), "behind {stays} B");
            stays += len;
            let other = 64 + len * 31 % (64 * 50) / 64 * 64;
            while let Some(place) = space.take(other, Stay::Passing) {
                passing.push_back((place, other));
            }
            if let Some((place, len)) = passing.pop_front() {
                space.give_back(place, len);
            }
        }
        assert!(lasting_bytes - stays < 64 * 98);
        for (place, len) in passing {
            space.give_back(place, len);
        }
    }

    #[test]
    fn what_is_in_use_is_not_divided() {
        let mut space = Space::new(2, 640, 0);
        let place = space.take(64, Stay::Passing);
        space.divide(128);
        assert_eq!(space.passing_bytes, 0);
        space.give_back(place.unwrap(), 64);
        space.divide(128);
        let copies = std::iter::from_fn(|| space.take(64, Stay::Passing)).count();
        assert_eq!(copies, 2);
    }
}
