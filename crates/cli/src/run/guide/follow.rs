//! Where the program is in its order. Opens come nearly in order: several processes read ahead of each other, and what is told
//! of them may be late. So an open is looked for among the next accesses; who has opened what is far ahead of an access has
//! passed it. The program may also be ahead of the engine: it starts while its files are still being listed.

use std::collections::{HashMap, VecDeque};

use foresee_core::ids::SampleId;

/// So many opens off the order mean that it is another one.
pub(super) const OFF_ORDER_MAX: u32 = 64;
/// An access is passed when so many behind it were opened: more than the processes of a program read ahead of each other.
const PASSED: usize = 512;

/// So far behind what the engine was asked for opens are looked for: more than a program opens while its files are listed.
const FORESEEN: usize = 1 << 14;

/// Accesses that are not passed yet.
#[derive(Debug, Default)]
pub(super) struct Following {
    /// Each with whether it was opened.
    ahead: VecDeque<(SampleId, bool)>,
    /// How many of all there ever were the engine was asked for.
    polled: u64,
    /// The number of the first of them.
    first: u64,
    /// By sample, where it comes next among them; later ones are found when that is passed.
    places: HashMap<SampleId, VecDeque<u64>>,
    opened: usize,
    off_order: u32,
}

/// What an open was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// One of the next accesses.
    InOrder,
    /// One of them that the engine was not asked for yet: whether it is kept is not known.
    Early,
    /// None of them.
    OffOrder,
}

impl Following {
    /// One more access is ahead.
    pub(super) fn push(&mut self, sample: SampleId) {
        let place = self.first + self.ahead.len() as u64;
        self.ahead.push_back((sample, false));
        self.places.entry(sample).or_default().push_back(place);
    }

    /// Whether more accesses are to be pushed.
    pub(super) fn wants_more(&self) -> bool {
        let behind = self.first + self.ahead.len() as u64;
        behind < self.polled + FORESEEN as u64
    }

    /// The engine was asked for the next access; whether the program has opened that before.
    pub(super) fn poll(&mut self) -> bool {
        let index = (self.polled - self.first) as usize;
        self.polled += 1;
        self.ahead
            .get(index)
            .is_some_and(|(_, was_opened)| *was_opened)
    }

    /// Whether all accesses are passed.
    pub(super) fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    /// A file was opened.
    pub(super) fn open(&mut self, sample: SampleId) -> Open {
        let place = self.places.get_mut(&sample).and_then(VecDeque::pop_front);
        let Some(place) = place else {
            self.off_order += 1;
            return Open::OffOrder;
        };
        let index = (place - self.first) as usize;
        if let Some(access) = self.ahead.get_mut(index) {
            access.1 = true;
            self.opened += 1;
        }
        if place >= self.polled {
            return Open::Early;
        }
        Open::InOrder
    }

    /// The next access that is over, if it is.
    pub(super) fn pass(&mut self) -> Option<SampleId> {
        let (sample, was_opened) = *self.ahead.front()?;
        // What the engine was not asked for cannot be consumed.
        if self.first == self.polled {
            return None;
        }
        if !was_opened && self.opened < PASSED {
            return None;
        }
        self.ahead.pop_front();
        self.first += 1;
        if was_opened {
            self.opened -= 1;
        } else if let Some(places) = self.places.get_mut(&sample) {
            places.pop_front();
        }
        if self.places.get(&sample).is_some_and(VecDeque::is_empty) {
            self.places.remove(&sample);
        }
        Some(sample)
    }

    /// Whether a sample is among those that are brought, and will be opened again soon.
    pub(super) fn is_ahead(&self, sample: SampleId) -> bool {
        let next = self.places.get(&sample).and_then(VecDeque::front);
        next.is_some_and(|place| *place < self.polled)
    }

    /// Whether the program follows another order.
    pub(super) fn is_lost(&self) -> bool {
        self.off_order >= OFF_ORDER_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(samples: &[u32]) -> Following {
        let mut following = Following::default();
        for sample in samples {
            following.push(SampleId(*sample));
            following.poll();
        }
        following
    }

    fn passed(following: &mut Following) -> Vec<u32> {
        std::iter::from_fn(|| following.pass().map(|sample| sample.0)).collect()
    }

    #[test]
    fn what_was_opened_is_passed_in_order() {
        let mut following = following(&[5, 6, 7]);
        assert_eq!(following.open(SampleId(6)), Open::InOrder);
        assert_eq!(passed(&mut following), [0_u32; 0]);
        assert_eq!(following.open(SampleId(5)), Open::InOrder);
        assert_eq!(passed(&mut following), [5, 6]);
        assert!(!following.is_empty());
    }

    #[test]
    fn a_program_that_is_ahead_of_the_engine_is_in_order_and_waits_to_be_passed() {
        let mut following = Following::default();
        for sample in 0..200 {
            following.push(SampleId(sample));
        }
        for sample in 0..100 {
            assert_eq!(following.open(SampleId(sample)), Open::Early);
        }
        assert!(!following.is_lost() && following.wants_more());
        assert_eq!(passed(&mut following), [0_u32; 0]);
        assert!(following.poll() && following.poll());
        assert_eq!(passed(&mut following), [0, 1]);
        // What only lies ahead is not kept for its sake.
        assert!(!following.is_ahead(SampleId(150)));
    }

    #[test]
    fn a_sample_that_comes_twice_is_opened_twice() {
        let mut following = following(&[5, 6, 5]);
        following.open(SampleId(5));
        assert!(following.is_ahead(SampleId(5)));
        following.open(SampleId(5));
        assert!(!following.is_ahead(SampleId(5)));
        assert_eq!(following.open(SampleId(5)), Open::OffOrder);
        following.open(SampleId(6));
        assert_eq!(passed(&mut following), [5, 6, 5]);
    }

    #[test]
    fn what_is_never_opened_is_passed_when_much_behind_it_was() {
        let all: Vec<u32> = (0..PASSED as u32 + 10).collect();
        let mut following = following(&all);
        for sample in 1..PASSED as u32 {
            following.open(SampleId(sample));
        }
        assert_eq!(passed(&mut following), [0_u32; 0]);
        following.open(SampleId(PASSED as u32));
        assert_eq!(passed(&mut following).len(), PASSED + 1);
        assert_eq!(following.open(SampleId(0)), Open::OffOrder);
    }

    #[test]
    fn many_opens_off_the_order_mean_that_it_is_another() {
        let mut following = following(&[1]);
        for _ in 0..OFF_ORDER_MAX - 1 {
            following.open(SampleId(9));
        }
        assert!(!following.is_lost());
        following.open(SampleId(9));
        assert!(following.is_lost());
    }
}
