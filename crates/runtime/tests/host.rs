//! Jobs of one process that share their memory, as ranks of a host do: what is kept by another rank is used where it lies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use foresee_core::stream::Shuffle;

use self::common::world::{Case, World, check_epochs};

fn shared(ranks: u32) -> Case {
    Case {
        shares: true,
        ..Case::new(ranks)
    }
}

/// Cases of ranks that share their memory.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in [2, 4] {
        for kept_percent in [60, 102, 150] {
            for (batch, sample_bytes) in [(1, 100), (4, 5000)] {
                cases.push(Case {
                    kept_percent,
                    batch,
                    sample_bytes,
                    shuffle: Shuffle::Torch { seed: 3 },
                    ..shared(ranks)
                });
            }
        }
    }
    cases
}

#[test]
fn every_sample_comes_once_an_epoch_and_no_byte_of_it_is_sent() {
    for case in cases() {
        let world = World::new(&case);
        let got = world.train_to_the_end();
        check_epochs(&case, &got);
        for (rank, got) in (0..).zip(&got) {
            world.check_stream(rank, got);
        }
        assert_eq!(
            world.source.bytes_read(),
            case.minimum(&world.source),
            "{case:?}"
        );
        for job in &world.jobs {
            let stats = job.stats();
            let peers = stats.peers.unwrap();
            assert_eq!(peers.traffic_bytes, 0, "{case:?}");
            assert_eq!(peers.refused, 0, "{case:?}");
            assert!(!stats.origins.contains_key("peer"), "{case:?}");
            assert!(stats.origins["host_peer"].samples > 0, "{case:?}");
        }
    }
}
