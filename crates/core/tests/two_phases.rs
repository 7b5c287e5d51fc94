//! Plans made by all ranks: each works out its share, shares travel as bytes, and each rank makes its own part. Together
//! the parts are the plan that a reference makes in one piece, for every policy, in worlds of all shapes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod reference;

use std::sync::Arc;

use foresee_core::catalog::Catalog;
use foresee_core::digest::Digest;
use foresee_core::held::Held;
use foresee_core::ids::{Epoch, Rank, SampleId, Step, TierId};
use foresee_core::model::{Beyond, Contention, Curve, Hosts, Scope, System, Tier};
use foresee_core::policy::cover::even_share;
use foresee_core::policy::{
    Assignment, Brief, Capacities, POLICIES, Part, Policy, Share, ShareError, Unsupported, Work,
    by_name,
};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Tail};
use foresee_core::units::{Bytes, Rate, Seconds};
use proptest::prelude::*;

use self::reference::{Kept, written};

/// A tier of all ranks: its scope, how fast it is, and what it holds by rank.
#[derive(Clone, Debug)]
struct TierCase {
    scope: Scope,
    rate: f64,
    capacities: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Case {
    hosts: Vec<u32>,
    sizes: Vec<u64>,
    epochs: u32,
    shuffle: Shuffle,
    global_batch: u32,
    deal: Deal,
    drop_last: bool,
    tiers: Vec<TierCase>,
    assignment: Assignment,
    peers: bool,
    start: (u32, u32),
    /// Sample, rank, tier.
    held: Vec<(u32, u32, u8)>,
}

fn curve(rate: f64) -> Curve {
    Curve::new(vec![(1, rate)], Beyond::Clamp).unwrap()
}

fn tier(scope: Scope, rate: f64, capacity: u64) -> Tier {
    Tier {
        name: "tier".into(),
        capacity: Bytes(capacity),
        scope,
        threads: 2,
        read: curve(rate),
        write: curve(rate),
    }
}

fn brief(case: &Case) -> Brief {
    let hosts = Hosts::of_sizes(&case.hosts);
    let samples = case.sizes.len() as u32;
    let spec = LayoutSpec {
        positions: u64::from(samples),
        world: hosts.ranks(),
        global_batch: case.global_batch,
        deal: case.deal,
        tail: Tail::Exact,
        drop_last: case.drop_last && samples >= case.global_batch,
    };
    let mut tiers = vec![tier(Scope::Rank, 1e4, 1)];
    tiers.extend(
        case.tiers
            .iter()
            .map(|case| tier(case.scope, case.rate, u64::MAX)),
    );
    let capacities = hosts.all().map(|rank| {
        let tiers = case.tiers.iter().map(|tier| tier.capacities[rank.index()]);
        std::iter::once(1).chain(tiers).map(Bytes).collect()
    });
    let held: Vec<Held> = case
        .held
        .iter()
        .filter(|(sample, rank, tier)| {
            *sample < samples && *rank < hosts.ranks() && usize::from(*tier) <= case.tiers.len()
        })
        .map(|&(sample, rank, tier)| Held::by_rank(Rank(rank), &[(SampleId(sample), TierId(tier))]))
        .collect();
    Brief {
        catalog: Arc::new(Catalog::new(case.sizes.clone())),
        orders: Orders::new(case.shuffle.clone(), samples, case.epochs).unwrap(),
        layout: Layout::new(spec).unwrap(),
        system: Arc::new(System {
            network: Rate(500.0),
            source_link: Rate(100.0),
            source: curve(100.0),
            source_latency: Seconds::ZERO,
            contention: Contention::Reads,
            tiers,
            cores_per_host: None,
        }),
        capacities: Capacities::ByRank(capacities.collect()),
        hosts,
        assignment: case.assignment,
        peers: case.peers,
        start: Mark {
            epoch: Epoch(case.start.0 % case.epochs),
            step: Step(case.start.1 % 2),
        },
        held: Held::merged(&held),
    }
}

fn tiers() -> impl Strategy<Value = Vec<TierCase>> {
    let scope = prop_oneof![
        3 => Just(Scope::Rank),
        1 => Just(Scope::Host),
        1 => Just(Scope::Global),
    ];
    let rate = prop_oneof![Just(1000.0), Just(400.0), Just(50.0)];
    let tier = (scope, rate, prop::collection::vec(0u64..40, 8));
    let tier = tier.prop_map(|(scope, rate, capacities)| TierCase {
        scope,
        rate,
        capacities,
    });
    prop::collection::vec(tier, 0..4)
}

fn cases() -> impl Strategy<Value = Case> {
    let equal = (1usize..50, 1u64..4).prop_map(|(samples, size)| vec![size; samples]);
    let sizes = prop_oneof![equal, prop::collection::vec(1u64..6, 1..50)];
    let hosts = prop::collection::vec(1u32..5, 1..5).prop_map(|mut sizes| {
        while sizes.iter().sum::<u32>() > 8 {
            sizes.pop();
        }
        sizes
    });
    let shuffle = prop_oneof![
        any::<u64>().prop_map(|seed| Shuffle::Feistel { seed }),
        any::<u64>().prop_map(|seed| Shuffle::Torch { seed }),
    ];
    let job = (hosts, sizes, 1u32..5, shuffle, 1u32..20);
    let kinds = (
        prop_oneof![Just(Deal::Blocked), Just(Deal::Strided)],
        any::<bool>(),
        prop_oneof![Just(Assignment::Order), Just(Assignment::Local)],
        prop::bool::weighted(0.8),
    );
    let start = prop_oneof![3 => Just((0, 0)), 1 => (0u32..4, 0u32..2)];
    let held = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec((0u32..50, 0u32..8, 1u8..4), 0..60),
    ];
    (job, kinds, tiers(), start, held).prop_map(|(job, kinds, tiers, start, held)| {
        let (hosts, sizes, epochs, shuffle, global_batch) = job;
        let (deal, drop_last, assignment, peers) = kinds;
        Case {
            hosts,
            sizes,
            epochs,
            shuffle,
            global_batch,
            deal,
            drop_last,
            tiers,
            assignment,
            peers,
            start,
            held,
        }
    })
}

/// What `to` gets from `from`, over a wire.
fn sent(brief: &Brief, inputs: Digest, share: &Share, to: Rank) -> Share {
    let is_reader = share.readers(brief.hosts.ranks()).contains(&to.0);
    let bytes = if is_reader {
        share.encode(inputs)
    } else {
        share.encode_paces(inputs)
    };
    Share::decode(&bytes, brief, inputs, share.rank).unwrap()
}

/// The parts of all ranks, as processes make them: each knows its own share, and what it is sent.
fn made_by_all(policy: &dyn Policy, brief: &Brief) -> Vec<Result<Part, Unsupported>> {
    let inputs = brief.inputs_digest(policy.name());
    let ranks = || brief.hosts.all();
    let shares: Vec<Share> = ranks().map(|rank| policy.share(brief, rank)).collect();
    ranks()
        .map(|rank| {
            let known = shares
                .iter()
                .filter(|share| brief.peers || share.rank == rank);
            let known: Vec<Share> = known
                .map(|share| sent(brief, inputs, share, rank))
                .collect();
            policy.part(brief, &known, rank)
        })
        .collect()
}

/// The policies that can deal batches by holder.
const KNOW_HOLDERS: [&str; 5] = [
    "locality-aware",
    "distributed-cache",
    "deepio-ordered",
    "lbann-dynamic",
    "lbann-preload",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_parts_of_all_ranks_are_the_plan_in_one_piece(case in cases()) {
        let brief = brief(&case);
        for policy in POLICIES {
            let name = policy.name();
            let reference = reference::plan(name, &brief);
            if reference.is_none() && name == "foresee" && case.hosts == [1] {
                // A rank alone with sizes that leave gaps has no plain reference.
                continue;
            }
            let together = policy.plan(&brief);
            let is_alone = !case.peers && brief.hosts.ranks() > 1;
            let is_dealt_by_holder = name == "locality-aware" || case.assignment == Assignment::Local;
            if is_alone && is_dealt_by_holder && KNOW_HOLDERS.contains(&name) {
                // Who is not served by others cannot be dealt what they hold.
                prop_assert!(together.is_err(), "{}", name);
                prop_assert!(made_by_all(policy, &brief).iter().all(Result::is_err), "{}", name);
                continue;
            }
            prop_assert_eq!(together.is_ok(), reference.is_some(), "{}", name);
            for (rank, part) in brief.hosts.all().zip(made_by_all(policy, &brief)) {
                let Some(reference) = &reference else {
                    prop_assert!(part.is_err(), "{}", name);
                    continue;
                };
                let part = part.unwrap();
                prop_assert_eq!(part.rank, rank);
                prop_assert_eq!(&written(&part), &reference[rank.index()], "{} of rank {}", name, rank);
                let together = &together.as_ref().unwrap()[rank.index()];
                prop_assert_eq!(written(&part), written(together), "{} of rank {}", name, rank);
                let held: Vec<_> = brief.held.of_rank(rank).collect();
                prop_assert_eq!(part.held, held);
            }
        }
    }

    #[test]
    fn no_rank_is_given_twice_its_even_share_of_homes_while_another_has_room(mut case in cases()) {
        case.peers = true;
        case.drop_last = false;
        case.held.clear();
        let brief = brief(&case);
        prop_assume!(brief.hosts.ranks() > 1);
        let part = by_name("foresee").unwrap().plan(&brief).unwrap().swap_remove(0);
        let Kept::Homes(homes, _) = written(&part).keeping else { panic!("foresee has homes") };
        let size = |sample: &u32| brief.catalog.size(SampleId(*sample)).0;
        let sizes = |rank: Rank| {
            let there = homes.iter().filter(|(_, home)| home.0 == rank.0);
            there.map(|(sample, _)| size(sample)).collect::<Vec<u64>>()
        };
        let bytes = |rank: Rank| sizes(rank).iter().sum::<u64>();
        let Some(even) = even_share(&brief, brief.catalog.total()) else { return Ok(()) };
        let limit = 2 * even.0;
        let free = |rank: Rank, tier: TierId| {
            let sharers = brief.hosts.sharers(brief.system.tier(tier).scope, rank);
            let there = homes.iter().filter(|(_, home)| home.1 == tier.0 && sharers.contains(&home.0));
            brief.capacity(rank, tier).0 - there.map(|(sample, _)| size(sample)).sum::<u64>()
        };
        for rank in brief.hosts.all().filter(|rank| bytes(*rank) > limit) {
            // Some sample went beyond the limit, so nobody else could take it: at most the largest of them.
            let largest = sizes(rank).into_iter().max().unwrap();
            for other in brief.hosts.all().filter(|other| *other != rank) {
                for (tier, _) in brief.system.cache_tiers() {
                    let usable = free(other, tier).min(limit.saturating_sub(bytes(other)));
                    prop_assert!(usable < largest, "rank {} has {}, {} room for {}", rank, bytes(rank), other, usable);
                }
            }
        }
    }

    #[test]
    fn what_is_held_stays_where_it_has_room(mut case in cases(), order in prop::collection::vec((0u32..50, 0u32..8), 0..80)) {
        case.peers = true;
        case.held.clear();
        case.drop_last = false;
        let cold = brief(&case);
        prop_assume!(cold.hosts.ranks() > 1);
        // Held as it fits: by several ranks at times.
        let mut room = foresee_core::policy::placement::Room::new(&cold, None);
        for (sample, rank) in order {
            let there = sample < cold.catalog.len() && rank < cold.hosts.ranks();
            let known = case.held.iter().any(|held| (held.0, held.1) == (sample, rank));
            if there && !known
                && let Some(tier) = room.first_fit(Rank(rank), cold.catalog.size(SampleId(sample)))
            {
                case.held.push((sample, rank, tier.0));
            }
        }
        let equal = cold.catalog.common_size().is_some();
        let warm = brief(&case);
        let part = by_name("foresee").unwrap().plan(&warm).unwrap().swap_remove(0);
        let homes = part.homes().unwrap();
        for (sample, _) in warm.held.iter() {
            let home = homes.get(sample);
            let stays = home.is_some_and(|home| warm.held.holders(sample).any(|holder| holder == home));
            // Of samples of several sizes, one may make way for another that fills its tier better.
            prop_assert!(stays || !equal, "sample {} is at {:?}", sample, home);
        }
    }

    #[test]
    fn a_damaged_share_is_refused(case in cases(), which in 0usize..8, at: usize, flip in 1u8..=255, cut: usize) {
        let brief = brief(&case);
        for policy in POLICIES {
            let inputs = brief.inputs_digest(policy.name());
            let rank = Rank(which as u32 % brief.hosts.ranks());
            let bytes = policy.share(&brief, rank).encode(inputs);
            let mut damaged = bytes.clone();
            damaged[at % bytes.len()] ^= flip;
            prop_assert_eq!(Share::decode(&damaged, &brief, inputs, rank), Err(ShareError::Damaged(rank)));
            let short = &bytes[..cut % bytes.len()];
            prop_assert!(Share::decode(short, &brief, inputs, rank).is_err());
            let other = brief.inputs_digest("another");
            let refused = Share::decode(&bytes, &brief, other, rank);
            prop_assert_eq!(refused, Err(ShareError::OtherPlan { rank, theirs: inputs, ours: other }));
            let refused = Share::decode(&bytes, &brief, inputs, Rank(rank.0 + 1));
            prop_assert_eq!(refused, Err(ShareError::OtherRank { rank: Rank(rank.0 + 1), says: rank }));
        }
    }

    /// The checksum is made right, so that what is wrong must be seen in the share itself.
    #[test]
    fn a_share_that_cannot_be_is_refused_or_harmless(
        case in cases(), which in 0usize..8, edits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let brief = brief(&case);
        for policy in POLICIES {
            let inputs = brief.inputs_digest(policy.name());
            let rank = Rank(which as u32 % brief.hosts.ranks());
            let mut bytes = policy.share(&brief, rank).encode(inputs);
            let content = bytes.len() - 8;
            for (at, value) in &edits {
                bytes[at % content] = *value;
            }
            let sum = checksum(&bytes[..content]);
            bytes[content..].copy_from_slice(&sum);
            let Ok(share) = Share::decode(&bytes, &brief, inputs, rank) else { continue };
            let mut shares: Vec<Share> = brief.hosts.all().map(|rank| policy.share(&brief, rank)).collect();
            shares[rank.index()] = share;
            // Whatever it comes to, nobody panics.
            let _ = policy.part(&brief, &shares, rank);
        }
    }
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    use sha2::Digest as _;
    let whole: [u8; 32] = sha2::Sha256::digest(bytes).into();
    whole[..8].try_into().unwrap()
}

/// Two hosts of two ranks that share a tier.
fn shared_by_host() -> Case {
    let capacities = vec![4; 8];
    Case {
        hosts: vec![2, 2],
        sizes: vec![1; 12],
        epochs: 3,
        shuffle: Shuffle::Feistel { seed: 3 },
        global_batch: 4,
        deal: Deal::Blocked,
        drop_last: false,
        tiers: vec![TierCase {
            scope: Scope::Host,
            rate: 100.0,
            capacities,
        }],
        assignment: Assignment::Order,
        peers: true,
        start: (0, 0),
        held: Vec::new(),
    }
}

#[test]
fn ranks_that_share_nothing_tell_nobody_what_they_keep_and_others_tell_their_host_only() {
    let mut case = shared_by_host();
    let nopfs = by_name("nopfs").unwrap();
    let shares = |brief: &Brief| -> Vec<Share> {
        brief
            .hosts
            .all()
            .map(|rank| nopfs.share(brief, rank))
            .collect()
    };
    let readers: Vec<_> = shares(&brief(&case))
        .iter()
        .map(|share| share.readers(4))
        .collect();
    assert_eq!(readers, [0..2, 0..0, 2..4, 0..0]);
    case.tiers[0].scope = Scope::Rank;
    let alone = shares(&brief(&case));
    assert!(alone.iter().all(|share| share.work == Work::Nothing));
}

#[test]
fn all_ranks_plan_with_the_paces_of_the_first() {
    let mut case = shared_by_host();
    // Fast memory and a slow disk: with a fast network, memory elsewhere is better than the own disk.
    let tier = |rate, capacity| TierCase {
        scope: Scope::Rank,
        rate,
        capacities: vec![capacity; 8],
    };
    case.sizes = vec![1; 40];
    case.tiers = vec![tier(1000.0, 8), tier(10.0, 8)];
    let ours = brief(&case);
    let mut theirs = ours.clone();
    theirs.system = Arc::new(System {
        network: Rate(1.0),
        ..(*ours.system).clone()
    });
    let foresee = by_name("foresee").unwrap();
    let made = |first: &Brief| {
        let mut shares: Vec<Share> = ours
            .hosts
            .all()
            .map(|rank| foresee.share(&ours, rank))
            .collect();
        shares[0] = foresee.share(first, Rank(0));
        foresee.part(&ours, &shares, Rank(1)).unwrap()
    };
    assert_ne!(written(&made(&ours)), written(&made(&theirs)));
    let alone = foresee.plan(&theirs).unwrap();
    assert_eq!(written(&made(&theirs)), written(&alone[1]));
    assert_eq!(
        ours.inputs_digest("foresee"),
        theirs.inputs_digest("foresee"),
        "paces are not known before"
    );
}
