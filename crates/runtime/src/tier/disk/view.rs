//! A tier on disk as a job has it: one job's view of it ([`View`]), which can be let go of while samples of the job are
//! still in the trainer's hands. The folder is then free for the next job, and this one finds nothing any more.

use std::sync::Arc;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::DiskTier;
use super::shared::View;
use crate::stamp::Stamp;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, whole};
use crate::tier::{Arrived, Found, InFile, Kept, Secured, Stay, Tier, TierError};

/// What one job sees of a tier on disk, until it lets go of it.
#[derive(Debug)]
pub struct DiskView {
    view: RwLock<Option<Arc<View>>>,
    /// What it could hold when that was told last: also of one that was let go of.
    capacity: AtomicU64,
}

impl DiskView {
    pub(super) fn new(view: View) -> Self {
        Self {
            capacity: AtomicU64::new(view.capacity().0),
            view: RwLock::new(Some(Arc::new(view))),
        }
    }

    /// Bytes of all samples that the tier holds, for all who share it.
    pub fn held_bytes(&self) -> Bytes {
        self.view().map_or(Bytes(0), |view| view.held_bytes())
    }

    /// What it sees the tier through; none once it was let go of.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        whole(self.view.read()).clone()
    }
}

impl Tier for DiskView {
    fn capacity(&self) -> Bytes {
        Bytes(self.capacity.load(Ordering::Relaxed))
    }

    fn is_flexible(&self) -> bool {
        self.view().is_some_and(|view| view.is_alone())
    }

    fn allot(&self, capacity: Bytes) {
        if let Some(view) = self.view() {
            view.allot(capacity);
            self.capacity.store(view.capacity().0, Ordering::Relaxed);
        }
    }

    fn held(&self) -> Vec<SampleId> {
        self.view().map_or_else(Vec::new, |view| view.held())
    }

    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
        self.view()
            .map_or(Ok(Found::NotHeld), |view| view.read(sample, into))
    }

    fn keep_secured(
        &self,
        sample: SampleId,
        arrived: Arrived<'_>,
        secured: Secured,
        stamp: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        let Some(view) = self.view() else {
            return Ok(Kept::NoRoom);
        };
        let data = arrived.bytes();
        view.keep(sample, data, DiskTier::secured_sum(data, &secured), stamp)
    }

    fn evict(&self, sample: SampleId) {
        if let Some(view) = self.view() {
            view.evict(sample);
        }
    }

    fn writes_files(&self) -> bool {
        true
    }

    fn outlasts_jobs(&self) -> bool {
        true
    }

    fn in_file(&self, sample: SampleId) -> Option<InFile> {
        self.view()?.in_file(sample)
    }

    fn is_closed_to(&self, bytes: Bytes) -> bool {
        self.view().is_none_or(|view| view.is_closed_to(bytes))
    }

    fn secure(&self, arrived: Arrived<'_>, _: Stay) -> Secured {
        Secured::Sum(DiskTier::sum(arrived.bytes()))
    }

    fn read_at_once(&self, sample: SampleId, into: &mut [u8]) -> Result<bool, TierError> {
        self.view()
            .map_or(Ok(false), |view| view.read_at_once(sample, into))
    }

    fn is_current(&self, sample: SampleId, now: &Stamp) -> bool {
        self.view().is_some_and(|view| view.is_current(sample, now))
    }

    fn is_comparable(&self, sample: SampleId) -> bool {
        self.view().is_some_and(|view| view.is_comparable(sample))
    }

    /// Where a thread is in the folder, the end of its read or write lets go of it.
    fn close(&self) {
        let view = whole(self.view.write()).take();
        // After the lock: nobody waits for files to be closed.
        drop(view);
    }
}
