//! What is read next, by whom and to where: the engine's reads get slots and memory and wait in the course's queue, from
//! which loader threads take them, and the trainer where it would else sleep. What is in memory is staged on the spot.

use std::sync::Arc;
use std::time::Instant;

use foresee_core::engine::{Awaited, Lane, Next, Read};
use foresee_core::homes::Home;
use foresee_core::ids::{Rank, SampleId};
use foresee_core::units::Seconds;

use super::awaiting::Waiting;
use super::course::{Due, Place};
use super::slots::{Decoded, Slot, Staged};
use super::state::{End, State};
use super::stores::Stores;
use super::task::{Doer, Fetch, Raw, Ticket, Way};
use super::wake::Wake;
use crate::arena::{Block, Piece};
use crate::tier::Shared;
use crate::transport::Payload;

/// Polls under one hold of the lock; what is in memory needs no thread, and there may be half a million of it.
const POLLS_MAX: usize = 256;

/// How far behind what it wants the trainer reads, while threads are busy with that: they may have lost their core.
const OWN_AHEAD: u64 = 64;

/// What the window calls now.
fn passed_since(began: Instant) -> Seconds {
    Seconds(began.elapsed().as_secs_f64())
}

/// Why there is no more to poll for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// There is more: ask again.
    More,
    /// Nothing until something else has happened.
    Enough,
    /// No room for the next sample.
    Full,
}

/// Where the bytes of a sample come from.
pub(super) enum Supply {
    /// As the engine says.
    Planned,
    /// From the source after all; and then to its home, if that is said.
    Source(Option<Home>),
    /// A peer has sent them.
    Here(Payload),
}

/// Where a sample is, and where its bytes are to go.
enum Located {
    /// In memory: nothing is read.
    InMemory(Arc<Block>),
    /// To be read so, into this.
    ToRead(Way, Raw),
    /// At its home on another rank, which is to be asked.
    AtPeer(Rank),
    /// There is no room for it.
    NoRoom,
}

/// Requests of a rank that are open at a time, at most. A trainer that waits for a rank that comes late makes the window grow,
/// which would ask all others for a whole staging buffer of small samples: 130,000 requests before the first batch.
const ASKED_MAX: usize = 4096;

/// A read that is about to be queued for its slot.
struct Begun {
    slot: u64,
    read: Read,
    part: Option<Decoded>,
    supply: Supply,
}

/// What is to come from another rank of this host, and lies there, is here already.
fn nearer(read: &Read, supply: Supply, stores: &Stores) -> Supply {
    let Supply::Planned = supply else {
        return supply;
    };
    let Way::Peer { rank, .. } = Way::of(read) else {
        return supply;
    };
    let near = stores.near(rank, read.sample, read.bytes);
    near.map_or(supply, Supply::Here)
}

impl State {
    /// The next read for a thread, if a lane has one and a thread to spare.
    pub(super) fn take_task(&mut self, stores: &Stores, wake: &mut Wake) -> Option<Fetch> {
        // Whoever asks was woken by a change, or has just brought something in.
        self.crew.lanes.reopen();
        // Each turn begins a read, or closes its lane for now.
        while let Some(lane) = self.crew.lanes.next() {
            let fetch = match lane {
                Lane::Staging => self.take_staging_task(stores, wake),
                Lane::Tier(_) => self.take_tier_task(lane, stores, wake),
            };
            if fetch.is_some() {
                return fetch;
            }
        }
        None
    }

    /// The next read for the staging buffer. Its lane is never done: samples that are awaited may come after the last
    /// was polled.
    fn take_staging_task(&mut self, stores: &Stores, wake: &mut Wake) -> Option<Fetch> {
        *wake |= self.place_unplaced(stores);
        let mut polled = Polled::More;
        while !self.course.has_queued() && polled == Polled::More {
            let (now, more) = self.advance(stores);
            polled = now;
            *wake |= more;
        }
        if self.is_held_back() || !self.course.has_queued() {
            self.crew.lanes.wait(Lane::Staging);
            return None;
        }
        self.crew.lanes.begin(Lane::Staging);
        let measured = self.crew.measures_next();
        *wake |= self.calls_more();
        self.course
            .begin_next(Doer::Thread(Lane::Staging), measured)
    }

    /// Whether the read that is next would have to be handed over, while too much is on its way to others, and nobody waits
    /// for it here.
    fn is_held_back(&self) -> bool {
        let Some(fetch) = self.course.first_in_queue() else {
            return false;
        };
        let is_wanted = fetch.ticket.slot.is_some_and(|slot| self.wants.wants(slot));
        fetch.hand_over.is_some() && !is_wanted && self.is_outbox_full()
    }

    /// A read for the trainer to do itself, as it would else wait: of what it wants, or not far behind that.
    /// It does so only where it is a matter of copying: a read that hangs would make it deaf.
    pub(super) fn take_own(&mut self, wanted: u64, stores: &Stores) -> (Option<Fetch>, Wake) {
        let mut wake = Wake::NOBODY;
        if !self.copies() {
            return (None, wake);
        }
        if !self.course.has_queued() {
            let (_, more) = self.advance(stores);
            wake |= more;
        }
        let ahead = if self.is_outbox_full() { 0 } else { OWN_AHEAD };
        let until = self.course.slots.first() + wanted + ahead;
        let is_own = |fetch: &Fetch| {
            let Ticket { slot, read, .. } = &fetch.ticket;
            let writes = read
                .keep
                .is_some_and(|tier| stores.tier(tier).writes_files());
            !writes && !fetch.tried && slot.is_some_and(|slot| slot < until)
        };
        if !self.course.first_in_queue().is_some_and(is_own) {
            return (None, wake);
        }
        self.crew.begin_own();
        let measured = self.crew.measures_next();
        wake |= self.calls_more();
        (self.course.begin_next(Doer::Trainer, measured), wake)
    }

    /// Whether threads other than the one that is about to take a read of the queue could be of use.
    fn calls_more(&self) -> Wake {
        let has_thread = self.crew.lanes.has_thread(Lane::Staging);
        Wake::ANOTHER.when(has_thread && self.course.has_several_queued())
    }

    /// The next read that fills a tier. One that finds no room there is left to those who stage.
    pub(super) fn take_tier_task(
        &mut self,
        lane: Lane,
        stores: &Stores,
        wake: &mut Wake,
    ) -> Option<Fetch> {
        for _ in 0..POLLS_MAX {
            // What fills tiers is ahead of its time, and may have to be handed over.
            if self.course.is_stopped() || self.is_outbox_full() {
                break;
            }
            let read = match self.course.desk.poll(lane) {
                Next::Read(read) => read,
                Next::Done => {
                    self.crew.lanes.finish(lane);
                    return None;
                }
                Next::Full | Next::Await(_) => break,
            };
            self.evict(stores);
            if let Some(filling) = stores.place_for_tier(&read) {
                self.crew.lanes.begin(lane);
                let fetch = Fetch {
                    ticket: self.course.ticket(Doer::Thread(lane), None, read),
                    way: Way::of(&read),
                    raw: Raw::Fill(filling),
                    came: None,
                    hand_over: read.hand_over,
                    part: None,
                    tried: false,
                    measured: self.crew.measures_next(),
                };
                // A tier that takes another thread may have something for it.
                let has_more = self.crew.lanes.next().is_some();
                *wake |= Wake::ANOTHER.when(has_more);
                return Some(fetch);
            }
            *wake |= self.complete(&read, End::NotRead, stores);
        }
        self.crew.lanes.wait(lane);
        None
    }

    /// Asks the engine for more, and finds memory for it. What is in memory is staged at once.
    pub(super) fn advance(&mut self, stores: &Stores) -> (Polled, Wake) {
        let mut wake = self.place_unplaced(stores);
        for _ in 0..POLLS_MAX {
            let has_enough = self.course.is_stopped() || self.course.is_queue_full();
            if has_enough || self.has_asked_enough() || self.fills_first() {
                return (Polled::Enough, wake);
            }
            if !self.course.unplaced.is_empty() {
                // What was awaited comes first.
                return (Polled::Full, wake);
            }
            let due = match self.next_due(stores) {
                Ok(due) => due,
                Err(polled) => return (polled, wake),
            };
            let Some(more) = self.stage(due, stores) else {
                self.course.due = Some(due);
                return (Polled::Full, wake);
            };
            wake |= more;
        }
        (Polled::More, wake)
    }

    /// Whether so much is asked of peers that to ask for more would help nobody.
    fn has_asked_enough(&self) -> bool {
        let dealings = self.dealings.as_ref();
        dealings.is_some_and(|dealings| dealings.asked.open_len() >= ASKED_MAX)
    }

    /// Whether tiers are to be filled before anything is staged, and are not yet.
    fn fills_first(&self) -> bool {
        self.course.desk.fills_first() && !self.crew.lanes.are_tiers_filled()
    }

    /// The next access that has no slot: one that there was no room for, or the engine's next.
    fn next_due(&mut self, stores: &Stores) -> Result<Due, Polled> {
        match self.course.due.take() {
            Some(Due::Await(awaited)) => return Ok(self.await_still(awaited, stores)),
            Some(due @ Due::Read(_)) => return Ok(due),
            None => {}
        }
        let due = match self.course.desk.poll(Lane::Staging) {
            Next::Read(read) => Due::Read(read),
            Next::Await(awaited) => Due::Await(awaited),
            Next::Full => {
                let began = self.began;
                self.window.note_full(|| passed_since(began));
                return Err(Polled::Full);
            }
            Next::Done => return Err(Polled::Enough),
        };
        let began = self.began;
        self.window.note_room(|| passed_since(began));
        self.evict(stores);
        Ok(due)
    }

    /// What was awaited when there was no room for it may have arrived since: who has no slot is not told of that.
    fn await_still(&mut self, awaited: Awaited, stores: &Stores) -> Due {
        let resumed = self.course.desk.resume(&awaited);
        self.evict(stores);
        resumed.map_or(Due::Await(awaited), Due::Read)
    }

    /// Gives an access its slot and its memory; none where there is no room for it.
    fn stage(&mut self, due: Due, stores: &Stores) -> Option<Wake> {
        let starving = self.is_starving_at(self.course.slots.next());
        let part = match &mut self.course.shelf {
            Some(places) => Some(places.next(stores, starving)?),
            None => None,
        };
        match due {
            Due::Read(read) => {
                let supply = nearer(&read, Supply::Planned, stores);
                let located = self.locate(&read, &supply, starving, stores);
                let slot = match located {
                    Located::NoRoom => return None,
                    _ => self.course.slots.push(Slot::Pending),
                };
                if let Located::AtPeer(rank) = located {
                    return Some(self.ask_for(rank, slot, read, part, stores));
                }
                let begun = Begun {
                    slot,
                    read,
                    part,
                    supply,
                };
                Some(self.begin(begun, located, Place::Last))
            }
            Due::Await(awaited) => {
                let slot = self.course.slots.push(Slot::Pending);
                self.course.awaiting.insert(Waiting {
                    slot,
                    awaited,
                    part,
                });
                Some(self.ask_for_awaited(slot, &awaited, stores))
            }
        }
    }

    /// Whether the trainer waits for this very slot, which then gets memory in any case.
    fn is_starving_at(&self, slot: u64) -> bool {
        self.wants.hungry && slot == self.course.slots.first()
    }

    /// Resolves, once, where a sample comes from and where its bytes go.
    fn locate(&mut self, read: &Read, supply: &Supply, starving: bool, stores: &Stores) -> Located {
        let mut way = match supply {
            Supply::Planned | Supply::Here(_) => Way::of(read),
            Supply::Source(_) => Way::Source,
        };
        if let (Way::Peer { rank, .. }, Supply::Planned) = (way, supply) {
            return Located::AtPeer(rank);
        }
        // Where samples are handed to their homes, what is kept here of others' is a copy, which memory of this host need not
        // have: it is no nearer.
        let is_needed = read.keep.is_some() && !self.course.desk.hands_over();
        if let (Way::Peer { .. }, Supply::Here(payload)) = (way, supply)
            && let Some(block) = payload.block()
            && !is_needed
        {
            return Located::InMemory(Arc::clone(block));
        }
        if let Way::Tier(tier) = way {
            match stores.tier(tier).share(read.sample) {
                Shared::Block(block) => return Located::InMemory(block),
                Shared::NotHeld => {
                    self.lost(read.sample, tier);
                    way = Way::Source;
                }
                Shared::Never => {}
            }
        }
        if self.course.shelf.is_some() {
            let to_stay = stores.place_to_stay(read);
            return Located::ToRead(way, to_stay.map_or(Raw::Passing, Raw::Fill));
        }
        match stores.place(read, starving) {
            Some(filling) => Located::ToRead(way, Raw::Fill(filling)),
            None => Located::NoRoom,
        }
    }

    fn begin(&mut self, begun: Begun, located: Located, place: Place) -> Wake {
        let Begun {
            slot,
            read,
            part,
            supply,
        } = begun;
        let (way, raw) = match located {
            Located::AtPeer(rank) => unreachable!("rank {rank} was asked"),
            Located::NoRoom => {
                self.course.unplaced.push_back((slot, read, supply));
                return Wake::NOBODY;
            }
            Located::InMemory(block) if part.is_none() => {
                return self.stage_in_place(slot, &read, block);
            }
            Located::InMemory(block) => {
                let way = Way::of(&read);
                (way.through(block.is_near()), Raw::Held(block))
            }
            Located::ToRead(way, raw) => (way, raw),
        };
        let is_from_peer = matches!(way, Way::Peer { .. });
        let (came, hand_over) = match supply {
            Supply::Planned => (None, read.hand_over),
            Supply::Source(home) => (None, home),
            Supply::Here(payload) => (Some(payload).filter(|_| is_from_peer), read.hand_over),
        };
        let is_near = came.as_ref().is_some_and(Payload::is_near);
        let way = if is_near { way.through(true) } else { way };
        let doer = Doer::Thread(Lane::Staging);
        let fetch = Fetch {
            ticket: self.course.ticket(doer, Some(slot), read),
            way,
            raw,
            came,
            hand_over,
            part,
            tried: false,
            measured: false,
        };
        self.course.enqueue(fetch, place);
        match place {
            // Whoever polls takes it.
            Place::Last => Wake::NOBODY,
            Place::First => Wake::ANOTHER,
        }
    }

    fn stage_in_place(&mut self, slot: u64, read: &Read, block: Arc<Block>) -> Wake {
        self.course.desk.complete(read);
        if let Some(tier) = read.keep {
            // It is used where another rank keeps it.
            self.not_held(read.sample, tier);
        }
        let now = Instant::now();
        let origin = Way::of(read).through(block.is_near()).origin();
        let staged = Staged {
            piece: Piece::whole(block),
            sample: read.sample,
            origin,
            fetched: now,
            ready: now,
        };
        self.ledger.read(read, origin, Seconds::ZERO);
        self.course.slots.fill(slot, Slot::Ready(staged));
        self.course.note_in_place();
        self.wants.arrived(slot)
    }

    /// A sample has arrived in its tier, or will not: the slots that wait for it go on.
    pub(super) fn resume(&mut self, sample: SampleId, stores: &Stores) -> Wake {
        let mut wake = Wake::NOBODY;
        if self.course.awaiting.is_empty() {
            return wake;
        }
        let mut last = None;
        while let Some(waiting) = self.course.awaiting.take(sample, last) {
            last = Some(waiting.slot);
            match self.course.desk.resume(&waiting.awaited) {
                Some(read) => {
                    let Waiting { slot, part, .. } = waiting;
                    self.withdraw(slot);
                    wake |= self.begin_resumed(slot, read, part, Supply::Planned, stores);
                }
                // It is on its way once more.
                None => self.course.awaiting.insert(waiting),
            }
        }
        wake
    }

    pub(super) fn begin_resumed(
        &mut self,
        slot: u64,
        read: Read,
        part: Option<Decoded>,
        supply: Supply,
        stores: &Stores,
    ) -> Wake {
        self.evict(stores);
        let supply = nearer(&read, supply, stores);
        let starving = self.is_starving_at(slot);
        let located = self.locate(&read, &supply, starving, stores);
        if let Located::AtPeer(rank) = located {
            return self.ask_for(rank, slot, read, part, stores);
        }
        let begun = Begun {
            slot,
            read,
            part,
            supply,
        };
        self.begin(begun, located, Place::First)
    }

    /// Finds memory for awaited samples that have come.
    fn place_unplaced(&mut self, stores: &Stores) -> Wake {
        let mut wake = Wake::NOBODY;
        for _ in 0..self.course.unplaced.len() {
            let Some((slot, read, supply)) = self.course.unplaced.pop_front() else {
                break;
            };
            wake |= self.begin_resumed(slot, read, None, supply, stores);
        }
        wake
    }
}
