//! NoPFS / HDMLP: clairvoyant frequency placement. Each rank counts how often it will use every sample over the whole
//! job, keeps the most frequent in its fastest tier, the next in the next, and brings them in beside training, in the
//! order of first use. No rank knows the others' choice: some samples are held twice, others by nobody.
//!
//! A tier that ranks share is planned once for all of them, by their frequencies together, without what is already in
//! a faster tier of one of them.

use std::ops::Range;
use std::sync::Arc;

use super::picked::Choice;
use super::placement::{Room, most_used_first};
use super::{Brief, Holders, Part, Parts, Picks, Policy, Routes, Share, Unsupported, Work};
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, Rank, SampleId, Step, TierId};
use crate::model::Scope;

pub(super) struct NoPfs;

fn choice(brief: &Brief) -> Choice {
    Choice {
        scope: brief.widest_scope(),
        choose,
    }
}

impl Policy for NoPfs {
    fn name(&self) -> &'static str {
        "nopfs"
    }

    fn work(&self, brief: &Brief, ranks: Range<u32>) -> Vec<Work> {
        choice(brief).work(brief, ranks)
    }

    fn parts<'a>(&self, brief: &'a Brief, shares: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local()?;
        Ok(Box::new(move |rank| {
            let picks = choice(brief).of(brief, shares, rank);
            Part {
                routes: Routes::Cheapest,
                keeping: picks.into_keeping(brief, true),
                ..Part::cacheless(brief, rank)
            }
        }))
    }

    /// Whoever brings a sample in soonest. Each rank finds out what all others choose, one after another.
    fn holders(&self, brief: &Brief) -> Option<Holders> {
        let samples = brief.catalog.len();
        let mut homes = Homes::none(samples);
        let mut turns = vec![u32::MAX; samples as usize];
        for rank in brief.hosts.all() {
            let picks = choice(brief).of(brief, &[], rank);
            for (tier, picked) in (0..).map(TierId).zip(&picks.by_tier) {
                for (turn, sample) in (0..).zip(picked) {
                    if turn < turns[sample.index()] {
                        turns[sample.index()] = turn;
                        homes.set(*sample, Some(Home { rank, tier }));
                    }
                }
            }
        }
        Some(Holders {
            homes: Arc::new(homes),
            turns: Some(turns.into()),
        })
    }
}

/// Chooses for ranks that share their tiers with nobody else.
fn choose(brief: &Brief, ranks: Range<u32>) -> Vec<Picks> {
    let mut picks = vec![Picks::none(brief.system.tiers.len()); ranks.len()];
    let mut room = Room::new(brief, None);
    // Consecutive tiers of one scope are filled from one count of frequencies.
    let tiers: Vec<(TierId, Scope)> = brief
        .system
        .cache_tiers()
        .map(|(id, tier)| (id, tier.scope))
        .collect();
    for group in tiers.chunk_by(|a, b| a.1 == b.1) {
        let scope = group[0].1;
        let mut next = ranks.start;
        while next < ranks.end {
            let members = brief.hosts.sharers(scope, Rank(next));
            next = members.end;
            let places =
                (members.start - ranks.start) as usize..(members.end - ranks.start) as usize;
            let uses = Uses::count(brief, members);
            place(brief, group, &uses, &mut room, &mut picks[places]);
        }
    }
    picks
}

/// How often some ranks together use each sample.
struct Uses {
    members: Range<u32>,
    frequency: Vec<u32>,
    /// Samples with their first user, in order of first use.
    first: Vec<(SampleId, Rank)>,
}

impl Uses {
    fn count(brief: &Brief, members: Range<u32>) -> Self {
        let mut frequency = vec![0u32; brief.catalog.len() as usize];
        let mut first = Vec::new();
        let mut batch = Vec::new();
        for epoch in (0..brief.orders.epochs()).map(Epoch) {
            let order = brief.orders.epoch(epoch);
            for step in (0..brief.layout.steps()).map(Step) {
                for rank in members.clone().map(Rank) {
                    // Drawn first, counted then: the counts lie all over memory, and looks at them overlap.
                    batch.clear();
                    let indices = 0..brief.layout.local_len(rank, step);
                    batch.extend(
                        indices.map(|index| {
                            order.sample(brief.layout.dealt(rank, step, index).position)
                        }),
                    );
                    for &sample in &batch {
                        let count = &mut frequency[sample.index()];
                        if *count == 0 {
                            first.push((sample, rank));
                        }
                        *count += 1;
                    }
                }
            }
        }
        Self {
            members,
            frequency,
            first,
        }
    }

    /// The samples by frequency, most frequent first; equally frequent ones in order of first use. Each is given as its
    /// place in that order.
    fn by_frequency(&self) -> Vec<u32> {
        most_used_first(self.first.len(), |index| {
            self.frequency[self.first[index].0.index()]
        })
    }
}

/// Fills the tiers of `group` for the ranks that share them; `picks` are theirs.
fn place(
    brief: &Brief,
    group: &[(TierId, Scope)],
    uses: &Uses,
    room: &mut Room,
    picks: &mut [Picks],
) {
    let is_kept = kept_by(brief, picks);
    let mut chosen: Vec<Option<TierId>> = vec![None; uses.first.len()];
    for index in uses.by_frequency() {
        let (sample, rank) = uses.first[index as usize];
        if is_kept.get(sample.index()).copied().unwrap_or(false) {
            continue;
        }
        let bytes = brief.catalog.size(sample);
        let tiers = group.iter().map(|(tier, _)| *tier);
        chosen[index as usize] = tiers.into_iter().find(|tier| room.take(rank, *tier, bytes));
    }
    for (&(sample, rank), tier) in uses.first.iter().zip(chosen) {
        if let Some(tier) = tier {
            let place = (rank.0 - uses.members.start) as usize;
            picks[place].by_tier[tier.index()].push(sample);
        }
    }
}

/// Which samples are in a faster tier of one of these ranks; empty where none is.
fn kept_by(brief: &Brief, picks: &[Picks]) -> Vec<bool> {
    let mut kept = picks
        .iter()
        .flat_map(|picks| &picks.by_tier)
        .flatten()
        .peekable();
    if kept.peek().is_none() {
        return Vec::new();
    }
    let mut is_kept = vec![false; brief.catalog.len() as usize];
    for sample in kept {
        is_kept[sample.index()] = true;
    }
    is_kept
}
