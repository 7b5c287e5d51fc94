//! The thread that makes all calls of MPI once ranks have met: it sends what waits, looks for what came, and hands it on.
//!
//! MPI does nothing while it is not called and cannot be waited for but by calling it again and again. So this thread looks
//! often while something happens, and ever more seldom while nothing does; who sends something on this rank wakes it.
//!
//! A parcel's head is sent so that it has ended only when the other end receives it, and what has not ended is bounded for
//! each rank: one that is slow or stopped holds up what is for it and no more, here and in MPI's own memory. Heads are
//! received from whoever sent one; what comes after a head is received from that rank alone, into memory of its own.
//!
//! When all ends each pair of ranks says good-bye, as the last of what each sends: then nothing is under way between them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::MpiError;
use super::abi::Abi;
use super::calls::{Memory, Pending, Taken, World};
use super::ending::Gate;
use crate::transport::tcp::carrier::Carrier;
use crate::transport::tcp::parcel::Parcel;

/// A parcel's head, and what comes after it.
const HEAD: c_int = 1;
const BODY: c_int = 2;

/// Messages under way to one rank, before more is taken for it.
const SENDS_MAX: usize = 16;

/// Heads that are looked for in a turn.
const TURN_HEADS: usize = 64;

/// A head is never longer: its frames are as many as a turn has, each short.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// How long this thread looks without a pause when something has just happened: what comes next often comes at once. No longer,
/// and never by letting others go first: on busy cores who sleeps is woken in time, who yields waits for a whole slice.
const WATCH: Duration = Duration::from_micros(100);

/// Pauses grow with the time in which nothing happened, between these.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// How much longer than meant the kernel may make a pause.
const TIMER_SLACK_NS: u64 = 1000;

/// What was taken is still sent for so long when all ends, and good-byes are waited for.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// What a request is for.
enum What {
    Sent {
        to: Rank,
    },
    /// The head with this number from that rank.
    Head {
        from: Rank,
        number: u64,
    },
    Body {
        from: Rank,
        number: u64,
        is_wanted: bool,
    },
}

/// What is between this rank and another one.
#[derive(Default)]
struct Lane {
    /// Whether something waits to be sent.
    is_wanted: bool,
    /// Messages under way to it.
    sends: usize,
    /// Heads that came and are not opened: one that came later may be here earlier.
    heads: VecDeque<Option<Vec<u8>>>,
    first_head: u64,
    has_said_bye: bool,
    hearing: Hearing,
}

/// Whether a rank is listened to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Hearing {
    #[default]
    On,
    /// It has said good-bye.
    Ended,
    /// Nothing of it can be relied on.
    Broken,
}

/// The thread's own.
pub(super) struct Courier<A: Abi> {
    carrier: Carrier,
    pending: Pending<A, What>,
    /// What was said while ranks met.
    words: Pending<A, ()>,
    lanes: Vec<Lane>,
    gate: Arc<Gate>,
    /// When something happened last.
    stirred: Instant,
    /// When all is to end.
    stop_by: Option<Instant>,
}

impl<A: Abi> Courier<A> {
    pub(super) fn new(
        world: World<A>,
        words: Pending<A, ()>,
        carrier: Carrier,
        gate: Arc<Gate>,
    ) -> Self {
        let lanes = (0..world.size).map(|_| Lane::default()).collect();
        Self {
            carrier,
            pending: Pending::new(world),
            words,
            lanes,
            gate,
            stirred: Instant::now(),
            stop_by: None,
        }
    }

    /// Works until it is to stop, and a little longer for what is to be sent.
    pub(super) fn run(mut self) {
        self.carrier.begin();
        // Pauses are to be as short as they are meant; where that cannot be had they are longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS));
        let gate = Arc::clone(&self.gate);
        loop {
            let Some(inside) = gate.enter() else {
                break;
            };
            let turn = self.turn();
            let is_over = self.is_over();
            drop(inside);
            match turn {
                Ok(_) if is_over => break,
                Ok(has_stirred) => self.rest(has_stirred),
                Err(error) => {
                    tracing::warn!("peers: {error}; this rank goes on alone");
                    break;
                }
            }
        }
        let others: Vec<Rank> = self.carrier.others().collect();
        for rank in others {
            if self.lane(rank).hearing == Hearing::On {
                self.carrier.lose(rank);
            }
        }
        // Before MPI can be finalised nothing may be left that calls it.
        drop((self.pending, self.words));
        gate.end();
    }

    fn lane(&mut self, rank: Rank) -> &mut Lane {
        &mut self.lanes[rank.index()]
    }

    /// Does all that can be done now; whether there was anything.
    fn turn(&mut self) -> Result<bool, MpiError> {
        let work = self.carrier.work();
        let mut has_stirred = !work.ranks.is_empty();
        for rank in work.ranks {
            self.lane(rank).is_wanted = true;
        }
        if work.stop && self.stop_by.is_none() {
            self.stop_by = Some(Instant::now() + FLUSH_MAX);
        }
        has_stirred |= self.send_all()?;
        has_stirred |= self.take_heads()?;
        has_stirred |= self.settle()?;
        has_stirred |= !self.words.look()?.is_empty();
        if self.stop_by.is_some() {
            self.say_bye();
        }
        Ok(has_stirred)
    }

    /// Sends what waits, to all who take more now.
    fn send_all(&mut self) -> Result<bool, MpiError> {
        let mut has_sent = false;
        for at in 0..self.lanes.len() {
            let to = Rank(at as u32);
            while self.lane(to).is_wanted && self.lane(to).sends < SENDS_MAX {
                if self.lane(to).has_said_bye {
                    self.lane(to).is_wanted = false;
                    break;
                }
                match self.carrier.turn(to) {
                    Some(parcel) => self.send(to, parcel)?,
                    None => self.lane(to).is_wanted = false,
                }
                has_sent = true;
            }
        }
        Ok(has_sent)
    }

    fn send(&mut self, to: Rank, parcel: Parcel) -> Result<(), MpiError> {
        self.lane(to).sends += 1 + parcel.bodies.len();
        let head = Memory::Own(parcel.head);
        self.pending
            .send((to, HEAD), head, true, What::Sent { to })?;
        for body in parcel.bodies {
            let body = Memory::Body(body);
            self.pending
                .send((to, BODY), body, false, What::Sent { to })?;
        }
        Ok(())
    }

    /// Begins to receive heads that are there.
    fn take_heads(&mut self) -> Result<bool, MpiError> {
        let lanes = &mut self.lanes;
        for taken in 0..TURN_HEADS {
            let what = |from: Rank| {
                let lane = &mut lanes[from.index()];
                let number = lane.first_head + lane.heads.len() as u64;
                lane.heads.push_back(None);
                What::Head { from, number }
            };
            match self.pending.take_any(HEAD, HEAD_BYTES_MAX, what)? {
                Taken::One => {}
                Taken::Nothing => return Ok(taken > 0),
                Taken::TooLong(from) => {
                    self.give_up(from, "a head that is too long");
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    /// Nothing more of a rank can be relied on.
    fn give_up(&mut self, rank: Rank, why: &str) {
        tracing::warn!("peers: rank {rank} sent {why}: it is not heard any more");
        self.lane(rank).hearing = Hearing::Broken;
        self.carrier.lose(rank);
    }

    /// Deals with all requests that have ended.
    fn settle(&mut self) -> Result<bool, MpiError> {
        let done = self.pending.look()?;
        let has_ended = !done.is_empty();
        for one in done {
            match one.what {
                What::Sent { to } => self.lane(to).sends -= 1,
                What::Head { from, number } => {
                    let lane = self.lane(from);
                    let at = (number - lane.first_head) as usize;
                    // One that did not come well is no head, and is found to be none.
                    lane.heads[at] = Some(one.received.unwrap_or_else(|| vec![0]));
                    self.open_heads(from)?;
                }
                What::Body {
                    from,
                    number,
                    is_wanted,
                } => {
                    let received = one.received.filter(|_| is_wanted);
                    self.carrier.body(from, number, received);
                    self.deliver(from);
                }
            }
        }
        Ok(has_ended)
    }

    /// Opens heads of a rank in their order, and begins to receive what comes after them.
    fn open_heads(&mut self, from: Rank) -> Result<(), MpiError> {
        while let Some(bytes) = self.lane(from).heads.front_mut().and_then(Option::take) {
            let lane = self.lane(from);
            lane.heads.pop_front();
            lane.first_head += 1;
            if lane.hearing == Hearing::Broken {
                continue;
            }
            let Some(expected) = self.carrier.head(from, &bytes) else {
                self.give_up(from, "garbled bytes");
                continue;
            };
            for one in expected {
                let Some(room) = one.memory else {
                    self.give_up(from, "more than there is memory for");
                    break;
                };
                let what = What::Body {
                    from,
                    number: one.number,
                    is_wanted: !one.is_too_long,
                };
                self.pending.receive((from, BODY), room, what)?;
            }
        }
        self.deliver(from);
        Ok(())
    }

    /// Hands on what is whole of a rank.
    fn deliver(&mut self, from: Rank) {
        if self.carrier.deliver(from) {
            self.lane(from).hearing = Hearing::Ended;
            // What is for it now would never be received.
            self.carrier.lose(from);
            self.lane(from).is_wanted = false;
            self.stop_lane(from);
        }
    }

    /// A rank that has said good-bye is answered, also where this one goes on.
    fn stop_lane(&mut self, rank: Rank) {
        if !self.lane(rank).has_said_bye {
            self.lane(rank).has_said_bye = true;
            let parcel = self.carrier.bye(rank);
            if let Err(error) = self.send(rank, parcel) {
                tracing::debug!("peers: {error}");
            }
        }
    }

    /// Says good-bye to all for whom nothing waits any more, or whose time is over.
    fn say_bye(&mut self) {
        let is_late = self.is_late();
        if self.carrier.owes() && !is_late {
            return;
        }
        let others: Vec<Rank> = self.carrier.others().collect();
        for rank in others {
            if is_late || !self.lane(rank).is_wanted {
                self.stop_lane(rank);
            }
        }
    }

    fn is_late(&self) -> bool {
        self.stop_by.is_some_and(|by| Instant::now() > by)
    }

    /// Whether all has been said, or there is no more time for it.
    fn is_over(&self) -> bool {
        if self.stop_by.is_none() {
            return false;
        }
        let own = self.carrier.rank();
        let others = self.lanes.iter().enumerate();
        let mut others = others.filter(|(rank, _)| *rank != own.index());
        let is_done = |lane: &Lane| lane.has_said_bye && lane.hearing != Hearing::On;
        let is_sent = self.pending.is_empty() && self.words.is_empty();
        self.is_late() || (is_sent && others.all(|(_, lane)| is_done(lane)))
    }

    /// Waits: not at all where something happened, longer the longer nothing did.
    fn rest(&mut self, has_stirred: bool) {
        if has_stirred {
            self.stirred = Instant::now();
            return;
        }
        let idle = self.stirred.elapsed();
        if idle < WATCH {
            std::hint::spin_loop();
            return;
        }
        let pause = (idle / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        self.carrier.wait(pause);
    }
}
