//! The policy that is ours. It reaches the source minimum.
//!
//! 1. Cover first: as many bytes as fit get exactly one home, on the rank that will use the sample most often (ties:
//!    earliest first use), fast tiers first, the most used samples first ([`cover`]). Each rank finds out who that is
//!    for a range of samples.
//! 2. Replicate second: room that is left on a rank keeps copies of what it will use again soonest.
//! 3. Read once: the first user reads a sample from the source and hands it to its home; from then on everyone reads
//!    it from there. What has no home is read by each of its users.
//!
//! With local batches the home is the first user, which makes homes even, and batches are re-dealt by home.

use std::ops::Range;
use std::sync::Arc;

use super::cover::{Cover, cover};
use super::placement::{Room, dealt_by};
use super::share::{paces, range_of, work_of};
use super::{Assignment, Brief, Keeping, Part, Parts, Policy, Routes, Share, Unsupported, Work};
use crate::foresight::{By, Favourite, Foresight};
use crate::homes::Homes;
use crate::ids::{Epoch, Position, Rank, SampleId};
use crate::stream::{Mark, Orders};
use crate::threads::Rule;

pub(super) struct Foresee;

impl Policy for Foresee {
    fn name(&self) -> &'static str {
        "foresee"
    }

    fn balances(&self) -> Option<Rule> {
        Some(Rule::Foresee)
    }

    fn work(&self, brief: &Brief, ranks: Range<u32>) -> Vec<Work> {
        if !gives_homes_together(brief) {
            return vec![Work::Nothing; ranks.len()];
        }
        // Ranges follow each other, so those of several ranks are one.
        let start = range_of(brief, Rank(ranks.start)).start;
        let end = ranks
            .clone()
            .last()
            .map_or(start, |last| range_of(brief, Rank(last)).end);
        let mut favourites = favourites(brief, &foresight(brief), start..end).into_iter();
        let work = ranks.map(|rank| {
            let count = range_of(brief, Rank(rank)).len();
            Work::Favourites(favourites.by_ref().take(count).collect())
        });
        work.collect()
    }

    fn parts<'a>(&self, brief: &'a Brief, shares: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        let foresight = foresight(brief);
        if !gives_homes_together(brief) {
            return if brief.hosts.ranks() == 1 {
                Ok(sole(brief, shares, foresight))
            } else {
                lone(brief, foresight)
            };
        }
        let favourites = gathered(brief, shares, &foresight);
        let (homes, room) = cover(brief, &paces(brief, shares), &favourites);
        drop(favourites);
        let homes = Arc::new(homes);
        let orders = dealt_by(brief, &homes);
        let foresight = match brief.assignment {
            Assignment::Order => foresight,
            Assignment::Local => {
                Foresight::new(orders.clone(), brief.layout.clone(), brief.hosts.clone())
            }
        };
        Ok(with_homes(
            brief,
            Covered {
                orders,
                homes,
                room,
                foresight,
            },
        ))
    }
}

/// Whether there are several ranks that can serve each other.
fn gives_homes_together(brief: &Brief) -> bool {
    brief.peers && brief.hosts.ranks() > 1
}

fn foresight(brief: &Brief) -> Foresight {
    Foresight::new(
        brief.orders.clone(),
        brief.layout.clone(),
        brief.hosts.clone(),
    )
}

/// Who is to be the home of each sample of a range, if it has room: who uses it most, or, with local batches, who uses it
/// first.
fn favourites(brief: &Brief, foresight: &Foresight, samples: Range<u32>) -> Vec<Favourite> {
    match brief.assignment {
        Assignment::Order => foresight.favourites(samples),
        Assignment::Local => samples
            .map(|sample| first_user(foresight, SampleId(sample)))
            .collect(),
    }
}

/// A sample's first user in place of its most frequent.
fn first_user(foresight: &Foresight, sample: SampleId) -> Favourite {
    match foresight.first_use(sample, By::Anyone) {
        Some(first) => Favourite {
            rank: first.rank,
            uses: 1,
        },
        None => Favourite {
            rank: Rank(0),
            uses: 0,
        },
    }
}

/// The favourites of all samples from all shares.
fn gathered(brief: &Brief, shares: &[Share], foresight: &Foresight) -> Vec<Favourite> {
    let mut all = Vec::with_capacity(brief.catalog.len() as usize);
    for rank in brief.hosts.all() {
        match work_of(shares, rank) {
            Some(Work::Favourites(found)) => all.extend_from_slice(found),
            _ => all.extend(favourites(brief, foresight, range_of(brief, rank))),
        }
    }
    all
}

/// What all ranks agree on.
struct Covered {
    orders: Orders,
    homes: Arc<Homes>,
    /// What is left beside the homes.
    room: Room,
    foresight: Foresight,
}

/// Ranks that cannot serve each other: no sample lives on one rank for all, each keeps what it will use again soonest.
fn lone(brief: &Brief, foresight: Foresight) -> Result<Parts<'_>, Unsupported> {
    if brief.assignment == Assignment::Local {
        return Err(Unsupported(
            "assignment \"local\" deals samples to the ranks that hold them, but here ranks do not serve each other: \
             some did not come, no tier has room, or peers.transport is \"none\"; use assignment \"order\", or mend that"
                .into(),
        ));
    }
    Ok(with_homes(
        brief,
        Covered {
            orders: brief.orders.clone(),
            homes: Arc::new(Homes::none(brief.catalog.len())),
            room: Room::new(brief, None),
            foresight,
        },
    ))
}

/// One rank uses all samples equally often. What it holds stays, then comes what it uses first: whatever is read before
/// the end of the first epoch, which may have begun in its middle, is carried on as far as there is room.
fn sole<'a>(brief: &'a Brief, shares: &[Share], foresight: Foresight) -> Parts<'a> {
    let mut cover = Cover::new(brief, &paces(brief, shares), None);
    for (sample, _) in brief.held.iter() {
        if cover.homes.get(sample).is_none() {
            cover.stay(sample, Rank(0));
        }
    }
    let Mark { epoch, step } = brief.start;
    let rest = epoch.0..brief.orders.epochs().min(epoch.0.saturating_add(2));
    let mut from = u64::from(step.0) * u64::from(brief.layout.global_batch());
    for epoch in rest.map(Epoch) {
        let order = brief.orders.epoch(epoch);
        for position in (from..order.len()).map(Position) {
            let sample = order.sample(position);
            if cover.homes.get(sample).is_none() {
                cover.place(sample, Rank(0));
            }
        }
        from = 0;
    }
    let everything = Favourite {
        rank: Rank(0),
        uses: 1,
    };
    cover.close_gaps(&vec![everything; brief.catalog.len() as usize]);
    with_homes(
        brief,
        Covered {
            orders: brief.orders.clone(),
            homes: Arc::new(cover.homes),
            room: cover.room,
            foresight,
        },
    )
}

fn with_homes(brief: &Brief, covered: Covered) -> Parts<'_> {
    Box::new(move |rank| Part {
        orders: covered.orders.clone(),
        routes: Routes::Caches,
        keeping: Keeping::Homes {
            homes: Arc::clone(&covered.homes),
            spare: covered.room.own_free(rank),
            foresight: covered.foresight.clone(),
        },
        ..Part::cacheless(brief, rank)
    })
}
