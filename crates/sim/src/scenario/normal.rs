//! Normally distributed numbers that are the same on every machine and in every release.
//!
//! `SplitMix64` (Steele, Lea, Flood 2014) gives the bits, the Box-Muller transform makes them normal. The standard
//! library's logarithm and cosine may differ in the last bit from platform to platform, so both are computed here
//! from operations that IEEE 754 fixes exactly (+, -, *, / and square root). Published results depend on every
//! bit: nothing in this file may change.

use std::f64::consts::{FRAC_PI_2, LN_2, SQRT_2};

/// No draw is further than this from the mean: the smallest uniform is 2^-53, and sqrt(2 ln 2^53) < 8.58.
pub(super) const SIGMAS_MAX: f64 = 8.58;

/// An endless row of standard normal numbers; the k-th depends on the seed and k alone.
pub(super) struct Normal {
    state: u64,
}

impl Normal {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in steps of 2^-53, from 0 to below 1.
    fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

impl Iterator for Normal {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let radius = (-2.0 * ln(1.0 - self.next_unit())).sqrt();
        Some(radius * cos_turns(self.next_unit()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// The natural logarithm of a normal float above 0: of its power of two and, by the series of
/// ln((1+t)/(1-t)) = 2 (t + t^3/3 + t^5/5 + ...), of its mantissa. |t| < 0.172, so 12 terms suffice.
fn ln(number: f64) -> f64 {
    let bits = number.to_bits();
    let mut exponent = f64::from((bits >> 52) as i32 - 1023);
    let mut mantissa = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000);
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for odd in (1..=23).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    exponent * LN_2 + 2.0 * t * sum
}

/// The cosine of so many turns, from 0 to below 1: of the angle to the nearest quarter turn, by Taylor's series.
fn cos_turns(turns: f64) -> f64 {
    let quarters = turns * 4.0;
    let nearest = (quarters + 0.5).floor();
    let angle = (quarters - nearest) * FRAC_PI_2;
    match nearest as u32 % 4 {
        0 => cos_small(angle),
        1 => -sin_small(angle),
        2 => -cos_small(angle),
        _ => sin_small(angle),
    }
}

/// Up to an eighth of a turn either way.
fn cos_small(angle: f64) -> f64 {
    series(angle * angle, 16)
}

/// Up to an eighth of a turn either way.
fn sin_small(angle: f64) -> f64 {
    angle * series(angle * angle, 17)
}

/// 1 - q/((n-1) n) (1 - ...), nested from the term of order `order` down; even orders give cos, odd ones sin(x)/x.
fn series(square: f64, order: u32) -> f64 {
    let mut sum = 1.0;
    let mut n = order;
    while n >= 2 {
        sum = 1.0 - square / f64::from(n * (n - 1)) * sum;
        n -= 2;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_numbers() {
        // The reference output for seed 1234567, as in the test vectors of several languages' libraries.
        let mut bits = Normal::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| bits.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn logarithm_and_cosine_agree_with_the_standard_library() {
        for step in 1..=100_000 {
            let unit = f64::from(step) / 100_000.0;
            assert!(
                (ln(unit) - unit.ln()).abs() <= 4e-16 * unit.ln().abs().max(1.0),
                "ln {unit}"
            );
            let turns = f64::from(step - 1) / 100_000.0;
            let cosine = (turns * std::f64::consts::TAU).cos();
            assert!(
                (cos_turns(turns) - cosine).abs() < 1e-15,
                "cos of {turns} turns"
            );
        }
        assert!((ln(2f64.powi(-53)) + 53.0 * LN_2).abs() < 1e-14);
    }

    #[test]
    fn no_draw_is_further_out_than_the_bound() {
        let furthest = (-2.0 * ln(2f64.powi(-53))).sqrt();
        assert!(furthest < SIGMAS_MAX, "{furthest}");
    }

    #[test]
    fn draws_have_the_moments_of_a_standard_normal() {
        let count = 1_000_000;
        let draws: Vec<f64> = Normal::new(7).take(count).collect();
        let moment =
            |power: i32| draws.iter().map(|draw| draw.powi(power)).sum::<f64>() / count as f64;
        // Five standard errors of each moment.
        assert!(moment(1).abs() < 0.005, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.0071, "{}", moment(2));
        assert!(moment(3).abs() < 0.0194, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.049, "{}", moment(4));
    }

    #[test]
    fn draws_never_change() {
        let draws: Vec<u64> = Normal::new(1).take(4).map(f64::to_bits).collect();
        assert_eq!(
            draws,
            [
                13_808_471_299_415_458_785,
                13_836_184_107_170_564_030,
                4_590_985_490_673_004_010,
                13_835_119_157_527_744_006
            ]
        );
        let digest = Normal::new(1).take(100_000).fold(0u64, |digest, draw| {
            (digest ^ draw.to_bits())
                .wrapping_mul(0x0000_0100_0000_01B3)
                .rotate_left(5)
        });
        assert_eq!(digest, 14_548_329_232_409_826_050);
    }
}
