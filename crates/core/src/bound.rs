//! The source minimum: the fewest bytes that any policy which uses every sample can read from the source.
//!
//! A sample used in two successive epochs is carried across or read again, so with `A_e` the samples of epoch e and K
//! the payload that all tiers together can carry, source bytes are at least `s(A_1) + sum over e >= 2 of max(0, s(A_e) - K)`.
//! What a dropped tail keeps from the first epoch comes in a later one: each sample that is used at all is read once at least.
//! One rank's own minimum follows from its accesses one by one.

use std::collections::BTreeMap;

use crate::ids::{Epoch, Position, Rank, SampleId, Step};
use crate::policy::Brief;
use crate::stream::{Mark, Stream};
use crate::units::Bytes;

/// What the tiers of all ranks can carry from one epoch into the next (K): whole samples, tier by tier, where all
/// samples have one size; otherwise the capacity of tiers that hold a sample at all, which no policy can exceed. The staging buffer keeps nothing and does not count.
pub fn carried(brief: &Brief) -> Bytes {
    let tiers = brief.system.cache_tiers();
    let total = tiers.flat_map(|(id, tier)| {
        let domains = 0..brief.hosts.domains(tier.scope) as usize;
        domains.map(move |domain| brief.domain_capacity(id, domain))
    });
    let whole = whole_samples(brief);
    Bytes(total.map(whole).fold(0, u64::saturating_add))
}

/// What a capacity carries of whole samples, as far as that can be said.
fn whole_samples(brief: &Brief) -> impl Fn(Bytes) -> u64 {
    let smallest = brief
        .catalog
        .samples()
        .map(|sample| brief.catalog.size(sample).0)
        .min()
        .unwrap_or(0);
    let common = brief.catalog.common_size();
    move |Bytes(capacity)| match common {
        Some(Bytes(size)) if size > 0 => capacity / size * size,
        _ if capacity < smallest => 0,
        _ => capacity,
    }
}

/// The source minimum of a job.
pub fn source_minimum(brief: &Brief) -> Bytes {
    let carried = carried(brief);
    let epochs = (0..brief.orders.epochs()).map(Epoch);
    let by_epoch: Bytes = epochs
        .map(|epoch| {
            let used = used(brief, epoch);
            if epoch == Epoch(0) {
                used
            } else {
                used.saturating_sub(carried)
            }
        })
        .sum();
    let unused = unused(brief, Epoch(0), 0);
    let unused: Bytes = unused.map(|sample| brief.catalog.size(sample)).sum();
    by_epoch.max(brief.catalog.total().saturating_sub(unused))
}

/// Samples that no epoch uses from this one on, and from this position of it.
fn unused(brief: &Brief, first: Epoch, from: u64) -> impl Iterator<Item = SampleId> {
    let order = brief.orders.epoch(first);
    let left_out = (0..from).chain(dealt(brief, first)..order.len());
    let mut unused: Vec<SampleId> = left_out
        .map(|position| order.sample(Position(position)))
        .collect();
    unused.sort_unstable();
    for epoch in (first.0 + 1..brief.orders.epochs()).map(Epoch) {
        if unused.is_empty() {
            break;
        }
        let order = brief.orders.epoch(epoch);
        let dropped = dealt(brief, epoch)..order.len();
        let mut dropped: Vec<SampleId> = dropped
            .map(|position| order.sample(Position(position)))
            .collect();
        dropped.sort_unstable();
        unused.retain(|sample| dropped.binary_search(sample).is_ok());
    }
    unused.into_iter()
}

/// How many positions of an epoch are dealt: all but those in a dropped tail.
fn dealt(brief: &Brief, epoch: Epoch) -> u64 {
    brief.layout.kept().min(brief.orders.epoch(epoch).len())
}

/// The source minimum of what is left of a job: from where it begins, with what tiers hold from before. `None` where orders
/// do not hold each sample once.
pub fn job_minimum(brief: &Brief) -> Option<Bytes> {
    if !brief.orders.hold_each_once() {
        return None;
    }
    let Mark { epoch: first, step } = brief.start;
    if first.0 >= brief.orders.epochs() {
        return Some(Bytes(0));
    }
    let mut is_held = vec![false; brief.catalog.len() as usize];
    for (sample, _) in brief.held.iter() {
        is_held[sample.index()] = true;
    }
    let order = brief.orders.epoch(first);
    let global_batch = u64::from(brief.layout.global_batch());
    let from = u64::from(step.0) * global_batch;
    let until = dealt(brief, first);
    let rest = (from..until).map(|position| order.sample(Position(position)));
    let unheld = rest.filter(|sample| !is_held[sample.index()]);
    let begun: Bytes = unheld.map(|sample| brief.catalog.size(sample)).sum();
    let carried = carried(brief);
    let later = (first.0 + 1..brief.orders.epochs()).map(Epoch);
    let again: Bytes = later
        .map(|epoch| used(brief, epoch).saturating_sub(carried))
        .sum();
    let mut is_read = is_held.iter().map(|is_held| !is_held).collect::<Vec<_>>();
    for sample in unused(brief, first, from.min(until)) {
        is_read[sample.index()] = false;
    }
    let read = brief
        .catalog
        .samples()
        .filter(|sample| is_read[sample.index()]);
    let once: Bytes = read.map(|sample| brief.catalog.size(sample)).sum();
    Some((begun + again).max(once))
}

/// The bytes of the samples that an epoch uses: all but those in a dropped tail.
fn used(brief: &Brief, epoch: Epoch) -> Bytes {
    let order = brief.orders.epoch(epoch);
    let dropped = (dealt(brief, epoch)..order.len())
        .map(|position| brief.catalog.size(order.sample(Position(position))));
    brief.catalog.total().saturating_sub(dropped.sum())
}

/// The least that one rank reads from the source when nobody serves it, from the start to the end of the job, with
/// `held` in its tiers before. `None` where finding out would take too long.
///
/// Samples may be missing from epochs or come several times in one, as lists and samplers have it. Between two uses a
/// sample is in a tier or read again for the second, so each pair of uses saves its bytes at most if these take room all
/// that time. The most that can be saved is what Belady saves, byte by byte: whenever there are more than fit, those that
/// are used last go. No policy does better, and where all samples have one size, whole samples do as well.
pub fn lone_minimum(brief: &Brief, rank: Rank, held: &[SampleId]) -> Option<Bytes> {
    if brief.start.epoch.0 >= brief.orders.epochs() {
        return Some(Bytes(0));
    }
    let epochs = u64::from(brief.orders.epochs() - brief.start.epoch.0);
    let accesses = brief.layout.rank_len(rank).saturating_mul(epochs);
    if accesses <= ACCESSES_SWEPT {
        return Some(swept(brief, rank, held));
    }
    (is_plain(brief) || accesses <= ACCESSES_COUNTED).then(|| by_epoch(brief, rank, held))
}

/// Accesses of which all next uses are kept at once: 32 MB, and about a second.
const ACCESSES_SWEPT: u64 = 1 << 22;

/// Accesses that are looked at one by one: a second or two.
const ACCESSES_COUNTED: u64 = 1 << 24;

/// Whether a rank uses every sample once in every whole epoch.
fn is_plain(brief: &Brief) -> bool {
    brief.hosts.ranks() == 1 && brief.layout.deals_each_once() && brief.orders.hold_each_once()
}

/// K of one rank: of what it shares its even part.
fn carried_by_one(brief: &Brief, rank: Rank) -> Bytes {
    let whole = whole_samples(brief);
    let tiers = brief.system.cache_tiers().map(|(id, tier)| {
        let sharers = brief.hosts.sharers(tier.scope, rank).len() as u64;
        whole(brief.capacity(rank, id)) / sharers
    });
    Bytes(tiers.fold(0, u64::saturating_add))
}

/// Belady, byte by byte.
fn swept(brief: &Brief, rank: Rank, held: &[SampleId]) -> Bytes {
    let stream = Stream::new(
        brief.orders.clone(),
        brief.layout.clone(),
        rank,
        brief.start,
    );
    let samples: Vec<SampleId> = stream.map(|access| access.sample).collect();
    // The next use of each access, and in the end the first one of each sample.
    let mut first: Vec<Option<u32>> = vec![None; brief.catalog.len() as usize];
    let mut next: Vec<Option<u32>> = vec![None; samples.len()];
    for (at, sample) in samples.iter().enumerate().rev() {
        next[at] = first[sample.index()].replace(at as u32);
    }
    let mut kept = KeptBytes {
        room: carried_by_one(brief, rank).0,
        total: 0,
        by_use: BTreeMap::new(),
    };
    for sample in held {
        kept.keep(first[sample.index()], brief.catalog.size(*sample).0);
    }
    let mut read = 0;
    for (at, sample) in samples.iter().enumerate() {
        let bytes = brief.catalog.size(*sample).0;
        read += bytes - kept.take(at as u32);
        kept.keep(next[at], bytes);
    }
    Bytes(read)
}

/// Bytes in a rank's tiers by when they are used.
struct KeptBytes {
    room: u64,
    total: u64,
    by_use: BTreeMap<u32, u64>,
}

impl KeptBytes {
    /// What is there of the sample that is used now.
    fn take(&mut self, now: u32) -> u64 {
        let bytes = self.by_use.remove(&now).unwrap_or(0);
        self.total -= bytes;
        bytes
    }

    /// Keeps what is used again, and drops what is used last as far as there is no room.
    fn keep(&mut self, next: Option<u32>, bytes: u64) {
        let Some(next) = next else { return };
        // Held in two tiers it is still one sample.
        let before = self.by_use.insert(next, bytes);
        self.total += bytes - before.unwrap_or(0).min(bytes);
        while self.total > self.room {
            let Some(mut last) = self.by_use.last_entry() else {
                return;
            };
            let over = self.total - self.room;
            if *last.get() > over {
                *last.get_mut() -= over;
                self.total -= over;
            } else {
                self.total -= last.remove();
            }
        }
    }
}

/// In each epoch a rank reads what it uses, but for what it carries into it: K at most, and only what it had or used
/// before. In all it reads what it uses and did not have.
fn by_epoch(brief: &Brief, rank: Rank, held: &[SampleId]) -> Bytes {
    let room = carried_by_one(brief, rank).0;
    let size = |sample: SampleId| brief.catalog.size(sample).0;
    let mut is_known = vec![false; brief.catalog.len() as usize];
    let mut known = 0;
    for sample in held {
        if !std::mem::replace(&mut is_known[sample.index()], true) {
            known += size(*sample);
        }
    }
    let all = brief.catalog.total().0;
    let mut minimum = 0;
    let mut new = 0;
    // In which epoch a sample was seen last, counted from 1.
    let mut seen_in = vec![0; is_known.len()];
    for epoch in (brief.start.epoch.0..brief.orders.epochs()).map(Epoch) {
        if is_plain(brief) && known == all {
            minimum += all.saturating_sub(room);
            continue;
        }
        let carried = room.min(known);
        let from = if epoch == brief.start.epoch {
            brief.start
        } else {
            Mark {
                epoch,
                step: Step(0),
            }
        };
        let mut used = 0;
        for sample in uses_in(brief, rank, from) {
            if std::mem::replace(&mut seen_in[sample.index()], epoch.0 + 1) != epoch.0 + 1 {
                used += size(sample);
            }
            if !std::mem::replace(&mut is_known[sample.index()], true) {
                known += size(sample);
                new += size(sample);
            }
        }
        minimum += used.saturating_sub(carried);
    }
    Bytes(minimum.max(new))
}

/// What a rank uses from a mark to the end of its epoch.
fn uses_in(brief: &Brief, rank: Rank, from: Mark) -> impl Iterator<Item = SampleId> {
    let stream = Stream::new(brief.orders.clone(), brief.layout.clone(), rank, from);
    stream
        .take_while(move |access| access.epoch == from.epoch)
        .map(|access| access.sample)
}
