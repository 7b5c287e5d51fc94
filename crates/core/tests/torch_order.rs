//! Streams against what torch's `DistributedSampler` delivered (`data/torch_order.json` was made by the real thing).

use foresee_core::ids::{Epoch, Rank, Step};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    samples: u32,
    world_size: u32,
    rank: u32,
    seed: u64,
    epoch: u32,
    drop_last: bool,
    shuffle: bool,
    length: usize,
    first: Vec<u64>,
    last: Vec<u64>,
    sha256_le_u64: String,
}

fn cases() -> Vec<Case> {
    let vectors: Vectors =
        serde_json::from_str(include_str!("data/torch_order.json")).expect("the vectors");
    assert_eq!(vectors.cases.len(), 15);
    vectors.cases
}

/// What the case's rank reads in its epoch, in global batches of `global_batch`.
fn delivered(case: &Case, global_batch: u32) -> Vec<u64> {
    let shuffle = if case.shuffle {
        Shuffle::Torch { seed: case.seed }
    } else {
        Shuffle::Sequential
    };
    let orders = Orders::new(shuffle, case.samples, case.epoch + 1).expect("orders");
    let layout = Layout::new(LayoutSpec {
        positions: orders.len(),
        world: case.world_size,
        global_batch,
        deal: Deal::Strided,
        tail: if case.drop_last {
            Tail::Drop
        } else {
            Tail::Pad
        },
        drop_last: false,
    })
    .expect("a layout");
    assert_eq!(
        layout.rank_len(Rank(case.rank)),
        case.length as u64,
        "{case:?}"
    );
    let from = Mark {
        epoch: Epoch(case.epoch),
        step: Step(0),
    };
    Stream::new(orders, layout, Rank(case.rank), from)
        .map(|access| u64::from(access.sample.0))
        .collect()
}

fn digest(samples: &[u64]) -> String {
    let mut hash = Sha256::new();
    for sample in samples {
        hash.update(sample.to_le_bytes());
    }
    hash.finalize()
        .iter()
        .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

#[test]
fn a_rank_reads_what_torch_gives_it_whatever_the_batch() {
    for case in cases() {
        for local_batch in [1, 3, 32] {
            let samples = delivered(&case, case.world_size * local_batch);
            assert_eq!(samples.len(), case.length, "{case:?}");
            assert!(samples.starts_with(&case.first), "{case:?}");
            assert!(samples.ends_with(&case.last), "{case:?}");
            assert_eq!(digest(&samples), case.sha256_le_u64, "{case:?}");
        }
    }
}

#[test]
fn an_order_finds_every_sample_where_it_put_it() {
    for case in cases()
        .iter()
        .filter(|case| case.shuffle && case.samples <= 70_000)
    {
        let orders = Orders::new(
            Shuffle::Torch { seed: case.seed },
            case.samples,
            case.epoch + 1,
        )
        .expect("orders");
        let order = orders.epoch(Epoch(case.epoch));
        for position in (0..order.len()).map(foresee_core::ids::Position) {
            assert_eq!(order.position(order.sample(position)), Some(position));
        }
    }
}

#[test]
fn the_seed_and_the_epoch_add_up_and_wrap() {
    let orders = |seed| Orders::new(Shuffle::Torch { seed }, 50, 3).expect("orders");
    let list = |orders: &Orders, epoch| {
        let order = orders.epoch(Epoch(epoch));
        (0..50)
            .map(|p| order.sample(foresee_core::ids::Position(p)))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&orders(6), 2), list(&orders(7), 1));
    assert_eq!(list(&orders(u64::MAX), 1), list(&orders(0), 0));
    assert_ne!(list(&orders(6), 1), list(&orders(6), 2));
}
