//! Jobs of one process that share their memory, as ranks of a host do: what is kept by another rank is used where it lies, and
//! what is on its disk is read there. No byte of a sample is in any message.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use foresee_config::Transport as Wanted;
use foresee_core::ids::{Rank, SampleId};
use foresee_core::stream::Shuffle;
use foresee_runtime::job::Job;
use foresee_runtime::transport::faulty::Faults;
use foresee_runtime::transport::memory::Network;
use foresee_runtime::transport::{Answer, Content, HandOver, Message, Transport};

use self::common::batches;
use self::common::world::{Case, Through, World, check_epochs, spec, spec_on_disk, train_in_step};

/// A way that counts the bytes of samples in what is sent.
fn weighed<T: Transport>(way: Arc<T>, bytes: &Arc<AtomicU64>) -> Arc<impl Transport + use<T>> {
    let bytes = Arc::clone(bytes);
    Through::new(way, move |way: &T, to, message| {
        if let Message::Answer(Answer { content, .. })
        | Message::HandOver(HandOver { content, .. }) = &message
        {
            let len = content.len() as u64;
            bytes.fetch_add(len, Ordering::Relaxed);
            assert!(!matches!(content, Content::Sample(_)) || len > 0);
        }
        way.send(to, message)
    })
}

fn shared(ranks: u32) -> Case {
    Case {
        shares: true,
        ..Case::new(ranks)
    }
}

/// Cases of ranks that share their memory.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in [2, 4, 8] {
        for kept_percent in [60, 102, 150] {
            for (batch, sample_bytes) in [(1, 100), (4, 5000)] {
                cases.push(Case {
                    kept_percent,
                    batch,
                    sample_bytes,
                    each: 160 / ranks,
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
        let sent = Arc::new(AtomicU64::new(0));
        let world = World::over(&case, |end| weighed(end, &sent));
        let got = world.train_to_the_end();
        check_epochs(&case, &got);
        for (rank, got) in (0..).zip(&got) {
            world.check_stream(rank, got);
        }
        let minimum = case.minimum(&world.source);
        assert_eq!(world.source.bytes_read(), minimum, "{case:?}");
        assert_eq!(sent.load(Ordering::Relaxed), 0, "{case:?}");
        for job in &world.jobs {
            let stats = job.stats();
            let peers = stats.peers.unwrap();
            assert_eq!((peers.traffic_bytes, peers.refused), (0, 0), "{case:?}");
            assert!(!stats.origins.contains_key("peer"), "{case:?}");
            assert!(stats.origins["host_peer"].samples > 0, "{case:?}");
        }
    }
}

#[test]
fn ranks_that_are_to_use_tcp_share_nothing() {
    let case = shared(2);
    let source = case.source();
    let network = Network::of_a_host(case.ranks, case.inbox);
    let sent = Arc::new(AtomicU64::new(0));
    // One that does not share is enough.
    let transports = [Wanted::Auto, Wanted::Tcp];
    let jobs: Vec<Job> = (0..)
        .zip(network.ends())
        .map(|(rank, end)| {
            let mut spec = spec(&case, &source, rank);
            spec.config.peers.transport = transports[rank as usize];
            Job::among(spec, weighed(Arc::new(end), &sent)).unwrap()
        })
        .collect();
    train_in_step(&jobs, &source);
    assert!(sent.load(Ordering::Relaxed) > 0);
    for job in &jobs {
        assert!(!job.stats().origins.contains_key("host_peer"));
    }
}

#[test]
fn what_another_rank_has_on_disk_is_read_there() {
    let case = Case {
        sample_bytes: 3000,
        ..shared(3)
    };
    let source = case.source();
    let folders: Vec<_> = (0..case.ranks)
        .map(|_| tempfile::tempdir().unwrap())
        .collect();
    let network = Network::of_a_host(case.ranks, case.inbox);
    let sent = Arc::new(AtomicU64::new(0));
    let jobs: Vec<Job> = (0..)
        .zip(network.ends())
        .map(|(rank, end)| {
            let folder = folders[rank as usize].path();
            let spec = spec_on_disk(&case, &source, rank, folder);
            Job::among(spec, weighed(Arc::new(end), &sent)).unwrap()
        })
        .collect();
    train_in_step(&jobs, &source);
    assert_eq!(sent.load(Ordering::Relaxed), 0);
    assert_eq!(source.bytes_read(), source.total());
    for job in &jobs {
        let stats = job.stats();
        assert!(stats.origins["host_peer"].samples > 0);
        assert!(!stats.origins.contains_key("peer"));
    }
}

#[test]
fn messages_that_get_lost_late_or_come_twice_cost_no_sample() {
    let faults = Faults {
        seed: 5,
        dropped: 0.01,
        doubled: 0.05,
        delayed: 0.05,
        garbled: 0.05,
    };
    let case = Case {
        each: 20,
        faults,
        in_step: false,
        deadline: Duration::from_millis(300),
        ..shared(3)
    };
    let world = World::new(&case);
    let got = world.train_to_the_end();
    check_epochs(&case, &got);
}

#[test]
fn a_rank_that_ends_early_costs_the_others_no_sample() {
    for stops_after in [0, 15, 70] {
        let case = Case {
            in_step: false,
            ..shared(3)
        };
        let world = World::new(&case);
        let got = world.train(|rank, number| {
            let stops = rank == Rank(1) && number == stops_after;
            if stops {
                world.network.kill(Rank(1));
                world.jobs[1].close_within(Duration::ZERO);
            }
            stops
        });
        for rank in [0, 2] {
            world.check_stream(rank, &got[rank as usize]);
        }
    }
}

#[test]
fn samples_of_another_rank_stay_when_its_job_is_closed() {
    let case = Case {
        epochs: 2,
        ..shared(2)
    };
    let world = World::new(&case);
    let mut held = Vec::new();
    thread::scope(|scope| {
        let other = scope.spawn(|| batches(&world.jobs[1]).count());
        // All of the second epoch, of which half is the other rank's.
        let all: Vec<_> = batches(&world.jobs[0]).collect();
        held.extend(all.into_iter().filter(|batch| batch.epoch == 1));
        other.join().unwrap();
    });
    let near = world.jobs[0].stats().origins["host_peer"];
    assert!(near.samples > 0);
    for job in &world.jobs {
        job.close();
    }
    let samples = held.iter().flat_map(|batch| &batch.samples);
    let ids: Vec<SampleId> = samples
        .inspect(|sample| assert_eq!(sample.lease.bytes(), world.source.content(sample.id)))
        .map(|sample| sample.id)
        .collect();
    assert_eq!(ids.len(), case.each as usize);
}
