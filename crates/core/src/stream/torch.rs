//! `torch.randperm` on the CPU, number for number: MT19937 and the two shuffles torch makes with it.
//!
//! Golden vectors made by the real thing are in `tests/data/torch_order.json`; they cover the short shuffle. The long
//! one needs over 214 million samples and is checked against the published algorithm at small sizes.

use crate::ids::SampleId;

const WORDS: usize = 624;
const SHIFT: usize = 397;
const UPPER: u32 = 0x8000_0000;
const TWIST: u32 = 0x9908_b0df;

/// From here on torch draws 64 bits a sample: `u32::MAX / 20`, where 32 bits would show their skew.
const LONG: u32 = u32::MAX / 20;

/// Draws made ahead of their swaps, so that the misses of the swaps overlap (bench `torch_order`).
const DRAWN_AHEAD: usize = 64;

/// The Mersenne Twister that torch's CPU generator is.
struct Mt19937 {
    state: [u32; WORDS],
    next: usize,
}

impl Mt19937 {
    fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for i in 1..WORDS {
            let previous = state[i - 1];
            state[i] = 1_812_433_253_u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(i as u32);
        }
        Self { state, next: WORDS }
    }

    fn refill(&mut self) {
        let mix = |high: u32, low: u32| {
            let y = (high & UPPER) | (low & !UPPER);
            (y >> 1) ^ ((y & 1).wrapping_neg() & TWIST)
        };
        let state = &mut self.state;
        for i in 0..WORDS - SHIFT {
            state[i] = state[i + SHIFT] ^ mix(state[i], state[i + 1]);
        }
        for i in WORDS - SHIFT..WORDS - 1 {
            state[i] = state[i + SHIFT - WORDS] ^ mix(state[i], state[i + 1]);
        }
        state[WORDS - 1] = state[SHIFT - 1] ^ mix(state[WORDS - 1], state[0]);
        self.next = 0;
    }

    #[inline]
    fn draw(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Two draws, the first on top.
    #[inline]
    fn draw_64(&mut self) -> u64 {
        let high = u64::from(self.draw());
        high << 32 | u64::from(self.draw())
    }
}

/// The permutation that torch draws with a generator seeded `seed`.
pub(super) fn randperm(samples: u32, seed: u64) -> Vec<SampleId> {
    // torch keeps 64 bits of the seed and starts the engine with the low half.
    let engine = Mt19937::new(seed as u32);
    if samples < LONG {
        short(samples, engine)
    } else {
        long(samples, engine)
    }
}

/// Fisher-Yates from the front: position i is swapped with one of those not yet settled.
fn short(samples: u32, mut engine: Mt19937) -> Vec<SampleId> {
    let mut order: Vec<SampleId> = (0..samples).map(SampleId).collect();
    let swaps = samples.saturating_sub(1);
    let mut ahead = [0; DRAWN_AHEAD];
    let mut from = 0;
    while from < swaps {
        let count = (swaps - from).min(DRAWN_AHEAD as u32);
        for (i, with) in (from..from + count).zip(&mut ahead) {
            *with = i + engine.draw() % (samples - i);
        }
        for (i, &with) in (from..from + count).zip(&ahead) {
            order.swap(i as usize, with as usize);
        }
        from += count;
    }
    order
}

/// Inside-out: sample i takes a place among the first i + 1, whose sample moves to the end.
fn long(samples: u32, mut engine: Mt19937) -> Vec<SampleId> {
    let mut order = Vec::with_capacity(samples as usize);
    for i in 0..samples {
        let place = (engine.draw_64() % (u64::from(i) + 1)) as usize;
        order.push(SampleId(i));
        order[i as usize] = order[place];
        order[place] = SampleId(i);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_draws_the_published_numbers() {
        let mut engine = Mt19937::new(5489);
        assert_eq!(
            [engine.draw(), engine.draw(), engine.draw()],
            [3_499_211_612, 581_869_302, 3_890_346_734]
        );
        // The 10,000th draw is the check value of the C++ standard.
        let mut engine = Mt19937::new(5489);
        assert_eq!(
            (0..10_000).map(|_| engine.draw()).last(),
            Some(4_123_659_995)
        );
    }

    #[test]
    fn a_draw_of_64_bits_has_the_first_draw_on_top() {
        assert_eq!(
            Mt19937::new(5489).draw_64(),
            (3_499_211_612 << 32) + 581_869_302
        );
    }

    #[test]
    fn the_long_shuffle_is_the_inside_out_one() {
        let mut engine = Mt19937::new(9);
        let mut reference: Vec<u32> = Vec::new();
        for i in 0..50_u32 {
            let draw = u128::from(engine.draw()) * (1 << 32) + u128::from(engine.draw());
            reference.insert((draw % u128::from(i + 1)) as usize, i);
            // What stood at that place goes to the end, where the insertion shifted everything by one.
            let place = (draw % u128::from(i + 1)) as usize;
            if place < i as usize {
                let moved = reference.remove(place + 1);
                reference.push(moved);
            }
        }
        let order: Vec<u32> = long(50, Mt19937::new(9))
            .into_iter()
            .map(|sample| sample.0)
            .collect();
        assert_eq!(order, reference);
    }

    #[test]
    fn only_the_low_half_of_the_seed_counts() {
        assert_eq!(randperm(100, 5), randperm(100, 5 + (1 << 32)));
        assert_ne!(randperm(100, 5), randperm(100, 6));
    }

    #[test]
    fn the_shortest_orders_are_whole() {
        assert_eq!(randperm(1, 3), [SampleId(0)]);
        for samples in [2, 63, 64, 65, 66, 129] {
            let mut order = randperm(samples, 3);
            order.sort_unstable();
            assert!(order.iter().map(|sample| sample.0).eq(0..samples));
        }
    }
}
