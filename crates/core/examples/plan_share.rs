//! What one of 1,024 ranks does for a plan of 14.2 million samples and 90 epochs: its share of the favourites, then the
//! homes of all samples from everyone's favourites. Prints seconds, and memory beyond the catalog.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::sync::Arc;
use std::time::Instant;

use foresee_core::catalog::Catalog;
use foresee_core::foresight::{Favourite, Foresight};
use foresee_core::ids::Rank;
use foresee_core::model::{Beyond, Contention, Curve, Hosts, Scope, System, Tier};
use foresee_core::policy::{Assignment, Brief, foresee};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Tail};
use foresee_core::units::{Bytes, Rate, Seconds};

const SAMPLES: u32 = 14_197_122;
const RANKS: u32 = 1024;
const EPOCHS: u32 = 90;

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1024.0
}

fn brief(room: f64) -> Brief {
    let sizes: Vec<u64> = (0..u64::from(SAMPLES))
        .map(|k| 80_000 + k * 7919 % 50_000)
        .collect();
    let catalog = Arc::new(Catalog::new(sizes));
    let curve = || Curve::new(vec![(2, 20_000.0)], Beyond::Clamp).unwrap();
    let capacity = (catalog.total().0 as f64 * room / f64::from(RANKS)) as u64;
    let tier = |name: &str, capacity: u64| Tier {
        name: name.to_owned(),
        capacity: Bytes(capacity),
        scope: Scope::Rank,
        threads: 2,
        read: curve(),
        write: curve(),
    };
    let system = System {
        network: Rate(10_000.0),
        source_link: Rate(2000.0),
        source: curve(),
        source_latency: Seconds::ZERO,
        contention: Contention::Reads,
        tiers: vec![
            tier("staging", 1 << 30),
            tier("memory", capacity / 2),
            tier("disk", capacity / 2),
        ],
        cores_per_host: None,
    };
    let spec = LayoutSpec {
        positions: u64::from(SAMPLES),
        world: RANKS,
        global_batch: RANKS * 32,
        deal: Deal::Blocked,
        tail: Tail::Exact,
        drop_last: false,
    };
    Brief {
        orders: Orders::new(Shuffle::Feistel { seed: 1 }, SAMPLES, EPOCHS).unwrap(),
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(system),
        hosts: Hosts::new(RANKS, 8),
        assignment: Assignment::Order,
        peers: true,
        start: Mark::START,
        held: Arc::new([]),
        catalog,
    }
}

fn main() {
    for room in [0.5, 2.0] {
        let brief = brief(room);
        let before_mb = resident_mb();
        let started = Instant::now();
        let foresight = Foresight::new(brief.orders.clone(), brief.layout.clone(), brief.hosts);
        let share = foresight.favourites(0..SAMPLES / RANKS);
        let own_s = started.elapsed().as_secs_f64();
        // What the other ranks found comes over the network; here, the own share over and over.
        let all: Vec<Favourite> = (0..SAMPLES)
            .map(|sample| {
                let found = share[sample as usize % share.len()];
                Favourite {
                    rank: Rank((found.rank.0 + sample) % RANKS),
                    ..found
                }
            })
            .collect();
        let covering = Instant::now();
        let (homes, _) = foresee::cover(&brief, &all);
        let covered = brief
            .catalog
            .samples()
            .filter(|sample| homes.get(*sample).is_some())
            .count();
        println!(
            "K = {room} S: favourites {own_s:.3} s, homes {:.3} s, {:.0} MB beyond the catalog, {covered} samples have a home",
            covering.elapsed().as_secs_f64(),
            resident_mb() - before_mb,
        );
    }
}
