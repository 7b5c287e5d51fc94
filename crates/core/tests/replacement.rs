//! The engine's commands against what is known of optimal caching: Belady's replacement by a naive reference, and the
//! four rules of optimal prefetching (Cao et al.; HDMLP 3.1) for one rank with one tier.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::engine::{Consumed, Engine, Lane, Next, Outlook, Read};
use foresee_core::held::Held;
use foresee_core::ids::{Epoch, Rank, SampleId, Step, TierId};
use foresee_core::model::{Decoded, Hosts, Model, Origin, Trainer};
use foresee_core::policy::{Assignment, Brief, Capacities, Keeping, by_name};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use foresee_core::units::{Bytes, Pace, Rate};
use proptest::prelude::*;

use self::common::system;

const MEMORY: TierId = TierId(1);

/// Samples of one byte, one access a step and rank, tiers of so many samples.
fn brief(samples: u32, ranks: u32, epochs: u32, seed: u64, capacity: u64) -> Brief {
    let spec = LayoutSpec {
        positions: u64::from(samples),
        world: ranks,
        global_batch: ranks,
        deal: Deal::Blocked,
        tail: Tail::Exact,
        drop_last: false,
    };
    Brief {
        catalog: Arc::new(Catalog::new(vec![1; samples as usize])),
        orders: Orders::new(Shuffle::Feistel { seed }, samples, epochs).unwrap(),
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(system(capacity)),
        capacities: Capacities::Same,
        hosts: Hosts::new(ranks, 1),
        assignment: Assignment::Order,
        peers: true,
        start: Mark::START,
        held: Held::nothing(),
    }
}

fn engine(brief: &Brief, policy: &str, rank: Rank) -> Engine {
    let mut parts = by_name(policy).unwrap().plan(brief).unwrap();
    let trainer = Trainer {
        compute: Rate(1.0),
        preprocess: Rate(1e6),
        decoded: Decoded::AsIs,
    };
    let model = Arc::new(Model::new(&brief.system, &trainer, brief.hosts.ranks()));
    Engine::new(brief, parts.swap_remove(rank.index()), model)
}

fn accesses(brief: &Brief, rank: Rank) -> Vec<SampleId> {
    let start = Mark {
        epoch: Epoch(0),
        step: Step(0),
    };
    Stream::new(brief.orders.clone(), brief.layout.clone(), rank, start)
        .map(|access| access.sample)
        .collect()
}

/// The first use at or after a place; later than everything when there is none.
fn next_use(accesses: &[SampleId], from: usize, sample: SampleId) -> usize {
    (from..accesses.len())
        .find(|&place| accesses[place] == sample)
        .unwrap_or(usize::MAX)
}

/// Hits of a cache that keeps what is used again soonest and may let a sample pass, by looking at everything.
fn belady_hits(accesses: &[SampleId], capacity: usize) -> usize {
    let mut held: BTreeSet<SampleId> = BTreeSet::new();
    let mut hits = 0;
    for (place, &sample) in accesses.iter().enumerate() {
        if held.contains(&sample) {
            hits += 1;
            continue;
        }
        let again = next_use(accesses, place + 1, sample);
        if again == usize::MAX || capacity == 0 {
            continue;
        }
        if held.len() == capacity {
            let furthest = *held
                .iter()
                .max_by_key(|&&other| next_use(accesses, place + 1, other))
                .unwrap();
            if next_use(accesses, place + 1, furthest) < again {
                continue;
            }
            held.remove(&furthest);
        }
        held.insert(sample);
    }
    hits
}

/// A world in which peers have everything, or nobody anything.
struct World {
    peers: bool,
}

impl Outlook for World {
    fn source(&mut self, _: Epoch) -> Pace {
        Pace(1.0)
    }

    fn elsewhere(&mut self, _: SampleId) -> Option<Origin> {
        self.peers.then_some(Origin::Peer {
            rank: Rank(1),
            tier: MEMORY,
        })
    }

    fn is_at(&mut self, _: SampleId, _: TierId) -> bool {
        self.peers
    }

    fn is_last_copy(&mut self, _: SampleId) -> bool {
        false
    }
}

/// Polls a lane once and lets the read complete at once.
fn step(engine: &mut Engine, lane: Lane, world: &mut World) -> Result<Read, Next> {
    match engine.poll(lane, world) {
        Next::Read(read) => {
            engine.complete(&read);
            Ok(read)
        }
        none => Err(none),
    }
}

/// The staging threads read one access, which the trainer consumes.
fn stage_one(engine: &mut Engine, world: &mut World) -> Option<Read> {
    let read = step(engine, Lane::Staging, world).ok()?;
    engine.consume(world).unwrap();
    engine.release(read.bytes);
    Some(read)
}

/// What a driver of the engine has under way, in whatever order it ends.
struct Driver {
    engine: Engine,
    world: World,
    under_way: Vec<(Read, Option<usize>)>,
    /// Whether each staged sample is there, in order.
    staged: Vec<bool>,
    consumed: usize,
    in_tier: BTreeSet<SampleId>,
}

impl Driver {
    fn poll(&mut self, lane: Lane) {
        let polled = self.engine.poll(lane, &mut self.world);
        self.evict();
        if let Next::Read(read) = polled {
            assert!(
                !matches!(read.origin, Origin::Tier(_)) || self.in_tier.contains(&read.sample),
                "{read:?}"
            );
            let place = matches!(lane, Lane::Staging).then(|| {
                self.staged.push(false);
                self.staged.len() - 1
            });
            self.under_way.push((read, place));
        }
    }

    fn complete(&mut self, choice: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let (read, place) = self.under_way.swap_remove(choice % self.under_way.len());
        assert!(
            !matches!(read.origin, Origin::Tier(_)) || self.in_tier.contains(&read.sample),
            "{read:?}"
        );
        if let Some(place) = place {
            self.staged[place] = true;
        }
        if read.keep.is_some() {
            self.in_tier.insert(read.sample);
        }
        self.engine.complete(&read);
        self.evict();
    }

    fn consume(&mut self) {
        if self.staged.get(self.consumed) == Some(&true)
            && let Some(Consumed::Staged(bytes)) = self.engine.consume(&mut self.world)
        {
            self.engine.release(bytes);
            self.consumed += 1;
        }
    }

    fn evict(&mut self) {
        for gone in self.engine.evicted() {
            assert!(
                self.in_tier.remove(&gone.sample),
                "{} goes that was not there",
                gone.sample
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn copies_are_replaced_as_belady_would(
        samples in 1u32..60, ranks in 2u32..5, epochs in 1u32..12, seed: u64, spare in 0u64..40,
    ) {
        let samples = samples * ranks;
        let brief = brief(samples, ranks, epochs, seed, u64::from(samples / ranks) + spare);
        let parts = by_name("foresee").unwrap().plan(&brief).unwrap();
        let Keeping::Homes { homes, spare, .. } = &parts[0].keeping else { panic!("foresee has homes") };
        let foreign: Vec<SampleId> = accesses(&brief, Rank(0))
            .into_iter()
            .filter(|sample| homes.get(*sample).is_none_or(|home| home.rank != Rank(0)))
            .collect();
        let mut engine = engine(&brief, "foresee", Rank(0));
        let mut world = World { peers: true };
        let mut hits = 0;
        while let Some(read) = stage_one(&mut engine, &mut world) {
            let at_home = homes.get(read.sample).is_some_and(|home| home.rank == Rank(0));
            hits += usize::from(!at_home && read.origin == Origin::Tier(MEMORY));
        }
        prop_assert_eq!(hits, belady_hits(&foreign, spare[1].0 as usize));
    }

    #[test]
    fn on_demand_a_rank_alone_misses_as_seldom_as_belady(
        samples in 1u32..60, epochs in 1u32..8, seed: u64, capacity in 0u64..70,
    ) {
        let brief = brief(samples, 1, epochs, seed, capacity);
        let mut engine = engine(&brief, "lobster", Rank(0));
        let mut world = World { peers: false };
        let mut hits = 0;
        while let Some(read) = stage_one(&mut engine, &mut world) {
            hits += usize::from(read.origin != Origin::Source);
        }
        prop_assert_eq!(hits, belady_hits(&accesses(&brief, Rank(0)), capacity as usize));
    }

    /// Rules 1 to 4, with the tier's threads bringing samples in ahead of a rank that consumes at random speed.
    #[test]
    fn prefetching_follows_the_four_rules(
        samples in 1u32..40, epochs in 1u32..6, seed: u64, capacity in 1u64..50,
        pace in prop::collection::vec(0usize..6, 1..50),
    ) {
        let brief = brief(samples, 1, epochs, seed, capacity);
        let accesses = accesses(&brief, Rank(0));
        let mut engine = engine(&brief, "lobster", Rank(0));
        let mut world = World { peers: false };
        let mut held: BTreeSet<SampleId> = BTreeSet::new();
        for (staged, prefetches) in pace.iter().cycle().enumerate() {
            for _ in 0..*prefetches {
                // Rule 1: the next sample that is not in the cache.
                let wanted = accesses[staged..].iter().position(|sample| !held.contains(sample)).map(|at| staged + at);
                let furthest = held.iter().map(|&s| (next_use(&accesses, staged, s), s)).max();
                let has_room = (held.len() as u64) < capacity;
                let result = step(&mut engine, Lane::Tier(MEMORY), &mut world);
                let gone: Vec<SampleId> = engine.evicted().map(|copy| copy.sample).collect();
                let Ok(read) = result else {
                    // Rule 4: it declines only when nothing can be brought in without harm.
                    let harmless = wanted.is_some_and(|at| has_room || furthest.is_some_and(|(next, _)| next > at));
                    prop_assert!(!harmless, "missed an opportunity at {staged}");
                    prop_assert!(gone.is_empty());
                    break;
                };
                prop_assert_eq!(Some(read.sample), wanted.map(|at| accesses[at]), "rule 1");
                prop_assert_eq!(gone.len(), usize::from(!has_room));
                for victim in gone {
                    let next = next_use(&accesses, staged, victim);
                    prop_assert_eq!(next, furthest.unwrap().0, "rule 2: the furthest goes");
                    prop_assert!(next > wanted.unwrap(), "rule 3: never for one that is used later");
                    held.remove(&victim);
                }
                held.insert(read.sample);
            }
            if stage_one(&mut engine, &mut world).is_none() {
                break;
            }
            held = engine.holdings().iter().map(|(sample, _)| sample).collect();
            engine.evicted().for_each(drop);
        }
    }

    #[test]
    fn what_is_read_from_a_tier_is_there_whatever_completes_first(
        samples in 2u32..20,
        epochs in 2u32..8,
        seed: u64,
        capacity in 1u64..12,
        staging in 1u64..8,
        policy in prop::sample::select(vec!["foresee", "lobster"]),
        acts in prop::collection::vec((0u8..5, any::<usize>()), 0..1500),
    ) {
        let mut brief = brief(samples, 1, epochs, seed, capacity);
        let mut system = (*brief.system).clone();
        system.tiers[0].capacity = Bytes(staging);
        brief.system = Arc::new(system);
        let engine = engine(&brief, policy, Rank(0));
        let world = World { peers: false };
        let mut driver =
            Driver { engine, world, under_way: vec![], staged: vec![], consumed: 0, in_tier: BTreeSet::new() };
        for (act, choice) in acts {
            match act {
                0 => driver.poll(Lane::Staging),
                1 => driver.poll(Lane::Tier(MEMORY)),
                2 | 3 => driver.complete(choice),
                _ => driver.consume(),
            }
            prop_assert!(driver.in_tier.len() as u64 <= capacity);
        }
    }
}
