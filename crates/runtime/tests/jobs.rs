//! Several jobs in one process: they share threads, and get all that is theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use foresee_config::TierKind;
use foresee_core::stream::Shuffle;
use foresee_runtime::job::{Job, JobSpec, OnHost};

use self::common::{Made, batches, job_spec, tier};

#[test]
fn forty_open_jobs_all_deliver() {
    let source = Made::new(600, 1, 0);
    let jobs: Vec<Arc<Job>> = (0..40)
        .map(|_| {
            let mut spec = job_spec(&source);
            spec.batch_size = 4;
            spec.epochs = 3;
            Arc::new(Job::new(spec).unwrap())
        })
        .collect();
    let trainers: Vec<_> = jobs
        .iter()
        .map(|job| {
            let job = Arc::clone(job);
            thread::spawn(move || {
                batches(&job)
                    .map(|batch| batch.samples.len())
                    .sum::<usize>()
            })
        })
        .collect();
    for trainer in trainers {
        assert_eq!(trainer.join().unwrap(), 3 * 600);
    }
}

/// A job on a tier on disk in this folder, with room for so much of the dataset.
fn on_disk(source: &Made, folder: &Path, percent: u64) -> JobSpec {
    let mut spec = job_spec(source);
    let kind = TierKind::Disk {
        path: folder.to_owned(),
        free_space_floor_bytes: 0,
        trust_folder: false,
    };
    spec.config.tiers = vec![tier(kind, source.total() * percent / 100)];
    spec.epochs = 3;
    spec
}

/// All samples of a job, checked byte for byte.
fn checked(job: &Job, source: &Made) -> usize {
    let samples = batches(job).flat_map(|batch| batch.samples);
    samples
        .inspect(|sample| assert_eq!(sample.lease.bytes(), source.content(sample.id)))
        .count()
}

#[test]
fn a_second_job_of_a_dataset_finds_what_the_first_one_holds_on_disk() {
    let source = Made::new(100, 2, 0);
    let folder = tempfile::tempdir().unwrap();
    let first = Job::new(on_disk(&source, folder.path(), 100)).unwrap();
    assert_eq!(checked(&first, &source), 300);
    let read = source.bytes_read();
    let second = Job::new(on_disk(&source, folder.path(), 100)).unwrap();
    assert_eq!(checked(&second, &source), 300);
    assert_eq!(source.bytes_read(), read, "all was on disk");
    first.close();
    let third = Job::new(on_disk(&source, folder.path(), 100)).unwrap();
    assert_eq!(checked(&third, &source), 300);
    second.close();
    third.close();
    let alone = Job::new(on_disk(&source, folder.path(), 100)).unwrap();
    assert_eq!(checked(&alone, &source), 300);
    assert_eq!(source.bytes_read(), read);
}

#[test]
fn jobs_that_share_a_tier_on_disk_take_nothing_from_each_other() {
    for policy in ["foresee", "nopfs", "lobster", "monarch"] {
        let source = Made::new(200, 3, 0);
        let folder = tempfile::tempdir().unwrap();
        let jobs: Vec<Arc<Job>> = (0..4)
            .map(|seed| {
                let mut spec = on_disk(&source, folder.path(), 40);
                spec.shuffle = Shuffle::Torch { seed };
                spec.policy = policy.to_owned();
                spec.epochs = 2 + seed as u32;
                Arc::new(Job::new(spec).unwrap())
            })
            .collect();
        thread::scope(|scope| {
            for job in &jobs {
                scope.spawn(|| {
                    assert_eq!(checked(job, &source), 200 * job.spec().epochs as usize);
                    let stats = job.stats();
                    assert_eq!(stats.lost, 0, "{policy}: {stats}");
                    job.close();
                });
            }
        });
        let held: u64 = kept_bytes(folder.path());
        assert!(held <= source.total() * 40 / 100, "{policy}: {held} B");
    }
}

/// What all data files of a cache folder have together.
fn kept_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| match entry.metadata().unwrap() {
        found if found.is_dir() => kept_bytes(&entry.path()),
        found if entry.file_name().to_string_lossy().starts_with("data-") => found.len(),
        _ => 0,
    });
    sizes.sum()
}

#[test]
fn a_tier_that_is_shared_keeps_the_capacity_that_it_was_opened_with() {
    let source = Made::new(100, 5, 0);
    let folder = tempfile::tempdir().unwrap();
    let first = Job::new(on_disk(&source, folder.path(), 50)).unwrap();
    assert_eq!(checked(&first, &source), 300);
    let second = Job::new(on_disk(&source, folder.path(), 100)).unwrap();
    assert_eq!(checked(&second, &source), 300);
    assert!(kept_bytes(folder.path()) <= source.total() / 2);
}

/// Runs so many ranks of one host to their end, one after the other; gives what they read of the source together.
fn run_ranks(source: &Made, folder: &Path, ranks: u32) -> u64 {
    let before = source.bytes_read();
    let jobs: Vec<Job> = (0..ranks)
        .map(|rank| {
            let mut spec = on_disk(source, folder, 100);
            spec.rank = rank;
            spec.world = ranks;
            spec.on_host = Some(OnHost { rank, ranks });
            spec.shuffle = Shuffle::Sequential;
            Job::new(spec).unwrap()
        })
        .collect();
    for job in &jobs {
        assert_eq!(checked(job, source), 3 * 100 / ranks as usize);
        assert_eq!(job.stats().lost, 0);
    }
    source.bytes_read() - before
}

#[test]
fn fewer_ranks_find_what_more_of_them_kept() {
    let source = Made::new(100, 2, 0);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_ranks(&source, folder.path(), 4), source.total());
    assert_eq!(
        run_ranks(&source, folder.path(), 1),
        0,
        "the first rank has what the others left"
    );
    assert_eq!(run_ranks(&source, folder.path(), 1), 0);
}

#[test]
fn more_ranks_find_what_each_slot_kept() {
    let source = Made::new(100, 2, 0);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_ranks(&source, folder.path(), 2), source.total());
    let read = run_ranks(&source, folder.path(), 4);
    assert!(
        read < source.total(),
        "slots 0 and 1 hold some of what ranks 0 and 1 use"
    );
    assert_eq!(run_ranks(&source, folder.path(), 4), 0);
}
