//! Ranks and a network that fails, without threads and without time of their own: who does something next, which message
//! arrives, is lost, doubled, late or garbled, who is stopped or dies, all of it follows from a seed. The state machines are
//! the real ones: engine, books, dealings. Whatever happens, each rank that lives gets its stream, right to the byte, and
//! no trainer stands longer than a bound.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use foresee_core::stream::{Mark, Shuffle, Stream};
use foresee_core::threads::crew::{Choice, Crew};
use foresee_core::threads::window::Window;

use super::consumer::{Consumer, Stand, Verdict};
use super::course::Course;
use super::dealings::{Clock, Dealings, Errand};
use super::gathering::Gathering;
use super::holding::HandedOver;
use super::outbox::Outbox;
use super::state::State;
use super::stores::Stores;
use super::task::Fetch;
use super::tests::{SAMPLE, SAMPLES, come, spec};
use super::wake::Wake;
use super::{Job, JobSpec};
use crate::peers::Counts;
use crate::pool::Pool;
use crate::tier::{Arrived, Kept, Shared, Stay};
use crate::transport::memory::{End, Network};
use crate::transport::{Answer, Content, HandOver, Message, Payload, Receive, Transport};

const RANKS: u32 = 3;
const EPOCHS: u32 = 3;

/// Long beside what a test takes: real time decides nothing.
const DEADLINE: Duration = Duration::from_secs(10_000);

/// Far more than any schedule takes.
const STEPS_MAX: u32 = 400_000;

/// A small generator; another seed gives another schedule.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

/// How often each fault happens: once in so many messages or steps, never where it is 0.
#[derive(Clone, Copy, Debug)]
struct Plan {
    lost: u64,
    doubled: u64,
    late: u64,
    garbled: u64,
    stopped: u64,
    interrupted: u64,
    /// Steps after which a rank dies.
    dies_after: Option<u32>,
}

impl Plan {
    fn drawn(dice: &mut Dice) -> Self {
        let mut rate = || [0, 400, 60, 15][dice.below(4) as usize];
        let (lost, doubled, late, garbled) = (rate(), rate(), rate(), rate());
        Self {
            lost,
            doubled,
            late,
            garbled,
            stopped: [0, 3000, 500][dice.below(3) as usize],
            interrupted: [0, 3000, 500][dice.below(3) as usize],
            dies_after: dice.once_in(3).then(|| dice.below(1500) as u32),
        }
    }
}

/// What arrived at a rank.
enum Arrival {
    Message(Rank, Message),
    Lost(Rank),
}

/// Takes in what the network hands on.
#[derive(Default)]
struct Basket(Mutex<VecDeque<Arrival>>);

impl Receive for Basket {
    fn receive(&self, from: Rank, message: Message) {
        self.0
            .lock()
            .unwrap()
            .push_back(Arrival::Message(from, message));
    }

    fn lost(&self, rank: Rank) {
        self.0.lock().unwrap().push_back(Arrival::Lost(rank));
    }
}

/// A rank that does one thing at a time.
struct Actor {
    rank: Rank,
    state: State,
    stores: Arc<Stores>,
    expected: Vec<SampleId>,
    got: Vec<u8>,
    reading: Vec<Fetch>,
    stand: Stand,
    /// Since when its trainer waits.
    since: Option<Instant>,
    /// Until when it is stopped.
    stopped: Option<Instant>,
    is_dead: bool,
}

impl Actor {
    fn is_over(&self) -> bool {
        self.is_dead || self.got.len() == self.expected.len()
    }

    /// Begins whatever a thread can.
    fn begin(&mut self) {
        while let Some(fetch) = self.state.take_task(&self.stores, &mut Wake::default()) {
            self.reading.push(fetch);
        }
    }
}

/// All ranks, and what is between them.
struct World {
    network: Arc<Network>,
    ends: Vec<End>,
    actors: Vec<Actor>,
    dice: Dice,
    plan: Plan,
    ahead: Arc<AtomicU64>,
    began: Instant,
}

/// Jobs so far.
static JOBS: AtomicU64 = AtomicU64::new(0);

fn rank_spec(rank: u32) -> JobSpec {
    let mut spec = spec();
    spec.shuffle = Shuffle::Torch { seed: 7 };
    spec.epochs = EPOCHS;
    spec.rank = rank;
    spec.world = RANKS;
    spec.batch_size = 1;
    spec.config.tiers[0].capacity_bytes = 7 * SAMPLE;
    // Jobs of one process that have the same configuration live on one budget; ranks do not, nor do worlds.
    let unlike_others = JOBS.fetch_add(1, Ordering::Relaxed);
    spec.config.peers.linger += Duration::from_secs(unlike_others);
    spec
}

/// One rank, once all have agreed.
fn actor(job: &Job, clock: &Clock) -> Actor {
    let spec = job.spec();
    let layout = job.consumer().layout.clone();
    let consumer = Consumer::new(layout.clone(), RANKS, Mark::START, 0);
    let stores = job.meets_peers().unwrap();
    let desk = job.desk(&consumer, &stores, &[]).unwrap();
    let course = Course::new(desk, None);
    let crew = Crew::new(course.desk.threads(), [2, 1], 2, Choice::Fixed);
    let window = Window::new(10 * SAMPLE, 10 * SAMPLE);
    let mut state = State::new(course, crew, 2, window);
    let outbox = Outbox::new(u64::MAX / 4, 0, Pool::of_process());
    let mut dealings = Dealings::new((spec.rank(), RANKS), DEADLINE, outbox);
    dealings.clock = clock.clone();
    state.dealings = Some(dealings);
    let stream = Stream::new(job.orders(), layout, spec.rank(), Mark::START);
    Actor {
        rank: spec.rank(),
        state,
        stores,
        expected: stream.map(|access| access.sample).collect(),
        got: Vec::new(),
        reading: Vec::new(),
        stand: Stand::default(),
        since: None,
        stopped: None,
        is_dead: false,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let network = Network::new(RANKS);
        let ends = network.ends();
        let jobs: Vec<Job> = (0..)
            .zip(&ends)
            .map(|(rank, end)| Job::among(rank_spec(rank), Arc::new(end.clone())).unwrap())
            .collect();
        for job in &jobs {
            job.seek_peers().unwrap();
        }
        let ahead = Arc::new(AtomicU64::new(0));
        let clock = Clock::ahead(Arc::clone(&ahead));
        let actors = jobs.iter().map(|job| actor(job, &clock)).collect();
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let plan = Plan::drawn(&mut dice);
        Self {
            network,
            ends,
            actors,
            dice,
            plan,
            ahead,
            began: Instant::now(),
        }
    }

    /// The time, of which nearly all is made up.
    fn now(&self) -> Instant {
        self.began + Duration::from_secs(self.ahead.load(Ordering::Relaxed))
    }

    fn pass_time(&self, part: u32) {
        let seconds = (DEADLINE / part).as_secs();
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Sends a message, if nothing happens to it on its way.
    fn send(&mut self, from: Rank, to: Rank, message: Message) {
        let plan = self.plan;
        if self.dice.once_in(plan.lost) {
            return;
        }
        let message = if self.dice.once_in(plan.garbled) {
            garbled(message)
        } else {
            message
        };
        if self.dice.once_in(plan.doubled) {
            let _ = self.ends[from.index()].send(to, message.clone());
        }
        let _ = self.ends[from.index()].send(to, message);
    }

    /// Does what a rank has to do for others.
    fn run_errands(&mut self, at: usize) {
        let rank = self.actors[at].rank;
        for errand in self.actors[at].state.take_errands() {
            let (to, message) = match errand {
                Errand::Send(to, message) => (to, message),
                Errand::Serve { to, sample, tier } => {
                    let content = match self.actors[at].stores.tier(tier).share(sample) {
                        Shared::Block(block) => {
                            Content::Sample(Payload::new(block.bytes().to_vec()))
                        }
                        Shared::NotHeld | Shared::Never => Content::WillNotCome,
                    };
                    let ticket = to.ticket;
                    (to.rank, Message::Answer(Answer { ticket, content }))
                }
            };
            self.send(rank, to, message);
        }
    }

    /// The next message that waits for a rank arrives.
    fn arrive(&mut self, at: usize) -> bool {
        let basket = Basket::default();
        let rank = self.actors[at].rank;
        if !self.network.pump(rank, &basket) {
            return false;
        }
        let arrived = basket.0.into_inner().unwrap().pop_front();
        match arrived.expect("one was handed on") {
            Arrival::Message(from, message) if self.dice.once_in(self.plan.late) => {
                // Behind all others.
                let _ = self.ends[from.index()].send(rank, message);
            }
            Arrival::Message(from, message) => take_in(&mut self.actors[at], from, message),
            Arrival::Lost(lost) => {
                let Actor { state, stores, .. } = &mut self.actors[at];
                let _ = state.lost_rank(lost, stores);
            }
        }
        self.run_errands(at);
        true
    }

    /// A thread of a rank has read a sample.
    fn read(&mut self, at: usize) -> bool {
        let actor = &mut self.actors[at];
        actor.begin();
        if actor.reading.is_empty() {
            self.run_errands(at);
            return false;
        }
        let chosen = self.dice.below(actor.reading.len() as u64) as usize;
        let fetch = actor.reading.swap_remove(chosen);
        let sample = fetch.ticket.read.sample;
        let home = fetch.hand_over;
        if let Some(came) = &fetch.came {
            assert_eq!(came.bytes(), [sample.0 as u8; SAMPLE as usize]);
        }
        let outcome = come(fetch, &actor.stores);
        let _ = actor.state.settle(outcome, &actor.stores);
        let rank = actor.rank;
        if let Some(home) = home {
            let bytes = vec![sample.0 as u8; SAMPLE as usize];
            let content = Content::Sample(Payload::new(bytes));
            let message = Message::HandOver(HandOver::unstamped(sample, content));
            self.send(rank, home.rank, message);
        }
        self.run_errands(at);
        true
    }

    /// The trainer of a rank takes its next sample, or stands where it is.
    fn train(&mut self, at: usize) -> bool {
        let now = self.now();
        let actor = &mut self.actors[at];
        let mut gathered = Vec::new();
        let (gathering, _) = actor
            .state
            .gather(&mut gathered, 1, || false, &actor.stores);
        let is_given = matches!(gathering, Gathering::Whole);
        if let Gathering::Own(fetch) = gathering {
            actor.reading.push(fetch);
        }
        if is_given {
            let one = &gathered[0];
            let expected = actor.expected[actor.got.len()];
            assert_eq!(one.sample, expected);
            assert_eq!(one.piece.bytes(), [expected.0 as u8; SAMPLE as usize]);
            actor.got.push(one.piece.bytes()[0]);
            actor.since = None;
            let _ = actor.state.release(one.course, one.loans.clone());
        } else {
            let since = *actor.since.get_or_insert(now);
            let bound = DEADLINE * (2 * RANKS + 4);
            assert!(now - since <= bound, "rank {} stands too long", actor.rank);
            let standing = actor.state.stands_at(actor.stand.forsaken);
            if let Verdict::Expired(blamed) = actor.stand.judge(standing, now) {
                let _ = match blamed {
                    Some(rank) => actor.state.expired(rank, &actor.stores),
                    None => actor.state.give_up_head(&actor.stores),
                };
            }
        }
        self.run_errands(at);
        is_given
    }

    /// What became of requests, by rank.
    fn counts(&self) -> Vec<Counts> {
        let dealings = self.actors.iter().map(|actor| &actor.state.dealings);
        let counts = dealings.map(|dealings| dealings.as_ref().unwrap().asked.counts());
        counts.collect()
    }

    /// What goes wrong at this step.
    fn fail(&mut self, step: u32) {
        let now = self.now();
        if self.plan.dies_after == Some(step) {
            self.actors[1].is_dead = true;
            self.network.kill(Rank(1));
        }
        if self.dice.once_in(self.plan.stopped) {
            let at = self.dice.below(u64::from(RANKS)) as usize;
            let deadlines = 1 + self.dice.below(4) as u32;
            let actor = &mut self.actors[at];
            // Its trainer stands still, too.
            actor.since = None;
            actor.stopped = Some(now + DEADLINE * deadlines);
        }
        if self.dice.once_in(self.plan.interrupted) {
            let rank = Rank(self.dice.below(u64::from(RANKS)) as u32);
            self.network.interrupt(rank);
        }
    }

    /// Lets all go on to their end.
    fn run(&mut self) {
        let mut idle = 0;
        for step in 0..STEPS_MAX {
            if self.actors.iter().all(Actor::is_over) {
                return;
            }
            self.fail(step);
            if idle > 4 * RANKS {
                // Nothing happens by itself any more.
                self.pass_time(4);
                idle = 0;
            } else if self.dice.once_in(50) {
                self.pass_time(40);
            }
            let at = self.dice.below(u64::from(RANKS)) as usize;
            let now = self.now();
            let actor = &mut self.actors[at];
            if actor.stopped.is_some_and(|until| now < until) || actor.is_dead {
                idle += 1;
                continue;
            }
            actor.stopped = None;
            let did = match self.dice.below(4) {
                0 => self.train(at),
                1 => self.read(at),
                _ => self.arrive(at),
            };
            idle = if did { 0 } else { idle + 1 };
        }
        panic!("it does not end");
    }
}

/// A message of another length.
fn garbled(message: Message) -> Message {
    match message {
        Message::Answer(Answer { ticket, .. }) => Message::Answer(Answer {
            ticket,
            content: Content::Sample(Payload::new([9; 3])),
        }),
        Message::HandOver(handed) => Message::HandOver(HandOver {
            content: Content::Sample(Payload::new([9; 3])),
            ..handed
        }),
        other => other,
    }
}

/// A rank takes in a message, as `serving` does.
fn take_in(actor: &mut Actor, from: Rank, message: Message) {
    let Actor { state, stores, .. } = actor;
    let _ = match message {
        Message::Ask(ask) => state.asked_by(from, ask),
        Message::Answer(answer) => state.answered(from, answer, stores),
        Message::Done(done) => state.finished(from, &done.report),
        Message::HandOver(HandOver {
            sample, content, ..
        }) => {
            let Some(tier) = state.home_here(sample) else {
                let _ = state.need_not_bring(from, sample);
                return;
            };
            if state.course.desk.is_here(sample, tier) {
                return;
            }
            let kept = match &content {
                Content::Sample(payload) if payload.bytes().len() as u64 == SAMPLE => {
                    let arrived = Arrived::Buffer(payload.bytes());
                    let secured = stores.tier(tier).secure(arrived, Stay::Lasting);
                    let kept = stores
                        .tier(tier)
                        .keep_secured(sample, arrived, secured, None);
                    matches!(kept, Ok(Kept::Yes))
                }
                Content::Sample(_) | Content::Here | Content::InFile(_) | Content::WillNotCome => {
                    false
                }
            };
            let handed = HandedOver {
                from,
                sample,
                tier,
                kept: kept.then_some(foresee_core::units::Bytes(SAMPLE)),
            };
            state.handed_over(&handed, stores)
        }
    };
}

#[test]
fn a_hundred_schedules_of_faults_cost_no_sample_and_nobody_waits_too_long() {
    assert_eq!(SAMPLES, 20, "a rank keeps about a third");
    let mut fetched = 0;
    for seed in 0..100 {
        let mut world = World::new(seed);
        let plan = world.plan;
        let run = std::panic::AssertUnwindSafe(|| world.run());
        if let Err(cause) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}: {plan:?}");
            std::panic::resume_unwind(cause);
        }
        fetched += world.counts().iter().map(|counts| counts.came).sum::<u64>();
    }
    assert!(fetched > 500, "ranks served each other: {fetched}");
}

#[test]
fn a_schedule_is_the_same_each_time() {
    let ended = |seed| {
        let mut world = World::new(seed);
        world.run();
        (world.dice.0, world.counts())
    };
    for seed in [3, 17, 58] {
        assert_eq!(ended(seed), ended(seed));
    }
}
