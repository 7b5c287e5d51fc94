//! Several jobs of one process that serve each other over an in-memory transport: every sample comes once an epoch, whole, to
//! one of them; the source is read as little as is possible; a rank that dies or falls silent costs time, never data. What
//! they plan from they tell each other first: tiers that are warm are used, and who was given something else is named.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use foresee_config::TierKind;
use foresee_core::ids::{Rank, SampleId};
use foresee_core::stream::Shuffle;
use foresee_runtime::job::{Asked, Job, JobError, JobSpec};
use foresee_runtime::source::{ReadError, Source};
use foresee_runtime::stamp::Stamp;
use foresee_runtime::transport::faulty::{Faults, Faulty};
use foresee_runtime::transport::memory::{End, Network};
use foresee_runtime::transport::{JobKey, Message, Sent, Transport};

use self::common::world::{BOUND, Case, Through, World, check_epochs, spec, spec_on_disk};
use self::common::{Made, batches, tier};

/// All cases of a healthy world.
fn healthy() -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in [2, 3, 5] {
        for kept_percent in [60, 102] {
            for shuffle in [Shuffle::Torch { seed: 3 }, Shuffle::Feistel { seed: 3 }] {
                for batch in [1, 4] {
                    cases.push(Case {
                        kept_percent,
                        shuffle: shuffle.clone(),
                        batch,
                        ..Case::new(ranks)
                    });
                }
            }
        }
    }
    cases
}

#[test]
fn every_sample_comes_once_an_epoch_and_the_source_is_read_no_more_than_it_must() {
    for case in healthy() {
        let world = World::new(&case);
        let got = world.train_to_the_end();
        check_epochs(&case, &got);
        for (rank, got) in (0..).zip(&got) {
            world.check_stream(rank, got);
        }
        let minimum = case.minimum(&world.source);
        assert_eq!(world.source.bytes_read(), minimum, "{case:?}");
    }
}

#[test]
fn ranks_that_do_not_step_together_read_no_more_either() {
    for kept_percent in [60, 102] {
        let case = Case {
            kept_percent,
            in_step: false,
            ..Case::new(3)
        };
        let world = World::new(&case);
        // One of them is slower than the others.
        let got = world.train(|rank, _| {
            if rank == Rank(1) {
                thread::sleep(Duration::from_millis(2));
            }
            false
        });
        check_epochs(&case, &got);
        let minimum = case.minimum(&world.source);
        assert_eq!(world.source.bytes_read(), minimum, "{case:?}");
    }
}

#[test]
fn messages_that_come_late_or_twice_change_nothing() {
    let case = Case {
        faults: Faults {
            seed: 1,
            doubled: 0.2,
            ..Faults::default()
        },
        ..Case::new(3)
    };
    let world = World::new(&case);
    let got = world.train_to_the_end();
    check_epochs(&case, &got);
    assert!(world.ends.iter().all(|end| end.injected() > 0));
    assert_eq!(world.source.bytes_read(), case.minimum(&world.source));
}

#[test]
fn lost_late_and_garbled_messages_cost_no_sample() {
    let faults = Faults {
        seed: 2,
        dropped: 0.01,
        doubled: 0.05,
        delayed: 0.05,
        garbled: 0.05,
    };
    let case = Case {
        each: 20,
        faults,
        in_step: false,
        ..Case::new(3)
    };
    let world = World::new(&case);
    let got = world.train_to_the_end();
    check_epochs(&case, &got);
}

/// Ways that lead to whoever has the same key, as those of a mesh do.
#[derive(Default)]
struct Rooms(Mutex<BTreeMap<JobKey, Vec<Arc<End>>>>);

impl Rooms {
    fn end(&self, key: JobKey, rank: u32) -> Arc<End> {
        let mut rooms = self.0.lock().unwrap();
        let ends = rooms.entry(key).or_insert_with(|| {
            let ends = Network::new(2).ends().into_iter();
            ends.map(Arc::new).collect()
        });
        Arc::clone(&ends[rank as usize])
    }
}

#[test]
fn jobs_of_a_kind_that_start_in_another_order_on_each_rank_find_each_other() {
    // Of a kind that no other test has: they are counted by process.
    let case = Case {
        epochs: 4,
        batch: 5,
        ..Case::new(2)
    };
    let source = case.source();
    let rooms = Arc::new(Rooms::default());
    let begin = |rank: u32, seed: u64| {
        let mut spec = spec(&case, &source, rank);
        spec.shuffle = Shuffle::Torch { seed };
        let job = Job::new(spec).unwrap();
        let (said, heard) = mpsc::channel();
        let rooms = Arc::clone(&rooms);
        let open = move |key| {
            // Nobody listens the second time.
            let _ = said.send(());
            rooms.end(key, rank) as Arc<dyn Transport>
        };
        job.meet(Arc::new(open), BOUND);
        assert!(matches!(job.next_batch(Duration::ZERO), Ok(Asked::NotYet)));
        heard.recv().unwrap();
        job
    };
    let jobs = [begin(0, 1), begin(0, 2), begin(1, 2), begin(1, 1)];
    let count = |job: &Job| batches(job).map(|batch| batch.samples.len()).sum::<usize>();
    let delivered = thread::scope(|scope| {
        let count = &count;
        let threads: Vec<_> = jobs
            .iter()
            .map(|job| scope.spawn(move || count(job)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    assert_eq!(delivered, [(case.each * case.epochs) as usize; 4]);
    // Ranks that are alone would read more.
    assert_eq!(source.bytes_read(), 2 * case.minimum(&source));
}

#[test]
fn that_a_rank_is_done_is_said_again_where_it_was_lost_with_a_connection() {
    let world = World::over(&Case::new(2), |end| {
        let forgets = AtomicBool::new(end.rank() == Rank(0));
        Through::new(end, move |end: &Faulty<End>, to, message| {
            let is_done = matches!(message, Message::Done(_));
            if is_done && forgets.swap(false, Ordering::Relaxed) {
                return Sent::Taken;
            }
            end.send(to, message)
        })
    });
    world.train_to_the_end();
    assert!(
        !world.jobs[1].linger(Duration::ZERO),
        "rank 0 may want more"
    );
    world.network.interrupt(Rank(0));
    world.network.reconnect(Rank(0));
    // It serves for a minute and more whoever is not done.
    assert!(world.jobs[1].linger(BOUND / 2));
}

#[test]
fn a_rank_that_moved_elsewhere_costs_no_sample_and_is_named() {
    let case = Case {
        epochs: 4,
        in_step: false,
        deadline: Duration::from_millis(200),
        ..Case::new(3)
    };
    let world = World::new(&case);
    let got = world.train(|rank, number| {
        // What it was to read in the first epoch it does not read any more, and others have it in its stead.
        if rank == Rank(1) && number == 5 {
            world.jobs[1].seek(3).unwrap();
        }
        false
    });
    // Whoever is ahead of the others may have had all it wanted by then.
    let mut blamed = BTreeSet::new();
    for rank in [0, 2] {
        world.check_stream(rank, &got[rank as usize]);
        let peers = world.jobs[rank as usize].stats().peers.unwrap();
        blamed.extend(peers.faults.keys().copied());
    }
    // On a busy machine one of the others may be late once, too.
    assert!(blamed.contains(&1), "{blamed:?}");
    let last = (3 * case.each) as usize;
    assert_eq!(got[1][6..], world.alone(1)[last..]);
}

#[test]
fn a_rank_that_dies_costs_the_others_no_sample() {
    for stops_after in [0, 15, 70] {
        let case = Case {
            each: 300,
            in_step: false,
            ..Case::new(3)
        };
        let began = Instant::now();
        let world = World::new(&case);
        let got = world.train(|rank, number| {
            let dies = rank == Rank(1) && number == stops_after;
            if dies {
                world.network.kill(rank);
                world.jobs[rank.index()].close();
            }
            dies
        });
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(2),
            "nobody waits for the dead: {took:?}"
        );
        for rank in [0, 2] {
            world.check_stream(rank, &got[rank as usize]);
        }
    }
}

#[test]
fn a_rank_that_falls_silent_is_done_without_and_heard_again() {
    let case = Case {
        in_step: false,
        ..Case::new(3)
    };
    let world = World::new(&case);
    let done = AtomicBool::new(false);
    let got = world.train(|rank, number| {
        let end = &world.ends[1];
        match (rank, number) {
            // Stopped, as by a signal, until another one has done without it.
            (Rank(1), 10) => {
                end.mute();
                while !done.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
                end.speak();
            }
            (Rank(0), 60) => done.store(true, Ordering::Release),
            _ => {}
        }
        false
    });
    check_epochs(&case, &got);
}

/// The folders of so many ranks: each is on a host of its own.
fn folders(ranks: u32) -> Vec<tempfile::TempDir> {
    (0..ranks).map(|_| tempfile::tempdir().unwrap()).collect()
}

/// A dataset as it was at a time: files of another time have other bytes, of the same sizes.
#[derive(Clone)]
struct Dated {
    made: Made,
    time_ns: i64,
}

impl Dated {
    fn stamp(&self) -> Stamp {
        Stamp {
            mtime_ns: self.time_ns,
            ctime_ns: self.time_ns,
            trusted: true,
            ..Stamp::default()
        }
    }
}

impl Source for Dated {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        self.made.read(sample, into)?;
        Ok(Some(self.stamp()))
    }

    fn look(&self, _: SampleId) -> Result<Option<Stamp>, ReadError> {
        Ok(Some(self.stamp()))
    }

    fn name(&self, sample: SampleId) -> String {
        self.made.name(sample)
    }
}

/// Trains once over the dataset with tiers in these folders, one a rank, each for `kept_percent` of the dataset; returns what
/// was read from the source.
fn trained_on_disks(folders: &[tempfile::TempDir], kept_percent: u64, seed: u64) -> u64 {
    let source = Dated {
        made: Made::equal(60, 1),
        time_ns: 1,
    };
    trained_on(&source, folders, kept_percent, seed)
}

/// The same on this dataset.
fn trained_on(dated: &Dated, folders: &[tempfile::TempDir], kept_percent: u64, seed: u64) -> u64 {
    let source = &dated.made;
    let world = folders.len() as u32;
    let network = Network::new(world);
    let case = Case {
        epochs: 2,
        shuffle: Shuffle::Torch { seed },
        kept_percent: kept_percent * u64::from(world),
        ..Case::new(world)
    };
    let job = |(rank, end): (u32, End)| {
        let mut spec = spec_on_disk(&case, source, rank, folders[rank as usize].path());
        spec.source = Arc::new(dated.clone());
        Job::among(spec, Arc::new(end)).unwrap()
    };
    let jobs: Vec<Job> = (0..).zip(network.ends()).map(job).collect();
    let all_done = Barrier::new(jobs.len());
    thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| {
                for batch in batches(job) {
                    let sample = &batch.samples[0];
                    assert_eq!(sample.lease.bytes(), source.content(sample.id));
                }
                all_done.wait();
                job.close();
            });
        }
    });
    source.bytes_read()
}

#[test]
fn ranks_that_start_again_read_nothing_that_one_of_them_holds() {
    let folders = folders(3);
    let total = Made::equal(60, 1).total();
    assert_eq!(trained_on_disks(&folders, 40, 1), total);
    // Other orders, in which other ranks use each sample first and most.
    for seed in 2..5 {
        assert_eq!(trained_on_disks(&folders, 40, seed), 0, "seed {seed}");
    }
}

#[test]
fn what_changed_in_the_source_is_read_again_by_one_rank_and_kept_at_its_home() {
    let at = |time: u32| Dated {
        made: Made::equal(900, u64::from(time)),
        time_ns: i64::from(time),
    };
    let total = at(1).made.total();
    for (ranks, kept_percent) in [(2, 50), (3, 34)] {
        let folders = folders(ranks);
        assert_eq!(trained_on(&at(1), &folders, kept_percent, 1), total);
        for time in 2..5 {
            let read = trained_on(&at(time), &folders, kept_percent, u64::from(time));
            // What two ranks want at the same moment, on both sides of an epoch's end, both may read.
            let most = total * 103 / 100;
            assert!((total..=most).contains(&read), "{read} of {total}");
        }
    }
}

#[test]
fn fewer_ranks_read_at_most_what_the_lost_tier_held() {
    let mut folders = folders(3);
    let total = Made::equal(60, 1).total();
    assert_eq!(trained_on_disks(&folders, 60, 1), total);
    drop(folders.remove(1));
    let most = total * 60 / 100;
    let read = trained_on_disks(&folders, 60, 2);
    assert!(read > 0 && read <= most, "{read} of {total}");
    assert_eq!(trained_on_disks(&folders, 60, 3), 0, "all is held by now");
}

#[test]
fn what_tiers_can_hold_may_differ_by_rank() {
    let case = Case::new(3);
    let source = Made::equal(case.samples(), 1);
    let network = Network::new(case.ranks);
    // One keeps nothing, the others enough for all.
    let capacities = [0, source.total() / 4, source.total() * 3 / 4];
    let job = |(rank, end): (u32, End)| {
        let mut spec = spec(&case, &source, rank);
        spec.config.tiers = vec![tier(TierKind::Memory, capacities[rank as usize])];
        Job::among(spec, Arc::new(end)).unwrap()
    };
    let jobs: Vec<Job> = (0..).zip(network.ends()).map(job).collect();
    let in_step = Barrier::new(jobs.len());
    thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| {
                for _ in batches(job) {
                    in_step.wait();
                }
            });
        }
    });
    assert_eq!(source.bytes_read(), source.total());
}

/// What one rank is given otherwise.
type Change = fn(&mut JobSpec);

#[test]
fn ranks_that_were_given_something_else_are_named_on_all_ranks() {
    let case = Case::new(3);
    let source = Made::equal(case.samples(), 1);
    let changes: [(Change, &str); 3] = [
        (|spec| spec.shuffle = Shuffle::Torch { seed: 8 }, "seed"),
        (|spec| spec.epochs += 1, "epochs"),
        (|spec| spec.policy = "nopfs".into(), "policy"),
    ];
    for (change, name) in changes {
        let network = Network::new(case.ranks);
        let ask = |(rank, end): (u32, End)| {
            let mut spec = spec(&case, &source, rank);
            if rank == 1 {
                change(&mut spec);
            }
            let job = Job::among(spec, Arc::new(end)).unwrap();
            // Asked again it says the same, without waiting for others.
            [job.next_batch(BOUND), job.next_batch(BOUND)]
        };
        let began = Instant::now();
        let said = thread::scope(|scope| {
            let ranks = (0..).zip(network.ends());
            let asked = ranks.map(|rank| scope.spawn(move || ask(rank)));
            let asked: Vec<_> = asked.collect();
            let said = asked.into_iter().flat_map(|rank| rank.join().unwrap());
            said.map(Result::err).collect::<Vec<_>>()
        });
        for said in said {
            let Some(JobError::Agreement(why)) = said else {
                panic!("{name}: {said:?}")
            };
            let why = why.to_string();
            assert!(why.contains("rank 1") && why.contains(name), "{why}");
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_rank_that_does_not_come_is_done_without() {
    let case = Case::new(3);
    let source = Made::equal(case.samples(), 1);
    let network = Network::new(case.ranks);
    let patience = Duration::from_millis(50);
    let got = thread::scope(|scope| {
        let ranks = (0..).zip(network.ends()).take(2);
        let trainers: Vec<_> = ranks
            .map(|(rank, end)| {
                let spec = spec(&case, &source, rank);
                let job = Job::among_within(spec, Arc::new(end), patience).unwrap();
                scope.spawn(move || {
                    let samples = batches(&job).flat_map(|batch| batch.samples);
                    samples.map(|sample| sample.id).collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = trainers.into_iter().map(|trainer| trainer.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    for (rank, got) in (0..).zip(&got) {
        let job = Job::new(spec(&case, &source, rank)).unwrap();
        let samples = batches(&job).flat_map(|batch| batch.samples);
        let expected: Vec<SampleId> = samples.map(|sample| sample.id).collect();
        assert_eq!(got, &expected, "rank {rank}");
    }
}

#[test]
fn a_move_waits_for_nobody_and_what_was_seen_is_not_read_again() {
    let case = Case::new(2);
    let world = World::new(&case);
    let all = Barrier::new(2);
    thread::scope(|scope| {
        for job in &world.jobs {
            scope.spawn(|| {
                let each = case.each;
                for _ in 0..each * 2 {
                    assert!(matches!(job.next_batch(BOUND), Ok(Asked::Batch(_))));
                }
                all.wait();
                job.seek(2)
                    .unwrap_or_else(|why| assert!(why.to_string().contains("epoch")));
                assert_eq!(batches(job).count(), each as usize);
                all.wait();
            });
        }
    });
    assert_eq!(world.source.bytes_read(), case.minimum(&world.source));
}
