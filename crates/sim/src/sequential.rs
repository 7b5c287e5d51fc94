//! The papers' reading of the model: steps are synchronous, and within a step the ranks are simulated one after
//! another.
//!
//! - A rank stages as far ahead as the staging buffer has room before the next rank's turn, so the first rank fills
//!   its buffer with the source to itself and the last with everyone else's reads under way. A read starts when the
//!   staging threads are done with the one before and the trainer has freed the space.
//! - Threads of a lane work as one that is `p` times as fast. What a read costs is fixed when it starts: the ranks (or
//!   reads) whose last source read ends later share the source with it.
//! - Where threads belong to the rank, all of them stage, and tiers are filled while there is nothing to stage.
//! - Each tier's own threads have a clock of their own, which runs up to the start of the step. A sample that the plan
//!   wants kept and that the staging threads have read counts as kept from then on.
//! - `consume(f) = max(avail(f), consume(f-1) + size(f-1)/c)`; the next step starts when the slowest rank is done.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_core::engine::{Awaited, Consumed, Engine, Evicted, Lane, Next, Outlook, Read};
use foresee_core::ids::{Epoch, Rank, SampleId, Step, TierId};
use foresee_core::model::{Hosts, Model, Origin, SourceLoad};
use foresee_core::policy::{Part, Policy, Threads};
use foresee_core::steps::{Steps, Uses};
use foresee_core::tally::{Event, Tally};
use foresee_core::units::{Bytes, Pace, Seconds};

use crate::copies::Copies;
use crate::fill;
use crate::job::Job;
use crate::outcome::{Outcome, Ran, Times};

/// Runs a policy on a job. `progress` is told now and then how many accesses are done.
pub fn run(job: &Job, policy: &dyn Policy, mut progress: impl FnMut(u64)) -> Outcome {
    progress(0);
    match policy.plan(&job.brief) {
        Ok(parts) => Run::new(job, parts).finish(policy.name(), &mut progress),
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
    /// How many threads stage.
    stagers: f64,
    /// What they write a byte in, while all of them do.
    stage_write: Pace,
    /// Whether the engine was left without space for the next sample.
    full: bool,
    /// When the staging threads are done with what they were given.
    staging_clock: Seconds,
    /// When the space that the next sample needs was freed.
    space_since: Seconds,
    available: VecDeque<Seconds>,
    /// What the staging threads stand at. They work as one, which reads in order, so nothing behind it could be read
    /// meanwhile: `avail(f)` is a sum over all reads before f.
    awaited: Option<Awaited>,
    freed: VecDeque<(Seconds, Bytes)>,
    lanes: Vec<TierLane>,
    /// How many of them have a read under way.
    pending: usize,
    /// When the trainer is done with what it was given.
    ready: Seconds,
    /// How long it trained in this step.
    computed: Seconds,
    tally: Tally,
    uses: Uses,
}

/// What ranks see of each other.
struct Shared {
    model: Arc<Model>,
    hosts: Hosts,
    copies: Copies,
    /// When the last source read of each rank ends.
    busy_until: Vec<Seconds>,
    lockstep_epochs: u32,
    /// What ranks were handed, or filled before training.
    handed: Tally,
}

impl Shared {
    /// Everyone who reads from the source at `at`, with a read of `rank` that starts then.
    #[inline]
    fn load(&self, rank: Rank, at: Seconds) -> SourceLoad {
        let busy = self
            .busy_until
            .iter()
            .map(|&until| u32::from(until > at))
            .sum::<u32>();
        let counted = u32::from(self.busy_until[rank.index()] > at);
        SourceLoad {
            readers: 1 + busy - counted,
            own: 1,
        }
    }

    /// All ranks at once.
    fn full_load(&self) -> SourceLoad {
        SourceLoad {
            readers: self.hosts.ranks(),
            own: 1,
        }
    }

    /// Gives a sample that is read at `fetched` to its home.
    fn hand_over(&mut self, read: &Read, from: Rank, fetched: Seconds) {
        let Some(home) = read.hand_over else { return };
        let origin = self.hosts.as_seen_from(home.rank, from, home.tier);
        let took = self.model.hand_over(origin, home.tier, read.bytes);
        self.copies
            .record(read.sample, home.tier, home.rank, fetched + took);
        self.handed.record(Event::Read {
            origin,
            bytes: read.bytes,
            took,
        });
    }

    fn mark_busy(&mut self, rank: Rank, until: Seconds) {
        let busy = &mut self.busy_until[rank.index()];
        *busy = busy.max(until);
    }
}

/// What `rank` sees when a read of a lane starts at `at`.
struct Sight<'a> {
    shared: &'a Shared,
    rank: Rank,
    at: Seconds,
}

impl Outlook for Sight<'_> {
    #[inline]
    fn source(&mut self, epoch: Epoch) -> Pace {
        let load = if epoch.0 < self.shared.lockstep_epochs {
            self.shared.full_load()
        } else {
            self.shared.load(self.rank, self.at)
        };
        self.shared.model.source(load)
    }

    #[inline]
    fn elsewhere(&mut self, sample: SampleId) -> Option<Origin> {
        self.shared
            .copies
            .cheapest(sample, self.rank, self.at, &self.shared.model)
    }

    #[inline]
    fn is_at(&mut self, sample: SampleId, tier: TierId) -> bool {
        self.shared.copies.is_at(sample, tier, self.at)
    }

    fn is_last_copy(&mut self, sample: SampleId) -> bool {
        self.shared.copies.count(sample) <= 1
    }
}

impl RankState {
    fn sight<'a>(&self, shared: &'a Shared, at: Seconds) -> Sight<'a> {
        Sight {
            shared,
            rank: self.rank,
            at,
        }
    }

    /// Counts a read that took a thread so long and keeps the source busy until its bytes are `fetched`.
    #[inline]
    fn account(&mut self, shared: &mut Shared, read: &Read, took: Seconds, fetched: Seconds) {
        self.tally.record(Event::Read {
            origin: read.origin,
            bytes: read.bytes,
            took,
        });
        if read.origin == Origin::Source {
            shared.mark_busy(self.rank, fetched);
        }
    }

    /// Lets the tiers' own threads run until they are past `until`.
    fn run_tier_lanes(&mut self, shared: &mut Shared, until: Seconds) {
        for index in 0..self.lanes.len() {
            if self.engine.threads() == Threads::OfRank {
                // They were staging until then.
                let lane = &mut self.lanes[index];
                lane.clock = lane.clock.max(self.staging_clock);
            }
            while !self.lanes[index].done && self.lanes[index].clock <= until {
                self.settle(index);
                let tier = self.lanes[index].tier;
                let at = self.lanes[index].clock;
                let mut sight = self.sight(shared, at);
                let read = match self.engine.poll(Lane::Tier(tier), &mut sight) {
                    Next::Read(read) => read,
                    Next::Full | Next::Await(_) => {
                        self.lanes[index].clock = until;
                        break;
                    }
                    Next::Done => {
                        self.lanes[index].done = true;
                        break;
                    }
                };
                self.forget_evicted(shared);
                let threads = shared.model.threads(tier);
                let took = shared.model.fetch(read.origin, read.pace, read.bytes);
                let fetched = at + took / threads;
                let written = fetched + shared.model.tier_write(tier) * read.bytes / threads;
                self.account(shared, &read, took, fetched);
                shared.hand_over(&read, self.rank, fetched);
                if let Some(tier) = read.keep.filter(|_| read.shared) {
                    shared.copies.record(read.sample, tier, self.rank, written);
                }
                self.lanes[index].clock = written;
                self.lanes[index].pending = Some(read);
                self.pending += 1;
            }
        }
    }

    fn forget_evicted(&mut self, shared: &mut Shared) {
        for Evicted { sample, tier, .. } in self.engine.evicted().filter(|copy| copy.shared) {
            shared.copies.remove(sample, tier, self.rank);
        }
    }

    /// When a sample that is on its way arrives, as far as that is known.
    fn arrival(&self, shared: &Shared, sample: SampleId) -> Seconds {
        let own = self
            .lanes
            .iter()
            .find(|lane| lane.pending.is_some_and(|read| read.sample == sample));
        own.map_or_else(|| shared.copies.since(sample), |lane| lane.clock)
    }

    fn settle(&mut self, lane: usize) {
        if let Some(read) = self.lanes[lane].pending.take() {
            self.pending -= 1;
            self.engine.complete(&read);
        }
    }

    /// Stages as far ahead as there is room.
    fn stage(&mut self, shared: &mut Shared) {
        loop {
            let at = self.staging_clock.max(self.space_since);
            if self.pending > 0 {
                for lane in 0..self.lanes.len() {
                    if self.lanes[lane].clock <= at {
                        self.settle(lane);
                    }
                }
            }
            // Asked again before space is freed, the engine would answer the same.
            if self.full {
                if !self.free_space() {
                    return;
                }
                self.full = false;
                continue;
            }
            match self.next_staged(shared, at) {
                Next::Read(read) => self.staged(shared, &read, at),
                Next::Full => {
                    if !self.free_space() {
                        self.full = self.engine.lacks_space();
                        return;
                    }
                }
                Next::Await(awaited) => {
                    self.awaited = Some(awaited);
                    let arrival = self.arrival(shared, awaited.sample());
                    if arrival == Seconds::NEVER {
                        return;
                    }
                    self.space_since = self.space_since.max(arrival);
                }
                Next::Done => return,
            }
        }
    }

    /// What the staging threads read next: what they stand at, or what follows.
    #[inline]
    fn next_staged(&mut self, shared: &Shared, at: Seconds) -> Next {
        let mut sight = self.sight(shared, at);
        let Some(awaited) = &self.awaited else {
            return self.engine.poll(Lane::Staging, &mut sight);
        };
        match self.engine.resume(awaited, &mut sight) {
            Some(read) => {
                self.awaited = None;
                Next::Read(read)
            }
            None => Next::Await(*awaited),
        }
    }

    /// Stages a sample that is read from `at` on.
    #[inline]
    fn staged(&mut self, shared: &mut Shared, read: &Read, at: Seconds) {
        let took = shared.model.fetch(read.origin, read.pace, read.bytes);
        let fetched = at + took / self.stagers;
        let staged = fetched + self.stage_write * read.bytes / self.stagers;
        self.account(shared, read, took, fetched);
        self.uses.note(read.origin);
        shared.hand_over(read, self.rank, fetched);
        self.keep(shared, read, staged);
        self.staging_clock = staged;
        self.available.push_back(staged);
    }

    /// Gives the space of a sample back that was consumed; whether there was one.
    #[inline]
    fn free_space(&mut self) -> bool {
        let Some((since, bytes)) = self.freed.pop_front() else {
            return false;
        };
        self.engine.release(bytes);
        self.space_since = self.space_since.max(since);
        true
    }

    fn keep(&mut self, shared: &mut Shared, read: &Read, since: Seconds) {
        self.forget_evicted(shared);
        if let Some(tier) = self.engine.complete(read) {
            shared.copies.record(read.sample, tier, self.rank, since);
        }
    }

    /// Gives the trainer its next sample; returns when it came, if it had to come.
    fn consume(&mut self, shared: &mut Shared) -> Option<Seconds> {
        let mut sight = self.sight(shared, self.ready);
        let consumed = self
            .engine
            .consume(&mut sight)
            .expect("what a step consumes has been staged, or is read now");
        let (had, bytes) = match consumed {
            Consumed::Instant(bytes) => {
                self.begin(shared, self.ready, bytes);
                return None;
            }
            Consumed::Staged(bytes) => (self.available.pop_front()?, bytes),
            Consumed::OnDemand(read) => return Some(self.read_now(shared, &read)),
        };
        self.begin(shared, had, bytes);
        self.freed.push_back((self.ready, bytes));
        Some(had)
    }

    /// The trainer reads a sample itself; returns when it has it. Apart, since it is rare where samples are staged.
    #[inline(never)]
    fn read_now(&mut self, shared: &mut Shared, read: &Read) -> Seconds {
        let took = shared.model.fetch(read.origin, read.pace, read.bytes);
        let fetched = self.ready + took;
        let written = fetched + shared.model.stage_write() * read.bytes;
        self.account(shared, read, took, fetched);
        self.uses.note(read.origin);
        self.keep(shared, read, written);
        self.begin(shared, written, read.bytes);
        written
    }

    /// The trainer begins with a sample that is there since `had`.
    fn begin(&mut self, shared: &Shared, had: Seconds, bytes: Bytes) {
        let takes = shared.model.compute(bytes);
        self.computed += takes;
        self.ready = self.ready.max(had) + takes;
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
    fn new(job: &'a Job, parts: Vec<Part>) -> Self {
        let brief = &job.brief;
        let copies = Copies::for_plan(brief, &parts);
        let mut shared = Shared {
            model: Arc::clone(&job.model),
            hosts: brief.hosts.clone(),
            copies,
            busy_until: vec![Seconds::ZERO; brief.hosts.ranks() as usize],
            lockstep_epochs: parts.first().map_or(0, |part| part.lockstep_epochs),
            handed: Tally::new(brief.system.tiers.len()),
        };
        let fillings = fill::of(&parts);
        let mut ranks: Vec<RankState> = parts
            .into_iter()
            .map(|part| rank_state(job, part))
            .collect();
        let mut startup = Seconds::ZERO;
        if !fillings.is_empty() {
            (startup, shared.handed) = fill::fill(job, &fillings);
            for state in &ranks {
                shared
                    .copies
                    .record_all(state.engine.holdings(), state.rank);
            }
        }
        for state in &mut ranks {
            state.staging_clock = startup;
        }
        Self {
            job,
            shared,
            ranks,
            startup,
        }
    }

    fn finish(mut self, policy: &str, progress: &mut impl FnMut(u64)) -> Outcome {
        let layout = &self.job.brief.layout;
        let mut now = self.startup;
        let mut first_batch = self.startup;
        let mut done = 0u64;
        let mut epoch_ends_s = Vec::new();
        let mut steps = Steps::default();
        let mut waited = Vec::new();
        for epoch in 0..self.job.brief.orders.epochs() {
            for step in (0..layout.steps()).map(Step) {
                let mut end = now;
                for state in &mut self.ranks {
                    state.run_tier_lanes(&mut self.shared, now);
                    state.ready = now;
                    state.computed = Seconds::ZERO;
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
                let slowest = self
                    .ranks
                    .iter()
                    .fold(Seconds::ZERO, |most, state| most.max(state.computed));
                for state in &mut self.ranks {
                    state.tally.record(Event::Stall(end - now - slowest));
                }
                let computed = self.ranks.iter().map(|state| state.computed.0);
                let train = Seconds(computed.fold(f64::INFINITY, f64::min));
                let waits = |state: &RankState| state.ready - now - state.computed;
                waited.clear();
                waited.extend(self.ranks.iter().map(waits));
                steps.note(end - now, train, &waited);
                now = end;
                progress(done);
            }
            epoch_ends_s.push(now.0);
        }
        let mut tally = Tally::new(self.job.brief.system.tiers.len());
        tally.merge(&self.shared.handed);
        self.ranks
            .iter()
            .for_each(|state| tally.merge(&state.tally));
        let times = Times {
            total_s: now.0,
            startup_s: self.startup.0,
            first_batch_s: first_batch.0,
            epoch_ends_s,
        };
        let mut uses = Uses::default();
        self.ranks.iter().for_each(|state| uses.merge(state.uses));
        let ran = Ran {
            ranks: self.job.brief.hosts.ranks(),
            times: &times,
            tally: &tally,
            steps: &steps,
            uses,
        };
        Outcome::ran(policy, &ran)
    }
}

fn rank_state(job: &Job, part: Part) -> RankState {
    let tiers = job.brief.system.tiers.len();
    let lanes = (1..tiers).map(|tier| TierLane {
        tier: TierId(tier as u8),
        clock: Seconds::ZERO,
        pending: None,
        done: false,
    });
    let rank = part.rank;
    let engine = Engine::new(&job.brief, part, Arc::clone(&job.model));
    let system = &job.brief.system;
    let stagers = match engine.threads() {
        Threads::OfLanes => system.tiers[0].threads,
        Threads::OfRank => system.threads().sum(),
    };
    RankState {
        rank,
        engine,
        stagers: f64::from(stagers),
        stage_write: job.model.stage_write_among(stagers),
        full: false,
        staging_clock: Seconds::ZERO,
        space_since: Seconds::ZERO,
        available: VecDeque::new(),
        awaited: None,
        freed: VecDeque::new(),
        lanes: lanes.collect(),
        pending: 0,
        ready: Seconds::ZERO,
        computed: Seconds::ZERO,
        tally: Tally::new(tiers),
        uses: Uses::default(),
    }
}
