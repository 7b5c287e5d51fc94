//! A slot's tier: its own folder, and what was adopted of orphans, the folders of slots that no rank has any more.
//!
//! What orphans hold counts as held, as far as the capacity allows. It moves bit by bit: a sample that is read from an orphan
//! is kept in the own folder and forgotten there. Nothing is copied before, so opening takes no longer, and a process that
//! is killed in the middle leaves each sample in one of the two, or in both. What found no room stays where it is, for the
//! day when there are as many ranks again; an orphan that holds nothing is removed.

use std::collections::HashMap;

use foresee_config::shown;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::folder::{self, Folder};
use super::{DiskError, DiskSpec, DiskTier, locked};
use crate::stamp::Stamp;
use crate::sync::{Mutex, MutexGuard};
use crate::tier::{Found, InFile, Kept, Tier, TierError};

/// The tier of a slot.
#[derive(Debug)]
pub(super) struct SlotTier {
    own: DiskTier,
    orphans: Vec<Orphan>,
    /// Locked before the index of any folder, never after.
    adopted: Mutex<Adopted>,
    folder: Folder,
}

/// A folder that no rank has.
#[derive(Debug)]
struct Orphan {
    name: String,
    tier: DiskTier,
}

/// What is held in orphans and counts.
#[derive(Debug, Default)]
struct Adopted {
    from: HashMap<SampleId, Whence>,
    bytes: u64,
}

/// Where an adopted sample is.
#[derive(Clone, Copy, Debug)]
struct Whence {
    /// Number of the orphan.
    orphan: usize,
    bytes: u64,
}

impl Adopted {
    fn insert(&mut self, sample: SampleId, whence: Whence) {
        self.bytes += whence.bytes;
        self.from.insert(sample, whence);
    }

    fn remove(&mut self, sample: SampleId) -> Option<Whence> {
        let whence = self.from.remove(&sample)?;
        self.bytes -= whence.bytes;
        Some(whence)
    }
}

impl SlotTier {
    /// Opens a slot's folder, and adopts what the orphans hold that the specification names.
    pub(super) fn open(spec: &DiskSpec) -> Result<Self, DiskError> {
        let own = DiskTier::open(spec)?;
        let mut slot = Self {
            own,
            orphans: Vec::new(),
            adopted: Mutex::default(),
            folder: spec.folder(),
        };
        for name in &spec.orphans {
            match DiskTier::open_orphan(spec, name) {
                Ok(Some(tier)) => slot.adopt(Orphan {
                    name: name.clone(),
                    tier,
                }),
                // Somebody uses it, or it is of no use.
                Ok(None) => {}
                Err(error) => tracing::warn!("{error}; it is left alone"),
            }
        }
        Ok(slot)
    }

    /// Takes what an orphan holds, as far as there is room.
    fn adopt(&mut self, orphan: Orphan) {
        let number = self.orphans.len();
        let mut adopted = locked(&self.adopted);
        let room = self.own.capacity.0 - self.own.stats().held.0;
        let mut count = 0;
        for sample in orphan.tier.held() {
            let bytes = orphan.tier.len_of(sample).unwrap_or(0);
            if self.own.len_of(sample).is_some() || adopted.from.contains_key(&sample) {
                // Moved by a process that could not say so any more.
                orphan.tier.evict(sample);
            } else if adopted.bytes + bytes <= room {
                let orphan = number;
                adopted.insert(sample, Whence { orphan, bytes });
                count += 1;
            }
        }
        drop(adopted);
        if count > 0 {
            let path = shown(&self.folder.path);
            tracing::info!("{path}: {count} samples of {} are adopted", orphan.name);
            self.orphans.push(orphan);
        } else {
            self.leave(orphan);
        }
    }

    /// Lets go of an orphan; one that holds nothing is removed.
    fn leave(&self, orphan: Orphan) {
        let is_empty = orphan.tier.held().is_empty();
        drop(orphan.tier);
        if is_empty {
            // Whoever opens it in between keeps it.
            let _ = folder::remove(&self.folder, &orphan.name);
        }
    }

    pub(super) fn capacity(&self) -> Bytes {
        self.own.capacity
    }

    /// Bytes of all samples that are held.
    pub(super) fn held_bytes(&self) -> Bytes {
        let adopted = self.adopted().bytes;
        Bytes(self.own.stats().held.0 + adopted)
    }

    /// All that is held, in the order of samples.
    pub(super) fn held(&self) -> Vec<SampleId> {
        let adopted = self.adopted();
        let mut held = self.own.held();
        if !adopted.from.is_empty() {
            held.extend(adopted.from.keys());
            held.sort_unstable();
            // One that is being moved is in both.
            held.dedup();
        }
        held
    }

    /// Whether a sample is held.
    pub(super) fn has(&self, sample: SampleId) -> bool {
        self.orphan_of(sample).is_some() || self.own.len_of(sample).is_some()
    }

    /// Whether it holds so many bytes of a sample that have this checksum.
    pub(super) fn holds(&self, sample: SampleId, len: u64, sum: u64) -> bool {
        self.place_of(sample).holds(sample, len, sum)
    }

    /// See [`Tier::is_current`].
    pub(super) fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        self.place_of(sample).is_current(sample, now)
    }

    /// See [`Tier::is_comparable`].
    pub(super) fn is_comparable(&self, sample: SampleId) -> bool {
        self.place_of(sample).is_comparable(sample)
    }

    /// See [`Tier::in_file`]. What was adopted is about to move.
    pub(super) fn in_file(&self, sample: SampleId) -> Option<InFile> {
        let is_own = self.orphan_of(sample).is_none();
        is_own.then(|| self.own.in_file(sample))?
    }

    /// See [`Tier::is_closed_to`].
    pub(super) fn is_closed_to(&self, bytes: Bytes) -> bool {
        self.own.is_closed_to(bytes)
    }

    /// See [`Tier::read_at_once`]. What was adopted is left to loader threads, which move it.
    pub(super) fn read_at_once(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> Result<bool, TierError> {
        if self.orphan_of(sample).is_some() {
            return Ok(false);
        }
        self.own.read_at_once(sample, into)
    }

    /// See [`Tier::read`]. What was adopted moves to where it belongs.
    pub(super) fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        let Some(orphan) = self.orphan_of(sample) else {
            return self.own.read(sample, into);
        };
        let stamp = orphan.tier.stamp_of(sample);
        let found = orphan.tier.read(sample, into)?;
        match found {
            Found::Yes => {
                let sum = DiskTier::sum(into);
                let kept = self.own.keep_summed(sample, into, sum, stamp);
                // Where it cannot be kept it stays in the orphan, which has it for the next time.
                if matches!(kept, Ok(Kept::Yes)) && !self.release(sample) {
                    // Evicted meanwhile.
                    self.own.evict(sample);
                }
            }
            Found::NotHeld => {
                self.release(sample);
                // Another thread may have moved it a moment ago.
                return self.own.read(sample, into);
            }
        }
        Ok(found)
    }

    /// See [`DiskTier::keep_summed`].
    pub(super) fn keep_summed(
        &self,
        sample: SampleId,
        data: &[u8],
        sum: u64,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let len = data.len() as u64;
        if !self.orphans.is_empty() && !self.has(sample) {
            // Room that adopted samples need is not free, though the own folder does not know.
            let held = self.held_bytes();
            if held.0 + len > self.own.capacity.0 {
                return Ok(Kept::NoRoom);
            }
        }
        let kept = self.own.keep_summed(sample, data, sum, stamp);
        if matches!(kept, Ok(Kept::Yes)) {
            self.release(sample);
        }
        kept
    }

    /// See [`Tier::evict`].
    pub(super) fn evict(&self, sample: SampleId) {
        self.release(sample);
        self.own.evict(sample);
    }

    /// An adopted sample is in its orphan no more; whether it was.
    fn release(&self, sample: SampleId) -> bool {
        if self.orphans.is_empty() {
            return false;
        }
        let mut adopted = self.adopted();
        let Some(whence) = adopted.remove(sample) else {
            return false;
        };
        self.orphans[whence.orphan].tier.evict(sample);
        true
    }

    /// The folder that has a sample, or should have it.
    fn place_of(&self, sample: SampleId) -> &DiskTier {
        self.orphan_of(sample)
            .map_or(&self.own, |orphan| &orphan.tier)
    }

    fn orphan_of(&self, sample: SampleId) -> Option<&Orphan> {
        if self.orphans.is_empty() {
            return None;
        }
        let whence = self.adopted().from.get(&sample).copied()?;
        Some(&self.orphans[whence.orphan])
    }

    fn adopted(&self) -> MutexGuard<'_, Adopted> {
        locked(&self.adopted)
    }
}

impl Drop for SlotTier {
    fn drop(&mut self) {
        for orphan in std::mem::take(&mut self.orphans) {
            self.leave(orphan);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use foresee_core::catalog::Catalog;
    use tempfile::TempDir;

    use super::super::{DiskView, HostSlot, OpenDisks};
    use super::*;

    const SAMPLE: u64 = 100;
    const SAMPLES: u32 = 40;

    fn spec(folder: &Path, capacity: u64) -> DiskSpec {
        DiskSpec {
            folder: folder.join("cache"),
            name: String::new(),
            orphans: Vec::new(),
            dataset: [7; 16],
            sizes: Arc::new(Catalog::new(vec![SAMPLE; SAMPLES as usize])),
            capacity: Bytes(capacity),
            floor: Bytes(0),
            trusted: false,
        }
    }

    fn bytes(sample: u32) -> Vec<u8> {
        (0..SAMPLE).map(|at| at as u8 ^ sample as u8).collect()
    }

    /// The view of a rank, opened as by a process of its own.
    fn open(spec: &DiskSpec, slot: u32, slots: u32) -> DiskView {
        let host = HostSlot {
            slot,
            slots,
            rank: slot,
        };
        Arc::new(OpenDisks::default())
            .open_slot(spec, host)
            .unwrap()
    }

    fn keep(view: &DiskView, samples: std::ops::Range<u32>) {
        for sample in samples {
            let kept = view.keep(SampleId(sample), &bytes(sample), None);
            assert_eq!(kept.unwrap(), Kept::Yes);
        }
    }

    /// All that is held, read and compared.
    fn held(view: &DiskView) -> Vec<u32> {
        let held = view.held();
        for &sample in &held {
            let mut into = vec![0; SAMPLE as usize];
            assert_eq!(view.read(sample, &mut into).unwrap(), Found::Yes);
            assert_eq!(into, bytes(sample.0), "sample {sample}");
        }
        held.into_iter().map(|sample| sample.0).collect()
    }

    /// What four ranks leave behind that held ten samples each.
    fn left_by_four(folder: &Path, capacity: u64) -> DiskSpec {
        let spec = spec(folder, capacity);
        let views: Vec<DiskView> = (0..4).map(|slot| open(&spec, slot, 4)).collect();
        for (slot, view) in (0..).zip(&views) {
            keep(view, slot * 10..slot * 10 + 10);
        }
        spec
    }

    /// The slots whose folders are there.
    fn slots(spec: &DiskSpec) -> Vec<String> {
        let mut names = folder::names(&spec.folder());
        names.retain(|name| name.contains('-'));
        names
            .iter()
            .map(|name| name.rsplit_once('-').unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn two_ranks_find_what_four_kept() {
        let folder = TempDir::new().unwrap();
        let spec = left_by_four(folder.path(), 40 * SAMPLE);
        let first = open(&spec, 0, 2);
        let second = open(&spec, 1, 2);
        let expected: Vec<u32> = (0..10).chain(20..40).collect();
        assert_eq!(held(&second), (10..20).collect::<Vec<_>>());
        assert_eq!(first.held_bytes(), Bytes(30 * SAMPLE));
        assert_eq!(held(&first), expected);
        assert_eq!(first.held_bytes(), Bytes(30 * SAMPLE));
        drop((first, second));
        assert_eq!(
            slots(&spec),
            ["slot0", "slot1"],
            "all was read, so it moved"
        );
        assert_eq!(held(&open(&spec, 0, 2)), expected);
    }

    #[test]
    fn what_found_no_room_is_there_when_the_ranks_are_four_again() {
        let folder = TempDir::new().unwrap();
        let spec = left_by_four(folder.path(), 15 * SAMPLE);
        let first = open(&spec, 0, 2);
        assert_eq!(held(&first), (0..10).chain(20..25).collect::<Vec<_>>());
        let full = first.keep(SampleId(39), &bytes(39), None);
        assert_eq!(full.unwrap(), Kept::NoRoom);
        first.evict(SampleId(3));
        assert_eq!(
            first.keep(SampleId(39), &bytes(39), None).unwrap(),
            Kept::Yes
        );
        drop(first);
        let views: Vec<DiskView> = (0..4).map(|slot| open(&spec, slot, 4)).collect();
        let now: Vec<Vec<u32>> = views.iter().map(held).collect();
        assert_eq!(now[2], (25..30).collect::<Vec<_>>());
        assert_eq!(now[3], (30..40).collect::<Vec<_>>());
    }

    #[test]
    fn another_capacity_costs_what_does_not_fit_and_nothing_else() {
        let folder = TempDir::new().unwrap();
        let with = |capacity| spec(folder.path(), capacity * SAMPLE);
        keep(&open(&with(40), 1, 2), 0..10);
        let smaller = open(&with(5), 1, 2);
        assert_eq!(held(&smaller), (0..5).collect::<Vec<_>>());
        let full = smaller.keep(SampleId(20), &bytes(20), None);
        assert_eq!(full.unwrap(), Kept::NoRoom);
        drop(smaller);
        let larger = open(&with(20), 1, 2);
        assert_eq!(held(&larger), (0..5).collect::<Vec<_>>());
        keep(&larger, 20..30);
        drop(larger);
        // The first rank finds what found no room, and nothing is left of what was for another capacity.
        let first = open(&with(20), 0, 2);
        assert_eq!(held(&first), (5..10).collect::<Vec<_>>());
        drop(first);
        assert_eq!(slots(&with(20)), ["slot0", "slot1"]);
    }

    #[test]
    fn what_is_left_of_other_datasets_counts_against_the_capacity() {
        let folder = TempDir::new().unwrap();
        let of = |dataset, room: u64| DiskSpec {
            dataset: [dataset; 16],
            ..spec(folder.path(), (40 + room) * SAMPLE)
        };
        for dataset in [1, 2] {
            keep(&open(&of(dataset, 0), 0, 1), 0..10);
            std::thread::sleep(Duration::from_millis(20));
        }
        let count = || slots(&of(0, 0)).len();
        assert_eq!(count(), 1, "there is no room for another one");
        // A dataset takes 4,000 bytes, in blocks of 4,096: data, index and lock.
        let used = open(&of(3, 400), 0, 1);
        assert_eq!(count(), 2);
        drop(open(&of(4, 400), 0, 1));
        assert_eq!(count(), 3, "one that is in use is not left");
        drop(used);
        drop(open(&of(5, 120), 0, 1));
        let left = folder::names(&of(5, 0).folder());
        let is_there = |dataset| {
            let dataset = foresee_core::digest::Digest([dataset; 16]).to_string();
            left.iter().any(|name| name.starts_with(&dataset))
        };
        assert_eq!([2, 3, 4, 5].map(is_there), [false, false, true, true]);
    }

    #[test]
    fn what_was_adopted_makes_way_like_anything_else() {
        let folder = TempDir::new().unwrap();
        let spec = left_by_four(folder.path(), 20 * SAMPLE);
        let first = open(&spec, 0, 3);
        let taken = first.keep(SampleId(12), &bytes(12), None).unwrap();
        assert_eq!(taken, Kept::NoRoom, "adopted samples take room");
        first.evict(SampleId(35));
        assert!(!first.held().contains(&SampleId(35)));
        keep(&first, 12..13);
        // Other bytes of an adopted sample replace it.
        let other = vec![9; SAMPLE as usize];
        assert_eq!(first.keep(SampleId(36), &other, None).unwrap(), Kept::Yes);
        let mut into = vec![0; SAMPLE as usize];
        assert_eq!(first.read(SampleId(36), &mut into).unwrap(), Found::Yes);
        assert_eq!(into, other);
        assert_eq!(first.held_bytes(), Bytes(20 * SAMPLE));
    }

    #[test]
    fn a_slot_that_another_process_has_is_left_to_it() {
        let folder = TempDir::new().unwrap();
        let spec = spec(folder.path(), 10 * SAMPLE);
        let mine = open(&spec, 0, 2);
        keep(&mine, 0..1);
        let others = open(&spec, 0, 2);
        assert!(others.held().is_empty());
        keep(&others, 1..2);
        assert_eq!(slots(&spec), ["slot0", "slot2"]);
        drop((mine, others));
        assert_eq!(held(&open(&spec, 0, 2)), [0, 1]);
    }

    #[test]
    fn folders_that_earlier_versions_named_by_rank_are_found() {
        let folder = TempDir::new().unwrap();
        let spec = left_by_four(folder.path(), 40 * SAMPLE);
        let path = |slot: &str| {
            let dataset = foresee_core::digest::Digest(spec.dataset);
            spec.folder.join(format!("{dataset}-{slot}"))
        };
        for rank in 0..4 {
            let old = path(&format!("rank{rank}"));
            std::fs::rename(path(&format!("slot{rank}")), old).unwrap();
        }
        assert_eq!(held(&open(&spec, 1, 2)), (10..20).collect::<Vec<_>>());
        assert_eq!(
            held(&open(&spec, 0, 2)),
            (0..10).chain(20..40).collect::<Vec<_>>()
        );
        assert_eq!(slots(&spec), ["slot0", "slot1"]);
    }

    const CHILD_FOLDER: &str = "FORESEE_TEST_DISK_SLOT";

    /// Adopts until the process is killed; does nothing unless it is the child of the test below.
    #[test]
    fn child_that_adopts_until_it_is_killed() {
        let Some(folder) = std::env::var_os(CHILD_FOLDER) else {
            return;
        };
        let first = open(&spec(Path::new(&folder), 40 * SAMPLE), 0, 1);
        for sample in (10..40).map(SampleId) {
            let mut into = vec![0; SAMPLE as usize];
            assert_eq!(first.read(sample, &mut into).unwrap(), Found::Yes);
            std::fs::write(Path::new(&folder).join("moved"), sample.0.to_string()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_process_killed_while_it_adopts_loses_nothing() {
        for after in [11, 17, 26, 38] {
            let folder = TempDir::new().unwrap();
            let spec = left_by_four(folder.path(), 40 * SAMPLE);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "tier::disk::slot::tests::child_that_adopts_until_it_is_killed",
                ])
                .env(CHILD_FOLDER, folder.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            let moved = || {
                let text = std::fs::read_to_string(folder.path().join("moved"));
                text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            while moved() < after {
                assert!(begun.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let first = open(&spec, 0, 1);
            assert_eq!(held(&first), (0..40).collect::<Vec<_>>());
            drop(first);
            assert_eq!(slots(&spec), ["slot0"]);
        }
    }
}
