//! Files that change between jobs and during them: what is delivered was in the source at some moment of the job, or an
//! error names it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use foresee_config::{Config, TierKind};
use foresee_core::ids::SampleId;
use foresee_core::stream::Shuffle;
use foresee_runtime::dataset::{Dataset, Listing};
use foresee_runtime::job::{Asked, Job, JobError, JobSpec, OnError, Stats};
use foresee_runtime::source::{LocalFiles, ReadError, Source};
use foresee_runtime::stamp::Stamp;
use tempfile::TempDir;

use self::common::{Made, job_spec, tier};

const SAMPLES: usize = 20;
const BATCH: u32 = 4;

/// A dataset in one class folder, a folder for saved catalogs and one for a tier on disk.
struct World {
    root: TempDir,
    immutable: bool,
    staging_bytes: u64,
}

/// What a run delivered, by the number of samples.
struct Delivered {
    samples: Vec<(SampleId, Vec<u8>)>,
    stats: Stats,
    looks: u64,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("data/class")).unwrap();
        let world = Self {
            root,
            immutable: false,
            staging_bytes: 1 << 20,
        };
        (0..SAMPLES).for_each(|sample| world.write(sample, "first"));
        world
    }

    /// Its files have been as they are for so long that it is certain.
    fn rested(self) -> Self {
        thread::sleep(Duration::from_millis(2100));
        self
    }

    fn path(&self, sample: usize) -> PathBuf {
        self.root.path().join(format!("data/class/{sample:02}.png"))
    }

    /// Writes a file in place.
    fn write(&self, sample: usize, version: &str) {
        fs::write(self.path(sample), content(sample, version)).unwrap();
    }

    /// A job on the dataset as it is listed or saved.
    fn job(&self, epochs: u32, on_error: OnError) -> (Job, Arc<Looked>) {
        let catalogs = self.root.path().join("catalogs");
        let listing = Listing {
            cache: Some(&catalogs),
            trusted: false,
            threads: 2,
            ..Listing::default()
        };
        let dataset =
            Arc::new(Dataset::image_folder(&self.root.path().join("data"), &listing).unwrap());
        let source = Arc::new(Looked {
            files: LocalFiles::new(Arc::clone(&dataset)),
            looks: AtomicU64::new(0),
        });
        let disk = TierKind::Disk {
            path: self.root.path().join("cache"),
            free_space_floor_bytes: 0,
            trust_folder: false,
        };
        let plain = job_spec(&Made::new(1, 0, 0));
        let mut config = Config {
            tiers: vec![tier(disk, 1 << 20)],
            ..Config::default()
        };
        config.source.immutable = self.immutable;
        config.staging.capacity_bytes = self.staging_bytes;
        let spec = JobSpec {
            source: Arc::clone(&source) as Arc<dyn Source>,
            catalog: dataset.catalog(),
            dataset: dataset.digest(),
            shuffle: Shuffle::Sequential,
            batch_size: BATCH,
            epochs,
            on_error,
            config,
            ..plain
        };
        (Job::new(spec).unwrap(), source)
    }

    fn run(&self, epochs: u32) -> Delivered {
        let (job, source) = self.job(epochs, OnError::Raise);
        let samples = all(&job).unwrap();
        let stats = job.stats();
        job.close();
        Delivered {
            samples,
            stats,
            looks: source.looks.load(Ordering::Relaxed),
        }
    }
}

/// Counts looks.
struct Looked {
    files: LocalFiles,
    looks: AtomicU64,
}

impl Source for Looked {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        self.files.read(sample, into)
    }

    fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.files.look(sample)
    }

    fn name(&self, sample: SampleId) -> String {
        self.files.name(sample)
    }

    fn dataset(&self) -> Option<&Dataset> {
        self.files.dataset()
    }
}

fn content(sample: usize, version: &str) -> Vec<u8> {
    format!("sample {sample} {version} ")
        .repeat(50)
        .into_bytes()
}

/// All samples from where the job stands.
fn all(job: &Job) -> Result<Vec<(SampleId, Vec<u8>)>, JobError> {
    let mut samples = Vec::new();
    loop {
        match job.next_batch(Duration::from_secs(10))? {
            Asked::Batch(batch) => {
                samples.extend(
                    batch
                        .samples
                        .iter()
                        .map(|sample| (sample.id, sample.lease.bytes().to_vec())),
                );
            }
            Asked::NotYet => panic!("no batch in 10 s"),
            Asked::End => return Ok(samples),
        }
    }
}

impl Delivered {
    #[track_caller]
    fn assert_all(&self, epochs: usize, version: impl Fn(usize) -> &'static str) {
        assert_eq!(self.samples.len(), SAMPLES * epochs);
        for (place, (id, data)) in self.samples.iter().enumerate() {
            assert_eq!(id.index(), place % SAMPLES);
            assert!(
                *data == content(id.index(), version(id.index())),
                "sample {id}"
            );
        }
    }

    fn source_reads(&self) -> u64 {
        self.stats.origins["source"].samples
    }
}

#[test]
fn what_did_not_change_is_served_from_the_tier_after_one_look_a_job() {
    let world = World::new().rested();
    assert_eq!(world.run(1).source_reads(), SAMPLES as u64);
    let warm = world.run(3);
    warm.assert_all(3, |_| "first");
    assert_eq!(
        (warm.source_reads(), warm.looks, warm.stats.stale),
        (0, SAMPLES as u64, 0)
    );
}

#[test]
fn files_rewritten_in_place_with_the_same_sizes_are_read_anew_and_kept() {
    let world = World::new().rested();
    world.run(1);
    (0..SAMPLES)
        .step_by(2)
        .for_each(|sample| world.write(sample, "other"));
    let changed = World::rested(world);
    let version = |sample: usize| {
        if sample.is_multiple_of(2) {
            "other"
        } else {
            "first"
        }
    };
    let second = changed.run(2);
    second.assert_all(2, version);
    assert_eq!(
        (second.source_reads(), second.stats.stale, second.stats.lost),
        (10, 10, 0)
    );
    let third = changed.run(1);
    third.assert_all(1, version);
    assert_eq!(third.source_reads(), 0);
}

#[test]
fn files_rewritten_in_place_with_other_sizes_are_measured_again_before_the_first_batch() {
    let world = World::new().rested();
    world.run(1);
    (0..SAMPLES).for_each(|sample| world.write(sample, "second version"));
    for on_error in [OnError::Raise, OnError::Skip] {
        let (job, _) = world.job(2, on_error);
        let samples = all(&job).unwrap();
        let stats = job.stats();
        Delivered {
            samples,
            stats,
            looks: 0,
        }
        .assert_all(2, |_| "second version");
        assert_eq!(job.stats().skipped, 0);
        (0..SAMPLES).for_each(|sample| world.write(sample, "second version"));
    }
}

#[test]
fn a_file_of_another_size_behind_the_first_batch_is_named_and_the_next_start_lists() {
    // Too little room to look far ahead.
    let world = World {
        staging_bytes: 6_000,
        ..World::new().rested()
    };
    world.run(1);
    world.write(SAMPLES - 1, "second version");
    let (job, _) = world.job(1, OnError::Raise);
    let error = all(&job).unwrap_err().to_string();
    assert!(
        error.contains("19.png") && error.contains("start again"),
        "{error}"
    );
    job.close();
    let version = |sample: usize| {
        if sample == SAMPLES - 1 {
            "second version"
        } else {
            "first"
        }
    };
    world.run(1).assert_all(1, version);
}

#[test]
fn a_file_replaced_by_one_of_the_same_size_and_time_is_read_anew() {
    let world = World::new().rested();
    world.run(1);
    let path = world.path(3);
    let new = world.root.path().join("new");
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&new, content(3, "other")).unwrap();
    File::options()
        .write(true)
        .open(&new)
        .unwrap()
        .set_times(FileTimes::new().set_modified(before))
        .unwrap();
    fs::rename(&new, &path).unwrap();
    let delivered = world.run(1);
    delivered.assert_all(1, |sample| if sample == 3 { "other" } else { "first" });
    assert_eq!(delivered.stats.stale, 1);
}

#[test]
fn what_was_kept_of_a_file_that_had_just_been_written_is_not_trusted_later() {
    let world = World::new();
    world.run(1);
    let again = world.run(1);
    again.assert_all(1, |_| "first");
    assert_eq!(again.source_reads(), SAMPLES as u64);
}

#[test]
fn a_file_that_is_gone_is_an_error_though_a_tier_has_it() {
    let world = World::new().rested();
    world.run(1);
    let folder = world.root.path().join("data/class");
    let (job, _) = world.job(1, OnError::Raise);
    fs::remove_file(folder.join("07.png")).unwrap();
    let error = all(&job).unwrap_err().to_string();
    assert!(
        error.contains("07.png") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn samples_are_skipped_from_the_start_where_not_all_files_can_be_measured_again() {
    let world = World::new();
    let (job, _) = world.job(1, OnError::Skip);
    fs::remove_file(world.path(3)).unwrap();
    fs::write(
        world.path(4),
        b"longer than all the others, by far: it was listed with another size",
    )
    .unwrap();
    let delivered = all(&job).unwrap();
    assert_eq!((delivered.len(), job.stats().skipped), (SAMPLES, 2));
    assert_eq!(
        delivered[3].0, delivered[4].0,
        "what is next stands in for both"
    );
}

#[test]
fn nobody_looks_at_a_source_that_is_said_not_to_change() {
    let world = World {
        immutable: true,
        ..World::new()
    };
    world.run(1);
    let warm = world.run(2);
    assert_eq!((warm.source_reads(), warm.looks), (0, 0));
}

#[test]
fn a_read_that_a_write_in_place_tears_is_never_delivered() {
    let world = World::new();
    let path = world.path(0);
    let stop = AtomicU64::new(0);
    let source = world.job(1, OnError::Raise).1;
    let versions = ["first", "other"].map(|version| content(0, version));
    let mut whole = 0;
    let mut torn = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 0;
            while stop.load(Ordering::Relaxed) == 0 {
                let file = File::options().write(true).open(&path).unwrap();
                for (chunk, at) in versions[version % 2].chunks(100).zip((0..).step_by(100)) {
                    std::os::unix::fs::FileExt::write_all_at(&file, chunk, at).unwrap();
                    thread::sleep(Duration::from_micros(200));
                }
                version += 1;
                thread::sleep(Duration::from_millis((version % 4) as u64 * 9));
            }
        });
        let mut into = vec![0; versions[0].len()];
        for _ in 0..100 {
            match source.read(SampleId(0), &mut into) {
                Ok(_) => whole += usize::from(versions.contains(&into)),
                Err(error) => torn += usize::from(matches!(error, ReadError::Torn)),
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert_eq!(whole + torn, 100, "{whole} whole, {torn} torn");
}
