//! Claims of the papers about access patterns, checked on the streams that foresee really deals.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use foresee_core::assign::{Redealer, local};
use foresee_core::homes::{Home, Homes};
use foresee_core::ids::{Epoch, Position, Rank, SampleId, Step, TierId};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use proptest::prelude::*;

/// P(X > threshold) for X ~ Binomial(trials, p), summed term by term.
fn binomial_tail(trials: u32, p: f64, threshold: u32) -> f64 {
    let mut log_term = f64::from(trials) * (1.0 - p).ln();
    let mut tail = 0.0;
    for k in 0..=trials {
        if k > threshold {
            tail += log_term.exp();
        }
        log_term += (f64::from(trials - k) / f64::from(k + 1)).ln() + (p / (1.0 - p)).ln();
    }
    tail
}

fn layout(samples: u32, world: u32, global_batch: u32) -> Layout {
    let deal = Deal::Blocked;
    Layout::new(LayoutSpec {
        positions: u64::from(samples),
        world,
        global_batch,
        deal,
        tail: Tail::Exact,
        drop_last: false,
    })
    .unwrap()
}

/// How often each rank uses each sample: `[rank][sample]`.
fn frequencies(orders: &Orders, layout: &Layout) -> Vec<Vec<u32>> {
    let start = Mark {
        epoch: Epoch(0),
        step: Step(0),
    };
    (0..layout.world())
        .map(|rank| {
            let mut uses = vec![0; orders.samples() as usize];
            Stream::new(orders.clone(), layout.clone(), Rank(rank), start)
                .for_each(|a| uses[a.sample.index()] += 1);
            uses
        })
        .collect()
}

#[test]
fn a_rank_uses_323_of_10000_samples_more_than_275_times() {
    let expected = 10_000.0 * binomial_tail(1000, 0.25, 275);
    assert!((expected - 323.0).abs() < 1.0, "expected {expected:.1}");
    let orders = Orders::new(Shuffle::Feistel { seed: 7 }, 10_000, 1000).unwrap();
    let uses = frequencies(&orders, &layout(10_000, 4, 100));
    for (rank, uses) in uses.iter().enumerate() {
        let often = uses.iter().filter(|&&count| count > 275).count() as f64;
        // Counts of rare events: a standard deviation of about 18.
        assert!(
            (often - expected).abs() < 4.0 * expected.sqrt(),
            "rank {rank}: {often} of {expected:.0} expected"
        );
    }
}

#[test]
fn most_samples_of_imagenet_are_used_4_to_6_times_by_a_rank() {
    // The NoPFS figure: 16 ranks, 90 epochs; on a tenth of the samples.
    let orders = Orders::new(Shuffle::Feistel { seed: 3 }, 128_116, 90).unwrap();
    let start = Mark {
        epoch: Epoch(0),
        step: Step(0),
    };
    let mut uses = vec![0u32; 128_116];
    Stream::new(orders, layout(128_116, 16, 256), Rank(5), start)
        .for_each(|a| uses[a.sample.index()] += 1);
    let share = |range: std::ops::RangeInclusive<u32>| {
        uses.iter().filter(|&&u| range.contains(&u)).count() as f64 / 128_116.0
    };
    let usual = binomial_tail(90, 1.0 / 16.0, 3) - binomial_tail(90, 1.0 / 16.0, 6);
    assert!(
        (share(4..=6) - usual).abs() < 0.01,
        "{} of {usual}",
        share(4..=6)
    );
    assert!(uses.iter().any(|&u| u >= 16), "the tail reaches 16 uses");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Lemma 1 of HDMLP: what one rank uses more often, another uses less often, and the other way round.
    #[test]
    fn who_uses_a_sample_more_leaves_less_to_another(
        samples in 1u32..60, world in 2u32..7, epochs in 1u32..40, batch in 1u32..20, seed: u64,
    ) {
        let orders = Orders::new(Shuffle::Feistel { seed }, samples, epochs).unwrap();
        let uses = frequencies(&orders, &layout(samples, world, batch));
        let n = f64::from(world);
        let mean = f64::from(epochs) / f64::from(world);
        for sample in 0..samples as usize {
            let total: u32 = uses.iter().map(|rank| rank[sample]).sum();
            prop_assert_eq!(total, epochs, "exactly once an epoch");
            for rank in 0..world as usize {
                let others = || (0..world as usize).filter(|&other| other != rank).map(|other| f64::from(uses[other][sample]));
                let delta = f64::from(uses[rank][sample]) / mean - 1.0;
                let least = others().fold(f64::INFINITY, f64::min);
                let most = others().fold(0.0, f64::max);
                let left = (n - 1.0 - delta) / (n - 1.0) * mean;
                prop_assert!(least <= (left - 1e-9).ceil());
                prop_assert!(most >= (left + 1e-9).floor());
            }
        }
    }
}

/// The share of a batch that moves between 16 ranks, over many batches: its median, in per cent.
fn imbalance_median(world: u32, local_batch: u32) -> f64 {
    let samples = world * local_batch * 40;
    let global_batch = world * local_batch;
    let orders = Orders::new(Shuffle::Feistel { seed: 11 }, samples, 50).unwrap();
    let shares = vec![local_batch; world as usize];
    let mut redealer = Redealer::new(world);
    let mut moved = Vec::new();
    for epoch in (0..50).map(Epoch) {
        let order = orders.epoch(epoch);
        for step in 0..40u64 {
            let positions = step * u64::from(global_batch)..(step + 1) * u64::from(global_batch);
            let mut batch: Vec<SampleId> = positions.map(|p| order.sample(Position(p))).collect();
            let count = redealer.redeal(&mut batch, &shares, |sample| Some(Rank(sample.0 % world)));
            moved.push(100.0 * f64::from(count) / f64::from(global_batch));
        }
    }
    moved.sort_by(f64::total_cmp);
    moved[moved.len() / 2]
}

#[test]
fn locality_aware_batches_move_few_samples() {
    for (local_batch, published) in [(32, 6.9), (64, 4.8), (128, 3.4)] {
        let median = imbalance_median(16, local_batch);
        assert!(
            (median - published).abs() <= 0.4,
            "16 ranks, {local_batch} each: {median:.2} %, published {published} %"
        );
    }
    for (local_batch, published) in [(32, 5.5), (64, 3.9), (128, 2.9)] {
        let median = imbalance_median(4, local_batch);
        assert!(
            (median - published).abs() <= 0.4,
            "4 ranks, {local_batch} each: {median:.2} %, published {published} %"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn redealt_orders_keep_the_set_of_every_global_batch(
        samples in 1u32..200, world in 1u32..6, batch in 1u32..40, seed: u64,
        deal in prop_oneof![Just(Deal::Strided), Just(Deal::Blocked)], held in 0u32..=100,
    ) {
        let layout = Layout::new(LayoutSpec {
            positions: u64::from(samples), world, global_batch: batch, deal, tail: Tail::Exact, drop_last: false,
        }).unwrap();
        let orders = Orders::new(Shuffle::Feistel { seed }, samples, 2).unwrap();
        let mut homes = Homes::none(samples);
        for sample in (0..samples).filter(|s| s * 37 % 100 < held) {
            homes.set(SampleId(sample), Some(Home { rank: Rank(sample % world), tier: TierId(1) }));
        }
        let redealt = local(&orders, &layout, &Arc::new(homes));
        for epoch in (0..2).map(Epoch) {
            let before = orders.epoch(epoch);
            let after = redealt.epoch(epoch);
            for step in (0..layout.steps()).map(Step) {
                let set = |order: &foresee_core::stream::EpochOrder| {
                    let mut set: Vec<_> = layout.batch(step).map(|p| order.sample(Position(p))).collect();
                    set.sort();
                    set
                };
                prop_assert_eq!(set(&before), set(&after));
            }
        }
    }
}
