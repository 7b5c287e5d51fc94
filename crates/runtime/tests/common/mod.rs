//! A source that is made up, and small jobs on it.

#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) mod world;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foresee_config::{Config, Tier, TierKind};
use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::policy::Assignment;
use foresee_core::stream::{Shuffle, Tail};
use foresee_runtime::job::{Asked, Batch, Job, JobSpec, OnError};
use foresee_runtime::source::{ReadError, Source};
use foresee_runtime::stamp::Stamp;

/// Samples whose bytes follow from their number; some reads fail for a while.
#[derive(Clone)]
pub(crate) struct Made(Arc<Inner>);

struct Inner {
    content: Vec<Vec<u8>>,
    errors_percent: u32,
    broken: Mutex<BTreeSet<SampleId>>,
    tries: Vec<AtomicU64>,
    bytes: AtomicU64,
}

fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

impl Made {
    /// Samples of different sizes.
    pub(crate) fn new(samples: u32, seed: u64, errors_percent: u32) -> Self {
        Self::of(samples, seed, errors_percent, |random| 1 + random % 200)
    }

    /// Samples of one size.
    pub(crate) fn equal(samples: u32, seed: u64) -> Self {
        Self::sized(samples, seed, 100)
    }

    /// Samples of this size.
    pub(crate) fn sized(samples: u32, seed: u64, bytes: u64) -> Self {
        Self::of(samples, seed, 0, |_| bytes)
    }

    /// These samples.
    pub(crate) fn with(content: Vec<Vec<u8>>) -> Self {
        let tries = content.iter().map(|_| AtomicU64::new(0)).collect();
        let broken = Mutex::default();
        let bytes = AtomicU64::new(0);
        Self(Arc::new(Inner {
            content,
            errors_percent: 0,
            broken,
            tries,
            bytes,
        }))
    }

    fn of(samples: u32, seed: u64, errors_percent: u32, len: impl Fn(u64) -> u64) -> Self {
        let content = (0..u64::from(samples)).map(|sample| {
            let key = mixed(seed ^ sample << 32);
            (0..len(key)).map(|byte| mixed(key ^ byte) as u8).collect()
        });
        let broken = Mutex::default();
        let bytes = AtomicU64::new(0);
        let tries = (0..samples).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            content: content.collect(),
            errors_percent,
            broken,
            tries,
            bytes,
        }))
    }

    pub(crate) fn content(&self, sample: SampleId) -> &[u8] {
        &self.0.content[sample.index()]
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.content.iter().map(|bytes| bytes.len() as u64).sum()
    }

    pub(crate) fn largest(&self) -> u64 {
        self.0
            .content
            .iter()
            .map(|bytes| bytes.len() as u64)
            .max()
            .unwrap()
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn break_sample(&self, sample: SampleId, broken: bool) {
        let mut all = self.0.broken.lock().unwrap();
        if broken {
            all.insert(sample)
        } else {
            all.remove(&sample)
        };
    }
}

impl Source for Made {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        let tries = self.0.tries[sample.index()].fetch_add(1, Ordering::Relaxed);
        if self.0.broken.lock().unwrap().contains(&sample) {
            return Err(io::Error::from_raw_os_error(2).into());
        }
        // At most twice in a row.
        let unlucky =
            mixed(tries << 32 | u64::from(sample.0)) % 100 < u64::from(self.0.errors_percent);
        if unlucky && tries % 3 < 2 {
            return Err(io::Error::from_raw_os_error(5).into());
        }
        into.copy_from_slice(self.content(sample));
        self.0.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(None)
    }

    fn name(&self, sample: SampleId) -> String {
        format!("made {sample}")
    }
}

pub(crate) fn tier(kind: TierKind, capacity_bytes: u64) -> Tier {
    Tier {
        kind,
        capacity_bytes,
        scope: foresee_config::Scope::Rank,
        threads: 1,
    }
}

/// One rank, one epoch, a small staging buffer, no tier.
pub(crate) fn job_spec(source: &Made) -> JobSpec {
    let sizes = source
        .0
        .content
        .iter()
        .map(|bytes| bytes.len() as u64)
        .collect();
    let mut config = Config::default();
    config.staging.capacity_bytes = 10 * source.largest();
    JobSpec {
        source: Arc::new(source.clone()),
        catalog: Arc::new(Catalog::new(sizes)),
        dataset: [0; 16],
        shuffle: Shuffle::Torch { seed: 0 },
        own_order: false,
        batch_size: 1,
        epochs: 1,
        drop_last: false,
        tail: Tail::Pad,
        policy: "foresee".into(),
        assignment: Assignment::Order,
        on_error: OnError::Raise,
        images: None,
        config,
        rank: 0,
        world: 1,
        on_host: None,
        consumer: 0,
        record: false,
    }
}

/// All that is left of a job.
pub(crate) fn batches(job: &Job) -> impl Iterator<Item = Batch> + '_ {
    std::iter::from_fn(|| match job.next_batch(Duration::from_secs(60)).unwrap() {
        Asked::Batch(batch) => Some(batch),
        Asked::NotYet => panic!("a minute is enough: {}", job.stats()),
        Asked::End => None,
    })
}

/// The policies that ask for nothing: neither ranks that serve each other, nor room for all of the dataset.
pub(crate) fn undemanding() -> Vec<&'static str> {
    let demanding = ["locality-aware", "lbann-dynamic", "lbann-preload"];
    let all = foresee_runtime::job::policies().iter().copied();
    all.filter(|policy| !demanding.contains(policy)).collect()
}
