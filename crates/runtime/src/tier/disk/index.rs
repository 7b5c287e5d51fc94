//! What a disk tier holds and where, in memory: no file is read or written here. What was evicted and is not noted in the
//! log yet is remembered in order. A sample that is read while it is evicted keeps its space until its last reader is done:
//! readers share the entry, and whoever drops it last frees it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::entry::Entry;
use super::log;
use crate::extents::{Extent, Extents};
use crate::stamp::Stamp;

/// A held sample: where it lies, which readers share, and what it was in the source.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) entry: Arc<Entry>,
    pub(super) stamp: Option<Stamp>,
}

/// What is held.
#[derive(Debug)]
pub(super) struct Index {
    entries: HashMap<SampleId, Holding>,
    /// What is allocated and free. What is not allocated yet counts as taken.
    pub(super) extents: Extents,
    /// Bytes that are about to be free: of evicted samples that are still being read, and what the disk is given back.
    leaving: u64,
    held: u64,
    /// How many records say what is held.
    records: u64,
    /// What was evicted since the log was told last.
    evicted: Vec<SampleId>,
    /// What became free since the disk was given back what is, where it is to be.
    freed: Option<Vec<Extent>>,
}

impl Index {
    /// An index of these entries, whose ranges are taken in `extents`.
    pub(super) fn new(entries: HashMap<SampleId, Holding>, extents: Extents) -> Self {
        let held = entries.values().map(|held| held.entry.len()).sum();
        let records = entries
            .values()
            .map(|held| held.entry.parts().len() as u64)
            .sum();
        Self {
            entries,
            extents,
            leaving: 0,
            held,
            records,
            evicted: Vec::new(),
            freed: None,
        }
    }

    /// A held sample.
    pub(super) fn get(&self, sample: SampleId) -> Option<&Arc<Entry>> {
        self.entries.get(&sample).map(|held| &held.entry)
    }

    /// What a held sample was in the source.
    pub(super) fn stamp(&self, sample: SampleId) -> Option<Stamp> {
        self.entries.get(&sample)?.stamp
    }

    /// Whether it holds so many bytes of a sample that have this checksum.
    pub(super) fn holds(&self, sample: SampleId, len: u64, sum: u64) -> bool {
        self.get(sample)
            .is_some_and(|held| held.sum == sum && held.len() == len)
    }

    /// The same bytes are what the sample is now, as another stamp says. Gives where they lie.
    pub(super) fn restamp(&mut self, sample: SampleId, stamp: Option<Stamp>) -> Option<Arc<Entry>> {
        let held = self.entries.get_mut(&sample)?;
        held.stamp = stamp;
        Some(Arc::clone(&held.entry))
    }

    /// All held samples, in order.
    pub(super) fn samples(&self) -> Vec<SampleId> {
        let mut samples: Vec<_> = self.entries.keys().copied().collect();
        samples.sort_unstable();
        samples
    }

    /// All held samples with their lengths, from the end of the space on.
    pub(super) fn last_first(&self) -> Vec<(SampleId, u64)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(sample, held)| {
            Reverse((held.entry.parts()[0].offset, **sample))
        });
        let entries = entries.into_iter();
        entries
            .map(|(sample, held)| (*sample, held.entry.len()))
            .collect()
    }

    /// Bytes of all held samples.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// How many bytes are free, or will be when readers are done.
    pub(super) fn free_soon(&self) -> u64 {
        self.extents.free() + self.leaving
    }

    /// How many records say what is held.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// The records of those samples that are held.
    pub(super) fn encoded(&self, samples: &[SampleId]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &sample in samples {
            if let Some(Holding { entry, stamp }) = self.entries.get(&sample) {
                log::encode_admission(sample, entry, *stamp, &mut bytes);
            }
        }
        bytes
    }

    /// A sample, whose ranges are taken, is held from here on.
    pub(super) fn admit(&mut self, sample: SampleId, entry: Arc<Entry>, stamp: Option<Stamp>) {
        self.held += entry.len();
        self.records += entry.parts().len() as u64;
        if let Some(old) = self.entries.insert(sample, Holding { entry, stamp }) {
            self.forget(old.entry);
        }
    }

    /// A sample is held no longer, which is still to be noted.
    pub(super) fn evict(&mut self, sample: SampleId) {
        let Some(held) = self.entries.remove(&sample) else {
            return;
        };
        self.evicted.push(sample);
        self.forget(held.entry);
    }

    /// A sample that was admitted is not to be held after all, unless it has been replaced since.
    pub(super) fn withdraw(&mut self, sample: SampleId, entry: &Arc<Entry>) {
        if self
            .get(sample)
            .is_some_and(|held| Arc::ptr_eq(held, entry))
        {
            self.evict(sample);
        }
    }

    /// What was evicted and is not noted, for who notes it now.
    pub(super) fn take_evicted(&mut self) -> Vec<SampleId> {
        std::mem::take(&mut self.evicted)
    }

    /// It could not be noted.
    pub(super) fn put_back_evicted(&mut self, mut evicted: Vec<SampleId>) {
        evicted.append(&mut self.evicted);
        self.evicted = evicted;
    }

    /// The last reader of an evicted sample is done.
    pub(super) fn leave(&mut self, entry: &Entry) {
        self.leaving -= entry.len();
        self.free(entry);
    }

    /// From here on what becomes free is remembered; all that is free at present counts as such.
    pub(super) fn remember_freed(&mut self) {
        if self.freed.is_none() {
            self.freed = Some(self.extents.ranges().collect());
        }
    }

    /// What becomes free is remembered.
    pub(super) fn remembers_freed(&self) -> bool {
        self.freed.is_some()
    }

    /// Takes the ranges that became free and still are, each with what is free beside it, for a moment.
    pub(super) fn take_freed(&mut self) -> Vec<Extent> {
        let parts = self.freed.as_mut().map(std::mem::take).unwrap_or_default();
        let mut taken = Vec::new();
        for part in parts {
            if let Some(range) = self.extents.range_at(part.offset) {
                self.extents.claim(range.offset, range.len);
                self.leaving += range.len;
                taken.push(range);
            }
        }
        taken
    }

    /// What was taken for a moment is free again; whether the disk has it back.
    pub(super) fn put_back(&mut self, ranges: &[Extent], is_given_back: bool) {
        for range in ranges {
            self.leaving -= range.len;
            self.extents.give_back(range.offset, range.len);
        }
        if let Some(freed) = self.freed.as_mut().filter(|_| !is_given_back) {
            freed.extend_from_slice(ranges);
        }
    }

    /// Frees ranges that were taken for a sample.
    pub(super) fn free(&mut self, entry: &Entry) {
        if let Some(freed) = &mut self.freed {
            freed.extend_from_slice(entry.parts());
        }
        for part in entry.parts() {
            self.extents.give_back(part.offset, part.len);
        }
    }

    fn forget(&mut self, entry: Arc<Entry>) {
        let len = entry.len();
        self.held -= len;
        self.records -= entry.parts().len() as u64;
        match Arc::into_inner(entry) {
            Some(entry) => self.free(&entry),
            None => self.leaving += len,
        }
    }
}
