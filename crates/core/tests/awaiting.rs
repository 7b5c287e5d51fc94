//! Several engines under `foresee` in a world that delivers late, in any order, or not at all: each rank gets its stream,
//! whatever it waits for ends, and without faults the source is read no more than the minimum.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::engine::{Awaited, Consumed, Engine, Lane, Next, Outlook, Read};
use foresee_core::held::Held;
use foresee_core::homes::Home;
use foresee_core::ids::{Epoch, Rank, SampleId, TierId};
use foresee_core::model::{Decoded, Hosts, Model, Origin, Trainer};
use foresee_core::policy::{Assignment, Brief, Capacities, by_name};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use foresee_core::units::{Bytes, Pace, Rate};
use proptest::prelude::*;

use self::common::system;

const MEMORY: TierId = TierId(1);

/// What is drawn.
#[derive(Clone, Copy, Debug)]
struct Case {
    samples: u32,
    ranks: u32,
    epochs: u32,
    capacity: u64,
    staging: u64,
    seed: u64,
    /// Of a hundred hand-overs so many are lost.
    lost_percent: u32,
    repeats: Repeats,
}

/// Which samples an epoch uses twice.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Repeats {
    /// None.
    Nothing,
    /// Those at its beginning, so that all ranks have as many at its end.
    Padded,
    /// Those that a list has twice.
    Listed,
}

fn orders(case: &Case) -> Orders {
    let seed = case.seed;
    let shuffle = match case.repeats {
        Repeats::Nothing | Repeats::Padded => Shuffle::Feistel { seed },
        Repeats::Listed => {
            let once = (0..case.samples).map(SampleId);
            let twice = once.clone().filter(|sample| sample.0 % 3 == 1);
            let mut list: Vec<SampleId> = once.chain(twice).collect();
            list.rotate_left(seed as usize % case.samples as usize);
            Shuffle::Explicit(vec![list].into())
        }
    };
    Orders::new(shuffle, case.samples, case.epochs).unwrap()
}

fn brief(case: &Case) -> Brief {
    let orders = orders(case);
    let spec = LayoutSpec {
        positions: orders.len(),
        world: case.ranks,
        global_batch: case.ranks,
        deal: Deal::Blocked,
        tail: if case.repeats == Repeats::Padded {
            Tail::Pad
        } else {
            Tail::Exact
        },
        drop_last: false,
    };
    let mut system = system(case.capacity);
    system.tiers[0].capacity = Bytes(case.staging);
    Brief {
        catalog: Arc::new(Catalog::new(vec![1; case.samples as usize])),
        orders,
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(system),
        capacities: Capacities::Same,
        hosts: Hosts::new(case.ranks, 1),
        assignment: Assignment::Order,
        peers: true,
        start: Mark::START,
        held: Held::nothing(),
    }
}

/// What all ranks can see: which samples are at their homes.
#[derive(Default)]
struct Arrived(BTreeMap<SampleId, Home>);

impl Outlook for Arrived {
    fn source(&mut self, _: Epoch) -> Pace {
        Pace(1.0)
    }

    fn elsewhere(&mut self, _: SampleId) -> Option<Origin> {
        unreachable!("homes say where a sample is")
    }

    fn is_at(&mut self, sample: SampleId, tier: TierId) -> bool {
        self.0.get(&sample).is_some_and(|home| home.tier == tier)
    }

    fn is_last_copy(&mut self, _: SampleId) -> bool {
        false
    }
}

/// A rank with what it has begun.
struct Driver {
    rank: Rank,
    engine: Engine,
    /// The staged samples in order; none for one that is not there yet.
    slots: VecDeque<Option<SampleId>>,
    first: usize,
    reads: Vec<(Option<usize>, Read)>,
    awaited: Vec<(usize, Awaited)>,
    delivered: Vec<SampleId>,
}

struct World {
    case: Case,
    drivers: Vec<Driver>,
    arrived: Arrived,
    handed_over: Vec<(SampleId, Home)>,
    source_reads: u64,
    draw: u64,
}

impl World {
    fn new(case: Case) -> Self {
        let brief = brief(&case);
        let parts = by_name("foresee").unwrap().plan(&brief).unwrap();
        let trainer = Trainer {
            compute: Rate(1.0),
            preprocess: Rate(1e6),
            decoded: Decoded::AsIs,
        };
        let model = Arc::new(Model::new(&brief.system, &trainer, case.ranks));
        let drivers = parts.into_iter().map(|part| Driver {
            rank: part.rank,
            engine: Engine::new(&brief, part, Arc::clone(&model)),
            slots: VecDeque::new(),
            first: 0,
            reads: Vec::new(),
            awaited: Vec::new(),
            delivered: Vec::new(),
        });
        Self {
            case,
            drivers: drivers.collect(),
            arrived: Arrived::default(),
            handed_over: Vec::new(),
            source_reads: 0,
            draw: case.seed | 1,
        }
    }

    /// A number below `end`.
    fn draw(&mut self, end: usize) -> usize {
        self.draw = self
            .draw
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        (self.draw >> 33) as usize % end.max(1)
    }

    fn begin(&mut self, rank: usize, place: Option<usize>, read: Read) {
        self.source_reads += u64::from(read.origin == Origin::Source);
        if let Origin::Peer { rank: from, tier } = read.origin {
            let home = Home { rank: from, tier };
            assert_eq!(self.arrived.0.get(&read.sample), Some(&home));
        }
        self.drivers[rank].reads.push((place, read));
    }

    /// Polls a lane; false where there is nothing to begin.
    fn poll(&mut self, rank: usize, lane: Lane) -> bool {
        let driver = &mut self.drivers[rank];
        let next = driver.engine.poll(lane, &mut self.arrived);
        driver.engine.evicted().for_each(drop);
        let place = (lane == Lane::Staging).then(|| driver.first + driver.slots.len());
        match next {
            Next::Read(read) => {
                driver.slots.extend(place.map(|_| None));
                self.begin(rank, place, read);
                true
            }
            Next::Await(awaited) => {
                driver.slots.push_back(None);
                driver.awaited.push((place.unwrap(), awaited));
                true
            }
            Next::Full | Next::Done => false,
        }
    }

    /// Lets one read of a rank end.
    fn complete(&mut self, rank: usize) -> bool {
        let reads = self.drivers[rank].reads.len();
        if reads == 0 {
            return false;
        }
        let index = self.draw(reads);
        let driver = &mut self.drivers[rank];
        let (place, read) = driver.reads.swap_remove(index);
        if let Some(place) = place {
            driver.slots[place - driver.first] = Some(read.sample);
        }
        if let Some(tier) = driver.engine.complete(&read) {
            let rank = driver.rank;
            self.arrived.0.insert(read.sample, Home { rank, tier });
        }
        if let Some(home) = read.hand_over {
            self.handed_over.push((read.sample, home));
        }
        true
    }

    /// Lets a hand-over arrive, or get lost.
    fn deliver(&mut self) -> bool {
        if self.handed_over.is_empty() {
            return false;
        }
        let index = self.draw(self.handed_over.len());
        let (sample, home) = self.handed_over.swap_remove(index);
        if self.draw(100) as u32 >= self.case.lost_percent {
            self.arrived.0.insert(sample, home);
        }
        true
    }

    /// Asks for an awaited sample, the first or any.
    fn resume(&mut self, rank: usize) -> bool {
        let waiting = self.drivers[rank].awaited.len();
        if waiting == 0 {
            return false;
        }
        let index = self.draw(waiting);
        let driver = &mut self.drivers[rank];
        let (place, awaited) = driver.awaited[index];
        let Some(read) = driver.engine.resume(&awaited, &mut self.arrived) else {
            return false;
        };
        driver.awaited.swap_remove(index);
        driver.engine.evicted().for_each(drop);
        self.begin(rank, Some(place), read);
        true
    }

    /// The trainer stands at an awaited sample, and its deadline has passed.
    fn give_up(&mut self, rank: usize) -> bool {
        let driver = &mut self.drivers[rank];
        let first = driver.first;
        let Some(index) = driver.awaited.iter().position(|(place, _)| *place == first) else {
            return false;
        };
        let (place, awaited) = driver.awaited.swap_remove(index);
        let read = driver.engine.give_up(&awaited, &mut self.arrived);
        driver.engine.evicted().for_each(drop);
        assert_eq!(read.origin, Origin::Source);
        self.begin(rank, Some(place), read);
        true
    }

    fn consume(&mut self, rank: usize) -> bool {
        let driver = &mut self.drivers[rank];
        let Some(Some(sample)) = driver.slots.front().copied() else {
            return false;
        };
        let consumed = driver.engine.consume(&mut self.arrived);
        let Some(Consumed::Staged(bytes)) = consumed else {
            panic!("{consumed:?}");
        };
        driver.engine.release(bytes);
        driver.slots.pop_front();
        driver.first += 1;
        driver.delivered.push(sample);
        true
    }

    fn act(&mut self, rank: usize, action: usize) -> bool {
        match action {
            0 => self.poll(rank, Lane::Staging),
            1 => self.poll(rank, Lane::Tier(MEMORY)),
            2 => self.complete(rank),
            3 => self.deliver(),
            4 => self.resume(rank),
            _ => self.consume(rank),
        }
    }

    /// Does one thing that can be done, whichever comes first from a drawn place on; false where there is none.
    fn advance(&mut self) -> bool {
        const ACTIONS: usize = 6;
        let ranks = self.drivers.len();
        let from = self.draw(ranks * ACTIONS);
        (0..ranks * ACTIONS).any(|step| {
            let at = (from + step) % (ranks * ACTIONS);
            self.act(at / ACTIONS, at % ACTIONS)
        })
    }

    /// Runs until nothing can be done any more; gives up what the trainers wait for then. How often that was needed.
    fn run(&mut self) -> u32 {
        let mut given_up = 0;
        loop {
            while self.advance() {}
            // `resume` draws one of those that are awaited: nothing may be left that could be resumed.
            if (0..1000).any(|_| self.advance()) {
                continue;
            }
            let ranks = self.drivers.len();
            if !(0..ranks).any(|rank| self.give_up(rank)) {
                return given_up;
            }
            given_up += 1;
        }
    }
}

fn stream(brief: &Brief, rank: Rank) -> Vec<SampleId> {
    let stream = Stream::new(
        brief.orders.clone(),
        brief.layout.clone(),
        rank,
        Mark::START,
    );
    stream.map(|access| access.sample).collect()
}

fn check_streams(case: &Case, world: &World) {
    let brief = brief(case);
    for driver in &world.drivers {
        assert_eq!(driver.delivered, stream(&brief, driver.rank), "{case:?}");
        assert!(driver.awaited.is_empty() && driver.reads.is_empty());
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let job = (1u32..40, 1u32..6, 1u32..5);
    (job, 0u64..24, 1u64..16, any::<u64>()).prop_map(
        |((samples, ranks, epochs), capacity, staging, seed)| Case {
            samples,
            ranks,
            epochs,
            capacity,
            staging,
            seed,
            lost_percent: 0,
            repeats: Repeats::Nothing,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn in_any_order_of_events_ranks_get_their_streams_and_the_source_is_read_at_the_minimum(
        case in cases()
    ) {
        let mut world = World::new(case);
        prop_assert_eq!(world.run(), 0, "nobody had to give up");
        check_streams(&case, &world);
        let samples = u64::from(case.samples);
        let carried = case.capacity * u64::from(case.ranks);
        let minimum = samples + u64::from(case.epochs - 1) * samples.saturating_sub(carried);
        prop_assert_eq!(world.source_reads, minimum);
    }

    #[test]
    fn what_an_epoch_repeats_is_read_once_where_all_have_a_home(
        case in cases(),
        repeats in prop_oneof![Just(Repeats::Padded), Just(Repeats::Listed)],
    ) {
        let capacity = u64::from(case.samples.div_ceil(case.ranks));
        let case = Case { capacity, repeats, ..case };
        let mut world = World::new(case);
        prop_assert_eq!(world.run(), 0, "nobody had to give up");
        check_streams(&case, &world);
        prop_assert_eq!(world.source_reads, u64::from(case.samples));
    }

    #[test]
    fn what_will_not_come_is_read_from_the_source(case in cases(), lost_percent in 1u32..101) {
        let case = Case { lost_percent, ..case };
        let mut world = World::new(case);
        world.run();
        check_streams(&case, &world);
    }
}

#[test]
fn those_behind_an_awaited_sample_are_staged_meanwhile() {
    // Rank 0 needs in the second epoch what rank 1 reads in the first, and rank 1 has not begun.
    let case = Case {
        samples: 40,
        ranks: 2,
        epochs: 2,
        capacity: 40,
        staging: 40,
        seed: 3,
        lost_percent: 0,
        repeats: Repeats::Nothing,
    };
    let mut world = World::new(case);
    for _ in 0..1000 {
        world.poll(0, Lane::Staging);
        world.complete(0);
        world.deliver();
        world.resume(0);
    }
    let driver = &world.drivers[0];
    let awaited: Vec<usize> = driver.awaited.iter().map(|(place, _)| *place).collect();
    assert!(!awaited.is_empty());
    let behind = driver.slots.iter().skip(awaited[0]);
    assert!(behind.flatten().count() > 0, "{:?}", driver.slots);
}
