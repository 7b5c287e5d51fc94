//! The course of the stream: the engine at its desk, the slots that it gave out, and what has to be read to fill them. A job
//! that moves gets another course, whole, so whether something belongs to what the trainer sees is one comparison of
//! numbers. Nothing here reads or waits.

use std::collections::VecDeque;

use foresee_core::engine::{Awaited, Read};
use foresee_core::ids::SampleId;

use super::awaiting::Awaiting;
use super::polling::Supply;
use super::shelf::Shelf;
use super::slots::{Decoded, Slots};
use super::task::{Doer, Fetch, Ticket};
use crate::desk::Desk;

/// Reads that may wait for a thread: enough that no thread waits for the lock, few enough that the order stays fresh.
const QUEUE_MAX: usize = 64;

/// So many samples in a row that were in the memory tier: there is nothing to read for now.
const LONG_SINCE_READ: u32 = 1000;

/// An access that the engine has given out and that has no slot yet.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Read(Read),
    Await(Awaited),
}

/// A sample that the trainer reads itself: on demand, or because it failed.
pub(super) struct OnDemand {
    pub(super) sample: SampleId,
    pub(super) part: Option<Decoded>,
}

/// The course of the stream.
pub(super) struct Course {
    /// Counts the courses of a job.
    number: u64,
    pub(super) desk: Desk,
    pub(super) slots: Slots,
    /// Where decoded samples go.
    pub(super) shelf: Option<Shelf>,
    /// Reads that wait for a thread, in the order of slots.
    queue: VecDeque<Fetch>,
    /// There was no room for it.
    pub(super) due: Option<Due>,
    pub(super) awaiting: Awaiting,
    /// Reads of awaited samples that have come, with their slots: there was no room for them.
    pub(super) unplaced: VecDeque<(u64, Read, Supply)>,
    /// Read on demand, and failed before.
    pub(super) on_demand: Option<OnDemand>,
    /// Reads for slots that are under way.
    reading: u32,
    /// Samples staged in place since one had to be read.
    since_read: u32,
    stopped: bool,
}

impl Course {
    /// The first course of a job.
    pub(super) fn new(desk: Desk, places: Option<Shelf>) -> Self {
        Self {
            number: 0,
            desk,
            slots: Slots::default(),
            shelf: places,
            queue: VecDeque::new(),
            due: None,
            awaiting: Awaiting::default(),
            unplaced: VecDeque::new(),
            on_demand: None,
            reading: 0,
            since_read: 0,
            stopped: false,
        }
    }

    /// The course that follows.
    pub(super) fn followed_by(&self, desk: Desk, places: Option<Shelf>) -> Self {
        Self {
            number: self.number + 1,
            ..Self::new(desk, places)
        }
    }

    /// Nothing more is read for it, and what is under way is of no use any more.
    pub(super) fn stop(&mut self) {
        self.number += 1;
        self.stopped = true;
        self.slots.clear();
        self.queue.clear();
        self.due = None;
        self.awaiting.clear();
        self.unplaced.clear();
        self.on_demand = None;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a read was begun in it.
    pub(super) fn is_of(&self, ticket: &Ticket) -> bool {
        self.number == ticket.course
    }

    /// A read for a slot waits for a thread: behind the others, or first where it was awaited before them.
    pub(super) fn enqueue(&mut self, fetch: Fetch, place: Place) {
        self.since_read = 0;
        match place {
            Place::Last => self.queue.push_back(fetch),
            Place::First => self.queue.push_front(fetch),
        }
    }

    /// A read of this course.
    pub(super) fn ticket(&self, doer: Doer, slot: Option<u64>, read: Read) -> Ticket {
        Ticket {
            course: self.number,
            doer,
            slot,
            read,
        }
    }

    /// A sample was staged without being read.
    pub(super) fn note_in_place(&mut self) {
        self.since_read = self.since_read.saturating_add(1);
    }

    /// Whether there has been nothing to read for long.
    pub(super) fn is_from_memory(&self) -> bool {
        self.since_read >= LONG_SINCE_READ
    }

    /// The read that is next.
    pub(super) fn first_in_queue(&self) -> Option<&Fetch> {
        self.queue.front()
    }

    /// Reads that wait for a thread.
    pub(super) fn queued(&self) -> impl Iterator<Item = &Read> {
        self.queue.iter().map(|fetch| &fetch.ticket.read)
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn has_several_queued(&self) -> bool {
        self.queue.len() > 1
    }

    pub(super) fn is_queue_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    /// Somebody begins the read that is next.
    pub(super) fn begin_next(&mut self, doer: Doer, measured: bool) -> Option<Fetch> {
        let next = self.queue.front_mut()?;
        next.ticket.doer = doer;
        next.measured = measured;
        self.reading += 1;
        self.queue.pop_front()
    }

    /// A read that was begun waits for a thread again.
    pub(super) fn put_back(&mut self, fetch: Fetch) {
        self.reading -= 1;
        self.queue.push_front(fetch);
    }

    /// A read for a slot that was begun is over.
    pub(super) fn end_read(&mut self) {
        self.reading -= 1;
    }

    /// Whether no read for a slot is under way.
    pub(super) fn reads_nothing(&self) -> bool {
        self.reading == 0
    }

    /// Whether neither a thread nor the trainer can go on before something is given back.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.queue.is_empty() && self.reading == 0 && self.due.is_none()
    }

    /// Whether the sample that the trainer stands at has come, and only lacks room.
    pub(super) fn lacks_room_at_head(&self) -> bool {
        let first = self.slots.first();
        self.unplaced.iter().any(|(slot, ..)| *slot == first)
    }
}

/// Where in the queue a read goes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    First,
    Last,
}
