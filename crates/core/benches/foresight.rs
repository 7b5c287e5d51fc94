//! What foresight costs: a look at one epoch, the next use of a rank, one rank's share of the favourites of
//! ImageNet-22k on 1,024 ranks, the favourites of a small job, one rank's frequencies.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use foresee_core::foresight::{By, Foresight};
use foresee_core::ids::{Epoch, Host, Rank, SampleId};
use foresee_core::model::Hosts;
use foresee_core::stream::{Deal, Layout, LayoutSpec, Orders, Shuffle, Tail};

const IMAGENET_22K: u32 = 14_197_122;
const SMALL: u32 = 150_000;
const LOOKS: u32 = 10_000;
const FEISTEL: Shuffle = Shuffle::Feistel { seed: 1 };
const TORCH: Shuffle = Shuffle::Torch { seed: 1 };

fn foresight(shuffle: Shuffle, samples: u32, world: u32, epochs: u32) -> Foresight {
    let orders = Orders::new(shuffle, samples, epochs).expect("orders of this bench");
    let spec = LayoutSpec {
        positions: u64::from(samples),
        world,
        global_batch: world * 32,
        deal: Deal::Strided,
        tail: Tail::Exact,
        drop_last: false,
    };
    Foresight::new(
        orders,
        Layout::new(spec).expect("a layout of this bench"),
        Hosts::new(world, 4),
    )
}

/// Samples in no order, so that nothing is guessed right by chance.
fn looks(samples: u32) -> impl Iterator<Item = SampleId> {
    (0..LOOKS).map(move |look| SampleId(look.wrapping_mul(2_654_435_761) % samples))
}

fn uses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("uses");
    group.throughput(Throughput::Elements(u64::from(LOOKS)));
    for (world, epochs) in [(4, 10), (16, 45)] {
        for (name, shuffle) in [("feistel", FEISTEL), ("torch", TORCH)] {
            let foresight = foresight(shuffle, SMALL, world, epochs);
            group.bench_function(format!("user/{world}x{epochs}/{name}"), |bench| {
                bench.iter(|| {
                    looks(SMALL)
                        .filter_map(|sample| foresight.user(sample, black_box(Epoch(3))))
                        .count()
                });
            });
            for (whose, by) in [("rank", By::Rank(Rank(1))), ("host", By::Host(Host(0)))] {
                group.bench_function(
                    format!("next_use/{world}x{epochs}/{name}/{whose}"),
                    |bench| {
                        bench.iter(|| {
                            let from = black_box(Epoch(0));
                            looks(SMALL)
                                .filter_map(|sample| foresight.next_use(sample, from, by))
                                .count()
                        });
                    },
                );
            }
        }
    }
    group.finish();
}

fn favourites(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("favourites");
    group.sample_size(10);
    for (name, shuffle) in [("feistel", FEISTEL), ("torch", TORCH)] {
        let world = 4;
        let epochs = 10;
        let small = foresight(shuffle, SMALL, world, epochs);
        group.throughput(Throughput::Elements(u64::from(SMALL) * u64::from(epochs)));
        group.bench_function(format!("all/{world}x{epochs}/{name}"), |bench| {
            bench.iter(|| small.favourites(0..black_box(SMALL)));
        });
    }
    let world = 1024;
    let epochs = 90;
    let large = foresight(FEISTEL, IMAGENET_22K, world, epochs);
    let share = IMAGENET_22K.div_ceil(world);
    group.throughput(Throughput::Elements(u64::from(share) * u64::from(epochs)));
    group.bench_function("one_share/1024x90/feistel", |bench| {
        bench.iter(|| large.favourites(black_box(5 * share)..6 * share));
    });
    group.finish();
}

fn counts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("counts");
    group.sample_size(10);
    let large = foresight(FEISTEL, IMAGENET_22K, 1024, 90);
    group.bench_function("frequency/1024x90/feistel", |bench| {
        bench.iter(|| large.frequency(By::Rank(black_box(Rank(7)))));
    });
    group.bench_function("reuse_histogram/1024x90/feistel", |bench| {
        bench.iter(|| large.reuse_histogram(black_box(Host(7)), 50));
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    uses(&mut criterion);
    favourites(&mut criterion);
    counts(&mut criterion);
    criterion.final_summary();
}
