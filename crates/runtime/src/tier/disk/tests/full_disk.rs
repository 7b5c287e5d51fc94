//! Tests of the disk tier on file systems of their own, which are full or read-only. Without root they are skipped.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use tempfile::TempDir;

use super::super::{DiskSpec, DiskTier};
use super::{refusal, spec, sub_folder};
use crate::tier::{Found, Kept, Tier};

/// A file system of its own, gone when dropped.
struct Mount(TempDir);

impl Mount {
    /// None, with a word about it, where mounting is not permitted.
    fn of(options: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        println!("skipped: a file system can be mounted by root only");
        None
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(
            Command::new("mount")
                .args(["-o", &options])
                .arg(self.0.path())
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// 4 MiB in segments of 256 KiB, samples of 64 KiB.
fn large_spec(folder: &Path) -> DiskSpec {
    let sizes = Arc::new(Catalog::new(vec![64 << 10; 64]));
    DiskSpec {
        capacity: Bytes(4 << 20),
        capacity_max: Bytes(4 << 20),
        sizes,
        ..spec(folder, 1)
    }
}

fn keep_large(tier: &DiskTier, sample: u32) -> Kept {
    tier.keep(SampleId(sample), &vec![sample as u8; 64 << 10], None)
        .unwrap()
}

fn count_large(tier: &DiskTier) -> usize {
    let mut into = vec![0; 64 << 10];
    let held = tier.held();
    for &sample in &held {
        assert_eq!(tier.read(sample, &mut into).unwrap(), Found::Yes);
        assert!(into.iter().all(|&byte| byte == sample.0 as u8));
    }
    held.len()
}

#[test]
fn a_disk_that_fills_up_costs_samples_and_not_the_job() {
    let Some(mount) = Mount::of("size=4m") else {
        return;
    };
    let spec = large_spec(mount.0.path());
    let tier = DiskTier::open_in_segments(&spec, 256 << 10).unwrap();
    fs::write(
        mount.0.path().join("other"),
        vec![1; (2 << 20) + (100 << 10)],
    )
    .unwrap();
    let kept = (0..64)
        .filter(|&sample| keep_large(&tier, sample) == Kept::Yes)
        .count();
    assert!((20..32).contains(&kept), "{kept}");
    assert!(tier.degraded().unwrap().contains("cannot grow"));
    assert_eq!((count_large(&tier), tier.corrupt()), (kept, 0));
    tier.evict(SampleId(0));
    assert_eq!(
        keep_large(&tier, 63),
        Kept::Yes,
        "what is allocated is used on"
    );
    drop(tier);
    let tier = DiskTier::open_in_segments(&spec, 256 << 10).unwrap();
    assert_eq!(count_large(&tier), kept);
}

#[test]
fn a_sparse_file_on_a_full_disk_refuses_when_it_is_written() {
    let Some(mount) = Mount::of("size=4m") else {
        return;
    };
    let spec = large_spec(mount.0.path());
    let tier = DiskTier::open_in_segments(&spec, 4 << 20).unwrap();
    drop(tier);
    // As a file system leaves it that cannot allocate ahead.
    let file = fs::File::create(sub_folder(&spec).join("data-00000")).unwrap();
    file.set_len(4 << 20).unwrap();
    fs::write(mount.0.path().join("other"), vec![1; 3 << 20]).unwrap();
    let tier = DiskTier::open_in_segments(&spec, 4 << 20).unwrap();
    let kept = (0..64)
        .filter(|&sample| keep_large(&tier, sample) == Kept::Yes)
        .count();
    assert!((8..16).contains(&kept), "{kept}");
    assert!(tier.degraded().unwrap().contains("cannot keep sample"));
    assert_eq!((count_large(&tier), tier.corrupt()), (kept, 0));
}

#[test]
fn a_full_disk_that_holds_a_cache_is_opened() {
    let Some(mount) = Mount::of("size=4m") else {
        return;
    };
    let spec = large_spec(mount.0.path());
    let tier = DiskTier::open_in_segments(&spec, 256 << 10).unwrap();
    assert!((0..8).all(|sample| keep_large(&tier, sample) == Kept::Yes));
    drop(tier);
    let _ = fs::write(mount.0.path().join("other"), vec![1; 4 << 20]);
    let tier = DiskTier::open_in_segments(&spec, 256 << 10).unwrap();
    assert_eq!(count_large(&tier), 8);
    assert_eq!(keep_large(&tier, 9), Kept::NoRoom);
}

#[test]
fn a_read_only_folder_is_refused_in_one_line() {
    let Some(mount) = Mount::of("size=4m") else {
        return;
    };
    let spec = large_spec(mount.0.path());
    drop(DiskTier::open(&spec).unwrap());
    mount.remount("ro");
    let new = DiskSpec {
        folder: mount.0.path().join("new"),
        ..spec.clone()
    };
    for spec in [spec, new] {
        let message = refusal(&spec);
        assert!(
            message.ends_with("read-only; choose another folder, or mount it writable"),
            "{message}"
        );
    }
}

#[test]
fn what_is_to_stay_free_stays_free_of_a_thin_file() {
    let Some(mount) = Mount::of("size=4m") else {
        return;
    };
    let spec = DiskSpec {
        capacity: Bytes(1 << 20),
        capacity_max: Bytes(1 << 20),
        floor: Bytes(1 << 20),
        ..large_spec(mount.0.path())
    };
    let tier = DiskTier::open_in_segments(&spec, 1 << 20).unwrap();
    tier.thin();
    assert_eq!(keep_large(&tier, 0), Kept::Yes);
    let free = DiskTier::free_space(mount.0.path()).unwrap();
    assert!(free > Bytes(3 << 20), "what is thin takes little: {free}");
    fs::write(
        mount.0.path().join("other"),
        vec![1; (2 << 20) + (900 << 10)],
    )
    .unwrap();
    assert_eq!(keep_large(&tier, 1), Kept::NoRoom);
    assert_eq!(count_large(&tier), 1);
}
