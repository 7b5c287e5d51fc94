//! Decoded batches with real threads: the same tensors whatever the threads, tiers and ranks, and side by side in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foresee_config::{Threads, Tier, TierKind};
use foresee_core::ids::SampleId;
use foresee_core::stream::{Shuffle, Tail};
use foresee_image::{Dtype, Key, Layout, Pipeline, RandomResizedCrop, Scratch, Size, Transform};
use foresee_runtime::job::{Images, Job, OnError};
use foresee_runtime::source::{ReadError, Source};
use foresee_runtime::stamp::Stamp;

use self::common::{Made, batches, job_spec, tier, undemanding};

/// Encoded images of all kinds, many times over.
fn encoded(count: usize) -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/data");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let pipeline = pipeline();
    let mut scratch = Scratch::default();
    let mut into = vec![0; pipeline.output().bytes];
    let mut whole = |bytes: &Vec<u8>| pipeline.run(bytes, KEY, &mut scratch, &mut into).is_ok();
    let files: Vec<Vec<u8>> = files
        .iter()
        .filter_map(|file| std::fs::read(file).ok())
        .filter(|b| whole(b))
        .collect();
    assert!(files.len() > 5, "there are fixtures in {folder}");
    files.iter().cycle().take(count).cloned().collect()
}

const SEED: u64 = 5;
const KEY: Key = Key {
    seed: SEED,
    epoch: 0,
    sample: 0,
};

fn pipeline() -> Pipeline {
    let crop = RandomResizedCrop::new(Size::square(16));
    let transforms = [
        Transform::RandomResizedCrop(crop),
        Transform::RandomHorizontalFlip(0.5),
    ];
    Pipeline::new(&transforms, Dtype::Uint8, Layout::Chw).unwrap()
}

#[test]
fn tensors_do_not_depend_on_threads_tiers_policies_and_ranks() {
    let source = Made::with(encoded(41));
    let pipeline = Arc::new(pipeline());
    let mut scratch = Scratch::default();
    let bytes = pipeline.output().bytes;
    let mut expected = BTreeMap::new();
    for epoch in 0..2u64 {
        for sample in 0..41u32 {
            let mut tensor = vec![0; bytes];
            let key = Key {
                seed: SEED,
                epoch,
                sample: u64::from(sample),
            };
            pipeline
                .run(
                    source.content(SampleId(sample)),
                    key,
                    &mut scratch,
                    &mut tensor,
                )
                .unwrap();
            expected.insert((epoch as u32, sample), tensor);
        }
    }
    for (index, policy) in undemanding().iter().enumerate() {
        let world = 1 + index as u32 % 3;
        let threads = 1 + index as u32;
        let folder = tempfile::tempdir().unwrap();
        let mut got = BTreeMap::new();
        for rank in 0..world {
            let mut spec = job_spec(&source);
            spec.batch_size = 4;
            spec.epochs = 2;
            spec.rank = rank;
            spec.world = world;
            spec.shuffle = Shuffle::Torch { seed: 9 };
            spec.tail = Tail::Exact;
            spec.policy = (*policy).into();
            spec.images = Some(Images {
                pipeline: Arc::clone(&pipeline),
                seed: SEED,
            });
            spec.config.staging.threads = Threads::Number(threads);
            spec.config.staging.capacity_bytes = (bytes * (1 + 3 * index)) as u64;
            let path = folder.path().join(rank.to_string());
            let disk = TierKind::Disk {
                path,
                free_space_floor_bytes: 0,
                trust_folder: false,
            };
            spec.config.tiers = vec![
                tier(TierKind::Memory, source.total() / 3),
                tier(disk, source.total() / 3),
            ];
            let job = Job::new(spec).unwrap();
            for batch in batches(&job) {
                let whole = batch.tensor().unwrap();
                assert_eq!(whole.len(), bytes * batch.samples.len());
                for (sample, part) in batch.samples.iter().zip(whole.chunks(bytes)) {
                    assert_eq!(sample.lease.bytes(), part);
                    assert!(
                        got.insert((batch.epoch, sample.id.0), part.to_vec())
                            .is_none(),
                        "once an epoch"
                    );
                }
            }
        }
        assert!(got == expected, "policy {policy}");
    }
}

#[test]
fn what_is_no_image_is_named_or_skipped() {
    let mut content = encoded(10);
    content[3] = b"no image at all".to_vec();
    let source = Made::with(content);
    let mut spec = job_spec(&source);
    spec.batch_size = 5;
    spec.shuffle = Shuffle::Sequential;
    spec.images = Some(Images {
        pipeline: Arc::new(pipeline()),
        seed: 0,
    });
    spec.config.staging.capacity_bytes = 1 << 20;
    let job = Job::new(spec.clone()).unwrap();
    for _ in 0..2 {
        let error = job
            .next_batch(Duration::from_secs(60))
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("rank 0: sample 3 (made 3): "), "{error}");
    }
    spec.on_error = OnError::Skip;
    let job = Job::new(spec).unwrap();
    let ids: Vec<u32> = batches(&job)
        .flat_map(|batch| batch.samples)
        .map(|sample| sample.id.0)
        .collect();
    assert_eq!(ids, [0, 1, 2, 4, 4, 5, 6, 7, 8, 9]);
    assert_eq!(job.stats().skipped, 1);
}

#[test]
fn three_batches_are_room_enough_for_a_trainer_that_holds_one() {
    let source = Made::with(encoded(38));
    let mut spec = job_spec(&source);
    spec.batch_size = 4;
    spec.epochs = 40;
    spec.images = Some(Images {
        pipeline: Arc::new(pipeline()),
        seed: 0,
    });
    spec.config.staging.threads = Threads::Number(3);
    // The last batch of an epoch has two samples, so that batches lie in many places of the ring.
    spec.config.staging.capacity_bytes =
        3 * 4 * spec.images.as_ref().unwrap().pipeline.output().bytes as u64;
    let job = Job::new(spec).unwrap();
    let mut held = None;
    for batch in batches(&job) {
        // The one before is let go of only when the next one is there, as by a loop in Python.
        held = Some(batch);
    }
    drop(held);
    assert_eq!(job.stats().outside, 0);
}

/// Reads that take longer or shorter, as a storage's do.
struct Uneven(Made);

impl Source for Uneven {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        std::thread::sleep(Duration::from_micros(u64::from(sample.0 * 7919 % 5) * 300));
        self.0.read(sample, into)
    }

    fn name(&self, sample: SampleId) -> String {
        self.0.name(sample)
    }
}

#[test]
fn what_arrives_in_its_tier_while_its_batch_has_no_room_is_not_awaited_for_ever() {
    let source = Made::with(encoded(120));
    let pipeline = Arc::new(pipeline());
    for seed in 0..20 {
        let mut spec = job_spec(&source);
        spec.source = Arc::new(Uneven(source.clone()));
        spec.batch_size = 4;
        spec.shuffle = Shuffle::Torch { seed };
        spec.images = Some(Images {
            pipeline: Arc::clone(&pipeline),
            seed,
        });
        // The engine counts samples: it has room for half of a batch, which lies in one piece.
        spec.config.staging.capacity_bytes = (10 * pipeline.output().bytes) as u64;
        spec.config.staging.threads = Threads::Number(2);
        let memory = tier(TierKind::Memory, source.total());
        spec.config.tiers = vec![Tier {
            threads: 2,
            ..memory
        }];
        let job = Job::new(spec).unwrap();
        let mut held = None;
        let mut samples = 0;
        for batch in batches(&job) {
            samples += batch.samples.len();
            held = Some(batch);
        }
        drop(held);
        assert_eq!(samples, 120);
    }
}
