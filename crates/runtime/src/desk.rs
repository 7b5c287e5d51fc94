//! The engine with all it is told. Whatever changes the engine passes through here in one order, under the job's lock, so
//! that a run can be written down and done again: the same calls give the same commands.

use std::collections::HashSet;
use std::sync::Arc;

use foresee_core::engine::{Awaited, Consumed, Engine, Evicted, Lane, Next, Outlook, Read, Scout};
use foresee_core::held::Held;
use foresee_core::homes::{Home, Homes};
use foresee_core::ids::{Epoch, Rank, SampleId, TierId};
use foresee_core::model::{Model, Origin, SourceLoad};
use foresee_core::policy::{Holders, Threads};
use foresee_core::threads::Need;
use foresee_core::tier_map::TierMap;
use foresee_core::units::{Bytes, Pace};

use crate::peers::Bringers;

/// What a rank sees of the world.
struct Sight {
    model: Arc<Model>,
    /// Where samples that have their home here are.
    arrived: TierMap,
    /// What is known of the others' homes; none without peers.
    others: Option<Others>,
    /// Reads of the source that were given out and are not complete.
    reading: u32,
    /// Samples that this rank has brought into its tiers: about as many as others have.
    brought: u32,
    /// Whether a tier is filled: that is done from the source.
    is_filling: bool,
}

/// What a rank knows of other ranks' homes.
struct Others {
    rank: Rank,
    homes: Arc<Homes>,
    /// Who is to bring what to its home; nobody where holders do so themselves.
    bringers: Option<Bringers>,
    /// How soon holders bring in what they hold, where it is not awaited.
    turns: Option<Arc<[u32]>>,
    /// Samples that are known to be at their home elsewhere: held there from before, or had from there, and not refused since.
    seen: TierMap,
}

impl Others {
    /// Whether ranks hold samples for good, and bring them in themselves.
    fn are_holders(&self) -> bool {
        self.bringers.is_none()
    }

    fn is_elsewhere(&self, sample: SampleId) -> bool {
        let home = self.homes.get(sample);
        home.is_some_and(|home| home.rank != self.rank)
    }
}

impl Outlook for Sight {
    fn source(&mut self, _: Epoch) -> Pace {
        let readers = self.reading + 1;
        self.model.source(SourceLoad {
            readers,
            own: readers,
        })
    }

    /// The rank that is to hold a sample for good. Whether it has it by now is known where it makes others wait, and else
    /// guessed by the own progress.
    fn elsewhere(&mut self, sample: SampleId) -> Option<Origin> {
        let others = self.others.as_ref().filter(|others| others.are_holders())?;
        let Home { rank, tier } = others.homes.get(sample)?;
        if rank == others.rank || self.is_filling {
            return None;
        }
        let turns = others.turns.as_ref();
        let is_there = turns.is_none_or(|turns| turns[sample.index()] < self.brought);
        is_there.then_some(Origin::Peer { rank, tier })
    }

    fn is_at(&mut self, sample: SampleId, tier: TierId) -> bool {
        match &self.others {
            Some(others) if others.is_elsewhere(sample) => others.seen.get(sample) == Some(tier),
            Some(_) | None => self.arrived.get(sample) == Some(tier),
        }
    }

    fn is_last_copy(&mut self, _: SampleId) -> bool {
        // Nobody else could be served from it.
        false
    }
}

/// One thing that the engine was told or asked, with its answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// The next read of a lane.
    Poll(Lane, Next),
    /// The read of an awaited sample, if it is there.
    Resume(Awaited, Option<Read>),
    /// The read of an awaited sample that will not come.
    GiveUp(Awaited, Read),
    /// A read is complete.
    Complete(Read),
    /// A sample was handed over to its home here.
    Arrive(SampleId, TierId),
    /// Whether a sample is known to be at its home elsewhere.
    See(SampleId, bool),
    /// A tier does not have what it should.
    Lost(SampleId, TierId),
    /// The tier has not kept a copy of the sample.
    NotCopied(SampleId, TierId),
    /// What the trainer gets.
    Consume(Option<Consumed>),
    /// Staging space is free again.
    Release(Bytes),
    /// Staging space is more or less than before.
    Limit(Bytes),
    /// Copies went.
    Evicted(Vec<Evicted>),
}

/// The engine of a rank.
pub struct Desk {
    engine: Engine,
    sight: Sight,
    /// With the staging buffer.
    tiers: usize,
    fills_first: bool,
    record: Option<Vec<Entry>>,
}

impl Desk {
    /// An engine whose tiers hold what `held` says; with `record`, all that happens is written down.
    pub fn new(
        engine: Engine,
        model: Arc<Model>,
        tiers: usize,
        samples: u32,
        held: &[(SampleId, TierId)],
        record: bool,
    ) -> Self {
        let mut arrived = TierMap::new(samples, tiers);
        // Of several copies, one is where the plan wants it, and the others go.
        let going = engine.going().iter();
        let going: HashSet<_> = going.map(|copy| (copy.sample, copy.tier)).collect();
        for copy in held.iter().filter(|copy| !going.contains(copy)) {
            arrived.set(copy.0, Some(copy.1));
        }
        Self {
            engine,
            sight: Sight {
                model,
                arrived,
                others: None,
                reading: 0,
                brought: 0,
                is_filling: false,
            },
            tiers,
            fills_first: false,
            record: record.then(Vec::new),
        }
    }

    /// The same of a rank that has peers, whose homes are these, too, and to which these bring samples; what all hold from
    /// before is there already.
    #[must_use]
    pub fn among(mut self, rank: Rank, homes: Arc<Homes>, bringers: Bringers, held: &Held) -> Self {
        let mut seen = TierMap::new(homes.len(), self.tiers);
        for (sample, holder) in held.iter() {
            if holder.rank != rank && homes.get(sample) == Some(holder) {
                seen.set(sample, Some(holder.tier));
            }
        }
        self.sight.others = Some(Others {
            rank,
            homes,
            bringers: Some(bringers),
            turns: None,
            seen,
        });
        self
    }

    /// The same of a rank whose peers hold samples for good, as all know.
    #[must_use]
    pub fn among_holders(mut self, rank: Rank, holders: &Holders) -> Self {
        self.sight.others = Some(Others {
            rank,
            homes: Arc::clone(&holders.homes),
            bringers: None,
            turns: holders.turns.clone(),
            seen: TierMap::new(holders.homes.len(), self.tiers),
        });
        self
    }

    /// The same of a rank whose tiers are filled before anything is staged.
    #[must_use]
    pub fn filled_first(mut self, fills_first: bool) -> Self {
        self.fills_first = fills_first;
        self
    }

    /// Whether tiers are filled before anything is staged.
    pub fn fills_first(&self) -> bool {
        self.fills_first
    }

    /// Whether requests for what is to come here wait for it.
    pub fn parks(&self) -> bool {
        let others = self.sight.others.as_ref();
        others.is_none_or(|others| others.turns.is_none())
    }

    /// Whether what was read for a home elsewhere is handed to it.
    pub fn hands_over(&self) -> bool {
        let others = self.sight.others.as_ref();
        others.is_some_and(|others| !others.are_holders())
    }

    /// Whose the rank's threads are, by the plan.
    pub fn threads(&self) -> Threads {
        self.engine.threads()
    }

    /// The home of a sample, of a rank that has peers.
    pub fn home(&self, sample: SampleId) -> Option<Home> {
        let homes = &self.sight.others.as_ref()?.homes;
        if sample.0 >= homes.len() {
            return None;
        }
        homes.get(sample)
    }

    /// The other rank that is to bring a sample to its home.
    pub fn bringer(&self, sample: SampleId) -> Option<Rank> {
        let others = self.sight.others.as_ref()?;
        let bringer = others.bringers.as_ref()?.of(sample);
        bringer.filter(|bringer| *bringer != others.rank)
    }

    /// Whether a sample is in the tier here that is its home.
    pub fn is_here(&self, sample: SampleId, tier: TierId) -> bool {
        self.sight.arrived.get(sample) == Some(tier)
    }

    /// Whether this rank itself reads a sample at present, to keep it.
    pub fn is_being_read(&self, sample: SampleId) -> bool {
        self.engine.is_being_read(sample)
    }

    /// A sample was handed over to its home here.
    pub fn arrive(&mut self, sample: SampleId, tier: TierId) {
        self.sight.arrived.set(sample, Some(tier));
        self.note(|| Entry::Arrive(sample, tier));
    }

    /// A sample was had from its home elsewhere, or refused there.
    pub fn see(&mut self, sample: SampleId, is_there: bool) {
        if let Some(others) = &mut self.sight.others {
            let home = others.homes.get(sample).map(|home| home.tier);
            others.seen.set(sample, home.filter(|_| is_there));
        }
        self.note(|| Entry::See(sample, is_there));
    }

    /// What the desk before this one knew to be at its home elsewhere is still there, if that is its home still.
    pub fn remember(&mut self, before: &Self) {
        let (Some(now), Some(then)) = (&self.sight.others, &before.sight.others) else {
            return;
        };
        let seen = then.seen.iter().map(|(sample, _)| sample);
        let seen = seen.filter(|&sample| now.homes.get(sample) == then.homes.get(sample));
        for sample in seen.collect::<Vec<_>>() {
            self.see(sample, true);
        }
    }

    /// Looks ahead from where the staging threads are.
    pub fn scout(&self) -> Scout {
        self.engine.scout()
    }

    /// What the next so many accesses need, from where they would be read now. Changes nothing.
    pub fn need(&mut self, scout: &mut Scout, accesses: usize) -> Need {
        self.engine.need(scout, accesses, &mut self.sight)
    }

    /// The next read of a lane.
    pub fn poll(&mut self, lane: Lane) -> Next {
        self.sight.is_filling = matches!(lane, Lane::Tier(_));
        let next = self.engine.poll(lane, &mut self.sight);
        self.sight.is_filling = false;
        if let Next::Read(read) = &next {
            self.sight.reading += u32::from(read.origin == Origin::Source);
        }
        self.note(|| Entry::Poll(lane, next));
        next
    }

    /// The read of an awaited sample, once it is there.
    pub fn resume(&mut self, awaited: &Awaited) -> Option<Read> {
        let read = self.engine.resume(awaited, &mut self.sight);
        if let Some(read) = &read {
            self.sight.reading += u32::from(read.origin == Origin::Source);
        }
        self.note(|| Entry::Resume(*awaited, read));
        read
    }

    /// The read of an awaited sample that will not come, or not in time: from the source.
    pub fn give_up(&mut self, awaited: &Awaited) -> Read {
        let read = self.engine.give_up(awaited, &mut self.sight);
        self.sight.reading += u32::from(read.origin == Origin::Source);
        self.note(|| Entry::GiveUp(*awaited, read));
        read
    }

    /// A read is complete, whether its bytes came or not.
    pub fn complete(&mut self, read: &Read) {
        self.sight.reading -= u32::from(read.origin == Origin::Source);
        self.engine.complete(read);
        if let Some(tier) = read.keep {
            self.sight.arrived.set(read.sample, Some(tier));
            self.sight.brought = self.sight.brought.saturating_add(1);
        }
        self.note(|| Entry::Complete(*read));
    }

    /// A tier does not have a sample that it should.
    pub fn lost(&mut self, sample: SampleId, tier: TierId) {
        self.engine.lost(sample, tier);
        if self.sight.arrived.get(sample) == Some(tier) {
            self.sight.arrived.set(sample, None);
        }
        self.note(|| Entry::Lost(sample, tier));
    }

    /// A tier has not kept a copy of a sample that lives elsewhere.
    pub fn not_copied(&mut self, sample: SampleId, tier: TierId) {
        self.engine.not_copied(sample, tier);
        self.note(|| Entry::NotCopied(sample, tier));
    }

    /// What the trainer gets next.
    pub fn consume(&mut self) -> Option<Consumed> {
        let consumed = self.engine.consume(&mut self.sight);
        if let Some(Consumed::OnDemand(read)) = &consumed {
            self.sight.reading += u32::from(read.origin == Origin::Source);
        }
        self.note(|| Entry::Consume(consumed));
        consumed
    }

    /// Staging space of a consumed sample is free again.
    pub fn release(&mut self, bytes: Bytes) {
        self.engine.release(bytes);
        self.note(|| Entry::Release(bytes));
    }

    /// How much may be staged from now on.
    pub fn limit_staging(&mut self, bytes: Bytes) {
        self.engine.limit_staging(bytes);
        self.note(|| Entry::Limit(bytes));
    }

    /// How much more may be staged now, and how much in all.
    pub fn staging_room(&self) -> (Bytes, Bytes) {
        self.engine.staging_room()
    }

    /// Whether copies went since they were asked for last.
    #[inline]
    pub fn has_evicted(&self) -> bool {
        !self.engine.going().is_empty()
    }

    /// Copies that went since this was asked last.
    pub fn evicted(&mut self) -> Vec<Evicted> {
        let gone: Vec<Evicted> = self.engine.evicted().collect();
        for copy in &gone {
            if self.sight.arrived.get(copy.sample) == Some(copy.tier) {
                self.sight.arrived.set(copy.sample, None);
            }
        }
        if !gone.is_empty() {
            self.note(|| Entry::Evicted(gone.clone()));
        }
        gone
    }

    /// All that happened, where it is written down.
    pub fn record(&self) -> Option<&[Entry]> {
        self.record.as_deref()
    }

    /// Does what an entry says, and gives the entry with the answer of this engine.
    pub fn replay(&mut self, entry: &Entry) -> Entry {
        match entry {
            Entry::Poll(lane, _) => Entry::Poll(*lane, self.poll(*lane)),
            Entry::Resume(awaited, _) => Entry::Resume(*awaited, self.resume(awaited)),
            Entry::GiveUp(awaited, _) => Entry::GiveUp(*awaited, self.give_up(awaited)),
            Entry::Complete(read) => {
                self.complete(read);
                Entry::Complete(*read)
            }
            Entry::Arrive(sample, tier) => {
                self.arrive(*sample, *tier);
                Entry::Arrive(*sample, *tier)
            }
            Entry::See(sample, is_there) => {
                self.see(*sample, *is_there);
                Entry::See(*sample, *is_there)
            }
            Entry::Lost(sample, tier) => {
                self.lost(*sample, *tier);
                Entry::Lost(*sample, *tier)
            }
            Entry::NotCopied(sample, tier) => {
                self.not_copied(*sample, *tier);
                Entry::NotCopied(*sample, *tier)
            }
            Entry::Consume(_) => Entry::Consume(self.consume()),
            Entry::Release(bytes) => {
                self.release(*bytes);
                Entry::Release(*bytes)
            }
            Entry::Limit(bytes) => {
                self.limit_staging(*bytes);
                Entry::Limit(*bytes)
            }
            Entry::Evicted(_) => Entry::Evicted(self.evicted()),
        }
    }

    fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(record) = &mut self.record {
            record.push(entry());
        }
    }
}
