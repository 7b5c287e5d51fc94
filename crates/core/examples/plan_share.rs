//! What one of 1,024 ranks does for a plan, in both phases: its share, then its part from everyone's shares. Prints
//! seconds, and the most memory that was allocated at once beyond what is known before (catalog and orders), in bytes a
//! sample.
//!
//! - `foresee`: 14.2 million samples, 90 epochs; favourites of a range, then the homes of all samples.
//! - `nopfs`: 1.28 million samples, 10 epochs, room for twice the dataset, half of it each rank's own, a host's or
//!   everybody's; by the first of those who share it. Held to 64 bytes a sample.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::alloc::{GlobalAlloc, Layout as Block, System as Heap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use foresee_core::catalog::Catalog;
use foresee_core::foresight::Favourite;
use foresee_core::held::Held;
use foresee_core::ids::Rank;
use foresee_core::model::{Beyond, Contention, Curve, Hosts, Scope, System, Tier};
use foresee_core::policy::{
    Assignment, Brief, Capacities, Keeping, Part, Policy, Share, Work, by_name, range_of,
};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Tail};
use foresee_core::units::{Bytes, Rate, Seconds};

const RANKS: u32 = 1024;

/// The rank that is measured, or with it the first of those that it shares a tier with.
const RANK: Rank = Rank(512);

/// The system's allocator, with a count of what is allocated and of the most that ever was.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED_MAX: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        let now = ALLOCATED.fetch_add(block.size(), Ordering::Relaxed) + block.size();
        ALLOCATED_MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { Heap.alloc(block) }
    }

    unsafe fn dealloc(&self, place: *mut u8, block: Block) {
        ALLOCATED.fetch_sub(block.size(), Ordering::Relaxed);
        // SAFETY: `place` came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { Heap.dealloc(place, block) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Does something; returns what it gives, the seconds it takes and the most bytes that it has allocated at once.
fn measured<T>(work: impl FnOnce() -> T) -> (T, f64, usize) {
    let before = ALLOCATED.load(Ordering::Relaxed);
    ALLOCATED_MAX.store(before, Ordering::Relaxed);
    let started = Instant::now();
    let done = work();
    let seconds = started.elapsed().as_secs_f64();
    (
        done,
        seconds,
        ALLOCATED_MAX.load(Ordering::Relaxed) - before,
    )
}

fn brief(samples: u32, epochs: u32, room: f64, scope: Scope) -> Brief {
    let sizes: Vec<u64> = (0..u64::from(samples))
        .map(|k| 80_000 + k * 7919 % 50_000)
        .collect();
    let catalog = Arc::new(Catalog::new(sizes));
    let curve = || Curve::new(vec![(2, 20_000.0)], Beyond::Clamp).unwrap();
    let hosts = Hosts::new(RANKS, 8);
    let tier = |name: &str, capacity: u64, scope| Tier {
        name: name.to_owned(),
        capacity: Bytes(capacity),
        scope,
        threads: 2,
        read: curve(),
        write: curve(),
    };
    let half = catalog.total().0 as f64 * room / 2.0;
    let half_for = |scope| (half / f64::from(hosts.domains(scope))) as u64;
    let system = System {
        network: Rate(10_000.0),
        source_link: Rate(2000.0),
        source: curve(),
        source_latency: Seconds::ZERO,
        contention: Contention::Reads,
        tiers: vec![
            tier("staging", 1 << 30, Scope::Rank),
            tier("memory", half_for(Scope::Rank), Scope::Rank),
            tier("disk", half_for(scope), scope),
        ],
        cores_per_host: None,
    };
    let spec = LayoutSpec {
        positions: u64::from(samples),
        world: RANKS,
        global_batch: RANKS * 32,
        deal: Deal::Blocked,
        tail: Tail::Exact,
        drop_last: false,
    };
    Brief {
        orders: Orders::new(Shuffle::Feistel { seed: 1 }, samples, epochs).unwrap(),
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(system),
        capacities: Capacities::Same,
        hosts,
        assignment: Assignment::Order,
        peers: true,
        start: Mark::START,
        held: Held::nothing(),
        catalog,
    }
}

/// What the others found comes over the network; here it is the own share over and over, with other ranks.
fn gathered(brief: &Brief, own: &Share) -> Vec<Share> {
    let other = |rank: Rank| Share {
        rank,
        work: match &own.work {
            Work::Favourites(found) => {
                let samples = range_of(brief, rank).map(|sample| sample as usize);
                let favourite = |sample: usize| Favourite {
                    rank: Rank((found[sample % found.len()].rank.0 + sample as u32) % RANKS),
                    uses: found[sample % found.len()].uses,
                };
                Work::Favourites(samples.map(favourite).collect())
            }
            work if rank == own.rank => work.clone(),
            _ => Work::Nothing,
        },
        ..own.clone()
    };
    brief.hosts.all().map(other).collect()
}

fn kept(brief: &Brief, part: &Part) -> usize {
    match &part.keeping {
        Keeping::Homes { homes, .. } => {
            let covered = |sample: &_| homes.get(*sample).is_some();
            brief.catalog.samples().filter(covered).count()
        }
        Keeping::Fixed { keep, .. } => keep.iter().count(),
        Keeping::Nothing | Keeping::Reuse { .. } => 0,
    }
}

fn plan(policy: &dyn Policy, brief: &Brief, room: f64) {
    let samples = f64::from(brief.catalog.len());
    let scope = brief.system.tiers[2].scope;
    let rank = Rank(brief.hosts.sharers(scope, RANK).start);
    let (own, own_s, own_bytes) = measured(|| policy.share(brief, rank));
    let (shares, _, gathered_bytes) = measured(|| gathered(brief, &own));
    let (part, part_s, part_bytes) = measured(|| policy.part(brief, &shares, rank).unwrap());
    let most = own_bytes.max(gathered_bytes + part_bytes) as f64 / samples;
    println!(
        "{}, {samples} samples, K = {room} S, disks by {scope:?}: share {own_s:.3} s, part {part_s:.3} s, up to {most:.1} bytes a sample \
         (share {:.2}, all shares {:.2}, part {:.2}), {} samples have a home or are kept",
        policy.name(),
        own_bytes as f64 / samples,
        gathered_bytes as f64 / samples,
        part_bytes as f64 / samples,
        kept(brief, &part),
    );
    assert!(most <= 64.0, "{most} bytes a sample");
}

fn main() {
    for room in [0.5, 2.0] {
        let brief = brief(14_197_122, 90, room, Scope::Rank);
        plan(by_name("foresee").unwrap(), &brief, room);
    }
    for scope in [Scope::Rank, Scope::Host, Scope::Global] {
        let brief = brief(1_281_167, 10, 2.0, scope);
        plan(by_name("nopfs").unwrap(), &brief, 2.0);
    }
}
