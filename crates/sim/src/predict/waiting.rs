//! Who waits for which sample: found by the sample, in the order in which they came, when it arrives. Entries are used
//! again, so there are never more than wait at a time, which staging buffers bound.

use std::collections::BTreeMap;

use foresee_core::engine::Awaited;
use foresee_core::ids::{Rank, SampleId};

/// An access that waits for its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) rank: Rank,
    /// Which staged sample it is, counted from the start of the job.
    pub(super) place: u64,
    pub(super) awaited: Awaited,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    waiter: Waiter,
    /// The next one that waits for the same sample.
    next: Option<usize>,
}

/// The first and the last entry of a sample.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: usize,
    last: usize,
}

/// All that wait.
#[derive(Default)]
pub(super) struct Waiting {
    by_sample: BTreeMap<SampleId, Ends>,
    entries: Vec<Entry>,
    free: Vec<usize>,
}

impl Waiting {
    pub(super) fn add(&mut self, waiter: Waiter) {
        let entry = Entry { waiter, next: None };
        let index = self.free.pop().unwrap_or(self.entries.len());
        if index == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[index] = entry;
        }
        let ends = self
            .by_sample
            .entry(waiter.awaited.sample())
            .or_insert(Ends {
                first: index,
                last: index,
            });
        if ends.last != index {
            self.entries[ends.last].next = Some(index);
            ends.last = index;
        }
    }

    /// Takes out all that wait for a sample, and gives each to `woken`.
    pub(super) fn take(&mut self, sample: SampleId, mut woken: impl FnMut(Waiter)) {
        let mut at = self.by_sample.remove(&sample).map(|ends| ends.first);
        while let Some(index) = at {
            let Entry { waiter, next } = self.entries[index];
            self.free.push(index);
            woken(waiter);
            at = next;
        }
    }
}
