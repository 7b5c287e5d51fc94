//! What the trainer has in its hands and the engine counts as staged, by the number of the loan. Samples are lent one by one
//! and numbered as they are, so the samples of a batch have numbers in a row.

use std::collections::BTreeMap;
use std::ops::Range;

use foresee_core::units::Bytes;

/// The loans of one course of the stream.
#[derive(Debug, Default)]
pub(super) struct Loans {
    lent: BTreeMap<u64, Bytes>,
    /// The number of the next one.
    next: u64,
}

impl Loans {
    /// A sample is in the trainer's hands, and the engine counts it by so many bytes; gives the number of the loan.
    pub(super) fn lend(&mut self, bytes: Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        self.lent.insert(number, bytes);
        number
    }

    /// A loan has ended; none where it was forgiven before.
    pub(super) fn end(&mut self, number: u64) -> Option<Bytes> {
        self.lent.remove(&number)
    }

    /// How many samples are lent.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// Ends all: the trainer keeps what it has, and it is counted no more.
    pub(super) fn forgive(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        std::mem::take(&mut self.lent).into_values()
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
}
