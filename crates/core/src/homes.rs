//! Where each sample lives, when it lives on one rank only: its home, known to all ranks. Four bytes a sample.

use crate::ids::{Rank, SampleId, TierId};

/// The rank and tier that keep a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The holder.
    pub rank: Rank,
    /// In which of its tiers.
    pub tier: TierId,
}

/// The homes of all samples; a sample without one is not kept anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes {
    /// Rank above eight bits of tier. No home has tier 0, the staging buffer, so zero is "none".
    packed: Vec<u32>,
}

impl Homes {
    /// No sample has a home.
    pub fn none(samples: u32) -> Self {
        Self {
            packed: vec![0; samples as usize],
        }
    }

    /// The home of a sample.
    #[inline]
    pub fn get(&self, sample: SampleId) -> Option<Home> {
        let packed = self.packed[sample.index()];
        (packed != 0).then_some(Home {
            rank: Rank(packed >> 8),
            tier: TierId((packed & 0xff) as u8),
        })
    }

    /// Gives a sample a home, or none.
    ///
    /// # Panics
    /// If the tier is the staging buffer, or the rank beyond 2^24.
    pub fn set(&mut self, sample: SampleId, home: Option<Home>) {
        self.packed[sample.index()] = home.map_or(0, |Home { rank, tier }| {
            assert!(
                tier.0 != 0 && rank.0 < 1 << 24,
                "rank {rank} tier {tier} is no home"
            );
            rank.0 << 8 | u32::from(tier.0)
        });
    }

    /// How many samples there are, with or without a home.
    pub fn len(&self) -> u32 {
        self.packed.len() as u32
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The samples of each rank, in order.
    pub fn by_rank(&self, ranks: u32) -> Vec<Vec<SampleId>> {
        let mut samples = vec![Vec::new(); ranks as usize];
        for sample in (0..self.len()).map(SampleId) {
            if let Some(home) = self.get(sample) {
                samples[home.rank.index()].push(sample);
            }
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_rank_and_tier() {
        let mut homes = Homes::none(3);
        let home = Home {
            rank: Rank(65_535),
            tier: TierId(255),
        };
        homes.set(SampleId(1), Some(home));
        homes.set(
            SampleId(2),
            Some(Home {
                rank: Rank(0),
                tier: TierId(1),
            }),
        );
        assert_eq!([0, 1].map(|s| homes.get(SampleId(s))), [None, Some(home)]);
        homes.set(SampleId(1), None);
        assert_eq!(homes.by_rank(1), [vec![SampleId(2)]]);
    }
}
