//! Lobster: what a rank will need next is brought into its tiers ahead of the staging buffer, and copies go by when the
//! host uses them again. After a use: a copy that the host does not use any more goes, unless it is the last one and
//! somebody needs it; so does one that the host does not use in the next epoch. When room is needed, the copy whose next
//! use is the furthest away goes, never for one that is needed later.

use super::placement::Room;
use super::{Brief, Keeping, Part, Parts, Policy, Routes, Share, Unsupported};
use crate::foresight::Foresight;
use crate::threads::Rule;

pub(super) struct Lobster;

impl Policy for Lobster {
    fn name(&self) -> &'static str {
        "lobster"
    }

    fn balances(&self) -> Option<Rule> {
        Some(Rule::Lobster)
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local()?;
        let foresight = Foresight::new(
            brief.orders.clone(),
            brief.layout.clone(),
            brief.hosts.clone(),
        );
        Ok(Box::new(move |rank| Part {
            routes: Routes::Cheapest,
            keeping: Keeping::Reuse {
                room: Room::of_rank(brief, rank).free_of(rank),
                foresight: foresight.clone(),
            },
            ..Part::cacheless(brief, rank)
        }))
    }
}
