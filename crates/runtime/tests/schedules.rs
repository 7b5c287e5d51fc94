//! Whole jobs under many schedules: whatever threads do in whatever order, the trainer gets the samples of its stream, whole
//! and in order; moving and closing lose nothing and leave nobody waiting; all threads end. Shuttle sees threads that wait
//! for ever, and the tests see the rest.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use foresee_config::{Threads, TierKind};
use foresee_core::ids::{Rank, SampleId};
use foresee_core::stream::Shuffle;
use foresee_runtime::job::{Asked, Job, JobError, JobSpec, Sample};
use foresee_runtime::schedules::sync::Barrier;
use foresee_runtime::schedules::{explore, thread};
use foresee_runtime::source::{ReadError, Source};
use foresee_runtime::stamp::Stamp;
use foresee_runtime::transport::memory::{End, Network};

use self::common::{Made, batches, job_spec, tier};

/// A source whose reads take long enough for anything to happen meanwhile.
struct Slow(Made);

impl Source for Slow {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        thread::yield_now();
        let read = self.0.read(sample, into);
        thread::yield_now();
        read
    }

    fn name(&self, sample: SampleId) -> String {
        self.0.name(sample)
    }
}

const SAMPLES: u32 = 4;

/// Two threads, room for two samples in staging and for half of them in memory.
fn small(source: &Made) -> JobSpec {
    let mut spec = job_spec(source);
    spec.source = Arc::new(Slow(source.clone()));
    spec.shuffle = Shuffle::Sequential;
    spec.epochs = 2;
    spec.config.staging.capacity_bytes = 2 * source.largest();
    spec.config.staging.threads = Threads::Number(2);
    spec.config.tiers = vec![tier(TierKind::Memory, source.total() / 2)];
    spec
}

/// Looks at a sample, lets others go on, and looks again.
fn check(source: &Made, sample: &Sample) {
    for _ in 0..2 {
        assert_eq!(sample.lease.bytes(), source.content(sample.id));
        thread::yield_now();
    }
}

/// What is left of a job, sample by sample.
fn rest(job: &Job, source: &Made) -> Vec<u32> {
    let samples = batches(job).flat_map(|batch| batch.samples);
    let samples = samples.inspect(|sample| check(source, sample));
    samples.map(|sample| sample.id.0).collect()
}

#[test]
fn a_stream_comes_whole_and_in_order() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let job = Job::new(small(&source)).unwrap();
        assert_eq!(rest(&job, &source), [0, 1, 2, 3, 0, 1, 2, 3]);
        job.close();
    });
}

#[test]
fn closing_ends_whatever_is_under_way_and_leaves_leases_alone() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let job = Arc::new(Job::new(small(&source)).unwrap());
        let Asked::Batch(held) = job.next_batch(Duration::MAX / 4).unwrap() else {
            panic!("the first sample comes")
        };
        let closing = Arc::clone(&job);
        let closer = thread::spawn(move || closing.close());
        let mut came = 1;
        loop {
            match job.next_batch(Duration::MAX / 4) {
                Ok(Asked::Batch(batch)) => {
                    came += 1;
                    check(&source, &batch.samples[0]);
                }
                // It was closed between the arrival of the sample and its handing over; asked again, it says so.
                Ok(Asked::NotYet) => {}
                Ok(Asked::End) => {
                    assert_eq!(came, 2 * SAMPLES);
                    break;
                }
                Err(error) => {
                    assert!(matches!(error, JobError::Closed), "{error}");
                    break;
                }
            }
        }
        closer.join().unwrap();
        check(&source, &held.samples[0]);
    });
}

#[test]
fn a_move_drops_what_was_begun_and_nothing_else() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let job = Job::new(small(&source)).unwrap();
        let Asked::Batch(first) = job.next_batch(Duration::MAX / 4).unwrap() else {
            panic!("the first sample comes")
        };
        job.seek(1).unwrap();
        check(&source, &first.samples[0]);
        // It is given back while threads stage for where the job is now.
        let giving = thread::spawn(move || drop(first));
        assert_eq!(rest(&job, &source), [0, 1, 2, 3]);
        giving.join().unwrap();
        job.close();
    });
}

#[test]
fn samples_given_back_by_others_make_room() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let mut spec = small(&source);
        spec.batch_size = 2;
        let job = Job::new(spec).unwrap();
        let mut givers = Vec::new();
        let mut came = Vec::new();
        for batch in batches(&job) {
            came.extend(batch.samples.iter().map(|sample| sample.id.0));
            let source = source.clone();
            givers.push(thread::spawn(move || {
                let samples = batch.samples.iter();
                samples.for_each(|sample| check(&source, sample));
            }));
        }
        assert_eq!(came, [0, 1, 2, 3, 0, 1, 2, 3]);
        for giver in givers {
            giver.join().unwrap();
        }
        job.close();
    });
}

#[test]
fn jobs_that_share_threads_both_get_theirs() {
    explore(|| {
        let trainers = [1, 2].map(|seed| {
            thread::spawn(move || {
                let source = Made::equal(2, seed);
                let job = Job::new(small(&source)).unwrap();
                assert_eq!(rest(&job, &source), [0, 1, 0, 1]);
                job.close();
            })
        });
        for trainer in trainers {
            trainer.join().unwrap();
        }
    });
}

/// A folder in memory where there is one: the disk is not what is tested.
fn folder() -> tempfile::TempDir {
    let made = tempfile::tempdir_in("/dev/shm");
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn a_job_that_keeps_on_disk_moves_while_it_writes() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let folder = folder();
        let mut spec = small(&source);
        let kind = TierKind::Disk {
            path: folder.path().to_owned(),
            free_space_floor_bytes: 0,
            trust_folder: true,
        };
        spec.config.tiers = vec![tier(kind, source.total() / 2)];
        let job = Job::new(spec).unwrap();
        let Asked::Batch(first) = job.next_batch(Duration::MAX / 4).unwrap() else {
            panic!("the first sample comes")
        };
        check(&source, &first.samples[0]);
        job.seek(1).unwrap();
        assert_eq!(rest(&job, &source), [0, 1, 2, 3]);
        let stats = job.stats();
        assert_eq!(stats.lost, 0, "what was kept is there: {stats}");
        job.close();
    });
}

#[test]
fn a_broken_sample_is_an_error_and_what_is_behind_it_comes() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        source.break_sample(SampleId(1), true);
        let mut spec = small(&source);
        spec.epochs = 1;
        let job = Job::new(spec).unwrap();
        let mut came = Vec::new();
        loop {
            match job.next_batch(Duration::MAX / 4) {
                Ok(Asked::Batch(batch)) => came.push(batch.samples[0].id.0),
                Ok(Asked::NotYet) => panic!("there is no hurry"),
                Ok(Asked::End) => break,
                Err(error) => {
                    assert!(error.to_string().contains("made 1"), "{error}");
                    job.pass_over(1).unwrap();
                }
            }
        }
        assert_eq!(came, [0, 2, 3]);
        job.close();
    });
}

const RANKS: u32 = 2;

/// The order of each epoch, dealt to the two ranks in turns. Rank 0 uses samples 0, 1 and 2 twice and has room for two, so 2 has
/// its home with 3 on rank 1: rank 0 hands it over and asks for it again. 1 is handed over by rank 1, which asks for 0.
const ORDERS: [[u32; SAMPLES as usize]; 3] = [[0, 1, 2, 3], [2, 0, 1, 3], [0, 2, 1, 3]];

/// One of two ranks that keep half of the samples each. Each has a budget of its own, as processes have.
fn rank_of(source: &Made, rank: u32) -> JobSpec {
    let mut spec = small(source);
    let orders = ORDERS.map(|order| order.map(SampleId).to_vec());
    spec.shuffle = Shuffle::Explicit(orders.into());
    spec.epochs = ORDERS.len() as u32;
    spec.rank = rank;
    spec.world = RANKS;
    spec.config.staging.capacity_bytes += u64::from(rank);
    spec.config.staging.threads = Threads::Number(1);
    spec
}

/// The jobs of both ranks, with their ways to each other.
fn ranks(source: &Made) -> (Arc<Network>, Vec<Arc<Job>>) {
    let network = Network::new(RANKS);
    let job = |(rank, end): (u32, End)| {
        let job = Job::among(rank_of(source, rank), Arc::new(end));
        Arc::new(job.unwrap())
    };
    let jobs = (0..).zip(network.ends()).map(job).collect();
    (network, jobs)
}

/// What a rank gets.
fn stream(rank: u32) -> Vec<u32> {
    let all = ORDERS.as_flattened().iter().copied();
    all.skip(rank as usize).step_by(RANKS as usize).collect()
}

/// Lets each rank train in a thread of its own. Who is done serves the others until all are.
fn train(jobs: Vec<Arc<Job>>, source: &Made) -> Vec<thread::JoinHandle<()>> {
    let all_done = Arc::new(Barrier::new(jobs.len()));
    let train = |(rank, job): (u32, Arc<Job>)| {
        let source = source.clone();
        let all_done = Arc::clone(&all_done);
        thread::spawn(move || {
            assert_eq!(rest(&job, &source), stream(rank));
            all_done.wait();
            job.close();
        })
    };
    (0..).zip(jobs).map(train).collect()
}

#[test]
fn ranks_serve_each_other_and_read_each_sample_once() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let (_network, jobs) = ranks(&source);
        for trainer in train(jobs.clone(), &source) {
            trainer.join().unwrap();
        }
        assert_eq!(source.bytes_read(), source.total());
        for job in &jobs {
            let fetched = job.counts().origins["peer"].samples;
            assert_eq!(fetched, 1, "what the other one holds: {}", job.counts());
        }
    });
}

#[test]
fn a_rank_that_dies_costs_the_other_no_sample() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let (network, mut jobs) = ranks(&source);
        let dying = jobs.pop().unwrap();
        let death = thread::spawn(move || {
            let first = dying.next_batch(Duration::MAX / 4).unwrap();
            assert!(matches!(first, Asked::Batch(_)));
            network.kill(Rank(1));
            dying.close();
        });
        let living = jobs.pop().unwrap();
        assert_eq!(rest(&living, &source), stream(0));
        death.join().unwrap();
        living.close();
    });
}

#[test]
fn a_rank_that_is_given_up_for_a_while_costs_nobody_a_sample() {
    explore(|| {
        let source = Made::equal(SAMPLES, 1);
        let (network, jobs) = ranks(&source);
        let trainers = train(jobs, &source);
        network.interrupt(Rank(1));
        for trainer in trainers {
            trainer.join().unwrap();
        }
    });
}
