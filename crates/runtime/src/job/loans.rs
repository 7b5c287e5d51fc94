//! What the trainer has in its hands and the engine counts as staged, by the number of the loan. Samples are lent one by one
//! and numbered as they are, so the samples of a batch have numbers in a row.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use foresee_core::units::Bytes;

/// Loans that are found by their number alone: a few batches. Most have ended by the time that so many more were given.
const RECENT_MAX: usize = 512;

/// The loans of one course of the stream.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// The latest ones, in a row; none for one that has ended.
    recent: VecDeque<Option<Bytes>>,
    /// The number of the first of them.
    first: u64,
    /// Those before them that have not ended.
    older: BTreeMap<u64, Bytes>,
}

impl Loans {
    /// A sample is in the trainer's hands, and the engine counts it by so many bytes; gives the number of the loan.
    pub(super) fn lend(&mut self, bytes: Bytes) -> u64 {
        if self.recent.len() >= RECENT_MAX {
            if let Some(Some(bytes)) = self.recent.pop_front() {
                self.older.insert(self.first, bytes);
            }
            self.first += 1;
        }
        let number = self.first + self.recent.len() as u64;
        self.recent.push_back(Some(bytes));
        number
    }

    /// A loan has ended; none where it was forgiven before.
    pub(super) fn end(&mut self, number: u64) -> Option<Bytes> {
        match number.checked_sub(self.first) {
            Some(index) => self.recent.get_mut(index as usize)?.take(),
            None => self.older.remove(&number),
        }
    }

    /// How many samples are lent.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.older.len() + self.recent.iter().flatten().count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.older.is_empty() && self.recent.iter().all(Option::is_none)
    }

    /// Ends all: the trainer keeps what it has, and it is counted no more.
    pub(super) fn forgive(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        self.first += self.recent.len() as u64;
        let older = std::mem::take(&mut self.older).into_values();
        let recent = std::mem::take(&mut self.recent).into_iter();
        older.chain(recent.flatten())
    }
}

/// The numbers of samples that were lent one after the other.
pub(super) type Numbers = Range<u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_ends_once_and_a_forgiven_one_not_at_all() {
        let mut loans = Loans::default();
        let numbers: Vec<u64> = [1, 2, 3].map(|bytes| loans.lend(Bytes(bytes))).into();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((loans.end(1), loans.end(1)), (Some(Bytes(2)), None));
        let forgiven: Vec<Bytes> = loans.forgive().collect();
        assert_eq!(forgiven, [Bytes(1), Bytes(3)]);
        assert!(loans.is_empty() && loans.end(0).is_none());
        assert_eq!(loans.lend(Bytes(4)), 3, "numbers are not used again");
    }

    #[test]
    fn a_loan_that_lasts_ends_like_any_other() {
        const NUMBER: u64 = 3 * RECENT_MAX as u64;
        let mut loans = Loans::default();
        for number in 0..NUMBER {
            assert_eq!(loans.lend(Bytes(number)), number);
            if number % 100 > 0 {
                assert_eq!(loans.end(number), Some(Bytes(number)));
            }
        }
        assert!(loans.recent.len() == RECENT_MAX && !loans.older.is_empty());
        assert_eq!(loans.end(1), None, "it has ended");
        assert_eq!(loans.end(100), Some(Bytes(100)));
        let forgiven: Vec<Bytes> = loans.forgive().collect();
        let left = (0..NUMBER).step_by(100).filter(|&number| number != 100);
        assert_eq!(forgiven, left.map(Bytes).collect::<Vec<_>>());
        assert!(loans.is_empty() && loans.end(200).is_none());
        assert_eq!(loans.lend(Bytes(1)), NUMBER);
    }
}
