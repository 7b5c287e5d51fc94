//! One rank's state machine. It is asked for the next read of a lane (the staging buffer's threads, or a tier's own),
//! told when a read has completed, and asked what the trainer consumes next. It owns the rank's stream, staging space
//! and holdings; the driver owns all time, and answers through [`Outlook`] what a rank can know of the others.
//!
//! # Calling
//!
//! - [`Engine::poll`] whenever a lane has a thread to spare, which [`lanes`] says, and something has changed since it answered
//!   `Full`; after `Await` it can be asked on at once. A polled [`Read`] is ended by exactly one [`Engine::complete`], in any order and by any thread, whether its bytes
//!   came or not; what could not be kept is then [`Engine::lost`].
//! - An [`Awaited`] sample has its place in the order. [`Engine::resume`] is asked after each completion, arrival or loss, as
//!   often as one likes, until it gives the read; [`Engine::give_up`] gives one from the source at once: the sample will not
//!   come, or its deadline passed. Either ends the wait. Nothing behind it depends on that.
//! - [`Engine::consume`] gives what was polled, in order; each staged sample is [`Engine::release`]d once.
//! - [`Engine::evicted`] must be drained after each `poll`, `resume`, `give_up`, `complete` and `consume`: room that an eviction
//!   frees is given out again at once.
//!
//! What is read from where and kept follows the plan's [`Keeping`](crate::policy::Keeping): `keeper` has one variant for
//! each.
//! No call allocates per access: queues keep their capacity, reads are small values.

mod ahead;
mod homes;
mod keeper;
pub mod lanes;
mod pool;
mod reuse;
mod scout;

use std::collections::VecDeque;
use std::sync::Arc;

use self::ahead::{Ahead, Upcoming};
use self::keeper::Keeper;
use self::pool::Space;
pub use self::scout::Scout;
use crate::foresight::When;
use crate::homes::Home;
use crate::ids::{Epoch, SampleId, TierId};
use crate::model::{Model, Origin};
use crate::policy::{Brief, Delivery, Part, Routes, Threads};
use crate::stream::{Mark, Stream};
use crate::tier_map::TierMap;
use crate::units::{Bytes, Pace};

/// The staging buffer never runs further ahead than this, however small the samples are: what lies beyond half a
/// million accesses hides no stall, and the queue stays within a few megabytes.
const LOOKAHEAD_MAX: usize = 1 << 19;

/// The staging buffer among a rank's tiers.
const STAGING: TierId = TierId(0);

/// Which threads a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Those that fill the staging buffer.
    Staging,
    /// Those that fill a tier.
    Tier(TierId),
}

/// What a rank can know of the world outside at the moment it chooses an origin.
pub trait Outlook {
    /// A byte of the source, were the read to start now, in this epoch of the rank's stream.
    fn source(&mut self, epoch: Epoch) -> Pace;
    /// The cheapest copy outside this rank: of a tier it shares, of a peer on its host, or of another peer.
    fn elsewhere(&mut self, sample: SampleId) -> Option<Origin>;
    /// Whether a sample that has its home in this tier of some rank has arrived there.
    fn is_at(&mut self, sample: SampleId, tier: TierId) -> bool;
    /// Whether no rank but this one holds the sample.
    fn is_last_copy(&mut self, sample: SampleId) -> bool;
}

/// A read that is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    /// Which sample.
    pub sample: SampleId,
    /// How much it is.
    pub bytes: Bytes,
    /// Where from.
    pub origin: Origin,
    /// What a byte costs from there.
    pub pace: Pace,
    /// The tier that keeps the sample once it is read.
    pub keep: Option<TierId>,
    /// Whether others may see and fetch what is kept.
    pub shared: bool,
    /// The rank that is to have the sample, and is given it once it is read.
    pub hand_over: Option<Home>,
}

/// The next read of a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Do this.
    Read(Read),
    /// There is no room for the next sample until more has been consumed.
    Full,
    /// The next sample is on its way to a tier. It has its place in the staging buffer, so those behind it can be asked
    /// for; see [`Engine::resume`].
    Await(Awaited),
    /// Nothing is left to read.
    Done,
}

/// An access whose sample is on its way: brought in by other threads of this rank, or by another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    access: Upcoming,
    /// Whether a tier's own threads of this rank have taken it upon them.
    taken: bool,
}

impl Awaited {
    /// Which sample.
    pub fn sample(&self) -> SampleId {
        self.access.sample
    }

    /// How much it is.
    pub fn bytes(&self) -> Bytes {
        self.access.bytes
    }

    /// Where it is awaited from: its home, if it has one. Else other threads of this rank are reading it.
    pub fn home(&self) -> Option<Home> {
        self.access.home
    }
}

/// What the trainer gets next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Consumed {
    /// A staged sample; its space is free again after [`Engine::release`].
    Staged(Bytes),
    /// A sample that has to be read now, while the trainer waits.
    OnDemand(Read),
    /// A sample that needs no read.
    Instant(Bytes),
}

#[derive(Clone, Copy, Debug)]
enum Queued {
    Staged(Bytes),
    OnDemand(Upcoming),
}

/// A copy that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Of which sample.
    pub sample: SampleId,
    /// From which tier.
    pub tier: TierId,
    /// Whether others could see it.
    pub shared: bool,
}

/// One rank.
pub struct Engine {
    model: Arc<Model>,
    delivery: Delivery,
    routes: Routes,
    threads: Threads,
    ahead: Ahead,
    queue: VecDeque<Queued>,
    staging_capacity: Bytes,
    staging_used: Bytes,
    keeper: Keeper,
    holdings: TierMap,
    /// Reads of what is kept that have not completed.
    in_flight: Vec<SampleId>,
    /// Copies of this rank that are being read; none of them goes before.
    in_use: Vec<SampleId>,
    evicted: Vec<Evicted>,
}

impl Engine {
    /// The engine of a rank, from its part of the plan, where the job begins or goes on. What the tiers hold and the plan
    /// has no place for is among the [`Engine::evicted`].
    pub fn new(brief: &Brief, part: Part, model: Arc<Model>) -> Self {
        let start = brief.start;
        let rank = part.rank;
        let stream = Stream::new(part.orders.clone(), brief.layout.clone(), rank, start);
        let homes = part.homes().map(Arc::clone);
        let threads = part.keeping.threads();
        let ahead = Ahead::new(stream, Arc::clone(&brief.catalog), homes);
        let held = part.held;
        let filled = part.filling.is_some();
        let (keeper, holdings) = Keeper::new(brief, part.keeping, rank, &ahead, filled);
        let mut engine = Self {
            model,
            delivery: part.delivery,
            routes: part.routes,
            threads,
            ahead,
            queue: VecDeque::new(),
            staging_capacity: brief.capacity(rank, STAGING),
            staging_used: Bytes(0),
            keeper,
            holdings,
            in_flight: Vec::new(),
            in_use: Vec::new(),
            evicted: Vec::new(),
        };
        engine.adopt(&held, start);
        engine
    }

    /// Takes over what tiers hold from before.
    fn adopt(&mut self, held: &[(SampleId, TierId)], start: Mark) {
        let Mark { epoch, step } = start;
        for &(sample, tier) in held {
            let mut space = Space {
                catalog: self.ahead.catalog(),
                model: &self.model,
                holdings: &mut self.holdings,
                evicted: &mut self.evicted,
                busy: [&self.in_flight, &self.in_use],
                now: When { epoch, step },
            };
            // One copy is enough: of a second one the plan knows nothing.
            let is_held = space.holdings.get(sample).is_some();
            if is_held || !self.keeper.adopt(sample, tier, &mut space) {
                self.evicted.push(Evicted {
                    sample,
                    tier,
                    shared: false,
                });
            }
        }
    }

    /// The next read of a lane, chosen as of now.
    #[inline]
    pub fn poll(&mut self, lane: Lane, outlook: &mut impl Outlook) -> Next {
        match lane {
            Lane::Staging => self.poll_staging(outlook),
            Lane::Tier(tier) => self.poll_tier(tier, outlook),
        }
    }

    fn poll_staging(&mut self, outlook: &mut impl Outlook) -> Next {
        if matches!(self.delivery, Delivery::Instant | Delivery::OnDemand) {
            return Next::Done;
        }
        while let Some(next) = self.ahead.peek([Some(&self.holdings), self.keeper.map()]) {
            if self.queue.len() >= LOOKAHEAD_MAX {
                return Next::Full;
            }
            if self.delivery == Delivery::AheadIfHeld && !self.is_held(next.sample, outlook) {
                self.queue.push_back(Queued::OnDemand(next));
                self.ahead.advance();
                continue;
            }
            let staged = self.model.staged(next.bytes);
            // A sample larger than the whole buffer passes through it alone.
            if self.staging_used + staged > self.staging_capacity && self.staging_used > Bytes(0) {
                return Next::Full;
            }
            let taken = self.keeper.take_over(self.ahead.passed());
            self.staging_used += staged;
            self.queue.push_back(Queued::Staged(next.bytes));
            self.ahead.advance();
            let awaited = Awaited {
                access: next,
                taken,
            };
            return match self.route(&awaited, outlook) {
                Some(route) => Next::Read(self.read(next, route, outlook)),
                None => Next::Await(awaited),
            };
        }
        Next::Done
    }

    /// The read of an awaited sample, once it is there or nobody brings it in any more; none while it is on its way.
    #[inline]
    pub fn resume(&mut self, awaited: &Awaited, outlook: &mut impl Outlook) -> Option<Read> {
        let route = self.route(awaited, outlook)?;
        Some(self.read(awaited.access, route, outlook))
    }

    /// The read of an awaited sample that will not come, or not in time: from the source.
    pub fn give_up(&mut self, awaited: &Awaited, outlook: &mut impl Outlook) -> Read {
        let source = (Origin::Source, outlook.source(awaited.access.epoch));
        self.read(awaited.access, source, outlook)
    }

    fn is_held(&self, sample: SampleId, outlook: &mut impl Outlook) -> bool {
        self.holdings.get(sample).is_some() || outlook.elsewhere(sample).is_some()
    }

    /// Chooses the origin; a nearer one wins a tie. `None`: it is on its way and must be awaited.
    fn route(&self, next: &Awaited, outlook: &mut impl Outlook) -> Option<(Origin, Pace)> {
        let sample = next.access.sample;
        if self.keeper.awaits_reads() && self.in_flight.contains(&sample) {
            return None;
        }
        self.route_from(self.holdings.get(sample), next, outlook)
    }

    /// Chooses the origin, with `own` the tier of this rank that has the sample.
    fn route_from(
        &self,
        own: Option<TierId>,
        next: &Awaited,
        outlook: &mut impl Outlook,
    ) -> Option<(Origin, Pace)> {
        let cached = |origin: Origin| self.model.cached(origin).map(|pace| (origin, pace));
        let own = own.and_then(|tier| cached(Origin::Tier(tier)));
        if let Some(own) = own
            && (self.routes == Routes::Own || self.model.is_unbeatable(own.1))
        {
            return Some(own);
        }
        let nearest = cheaper(own, self.elsewhere(next.access, outlook).and_then(cached));
        if nearest.is_some() && self.routes != Routes::Cheapest {
            return nearest;
        }
        if nearest.is_none() && self.keeper.expects(next.access, next.taken) {
            return None;
        }
        let source = (Origin::Source, outlook.source(next.access.epoch));
        cheaper(nearest, Some(source))
    }

    #[inline]
    fn elsewhere(&self, next: Upcoming, outlook: &mut impl Outlook) -> Option<Origin> {
        if let Some(homes) = self.keeper.homes() {
            let home = next
                .home
                .filter(|home| outlook.is_at(next.sample, home.tier))?;
            return Some(homes.as_seen_here(home));
        }
        let reached = if self.routes.peers() {
            outlook.elsewhere(next.sample)
        } else {
            None
        };
        reached.filter(|origin| self.routes.reaches(*origin))
    }

    /// Makes the read, and settles what is kept.
    fn read(
        &mut self,
        next: Upcoming,
        (origin, pace): (Origin, Pace),
        outlook: &mut impl Outlook,
    ) -> Read {
        let mut read = Read {
            sample: next.sample,
            bytes: next.bytes,
            origin,
            pace,
            keep: None,
            shared: false,
            hand_over: None,
        };
        let mut space = Space {
            catalog: self.ahead.catalog(),
            model: &self.model,
            holdings: &mut self.holdings,
            evicted: &mut self.evicted,
            busy: [&self.in_flight, &self.in_use],
            now: When {
                epoch: next.epoch,
                step: next.step,
            },
        };
        self.keeper.settle(&mut read, next, &mut space, outlook);
        if read.keep.is_some() && self.keeper.awaits_reads() {
            self.in_flight.push(read.sample);
        }
        if self.uses_copy(&read) {
            self.in_use.push(read.sample);
        }
        read
    }

    fn poll_tier(&mut self, tier: TierId, outlook: &mut impl Outlook) -> Next {
        let Some(Upcoming { epoch, step, .. }) = self.ahead.peek([None; 2]) else {
            return Next::Done;
        };
        let staged = self.ahead.passed();
        let mut space = Space {
            catalog: self.ahead.catalog(),
            model: &self.model,
            holdings: &mut self.holdings,
            evicted: &mut self.evicted,
            busy: [&self.in_flight, &self.in_use],
            now: When { epoch, step },
        };
        let next = match self
            .keeper
            .prefetch(tier, staged, epoch, &mut space, outlook)
        {
            Ok(next) => next,
            Err(none) => return none,
        };
        // The sample has its place among the holdings by now, but it is not there yet.
        let routed = if self.keeper.first_hand() {
            None
        } else {
            let access = Awaited {
                access: next.access,
                taken: false,
            };
            self.route_from(None, &access, outlook)
        };
        let (origin, pace) =
            routed.unwrap_or_else(|| (Origin::Source, outlook.source(next.access.epoch)));
        if self.keeper.awaits_reads() {
            self.in_flight.push(next.access.sample);
        }
        let Upcoming { sample, bytes, .. } = next.access;
        Next::Read(Read {
            sample,
            bytes,
            origin,
            pace,
            keep: next.keep,
            shared: next.shared,
            hand_over: next.hand_over,
        })
    }

    /// A read is complete. Returns the tier in which others can now see the sample.
    #[inline]
    pub fn complete(&mut self, read: &Read) -> Option<TierId> {
        if self.uses_copy(read) {
            remove(&mut self.in_use, read.sample);
            if !self.in_use.contains(&read.sample) {
                self.keeper.let_go(
                    read.sample,
                    self.ahead.catalog(),
                    &mut self.holdings,
                    &mut self.evicted,
                );
            }
        } else if read.keep.is_some() || read.hand_over.is_some() {
            // A read that keeps nothing was not on its way to a tier; another one of the same sample may be.
            remove(&mut self.in_flight, read.sample);
        }
        self.keeper.completed(read, &mut self.holdings)
    }

    /// Whether a read needs a copy that may have to go.
    #[inline]
    fn uses_copy(&self, read: &Read) -> bool {
        matches!(read.origin, Origin::Tier(_)) && self.keeper.evicts()
    }

    /// What the trainer gets next; `None` at the end of the job, or when the sample has not been polled for yet.
    pub fn consume(&mut self, outlook: &mut impl Outlook) -> Option<Consumed> {
        let on_demand = match self.delivery {
            Delivery::Instant => {
                let next = self.ahead.peek([None; 2])?;
                self.ahead.advance();
                return Some(Consumed::Instant(next.bytes));
            }
            Delivery::OnDemand => {
                let next = self.ahead.peek([None; 2])?;
                self.ahead.advance();
                next
            }
            Delivery::Ahead | Delivery::AheadIfHeld => match self.queue.pop_front()? {
                Queued::Staged(bytes) => return Some(Consumed::Staged(bytes)),
                Queued::OnDemand(next) => next,
            },
        };
        Some(Consumed::OnDemand(self.read_now(on_demand, outlook)))
    }

    /// The read of a sample that nobody staged. Apart, since it is rare where samples are staged.
    #[inline(never)]
    fn read_now(&mut self, next: Upcoming, outlook: &mut impl Outlook) -> Read {
        let now = Awaited {
            access: next,
            taken: false,
        };
        self.resume(&now, outlook)
            .unwrap_or_else(|| self.give_up(&now, outlook))
    }

    /// Whether the trainer's next sample has been given to the staging threads.
    pub fn next_is_staged(&self) -> bool {
        matches!(self.queue.front(), Some(Queued::Staged(_)))
    }

    /// Gives back the staging space of a consumed sample.
    #[inline]
    pub fn release(&mut self, bytes: Bytes) {
        self.staging_used -= self.model.staged(bytes);
    }

    /// Copies that have gone and were not asked for yet ([`Engine::evicted`]).
    #[inline]
    pub fn going(&self) -> &[Evicted] {
        &self.evicted
    }

    /// Copies that have gone since this was asked last.
    #[inline]
    pub fn evicted(&mut self) -> impl Iterator<Item = Evicted> + '_ {
        self.evicted.drain(..)
    }

    /// A tier does not have a sample that it should: it could not be kept, or is damaged. It is read from the source
    /// when it is needed again, and then kept once more.
    pub fn lost(&mut self, sample: SampleId, tier: TierId) {
        self.keeper
            .lost(sample, tier, self.ahead.catalog(), &mut self.holdings);
    }

    /// A tier has not kept a copy of a sample that lives elsewhere: it is fetched from there when it is needed again.
    pub fn not_copied(&mut self, sample: SampleId, tier: TierId) {
        self.keeper
            .not_copied(sample, tier, self.ahead.catalog(), &mut self.holdings);
    }

    /// How much may be staged from now on; what is staged beyond it stays until it is consumed.
    pub fn limit_staging(&mut self, capacity: Bytes) {
        self.staging_capacity = capacity;
    }

    /// How much more may be staged now, and how much in all.
    pub fn staging_room(&self) -> (Bytes, Bytes) {
        (
            Bytes(self.staging_capacity.0.saturating_sub(self.staging_used.0)),
            self.staging_capacity,
        )
    }

    /// Whether it answers `Full` for want of space, until some is released; else it does until more is consumed.
    #[inline]
    pub fn lacks_space(&self) -> bool {
        self.queue.len() < LOOKAHEAD_MAX
    }

    /// Whether this rank itself reads a sample to keep it, or a copy of it, at present.
    pub fn is_being_read(&self, sample: SampleId) -> bool {
        self.in_flight.contains(&sample)
    }

    /// Whose this rank's threads are; [`lanes::Lanes`] says what each serves next.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// What the rank holds.
    pub fn holdings(&self) -> &TierMap {
        &self.holdings
    }
}

/// Takes out a sample, once.
fn remove(samples: &mut Vec<SampleId>, sample: SampleId) {
    if let Some(place) = samples.iter().position(|other| *other == sample) {
        samples.swap_remove(place);
    }
}

/// The cheaper of two; the first wins a tie.
#[inline]
fn cheaper(a: Option<(Origin, Pace)>, b: Option<(Origin, Pace)>) -> Option<(Origin, Pace)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.1 < a.1 { b } else { a }),
        (one, other) => one.or(other),
    }
}
