//! Ranks that serve each other, where the network is slow, small or broken for a while, where ranks are not equally fast, and
//! at the end: nothing is read from the source that need not be, nobody waits beyond a bound, and what happened is told.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use foresee_core::policy::Assignment;
use foresee_runtime::desk::Entry;
use foresee_runtime::job::{Asked, Job, Stats};
use foresee_runtime::transport::faulty::Faults;
use foresee_runtime::transport::{Message, Sent, Transport};

use self::common::batches;
use self::common::world::{BOUND, Case, Through, World, check_epochs, spec};

/// A way on which each message arrives so much later than it was sent.
fn late<T: Transport + 'static>(way: Arc<T>, delay: Duration) -> Arc<impl Transport + use<T>> {
    let (sender, receiver) = channel::<(Instant, Rank, Message)>();
    let carrier = Arc::clone(&way);
    thread::spawn(move || {
        for (due, to, message) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let _ = carrier.send(to, message);
        }
    });
    Through::new(way, move |_: &T, to, message| {
        let sent = sender.send((Instant::now() + delay, to, message));
        sent.map_or(Sent::Gone, |()| Sent::Taken)
    })
}

/// Asserts that the world read what it must and no more, and that hardly anything was refused.
fn check_economy(world: &World) {
    let case = &world.case;
    let stats: Vec<Stats> = world.jobs.iter().map(Job::stats).collect();
    let said = || format!("{case:?}\n{}", stats[0]);
    assert_eq!(
        world.source.bytes_read(),
        case.minimum(&world.source),
        "{}",
        said()
    );
    let peers = stats.iter().map(|stats| stats.peers.as_ref().unwrap());
    let sum = |of: fn(&foresee_runtime::job::PeerStats) -> u64| peers.clone().map(of).sum::<u64>();
    let (asked, refused) = (sum(|peers| peers.asked), sum(|peers| peers.refused));
    assert!(
        refused * 100 <= asked,
        "{refused} of {asked} refused: {}",
        said()
    );
    assert_eq!(sum(|peers| peers.not_handed_over), 0, "{}", said());
}

#[test]
fn whatever_ranks_hold_together_the_source_is_read_no_more_than_it_must() {
    for ranks in [2, 4, 8] {
        for kept_percent in [60, 102, 150] {
            let case = Case {
                kept_percent,
                batch: 2,
                ..Case::new(ranks)
            };
            let world = World::new(&case);
            check_epochs(&case, &world.train_to_the_end());
            check_economy(&world);
        }
    }
}

#[test]
fn a_network_that_is_slow_or_takes_few_messages_costs_no_read() {
    for kept_percent in [60, 102] {
        let case = Case {
            kept_percent,
            each: 60,
            staged: 6,
            inbox: 2,
            ..Case::new(4)
        };
        let world = World::new(&case);
        check_epochs(&case, &world.train_to_the_end());
        check_economy(&world);
        let case = Case {
            inbox: 1 << 16,
            ..case
        };
        let world = World::over(&case, |end| late(end, Duration::from_millis(2)));
        check_epochs(&case, &world.train_to_the_end());
        check_economy(&world);
    }
}

#[test]
fn many_hand_overs_under_way_slow_reading_ahead_and_are_not_dropped() {
    // A quarter of staging is a megabyte at least: four samples.
    let case = Case {
        each: 30,
        epochs: 2,
        sample_bytes: 256 << 10,
        ..Case::new(3)
    };
    let world = World::over(&case, |end| late(end, Duration::from_millis(5)));
    check_epochs(&case, &world.train_to_the_end());
    check_economy(&world);
}

#[test]
fn a_rank_that_is_done_serves_the_others_to_their_end_and_all_tell_what_they_did() {
    let case = Case {
        in_step: false,
        ..Case::new(3)
    };
    let world = World::new(&case);
    let began = Instant::now();
    thread::scope(|scope| {
        for (rank, job) in (0..).zip(&world.jobs) {
            scope.spawn(move || {
                for _ in batches(job) {
                    thread::sleep(Duration::from_millis(3 * rank));
                }
                job.close();
            });
        }
    });
    assert!(
        began.elapsed() < BOUND / 2,
        "nobody waits for nothing: {:?}",
        began.elapsed()
    );
    check_economy(&world);
    let samples = u64::from(case.samples() * case.epochs);
    for job in &world.jobs {
        let stats = job.stats();
        let told = stats.job.as_ref().unwrap();
        assert!(told.is_whole(), "{stats}");
        assert_eq!(told.samples, samples);
        assert_eq!(told.source_bytes, world.source.bytes_read());
        assert_eq!(told.source_minimum_bytes, Some(case.minimum(&world.source)));
        let ranks: Vec<u32> = told.reports.iter().map(|report| report.rank).collect();
        assert_eq!(ranks, [0, 1, 2]);
        assert!(stats.to_string().contains("\nrank 2      "), "{stats}");
    }
}

#[test]
fn a_rank_that_is_closed_within_its_epoch_leaves_at_once_and_nobody_waits_for_it() {
    let case = Case {
        in_step: false,
        deadline: BOUND,
        ..Case::new(3)
    };
    let mut world = World::new(&case);
    // The job has the only way.
    world.ends.clear();
    let world = &world;
    let began = Instant::now();
    world.train(|rank, number| {
        let leaves = rank == Rank(1) && number == 15;
        if leaves {
            world.jobs[1].close();
        }
        leaves
    });
    for job in &world.jobs {
        job.close();
    }
    assert!(began.elapsed() < BOUND / 4, "{:?}", began.elapsed());
    let faults = world.jobs[0].stats().peers.unwrap().faults;
    assert!(faults[&1].lost > 0, "{faults:?}");
}

#[test]
fn a_rank_lingers_no_longer_than_it_may() {
    let case = Case {
        in_step: false,
        ..Case::new(2)
    };
    let source = case.source();
    let network = foresee_runtime::transport::memory::Network::new(2);
    let mut jobs = (0..).zip(network.ends()).map(|(rank, end)| {
        let mut spec = spec(&case, &source, rank);
        spec.config.peers.linger = Duration::from_millis(300);
        Job::among(spec, Arc::new(end)).unwrap()
    });
    let (quick, stuck) = (jobs.next().unwrap(), jobs.next().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(stuck.next_batch(BOUND), Ok(Asked::Batch(_)))));
        assert!(batches(&quick).count() > 0);
    });
    assert!(!quick.linger(Duration::ZERO), "the other one may still ask");
    let began = Instant::now();
    quick.close();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_slow_rank_costs_few_reads_and_does_not_hold_up_the_others() {
    let case = Case {
        in_step: false,
        each: 100,
        deadline: Duration::from_millis(300),
        ..Case::new(4)
    };
    let world = World::new(&case);
    let got = world.train(|rank, _| {
        thread::sleep(Duration::from_millis(if rank == Rank(1) { 6 } else { 2 }));
        false
    });
    check_epochs(&case, &got);
    let minimum = case.minimum(&world.source);
    let read = world.source.bytes_read();
    let said: Vec<String> = world
        .jobs
        .iter()
        .map(|job| job.stats().to_string())
        .collect();
    assert!(
        read * 100 <= minimum * 105,
        "{read} of {minimum}: {}",
        said.join("\n")
    );
}

#[test]
fn a_rank_that_was_stopped_is_named_done_without_and_asked_again() {
    let case = Case {
        each: 60,
        epochs: 4,
        deadline: Duration::from_millis(200),
        ..Case::new(3)
    };
    let world = World::new(&case);
    let in_step = Barrier::new(3);
    let read = Mutex::new(Vec::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for (rank, job) in world.jobs.iter().enumerate() {
            let (in_step, read, world) = (&in_step, &read, &world);
            let each = case.each as usize;
            scope.spawn(move || {
                for (number, batch) in batches(job).enumerate() {
                    let sample = &batch.samples[0];
                    assert_eq!(sample.lease.bytes(), world.source.content(sample.id));
                    // In its second epoch a rank says nothing for two thirds of it, and speaks again.
                    match (rank, number) {
                        (1, at) if at == each => world.ends[1].mute(),
                        (1, at) if at == each + 40 => world.ends[1].speak(),
                        _ => {}
                    }
                    if rank == 0 && number % each == 0 {
                        read.lock().unwrap().push(world.source.bytes_read());
                    }
                    in_step.wait();
                }
            });
        }
    });
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    let read = read.into_inner().unwrap();
    let last = world.source.bytes_read() - read[3];
    assert_eq!(last, 0, "all is well again: {read:?}");
    let stats = world.jobs[0].stats();
    let faults = &stats.peers.as_ref().unwrap().faults;
    assert!(faults[&1].mute > 0 && faults[&1].mute < 10, "{stats}");
    assert!(stats.to_string().contains("rank 1      mute "), "{stats}");
}

#[test]
fn batches_that_are_dealt_by_holder_have_the_same_sets_and_hardly_anything_moves() {
    let case = Case {
        each: 640,
        batch: 64,
        staged: 200,
        assignment: Assignment::Local,
        ..Case::new(4)
    };
    let world = World::new(&case);
    let got = world.train_to_the_end();
    check_epochs(&case, &got);
    assert_eq!(world.source.bytes_read(), case.minimum(&world.source));
    let in_order = World::new(&Case {
        assignment: Assignment::Order,
        ..case.clone()
    });
    let steps = |streams: &[Vec<SampleId>]| {
        let batch = case.batch as usize;
        let step = |step: usize| {
            let batches = streams
                .iter()
                .map(|got| &got[step * batch..(step + 1) * batch]);
            batches.flatten().copied().collect::<BTreeSet<SampleId>>()
        };
        (0..streams[0].len() / batch).map(step).collect::<Vec<_>>()
    };
    let expected: Vec<Vec<SampleId>> = (0..4).map(|rank| in_order.alone(rank)).collect();
    assert_eq!(steps(&got), steps(&expected));
    let moved = world.jobs.iter().map(|job| {
        let origins = job.stats().origins;
        origins.get("peer").map_or(0, |reads| reads.bytes)
    });
    let moved: u64 = moved.sum();
    let most = world.source.total() * 6 / 100 * u64::from(case.epochs - 1);
    assert!(moved > 0 && moved <= most, "{moved} of {most}");
}

#[test]
fn what_ranks_did_together_can_be_done_again_by_each_alone() {
    let faults = Faults {
        seed: 5,
        dropped: 0.01,
        doubled: 0.05,
        delayed: 0.05,
        garbled: 0.05,
    };
    for faults in [Faults::default(), faults] {
        let case = Case {
            faults,
            kept_percent: 80,
            record: true,
            deadline: Duration::from_millis(50),
            ..Case::new(3)
        };
        let world = World::new(&case);
        check_epochs(&case, &world.train_to_the_end());
        for job in &world.jobs {
            let (entries, mut fresh) = job.recording().unwrap();
            let of_peers = |entry: &&Entry| matches!(entry, Entry::Arrive(..) | Entry::See(..));
            assert!(entries.iter().filter(of_peers).count() > 0);
            for (number, entry) in entries.iter().enumerate() {
                assert_eq!(&fresh.replay(entry), entry, "entry {number}");
            }
        }
    }
}

#[test]
fn the_papers_policies_serve_each_other_too() {
    // Each with what it reads from the source at most, in percent of the dataset: three epochs, all of which fits. LBANN's ranks
    // do not wait for a holder that is behind them: they read what it has not got yet.
    let policies = [
        ("nopfs", 260),
        ("distributed-cache", 100),
        ("locality-aware", 100),
        ("lbann-dynamic", 105),
        ("lbann-preload", 100),
        ("lobster", 300),
        ("monarch", 300),
    ];
    for (policy, most) in policies {
        let case = Case {
            policy,
            each: 60,
            kept_percent: 120,
            batch: 4,
            ..Case::new(4)
        };
        let world = World::new(&case);
        let got = world.train_to_the_end();
        check_epochs(&case, &got);
        let read = world.source.bytes_read() * 100 / world.source.total();
        let stats = world.jobs[0].stats();
        assert!(read <= most, "{policy}: {read} %, {most} at most\n{stats}");
        let fetched: u64 = world
            .jobs
            .iter()
            .map(|job| job.stats().peers.unwrap().came)
            .sum();
        let serve_nobody = ["lobster", "monarch"].contains(&policy);
        assert_eq!(fetched == 0, serve_nobody, "{policy}: {stats}");
    }
}
