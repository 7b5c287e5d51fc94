//! The source minimum of a lone rank against the best that any policy could do, found by trying everything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_core::bound::{job_minimum, lone_minimum, source_minimum};
use foresee_core::catalog::Catalog;
use foresee_core::held::Held;
use foresee_core::ids::{Epoch, Rank, SampleId, Step};
use foresee_core::model::Hosts;
use foresee_core::policy::{Assignment, Brief, Capacities};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use foresee_core::units::Bytes;
use proptest::prelude::*;

use self::common::system;

/// One access a step and rank; every rank has a tier of so many bytes.
fn brief(sizes: Vec<u64>, orders: Orders, ranks: u32, capacity: u64, start: Mark) -> Brief {
    let spec = LayoutSpec {
        positions: orders.len(),
        world: ranks,
        global_batch: ranks,
        deal: Deal::Blocked,
        tail: Tail::Pad,
        drop_last: false,
    };
    Brief {
        catalog: Arc::new(Catalog::new(sizes)),
        orders,
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(system(capacity)),
        capacities: Capacities::Same,
        hosts: Hosts::new(ranks, 1),
        assignment: Assignment::Order,
        peers: false,
        start,
        held: Held::nothing(),
    }
}

/// The fewest bytes that have to be read, whatever is kept: after each access any part of what was there, with the
/// sample that was used, may stay. Sets of samples are bits.
fn best(brief: &Brief, rank: Rank, capacity: u64, held: &[SampleId]) -> u64 {
    let size = |sample: u32| brief.catalog.size(SampleId(sample)).0;
    let samples = brief.catalog.len();
    let fits: Vec<u32> = (0..1_u32 << samples)
        .filter(|set| {
            (0..samples)
                .filter(|sample| set >> sample & 1 == 1)
                .map(size)
                .sum::<u64>()
                <= capacity
        })
        .collect();
    let start = held.iter().fold(0_u32, |set, sample| set | 1 << sample.0);
    let mut costs: BTreeMap<u32, u64> = fits
        .iter()
        .filter(|set| **set & !start == 0)
        .map(|set| (*set, 0))
        .collect();
    for access in Stream::new(
        brief.orders.clone(),
        brief.layout.clone(),
        rank,
        brief.start,
    ) {
        let used = 1_u32 << access.sample.0;
        let mut after: BTreeMap<u32, u64> = BTreeMap::new();
        for (set, cost) in &costs {
            let cost = cost
                + if set & used == 0 {
                    size(access.sample.0)
                } else {
                    0
                };
            for kept in fits.iter().filter(|kept| **kept & !(set | used) == 0) {
                let least = after.entry(*kept).or_insert(u64::MAX);
                *least = cost.min(*least);
            }
        }
        costs = after;
    }
    costs.into_values().min().unwrap()
}

fn lists() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1..7_usize, 1..4_usize).prop_flat_map(|(len, epochs)| {
        prop::collection::vec(prop::collection::vec(0..5_u32, len), epochs)
    })
}

fn explicit(lists: &[Vec<u32>]) -> Orders {
    let samples = |list: &Vec<u32>| list.iter().map(|sample| SampleId(*sample)).collect();
    let epochs = lists.len() as u32;
    Orders::new(
        Shuffle::Explicit(lists.iter().map(samples).collect()),
        5,
        epochs,
    )
    .unwrap()
}

fn some_of(bits: u32) -> Vec<SampleId> {
    (0..5)
        .filter(|sample| bits >> sample & 1 == 1)
        .map(SampleId)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn no_policy_reads_less_whatever_the_lists(
        lists in lists(),
        sizes in prop::collection::vec(1..5_u64, 5),
        capacity in 0..15_u64,
        ranks in 1..3_u32,
        held in 0..32_u32,
        (epoch, step) in (0..3_u32, 0..6_u32),
    ) {
        let orders = explicit(&lists);
        let mut brief = brief(sizes, orders, ranks, capacity, Mark::START);
        brief.start = Mark { epoch: Epoch(epoch % lists.len() as u32), step: Step(step % brief.layout.steps()) };
        let held = some_of(held);
        for rank in (0..ranks).map(Rank) {
            let minimum = lone_minimum(&brief, rank, &held).unwrap().0;
            let best = best(&brief, rank, capacity, &held);
            prop_assert!(minimum <= best, "{minimum} and {best}");
        }
    }

    #[test]
    fn with_one_size_of_samples_some_policy_reads_no_more(
        lists in lists(),
        size in 1..4_u64,
        capacity in 0..15_u64,
        held in 0..32_u32,
        (epoch, step) in (0..3_u32, 0..6_u32),
    ) {
        let orders = explicit(&lists);
        let mut brief = brief(vec![size; 5], orders, 1, capacity, Mark::START);
        brief.start = Mark { epoch: Epoch(epoch % lists.len() as u32), step: Step(step % brief.layout.steps()) };
        let held = some_of(held);
        prop_assert_eq!(lone_minimum(&brief, Rank(0), &held).unwrap().0, best(&brief, Rank(0), capacity, &held));
    }

    #[test]
    fn where_every_sample_is_used_once_an_epoch_it_is_the_closed_form(
        sizes in prop::collection::vec(1..50_u64, 1..30),
        epochs in 1..6_u32,
        percent in 0..130_u64,
        seed: u64,
    ) {
        let total: u64 = sizes.iter().sum();
        let smallest = *sizes.iter().min().unwrap();
        let capacity = total * percent / 100;
        // A tier that holds no sample at all carries nothing.
        prop_assume!(capacity >= smallest && sizes.iter().any(|size| *size != smallest));
        let orders = Orders::new(Shuffle::Torch { seed }, sizes.len() as u32, epochs).unwrap();
        let brief = brief(sizes, orders, 1, capacity, Mark::START);
        let expected = total + u64::from(epochs - 1) * total.saturating_sub(capacity);
        prop_assert_eq!(lone_minimum(&brief, Rank(0), &[]), Some(Bytes(expected)));
    }
}

proptest! {
    #[test]
    fn with_room_for_all_each_sample_that_is_used_is_read_once(
        samples in 4..60_u32,
        ranks in 1..4_u32,
        batch in 1..5_u32,
        epochs in 1..4_u32,
        tail in prop::sample::select(vec![Tail::Pad, Tail::Drop, Tail::Exact]),
        drop_last: bool,
        step in 0..20_u32,
        seed: u64,
    ) {
        let orders = Orders::new(Shuffle::Torch { seed }, samples, epochs).unwrap();
        let global_batch = ranks * batch;
        prop_assume!(global_batch + ranks <= samples);
        let spec = LayoutSpec { positions: orders.len(), world: ranks, global_batch, deal: Deal::Strided, tail, drop_last };
        let mut brief = brief(vec![3; samples as usize], orders, ranks, 3 * u64::from(samples), Mark::START);
        brief.layout = Layout::new(spec).unwrap();
        let used = |brief: &Brief| {
            let stream = |rank| Stream::new(brief.orders.clone(), brief.layout.clone(), Rank(rank), brief.start);
            let all: std::collections::BTreeSet<_> = (0..ranks).flat_map(stream).map(|access| access.sample).collect();
            Bytes(3 * all.len() as u64)
        };
        prop_assert_eq!(source_minimum(&brief), used(&brief));
        brief.start.step = Step(step % brief.layout.steps());
        let left = job_minimum(&brief).unwrap();
        // What fills a tail may be used in what is left of an epoch only to fill it.
        prop_assert!(left == used(&brief) || tail == Tail::Pad && left < used(&brief));
    }
}

#[test]
fn too_many_accesses_to_look_at_have_a_minimum_only_where_every_sample_comes_once_an_epoch() {
    let samples = 50_000;
    let plain = Orders::new(Shuffle::Feistel { seed: 3 }, samples, 10_000).unwrap();
    let plain = brief(vec![2; samples as usize], plain, 1, 20_000, Mark::START);
    assert_eq!(
        lone_minimum(&plain, Rank(0), &[]),
        Some(Bytes(100_000 + 9_999 * 80_000))
    );
    let list: Vec<SampleId> = (0..samples).map(|sample| SampleId(sample / 2)).collect();
    let listed = Orders::new(Shuffle::Explicit([list].into()), samples, 10_000).unwrap();
    let listed = brief(vec![2; samples as usize], listed, 1, 20_000, Mark::START);
    assert_eq!(lone_minimum(&listed, Rank(0), &[]), None);
}

#[test]
fn more_accesses_than_are_swept_are_counted_epoch_by_epoch() {
    let samples = 50_000;
    let list: Vec<SampleId> = (0..samples).map(|sample| SampleId(sample / 2)).collect();
    let listed = Orders::new(Shuffle::Explicit([list].into()), samples, 100).unwrap();
    let held: Vec<SampleId> = (0..1_000).chain(40_000..41_000).map(SampleId).collect();
    let listed = brief(vec![2; samples as usize], listed, 1, 20_000, Mark::START);
    // Half of the samples, each twice in a row; of what is held half is used.
    assert_eq!(
        lone_minimum(&listed, Rank(0), &held),
        Some(Bytes(50_000 - 4_000 + 99 * 30_000))
    );
}
