//! What loader threads do: they are given reads, which are fetched and written, and whoever waited for the sample goes on.
//!
//! A sample that is on its way has its place in the order; those behind it are staged meanwhile. When it arrives it is
//! read before anything that has no place yet. Nothing gets lost on virtual time, so nobody gives up.

use std::cmp::Reverse;

use foresee_core::engine::{Evicted, Lane, Next, Read};
use foresee_core::homes::Home;
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::tally::Event;
use foresee_core::units::{Bytes, Pace, Seconds};

use super::rank::{Staged, Woken};
use super::sight::Sight;
use super::waiting::Waiter;
use super::{Happening, Prediction};

/// Who does a read, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doer {
    /// A loader thread, for the staged sample of this place.
    Staging { place: u64 },
    /// A loader thread, for a tier.
    Tier(TierId),
    /// The trainer itself, on demand.
    Trainer,
}

impl Doer {
    /// The lane that a thread serves by it.
    fn lane(self) -> Option<Lane> {
        match self {
            Self::Staging { .. } => Some(Lane::Staging),
            Self::Tier(tier) => Some(Lane::Tier(tier)),
            Self::Trainer => None,
        }
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) rank: Rank,
    doer: Doer,
    pub(super) read: Read,
    began: Seconds,
    /// When it had its bytes; never, until then.
    fetched: Seconds,
}

impl Prediction<'_> {
    /// Gives a rank's idle threads what there is to do.
    pub(super) fn poll(&mut self, rank: Rank) {
        self.ranks[rank.index()].lanes.reopen();
        self.resume(rank);
        loop {
            let state = &mut self.ranks[rank.index()];
            let Some(lane) = state.lanes.next() else {
                return;
            };
            let mut sight = Sight {
                copies: &self.copies,
                source: &self.source,
                model: &self.model,
                rank,
            };
            match state.engine.poll(lane, &mut sight) {
                Next::Read(read) => {
                    let doer = match lane {
                        Lane::Staging => Doer::Staging {
                            place: state.take_place(),
                        },
                        Lane::Tier(tier) => Doer::Tier(tier),
                    };
                    self.begin(rank, doer, read);
                }
                Next::Await(awaited) => {
                    let place = state.take_place();
                    self.waiting.add(Waiter {
                        rank,
                        place,
                        awaited,
                    });
                }
                Next::Full => state.lanes.wait(lane),
                Next::Done => state.lanes.finish(lane),
            }
        }
    }

    /// Lets idle threads read what was awaited and may be there.
    fn resume(&mut self, rank: Rank) {
        loop {
            let state = &mut self.ranks[rank.index()];
            if !state.lanes.has_thread(Lane::Staging) {
                return;
            }
            let Some(Reverse(Woken { place, awaited })) = state.woken.pop() else {
                return;
            };
            let mut sight = Sight {
                copies: &self.copies,
                source: &self.source,
                model: &self.model,
                rank,
            };
            match state.engine.resume(&awaited, &mut sight) {
                Some(read) => self.begin(rank, Doer::Staging { place }, read),
                None => self.waiting.add(Waiter {
                    rank,
                    place,
                    awaited,
                }),
            }
        }
    }

    /// A read begins.
    pub(super) fn begin(&mut self, rank: Rank, doer: Doer, read: Read) {
        self.forget_evicted(rank);
        let state = &mut self.ranks[rank.index()];
        if let Some(lane) = doer.lane() {
            state.lanes.begin(lane);
        }
        let pace = match read.origin {
            Origin::Tier(tier) => {
                let readers = state.begin_reading(tier);
                Pace(read.pace.0 * self.model.tier_crowding(tier, readers))
            }
            Origin::HostPeer { .. } | Origin::Peer { .. } | Origin::Source => read.pace,
        };
        let task = Task {
            rank,
            doer,
            read,
            began: self.now,
            fetched: Seconds::NEVER,
        };
        let index = self.free_tasks.pop().unwrap_or(self.tasks.len());
        if index == self.tasks.len() {
            self.tasks.push(task);
        } else {
            self.tasks[index] = task;
        }
        if read.origin == Origin::Source {
            self.source.ask(self.now);
            let latency = self.model.fetch(read.origin, pace, Bytes(0));
            self.later(latency, Happening::Answered(index));
        } else {
            let fetch = self.model.fetch(read.origin, pace, read.bytes);
            self.later(fetch, Happening::Fetched(index));
        }
    }

    /// Nobody finds a rank's copies any more that had to go.
    fn forget_evicted(&mut self, rank: Rank) {
        let evicted = self.ranks[rank.index()].engine.evicted();
        for Evicted { sample, tier, .. } in evicted.filter(|copy| copy.shared) {
            self.copies.remove(sample, tier, rank);
        }
    }

    /// A read has its bytes; they are decoded or written, and handed over.
    pub(super) fn fetched(&mut self, index: usize) {
        self.tasks[index].fetched = self.now;
        let Task {
            rank,
            doer,
            read,
            began,
            ..
        } = self.tasks[index];
        let state = &mut self.ranks[rank.index()];
        state.tally.record(Event::Read {
            origin: read.origin,
            bytes: read.bytes,
            took: self.now - began,
        });
        if let Origin::Tier(tier) = read.origin {
            state.end_reading(tier);
        }
        if !matches!(doer, Doer::Tier(_)) {
            state.uses.note(read.origin);
        }
        let write = match doer {
            Doer::Tier(tier) => self.model.tier_write(tier),
            Doer::Staging { .. } => {
                let writers = state.lanes.busy(Lane::Staging);
                self.model.stage_write_among(writers)
            }
            Doer::Trainer => self.model.stage_write(),
        };
        self.hand_over(rank, &read);
        self.later(write * read.bytes, Happening::Written(index));
    }

    /// Sends a sample that `from` has read to its home, if that is elsewhere.
    fn hand_over(&mut self, from: Rank, read: &Read) {
        let Some(Home { rank: to, tier }) = read.hand_over else {
            return;
        };
        let origin = self.job.brief.hosts.as_seen_from(to, from, tier);
        let took = self.model.hand_over(origin, tier, read.bytes);
        self.ranks[to.index()].tally.record(Event::Read {
            origin,
            bytes: read.bytes,
            took,
        });
        let arrived = Happening::Arrived {
            sample: read.sample.0,
            rank: to.0,
            tier: tier.0,
        };
        self.later(took, arrived);
    }

    /// A read is complete.
    pub(super) fn written(&mut self, index: usize) {
        let Task {
            rank,
            doer,
            read,
            began,
            fetched,
        } = self.tasks[index];
        self.free_tasks.push(index);
        let state = &mut self.ranks[rank.index()];
        if let Some(tier) = state.engine.complete(&read) {
            self.copies.record(read.sample, tier, rank, Seconds::ZERO);
        }
        self.forget_evicted(rank);
        let state = &mut self.ranks[rank.index()];
        if let Some(lane) = doer.lane() {
            state.lanes.end(lane);
        }
        match doer {
            Doer::Staging { place } => {
                let origin = read.origin;
                state.staged(place, Staged { origin, fetched });
                self.train(rank);
            }
            Doer::Tier(_) => {}
            Doer::Trainer => {
                state.causes.blame(read.origin, [began, fetched, self.now]);
                self.begin_training(rank, read.bytes, None);
            }
        }
        if read.keep.is_some() || read.hand_over.is_some() {
            self.wake(read.sample);
        }
        self.poll(rank);
        self.go_on_moving(rank);
    }

    /// Whoever waits for a sample asks again.
    pub(super) fn wake(&mut self, sample: SampleId) {
        let mut ranks = std::mem::take(&mut self.awake);
        self.waiting.take(sample, |waiter| {
            let Waiter {
                rank,
                place,
                awaited,
            } = waiter;
            let state = &mut self.ranks[rank.index()];
            state.woken.push(Reverse(Woken { place, awaited }));
            ranks.push(rank);
        });
        for rank in ranks.drain(..) {
            self.resume(rank);
        }
        self.awake = ranks;
    }
}
