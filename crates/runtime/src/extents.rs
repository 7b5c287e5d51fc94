//! Which ranges of a byte space are free. Taken ranges are the caller's to remember: they come back as they were taken, or
//! in parts. Free ranges are known by offset, to join neighbours, and by length, to find the tightest fit: both lookups
//! are logarithmic in the number of free ranges. It does no I/O and rounds nothing: alignment is the caller's.

use std::collections::{BTreeMap, BTreeSet};

/// A range of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// How many bytes it has.
    pub len: u64,
}

impl Extent {
    /// The first byte after it.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// The free ranges of a space of bytes.
#[derive(Clone, Debug)]
pub struct Extents {
    len: u64,
    free: u64,
    /// Length by offset. No two ranges touch, none is empty.
    by_offset: BTreeMap<u64, u64>,
    /// The same ranges as (length, offset).
    by_len: BTreeSet<(u64, u64)>,
}

impl Extents {
    /// A space of `len` bytes, all free.
    pub fn new(len: u64) -> Self {
        let mut extents = Self {
            len,
            free: 0,
            by_offset: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        extents.give_back(0, len);
        extents
    }

    /// Takes `len` bytes in one range: from the shortest free range that has them, the lowest of several. Nothing is
    /// taken for no bytes.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let &(range, offset) = self.by_len.range((len, 0)..).next()?;
        self.remove(offset, range);
        self.insert(offset + len, range - len);
        Some(offset)
    }

    /// Takes `len` bytes in as few ranges as they can be had in: the tightest fit, or the longest free ranges where no
    /// single one has them.
    pub fn take_parts(&mut self, len: u64) -> Option<Vec<Extent>> {
        if self.free < len {
            return None;
        }
        let mut parts = Vec::with_capacity(1);
        let mut left = len;
        while left > self.largest() {
            let &(range, offset) = self.by_len.last()?;
            self.remove(offset, range);
            parts.push(Extent { offset, len: range });
            left -= range;
        }
        let offset = self.take(left)?;
        parts.push(Extent { offset, len: left });
        Some(parts)
    }

    /// Frees a range, which joins its free neighbours.
    ///
    /// # Panics
    /// If some of it is free already, or outside of the space.
    pub fn give_back(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        assert!(
            end.is_some(),
            "{len} bytes at {offset} are not in a space of {}",
            self.len
        );
        let before = self
            .by_offset
            .range(..=offset)
            .next_back()
            .map(|(&offset, &len)| Extent { offset, len });
        let after = self
            .by_offset
            .range(offset..)
            .next()
            .map(|(&offset, &len)| Extent { offset, len });
        let overlaps = before.is_some_and(|b| b.end() > offset)
            || after.is_some_and(|a| a.offset < offset + len);
        assert!(!overlaps, "{len} bytes at {offset} are freed twice");

        let mut joined_len = len;
        if let Some(after) = after.filter(|after| after.offset == offset + len) {
            self.remove(after.offset, after.len);
            joined_len += after.len;
        }
        match before.filter(|before| before.end() == offset) {
            Some(before) => self.lengthen(before, joined_len),
            None => self.insert(offset, joined_len),
        }
    }

    /// Takes this very range, as after a restart; false, and nothing changed, where some of it is not free.
    pub fn claim(&mut self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len).filter(|&end| end <= self.len) else {
            return false;
        };
        if len == 0 {
            return true;
        }
        let Some((&start, &range)) = self.by_offset.range(..=offset).next_back() else {
            return false;
        };
        if start + range < end {
            return false;
        }
        self.remove(start, range);
        self.insert(start, offset - start);
        self.insert(end, start + range - end);
        true
    }

    /// The free range that has this byte; none where it is taken.
    pub fn range_at(&self, offset: u64) -> Option<Extent> {
        let (&start, &len) = self.by_offset.range(..=offset).next_back()?;
        let range = Extent { offset: start, len };
        (range.end() > offset).then_some(range)
    }

    /// All free ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Extent> {
        let ranges = self.by_offset.iter();
        ranges.map(|(&offset, &len)| Extent { offset, len })
    }

    /// How many bytes are free.
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// The longest free range.
    pub fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    fn insert(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.by_offset.insert(offset, len);
            self.by_len.insert((len, offset));
            self.free += len;
        }
    }

    /// A free range has so many more bytes behind it; where it begins stays.
    fn lengthen(&mut self, range: Extent, more: u64) {
        let len = range.len + more;
        self.by_offset.insert(range.offset, len);
        self.by_len.remove(&(range.len, range.offset));
        self.by_len.insert((len, range.offset));
        self.free += more;
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
        self.free -= len;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One byte, one flag: true where taken.
    struct Bitmap(Vec<bool>);

    impl Bitmap {
        fn runs(&self) -> Vec<Extent> {
            let mut runs: Vec<Extent> = Vec::new();
            for offset in (0..self.0.len())
                .filter(|&at| !self.0[at])
                .map(|at| at as u64)
            {
                match runs.last_mut().filter(|run| run.end() == offset) {
                    Some(run) => run.len += 1,
                    None => runs.push(Extent { offset, len: 1 }),
                }
            }
            runs
        }

        fn tightest(&self, len: u64) -> Option<u64> {
            let fits = self.runs().into_iter().filter(|run| run.len >= len);
            fits.min_by_key(|run| (run.len, run.offset))
                .map(|run| run.offset)
        }

        fn is_free(&self, offset: u64, len: u64) -> bool {
            offset + len <= self.0.len() as u64
                && self.range(offset, len).iter().all(|&taken| !taken)
        }

        fn range(&self, offset: u64, len: u64) -> &[bool] {
            &self.0[offset as usize..(offset + len) as usize]
        }

        fn fill(&mut self, offset: u64, len: u64, taken: bool) {
            self.0[offset as usize..(offset + len) as usize].fill(taken);
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Take(u64),
        TakeParts(u64),
        Claim(u64, u64),
        GiveBack(prop::sample::Index),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            2 => (1u64..24).prop_map(Act::Take),
            1 => (1u64..48).prop_map(Act::TakeParts),
            1 => (0u64..130, 1u64..24).prop_map(|(offset, len)| Act::Claim(offset, len)),
            3 => any::<prop::sample::Index>().prop_map(Act::GiveBack),
        ];
        // Miri takes some hundred times as long.
        let most = if cfg!(miri) { 20 } else { 120 };
        prop::collection::vec(act, 0..most)
    }

    /// Does the act on both; what it took is added to `taken`.
    fn act_on_both(act: &Act, extents: &mut Extents, bitmap: &mut Bitmap, taken: &mut Vec<Extent>) {
        let before = taken.len();
        match *act {
            Act::Take(len) => {
                let offset = extents.take(len);
                assert_eq!(offset, bitmap.tightest(len));
                taken.extend(offset.map(|offset| Extent { offset, len }));
            }
            Act::TakeParts(len) => {
                let room = bitmap.0.iter().filter(|taken| !**taken).count() as u64;
                let parts = extents.take_parts(len);
                assert_eq!(parts.is_some(), room >= len);
                assert_eq!(
                    parts.iter().flatten().map(|part| part.len).sum::<u64>(),
                    if room >= len { len } else { 0 }
                );
                taken.extend(parts.into_iter().flatten());
            }
            Act::Claim(offset, len) => {
                let free = bitmap.is_free(offset, len);
                assert_eq!(extents.claim(offset, len), free);
                taken.extend(free.then_some(Extent { offset, len }));
            }
            Act::GiveBack(ref which) if !taken.is_empty() => {
                let Extent { offset, len } = taken.swap_remove(which.index(taken.len()));
                extents.give_back(offset, len);
                bitmap.fill(offset, len, false);
                return;
            }
            Act::GiveBack(_) => {}
        }
        for part in &taken[before..] {
            assert!(bitmap.is_free(part.offset, part.len));
            bitmap.fill(part.offset, part.len, true);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap_searched_byte_by_byte(acts in acts()) {
            let mut extents = Extents::new(128);
            let mut bitmap = Bitmap(vec![false; 128]);
            let mut taken = Vec::new();
            for act in &acts {
                act_on_both(act, &mut extents, &mut bitmap, &mut taken);
                let runs = bitmap.runs();
                prop_assert_eq!(extents.free(), runs.iter().map(|run| run.len).sum::<u64>());
                prop_assert_eq!(extents.largest(), runs.iter().map(|run| run.len).max().unwrap_or(0));
            }
        }
    }

    #[test]
    fn takes_the_tightest_fit_and_the_lowest_of_several() {
        let mut extents = Extents::new(100);
        assert!(extents.claim(10, 5) && extents.claim(25, 5) && extents.claim(40, 50));
        // Free are ten bytes each at 0, 15, 30 and 90.
        assert_eq!(
            [extents.take(10), extents.take(10), extents.take(10)],
            [Some(0), Some(15), Some(30)]
        );
        assert_eq!((extents.take(11), extents.free()), (None, 10));
    }

    #[test]
    fn gives_several_ranges_only_where_no_single_one_has_the_bytes() {
        let mut extents = Extents::new(30);
        assert!(extents.claim(10, 1) && extents.claim(20, 1));
        assert_eq!(
            extents.take_parts(9),
            Some(vec![Extent { offset: 11, len: 9 }])
        );
        let first = Extent { offset: 0, len: 10 };
        let second = Extent { offset: 21, len: 2 };
        assert_eq!(extents.take_parts(12), Some(vec![first, second]));
        assert_eq!((extents.take_parts(8), extents.free()), (None, 7));
    }

    #[test]
    fn takes_nothing_for_no_bytes() {
        let mut extents = Extents::new(0);
        assert_eq!((extents.take(0), extents.take(1)), (Some(0), None));
        extents.give_back(0, 0);
        assert!(extents.claim(0, 0) && !extents.claim(0, 1) && !extents.claim(u64::MAX, 2));
    }

    #[test]
    #[should_panic(expected = "2 bytes at 3 are freed twice")]
    fn refuses_to_free_a_range_twice() {
        let mut extents = Extents::new(8);
        assert!(extents.claim(0, 4));
        extents.give_back(3, 2);
    }

    #[test]
    #[should_panic(expected = "are not in a space of 8")]
    fn refuses_to_free_what_is_outside() {
        Extents::new(8).give_back(7, 2);
    }
}
