//! Random numbers that are a function of what they are for.
//!
//! A [`Key`] and the place of a transform in its list make a 64-bit state by mixing in one after the other; `SplitMix64`
//! goes on from there. Nothing is shared or carried over, so the numbers of a sample are the same on every thread, rank
//! and machine, and one transform's numbers do not depend on how many another draws. They are stable for ever: golden
//! tests hold them.

/// `SplitMix64`'s increment and multipliers: odd, with well spread bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_1: u64 = 0xbf58_476d_1ce4_e5b9;
const MIX_2: u64 = 0x94d0_49bb_1331_11eb;

/// Whose random numbers: a sample in an epoch of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Key {
    /// The job's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The sample's number in the dataset.
    pub sample: u64,
}

impl Key {
    /// A seed for whoever draws with a generator of their own.
    pub fn seed_for_others(self) -> u64 {
        // No list of transforms has this place.
        Draws::new(self, usize::MAX).next()
    }
}

/// The random numbers of one transform for one sample.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    /// Of the transform at this place.
    pub(crate) fn new(key: Key, place: usize) -> Self {
        let parts = [key.seed, key.epoch, key.sample, place as u64];
        Self {
            state: parts.iter().fold(0, |state: u64, part| {
                mix(state.wrapping_add(GOLDEN) ^ mix(*part))
            }),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Even in `[0, 1)`, with 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Even in `[low, high)`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Even in `0..count`; the unevenness of one in 2^32 is below what any training could see.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        assert!(count > 0, "a draw from nothing");
        (((self.next() >> 32) * u64::from(count)) >> 32) as u32
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(MIX_1);
    z = (z ^ (z >> 27)).wrapping_mul(MIX_2);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        seed: 7,
        epoch: 3,
        sample: 812,
    };

    #[test]
    fn numbers_never_change_between_versions() {
        let mut draws = Draws::new(KEY, 1);
        let numbers: Vec<u64> = (0..4).map(|_| draws.next()).collect();
        // Made by tests/data/make_fixtures.py.
        let golden = [
            13_217_613_956_184_392_574,
            12_065_471_040_303_505_536,
            1_131_979_504_854_416_577,
            11_463_749_664_425_374_448,
        ];
        assert_eq!(numbers, golden);
    }

    #[test]
    fn splitmix_gives_its_published_numbers() {
        let mut draws = Draws { state: 1_234_567 };
        let numbers: Vec<u64> = (0..3).map(|_| draws.next()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn every_part_of_the_key_changes_the_numbers() {
        let others = [
            (Key { seed: 8, ..KEY }, 1),
            (Key { epoch: 4, ..KEY }, 1),
            (Key { sample: 813, ..KEY }, 1),
            (
                Key {
                    epoch: 812,
                    sample: 3,
                    ..KEY
                },
                1,
            ),
            (KEY, 2),
        ];
        let first = Draws::new(KEY, 1).next();
        for (key, place) in others {
            assert_ne!(Draws::new(key, place).next(), first, "{key:?} {place}");
        }
    }

    #[test]
    fn neighbouring_samples_draw_evenly() {
        let mut counts = [0_u32; 16];
        for sample in 0..160_000 {
            counts[Draws::new(Key { sample, ..KEY }, 0).below(16) as usize] += 1;
        }
        // Five standard deviations of a binomial of 160,000 and 1/16.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 485),
            "{counts:?}"
        );
    }

    #[test]
    fn chances_of_zero_and_one_are_certain() {
        let mut draws = Draws::new(KEY, 0);
        assert!((0..1000).all(|_| !draws.chance(0.0)));
        assert!((0..1000).all(|_| draws.chance(1.0)));
    }
}
