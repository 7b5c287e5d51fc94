//! Lobster: what a rank will need next is brought into its tiers ahead of the staging buffer, and copies go by when the
//! host uses them again. After a use: a copy that the host does not use any more goes, unless it is the last one and
//! somebody needs it; so does one that the host does not use in the next epoch. When room is needed, the copy whose next
//! use is the furthest away goes, never for one that is needed later.

use super::placement::Room;
use super::{Brief, Delivery, Keeping, Plan, Policy, Routes, Unsupported};
use crate::foresight::Foresight;

pub(super) struct Lobster;

impl Policy for Lobster {
    fn name(&self) -> &'static str {
        "lobster"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        brief.refuse_local()?;
        let foresight = Foresight::new(brief.orders.clone(), brief.layout.clone(), brief.hosts);
        let keeping = |rank| Keeping::Reuse {
            room: Room::of_rank(brief, rank).free_of(rank),
            foresight: foresight.clone(),
        };
        Ok(Plan {
            orders: brief.orders.clone(),
            delivery: Delivery::Ahead,
            routes: Routes::Cheapest,
            filling: None,
            lockstep_epochs: 0,
            ranks: brief.hosts.all().map(keeping).collect(),
        })
    }
}
