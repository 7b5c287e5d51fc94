//! What is read next, by whom and to where: the engine's reads get places and wait in a queue, from which loader threads
//! take them, and the trainer where it would else sleep.

use std::sync::Arc;
use std::time::Instant;

use foresee_core::engine::{Lane, Next, Read};
use foresee_core::ids::{Epoch, TierId};
use foresee_core::model::Origin;
use foresee_core::tally::Event;
use foresee_core::units::Seconds;

use super::{Slot, Staged, State};
use crate::arena::{Block, Filling, Part, Piece};
use crate::job::stores::Stores;
use crate::tier::Shared;

/// Reads that may wait for a thread: enough that no thread waits for the lock, few enough that the order stays fresh.
const QUEUE_MAX: usize = 64;

/// Polls under one hold of the lock; what is in memory needs no thread, and there may be half a million of it.
const POLLS_MAX: usize = 256;

/// How far behind what it wants the trainer reads, while threads are busy with that: they may have lost their core.
const OWN_AHEAD: u64 = 64;

/// So many samples in a row that were in the memory tier: there is nothing to read for now.
const LONG_SINCE_READ: u32 = 1000;

/// A read for a thread to do.
pub(in crate::job) struct Task {
    pub(in crate::job) generation: u64,
    /// Whose thread does it; none where the trainer does.
    pub(in crate::job) lane: Option<Lane>,
    /// Which staged sample it is, counted from the start; none for a tier's own threads.
    pub(in crate::job) place: Option<u64>,
    pub(in crate::job) read: Read,
    /// Where it is read from in truth: the source, where a tier has not what the engine thinks it has.
    pub(in crate::job) way: Way,
    pub(in crate::job) raw: Raw,
    /// Where it goes once decoded, if it is, and for which epoch.
    pub(in crate::job) part: Option<(Part, Epoch)>,
    /// Whether the trainer has tried it, and left it to threads.
    pub(in crate::job) tried: bool,
}

/// How this driver carries a read out. What else an engine can say needs peers, whom a job here has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::job) enum Way {
    /// From a tier of this rank.
    Tier(TierId),
    /// From the source.
    Source,
}

impl Way {
    fn of(read: &Read) -> Self {
        let Read {
            sample,
            bytes: _,
            origin,
            pace: _,
            // Brought in by `bring_in`; nobody else could see it.
            keep: _,
            shared: _,
            hand_over,
        } = *read;
        assert_eq!(
            hand_over, None,
            "sample {sample}: a plan without peers hands nothing over"
        );
        match origin {
            Origin::Tier(tier) => Self::Tier(tier),
            Origin::Source => Self::Source,
            Origin::Peer { rank, .. } | Origin::HostPeer { rank, .. } => {
                unreachable!("sample {sample} from rank {rank}: a plan without peers has none")
            }
        }
    }

    /// As it is counted.
    pub(in crate::job) fn origin(self) -> Origin {
        match self {
            Self::Tier(tier) => Origin::Tier(tier),
            Self::Source => Origin::Source,
        }
    }
}

/// Where a task's bytes go as they are read.
pub(in crate::job) enum Raw {
    /// Here.
    Fill(Filling),
    /// They are in memory already.
    Held(Arc<Block>),
    /// Into a buffer of the thread: they are only decoded.
    Passing,
}

/// Why there is no more to poll for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::job) enum Polled {
    /// There is more: ask again.
    More,
    /// Nothing until something else has happened.
    Enough,
    /// No room for the next sample.
    Full,
    /// The next sample is on its way to its tier.
    Awaits,
}

/// Which thread is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::job) enum Call {
    Nobody,
    /// One, if none is on its way.
    One,
    /// One more.
    Another,
}

impl State {
    /// Whether reading further ahead, or with more threads, cannot help: samples are copied from memory as they are.
    pub(super) fn copies(&self) -> bool {
        self.lanes.are_quick() && self.shelf.is_none()
    }

    /// A read for the trainer to do itself, as it would else wait: of what it wants, or not far behind that.
    /// It does so only where it is a matter of copying: a read that hangs would make it deaf.
    pub(in crate::job) fn take_own_task(&mut self, wanted: u64, stores: &Stores) -> Option<Task> {
        if !self.copies() || self.closed {
            return None;
        }
        if self.queue.is_empty() {
            self.advance(stores);
        }
        let until = self.first + wanted + OWN_AHEAD;
        let is_own = |task: &&Task| {
            let writes_files = task
                .read
                .keep
                .is_some_and(|tier| stores.tier(tier).writes_files());
            !writes_files && !task.tried && task.place.is_some_and(|place| place < until)
        };
        self.queue.front().filter(is_own)?;
        let task = self.queue.pop_front()?;
        self.lanes.begin_own();
        self.staging += 1;
        Some(Task { lane: None, ..task })
    }

    /// A read that the trainer began is left to a thread after all.
    pub(in crate::job) fn put_back(&mut self, task: Task) {
        self.lanes.end(task.lane);
        if task.generation == self.generation {
            self.staging -= 1;
            self.queue.push_front(Task {
                lane: Some(Lane::Staging),
                tried: true,
                ..task
            });
        }
    }

    /// Asks the engine for more, and finds places for it. What is in memory is staged at once.
    pub(in crate::job) fn advance(&mut self, stores: &Stores) -> Polled {
        for _ in 0..POLLS_MAX {
            if self.closed || self.queue.len() >= QUEUE_MAX {
                return Polled::Enough;
            }
            let read = match self.parked.take() {
                Some(read) => read,
                None => match self.poll_staging() {
                    Next::Read(read) => {
                        self.window.note_room();
                        read
                    }
                    Next::Full => {
                        self.window.note_full();
                        return Polled::Full;
                    }
                    Next::Await(awaited) => {
                        self.awaited = Some(awaited);
                        return Polled::Awaits;
                    }
                    Next::Done => return Polled::Enough,
                },
            };
            self.evict(stores);
            let placed = if self.shelf.is_some() {
                self.place_decoded(read, stores)
            } else {
                self.place(read, stores)
            };
            if let Some(polled) = placed {
                return polled;
            }
        }
        Polled::More
    }

    /// The next read for the staging buffer; of the sample that is awaited, if one is.
    fn poll_staging(&mut self) -> Next {
        match self.awaited.take() {
            Some(awaited) => {
                let read = self.desk.resume(&awaited);
                read.map_or(Next::Await(awaited), Next::Read)
            }
            None => self.desk.poll(Lane::Staging),
        }
    }

    /// Finds a place for a sample that is to be staged.
    fn place(&mut self, read: Read, stores: &Stores) -> Option<Polled> {
        let mut way = Way::of(&read);
        if let Way::Tier(tier) = way {
            match stores.tier(tier).share(read.sample) {
                Shared::Block(block) => {
                    self.stage_in_place(&read, block);
                    return None;
                }
                Shared::NotHeld => {
                    self.lost(read.sample, tier);
                    way = Way::Source;
                }
                Shared::Never => {}
            }
        }
        let starving = self.hungry && self.slots.is_empty();
        let Some(filling) = stores.place(&read, starving) else {
            self.parked = Some(read);
            return Some(Polled::Full);
        };
        self.enqueue(read, way, Raw::Fill(filling), None);
        None
    }

    /// Finds a place for a sample that is to be decoded.
    fn place_decoded(&mut self, read: Read, stores: &Stores) -> Option<Polled> {
        let starving = self.hungry && self.slots.is_empty();
        let part = self
            .shelf
            .as_mut()
            .and_then(|shelf| shelf.next(stores, starving));
        if part.is_none() {
            self.parked = Some(read);
            return Some(Polled::Full);
        }
        let mut way = Way::of(&read);
        let mut held = None;
        if let Way::Tier(tier) = way {
            match stores.tier(tier).share(read.sample) {
                Shared::Block(block) => held = Some(block),
                Shared::NotHeld => {
                    self.lost(read.sample, tier);
                    way = Way::Source;
                }
                Shared::Never => {}
            }
        }
        let to_stay = || stores.place_to_stay(&read).map_or(Raw::Passing, Raw::Fill);
        let raw = held.map_or_else(to_stay, Raw::Held);
        self.enqueue(read, way, raw, part);
        None
    }

    fn enqueue(&mut self, read: Read, way: Way, raw: Raw, part: Option<(Part, Epoch)>) {
        let (generation, place) = (self.generation, Some(self.first + self.slots.len() as u64));
        self.since_read = 0;
        self.slots.push_back(Slot::Pending);
        self.queue.push_back(Task {
            generation,
            lane: Some(Lane::Staging),
            place,
            read,
            way,
            raw,
            part,
            tried: false,
        });
    }

    fn stage_in_place(&mut self, read: &Read, block: Arc<Block>) {
        self.desk.complete(read);
        self.tally.record(Event::Read {
            origin: read.origin,
            bytes: read.bytes,
            took: Seconds::ZERO,
        });
        let place = self.first + self.slots.len() as u64;
        let now = Instant::now();
        let (piece, sample, origin) = (Piece::whole(block), read.sample, read.origin);
        let staged = Staged {
            piece,
            sample,
            origin,
            fetched: now,
            ready: now,
        };
        self.slots.push_back(Slot::Ready(staged));
        self.since_read = self.since_read.saturating_add(1);
        self.arrived(place);
    }

    /// Drops what the engine has evicted: nobody reads it any more.
    pub(in crate::job) fn evict(&mut self, stores: &Stores) {
        for gone in self.desk.evicted() {
            stores.tier(gone.tier).evict(gone.sample);
        }
    }

    /// The next read for a thread, if a lane has one and a thread to spare.
    pub(in crate::job) fn take_task(&mut self, stores: &Stores) -> Option<Task> {
        if self.closed {
            return None;
        }
        self.awaits = false;
        if self.lanes.has_room(Lane::Staging) {
            let mut polled = Polled::More;
            while self.queue.is_empty() && polled == Polled::More {
                polled = self.advance(stores);
            }
            if let Some(task) = self.queue.pop_front() {
                self.lanes.begin(Lane::Staging);
                self.staging += 1;
                return Some(task);
            }
            self.awaits = polled == Polled::Awaits;
        }
        self.lanes
            .tiers(self.awaits)
            .into_iter()
            .flatten()
            .find_map(|lane| self.take_tier_task(lane, stores))
    }

    /// The next read of a tier's own threads, for one of them or for a staging thread that helps. One that finds no room
    /// in the tier is left to the staging threads.
    fn take_tier_task(&mut self, lane: Lane, stores: &Stores) -> Option<Task> {
        let doer = if self.lanes.has_room(lane) {
            lane
        } else {
            Lane::Staging
        };
        for _ in 0..POLLS_MAX {
            let read = match self.desk.poll(lane) {
                Next::Read(read) => read,
                Next::Done => {
                    self.lanes.finish(lane);
                    return None;
                }
                Next::Full | Next::Await(_) => return None,
            };
            self.evict(stores);
            if let Some(filling) = stores.place_for_tier(&read) {
                self.lanes.begin(doer);
                let generation = self.generation;
                let way = Way::of(&read);
                return Some(Task {
                    generation,
                    lane: Some(doer),
                    place: None,
                    read,
                    way,
                    raw: Raw::Fill(filling),
                    part: None,
                    tried: false,
                });
            }
            self.complete(&read, false);
        }
        None
    }

    /// Whether threads other than the one that has just taken a task could be of use.
    pub(in crate::job) fn has_more(&self) -> bool {
        (self.awaits || !self.queue.is_empty()) && self.lanes.has_room(Lane::Staging)
    }

    /// Whether a thread could be of use now that the trainer has taken or given back something. Where all comes from
    /// memory, a quarter of the window is free first: waking a thread for each sample takes longer than staging it.
    pub(in crate::job) fn calls(&self) -> Call {
        let from_memory = self.copies() || self.since_read >= LONG_SINCE_READ;
        let (free, capacity) = self.desk.staging_room();
        if !self.lanes.any_has_room() || (from_memory && free.0 < capacity.0 / 4) {
            Call::Nobody
        } else if from_memory {
            Call::One
        } else {
            Call::Another
        }
    }
}
