//! What the streams cost: drawing torch's order of ImageNet-22k with its inverse, evaluating the keyed permutation,
//! walking a rank's stream, finding slots.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use foresee_core::ids::{Epoch, Position, Rank, SampleId, Step};
use foresee_core::stream::{
    Deal, Feistel, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail,
};

const IMAGENET_22K: u32 = 14_197_122;
const EVALUATIONS: u32 = 100_000;
const START: Mark = Mark {
    epoch: Epoch(0),
    step: Step(0),
};

fn layout(positions: u32, deal: Deal) -> Layout {
    let spec = LayoutSpec {
        positions: u64::from(positions),
        world: 16,
        global_batch: 512,
        deal,
        tail: Tail::Pad,
        drop_last: false,
    };
    Layout::new(spec).expect("a layout of this bench")
}

fn torch_order(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("torch_order");
    group.sample_size(10);
    let order = || {
        let orders =
            Orders::new(Shuffle::Torch { seed: 1 }, IMAGENET_22K, 1).expect("orders of this bench");
        orders.epoch(Epoch(0))
    };
    group.bench_function("forward", |bench| bench.iter(order));
    group.bench_function("with_inverse", |bench| {
        bench.iter(|| order().position(black_box(SampleId(7))));
    });
    group.finish();
}

fn feistel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("feistel");
    group.throughput(Throughput::Elements(u64::from(EVALUATIONS)));
    for samples in [150_000, IMAGENET_22K] {
        let feistel = Feistel::new(samples, 1);
        group.bench_function(format!("at/{samples}"), |bench| {
            bench.iter(|| (0..EVALUATIONS).fold(0, |sum, p| sum ^ feistel.at(black_box(p))));
        });
        group.bench_function(format!("invert/{samples}"), |bench| {
            bench.iter(|| (0..EVALUATIONS).fold(0, |sum, p| sum ^ feistel.invert(black_box(p))));
        });
        // Each evaluation waits for the one before: latency, where the others show throughput.
        group.bench_function(format!("chained/{samples}"), |bench| {
            bench.iter(|| (0..EVALUATIONS).fold(0, |p, _| feistel.at(p)));
        });
    }
    group.finish();
}

fn accesses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("accesses");
    group.throughput(Throughput::Elements(u64::from(EVALUATIONS)));
    let samples = 4_000_000;
    for (name, shuffle) in [
        ("torch", Shuffle::Torch { seed: 1 }),
        ("feistel", Shuffle::Feistel { seed: 1 }),
    ] {
        let orders = Orders::new(shuffle, samples, 1).expect("orders of this bench");
        let stream = Stream::new(orders, layout(samples, Deal::Strided), Rank(3), START);
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let accesses = stream.clone().take(EVALUATIONS as usize);
                accesses.fold(0, |sum, access| sum ^ access.sample.0)
            });
        });
    }
    for deal in [Deal::Strided, Deal::Blocked] {
        let layout = layout(samples, deal);
        group.bench_function(format!("slot/{deal:?}"), |bench| {
            bench.iter(|| {
                let slots =
                    (0..u64::from(EVALUATIONS)).map(|p| layout.slot(black_box(Position(p))));
                slots.fold(0, |sum, slot| {
                    sum ^ slot.map_or(0, |slot| slot.rank.0 ^ slot.index)
                })
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    torch_order(&mut criterion);
    feistel(&mut criterion);
    accesses(&mut criterion);
    criterion.final_summary();
}
