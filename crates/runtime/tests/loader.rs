//! Whole jobs with real threads: every sample exactly once an epoch, byte for byte, whatever the tiers, threads and faults.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use foresee_config::{Config, Threads, TierKind};
use foresee_core::ids::{Epoch, SampleId, Step};
use foresee_core::stream::{Mark, Shuffle, Tail};
use foresee_runtime::job::{Asked, Batch, Job, JobError, OnError, Saved};
use foresee_runtime::source::{ReadError, Source};
use foresee_runtime::stamp::Stamp;
use proptest::prelude::*;

use self::common::{Made, batches, job_spec, tier, undemanding};

const MINUTE: Duration = Duration::from_secs(60);

/// The samples of all ranks by epoch, checked byte for byte.
fn delivered(job: &Job, source: &Made) -> BTreeMap<u32, Vec<SampleId>> {
    let mut epochs: BTreeMap<u32, Vec<SampleId>> = BTreeMap::new();
    for batch in batches(job) {
        for sample in batch.samples.iter().filter(|sample| !sample.padded) {
            assert_eq!(
                sample.lease.bytes(),
                source.content(sample.id),
                "sample {}",
                sample.id
            );
            epochs.entry(batch.epoch).or_default().push(sample.id);
        }
    }
    epochs
}

fn ids(batch: &Batch) -> Vec<u32> {
    batch.samples.iter().map(|sample| sample.id.0).collect()
}

/// The samples of the next batch, which must be there.
fn next_ids(asked: Result<Asked, JobError>) -> Vec<u32> {
    match asked {
        Ok(Asked::Batch(batch)) => ids(&batch),
        Ok(Asked::NotYet | Asked::End) => panic!("there is more"),
        Err(error) => panic!("{error}"),
    }
}

/// Samples of all ranks by epoch and step, without those that fill a tail, and where the last rank then stood.
type Steps = (Vec<((u32, u32), Vec<u32>)>, Option<Saved>);

/// At most so many steps of two samples a rank, from the beginning or from where another job stood.
fn steps(
    source: &Made,
    world: u32,
    seed: u64,
    tail: Tail,
    from: Option<&Saved>,
    most: usize,
) -> Steps {
    let mut all: Vec<((u32, u32), Vec<u32>)> = Vec::new();
    let mut saved = None;
    for rank in 0..world {
        let mut spec = job_spec(source);
        spec.batch_size = 2;
        spec.epochs = 3;
        spec.rank = rank;
        spec.world = world;
        spec.shuffle = Shuffle::Torch { seed };
        spec.tail = tail;
        let Ok(job) = Job::new(spec) else {
            return (all, None);
        };
        if let Some(from) = from {
            job.load(from).unwrap();
        }
        for (place, batch) in batches(&job).take(most).enumerate() {
            let new = batch
                .samples
                .iter()
                .filter(|sample| !sample.padded)
                .map(|sample| sample.id.0);
            if rank == 0 {
                all.push(((batch.epoch, batch.step), new.collect()));
            } else {
                all[place].1.extend(new);
            }
            let is_left_out = tail == Tail::Pad
                && batch.samples.is_empty()
                && from.is_none_or(|from| from.global_batch >= world);
            assert!(
                !is_left_out,
                "rank {rank} has no sample in epoch {}, step {}",
                batch.epoch, batch.step
            );
        }
        saved = Some(job.save());
    }
    for (_, samples) in &mut all {
        samples.sort_unstable();
    }
    (all, saved)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_sample_comes_exactly_once_an_epoch_byte_for_byte(
        samples in 1u32..60,
        world in 1u32..9,
        batch in 1u32..7,
        epochs in 1u32..4,
        seed in any::<u64>(),
        percent in 0u64..150,
        disk_percent in prop::option::of(0u64..150),
        staging_samples in 1u64..20,
        (threads, policy, errors) in (1u32..9, 0usize..undemanding().len(), 0u32..40),
    ) {
        let source = Made::new(samples, seed, errors);
        let folder = tempfile::tempdir().unwrap();
        let mut all: BTreeMap<u32, Vec<SampleId>> = BTreeMap::new();
        for rank in 0..world {
            let mut spec = job_spec(&source);
            spec.shuffle = if seed % 2 == 0 { Shuffle::Torch { seed } } else { Shuffle::Feistel { seed } };
            spec.batch_size = batch;
            spec.epochs = epochs;
            spec.rank = rank;
            spec.world = world;
            spec.tail = Tail::Exact;
            spec.policy = undemanding()[policy].into();
            spec.config.staging.capacity_bytes = staging_samples * source.largest();
            spec.config.staging.threads = Threads::Number(threads);
            spec.config.tiers = vec![tier(TierKind::Memory, source.total() * percent / 100)];
            if let Some(percent) = disk_percent {
                let path = folder.path().join(format!("rank{rank}"));
                let kind = TierKind::Disk { path, free_space_floor_bytes: 0, trust_folder: false };
                spec.config.tiers.push(tier(kind, source.total() * percent / 100));
            }
            let job = Job::new(spec).unwrap();
            for (epoch, samples) in delivered(&job, &source) {
                all.entry(epoch).or_default().extend(samples);
            }
        }
        let expected: Vec<SampleId> = (0..samples).map(SampleId).collect();
        for epoch in 0..epochs {
            let mut got = all.remove(&epoch).unwrap_or_default();
            got.sort();
            prop_assert_eq!(&got, &expected, "epoch {}", epoch);
        }
    }

    #[test]
    fn the_same_completions_into_a_fresh_engine_give_the_same_commands(
        samples in 1u32..60,
        epochs in 1u32..4,
        seed in any::<u64>(),
        percent in 0u64..150,
        threads in 1u32..5,
        policy in 0usize..5,
    ) {
        let source = Made::new(samples, seed, 0);
        let mut spec = job_spec(&source);
        spec.batch_size = 4;
        spec.epochs = epochs;
        spec.shuffle = Shuffle::Torch { seed };
        spec.policy = undemanding()[policy].into();
        spec.config.staging.threads = Threads::Number(threads);
        spec.config.staging.capacity_bytes = 5 * source.largest();
        spec.config.tiers = vec![tier(TierKind::Memory, source.total() * percent / 100)];
        spec.record = true;
        let job = Job::new(spec).unwrap();
        drop(delivered(&job, &source));
        let (entries, mut fresh) = job.recording().unwrap();
        prop_assert!(entries.len() >= (samples * epochs) as usize);
        for (place, entry) in entries.iter().enumerate() {
            prop_assert_eq!(&fresh.replay(entry), entry, "entry {}", place);
        }
    }

    #[test]
    fn healthy_tiers_lose_nothing_and_no_access_reads_the_source_twice(
        samples in 2u32..60,
        epochs in 1u32..6,
        seed in any::<u64>(),
        percents in (0u64..120, prop::option::of(0u64..120)),
        staging_samples in 1u64..20,
        (threads, policy) in (1u32..5, prop::sample::select(vec!["foresee", "lobster"])),
        drop_last in any::<bool>(),
    ) {
        let source = Made::equal(samples, seed);
        let folder = tempfile::tempdir().unwrap();
        let mut spec = job_spec(&source);
        spec.batch_size = 4;
        spec.epochs = epochs;
        spec.shuffle = Shuffle::Torch { seed };
        // Another part of the dataset is left out in each epoch, so that copies are kept beyond the next one.
        spec.tail = if drop_last && samples >= 4 { Tail::Drop } else { Tail::Exact };
        spec.policy = policy.into();
        spec.config.staging.threads = Threads::Number(threads);
        spec.config.staging.capacity_bytes = staging_samples * source.largest();
        spec.config.tiers = vec![tier(TierKind::Memory, source.total() * percents.0 / 100)];
        if let Some(percent) = percents.1 {
            let kind = TierKind::Disk { path: folder.path().into(), free_space_floor_bytes: 0, trust_folder: false };
            spec.config.tiers.push(tier(kind, source.total() * percent / 100));
        }
        let job = Job::new(spec).unwrap();
        drop(delivered(&job, &source));
        let stats = job.stats();
        prop_assert_eq!(stats.lost, 0, "{:?}", stats);
        let reads = stats.origins["source"].samples;
        let accesses = stats.samples;
        prop_assert!(reads <= accesses, "{} reads of the source, {} accesses: {:?}", reads, accesses, stats);
    }

    #[test]
    fn reads_the_source_no_more_than_the_minimum(
        samples in 2u32..60,
        epochs in 1u32..5,
        seed in any::<u64>(),
        keep in 0u32..70,
        threads in 1u32..5,
        start in prop::option::of((0u32..4, 0u32..10)),
    ) {
        let source = Made::equal(samples, seed);
        let mut spec = job_spec(&source);
        spec.batch_size = 3;
        spec.epochs = epochs;
        spec.shuffle = Shuffle::Torch { seed };
        spec.config.staging.threads = Threads::Number(threads);
        spec.config.staging.capacity_bytes = 5 * source.largest();
        spec.config.tiers = vec![tier(TierKind::Memory, u64::from(keep) * source.largest())];
        let job = Job::new(spec).unwrap();
        if let Some((epoch, step)) = start {
            let mut saved = job.save();
            saved.epoch = epoch.min(epochs - 1);
            saved.step = step.min(samples.div_ceil(3) - 1);
            job.load(&saved).unwrap();
        }
        drop(delivered(&job, &source));
        let stats = job.stats();
        prop_assert_eq!(Some(stats.source_bytes), stats.source_minimum_bytes);
        prop_assert_eq!(source.bytes_read(), stats.source_bytes);
    }

    #[test]
    fn a_resumed_job_goes_on_with_the_very_next_batch_whatever_the_world(
        samples in 1u32..60,
        worlds in (1u32..5, 1u32..5),
        seed in any::<u64>(),
        stop in 0usize..30,
        tail in 0usize..3,
    ) {
        let source = Made::new(samples, seed, 0);
        let tail = [Tail::Exact, Tail::Pad, Tail::Drop][tail];
        // A job whose tail is all there is is refused.
        prop_assume!(tail != Tail::Drop || samples >= worlds.1);
        let (whole, _) = steps(&source, worlds.0, seed, tail, None, usize::MAX);
        let (mut parts, saved) = steps(&source, worlds.0, seed, tail, None, stop);
        if let Some(saved) = saved {
            let json = serde_json::to_string(&saved).unwrap();
            let read: Saved = serde_json::from_str(&json).unwrap();
            parts.extend(steps(&source, worlds.1, seed, tail, Some(&read), usize::MAX).0);
        }
        prop_assert_eq!(parts, whole);
    }
}

#[test]
fn a_broken_sample_is_named_and_the_job_goes_on_when_it_is_mended() {
    let source = Made::new(20, 3, 0);
    source.break_sample(SampleId(7), true);
    let mut spec = job_spec(&source);
    spec.batch_size = 5;
    spec.shuffle = Shuffle::Sequential;
    let job = Job::new(spec).unwrap();
    assert_eq!(next_ids(job.next_batch(MINUTE)), [0, 1, 2, 3, 4]);
    for _ in 0..2 {
        let error = job.next_batch(MINUTE).err().unwrap().to_string();
        assert_eq!(
            error,
            "rank 0: sample 7 (made 7): No such file or directory (os error 2)"
        );
        assert_eq!(job.place(), (0, 1));
    }
    source.break_sample(SampleId(7), false);
    let Ok(Asked::Batch(batch)) = job.next_batch(MINUTE) else {
        panic!("the sample was mended")
    };
    assert_eq!(ids(&batch), [5, 6, 7, 8, 9]);
    assert!(
        batch
            .samples
            .iter()
            .all(|sample| sample.lease.bytes() == source.content(sample.id))
    );
}

#[test]
fn a_broken_sample_can_be_skipped_and_the_next_one_takes_its_place() {
    let source = Made::new(20, 3, 0);
    source.break_sample(SampleId(7), true);
    source.break_sample(SampleId(8), true);
    let mut spec = job_spec(&source);
    spec.batch_size = 20;
    spec.shuffle = Shuffle::Sequential;
    spec.on_error = OnError::Skip;
    spec.epochs = 2;
    spec.config.tiers = vec![tier(TierKind::Memory, source.total())];
    let job = Job::new(spec).unwrap();
    for batch in batches(&job) {
        let expected: Vec<u32> = (0..20)
            .map(|id| if id == 7 || id == 8 { 9 } else { id })
            .collect();
        assert_eq!(ids(&batch), expected);
        assert!(
            batch
                .samples
                .iter()
                .all(|sample| sample.lease.bytes() == source.content(sample.id))
        );
    }
    assert_eq!(job.stats().skipped, 4);
}

#[test]
fn a_trainer_that_keeps_everything_gets_everything() {
    let source = Made::new(50, 5, 0);
    let mut spec = job_spec(&source);
    spec.batch_size = 8;
    spec.epochs = 3;
    spec.config.staging.capacity_bytes = source.largest();
    let job = Job::new(spec).unwrap();
    let all: Vec<Batch> = batches(&job).collect();
    assert_eq!(
        all.iter().map(|batch| batch.samples.len()).sum::<usize>(),
        150
    );
    for sample in all.iter().flat_map(|batch| &batch.samples) {
        assert_eq!(sample.lease.bytes(), source.content(sample.id));
    }
    assert!(job.stats().outside > 0);
}

#[test]
fn two_jobs_share_threads_and_neither_starves() {
    let source = Made::new(200, 9, 0);
    let make = || {
        let mut spec = job_spec(&source);
        spec.batch_size = 8;
        spec.epochs = 2;
        spec.config.tiers = vec![tier(TierKind::Memory, source.total() / 2)];
        Job::new(spec).unwrap()
    };
    let train = make();
    let validate = make();
    let mut one = batches(&train);
    let mut other = batches(&validate);
    let mut samples = [0, 0];
    for _ in 0..50 {
        samples[0] += one.next().map_or(0, |batch| batch.samples.len());
        samples[1] += other.next().map_or(0, |batch| batch.samples.len());
    }
    assert_eq!(samples, [400, 400]);
}

/// A source of which something is known before each read, and which remembers who read.
struct Watched {
    made: Made,
    before: Box<dyn Fn() -> Result<(), ReadError> + Send + Sync>,
    readers: Mutex<HashSet<ThreadId>>,
}

impl Source for Watched {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        self.readers.lock().unwrap().insert(thread::current().id());
        (self.before)()?;
        self.made.read(sample, into)
    }

    fn name(&self, sample: SampleId) -> String {
        self.made.name(sample)
    }
}

/// A job of 600 samples with one loader thread on such a source.
fn watched(
    before: impl Fn() -> Result<(), ReadError> + Send + Sync + 'static,
) -> (Job, Arc<Watched>) {
    watched_with(before, |_| ())
}

fn watched_with(
    before: impl Fn() -> Result<(), ReadError> + Send + Sync + 'static,
    configure: impl FnOnce(&mut Config),
) -> (Job, Arc<Watched>) {
    let made = Made::new(200, 3, 0);
    let mut spec = job_spec(&made);
    let source = Arc::new(Watched {
        made,
        before: Box::new(before),
        readers: Mutex::default(),
    });
    spec.batch_size = 8;
    spec.epochs = 3;
    spec.source = Arc::clone(&source) as Arc<dyn Source>;
    spec.config.staging.threads = Threads::Number(1);
    configure(&mut spec.config);
    (Job::new(spec).unwrap(), source)
}

const READ: Duration = Duration::from_micros(200);

/// A read that is a matter of copying.
fn busy() {
    let began = Instant::now();
    while began.elapsed() < READ {}
}

#[test]
fn a_trainer_that_would_wait_helps_where_reads_are_a_matter_of_copying_and_only_there() {
    for (take_time, helps) in [(busy as fn(), true), (|| thread::sleep(READ), false)] {
        for one_by_one in [false, true] {
            let (job, source) = watched(move || {
                take_time();
                Ok(())
            });
            let mut samples = 0;
            while samples < 600 {
                let asked = if one_by_one {
                    job.next_sample(MINUTE)
                } else {
                    job.next_batch(MINUTE)
                };
                let Asked::Batch(batch) = asked.unwrap() else {
                    panic!("there is more")
                };
                assert!(
                    batch
                        .samples
                        .iter()
                        .all(|sample| sample.lease.bytes() == source.made.content(sample.id))
                );
                samples += batch.samples.len();
            }
            assert_eq!(
                source
                    .readers
                    .lock()
                    .unwrap()
                    .contains(&thread::current().id()),
                helps
            );
        }
    }
}

#[test]
fn a_trainer_that_would_wait_helps_with_what_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TierKind::Disk {
        path: folder.path().join("cache"),
        free_space_floor_bytes: 0,
        trust_folder: false,
    };
    let trainer = thread::current().id();
    let hangs = Arc::new(AtomicBool::new(false));
    let gate = Arc::new(Mutex::new(()));
    let hanging = Arc::clone(&hangs);
    let closed = Arc::clone(&gate);
    let before = move || {
        busy();
        if thread::current().id() != trainer && closed.try_lock().is_err() {
            hanging.store(true, Ordering::Relaxed);
            drop(closed.lock());
        }
        Ok(())
    };
    let (job, source) = watched_with(before, |config| {
        config.staging.capacity_bytes *= 4;
        config.tiers = vec![tier(disk, Made::new(200, 3, 0).total() / 2)];
    });
    batches(&job).take(25).for_each(drop);
    let shut = gate.lock().unwrap();
    let mut got = Vec::new();
    let mut ask = |patience| match job.next_batch(patience).unwrap() {
        Asked::Batch(batch) => {
            assert!(
                batch
                    .samples
                    .iter()
                    .all(|sample| sample.lease.bytes() == source.made.content(sample.id))
            );
            got.extend(ids(&batch));
            true
        }
        Asked::NotYet | Asked::End => false,
    };
    // Without patience the trainer does not read. The only thread for staging reads until it hangs in a read of the source.
    while !hangs.load(Ordering::Relaxed) {
        ask(Duration::ZERO);
    }
    let from_disk = || job.stats().origins["tier1"].samples;
    let by_thread = from_disk();
    while ask(Duration::from_millis(50)) {}
    assert!(from_disk() > by_thread);
    drop(shut);
    while ask(MINUTE) {}
    got.sort_unstable();
    assert_eq!(
        got,
        (0..200).flat_map(|sample| [sample; 2]).collect::<Vec<_>>()
    );
}

#[test]
fn a_cache_folder_is_free_when_a_job_is_closed_while_its_trainer_helps() {
    let folder = tempfile::tempdir().unwrap();
    let source = Made::with((0..200u8).map(|sample| vec![sample; 200_000]).collect());
    let make = || {
        let mut spec = job_spec(&source);
        spec.batch_size = 16;
        spec.epochs = 1000;
        spec.config.staging.capacity_bytes = 64 << 20;
        spec.config.staging.threads = Threads::Number(1);
        let disk = TierKind::Disk {
            path: folder.path().join("cache"),
            free_space_floor_bytes: 0,
            trust_folder: false,
        };
        spec.config.tiers = vec![tier(disk, source.total())];
        Arc::new(Job::new(spec).unwrap())
    };
    batches(&make()).take(13).for_each(drop);
    for round in 0..25u64 {
        let job = make();
        let trainer = thread::spawn({
            let job = Arc::clone(&job);
            move || {
                let mut last = None;
                loop {
                    match job.next_batch(Duration::from_millis(50)) {
                        Ok(Asked::Batch(batch)) => last = Some(batch),
                        Ok(Asked::NotYet | Asked::End) => {}
                        Err(error) => return (last, error),
                    }
                }
            }
        });
        thread::sleep(Duration::from_micros(20_000 + 700 * round));
        job.close();
        assert_eq!(
            next_ids(make().next_batch(MINUTE)).len(),
            16,
            "round {round}"
        );
        let (_last, error) = trainer.join().unwrap();
        assert!(matches!(error, JobError::Closed), "{error}");
    }
}

#[test]
fn two_and_a_half_of_what_is_asked_for_at_a_time_are_staged() {
    let source = Made::with(
        (0..3000u32)
            .map(|sample| vec![sample as u8; 20_000])
            .collect(),
    );
    let mut spec = job_spec(&source);
    spec.batch_size = 1000;
    spec.config.staging.capacity_bytes = 1 << 30;
    let job = Job::new(spec).unwrap();
    let _held = job.next_batch(MINUTE).unwrap();
    let began = Instant::now();
    while source.bytes_read() < 49_900_000 {
        assert!(
            began.elapsed() < MINUTE,
            "{} bytes for batches of 20 MB",
            source.bytes_read()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_trainer_that_helps_leaves_what_fails_to_the_threads() {
    let reads = AtomicU32::new(0);
    let (job, _) = watched(move || {
        busy();
        // After some time reads fail as storage that stumbles does, and are tried again, with pauses.
        if reads.fetch_add(1, Ordering::Relaxed) < 300 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(5).into())
        }
    });
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let error = loop {
        let asked = Instant::now();
        let answer = job.next_batch(Duration::from_millis(20));
        longest = longest.max(asked.elapsed());
        match answer {
            Err(error) => break error,
            Ok(_) => assert!(began.elapsed() < MINUTE),
        }
    };
    assert!(error.to_string().contains("made "), "{error}");
    assert!(
        longest < Duration::from_secs(1),
        "{longest:?}: it slept between tries"
    );
}

#[test]
fn a_panic_while_the_trainer_helps_ends_the_job_with_an_error() {
    let trainer = thread::current().id();
    let (job, _) = watched(move || {
        assert!(thread::current().id() != trainer, "a defect");
        busy();
        Ok(())
    });
    let error = loop {
        match job.next_batch(MINUTE) {
            Ok(Asked::Batch(_)) => {}
            Ok(Asked::NotYet | Asked::End) => panic!("the defect is reported"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, JobError::Defect(said) if said.contains("a defect")),
        "{error}"
    );
}

#[test]
fn a_job_that_keeps_all_threads_busy_does_not_starve_another() {
    let done = AtomicBool::new(false);
    let busy = || {
        busy();
        Ok(())
    };
    let (first, _) = watched(move || busy().and_then(|()| busy()));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let Ok(Asked::Batch(_)) = first.next_batch(MINUTE) else {
                    break;
                };
            }
        });
        let (second, _) = watched(busy);
        for _ in 0..5 {
            assert_eq!(next_ids(second.next_batch(MINUTE)).len(), 8);
        }
        assert!(
            first.place().0 < 3,
            "the second job got nothing before the first was over"
        );
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_that_was_used_is_used_again_before_more_is_touched() {
    let source = Made::with(
        (0..1000u32)
            .map(|sample| vec![sample as u8; 60_000 + sample as usize])
            .collect(),
    );
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.config.staging.capacity_bytes = 1 << 30;
    let job = Job::new(spec).unwrap();
    let mut places = Vec::new();
    while let Asked::Batch(batch) = job.next_sample(MINUTE).unwrap() {
        let lease = &batch.samples[0].lease;
        assert_eq!(lease.bytes(), source.content(batch.samples[0].id));
        places.push(lease.bytes().as_ptr() as usize);
    }
    let touched = places.iter().max().unwrap() - places.iter().min().unwrap();
    assert_eq!(places.len(), 1000);
    assert!(
        touched < 36 << 20,
        "{touched} bytes of 60 MB for 8 MiB ahead, or 16 to 32 where the trainer had to wait"
    );
}

#[test]
fn a_sample_at_a_time_and_then_the_rest_of_the_batch() {
    let source = Made::new(10, 1, 0);
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.shuffle = Shuffle::Sequential;
    let job = Job::new(spec.clone()).unwrap();
    assert_eq!(next_ids(job.next_sample(MINUTE)), [0]);
    assert_eq!(next_ids(job.next_sample(MINUTE)), [1]);
    let saved = job.save();
    assert_eq!(next_ids(job.next_batch(MINUTE)), [2, 3]);
    let other = Job::new(spec).unwrap();
    other.load(&saved).unwrap();
    assert_eq!(next_ids(other.next_batch(MINUTE)), [2, 3]);
    assert_eq!(next_ids(other.next_batch(MINUTE)), [4, 5, 6, 7]);
}

#[test]
fn seeking_keeps_what_tiers_hold_and_never_goes_back() {
    let source = Made::equal(40, 1);
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.epochs = 5;
    spec.config.tiers = vec![tier(TierKind::Memory, source.total())];
    let job = Job::new(spec).unwrap();
    batches(&job).take(10).for_each(drop);
    job.seek(3).unwrap();
    let rest = delivered(&job, &source);
    assert_eq!(rest.keys().copied().collect::<Vec<_>>(), [3, 4]);
    assert_eq!(source.bytes_read(), source.total());
    assert_eq!(
        job.seek(1).unwrap_err().to_string(),
        "epoch 1 is not ahead: the job stands in epoch 5 of 5"
    );
}

#[test]
fn closing_frees_folder_and_budget_for_the_next_job_while_samples_are_still_held() {
    let source = Made::new(40, 2, 0);
    let folder = tempfile::tempdir().unwrap();
    let make = || {
        let mut spec = job_spec(&source);
        spec.batch_size = 4;
        spec.epochs = 2;
        let disk = TierKind::Disk {
            path: folder.path().join("cache"),
            free_space_floor_bytes: 0,
            trust_folder: false,
        };
        spec.config.tiers = vec![
            tier(TierKind::Memory, source.total() / 2),
            tier(disk, source.total()),
        ];
        Job::new(spec).unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        let job = make();
        held.extend(batches(&job).take(7));
        assert!(
            job.stats().source_minimum_bytes.unwrap() <= source.total(),
            "tiers of the whole size"
        );
        job.close();
    }
    for sample in held.iter().flat_map(|batch| &batch.samples) {
        assert_eq!(sample.lease.bytes(), source.content(sample.id));
    }
}

#[test]
fn a_state_in_the_middle_of_a_batch_is_loaded_exactly_or_refused() {
    let source = Made::new(20, 2, 0);
    let make = |world| {
        let mut spec = job_spec(&source);
        spec.batch_size = 4;
        spec.world = world;
        Job::new(spec).unwrap()
    };
    let job = make(1);
    next_ids(job.next_sample(MINUTE));
    let saved = job.save();
    let error = make(2).load(&saved).unwrap_err().to_string();
    assert!(error.ends_with("save it between two batches"), "{error}");
    let error = make(1)
        .load(&Saved { index: 99, ..saved })
        .unwrap_err()
        .to_string();
    assert!(error.contains("sample 99 of a batch"), "{error}");
}

#[test]
fn one_of_several_lone_ranks_reads_at_least_what_it_uses() {
    let source = Made::equal(60, 2);
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.epochs = 3;
    spec.world = 2;
    spec.tail = Tail::Exact;
    spec.config.tiers = vec![tier(TierKind::Memory, 2 * source.total())];
    let job = Job::new(spec).unwrap();
    drop(delivered(&job, &source));
    let stats = job.stats();
    assert_eq!(Some(stats.source_bytes), stats.source_minimum_bytes);
}

#[test]
fn goes_on_in_an_order_that_nobody_knew_before_and_keeps_what_it_has() {
    let source = Made::with((0..20u8).map(|number| vec![number; 100]).collect());
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.epochs = 1000;
    spec.shuffle = Shuffle::Explicit([vec![SampleId(0)]].into());
    spec.config.tiers = vec![tier(TierKind::Memory, source.total())];
    let job = Job::new(spec).unwrap();
    for epoch in 0..3u32 {
        let list: Vec<SampleId> = (0..20)
            .map(|place| SampleId((place * 7 + epoch) % 20))
            .collect();
        job.reorder(
            Mark {
                epoch: Epoch(epoch),
                step: Step(0),
            },
            list.clone(),
        )
        .unwrap();
        let mut got = Vec::new();
        while let Asked::Batch(batch) = job.next_batch(MINUTE).unwrap() {
            assert_eq!(batch.epoch, epoch);
            got.extend(batch.samples.iter().map(|sample| sample.id));
        }
        assert_eq!(got, list, "and then the epoch is over");
        assert_eq!(job.place(), (epoch + 1, 0));
    }
    assert_eq!(
        job.counts().source_bytes,
        source.total(),
        "each sample is read once"
    );
    let rest = vec![
        SampleId(3),
        SampleId(1),
        SampleId(4),
        SampleId(1),
        SampleId(5),
        SampleId(9),
    ];
    job.reorder(
        Mark {
            epoch: Epoch(9),
            step: Step(1),
        },
        rest,
    )
    .unwrap();
    assert_eq!(next_ids(job.next_batch(MINUTE)), [5, 9]);
}

#[test]
fn another_order_waits_for_what_is_being_written_to_the_disk() {
    for _ in 0..50 {
        let source = Made::equal(8, 48);
        let folder = tempfile::tempdir().unwrap();
        let mut spec = job_spec(&source);
        spec.batch_size = 2;
        spec.epochs = 1000;
        spec.shuffle = Shuffle::Explicit([vec![SampleId(0)]].into());
        let disk = TierKind::Disk {
            path: folder.path().to_owned(),
            free_space_floor_bytes: 0,
            trust_folder: false,
        };
        spec.config.tiers = vec![tier(disk, source.total())];
        let job = Job::new(spec).unwrap();
        for epoch in 0..4 {
            // What comes last in one epoch comes first in the next.
            let list = (0..8)
                .map(|place| SampleId(if epoch % 2 == 0 { place } else { 7 - place }))
                .collect();
            job.reorder(
                Mark {
                    epoch: Epoch(epoch),
                    step: Step(0),
                },
                list,
            )
            .unwrap();
            while let Asked::Batch(_) = job.next_batch(MINUTE).unwrap() {}
        }
        assert_eq!(
            job.counts().source_bytes,
            source.total(),
            "each sample is read once"
        );
    }
}

#[test]
fn ranks_with_orders_of_their_own_get_all_of_them_and_share_no_cache() {
    let source = Made::equal(12, 4);
    let folder = tempfile::tempdir().unwrap();
    let lists = [vec![3, 1, 2, 0, 4], vec![9, 8, 10, 11, 7]]
        .map(|list| list.into_iter().map(SampleId).collect());
    let jobs: Vec<(Job, Vec<SampleId>)> = lists
        .into_iter()
        .zip(0..)
        .map(|(list, rank): (Vec<SampleId>, u32)| {
            let mut spec = job_spec(&source);
            spec.batch_size = 2;
            spec.epochs = 2;
            spec.rank = rank;
            spec.world = 2;
            spec.shuffle = Shuffle::Explicit([list.clone()].into());
            spec.own_order = true;
            let disk = TierKind::Disk {
                path: folder.path().to_owned(),
                free_space_floor_bytes: 0,
                trust_folder: false,
            };
            spec.config.tiers = vec![tier(disk, source.total())];
            (Job::new(spec).unwrap(), list)
        })
        .collect();
    for (job, list) in &jobs {
        assert_eq!(
            delivered(job, &source).into_values().collect::<Vec<_>>(),
            [list.clone(), list.clone()]
        );
        let stats = job.stats();
        assert_eq!(
            (stats.world_size, stats.source_bytes, stats.lost),
            (2, 500, 0),
            "rank {}",
            stats.rank
        );
    }
    let names = std::fs::read_dir(folder.path())
        .unwrap()
        .filter_map(Result::ok);
    let mut ranks: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    ranks.retain(|name| name.ends_with("-slot0") || name.ends_with("-slot1"));
    assert_eq!(ranks.len(), 2, "{ranks:?}");
}

#[test]
fn a_batch_that_cannot_be_read_can_be_passed_over() {
    let source = Made::new(10, 7, 0);
    for policy in undemanding() {
        for (broken, expected) in [
            (4, vec![0, 1, 2, 6, 7, 8, 9]),
            (9, vec![0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ] {
            source.break_sample(SampleId(broken), true);
            let mut spec = job_spec(&source);
            spec.batch_size = 3;
            spec.shuffle = Shuffle::Sequential;
            spec.policy = policy.into();
            let job = Job::new(spec).unwrap();
            let mut got = Vec::new();
            loop {
                match job.next_batch(MINUTE) {
                    Ok(Asked::Batch(batch)) => got.extend(ids(&batch)),
                    Ok(Asked::NotYet) => panic!("there is more"),
                    Ok(Asked::End) => break,
                    Err(_) => job.pass_over(1).unwrap(),
                }
            }
            assert_eq!(got, expected, "{policy}");
            source.break_sample(SampleId(broken), false);
        }
    }
}

#[test]
fn what_the_caller_cannot_use_is_replaced_by_the_next_that_can_be_read() {
    let source = Made::new(5, 7, 0);
    source.break_sample(SampleId(4), true);
    let mut spec = job_spec(&source);
    spec.shuffle = Shuffle::Sequential;
    let job = Job::new(spec).unwrap();
    assert!(
        job.instead_of(SampleId(3), 0).is_none(),
        "nothing was read yet"
    );
    drop(job.next_batch(MINUTE).unwrap());
    let (tried, other, data) = job.instead_of(SampleId(3), 0).unwrap();
    assert_eq!(
        (tried, other, &*data),
        (2, SampleId(0), source.content(SampleId(0)))
    );
    assert_eq!(job.instead_of(SampleId(3), tried).unwrap().1, SampleId(1));
    assert!(job.instead_of(SampleId(3), 4).is_none(), "all were tried");
    job.note_skipped(SampleId(3), SampleId(0), "no use");
    assert_eq!(job.stats().skipped, 1);
}
