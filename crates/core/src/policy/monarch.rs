//! MONARCH: a host keeps what its ranks read first, until its tiers are full, and never evicts; hosts do not serve each
//! other. What did not fit comes from the source in every epoch.

use std::ops::Range;

use super::picked::Choice;
use super::placement::Room;
use super::{Brief, Part, Parts, Picks, Policy, Routes, Share, Unsupported, Work};
use crate::ids::{Epoch, Rank, SampleId, Step};
use crate::model::Scope;

pub(super) struct Monarch;

fn choice(brief: &Brief) -> Choice {
    Choice {
        scope: brief.widest_scope().max(Scope::Host),
        choose,
    }
}

impl Policy for Monarch {
    fn name(&self) -> &'static str {
        "monarch"
    }

    fn work(&self, brief: &Brief, ranks: Range<u32>) -> Vec<Work> {
        choice(brief).work(brief, ranks)
    }

    fn parts<'a>(&self, brief: &'a Brief, shares: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local()?;
        Ok(Box::new(move |rank| {
            let picks = choice(brief).of(brief, shares, rank);
            Part {
                routes: Routes::Host,
                keeping: picks.into_keeping(brief, false),
                ..Part::cacheless(brief, rank)
            }
        }))
    }
}

/// Chooses for whole hosts, one after another, that share their tiers with nobody else.
fn choose(brief: &Brief, ranks: Range<u32>) -> Vec<Picks> {
    let mut picks = vec![Picks::none(brief.system.tiers.len()); ranks.len()];
    let mut room = Room::new(brief, None);
    let mut next = ranks.start;
    while next < ranks.end {
        let members = brief.hosts.sharers(Scope::Host, Rank(next));
        next = members.end;
        let places = (members.start - ranks.start) as usize..(members.end - ranks.start) as usize;
        first_come(brief, members, &mut room, &mut picks[places]);
    }
    picks
}

/// Gives a host's room to what its ranks read, in the order of the steps, until nothing more fits.
fn first_come(brief: &Brief, ranks: Range<u32>, room: &mut Room, picks: &mut [Picks]) {
    let mut seen = vec![false; brief.catalog.len() as usize];
    let mut unseen = seen.len();
    for epoch in (0..brief.orders.epochs()).map(Epoch) {
        let order = brief.orders.epoch(epoch);
        for step in (0..brief.layout.steps()).map(Step) {
            for (rank, picks) in ranks.clone().map(Rank).zip(&mut *picks) {
                for index in 0..brief.layout.local_len(rank, step) {
                    let sample: SampleId =
                        order.sample(brief.layout.dealt(rank, step, index).position);
                    if std::mem::replace(&mut seen[sample.index()], true) {
                        continue;
                    }
                    unseen -= 1;
                    if let Some(tier) = room.first_fit(rank, brief.catalog.size(sample)) {
                        picks.by_tier[tier.index()].push(sample);
                    }
                }
            }
        }
        if unseen == 0 || ranks.clone().all(|rank| room.is_full(Rank(rank))) {
            return;
        }
    }
}
