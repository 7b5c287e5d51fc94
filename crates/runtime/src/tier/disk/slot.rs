//! A slot's tier: its own folder, and the orphans it is the heir of, folders of slots that no rank has any more.
//!
//! What is held in any of them is held, and stays where it is: nothing is copied, so opening takes no longer, and a process
//! that is killed leaves everything as it was. What is kept goes to the own folder. All together hold no more than the slot
//! is allotted; where they have space for more, the disk is given back what is free. What does not fit makes way, of orphans
//! first, and an orphan that holds nothing is removed.

use foresee_config::shown;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::folder::{self, Folder};
use super::{DiskError, DiskSpec, DiskTier, locked};
use crate::stamp::Stamp;
use crate::sync::{Condvar, Mutex, whole};
use crate::tier::{Found, InFile, Kept, Tier, TierError};

/// The tier of a slot.
#[derive(Debug)]
pub(super) struct SlotTier {
    /// What it keeps goes here, which has space for all that it may ever hold.
    own: DiskTier,
    orphans: Vec<Orphan>,
    room: Mutex<Room>,
    /// Signalled when somebody who keeps a sample is done.
    done: Condvar,
    folder: Folder,
}

/// A folder that no rank has.
#[derive(Debug)]
struct Orphan {
    name: String,
    tier: DiskTier,
}

/// How much may be held.
#[derive(Debug)]
struct Room {
    capacity: u64,
    /// Of samples that are being kept, some of which may count as held already.
    booked: u64,
}

impl SlotTier {
    /// Opens a slot's folder, and the orphans that the specification names.
    pub(super) fn open(spec: &DiskSpec) -> Result<Self, DiskError> {
        let capacity = spec.capacity_max.0;
        // No more than the dataset can fill: what is allocated beyond would be taken from what is left of others.
        let space = capacity.min(spec.sizes.total().0).max(1);
        let own = DiskTier::open(&DiskSpec {
            capacity_max: Bytes(space),
            ..spec.clone()
        })?;
        let mut slot = Self {
            own,
            orphans: Vec::new(),
            room: Mutex::new(Room {
                capacity,
                booked: 0,
            }),
            done: Condvar::new(),
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

    /// Has an orphan from here on. What is held already is held once.
    fn adopt(&mut self, orphan: Orphan) {
        for sample in orphan.tier.held() {
            if !self.has(sample) {
                continue;
            }
            // A copy that came from another rank is not known to be what the source has.
            if self.is_comparable(sample) {
                orphan.tier.evict(sample);
            } else {
                self.evict(sample);
            }
        }
        let count = orphan.tier.held().len();
        let path = shown(&self.folder.path);
        tracing::info!("{path}: {count} samples of {} are adopted", orphan.name);
        self.orphans.push(orphan);
    }

    /// From here on no more than this is held. What does not fit makes way.
    pub(super) fn allot(&self, capacity: Bytes) {
        locked(&self.room).capacity = capacity.0;
        let mut held = self.held_bytes().0;
        for tier in self.tiers().rev() {
            held -= tier.drop_last(held.saturating_sub(capacity.0));
        }
        if self.has_more_space_than(capacity) {
            self.tiers().for_each(DiskTier::thin);
        }
    }

    fn has_more_space_than(&self, capacity: Bytes) -> bool {
        self.tiers().map(|tier| tier.capacity.0).sum::<u64>() > capacity.0
    }

    /// All folders, its own first.
    fn tiers(&self) -> impl DoubleEndedIterator<Item = &DiskTier> {
        let orphans = self.orphans.iter().map(|orphan| &orphan.tier);
        std::iter::once(&self.own).chain(orphans)
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

    /// How much may be held.
    pub(super) fn capacity(&self) -> Bytes {
        Bytes(locked(&self.room).capacity)
    }

    /// Bytes of all samples that are held.
    pub(super) fn held_bytes(&self) -> Bytes {
        self.tiers().map(|tier| tier.stats().held).sum()
    }

    /// All that is held, in the order of samples.
    pub(super) fn held(&self) -> Vec<SampleId> {
        let mut held: Vec<SampleId> = self.tiers().flat_map(Tier::held).collect();
        held.sort_unstable();
        held
    }

    /// Whether a sample is held.
    pub(super) fn has(&self, sample: SampleId) -> bool {
        self.place_of(sample).len_of(sample).is_some()
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

    /// See [`Tier::in_file`].
    pub(super) fn in_file(&self, sample: SampleId) -> Option<InFile> {
        self.place_of(sample).in_file(sample)
    }

    /// See [`Tier::is_closed_to`].
    pub(super) fn is_closed_to(&self, bytes: Bytes) -> bool {
        self.own.is_closed_to(bytes)
    }

    /// See [`Tier::read_at_once`].
    pub(super) fn read_at_once(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> Result<bool, TierError> {
        self.place_of(sample).read_at_once(sample, into)
    }

    /// See [`Tier::read`].
    pub(super) fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        self.place_of(sample).read(sample, into)
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
        let place = self.place_of(sample);
        // What is held of it makes way for it, and a folder that has no more space than may be held sees to that itself.
        if place.len_of(sample).is_some() || !self.has_more_space_than(self.capacity()) {
            return place.keep_summed(sample, data, sum, stamp);
        }
        if !self.book(len) {
            return Ok(Kept::NoRoom);
        }
        let kept = self.own.keep_summed(sample, data, sum, stamp);
        locked(&self.room).booked -= len;
        self.done.notify_all();
        kept
    }

    /// Takes room for a sample that is about to be kept; whether there is any. Those who are keeping one are waited for
    /// where that may make a difference: theirs may count twice for a moment.
    fn book(&self, len: u64) -> bool {
        let mut room = locked(&self.room);
        loop {
            if self.held_bytes().0 + room.booked + len <= room.capacity {
                room.booked += len;
                return true;
            }
            if room.booked == 0 {
                return false;
            }
            room = whole(self.done.wait(room));
        }
    }

    /// See [`Tier::evict`].
    pub(super) fn evict(&self, sample: SampleId) {
        self.tiers().for_each(|tier| tier.evict(sample));
    }

    /// The folder that has a sample, or is to have it.
    fn place_of(&self, sample: SampleId) -> &DiskTier {
        let orphans = self.orphans.iter().map(|orphan| &orphan.tier);
        let mut holders = orphans.filter(|tier| tier.len_of(sample).is_some());
        holders.next().unwrap_or(&self.own)
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
    use std::sync::Arc;
    use std::time::Duration;

    use foresee_core::catalog::Catalog;
    use tempfile::TempDir;

    use super::super::log::{self, Past};
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
            capacity_max: Bytes(capacity),
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
        let opened = Arc::new(OpenDisks::default()).open_slot(spec, host);
        let view = opened.unwrap();
        view.allot(spec.capacity);
        view
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
        for _ in 0..2 {
            let first = open(&spec, 0, 2);
            let second = open(&spec, 1, 2);
            assert_eq!(held(&first), (0..10).chain(20..30).collect::<Vec<_>>());
            assert_eq!(held(&second), (10..20).chain(30..40).collect::<Vec<_>>());
            assert_eq!(first.held_bytes(), Bytes(20 * SAMPLE));
        }
        assert_eq!(slots(&spec), ["slot0", "slot1", "slot2", "slot3"]);
    }

    #[test]
    fn what_does_not_fit_makes_way_and_the_rest_is_there_when_the_ranks_are_four_again() {
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
        assert_eq!(now[2], (20..25).collect::<Vec<_>>());
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
        let larger = open(&with(400), 1, 2);
        assert_eq!(held(&larger), (0..5).collect::<Vec<_>>());
        keep(&larger, 5..40);
        drop(larger);
        assert_eq!(held(&open(&with(400), 1, 2)), (0..40).collect::<Vec<_>>());
        assert_eq!(slots(&with(400)), ["slot1"]);
    }

    #[test]
    fn who_is_killed_leaves_no_index_that_names_what_was_given_back() {
        let folder = TempDir::new().unwrap();
        let with = |capacity| spec(folder.path(), capacity * SAMPLE);
        keep(&open(&with(40), 0, 1), 0..10);
        let smaller = open(&with(5), 0, 1);
        let names = folder::names(&with(5).folder());
        let name = names.iter().find(|name| name.contains("-slot0")).unwrap();
        let part = Folder {
            path: with(5).folder.join(name),
            trusted: false,
        };
        let noted = || {
            let identity = log::identity(&part).unwrap().unwrap();
            match log::read(&part, identity).unwrap() {
                Past::Held(noted) => noted.entries.len(),
                Past::Nothing | Past::Useless(_) => 0,
            }
        };
        assert_eq!(noted(), 5, "what was dropped is noted before anything else");
        smaller.evict(SampleId(0));
        keep(&smaller, 20..21);
        assert_eq!(noted(), 5);
    }

    #[test]
    fn of_what_two_folders_hold_that_stays_which_can_be_compared_with_the_source() {
        let folder = TempDir::new().unwrap();
        let spec = spec(folder.path(), 40 * SAMPLE);
        let stamp = Stamp {
            trusted: true,
            ..Stamp::default()
        };
        for (slot, known) in [(0, 0..5), (1, 5..10)] {
            let view = open(&spec, slot, 2);
            for sample in 0..10 {
                let stamp = known.contains(&sample).then_some(stamp);
                let kept = view.keep(SampleId(sample), &bytes(sample), stamp);
                assert_eq!(kept.unwrap(), Kept::Yes);
            }
        }
        let one = open(&spec, 0, 1);
        assert_eq!(held(&one), (0..10).collect::<Vec<_>>());
        assert!((0..10).all(|sample| one.is_comparable(SampleId(sample))));
    }

    #[test]
    fn threads_that_keep_samples_at_once_fill_what_is_allotted_to_the_last_byte() {
        for _ in 0..20 {
            let folder = TempDir::new().unwrap();
            let spec = left_by_four(folder.path(), 20 * SAMPLE);
            // Room for five beside what slots 0 and 3 held.
            let first = open(&spec, 0, 3);
            (30..35).for_each(|sample| first.evict(SampleId(sample)));
            std::thread::scope(|scope| {
                for sample in 10..15 {
                    let first = &first;
                    scope.spawn(move || keep(first, sample..sample + 1));
                }
            });
            assert_eq!(first.held_bytes(), Bytes(20 * SAMPLE));
        }
    }

    #[test]
    fn the_disk_has_no_more_than_is_allotted_whatever_the_number_of_ranks() {
        const SAMPLE: u64 = 16 << 10;
        const TOTAL: u64 = 48 * SAMPLE;
        let folder = TempDir::new().unwrap();
        let spec = |ranks: u64| DiskSpec {
            sizes: Arc::new(Catalog::new(vec![SAMPLE; 96])),
            capacity: Bytes(TOTAL / ranks),
            capacity_max: Bytes(TOTAL),
            ..spec(folder.path(), 0)
        };
        let data = vec![7; SAMPLE as usize];
        for ranks in [4u32, 2, 8, 3, 6, 1, 8, 2, 4, 1] {
            let spec = spec(u64::from(ranks));
            let views: Vec<DiskView> = (0..ranks).map(|slot| open(&spec, slot, ranks)).collect();
            for view in &views {
                let mut samples = (0..96).map(SampleId);
                while samples.any(|sample| {
                    view.keep(sample, &data, None).unwrap() == Kept::Yes
                        && view.held_bytes() < spec.capacity
                }) {}
                assert_eq!(view.held_bytes(), spec.capacity, "{ranks} ranks");
            }
            drop(views);
            let names = slots(&spec);
            assert!(names.len() <= 8, "{names:?}");
            let parts = folder::names(&spec.folder());
            let parts = parts.iter().filter(|name| name.contains('-'));
            let taken: u64 = parts
                .map(|name| folder::disk_bytes(&spec.folder.join(name)))
                .sum();
            // An index, a lock and the ends of a file for each.
            let besides = names.len() as u64 * (32 << 10);
            assert!(
                taken <= TOTAL + besides,
                "{ranks} ranks: {taken} of {TOTAL}"
            );
        }
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
    fn what_is_left_of_others_and_what_is_allocated_are_within_the_capacity_together() {
        const SAMPLE: u64 = 64 << 10;
        let folder = TempDir::new().unwrap();
        let of = |dataset, samples: usize, capacity: u64| DiskSpec {
            dataset: [dataset; 16],
            sizes: Arc::new(Catalog::new(vec![SAMPLE; samples])),
            ..spec(folder.path(), capacity * SAMPLE)
        };
        let data = vec![7; SAMPLE as usize];
        let first = open(&of(1, 9, 10), 0, 1);
        for sample in 0..9 {
            let kept = first.keep(SampleId(sample), &data, None);
            assert_eq!(kept.unwrap(), Kept::Yes);
        }
        drop(first);
        let spec = of(2, 20, 30);
        let second = open(&spec, 0, 1);
        for sample in 0..20 {
            let kept = second.keep(SampleId(sample), &data, None);
            assert_eq!(kept.unwrap(), Kept::Yes);
        }
        let parts = folder::names(&spec.folder());
        let parts = parts.iter().filter(|name| name.contains('-'));
        let taken = parts.map(|name| folder::disk_bytes(&spec.folder.join(name)));
        let taken: Vec<u64> = taken.collect();
        assert_eq!(taken.len(), 2, "there is room for both");
        assert!(
            taken.iter().sum::<u64>() <= spec.capacity.0,
            "{taken:?} of {}",
            spec.capacity
        );
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
        assert_eq!(slots(&spec), ["rank2", "rank3", "slot0", "slot1"]);
    }
}
