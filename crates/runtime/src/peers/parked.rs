//! The holder's book: requests for samples that are expected here and have not come yet.
//!
//! A request is parked with [`Parked::park`] and leaves by [`Parked::take`], when its sample has come or never will, or with
//! its asker ([`Parked::forget`]). Each asker may have so many parked and no more, so that one that runs far ahead takes no
//! room from the others; beyond that the holder is busy, and says that the sample will not come.

use std::collections::BTreeMap;

use foresee_core::ids::{Rank, SampleId};

use crate::transport::Ticket;

/// Who waits for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// The asker.
    pub rank: Rank,
    /// What it names its request by.
    pub ticket: Ticket,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a busy holder answers"]
pub enum Parking {
    /// It is answered later.
    Parked,
    /// It was there already: the message came twice.
    Known,
    /// Its asker has as many here as it may: it is refused.
    Busy,
}

/// The book.
#[derive(Debug)]
pub struct Parked {
    /// So many requests of one asker at most.
    each_max: usize,
    /// By sample, in the order in which they came; no list is empty.
    waiting: BTreeMap<SampleId, Vec<Waiting>>,
    /// How many there are of each rank.
    by_rank: Vec<usize>,
}

impl Parked {
    /// Nothing is parked; each of so many ranks may have `each_max` requests here.
    pub fn new(ranks: u32, each_max: usize) -> Self {
        Self {
            each_max,
            waiting: BTreeMap::new(),
            by_rank: vec![0; ranks as usize],
        }
    }

    /// Parks a request until its sample comes.
    pub fn park(&mut self, sample: SampleId, waiting: Waiting) -> Parking {
        if let Some(others) = self.waiting.get(&sample)
            && others.contains(&waiting)
        {
            return Parking::Known;
        }
        let of_rank = &mut self.by_rank[waiting.rank.index()];
        if *of_rank >= self.each_max {
            return Parking::Busy;
        }
        *of_rank += 1;
        self.waiting.entry(sample).or_default().push(waiting);
        Parking::Parked
    }

    /// A sample has come, or never will: all who wait for it, first come first. They are to be answered.
    #[must_use = "who waits is to be answered"]
    pub fn take(&mut self, sample: SampleId) -> Vec<Waiting> {
        let taken = self.waiting.remove(&sample).unwrap_or_default();
        for waiting in &taken {
            self.by_rank[waiting.rank.index()] -= 1;
        }
        taken
    }

    /// Some samples never will come: all who wait for one of them, with what they wait for.
    #[must_use = "who waits is to be answered"]
    pub fn take_where(&mut self, gone: impl Fn(SampleId) -> bool) -> Vec<(SampleId, Waiting)> {
        let samples: Vec<SampleId> = self
            .waiting
            .keys()
            .copied()
            .filter(|&one| gone(one))
            .collect();
        let take = |sample| self.take(sample).into_iter().map(move |one| (sample, one));
        samples.into_iter().flat_map(take).collect()
    }

    /// Nothing comes any more, as when the job closes: all who wait for anything.
    #[must_use = "who waits is to be answered"]
    pub fn take_all(&mut self) -> Vec<Waiting> {
        self.by_rank.fill(0);
        std::mem::take(&mut self.waiting)
            .into_values()
            .flatten()
            .collect()
    }

    /// A rank is lost: nobody is left to answer.
    pub fn forget(&mut self, rank: Rank) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|one| one.rank != rank);
            !waiting.is_empty()
        });
        self.by_rank[rank.index()] = 0;
    }

    /// Whether anybody waits for a sample.
    pub fn is_awaited(&self, sample: SampleId) -> bool {
        self.waiting.contains_key(&sample)
    }

    /// How many requests are parked.
    pub fn len(&self) -> usize {
        self.by_rank.iter().sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(rank: u32, ticket: u64) -> Waiting {
        Waiting {
            rank: Rank(rank),
            ticket: Ticket(ticket),
        }
    }

    #[test]
    fn who_waits_is_answered_in_order_and_once() {
        let mut parked = Parked::new(2, 4);
        for ticket in [3, 1, 2] {
            let parking = parked.park(SampleId(0), waiting(1, ticket));
            assert_eq!(parking, Parking::Parked);
        }
        assert!(parked.is_awaited(SampleId(0)));
        let taken = parked.take(SampleId(0));
        assert_eq!(taken, [3, 1, 2].map(|ticket| waiting(1, ticket)));
        assert_eq!(parked.take(SampleId(0)), []);
    }

    #[test]
    fn one_that_asks_for_too_much_takes_no_room_from_others() {
        let mut parked = Parked::new(3, 1);
        assert_eq!(parked.park(SampleId(0), waiting(1, 0)), Parking::Parked);
        assert_eq!(parked.park(SampleId(1), waiting(1, 1)), Parking::Busy);
        assert_eq!(parked.park(SampleId(1), waiting(2, 0)), Parking::Parked);
    }

    #[test]
    fn a_request_that_comes_twice_is_answered_once() {
        let mut parked = Parked::new(2, 1);
        assert_eq!(parked.park(SampleId(0), waiting(1, 0)), Parking::Parked);
        assert_eq!(parked.park(SampleId(0), waiting(1, 0)), Parking::Known);
        assert_eq!(parked.take(SampleId(0)).len(), 1);
    }

    const RANKS: u32 = 3;

    /// What can happen to a book.
    #[derive(Clone, Debug)]
    enum Step {
        Park(u32, Waiting),
        Take(u32),
        TakeWhere(u32),
        Forget(u32),
        TakeAll,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let park = (0..4_u32, 0..RANKS, 0..6_u64)
            .prop_map(|(sample, rank, ticket)| Step::Park(sample, waiting(rank, ticket)));
        let step = prop_oneof![
            8 => park,
            2 => (0..4_u32).prop_map(Step::Take),
            1 => (0..4_u32).prop_map(Step::TakeWhere),
            1 => (0..RANKS).prop_map(Step::Forget),
            1 => Just(Step::TakeAll),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn says_what_one_list_of_all_requests_says(steps in steps(), each_max in 0..5_usize) {
            let mut parked = Parked::new(RANKS, each_max);
            let mut naive: Vec<(u32, Waiting)> = Vec::new();
            for step in steps {
                match step {
                    Step::Park(sample, one) => {
                        let of_rank = naive.iter().filter(|(_, other)| other.rank == one.rank).count();
                        let expected = if naive.contains(&(sample, one)) {
                            Parking::Known
                        } else if of_rank >= each_max {
                            Parking::Busy
                        } else {
                            naive.push((sample, one));
                            Parking::Parked
                        };
                        prop_assert_eq!(parked.park(SampleId(sample), one), expected);
                    }
                    Step::Take(sample) => {
                        let mut expected = naive.clone();
                        expected.retain(|(of, _)| *of == sample);
                        naive.retain(|(of, _)| *of != sample);
                        let expected: Vec<Waiting> = expected.into_iter().map(|(_, one)| one).collect();
                        prop_assert_eq!(parked.take(SampleId(sample)), expected);
                    }
                    Step::TakeWhere(below) => {
                        let taken = parked.take_where(|sample| sample.0 < below);
                        let mut expected: Vec<(SampleId, Waiting)> = Vec::new();
                        for sample in 0..below {
                            let of_sample = naive.iter().filter(|(of, _)| *of == sample);
                            expected.extend(of_sample.map(|(_, one)| (SampleId(sample), *one)));
                        }
                        naive.retain(|(of, _)| *of >= below);
                        prop_assert_eq!(taken, expected);
                    }
                    Step::Forget(rank) => {
                        parked.forget(Rank(rank));
                        naive.retain(|(_, one)| one.rank.0 != rank);
                    }
                    Step::TakeAll => {
                        let mut taken = parked.take_all();
                        taken.sort_unstable();
                        let mut expected: Vec<Waiting> = naive.drain(..).map(|(_, one)| one).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(taken, expected);
                    }
                }
                prop_assert_eq!(parked.len(), naive.len());
                prop_assert_eq!(parked.is_empty(), naive.is_empty());
            }
        }
    }
}
