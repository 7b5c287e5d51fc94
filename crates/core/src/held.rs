//! What the tiers of all ranks hold from before the job: of each sample at most four holders, so that what is known of
//! all ranks stays O(samples), however many hold the same. Ranks learn of each other's holdings by ranges of samples:
//! each tells those of every range ([`Held::within`]), and what was told of a range is put together by
//! [`Held::merged`], in whatever order and grouping it comes.

use std::ops::Range;
use std::sync::Arc;

use crate::homes::Home;
use crate::ids::{Rank, SampleId, TierId};

/// So many holders of a sample are remembered: enough to choose among them by room and use.
pub const HOLDERS_MAX: usize = 4;

/// Who holds what from before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// By sample; of one sample as [`preference`] orders them.
    copies: Arc<[(SampleId, Home)]>,
}

impl Held {
    /// All tiers are empty.
    pub fn nothing() -> Self {
        Self {
            copies: Arc::new([]),
        }
    }

    /// What one rank's tiers hold.
    pub fn by_rank(rank: Rank, held: &[(SampleId, TierId)]) -> Self {
        let copies = held
            .iter()
            .map(|&(sample, tier)| (sample, Home { rank, tier }));
        Self::of(copies.collect())
    }

    /// What several of these tell together.
    pub fn merged<'a>(parts: impl IntoIterator<Item = &'a Held>) -> Self {
        let copies = parts
            .into_iter()
            .flat_map(|part| part.copies.iter().copied());
        Self::of(copies.collect())
    }

    fn of(mut copies: Vec<(SampleId, Home)>) -> Self {
        copies.sort_unstable_by_key(|&(sample, home)| (sample, preference(sample, home)));
        copies.dedup();
        let mut bounded = Vec::with_capacity(copies.len());
        for same in copies.chunk_by(|a, b| a.0 == b.0) {
            bounded.extend_from_slice(&same[..same.len().min(HOLDERS_MAX)]);
        }
        Self {
            copies: bounded.into(),
        }
    }

    /// What is held of a range of samples.
    #[must_use]
    pub fn within(&self, samples: Range<u32>) -> Self {
        let place = |end: u32| self.copies.partition_point(|(sample, _)| sample.0 < end);
        Self {
            copies: self.copies[place(samples.start)..place(samples.end).max(place(samples.start))]
                .into(),
        }
    }

    /// Whether nothing is known to be held.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// All that is held, by sample.
    pub fn iter(&self) -> impl Iterator<Item = (SampleId, Home)> + '_ {
        self.copies.iter().copied()
    }

    /// The holders of a sample.
    pub fn holders(&self, sample: SampleId) -> impl Iterator<Item = Home> + Clone + '_ {
        let first = self.copies.partition_point(|(other, _)| *other < sample);
        let copies = self.copies[first..].iter();
        copies
            .take_while(move |(other, _)| *other == sample)
            .map(|(_, home)| *home)
    }

    /// What a rank's tiers hold.
    pub fn of_rank(&self, rank: Rank) -> impl Iterator<Item = (SampleId, TierId)> + '_ {
        let copies = self
            .copies
            .iter()
            .filter(move |(_, home)| home.rank == rank);
        copies.map(|(sample, home)| (*sample, home.tier))
    }
}

/// Which holders of a sample are remembered: other ones from sample to sample, so that where everybody holds everything
/// no rank is to serve all of it.
fn preference(sample: SampleId, home: Home) -> (u32, Rank, TierId) {
    let mixed = (home.rank.0 ^ sample.0.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (mixed.rotate_left(16), home.rank, home.tier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copies() -> impl Strategy<Value = Vec<(u32, u32, u8)>> {
        prop::collection::vec((0u32..6, 0u32..9, 1u8..4), 0..80)
    }

    fn held(copies: &[(u32, u32, u8)]) -> Held {
        let one = |&(sample, rank, tier): &(u32, u32, u8)| {
            Held::by_rank(Rank(rank), &[(SampleId(sample), TierId(tier))])
        };
        let all: Vec<Held> = copies.iter().map(one).collect();
        Held::merged(&all)
    }

    proptest! {
        #[test]
        fn four_holders_of_each_sample_are_remembered_whatever_the_way_they_are_told(
            copies in copies(), cut in 0usize..80, at in 0u32..7,
        ) {
            let whole = held(&copies);
            let (some, others) = copies.split_at(cut.min(copies.len()));
            prop_assert_eq!(&Held::merged(&[held(others), held(some)]), &whole);
            let ranges = [whole.within(0..at), whole.within(at..6.max(at))];
            prop_assert_eq!(&Held::merged(&ranges), &whole);
            for sample in 0..6 {
                let mut told: Vec<_> = copies.iter().filter(|copy| copy.0 == sample).collect();
                told.sort_unstable();
                told.dedup();
                let holders: Vec<Home> = whole.holders(SampleId(sample)).collect();
                prop_assert_eq!(holders.len(), told.len().min(HOLDERS_MAX));
                for holder in holders {
                    prop_assert!(told.contains(&&(sample, holder.rank.0, holder.tier.0)));
                }
            }
        }
    }

    #[test]
    fn where_everybody_holds_everything_each_rank_is_remembered_about_as_often() {
        let ranks = 16;
        let samples: Vec<_> = (0..1000)
            .map(|sample| (SampleId(sample), TierId(1)))
            .collect();
        let all: Vec<Held> = (0..ranks)
            .map(|rank| Held::by_rank(Rank(rank), &samples))
            .collect();
        let held = Held::merged(&all);
        for rank in (0..ranks).map(Rank) {
            let count = held.of_rank(rank).count();
            assert!((125..=500).contains(&count), "rank {rank}: {count} of 250");
        }
    }
}
