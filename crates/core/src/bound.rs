//! The source minimum: the fewest bytes that any policy which uses every sample can read from the source.
//!
//! A sample used in two successive epochs is carried across or read again, so with `A_e` the samples of epoch e and K
//! the payload that all tiers together can carry, source bytes are at least `s(A_1) + sum over e >= 2 of max(0, s(A_e) - K)`.

use crate::ids::{Epoch, Position, Rank, Step};
use crate::policy::Brief;
use crate::stream::{Mark, Stream};
use crate::units::Bytes;

/// What the tiers of all ranks can carry from one epoch into the next (K): whole samples, tier by tier, where all
/// samples have one size; otherwise the capacity of tiers that hold a sample at all, which no policy can exceed. The staging buffer keeps nothing and does not count.
pub fn carried(brief: &Brief) -> Bytes {
    let smallest = brief.catalog.samples().map(|sample| brief.catalog.size(sample).0).min().unwrap_or(0);
    let whole = |capacity: u64| match brief.catalog.common_size() {
        Some(Bytes(size)) if size > 0 => capacity / size * size,
        _ if capacity < smallest => 0,
        _ => capacity,
    };
    let tiers = brief.system.cache_tiers();
    let total =
        tiers.map(|(_, tier)| whole(tier.capacity.0).saturating_mul(u64::from(brief.hosts.domains(tier.scope))));
    Bytes(total.fold(0, u64::saturating_add))
}

/// The source minimum of a job.
pub fn source_minimum(brief: &Brief) -> Bytes {
    let carried = carried(brief);
    let epochs = (0..brief.orders.epochs()).map(Epoch);
    epochs
        .map(|epoch| {
            let used = used(brief, epoch);
            if epoch == Epoch(0) { used } else { used.saturating_sub(carried) }
        })
        .sum()
}

/// The bytes of the samples that an epoch uses: all but those in a dropped tail.
fn used(brief: &Brief, epoch: Epoch) -> Bytes {
    let order = brief.orders.epoch(epoch);
    let dealt = u64::from(brief.layout.steps()) * u64::from(brief.layout.global_batch());
    let dropped = (dealt.min(order.len())..order.len())
        .map(|position| brief.catalog.size(order.sample(crate::ids::Position(position))));
    brief.catalog.total().saturating_sub(dropped.sum())
}

/// The least that one rank reads from the source when nobody serves it, from the start to the end of the job, with `held`
/// bytes of what it uses already in its tiers.
///
/// After a start in the middle of an epoch, what that epoch had left behind is new to the rank in the next one.
pub fn lone_minimum(brief: &Brief, rank: Rank, held: Bytes) -> Bytes {
    let from = brief.start;
    if from.epoch.0 >= brief.orders.epochs() {
        return Bytes(0);
    }
    let carried = carried_by_one(brief);
    let rest = uses_of(brief, rank, from);
    let whole = |epoch| uses_of(brief, rank, Mark { epoch, step: Step(0) });
    let mut minimum = rest.saturating_sub(held);
    for epoch in (from.epoch.0 + 1..brief.orders.epochs()).map(Epoch) {
        // Where a rank is alone in its world it uses the same samples in every epoch, else others.
        let seen =
            if epoch.0 == from.epoch.0 + 1 && brief.hosts.ranks() == 1 { rest.max(held) } else { Bytes(u64::MAX) };
        minimum += whole(epoch).saturating_sub(Bytes(carried.0.min(seen.0)));
    }
    minimum.max(distinct(brief, rank).saturating_sub(held))
}

/// What a rank of several uses at all: none of it can come from elsewhere.
fn distinct(brief: &Brief, rank: Rank) -> Bytes {
    let accesses = brief.layout.rank_len(rank).saturating_mul(u64::from(brief.orders.epochs()));
    if brief.hosts.ranks() == 1 || accesses > ACCESSES_MAX {
        return Bytes(0);
    }
    let mut seen = vec![false; brief.catalog.len() as usize];
    let accesses = Stream::new(brief.orders.clone(), brief.layout.clone(), rank, brief.start);
    let new = accesses.filter(|access| !std::mem::replace(&mut seen[access.sample.index()], true));
    new.map(|access| brief.catalog.size(access.sample)).sum()
}

/// Accesses that are looked at one by one: a fraction of a second.
const ACCESSES_MAX: u64 = 1 << 24;

/// K of one rank.
fn carried_by_one(brief: &Brief) -> Bytes {
    Bytes(carried(brief).0 / u64::from(brief.hosts.ranks()))
}

/// The bytes of the samples that a rank uses from a mark to the end of the epoch, each counted once: padding repeats
/// what was used before.
///
/// Over very many accesses, what is left of an epoch counts as so many samples of mean size.
fn uses_of(brief: &Brief, rank: Rank, from: Mark) -> Bytes {
    let everything = brief.hosts.ranks() == 1 && from.step.0 == 0;
    if everything && brief.layout.deals_each_once() {
        return brief.catalog.total();
    }
    let accesses = brief.layout.rank_len(rank).saturating_mul(u64::from(brief.orders.epochs()));
    if accesses > ACCESSES_MAX {
        let left = f64::from(brief.layout.steps() - from.step.0) / f64::from(brief.layout.steps());
        let used = brief.layout.rank_len(rank) as f64 / brief.orders.len() as f64;
        return Bytes((brief.catalog.total().0 as f64 * used.min(1.0) * left) as u64);
    }
    let order = brief.orders.epoch(from.epoch);
    let mut total = Bytes(0);
    for step in (from.step.0..brief.layout.steps()).map(Step) {
        for index in 0..brief.layout.local_len(rank, step) {
            let dealt = brief.layout.dealt(rank, step, index);
            if !dealt.padded || brief.hosts.ranks() > 1 {
                total += brief.catalog.size(order.sample(Position(dealt.position.0)));
            }
        }
    }
    total
}
