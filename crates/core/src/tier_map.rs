//! Sample -> tier, packed: a rank's holdings, or where a plan wants samples kept. One to eight bits a sample,
//! depending on how many tiers there are, because the simulator has one map for every rank.

use crate::ids::{SampleId, TierId};

/// Which tier, if any, each sample is in.
#[derive(Clone, Debug)]
pub struct TierMap {
    words: Vec<u64>,
    bits: u32,
}

impl TierMap {
    /// A map of a rank that keeps nothing, ever; takes no memory.
    pub fn nothing() -> Self {
        Self {
            words: Vec::new(),
            bits: 1,
        }
    }

    /// A map with every sample in no tier. `tiers` counts the staging buffer, which is never in it.
    pub fn new(samples: u32, tiers: usize) -> Self {
        let bits = match tiers {
            0..=2 => 1,
            3..=4 => 2,
            5..=16 => 4,
            _ => 8,
        };
        let words = (samples as usize * bits as usize).div_ceil(64);
        Self {
            words: vec![0; words],
            bits,
        }
    }

    /// Whether this is the map that can hold nothing.
    pub fn is_nothing(&self) -> bool {
        self.words.is_empty()
    }

    #[inline]
    fn place(&self, sample: SampleId) -> (usize, u32) {
        let bit = sample.index() * self.bits as usize;
        (bit / 64, (bit % 64) as u32)
    }

    /// The tier a sample is in.
    #[inline]
    pub fn get(&self, sample: SampleId) -> Option<TierId> {
        let (word, shift) = self.place(sample);
        let tier = (self.words.get(word)? >> shift) & ((1 << self.bits) - 1);
        (tier != 0).then_some(TierId(tier as u8))
    }

    /// The samples that are in a tier, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SampleId, TierId)> + '_ {
        let entries = 64 / self.bits;
        let busy = self
            .words
            .iter()
            .enumerate()
            .filter(|&(_, &word)| word != 0);
        busy.flat_map(move |(index, _)| {
            let first = index as u32 * entries;
            (first..first + entries)
                .filter_map(|sample| Some((SampleId(sample), self.get(SampleId(sample))?)))
        })
    }

    /// Puts a sample into a tier, or into none.
    ///
    /// # Panics
    /// If the map was made for fewer tiers.
    #[inline]
    pub fn set(&mut self, sample: SampleId, tier: Option<TierId>) {
        let value = tier.map_or(0, |tier| u64::from(tier.0));
        assert!(
            value < 1 << self.bits,
            "tier {value} is beyond the map's tiers"
        );
        let (word, shift) = self.place(sample);
        let mask = ((1 << self.bits) - 1) << shift;
        self.words[word] = self.words[word] & !mask | value << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn remembers_the_last_tier_of_every_sample(
            tiers in 2usize..20,
            changes in prop::collection::vec((0u32..50, 0u8..20), 0..200),
        ) {
            let mut map = TierMap::new(50, tiers);
            let mut naive = [None; 50];
            for (sample, tier) in changes {
                let tier = (tier > 0 && usize::from(tier) < tiers).then_some(TierId(tier));
                map.set(SampleId(sample), tier);
                naive[sample as usize] = tier;
            }
            for sample in 0..50 {
                prop_assert_eq!(map.get(SampleId(sample)), naive[sample as usize]);
            }
            let held = (0..50).filter_map(|sample| Some((SampleId(sample), naive[sample as usize]?)));
            prop_assert_eq!(map.iter().collect::<Vec<_>>(), held.collect::<Vec<_>>());
        }
    }
}
