//! One rank's state machine. It is asked for the next read of a lane (the staging buffer's threads, or a tier's own),
//! told when a read has completed, and asked what the trainer consumes next. It owns the rank's stream, staging space
//! and holdings; the driver owns all time, and answers through [`Outlook`] what a rank can know of the others.
//!
//! No call allocates per access: queues keep their capacity, reads are small values.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::ids::{Epoch, Rank, SampleId, Step, TierId};
use crate::model::{Model, Origin};
use crate::policy::{Brief, Delivery, Plan, RankPlan, Routes};
use crate::stream::{Access, Mark, Stream};
use crate::tier_map::TierMap;
use crate::units::{Bytes, Pace};

/// The staging buffer never runs further ahead than this, however small the samples are: what lies beyond half a
/// million accesses hides no stall, and the queue stays within a few megabytes.
const LOOKAHEAD_MAX: usize = 1 << 19;

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
}

/// The next read of a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Do this.
    Read(Read),
    /// The staging buffer has no room for the next sample until the trainer has consumed more.
    Full,
    /// Nothing is left to read.
    Done,
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

/// An access of the stream that has been looked up.
#[derive(Clone, Copy, Debug)]
struct Upcoming {
    sample: SampleId,
    epoch: Epoch,
    bytes: Bytes,
}

/// Accesses that are looked up together: what is known of samples lies all over memory, and so many looks at once
/// overlap (a third of the time of a large simulation).
const LOOKED_UP: usize = 64;

/// The stream with the sizes of its samples.
struct Ahead {
    stream: Stream,
    catalog: Arc<Catalog>,
    upcoming: Vec<Upcoming>,
    at: usize,
}

impl Ahead {
    fn new(stream: Stream, catalog: Arc<Catalog>) -> Self {
        Self { stream, catalog, upcoming: Vec::with_capacity(LOOKED_UP), at: 0 }
    }

    /// The next access; `None` at the end of the job.
    #[inline]
    fn peek(&mut self, maps: [&TierMap; 2]) -> Option<Upcoming> {
        if self.at == self.upcoming.len() {
            self.look_up(maps);
        }
        self.upcoming.get(self.at).copied()
    }

    #[inline]
    fn advance(&mut self) {
        self.at += 1;
    }

    /// Draws the next accesses, then touches all that is known of them.
    #[cold]
    fn look_up(&mut self, maps: [&TierMap; 2]) {
        self.at = 0;
        self.upcoming.clear();
        let accesses = self.stream.by_ref().take(LOOKED_UP);
        let unsized_yet = |Access { sample, epoch, .. }| Upcoming { sample, epoch, bytes: Bytes(0) };
        self.upcoming.extend(accesses.map(unsized_yet));
        for next in &mut self.upcoming {
            next.bytes = self.catalog.size(next.sample);
        }
        for map in maps {
            for next in &self.upcoming {
                std::hint::black_box(map.get(next.sample));
            }
        }
    }
}

/// One rank.
pub struct Engine {
    model: Arc<Model>,
    delivery: Delivery,
    routes: Routes,
    ahead: Ahead,
    queue: VecDeque<Queued>,
    staging_capacity: Bytes,
    staging_used: Bytes,
    keep: TierMap,
    prefetch: Vec<Vec<SampleId>>,
    cursors: Vec<usize>,
    holdings: TierMap,
}

impl Engine {
    /// The engine of `rank` under a plan, at the start of the job. The rank's part of the plan is moved in.
    pub fn new(brief: &Brief, plan: &mut Plan, model: Arc<Model>, rank: Rank) -> Self {
        let start = Mark { epoch: Epoch(0), step: Step(0) };
        let RankPlan { keep, prefetch } = std::mem::replace(&mut plan.ranks[rank.index()], RankPlan::nothing());
        let (keep, holdings) = match plan.filling {
            Some(_) => (TierMap::nothing(), keep),
            None if keep.is_nothing() => (keep, TierMap::nothing()),
            None => (keep, TierMap::new(brief.catalog.len(), brief.system.tiers.len())),
        };
        Self {
            model,
            delivery: plan.delivery,
            routes: plan.routes,
            ahead: Ahead::new(
                Stream::new(plan.orders.clone(), brief.layout.clone(), rank, start),
                Arc::clone(&brief.catalog),
            ),
            queue: VecDeque::new(),
            staging_capacity: brief.system.tiers[0].capacity,
            staging_used: Bytes(0),
            cursors: vec![0; prefetch.len()],
            keep,
            prefetch,
            holdings,
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
        while let Some(next) = self.ahead.peek([&self.keep, &self.holdings]) {
            if self.queue.len() >= LOOKAHEAD_MAX {
                return Next::Full;
            }
            if self.delivery == Delivery::AheadIfHeld && !self.is_held(next.sample, outlook) {
                self.queue.push_back(Queued::OnDemand(next));
                self.ahead.advance();
                continue;
            }
            // A sample larger than the whole buffer passes through it alone.
            if self.staging_used + next.bytes > self.staging_capacity && self.staging_used > Bytes(0) {
                return Next::Full;
            }
            self.staging_used += next.bytes;
            self.queue.push_back(Queued::Staged(next.bytes));
            self.ahead.advance();
            return Next::Read(self.read(next, outlook));
        }
        Next::Done
    }

    fn poll_tier(&mut self, tier: TierId, outlook: &mut impl Outlook) -> Next {
        let Some(list) = self.prefetch.get(tier.index()) else { return Next::Done };
        let cursor = &mut self.cursors[tier.index()];
        while let Some(&sample) = list.get(*cursor) {
            *cursor += 1;
            if self.holdings.get(sample).is_none() {
                let epoch = self.ahead.peek([&self.keep, &self.holdings]).map_or(Epoch(0), |next| next.epoch);
                let bytes = self.ahead.catalog.size(sample);
                return Next::Read(self.read(Upcoming { sample, epoch, bytes }, outlook));
            }
        }
        Next::Done
    }

    fn is_held(&self, sample: SampleId, outlook: &mut impl Outlook) -> bool {
        self.holdings.get(sample).is_some() || outlook.elsewhere(sample).is_some()
    }

    /// Chooses the origin; a nearer one wins a tie.
    fn read(&self, next: Upcoming, outlook: &mut impl Outlook) -> Read {
        let Upcoming { sample, epoch, bytes } = next;
        let own = self.holdings.get(sample);
        let keep = if own.is_none() { self.keep.get(sample) } else { None };
        let (origin, pace) = self.route(sample, own, epoch, outlook);
        Read { sample, bytes, origin, pace, keep }
    }

    fn route(&self, sample: SampleId, own: Option<TierId>, epoch: Epoch, outlook: &mut impl Outlook) -> (Origin, Pace) {
        let cached = |origin: Origin| self.model.cached(origin).map(|pace| (origin, pace));
        let own = own.and_then(|tier| cached(Origin::Tier(tier)));
        if let Some(own) = own
            && (self.routes == Routes::Own || self.model.is_unbeatable(own.1))
        {
            return own;
        }
        let elsewhere = if self.routes.peers() { outlook.elsewhere(sample).and_then(cached) } else { None };
        let nearest = cheaper(own, elsewhere);
        if let Some(nearest) = nearest
            && self.routes == Routes::Caches
        {
            return nearest;
        }
        let source = (Origin::Source, outlook.source(epoch));
        cheaper(nearest, Some(source)).unwrap_or(source)
    }

    /// A read is complete. Returns the tier that now holds the sample, if it did not before.
    #[inline]
    pub fn complete(&mut self, read: &Read) -> Option<TierId> {
        let tier = read.keep?;
        if self.holdings.get(read.sample).is_some() {
            return None;
        }
        self.holdings.set(read.sample, Some(tier));
        Some(tier)
    }

    /// What the trainer gets next; `None` at the end of the job, or when the sample has not been polled for yet.
    pub fn consume(&mut self, outlook: &mut impl Outlook) -> Option<Consumed> {
        let on_demand = match self.delivery {
            Delivery::Instant => {
                let next = self.ahead.peek([&self.keep, &self.holdings])?;
                self.ahead.advance();
                return Some(Consumed::Instant(next.bytes));
            }
            Delivery::OnDemand => {
                let next = self.ahead.peek([&self.keep, &self.holdings])?;
                self.ahead.advance();
                next
            }
            Delivery::Ahead | Delivery::AheadIfHeld => match self.queue.pop_front()? {
                Queued::Staged(bytes) => return Some(Consumed::Staged(bytes)),
                Queued::OnDemand(next) => next,
            },
        };
        Some(Consumed::OnDemand(self.read(on_demand, outlook)))
    }

    /// Gives back the staging space of a consumed sample.
    #[inline]
    pub fn release(&mut self, bytes: Bytes) {
        self.staging_used -= bytes;
    }

    /// What the rank holds.
    pub fn holdings(&self) -> &TierMap {
        &self.holdings
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
