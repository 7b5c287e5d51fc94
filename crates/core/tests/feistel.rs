//! The keyed permutation: that it is one, and that it shuffles like Fisher-Yates.
//!
//! Each statistic is a chi-square over epochs, compared with the critical value at p = 1e-4; a true shuffle goes
//! through the same statistic, so a statistic that is wrong shows itself. Seeds are fixed: nothing here is flaky.

use foresee_core::ids::{Epoch, Position, SampleId};
use foresee_core::stream::{Feistel, Orders, Shuffle};
use proptest::prelude::*;

/// A way to get an epoch's order as a list: sample by position.
type Draw<'a> = &'a dyn Fn(u32) -> Vec<u32>;

/// The orders of a feistel job.
fn keyed(samples: u32) -> impl Fn(u32) -> Vec<u32> {
    let orders = Orders::new(Shuffle::Feistel { seed: 20 }, samples, u32::MAX).expect("orders");
    move |epoch| {
        let order = orders.epoch(Epoch(epoch));
        (0..order.len())
            .map(|p| order.sample(Position(p)).0)
            .collect()
    }
}

/// Fisher-Yates with `SplitMix64`, started anew in every epoch.
fn shuffled(samples: u32) -> impl Fn(u32) -> Vec<u32> {
    move |epoch| {
        let mut state =
            u64::from(epoch).wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d;
        let mut below = |end: u32| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((u128::from(x ^ (x >> 31)) * u128::from(end)) >> 64) as usize
        };
        let mut list: Vec<u32> = (0..samples).collect();
        for i in (1..list.len()).rev() {
            list.swap(i, below(i as u32 + 1));
        }
        list
    }
}

/// The value a chi-square of so many degrees of freedom passes once in 10,000 times (Wilson and Hilferty).
fn critical(degrees: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + 3.719 * spread.sqrt()).powi(3)
}

fn chi_square(counts: &[u32], expected: impl Fn(usize) -> f64) -> f64 {
    let cells = counts.iter().enumerate();
    cells
        .map(|(cell, &count)| (f64::from(count) - expected(cell)).powi(2) / expected(cell))
        .sum()
}

fn assert_even(what: &str, value: f64, degrees: f64) {
    let limit = critical(degrees);
    assert!(
        value < limit,
        "{what}: chi-square {value:.0} over {degrees:.0} degrees of freedom, limit {limit:.0}"
    );
}

/// How often each sample stands at each position.
fn positions_are_even(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let n = samples as usize;
    let mut counts = vec![0; n * n];
    for epoch in 0..epochs {
        for (position, sample) in draw(epoch).into_iter().enumerate() {
            counts[sample as usize * n + position] += 1;
        }
    }
    let expected = f64::from(epochs) / f64::from(samples);
    let degrees = f64::from(samples - 1).powi(2);
    assert_even(
        &format!("{what}: positions of {samples}"),
        chi_square(&counts, |_| expected),
        degrees,
    );
}

/// Where two samples stand together, in cells of `bins` x `bins` ranges of positions.
fn pairs_are_even(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let bins = 10.min(samples);
    let bin = |position: usize| (position as u64 * u64::from(bins) / u64::from(samples)) as u32;
    let n = f64::from(samples);
    let widths: Vec<f64> = (0..bins)
        .map(|b| {
            f64::from(
                (0..samples as usize)
                    .filter(|&position| bin(position) == b)
                    .count() as u32,
            )
        })
        .collect();
    let root = samples.isqrt();
    // Neighbours, halves of the grid, the ends: where a weak network would show.
    let pairs = [
        (0, 1),
        (0, root),
        (1, root + 1),
        (root, 2 * root),
        (0, samples / 2),
        (0, samples - 1),
        (3, 4),
    ];
    let pairs = pairs.map(|(a, b)| (a % samples, b % samples));
    let mut counts = vec![vec![0; (bins * bins) as usize]; pairs.len()];
    for epoch in 0..epochs {
        let list = draw(epoch);
        let place = |sample: u32| list.iter().position(|&s| s == sample).map_or(0, bin);
        for (&(a, b), counts) in pairs.iter().zip(&mut counts) {
            counts[(place(a) * bins + place(b)) as usize] += 1;
        }
    }
    for (pair, counts) in pairs.iter().zip(&counts).filter(|((a, b), _)| a != b) {
        let expected = |cell: usize| {
            let a = cell / bins as usize;
            let b = cell % bins as usize;
            let same = if a == b { 1.0 } else { 0.0 };
            f64::from(epochs) * widths[a] * (widths[b] - same) / (n * (n - 1.0))
        };
        let value: f64 = counts.iter().enumerate().fold(0.0, |sum, (cell, &count)| {
            let expected = expected(cell);
            if expected == 0.0 {
                assert_eq!(count, 0);
                return sum;
            }
            sum + (f64::from(count) - expected).powi(2) / expected
        });
        let impossible = if bins == samples {
            f64::from(bins)
        } else {
            0.0
        };
        let degrees = f64::from(bins * bins) - impossible - 1.0;
        assert_even(
            &format!("{what}: samples {pair:?} of {samples}"),
            value,
            degrees,
        );
    }
}

/// By how much a sample differs from the one before it.
fn differences_are_even(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let mut counts = vec![0; samples as usize - 1];
    for epoch in 0..epochs {
        for pair in draw(epoch).windows(2) {
            counts[((pair[1] + samples - pair[0]) % samples) as usize - 1] += 1;
        }
    }
    let expected = f64::from(epochs);
    let value = chi_square(&counts, |_| expected);
    assert_even(
        &format!("{what}: differences of {samples}"),
        value,
        f64::from(samples - 2),
    );
}

/// Rank of a permutation among all of its length.
fn lehmer(list: &[u32]) -> usize {
    (0..list.len()).fold(0, |rank, i| {
        let smaller = list[i + 1..]
            .iter()
            .filter(|&&later| later < list[i])
            .count();
        rank * (list.len() - i) + smaller
    })
}

fn permutations_are_even(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let all: u32 = (1..=samples).product();
    let mut counts = vec![0; all as usize];
    for epoch in 0..epochs {
        counts[lehmer(&draw(epoch))] += 1;
    }
    assert!(
        counts.iter().all(|&count| count > 0),
        "{what}: a permutation of {samples} never came"
    );
    let expected = f64::from(epochs) / f64::from(all);
    let value = chi_square(&counts, |_| expected);
    assert_even(
        &format!("{what}: permutations of {samples}"),
        value,
        f64::from(all - 1),
    );
}

/// How often permutations are even and odd.
fn parities_are_even(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let mut counts = [0; 2];
    for epoch in 0..epochs {
        let list = draw(epoch);
        let inversions = |i: usize| {
            list[i + 1..]
                .iter()
                .filter(|&&later| later < list[i])
                .count()
        };
        counts[(0..list.len()).map(inversions).sum::<usize>() % 2] += 1;
    }
    let value = chi_square(&counts, |_| f64::from(epochs) / 2.0);
    assert_even(&format!("{what}: parities of {samples}"), value, 1.0);
}

/// Where a sample stands in an epoch and in the next.
fn epochs_are_unrelated(what: &str, samples: u32, epochs: u32, draw: Draw<'_>) {
    let n = samples as usize;
    let mut counts = vec![0; n * n];
    let place = |epoch| {
        draw(epoch)
            .iter()
            .position(|&sample| sample == 2)
            .unwrap_or(n)
    };
    let mut before = place(0);
    for epoch in 1..=epochs {
        let now = place(epoch);
        counts[before * n + now] += 1;
        before = now;
    }
    let value = chi_square(&counts, |_| {
        f64::from(epochs) / f64::from(samples * samples)
    });
    assert_even(
        &format!("{what}: epochs of {samples}"),
        value,
        f64::from(samples * samples - 1),
    );
}

#[test]
fn every_small_size_is_permuted_and_inverted() {
    for samples in 1..=300 {
        for key in 0..5 {
            let feistel = Feistel::new(samples, key);
            let mut seen = vec![false; samples as usize];
            for position in 0..samples {
                let sample = feistel.at(position);
                assert!(
                    !std::mem::replace(&mut seen[sample as usize], true),
                    "{samples} samples: {sample} twice"
                );
                assert_eq!(feistel.invert(sample), position);
            }
        }
    }
}

#[test]
fn an_order_inverts_and_knows_its_bounds() {
    let order = Orders::new(Shuffle::Feistel { seed: 3 }, 1000, 7)
        .expect("orders")
        .epoch(Epoch(6));
    for position in (0..order.len()).map(Position) {
        assert_eq!(order.position(order.sample(position)), Some(position));
    }
    assert_eq!(order.position(SampleId(1000)), None);
}

#[test]
fn every_permutation_of_few_samples_comes_equally_often() {
    for (samples, epochs) in [
        (2, 20_000),
        (3, 60_000),
        (4, 120_000),
        (5, 120_000),
        (6, 150_000),
        (7, 150_000),
    ] {
        permutations_are_even("feistel", samples, epochs, &keyed(samples));
        permutations_are_even("fisher-yates", samples, epochs, &shuffled(samples));
    }
}

#[test]
fn every_permutation_of_eight_samples_comes_equally_often() {
    permutations_are_even("feistel", 8, 800_000, &keyed(8));
}

#[test]
fn every_sample_stands_at_every_position_equally_often() {
    for (samples, epochs) in [
        (5, 100_000),
        (9, 100_000),
        (16, 50_000),
        (50, 20_000),
        (101, 10_000),
        (400, 4000),
    ] {
        positions_are_even("feistel", samples, epochs, &keyed(samples));
        positions_are_even("fisher-yates", samples, epochs, &shuffled(samples));
    }
}

#[test]
fn two_samples_stand_at_every_pair_of_positions_equally_often() {
    for (samples, epochs) in [
        (6, 100_000),
        (9, 100_000),
        (10, 100_000),
        (16, 60_000),
        (100, 20_000),
        (1000, 5000),
    ] {
        pairs_are_even("feistel", samples, epochs, &keyed(samples));
        pairs_are_even("fisher-yates", samples, epochs, &shuffled(samples));
    }
}

#[test]
fn every_difference_of_neighbours_comes_equally_often() {
    for (samples, epochs) in [
        (7, 50_000),
        (16, 50_000),
        (101, 10_000),
        (1000, 2000),
        (150_000, 30),
    ] {
        differences_are_even("feistel", samples, epochs, &keyed(samples));
        differences_are_even("fisher-yates", samples, epochs, &shuffled(samples));
    }
}

#[test]
fn two_samples_of_a_large_dataset_stand_anywhere() {
    // 2000 rows and columns: the last digit of a position is that of its column, the first of its row.
    let samples = 4_000_000;
    let epochs = 50_000;
    let orders = Orders::new(Shuffle::Feistel { seed: 4 }, samples, epochs).expect("orders");
    for (a, b) in [
        (0, 1),
        (0, 2000),
        (1, 2001),
        (0, samples - 1),
        (123_456, 123_458),
    ] {
        let mut counts = [[0; 100]; 4];
        for order in (0..epochs).map(|epoch| orders.epoch(Epoch(epoch))) {
            let digits = |sample| {
                let place = order
                    .position(SampleId(sample))
                    .map_or(0, |position| position.0);
                [
                    (place % 10) as usize,
                    (place * 10 / u64::from(samples)) as usize,
                ]
            };
            let a = digits(a);
            let b = digits(b);
            for (cell, counts) in counts.iter_mut().enumerate() {
                counts[a[cell / 2] * 10 + b[cell % 2]] += 1;
            }
        }
        for counts in counts {
            let value = chi_square(&counts, |_| f64::from(epochs) / 100.0);
            assert_even(
                &format!("feistel: samples {a} and {b} of {samples}"),
                value,
                99.0,
            );
        }
    }
}

#[test]
fn even_and_odd_permutations_come_equally_often() {
    for samples in (2..=30).chain([49, 81, 121]) {
        parities_are_even("feistel", samples, 4000, &keyed(samples));
        parities_are_even("fisher-yates", samples, 4000, &shuffled(samples));
    }
}

#[test]
fn an_epoch_tells_nothing_of_the_next() {
    for samples in [5, 10, 16] {
        epochs_are_unrelated("feistel", samples, 50_000, &keyed(samples));
        epochs_are_unrelated("fisher-yates", samples, 50_000, &shuffled(samples));
    }
}

proptest! {
    #[test]
    fn any_size_is_inverted(samples in 1..=u32::MAX, key: u64, points in prop::collection::vec(any::<u32>(), 50)) {
        let feistel = Feistel::new(samples, key);
        for point in points.into_iter().map(|point| point % samples).chain([0, samples - 1]) {
            let sample = feistel.at(point);
            prop_assert!(sample < samples);
            prop_assert_eq!(feistel.invert(sample), point);
            prop_assert_eq!(feistel.at(feistel.invert(point)), point);
        }
    }

    #[test]
    fn any_middle_size_is_a_permutation(samples in 300_u32..20_000, key: u64) {
        let feistel = Feistel::new(samples, key);
        let mut list: Vec<u32> = (0..samples).map(|position| feistel.at(position)).collect();
        list.sort_unstable();
        prop_assert!(list.into_iter().eq(0..samples));
    }
}
