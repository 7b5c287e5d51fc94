//! A keyed permutation of `0..samples` that needs no memory: any position, and the position of any sample, in constant
//! time.
//!
//! A point of the grid `rows x columns >= samples` is a pair of halves. A round adds to one half a hash of the other,
//! modulo its size, which can be undone; rounds alternate. A result outside `0..samples` is put in again until it falls
//! inside (cycle walking): the grid has fewer points to spare than rows, so that is rare.
//!
//! It is a good shuffle, not a cipher: the tests compare it with Fisher-Yates, nobody should keep a secret with it.

/// Six rounds at least: with four the tests of large sizes still pass, two more are the margin.
const ROUND_PAIRS_MIN: u32 = 3;

/// Unevenness of pairs shrinks by about the size of a half with every two rounds; this many bits of shrinking are
/// below what a statistic over all epochs of a job could see.
const EVENNESS_BITS: u32 = 20;

/// `SplitMix64`'s increment and multipliers, also used in the rounds: odd, with well spread bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_1: u64 = 0xbf58_476d_1ce4_e5b9;
const MIX_2: u64 = 0x94d0_49bb_1331_11eb;

/// A permutation of `0..samples`.
#[derive(Clone, Debug)]
pub struct Feistel {
    samples: u32,
    /// Even, or both parities of permutations could not be reached; `u64` as 65,536 rows times columns pass 32 bits.
    rows: u64,
    columns: u64,
    /// `2^64 / columns`, rounded up: the quotient of a 33-bit number is the high half of one multiplication.
    per_column: u64,
    /// Of the rounds two by two: one that moves the row, one that moves the column.
    keys: Box<[[u64; 2]]>,
}

impl Feistel {
    /// The permutation of this key.
    ///
    /// # Panics
    ///
    /// When there are no samples.
    pub fn new(samples: u32, key: u64) -> Self {
        assert!(samples > 0, "a permutation of nothing");
        let n = u64::from(samples);
        let root = n.isqrt();
        let rows = (if root * root < n { root + 1 } else { root }).next_multiple_of(2);
        let columns = n.div_ceil(rows);
        let half_bits = rows.ilog2().max(1);
        let pairs = EVENNESS_BITS.div_ceil(half_bits).max(ROUND_PAIRS_MIN);
        let mut state = key;
        let mut next = || {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        };
        let keys = (0..pairs).map(|_| [next(), next()]).collect();
        Self {
            samples,
            rows,
            columns,
            per_column: (u64::MAX / columns).wrapping_add(1),
            keys,
        }
    }

    /// The key of one epoch of a job with this seed; other epochs and seeds have unrelated ones.
    pub(super) fn key(seed: u64, epoch: u32) -> u64 {
        mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(u64::from(epoch)))
    }

    /// How many numbers are permuted.
    pub(super) fn samples(&self) -> u32 {
        self.samples
    }

    /// Where `position` is sent.
    ///
    /// # Panics
    ///
    /// When `position` is not below the number of samples.
    #[inline]
    pub fn at(&self, position: u32) -> u32 {
        assert!(
            position < self.samples,
            "position {position} of {}",
            self.samples
        );
        let mut point = u64::from(position);
        loop {
            let (mut row, mut column) = self.halves(point);
            for &[to_row, to_column] in &self.keys {
                row = added(row, hash(to_row, column, self.rows), self.rows);
                column = added(column, hash(to_column, row, self.columns), self.columns);
            }
            point = row * self.columns + column;
            if point < u64::from(self.samples) {
                return point as u32;
            }
        }
    }

    /// What is sent to `sample`.
    ///
    /// # Panics
    ///
    /// When `sample` is not below the number of samples.
    #[inline]
    pub fn invert(&self, sample: u32) -> u32 {
        assert!(sample < self.samples, "sample {sample} of {}", self.samples);
        let mut point = u64::from(sample);
        loop {
            let (mut row, mut column) = self.halves(point);
            for &[to_row, to_column] in self.keys.iter().rev() {
                column = taken(column, hash(to_column, row, self.columns), self.columns);
                row = taken(row, hash(to_row, column, self.rows), self.rows);
            }
            point = row * self.columns + column;
            if point < u64::from(self.samples) {
                return point as u32;
            }
        }
    }

    #[inline]
    fn halves(&self, point: u64) -> (u64, u64) {
        // One column is the one size whose reciprocal does not fit.
        let row = if self.columns == 1 {
            point
        } else {
            ((u128::from(point) * u128::from(self.per_column)) >> 64) as u64
        };
        (row, point - row * self.columns)
    }
}

/// `half` as a number below `size`, scattered by `key`.
#[inline]
fn hash(key: u64, half: u64, size: u64) -> u64 {
    let x = (half ^ key).wrapping_mul(MIX_1);
    let x = (x ^ (x >> 32)).wrapping_mul(MIX_2);
    ((u128::from(x) * u128::from(size)) >> 64) as u64
}

#[inline]
fn added(half: u64, amount: u64, size: u64) -> u64 {
    // Below `size` the difference wraps to something huge. No branch: it would be taken at random.
    let sum = half + amount;
    sum.min(sum.wrapping_sub(size))
}

#[inline]
fn taken(half: u64, amount: u64, size: u64) -> u64 {
    let difference = half.wrapping_sub(amount);
    difference.min(difference.wrapping_add(size))
}

/// `SplitMix64`'s finisher.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(MIX_1);
    let x = (x ^ (x >> 27)).wrapping_mul(MIX_2);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reciprocal_divides_exactly() {
        for samples in [
            1,
            2,
            3,
            4,
            5,
            9,
            10,
            1000,
            65_535,
            150_000,
            14_197_122,
            u32::MAX - 1,
            u32::MAX,
        ] {
            let feistel = Feistel::new(samples, 0);
            let end = feistel.rows * feistel.columns;
            assert!(end >= u64::from(samples) && end - u64::from(samples) < feistel.rows);
            for point in (0..end.min(5000)).chain(end.saturating_sub(5000)..end) {
                assert_eq!(
                    feistel.halves(point),
                    (point / feistel.columns, point % feistel.columns)
                );
            }
        }
    }

    #[test]
    fn the_keys_of_epochs_and_seeds_differ() {
        let mut keys: Vec<u64> = (0..50)
            .flat_map(|seed| (0..50).map(move |epoch| Feistel::key(seed, epoch)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 2500);
    }
}
