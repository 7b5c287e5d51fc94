//! The papers' reading of the model: steps are synchronous, and within a step the ranks are simulated one after
//! another.
//!
//! - A rank stages as far ahead as the staging buffer has room before the next rank's turn, so the first rank fills
//!   its buffer with the source to itself and the last with everyone else's reads under way. A read starts when the
//!   staging threads are done with the one before and the trainer has freed the space.
//! - Threads of a lane work as one that is `p` times as fast. What a read costs is fixed when it starts: the ranks (or
//!   reads) whose last source read ends later share the source with it.
//! - Each tier's own threads have a clock of their own, which runs up to the start of the step. A sample that the plan
//!   wants kept and that the staging threads have read counts as kept from then on.
//! - `consume(f) = max(avail(f), consume(f-1) + size(f-1)/c)`; the next step starts when the slowest rank is done.

mod copies;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_core::engine::{Consumed, Engine, Lane, Next, Outlook, Read};
use foresee_core::ids::{Epoch, Rank, SampleId, Step, TierId};
use foresee_core::model::{Contention, Hosts, Model, Origin, SourceLoad};
use foresee_core::policy::{Filling, Plan, Policy};
use foresee_core::tally::{Count, Event, Tally};
use foresee_core::units::{Bytes, Pace, Seconds};

use self::copies::Copies;
use crate::job::Job;
use crate::outcome::{Outcome, Times};

/// Runs a policy on a job. `progress` is told now and then how many accesses are done.
pub fn run(job: &Job, policy: &dyn Policy, mut progress: impl FnMut(u64)) -> Outcome {
    progress(0);
    match policy.plan(&job.brief) {
        Ok(plan) => Run::new(job, plan).finish(policy.name(), &mut progress),
        Err(reason) => Outcome::unsupported(policy.name(), reason.0, job.brief.system.tiers.len()),
    }
}

/// A tier's own threads.
struct TierLane {
    tier: TierId,
    clock: Seconds,
    /// The read that ends at `clock`.
    pending: Option<Read>,
    done: bool,
}

/// One rank on virtual time.
struct RankState {
    rank: Rank,
    engine: Engine,
    /// When the staging threads are done with what they were given.
    staging_clock: Seconds,
    /// When the space that the next sample needs was freed.
    space_since: Seconds,
    available: VecDeque<Seconds>,
    freed: VecDeque<(Seconds, Bytes)>,
    lanes: Vec<TierLane>,
    /// When the trainer is done with what it was given.
    ready: Seconds,
    tally: Tally,
}

/// What ranks see of each other.
struct Shared {
    model: Arc<Model>,
    hosts: Hosts,
    copies: Copies,
    /// When the last source read ends: by rank, or by rank and lane where reads are counted.
    busy_until: Vec<Seconds>,
    /// Threads of each lane.
    lane_threads: Vec<u32>,
    lockstep_epochs: u32,
}

impl Shared {
    fn busy_index(&self, rank: Rank, lane: usize) -> usize {
        match self.model.contention() {
            Contention::Ranks => rank.index(),
            Contention::Reads => rank.index() * self.lane_threads.len() + lane,
        }
    }

    /// Everyone who reads from the source at `at`, with a read of `rank` that starts then.
    #[inline]
    fn load(&self, rank: Rank, lane: usize, threads: u32, at: Seconds) -> SourceLoad {
        let mine = self.busy_index(rank, lane);
        match self.model.contention() {
            Contention::Ranks => {
                let busy = self.busy_until.iter().map(|&until| u32::from(until > at)).sum::<u32>();
                let counted = u32::from(self.busy_until[mine] > at);
                SourceLoad { readers: 1 + busy - counted, own: 1 }
            }
            Contention::Reads => {
                let lanes = self.lane_threads.len();
                let mut load = SourceLoad { readers: threads, own: threads };
                for (index, _) in self.busy_until.iter().enumerate().filter(|&(i, &until)| i != mine && until > at) {
                    load.readers += self.lane_threads[index % lanes];
                    if index / lanes == rank.index() {
                        load.own += self.lane_threads[index % lanes];
                    }
                }
                load
            }
        }
    }

    /// All ranks with these threads each at once.
    fn full_load(&self, threads: u32) -> SourceLoad {
        match self.model.contention() {
            Contention::Ranks => SourceLoad { readers: self.hosts.ranks(), own: 1 },
            Contention::Reads => SourceLoad { readers: self.hosts.ranks() * threads, own: threads },
        }
    }

    fn mark_busy(&mut self, rank: Rank, lane: usize, until: Seconds) {
        let index = self.busy_index(rank, lane);
        self.busy_until[index] = self.busy_until[index].max(until);
    }
}

/// What `rank` sees when a read of a lane starts at `at`.
struct Sight<'a> {
    shared: &'a Shared,
    rank: Rank,
    lane: usize,
    threads: u32,
    at: Seconds,
}

impl Outlook for Sight<'_> {
    #[inline]
    fn source(&mut self, epoch: Epoch) -> Pace {
        let load = if epoch.0 < self.shared.lockstep_epochs {
            self.shared.full_load(self.threads)
        } else {
            self.shared.load(self.rank, self.lane, self.threads, self.at)
        };
        self.shared.model.source(load)
    }

    #[inline]
    fn elsewhere(&mut self, sample: SampleId) -> Option<Origin> {
        self.shared.copies.cheapest(sample, self.rank, self.at, &self.shared.model)
    }
}

impl RankState {
    fn sight<'a>(&self, shared: &'a Shared, lane: usize, at: Seconds) -> Sight<'a> {
        Sight { shared, rank: self.rank, lane, threads: shared.lane_threads[lane], at }
    }

    /// Counts a read and keeps the source busy until its bytes are `fetched`.
    fn account(&mut self, shared: &mut Shared, lane: usize, read: &Read, fetched: Seconds) {
        let took = read.pace * read.bytes;
        self.tally.record(Event::Read { origin: read.origin, bytes: read.bytes, took });
        if read.origin == Origin::Source {
            shared.mark_busy(self.rank, lane, fetched);
        }
    }

    /// Lets the tiers' own threads run until they are past `until`.
    fn run_tier_lanes(&mut self, shared: &mut Shared, until: Seconds) {
        for index in 0..self.lanes.len() {
            while !self.lanes[index].done && self.lanes[index].clock <= until {
                self.settle(index);
                let (tier, at) = (self.lanes[index].tier, self.lanes[index].clock);
                let mut sight = self.sight(shared, tier.index(), at);
                let Next::Read(read) = self.engine.poll(Lane::Tier(tier), &mut sight) else {
                    self.lanes[index].done = true;
                    break;
                };
                let threads = shared.model.threads(tier);
                let fetched = at + read.pace * read.bytes / threads;
                let written = fetched + shared.model.tier_write(tier) * read.bytes / threads;
                self.account(shared, tier.index(), &read, fetched);
                if let Some(tier) = read.keep {
                    shared.copies.record(read.sample, tier, self.rank, written);
                }
                self.lanes[index].clock = written;
                self.lanes[index].pending = Some(read);
            }
        }
    }

    fn settle(&mut self, lane: usize) {
        if let Some(read) = self.lanes[lane].pending.take() {
            self.engine.complete(&read);
        }
    }

    /// Stages as far ahead as there is room.
    fn stage(&mut self, shared: &mut Shared) {
        let staging = TierId(0);
        loop {
            let at = self.staging_clock.max(self.space_since);
            for lane in 0..self.lanes.len() {
                if self.lanes[lane].clock <= at {
                    self.settle(lane);
                }
            }
            let mut sight = self.sight(shared, staging.index(), at);
            match self.engine.poll(Lane::Staging, &mut sight) {
                Next::Read(read) => {
                    let threads = shared.model.threads(staging);
                    let fetched = at + read.pace * read.bytes / threads;
                    let staged = fetched + shared.model.stage_write() * read.bytes / threads;
                    self.account(shared, staging.index(), &read, fetched);
                    self.keep(shared, &read, staged);
                    self.staging_clock = staged;
                    self.available.push_back(staged);
                }
                Next::Full => {
                    let Some((since, bytes)) = self.freed.pop_front() else { return };
                    self.engine.release(bytes);
                    self.space_since = self.space_since.max(since);
                }
                Next::Done => return,
            }
        }
    }

    fn keep(&mut self, shared: &mut Shared, read: &Read, since: Seconds) {
        if let Some(tier) = self.engine.complete(read) {
            shared.copies.record(read.sample, tier, self.rank, since);
        }
    }

    /// Gives the trainer its next sample; returns when it came, if it had to come.
    fn consume(&mut self, shared: &mut Shared) -> Option<Seconds> {
        let mut sight = self.sight(shared, 0, self.ready);
        sight.threads = 1;
        let (had, bytes) = match self.engine.consume(&mut sight)? {
            Consumed::Instant(bytes) => {
                self.begin(shared, self.ready, bytes);
                return None;
            }
            Consumed::Staged(bytes) => (self.available.pop_front()?, bytes),
            Consumed::OnDemand(read) => {
                let fetched = self.ready + read.pace * read.bytes;
                let written = fetched + shared.model.stage_write() * read.bytes;
                self.account(shared, 0, &read, fetched);
                self.keep(shared, &read, written);
                self.begin(shared, written, read.bytes);
                return Some(written);
            }
        };
        self.begin(shared, had, bytes);
        self.freed.push_back((self.ready, bytes));
        Some(had)
    }

    /// The trainer begins with a sample that is there since `had`.
    fn begin(&mut self, shared: &Shared, had: Seconds, bytes: Bytes) {
        let start = self.ready.max(had);
        self.tally.record(Event::Stall(start - self.ready));
        self.ready = start + shared.model.compute(bytes);
    }
}

/// All ranks on virtual time.
struct Run<'a> {
    job: &'a Job,
    shared: Shared,
    ranks: Vec<RankState>,
    startup: Seconds,
}

impl<'a> Run<'a> {
    fn new(job: &'a Job, mut plan: Plan) -> Self {
        let brief = &job.brief;
        let copies = if plan.routes.peers() {
            Copies::new(&brief.system, brief.hosts, brief.catalog.len())
        } else {
            Copies::none(brief.hosts)
        };
        let lane_threads: Vec<u32> = brief.system.tiers.iter().map(|tier| tier.threads).collect();
        let busy = match job.model.contention() {
            Contention::Ranks => brief.hosts.ranks() as usize,
            Contention::Reads => brief.hosts.ranks() as usize * lane_threads.len(),
        };
        let mut shared = Shared {
            model: Arc::clone(&job.model),
            hosts: brief.hosts,
            copies,
            busy_until: vec![Seconds::ZERO; busy],
            lane_threads,
            lockstep_epochs: plan.lockstep_epochs,
        };
        let mut ranks: Vec<RankState> = brief.hosts.all().map(|rank| rank_state(job, &mut plan, rank)).collect();
        let startup = plan.filling.as_ref().map_or(Seconds::ZERO, |filling| {
            for state in &ranks {
                for (sample, tier) in state.engine.holdings().iter() {
                    shared.copies.record(sample, tier, state.rank, Seconds::ZERO);
                }
            }
            fill(&shared, filling, &mut ranks)
        });
        for state in &mut ranks {
            state.staging_clock = startup;
        }
        Self { job, shared, ranks, startup }
    }

    fn finish(mut self, policy: &str, progress: &mut impl FnMut(u64)) -> Outcome {
        let layout = &self.job.brief.layout;
        let (mut now, mut first_batch, mut done) = (self.startup, self.startup, 0u64);
        for epoch in 0..self.job.brief.orders.epochs() {
            for step in (0..layout.steps()).map(Step) {
                let mut end = now;
                for state in &mut self.ranks {
                    state.run_tier_lanes(&mut self.shared, now);
                    state.ready = now;
                    let samples = layout.local_len(state.rank, step);
                    for _ in 0..samples {
                        state.stage(&mut self.shared);
                        let had = state.consume(&mut self.shared);
                        if epoch == 0 && step.0 == 0 {
                            first_batch = first_batch.max(had.unwrap_or(first_batch));
                        }
                    }
                    done += u64::from(samples);
                    end = end.max(state.ready);
                }
                now = end;
                progress(done);
            }
        }
        let mut tally = Tally::new(self.job.brief.system.tiers.len());
        self.ranks.iter().for_each(|state| tally.merge(&state.tally));
        let times = Times { total_s: now.0, startup_s: self.startup.0, first_batch_s: first_batch.0 };
        Outcome::ran(policy, self.job.brief.hosts.ranks(), times, &tally)
    }
}

fn rank_state(job: &Job, plan: &mut Plan, rank: Rank) -> RankState {
    let tiers = job.brief.system.tiers.len();
    let lanes =
        (1..tiers).map(|tier| TierLane { tier: TierId(tier as u8), clock: Seconds::ZERO, pending: None, done: false });
    RankState {
        rank,
        engine: Engine::new(&job.brief, plan, Arc::clone(&job.model), rank),
        staging_clock: Seconds::ZERO,
        space_since: Seconds::ZERO,
        available: VecDeque::new(),
        freed: VecDeque::new(),
        lanes: lanes.collect(),
        ready: Seconds::ZERO,
        tally: Tally::new(tiers),
    }
}

/// Fills the tiers before training, tiers side by side; returns when the slowest rank is done. Ranks that bring in
/// the same samples pass them on: the source is read once, in equal parts.
fn fill(shared: &Shared, filling: &Filling, ranks: &mut [RankState]) -> Seconds {
    let world = ranks.len() as u64;
    let mut slowest = Seconds::ZERO;
    for (state, loads) in ranks.iter_mut().zip(&filling.loads) {
        let filled = loads.iter().zip(&shared.lane_threads).filter(|(load, _)| load.reads > 0);
        let threads = filled.map(|(_, &threads)| threads).sum();
        let load = match shared.model.contention() {
            Contention::Ranks if filling.same => SourceLoad { readers: 1, own: 1 },
            Contention::Reads if filling.same => SourceLoad { readers: threads, own: threads },
            _ => shared.full_load(threads),
        };
        for (tier, count) in loads.iter().enumerate().filter(|(_, count)| count.reads > 0) {
            let tier = TierId(tier as u8);
            slowest = slowest.max(shared.model.fill(tier, count.bytes, load));
            let passed_on = |whole: u64| {
                let rank = u64::from(state.rank.0);
                whole * (rank + 1) / world - whole * rank / world
            };
            let (reads, bytes) = if filling.same {
                (passed_on(count.reads), Bytes(passed_on(count.bytes.0)))
            } else {
                (count.reads, count.bytes)
            };
            let took = shared.model.source(load) * bytes;
            state.tally.record_reads(Origin::Source, Count { reads, bytes, took });
            let (reads, bytes) = (count.reads - reads, count.bytes - bytes);
            state.tally.record_reads(Origin::Peer(tier), Count { reads, bytes, took: Seconds::ZERO });
        }
    }
    slowest
}
