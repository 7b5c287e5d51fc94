//! What a job's threads share, behind one lock: the engine's desk, the staged samples in the order of the stream, reads
//! that wait for a thread (`tasks`), and counts. Nothing here reads or waits; threads take a [`Task`], do it without the lock
//! and bring back what became of it.

mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use foresee_core::causes::Causes;
use foresee_core::engine::{Awaited, Consumed, Read};
use foresee_core::ids::{Epoch, SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::tally::Tally;
use foresee_core::units::{Bytes, Seconds};

pub(super) use self::tasks::{Call, Polled, Raw, Task, Way};
use super::shelf::Shelf;
use super::threads::Lanes;
use super::window::Window;
use crate::arena::{Part, Piece};
use crate::desk::Desk;
use crate::source::ReadError;

/// A sample in the staging buffer.
pub(super) struct Staged {
    pub(super) piece: Piece,
    /// Another sample where the wanted one could not be read.
    pub(super) sample: SampleId,
    pub(super) origin: Origin,
    /// When its bytes were there, and when it was decoded.
    pub(super) fetched: Instant,
    pub(super) ready: Instant,
}

/// Why a sample is not there.
pub(super) struct Failure {
    pub(super) sample: SampleId,
    pub(super) cause: Arc<ReadError>,
    /// Where it would go once decoded.
    pub(super) part: Option<(Part, Epoch)>,
}

/// What the trainer takes: a sample with what the engine counts for it, or what is wrong with it.
pub(super) type Taken = Result<(Staged, Bytes), (SampleId, Arc<ReadError>)>;

/// One access of the stream that the engine has given out.
pub(super) enum Slot {
    Pending,
    Ready(Staged),
    Failed(Failure),
}

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

/// The state of a job that runs.
pub(super) struct State {
    pub(super) desk: Desk,
    /// Counts the times that the job was moved; what was begun before is of no use any more.
    pub(super) generation: u64,
    pub(super) lanes: Lanes,
    pub(super) slots: VecDeque<Slot>,
    /// Place of the first slot.
    first: u64,
    queue: VecDeque<Task>,
    /// Polled, but without room.
    parked: Option<Read>,
    /// The next sample to be staged, while it is on its way to its tier.
    awaited: Option<Awaited>,
    /// Samples staged in place since one had to be read.
    since_read: u32,
    /// Whether the next sample to be staged is on its way to its tier; meanwhile staging threads help to fill tiers.
    awaits: bool,
    /// Reads for the staging buffer that threads are doing.
    staging: u32,
    /// What the trainer has in its hands and the engine counts, by the number of the loan.
    lent: BTreeMap<u64, Bytes>,
    loans: u64,
    /// How many of the trainer's next samples are not there yet.
    missing: u64,
    wanted_until: u64,
    /// Whether the trainer waits: only then does a sample without room get memory of its own. While it trains it may still
    /// give back what it holds.
    pub(super) hungry: bool,
    /// Samples that are being written to a disk, while nobody has the lock.
    pub(super) keeping: u32,
    /// Counts what the trainer should wake up for: all it wants is there, or no more will come before it moves.
    pub(super) events: u64,
    pub(super) tally: Tally,
    pub(super) causes: Causes,
    pub(super) counts: Counts,
    /// How much is staged ahead at most, and whether that was reached since the trainer waited last.
    pub(super) window: Window,
    /// Where decoded samples go.
    pub(super) shelf: Option<Shelf>,
    pub(super) closed: bool,
    /// What a thread of ours failed with.
    pub(super) defect: Option<String>,
}

impl State {
    pub(super) fn new(desk: Desk, lanes: Lanes, tiers: usize, window: Window) -> Self {
        Self {
            desk,
            generation: 0,
            lanes,
            slots: VecDeque::new(),
            first: 0,
            queue: VecDeque::new(),
            parked: None,
            awaited: None,
            since_read: 0,
            awaits: false,
            staging: 0,
            lent: BTreeMap::new(),
            loans: 0,
            missing: 0,
            wanted_until: 0,
            hungry: false,
            keeping: 0,
            events: 0,
            tally: Tally::new(tiers),
            causes: Causes::new(tiers),
            counts: Counts::default(),
            window,
            shelf: None,
            closed: false,
            defect: None,
        }
    }

    /// Goes on elsewhere in the job: whatever was staged is dropped.
    pub(super) fn restart(&mut self, desk: Desk) {
        self.desk = desk;
        self.generation += 1;
        self.slots.clear();
        self.queue.clear();
        self.parked = None;
        self.awaited = None;
        self.lanes.restart();
        (self.staging, self.first, self.missing, self.wanted_until) = (0, 0, 0, 0);
        self.lent.clear();
    }

    /// Tells the engine how much it may stage.
    pub(super) fn stage_ahead(&mut self) {
        self.desk.limit_staging(Bytes(self.window.bytes()));
    }

    /// The trainer asks for so many bytes at a time.
    pub(super) fn serve(&mut self, bytes: u64) {
        if self.window.serve(bytes) {
            self.stage_ahead();
        }
    }

    /// The trainer had to wait.
    pub(super) fn waited(&mut self, stall: Seconds) {
        if self.window.grow(stall, self.copies()) {
            self.stage_ahead();
        }
    }

    /// A staged sample has come, or will not.
    pub(super) fn settle_slot(&mut self, place: u64, slot: Slot) {
        let index = (place - self.first) as usize;
        self.slots[index] = slot;
        self.staging -= 1;
        self.arrived(place);
        if self.staging == 0 && self.queue.is_empty() {
            self.events += 1;
        }
    }

    fn arrived(&mut self, place: u64) {
        if place < self.wanted_until {
            self.missing -= 1;
            self.events += u64::from(self.missing == 0);
        }
    }

    /// A read is complete; `kept` tells whether its tier has it now.
    pub(super) fn complete(&mut self, read: &Read, kept: bool) {
        self.desk.complete(read);
        // Who waited for it to arrive in its tier can go on.
        self.events += u64::from(read.keep.is_some() && self.staging == 0);
        if let Some(tier) = read.keep.filter(|_| !kept) {
            self.desk.lost(read.sample, tier);
            self.counts.not_kept += 1;
        }
    }

    /// A tier does not have a sample that it should.
    pub(super) fn lost(&mut self, sample: SampleId, tier: TierId) {
        self.desk.lost(sample, tier);
        self.counts.lost += 1;
    }

    /// How far the trainer can be served: says what it waits for, so that it is woken when the last of it is there.
    pub(super) fn want(&mut self, samples: u64) {
        self.wanted_until = self.first + samples;
        let pending = |slot: &&Slot| matches!(slot, Slot::Pending);
        let there = self.slots.iter().take(samples as usize);
        let unpolled = samples.saturating_sub(self.slots.len() as u64);
        self.missing = there.filter(pending).count() as u64 + unpolled;
    }

    /// Whether so many of the next samples are there.
    pub(super) fn has_staged(&self, samples: usize) -> bool {
        self.slots.len() >= samples
            && self
                .slots
                .iter()
                .take(samples)
                .all(|slot| matches!(slot, Slot::Ready(_)))
    }

    /// The trainer takes the next sample, if it is there, with what the engine counts for it. A failed one stays.
    pub(super) fn take(&mut self) -> Option<Taken> {
        match self.slots.front()? {
            Slot::Pending => return None,
            Slot::Failed(failure) => {
                return Some(Err((failure.sample, Arc::clone(&failure.cause))));
            }
            Slot::Ready(_) => {}
        }
        let Some(Slot::Ready(staged)) = self.slots.pop_front() else {
            return None;
        };
        self.first += 1;
        let Some(Consumed::Staged(counted)) = self.desk.consume() else {
            unreachable!("what was staged is consumed")
        };
        Some(Ok((staged, counted)))
    }

    /// The sample that failed, to be tried again, with its place in the batch.
    pub(super) fn failed(&mut self) -> Option<(SampleId, Option<(Part, Epoch)>)> {
        match self.slots.front_mut()? {
            Slot::Failed(failure) => Some((failure.sample, failure.part.take())),
            Slot::Pending | Slot::Ready(_) => None,
        }
    }

    /// A sample that is read on demand counts as failed until it has been read.
    pub(super) fn hold_failed(&mut self, sample: SampleId, part: Option<(Part, Epoch)>) {
        self.slots.push_front(Slot::Failed(Failure {
            sample,
            cause: Arc::new(ReadError::Empty),
            part,
        }));
    }

    /// It failed again.
    pub(super) fn still_failed(&mut self, part: Option<(Part, Epoch)>) {
        if let Some(Slot::Failed(failure)) = self.slots.front_mut() {
            failure.part = part;
        }
    }

    /// The sample that failed has been read after all.
    pub(super) fn mend(&mut self, staged: Staged) {
        if let Some(slot @ Slot::Failed(_)) = self.slots.front_mut() {
            *slot = Slot::Ready(staged);
        }
    }

    /// A sample is in the trainer's hands.
    pub(super) fn lend(&mut self, bytes: Bytes) -> u64 {
        self.loans += 1;
        self.lent.insert(self.loans, bytes);
        self.loans
    }

    /// The trainer is done with a sample.
    pub(super) fn release(&mut self, loan: u64) {
        if let Some(bytes) = self.lent.remove(&loan) {
            self.desk.release(bytes);
        }
    }

    /// Whether the trainer waits for a sample that will not come before it gives something back; then the engine is told
    /// that it did.
    pub(super) fn forgive_if_stuck(&mut self) -> bool {
        let idle = self.slots.is_empty()
            && self.queue.is_empty()
            && self.staging == 0
            && self.parked.is_none();
        if !idle || self.lent.is_empty() {
            return false;
        }
        for bytes in std::mem::take(&mut self.lent).into_values() {
            self.desk.release(bytes);
        }
        true
    }

    /// Nothing more is done.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.slots.clear();
        self.queue.clear();
        self.parked = None;
        self.awaited = None;
        self.generation += 1;
    }
}
