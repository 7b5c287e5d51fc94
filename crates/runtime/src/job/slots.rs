//! The staged samples in the order of the stream: one slot for each access that the engine has given out and the trainer has
//! not taken. Slots are numbered from the beginning of the course; what fills them may come in any order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use foresee_core::ids::{Epoch, SampleId};
use foresee_core::model::Origin;

use crate::arena::{Part, Piece};
use crate::source::ReadError;

/// A sample in the staging buffer.
pub(super) struct Staged {
    pub(super) piece: Piece,
    /// Another sample where the wanted one could not be read.
    pub(super) sample: SampleId,
    pub(super) origin: Origin,
    /// When its bytes were there, and when it was decoded.
    pub(super) fetched: Instant,
    pub(super) ready: Instant,
}

/// A decoded sample's place in its batch, and the epoch it is decoded for.
pub(super) type Decoded = (Part, Epoch);

/// Why a sample is not there.
pub(super) struct Failure {
    pub(super) sample: SampleId,
    pub(super) cause: Arc<ReadError>,
    /// Where it would go once decoded; the trainer has it while it tries again.
    pub(super) part: Option<Decoded>,
}

/// One access of the stream that the engine has given out.
pub(super) enum Slot {
    /// It is being read, waits for a thread, or is on its way to its tier.
    Pending,
    Ready(Staged),
    Failed(Failure),
}

/// What the trainer finds next.
pub(super) enum Head {
    /// Nothing yet.
    Missing,
    /// A sample; it has been taken out.
    Staged(Staged),
    /// A sample that could not be read; it stays.
    Failed(SampleId, Arc<ReadError>),
}

/// The slots.
#[derive(Default)]
pub(super) struct Slots {
    /// Number of the first one.
    first: u64,
    slots: VecDeque<Slot>,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of the slot that the trainer stands at.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The number of the slot that comes next.
    pub(super) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Another access; gives the number of its slot.
    pub(super) fn push(&mut self, slot: Slot) -> u64 {
        let number = self.next();
        self.slots.push_back(slot);
        number
    }

    /// What a slot waited for has come, or will not.
    pub(super) fn fill(&mut self, number: u64, slot: Slot) {
        let index = (number - self.first) as usize;
        debug_assert!(
            matches!(self.slots[index], Slot::Pending),
            "slot {number} is filled once"
        );
        self.slots[index] = slot;
    }

    /// What the trainer finds next.
    pub(super) fn take(&mut self) -> Head {
        match self.slots.pop_front() {
            Some(Slot::Ready(staged)) => {
                self.first += 1;
                Head::Staged(staged)
            }
            Some(Slot::Failed(failure)) => {
                let head = Head::Failed(failure.sample, Arc::clone(&failure.cause));
                self.slots.push_front(Slot::Failed(failure));
                head
            }
            Some(Slot::Pending) => {
                self.slots.push_front(Slot::Pending);
                Head::Missing
            }
            None => Head::Missing,
        }
    }

    /// The failure that the trainer stands at.
    pub(super) fn failure(&mut self) -> Option<&mut Failure> {
        match self.slots.front_mut()? {
            Slot::Failed(failure) => Some(failure),
            Slot::Pending | Slot::Ready(_) => None,
        }
    }

    /// The sample that failed has been read after all.
    pub(super) fn mend(&mut self, staged: Staged) {
        if let Some(slot @ Slot::Failed(_)) = self.slots.front_mut() {
            *slot = Slot::Ready(staged);
        }
    }

    /// Whether so many of the next samples are there.
    pub(super) fn has_ready(&self, samples: usize) -> bool {
        let mut next = self.slots.iter().take(samples);
        self.slots.len() >= samples && next.all(|slot| matches!(slot, Slot::Ready(_)))
    }

    /// How many of the next samples are not there.
    pub(super) fn missing(&self, samples: u64) -> u64 {
        let next = self.slots.iter().take(samples as usize);
        let pending = next.filter(|slot| matches!(slot, Slot::Pending)).count();
        let beyond = samples.saturating_sub(self.slots.len() as u64);
        pending as u64 + beyond
    }

    /// Drops all; numbers go on.
    pub(super) fn clear(&mut self) {
        self.first = self.next();
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Keeps};

    fn ready(sample: u32) -> Slot {
        let arena = Arena::new(64, Keeps::default()).unwrap();
        Slot::Ready(Staged {
            piece: Piece::whole(arena.own(1).share()),
            sample: SampleId(sample),
            origin: Origin::Source,
            fetched: Instant::now(),
            ready: Instant::now(),
        })
    }

    fn failed(sample: u32) -> Slot {
        Slot::Failed(Failure {
            sample: SampleId(sample),
            cause: Arc::new(ReadError::Empty),
            part: None,
        })
    }

    fn taken(slots: &mut Slots) -> Option<u32> {
        match slots.take() {
            Head::Staged(staged) => Some(staged.sample.0),
            Head::Missing | Head::Failed(..) => None,
        }
    }

    #[test]
    fn samples_that_come_in_any_order_are_taken_in_that_of_the_stream() {
        let mut slots = Slots::default();
        let numbers: Vec<u64> = (0..3).map(|_| slots.push(Slot::Pending)).collect();
        slots.fill(numbers[2], ready(2));
        slots.fill(numbers[0], ready(0));
        assert_eq!((taken(&mut slots), taken(&mut slots)), (Some(0), None));
        assert_eq!(slots.missing(5), 4, "one is pending and three are beyond");
        slots.fill(numbers[1], ready(1));
        assert!(slots.has_ready(2) && !slots.has_ready(3));
        assert_eq!((taken(&mut slots), taken(&mut slots)), (Some(1), Some(2)));
        assert_eq!((slots.first(), slots.next()), (3, 3));
    }

    #[test]
    fn a_sample_that_failed_stays_until_it_is_mended() {
        let mut slots = Slots::default();
        slots.push(failed(7));
        for _ in 0..2 {
            assert!(matches!(slots.take(), Head::Failed(SampleId(7), _)));
        }
        let Slot::Ready(staged) = ready(7) else {
            unreachable!("it is")
        };
        slots.mend(staged);
        assert_eq!(taken(&mut slots), Some(7));
    }
}
