//! Tiers on disk that several jobs of one process have open: training and validation on parts of one dataset, or a cell of
//! a notebook that is run again. The folder is locked by the process, so they share one tier, each through a view.
//!
//! Jobs plan without knowing of each other. So each view has claims: the samples that its job counts on. It finds what was
//! held when it was opened and what its job kept, nothing else; and what it evicts leaves the tier only if no other view
//! claims it. Who keeps other bytes of a sample takes it from the others, because they may have looked at the old ones.
//! What a job leaves behind stays until another one needs the room. Capacity and lock are the tier's own.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use foresee_config::shown;
use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::slot::SlotTier;
use super::{DiskError, DiskSpec, DiskView, locked};
use crate::fork;
use crate::stamp::Stamp;
use crate::tier::{Found, InFile, Kept, TierError};

/// The tiers on disk that this process has open.
#[derive(Debug, Default)]
pub struct OpenDisks(Mutex<Vec<(Place, Weak<Shared>)>>);

/// A sub-folder, whatever it is called.
type Place = (u64, u64);

/// A tier and who shares it.
#[derive(Debug)]
struct Shared {
    tier: SlotTier,
    dataset: [u8; 16],
    sizes: Arc<Catalog>,
    /// Locked before the tier's index, never after.
    sharing: Mutex<Sharing>,
}

#[derive(Debug, Default)]
struct Sharing {
    views: Vec<Arc<Claims>>,
    /// Samples that a job left behind; some may have been claimed since.
    abandoned: Vec<SampleId>,
    /// What is being written: as many as there are threads that write.
    keeping: Vec<Keep>,
}

/// Bytes of a sample that somebody keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keep {
    sample: SampleId,
    len: u64,
    sum: u64,
}

/// A bit a sample. Set and cleared under the lock of `Sharing`.
#[derive(Debug)]
struct Claims(Vec<AtomicU64>);

/// What one job sees of a tier on disk.
#[derive(Debug)]
pub(super) struct View {
    shared: ManuallyDrop<Arc<Shared>>,
    claims: Arc<Claims>,
    open: Arc<OpenDisks>,
    /// Forks before it was opened: a fork that ends leaves the parent's tier alone.
    generation: u32,
}

impl OpenDisks {
    /// Opens a tier, or shares the one that is open there. Its capacity is then what the first one asked for.
    pub fn open(self: &Arc<Self>, spec: &DiskSpec) -> Result<DiskView, DiskError> {
        // One at a time: nobody finds a folder locked that this process is about to let go of.
        let mut open = locked(&self.0);
        open.retain(|(_, shared)| shared.strong_count() > 0);
        let place = place(spec);
        let found = open
            .iter()
            .find(|(other, _)| place == Some(*other))
            .and_then(|(_, shared)| shared.upgrade());
        let shared = if let Some(shared) = found {
            shared.admit(spec)?;
            shared
        } else {
            let dataset = spec.dataset;
            let sizes = Arc::clone(&spec.sizes);
            let sharing = Mutex::default();
            let shared = Arc::new(Shared {
                tier: SlotTier::open(spec)?,
                dataset,
                sizes,
                sharing,
            });
            open.extend(self::place(spec).map(|place| (place, Arc::downgrade(&shared))));
            shared
        };
        let claims = shared.enter();
        let generation = fork::generation();
        Ok(DiskView::new(View {
            shared: ManuallyDrop::new(shared),
            claims,
            open: Arc::clone(self),
            generation,
        }))
    }
}

/// Where a sub-folder is, if it is there.
fn place(spec: &DiskSpec) -> Option<Place> {
    let found = fs::metadata(spec.folder.join(&spec.name)).ok()?;
    Some((found.dev(), found.ino()))
}

impl Shared {
    /// Whether another job may have it as well.
    fn admit(&self, spec: &DiskSpec) -> Result<(), DiskError> {
        let path = spec.folder.join(&spec.name);
        if self.dataset != spec.dataset || self.sizes.len() != spec.sizes.len() {
            return Err(DiskError::InUse {
                path,
                holder: std::process::id().to_string(),
            });
        }
        // Of what ranks share it may have more or less than an even part.
        let is_fixed = spec.capacity == spec.capacity_max;
        if is_fixed && self.tier.capacity() != spec.capacity {
            let path = shown(&path);
            let has = self.tier.capacity();
            let asked = spec.capacity;
            tracing::warn!(
                "cache folder {path}: another job of this process has it with {has}, so {asked} is not heeded"
            );
        }
        Ok(())
    }

    /// Another view, which claims all that is held.
    fn enter(&self) -> Arc<Claims> {
        let mut sharing = locked(&self.sharing);
        let claims = Arc::new(Claims::none(self.sizes.len()));
        for sample in self.tier.held() {
            claims.set(sample);
        }
        // Other bytes are about to take their place.
        for keep in &sharing.keeping {
            claims.clear(keep.sample);
        }
        sharing.views.push(Arc::clone(&claims));
        claims
    }

    /// A view is gone; what nobody else claims makes way when room is needed.
    fn leave(&self, claims: &Arc<Claims>) {
        let mut sharing = locked(&self.sharing);
        sharing.views.retain(|other| !Arc::ptr_eq(other, claims));
        if sharing.views.is_empty() {
            return;
        }
        let mut left = self.tier.held();
        left.retain(|&sample| claims.has(sample) && !sharing.is_claimed(sample));
        sharing.abandoned.extend(left);
    }

    /// A view is about to keep a sample; whether it claimed it before. None where others are keeping other bytes of it: whose
    /// come last would be what both read. Where other bytes are held, no other view has the sample from here on.
    fn begin_keeping(&self, claims: &Arc<Claims>, keep: &Keep) -> Option<bool> {
        let mut sharing = locked(&self.sharing);
        let Keep { sample, len, sum } = *keep;
        let mut under_way = sharing.keeping.iter().filter(|one| one.sample == sample);
        if under_way.clone().any(|one| one != keep) {
            return None;
        }
        let had = claims.set(sample);
        // Who keeps the same bytes at this moment has told the others, and claims what is about to be there.
        let is_first = under_way.next().is_none();
        if is_first && self.tier.has(sample) && !self.tier.holds(sample, len, sum) {
            let views = sharing.views.iter();
            for other in views.filter(|other| !Arc::ptr_eq(other, claims)) {
                other.clear(sample);
            }
        }
        sharing.keeping.push(*keep);
        Some(had)
    }

    /// A view has kept a sample, or could not: then it claims it no more, unless it had it before.
    fn end_keeping(&self, claims: &Claims, keep: &Keep, is_claimed: bool) {
        let mut sharing = locked(&self.sharing);
        if let Some(place) = sharing.keeping.iter().position(|one| one == keep) {
            sharing.keeping.swap_remove(place);
        }
        if !is_claimed {
            let was_last = self.disclaim(&sharing, claims, keep.sample);
            if was_last && self.tier.has(keep.sample) {
                sharing.abandoned.push(keep.sample);
            }
        }
    }

    /// A view counts on a sample no longer; whether it was the last one that did.
    fn disclaim(&self, sharing: &Sharing, claims: &Claims, sample: SampleId) -> bool {
        debug_assert!(
            sample.index() < self.sizes.len() as usize,
            "samples are the dataset's"
        );
        claims.clear(sample);
        !sharing.is_claimed(sample)
    }

    /// Drops samples that jobs left behind, until about so many bytes are free; whether any was.
    fn make_room(&self, bytes: u64) -> bool {
        let mut sharing = locked(&self.sharing);
        let mut freed = 0;
        while freed < bytes {
            let Some(sample) = sharing.abandoned.pop() else {
                break;
            };
            if !sharing.is_claimed(sample) {
                self.tier.evict(sample);
                freed += self.sizes.size(sample).0;
            }
        }
        freed > 0
    }

    /// Whether other jobs have all the room there is.
    fn is_taken(&self, bytes: u64) -> bool {
        let sharing = locked(&self.sharing);
        sharing.views.len() > 1
            && sharing.abandoned.is_empty()
            && self.tier.held_bytes().0 + bytes > self.tier.capacity().0
    }
}

impl Sharing {
    fn is_claimed(&self, sample: SampleId) -> bool {
        self.views.iter().any(|claims| claims.has(sample))
    }
}

impl Claims {
    fn none(samples: u32) -> Self {
        Self(
            (0..samples.div_ceil(u64::BITS))
                .map(|_| AtomicU64::new(0))
                .collect(),
        )
    }

    fn has(&self, sample: SampleId) -> bool {
        self.word(sample)
            .is_some_and(|word| word.load(Ordering::SeqCst) & bit(sample) != 0)
    }

    /// Whether it was set before.
    fn set(&self, sample: SampleId) -> bool {
        self.word(sample)
            .is_some_and(|word| word.fetch_or(bit(sample), Ordering::SeqCst) & bit(sample) != 0)
    }

    fn clear(&self, sample: SampleId) {
        if let Some(word) = self.word(sample) {
            word.fetch_and(!bit(sample), Ordering::SeqCst);
        }
    }

    fn word(&self, sample: SampleId) -> Option<&AtomicU64> {
        self.0.get(sample.index() / u64::BITS as usize)
    }
}

fn bit(sample: SampleId) -> u64 {
    1 << (sample.0 % u64::BITS)
}

impl View {
    /// What the tier may hold, for all who share it.
    pub(super) fn capacity(&self) -> Bytes {
        self.shared.tier.capacity()
    }

    /// Whether no other job counts on what the tier may hold.
    pub(super) fn is_alone(&self) -> bool {
        locked(&self.shared.sharing).views.len() == 1
    }

    /// See [`crate::tier::Tier::allot`].
    pub(super) fn allot(&self, capacity: Bytes) {
        if self.is_alone() {
            self.shared.tier.allot(capacity);
        }
    }

    /// Bytes of all samples that the tier holds.
    pub(super) fn held_bytes(&self) -> Bytes {
        self.shared.tier.held_bytes()
    }

    /// All that its job finds, in the order of samples.
    pub(super) fn held(&self) -> Vec<SampleId> {
        let mut held = self.shared.tier.held();
        held.retain(|&sample| self.claims.has(sample));
        held
    }

    /// See [`crate::tier::Tier::read`].
    pub(super) fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        if !self.claims.has(sample) {
            return Ok(Found::NotHeld);
        }
        let found = self.shared.tier.read(sample, into)?;
        // Another job may have replaced it meanwhile, and said so before it did.
        Ok(if self.claims.has(sample) {
            found
        } else {
            Found::NotHeld
        })
    }

    /// See [`crate::tier::Tier::read_at_once`].
    pub(super) fn read_at_once(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> Result<bool, TierError> {
        let is_claimed = self.claims.has(sample);
        Ok(is_claimed && self.shared.tier.read_at_once(sample, into)? && self.claims.has(sample))
    }

    /// See [`crate::tier::Tier::in_file`].
    pub(super) fn in_file(&self, sample: SampleId) -> Option<InFile> {
        let is_claimed = self.claims.has(sample);
        is_claimed.then(|| self.shared.tier.in_file(sample))?
    }

    /// See [`crate::tier::Tier::is_current`].
    pub(super) fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        self.claims.has(sample) && self.shared.tier.is_current(sample, now)
    }

    /// See [`crate::tier::Tier::is_comparable`].
    pub(super) fn is_comparable(&self, sample: SampleId) -> bool {
        self.claims.has(sample) && self.shared.tier.is_comparable(sample)
    }

    /// See [`super::DiskTier::keep_summed`].
    pub(super) fn keep(
        &self,
        sample: SampleId,
        data: &[u8],
        sum: u64,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let len = data.len() as u64;
        let keep = Keep { sample, len, sum };
        let Some(had) = self.shared.begin_keeping(&self.claims, &keep) else {
            return Ok(Kept::NoRoom);
        };
        let mut kept = self.shared.tier.keep_summed(sample, data, sum, stamp);
        while matches!(kept, Ok(Kept::NoRoom)) && self.shared.make_room(len) {
            kept = self.shared.tier.keep_summed(sample, data, sum, stamp);
        }
        let is_claimed = had || matches!(kept, Ok(Kept::Yes));
        self.shared.end_keeping(&self.claims, &keep, is_claimed);
        kept
    }

    /// See [`crate::tier::Tier::evict`].
    pub(super) fn evict(&self, sample: SampleId) {
        let sharing = locked(&self.shared.sharing);
        // With the lock: nobody claims it in between.
        if self.shared.disclaim(&sharing, &self.claims, sample) {
            self.shared.tier.evict(sample);
        }
    }

    /// See [`crate::tier::Tier::is_closed_to`].
    pub(super) fn is_closed_to(&self, bytes: Bytes) -> bool {
        self.shared.tier.is_closed_to(bytes) || self.shared.is_taken(bytes.0)
    }
}

impl Drop for View {
    #[allow(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return;
        }
        let open = locked(&self.open.0);
        self.shared.leave(&self.claims);
        // SAFETY: it is dropped here, once, and not touched again: this is the end of the view.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
        drop(open);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tier::{DiskTier, Tier, conformance};

    const SAMPLE: u64 = 100;

    /// Room for three of ten samples.
    fn spec(folder: &Path) -> DiskSpec {
        DiskSpec {
            folder: folder.join("cache"),
            name: "one".to_owned(),
            orphans: Vec::new(),
            dataset: [7; 16],
            sizes: Arc::new(Catalog::new(vec![SAMPLE; 10])),
            capacity: Bytes(3 * SAMPLE),
            capacity_max: Bytes(3 * SAMPLE),
            floor: Bytes(0),
            trusted: false,
        }
    }

    fn bytes(sample: u32, version: u8) -> Vec<u8> {
        (0..SAMPLE)
            .map(|at| at as u8 ^ sample as u8 ^ version << 4)
            .collect()
    }

    fn keep(view: &DiskView, sample: u32, version: u8) -> Kept {
        view.keep(SampleId(sample), &bytes(sample, version), None)
            .unwrap()
    }

    /// The version that a view finds.
    fn read(view: &DiskView, sample: u32) -> Option<u8> {
        let mut found = vec![0; SAMPLE as usize];
        let at_once = view
            .read_at_once(SampleId(sample), &mut found.clone())
            .unwrap();
        let is_there = view.read(SampleId(sample), &mut found).unwrap() == Found::Yes;
        assert_eq!(is_there, at_once);
        is_there.then(|| {
            (0..16)
                .find(|&version| bytes(sample, version) == found)
                .expect("one that was kept")
        })
    }

    #[test]
    fn a_view_is_a_tier_like_any_other() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let mut number = 0;
        let mut make = |capacity| -> Box<dyn Tier> {
            number += 1;
            let sizes = Arc::new(conformance::catalog());
            let spec = DiskSpec {
                name: format!("{number}"),
                sizes,
                capacity,
                capacity_max: capacity,
                ..spec(folder.path())
            };
            Box::new(open.open(&spec).unwrap())
        };
        conformance::check(&mut make);
        conformance::check_closing(&mut make);
    }

    #[test]
    fn what_one_evicts_stays_for_the_others_that_count_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let first = open.open(&spec(folder.path())).unwrap();
        keep(&first, 1, 0);
        let second = open.open(&spec(folder.path())).unwrap();
        assert_eq!(second.held(), [SampleId(1)]);
        second.evict(SampleId(1));
        assert_eq!((read(&first, 1), read(&second, 1)), (Some(0), None));
        assert_eq!(keep(&second, 1, 0), Kept::Yes);
        first.evict(SampleId(1));
        assert_eq!((read(&first, 1), read(&second, 1)), (None, Some(0)));
        second.evict(SampleId(1));
        assert_eq!(second.held_bytes(), Bytes(0));
    }

    #[test]
    fn one_finds_nothing_that_another_kept_or_replaced_after_it_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let first = open.open(&spec(folder.path())).unwrap();
        let second = open.open(&spec(folder.path())).unwrap();
        keep(&first, 1, 0);
        assert_eq!((read(&second, 1), second.held()), (None, vec![]));
        assert_eq!(keep(&second, 1, 3), Kept::Yes);
        assert_eq!(
            (read(&first, 1), read(&second, 1)),
            (None, Some(3)),
            "the first may have looked at other bytes"
        );
        assert_eq!(second.held_bytes(), Bytes(SAMPLE));
    }

    #[test]
    fn who_keeps_what_another_is_keeping_takes_nothing_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let first = open.open(&spec(folder.path())).unwrap();
        let second = open.open(&spec(folder.path())).unwrap();
        let view = first.view().unwrap();
        let under_way = Keep {
            sample: SampleId(1),
            len: SAMPLE,
            sum: DiskTier::sum(&bytes(1, 0)),
        };
        let had = view.shared.begin_keeping(&view.claims, &under_way);
        assert_eq!(had, Some(false));
        assert_eq!(keep(&second, 1, 3), Kept::NoRoom, "other bytes");
        assert_eq!(keep(&second, 1, 0), Kept::Yes, "the same");
        view.shared.end_keeping(&view.claims, &under_way, true);
        assert_eq!((read(&first, 1), read(&second, 1)), (Some(0), Some(0)));
    }

    #[test]
    fn there_is_room_for_all_together_and_what_a_closed_one_left_makes_way() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let first = open.open(&spec(folder.path())).unwrap();
        let second = open.open(&spec(folder.path())).unwrap();
        assert_eq!([1, 2].map(|sample| keep(&first, sample, 0)), [Kept::Yes; 2]);
        assert_eq!(
            [3, 4].map(|sample| keep(&second, sample, 0)),
            [Kept::Yes, Kept::NoRoom]
        );
        assert!(second.is_closed_to(Bytes(SAMPLE)));
        drop(first);
        assert!(!second.is_closed_to(Bytes(SAMPLE)));
        assert_eq!(
            [4, 5].map(|sample| keep(&second, sample, 0)),
            [Kept::Yes; 2]
        );
        assert_eq!(keep(&second, 6, 0), Kept::NoRoom);
        assert_eq!([3, 4, 5].map(|sample| read(&second, sample)), [Some(0); 3]);
    }

    #[test]
    fn the_folder_is_free_when_the_last_one_is_gone_and_what_is_held_stays() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let elsewhere = Arc::new(OpenDisks::default());
        let first = open.open(&spec(folder.path())).unwrap();
        let second = open.open(&spec(folder.path())).unwrap();
        keep(&first, 1, 0);
        drop(first);
        let said = elsewhere
            .open(&spec(folder.path()))
            .unwrap_err()
            .to_string();
        assert!(said.contains("is in use by process"), "{said}");
        drop(second);
        assert_eq!(
            elsewhere.open(&spec(folder.path())).unwrap().held(),
            [SampleId(1)]
        );
    }

    #[test]
    fn a_tier_of_another_dataset_is_not_shared() {
        let folder = tempfile::tempdir().unwrap();
        let open = Arc::new(OpenDisks::default());
        let _first = open.open(&spec(folder.path())).unwrap();
        let other = DiskSpec {
            dataset: [8; 16],
            ..spec(folder.path())
        };
        assert!(
            open.open(&other)
                .unwrap_err()
                .to_string()
                .contains("is in use by process")
        );
    }
}
