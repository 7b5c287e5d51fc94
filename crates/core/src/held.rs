//! What the tiers of all ranks hold from before the job: of each sample at most four holders, so that what is known of
//! all ranks stays O(samples), however many hold the same. Ranks learn of each other's holdings by ranges of samples:
//! each tells those of every range ([`Held::within`]), and what was told of a range is put together by
//! [`Held::merged`], in whatever order and grouping it comes.
//!
//! What one rank tells of its own tiers travels as bytes ([`Held::encode`]), little-endian, under a checksum:
//!
//! ```text
//! rank u32  count u32  for each copy, by sample and tier: sample u32  tier u8
//! ```
//!
//! [`Held::decode`] believes nothing: whatever comes in ends as holdings that can be, or as a [`HeldError`].

use std::ops::Range;
use std::sync::Arc;

use crate::framed::{self, Broken};
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

/// What a rank's holdings are to be about.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Who tells of them.
    pub rank: Rank,
    /// The samples that were asked about.
    pub samples: Range<u32>,
    /// How many tiers it has, with the staging buffer, which keeps none.
    pub tiers: usize,
}

/// Why bytes are no holdings of a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeldError {
    /// They end too early, or go on too long.
    #[error("what rank {0} holds was cut off or has bytes behind its end")]
    Length(Rank),
    /// They are not as they were sent.
    #[error("what rank {0} holds is damaged: its checksum is another")]
    Damaged(Rank),
    /// They are another rank's.
    #[error("rank {rank} sent what rank {says} holds")]
    OtherRank {
        /// Who sent it.
        rank: Rank,
        /// Whose it says it is.
        says: Rank,
    },
    /// They say what cannot be.
    #[error("what rank {rank} holds cannot be: {what}")]
    Impossible {
        /// Whose.
        rank: Rank,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A sample and a tier.
const COPY_BYTES: usize = 5;

impl Held {
    /// What a rank tells of its own tiers.
    pub fn encode(&self, rank: Rank) -> Vec<u8> {
        let own: Vec<(SampleId, TierId)> = self.of_rank(rank).collect();
        let mut bytes = Vec::with_capacity(16 + own.len() * COPY_BYTES);
        bytes.extend(rank.0.to_le_bytes());
        bytes.extend((own.len() as u32).to_le_bytes());
        for (sample, tier) in own {
            bytes.extend(sample.0.to_le_bytes());
            bytes.push(tier.0);
        }
        framed::seal(bytes)
    }

    /// What a rank told of its own tiers.
    pub fn decode(bytes: &[u8], expected: &Expected) -> Result<Self, HeldError> {
        let rank = expected.rank;
        let mut rest = framed::open(bytes).map_err(|broken| match broken {
            Broken::Short => HeldError::Length(rank),
            Broken::Damaged => HeldError::Damaged(rank),
        })?;
        let says = framed::take(&mut rest).map(u32::from_le_bytes);
        let says = Rank(says.ok_or(HeldError::Length(rank))?);
        if says != rank {
            return Err(HeldError::OtherRank { rank, says });
        }
        let count = framed::take(&mut rest).map(u32::from_le_bytes);
        let count = count.ok_or(HeldError::Length(rank))? as usize;
        // Before memory is taken for so many.
        if rest.len() % COPY_BYTES != 0 || rest.len() / COPY_BYTES != count {
            return Err(HeldError::Length(rank));
        }
        let copies = rest.chunks_exact(COPY_BYTES).map(|copy| {
            let sample = u32::from_le_bytes([copy[0], copy[1], copy[2], copy[3]]);
            (SampleId(sample), TierId(copy[4]))
        });
        let copies: Vec<(SampleId, TierId)> = copies.collect();
        let impossible = |what| HeldError::Impossible { rank, what };
        for (sample, tier) in &copies {
            if !expected.samples.contains(&sample.0) {
                return Err(impossible("it names a sample that was not asked about"));
            }
            if tier.0 == 0 || tier.index() >= expected.tiers {
                return Err(impossible("it names a tier that is not there"));
            }
        }
        if !copies.is_sorted_by(|a, b| a < b) {
            return Err(impossible("its copies are not in order"));
        }
        Ok(Self::by_rank(rank, &copies))
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

    /// What a rank holds in three tiers of at most 50 samples.
    fn own() -> impl Strategy<Value = Vec<(SampleId, TierId)>> {
        let copies = prop::collection::btree_set((0u32..50, 1u8..4), 0..60);
        copies.prop_map(|copies| {
            let copies = copies.into_iter();
            copies
                .map(|(sample, tier)| (SampleId(sample), TierId(tier)))
                .collect()
        })
    }

    fn expected(rank: Rank) -> Expected {
        Expected {
            rank,
            samples: 0..50,
            tiers: 4,
        }
    }

    proptest! {
        #[test]
        fn what_a_rank_tells_is_understood(own in own(), rank in 0u32..9) {
            let rank = Rank(rank);
            let held = Held::by_rank(rank, &own);
            prop_assert_eq!(Held::decode(&held.encode(rank), &expected(rank)), Ok(held));
        }

        #[test]
        fn no_change_on_the_way_is_believed(
            own in own(), at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>(),
        ) {
            let told = Held::by_rank(Rank(1), &own).encode(Rank(1));
            let mut changed = told.clone();
            changed[at.index(told.len())] ^= 1 << bit;
            prop_assert!(Held::decode(&changed, &expected(Rank(1))).is_err());
            let cut = &told[..cut.index(told.len())];
            prop_assert!(Held::decode(cut, &expected(Rank(1))).is_err());
        }

        #[test]
        fn sealed_nonsense_is_refused_or_can_be(content in prop::collection::vec(any::<u8>(), 0..64)) {
            let sealed = framed::seal(content);
            if let Ok(held) = Held::decode(&sealed, &expected(Rank(0))) {
                prop_assert_eq!(held.encode(Rank(0)), sealed);
            }
        }
    }

    #[test]
    fn what_is_of_another_rank_range_or_tier_is_named() {
        let told = Held::by_rank(Rank(1), &[(SampleId(9), TierId(2))]).encode(Rank(1));
        let other_rank = Held::decode(&told, &expected(Rank(2)));
        let says = Rank(1);
        let rank = Rank(2);
        assert_eq!(other_rank, Err(HeldError::OtherRank { rank, says }));
        let narrow = Expected {
            samples: 0..9,
            ..expected(Rank(1))
        };
        let few_tiers = Expected {
            tiers: 2,
            ..expected(Rank(1))
        };
        for (expected, names) in [(narrow, "sample"), (few_tiers, "tier")] {
            let refused = Held::decode(&told, &expected).unwrap_err().to_string();
            assert!(refused.contains(names), "{refused}");
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
