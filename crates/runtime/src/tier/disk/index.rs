//! What a disk tier holds and where, in memory and in its log, which change together. A sample that is read while it is
//! evicted keeps its space until its last reader is done: readers share the entry, and whoever drops it last frees it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::entry::Entry;
use super::log::Log;
use crate::extents::Extents;
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
    /// Bytes of evicted samples that are still being read.
    leaving: u64,
    held: u64,
    /// How many records say what is held.
    records: u64,
    log: Log,
}

impl Index {
    /// An index of these entries, whose ranges are taken in `extents` and whose log says so.
    pub(super) fn new(entries: HashMap<SampleId, Holding>, extents: Extents, log: Log) -> Self {
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
            log,
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

    /// The same bytes are what the sample is now, as another stamp says.
    pub(super) fn restamp(&mut self, sample: SampleId, stamp: Option<Stamp>) -> io::Result<()> {
        let Some(held) = self
            .entries
            .get_mut(&sample)
            .filter(|held| held.stamp != stamp)
        else {
            return Ok(());
        };
        held.stamp = stamp;
        self.log.admit(sample, &held.entry, stamp)?;
        self.tidy();
        Ok(())
    }

    /// All held samples, in order.
    pub(super) fn samples(&self) -> Vec<SampleId> {
        let mut samples: Vec<_> = self.entries.keys().copied().collect();
        samples.sort_unstable();
        samples
    }

    /// Bytes of all held samples.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// How many bytes are free, or will be when readers are done.
    pub(super) fn free_soon(&self) -> u64 {
        self.extents.free() + self.leaving
    }

    /// A sample, whose ranges are taken, is held from here on. Where that cannot be noted, it is not, and its ranges are
    /// free again.
    pub(super) fn admit(
        &mut self,
        sample: SampleId,
        entry: Entry,
        stamp: Option<Stamp>,
    ) -> io::Result<()> {
        if let Err(cause) = self.log.admit(sample, &entry, stamp) {
            self.free(&entry);
            return Err(cause);
        }
        self.held += entry.len();
        self.records += entry.parts().len() as u64;
        let held = Holding {
            entry: Arc::new(entry),
            stamp,
        };
        if let Some(old) = self.entries.insert(sample, held) {
            self.forget(old.entry);
        }
        self.tidy();
        Ok(())
    }

    /// A sample is held no longer. Where that cannot be noted, an index that is read again may say that it is held: then
    /// its checksum says that it is not.
    pub(super) fn evict(&mut self, sample: SampleId) -> io::Result<()> {
        let Some(held) = self.entries.remove(&sample) else {
            return Ok(());
        };
        let noted = self.log.evict(sample);
        self.forget(held.entry);
        self.tidy();
        noted
    }

    /// The last reader of an evicted sample is done.
    pub(super) fn leave(&mut self, entry: &Entry) {
        self.leaving -= entry.len();
        self.free(entry);
    }

    /// Frees ranges that were taken for a sample.
    pub(super) fn free(&mut self, entry: &Entry) {
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

    fn tidy(&mut self) {
        if self.log.is_long(self.records) {
            self.log
                .rewrite(self.entries.iter().map(|(&sample, held)| (sample, held)));
        }
    }
}
