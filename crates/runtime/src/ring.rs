//! Where the next bytes of the staging buffer lie: ranges are taken in order, one after the other around a ring, and
//! given back in any order. Space is free again once all that was taken before it has been given back.
//!
//! Pure bookkeeping; the memory itself is `arena`'s.

use std::collections::VecDeque;

/// A range that was taken, in the order of taking.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The range and what was skipped before it at the end of the ring.
    bytes: u64,
    given_back: bool,
}

/// A ring of bytes.
#[derive(Debug)]
pub(crate) struct Ring {
    capacity: u64,
    /// How much of it is to be used.
    limit: u64,
    /// Where the current round ends.
    end: u64,
    head: u64,
    used: u64,
    taken: VecDeque<Taken>,
    /// Ticket of the first in `taken`.
    first: u64,
}

/// A range that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Where it begins.
    pub(crate) offset: u64,
    /// To give it back with.
    pub(crate) ticket: u64,
}

impl Ring {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, limit: capacity, end: capacity, head: 0, used: 0, taken: VecDeque::new(), first: 0 }
    }

    /// Uses more of the ring, once it comes round, or less, once it is empty.
    pub(crate) fn limit(&mut self, limit: u64) {
        self.limit = limit.min(self.capacity);
        if self.taken.is_empty() {
            self.restart();
        }
    }

    /// The next range, if there is room for it now.
    pub(crate) fn take(&mut self, len: u64) -> Option<Range> {
        if self.taken.is_empty() {
            self.restart();
        }
        let tail = (self.head + self.end - self.used) % self.end.max(1);
        // In use: either [tail, head), or all but [head, tail).
        let wrapped = self.used > 0 && self.head <= tail;
        if !wrapped && self.limit > self.end {
            self.end = self.limit;
        }
        let before_end = self.end - self.head;
        let (offset, skipped) = match (wrapped, len) {
            (true, len) if len <= tail - self.head => (self.head, 0),
            (false, len) if len <= before_end => (self.head, 0),
            // Coming round: only where the new round is as long as the old one, or nothing of the old one is left.
            (false, len) if self.limit == self.end && len <= tail => (0, before_end),
            _ => return None,
        };
        self.head = offset + len;
        if self.head == self.end {
            self.head = 0;
        }
        self.used += len + skipped;
        self.taken.push_back(Taken { bytes: len + skipped, given_back: false });
        Some(Range { offset, ticket: self.first + self.taken.len() as u64 - 1 })
    }

    /// A range is free again.
    ///
    /// # Panics
    /// If it was given back before.
    pub(crate) fn give_back(&mut self, ticket: u64) {
        let taken = &mut self.taken[(ticket - self.first) as usize];
        assert!(!taken.given_back, "a range of the staging buffer is given back once");
        taken.given_back = true;
        while let Some(front) = self.taken.front().filter(|front| front.given_back) {
            self.used -= front.bytes;
            self.first += 1;
            self.taken.pop_front();
        }
    }

    /// Begins a round at the beginning: memory that was just used is still in the processor's cache.
    fn restart(&mut self) {
        self.end = self.limit;
        self.head = 0;
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_in_use_never_overlap_and_space_comes_back(
            capacity in 1u64..200,
            steps in prop::collection::vec((1u64..60, any::<u16>(), 0u64..200), 1..200),
        ) {
            let mut ring = Ring::new(capacity);
            let mut live: Vec<(Range, u64)> = Vec::new();
            for (len, pick, limit) in steps {
                match pick % 3 {
                    0 if !live.is_empty() => {
                        let (range, _) = live.swap_remove(pick as usize / 3 % live.len());
                        ring.give_back(range.ticket);
                    }
                    1 if pick % 5 == 0 => ring.limit(limit.max(1)),
                    _ => {
                        if let Some(range) = ring.take(len) {
                            prop_assert!(range.offset + len <= capacity);
                            for (other, other_len) in &live {
                                let apart = range.offset + len <= other.offset || other.offset + other_len <= range.offset;
                                prop_assert!(apart, "{range:?}+{len} and {other:?}+{other_len}");
                            }
                            live.push((range, len));
                        } else {
                            prop_assert!(!live.is_empty() || len > ring.limit);
                        }
                    }
                }
            }
            for (range, _) in live {
                ring.give_back(range.ticket);
            }
            ring.limit(capacity);
            prop_assert!(ring.take(capacity).is_some());
        }
    }

    #[test]
    fn waits_for_the_oldest_and_then_comes_round() {
        let mut ring = Ring::new(10);
        let [a, b] = [ring.take(4).unwrap(), ring.take(4).unwrap()];
        assert_eq!((a.offset, b.offset), (0, 4));
        ring.give_back(b.ticket);
        assert_eq!(ring.take(4), None);
        ring.give_back(a.ticket);
        assert_eq!(ring.take(4).unwrap().offset, 0);
    }
}
