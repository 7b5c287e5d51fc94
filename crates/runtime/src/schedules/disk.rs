//! A tier on disk: what is read is whole, while others evict it and use its room again; who waits for that room is told when
//! the last reader is done; what two threads note in the index is all there when it is opened again.

use std::path::Path;
use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use tempfile::TempDir;

use super::explore;
use crate::sync::thread;
use crate::tier::{DiskSpec, DiskTier, Found, Kept, Tier};

const LEN: usize = 64;

/// A folder in memory where there is one: the disk is not what is tested.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(memory);
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

/// Room for so many of a few samples.
fn spec(folder: &TempDir, samples: u64) -> DiskSpec {
    DiskSpec {
        folder: folder.path().to_owned(),
        name: "schedules".to_owned(),
        orphans: Vec::new(),
        dataset: [0; 16],
        sizes: Arc::new(Catalog::new(vec![LEN as u64; 4])),
        capacity: Bytes(samples * LEN as u64),
        capacity_max: Bytes(samples * LEN as u64),
        floor: Bytes(0),
        trusted: true,
    }
}

fn keep(tier: &DiskTier, sample: u32) -> Kept {
    let data = [sample as u8; LEN];
    tier.keep(SampleId(sample), &data, None).unwrap()
}

/// Reads a sample, which is whole or not there. One that is found is not found to be another's half way.
fn read(tier: &DiskTier, sample: u32) -> Found {
    let mut into = [0; LEN];
    let found = tier.read(SampleId(sample), &mut into).unwrap();
    let expected = match found {
        Found::Yes => [sample as u8; LEN],
        Found::NotHeld => [0; LEN],
    };
    assert_eq!(into, expected, "sample {sample}: {found:?}");
    found
}

#[test]
fn room_is_used_again_only_when_its_last_reader_is_done() {
    explore(|| {
        let folder = folder();
        let tier = Arc::new(DiskTier::open(&spec(&folder, 1)).unwrap());
        assert_eq!(keep(&tier, 1), Kept::Yes);
        let readers = [(); 2].map(|()| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || read(&tier, 1))
        });
        tier.evict(SampleId(1));
        assert_eq!(keep(&tier, 2), Kept::Yes, "it waits for the readers");
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(read(&tier, 2), Found::Yes);
        assert_eq!(tier.corrupt(), 0, "nobody read what another one wrote");
    });
}

#[test]
fn what_threads_keep_and_evict_at_once_is_all_in_the_index() {
    explore(|| {
        let folder = folder();
        let tier = Arc::new(DiskTier::open(&spec(&folder, 3)).unwrap());
        assert_eq!(keep(&tier, 0), Kept::Yes);
        let keepers = [1, 2].map(|sample| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || keep(&tier, sample))
        });
        tier.evict(SampleId(0));
        for keeper in keepers {
            assert_eq!(keeper.join().unwrap(), Kept::Yes);
        }
        assert_eq!(tier.held(), [1, 2].map(SampleId));
        drop(tier);
        let again = DiskTier::open(&spec(&folder, 3)).unwrap();
        for sample in [1, 2] {
            assert_eq!(read(&again, sample), Found::Yes);
        }
        assert_eq!(again.corrupt(), 0);
    });
}
