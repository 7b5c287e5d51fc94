//! What happened, counted: reads by origin, stalls by cause, and troubles.

use foresee_core::causes::Causes;
use foresee_core::engine::Read;
use foresee_core::model::Origin;
use foresee_core::tally::{Event, Tally};
use foresee_core::units::{Bytes, Seconds};

/// Counts that are not the tally's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) batches: u64,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) retries: u64,
    pub(super) skipped: u64,
    /// Samples that a tier should have had.
    pub(super) lost: u64,
    /// Samples that changed in the source since a tier kept them.
    pub(super) stale: u64,
    /// Samples that could not be kept.
    pub(super) not_kept: u64,
    /// Samples that found no room in the staging buffer because the trainer held on to others.
    pub(super) outside: u64,
}

/// The counts of a job.
pub(super) struct Ledger {
    pub(super) tally: Tally,
    pub(super) causes: Causes,
    pub(super) counts: Counts,
}

impl Ledger {
    /// For so many tiers, the staging buffer among them.
    pub(super) fn new(tiers: usize) -> Self {
        Self {
            tally: Tally::new(tiers),
            causes: Causes::new(tiers),
            counts: Counts::default(),
        }
    }

    /// A sample was read.
    pub(super) fn read(&mut self, read: &Read, origin: Origin, took: Seconds) {
        self.tally.record(Event::Read {
            origin,
            bytes: read.bytes,
            took,
        });
    }

    /// A sample was read from the source that the engine knows nothing of.
    pub(super) fn read_apart(&mut self, bytes: Bytes, took: Seconds) {
        self.tally.record(Event::Read {
            origin: Origin::Source,
            bytes,
            took,
        });
    }

    /// The trainer waited: first until the bytes were there, then until they were decoded.
    pub(super) fn stalled(&mut self, origin: Origin, fetched: Seconds, stall: Seconds) {
        self.causes.blame(origin, [Seconds::ZERO, fetched, stall]);
        self.tally.record(Event::Stall(stall));
    }
}
