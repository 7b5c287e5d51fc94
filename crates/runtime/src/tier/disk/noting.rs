//! Index and log of a disk tier, which change together: the index in memory at once, the log on disk after it and in the
//! same order. The log's lock is taken first and held while the file is written, the index's only for the moment of the
//! change; so whoever looks something up, or evicts it, never waits for the disk.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use foresee_core::ids::SampleId;

use super::entry::Entry;
use super::log::{self, Log};
use super::{DiskTier, locked};
use crate::stamp::Stamp;

impl DiskTier {
    /// Whether just these bytes are held; then they are what the sample is now, as the stamp says. What another rank sent of
    /// them has none: what is known of them already stays true.
    pub(super) fn restamp(
        &self,
        sample: SampleId,
        len: u64,
        sum: u64,
        stamp: Option<Stamp>,
    ) -> bool {
        let index = self.index();
        if !index.holds(sample, len, sum) {
            return false;
        }
        if stamp.is_none() || index.stamp(sample) == stamp {
            return true;
        }
        drop(index);
        let mut log = locked(&self.log);
        let mut index = self.index();
        // It may have been replaced meanwhile.
        if !index.holds(sample, len, sum) {
            return false;
        }
        let Some(entry) = index.restamp(sample, stamp) else {
            return false;
        };
        let evicted = index.take_evicted();
        drop(index);
        let noted = log.write(&evicted, Some((sample, &entry, stamp)));
        if noted.is_err() {
            self.index().put_back_evicted(evicted);
        }
        self.done_reading(entry);
        self.tidy(&mut log);
        self.note(noted);
        true
    }

    /// A sample, whose bytes are written, is held from here on. Where that cannot be noted, it is not, and its ranges are
    /// free again.
    pub(super) fn admit(
        &self,
        sample: SampleId,
        entry: Entry,
        stamp: Option<Stamp>,
    ) -> io::Result<()> {
        let mut log = locked(&self.log);
        let entry = Arc::new(entry);
        let mut index = self.index();
        index.admit(sample, Arc::clone(&entry), stamp);
        // With the same lock: what is evicted later is noted later.
        let evicted = index.take_evicted();
        drop(index);
        let noted = log.write(&evicted, Some((sample, &entry, stamp)));
        if noted.is_err() {
            let mut index = self.index();
            index.put_back_evicted(evicted);
            index.withdraw(sample, &entry);
        }
        self.done_reading(entry);
        self.tidy(&mut log);
        noted
    }

    /// Notes what was evicted since this was done last.
    pub(super) fn note_evictions(&self) -> io::Result<()> {
        let mut log = locked(&self.log);
        let evicted = self.index().take_evicted();
        let noted = log.write(&evicted, None);
        if noted.is_err() {
            self.index().put_back_evicted(evicted);
        }
        noted
    }

    /// Replaces a log that is mostly history. The index is looked at in batches: others use it in between. What they evict
    /// is noted behind; nobody can admit a sample, since the log is locked.
    fn tidy(&self, log: &mut Log) {
        let mut index = self.index();
        if !log.is_long(index.records()) {
            return;
        }
        let evicted = index.take_evicted();
        let samples = index.samples();
        drop(index);
        let records = samples
            .chunks(log::BATCH)
            .map(|batch| self.index().encoded(batch));
        if !log.rewrite(records) {
            self.index().put_back_evicted(evicted);
        }
    }

    /// A stamp that could not be noted is no more than a reason to say so: it costs a read.
    fn note(&self, noted: io::Result<()>) {
        if let Err(cause) = noted {
            self.writing.close(
                Instant::now(),
                format!("{}: cannot write its index: {cause}", self.label),
            );
        }
    }
}

impl Drop for DiskTier {
    /// What cannot be noted now is found by the next process as it was, or damaged: its checksum tells.
    fn drop(&mut self) {
        let _ = self.note_evictions();
        self.give_back_freed();
    }
}
