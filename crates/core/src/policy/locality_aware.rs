//! Locality-aware loading (Yang & Cong): distributed caching in even, disjoint shares, and each global batch re-dealt
//! so that ranks train on what they hold, evened out by the greedy balance.

use super::placement::Spread;
use super::{Brief, Delivery, Holders, Parts, Policy, Share, Unsupported};
use crate::assign;

pub(super) struct LocalityAware;

impl Policy for LocalityAware {
    fn name(&self) -> &'static str {
        "locality-aware"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_alone()?;
        let spread = Spread::new(brief, None);
        let orders = assign::local(&brief.orders, &brief.layout, &spread.homes);
        Ok(spread.into_parts_with(brief, orders, Delivery::Ahead))
    }

    fn holders(&self, brief: &Brief) -> Option<Holders> {
        Some(Spread::new(brief, None).into_holders())
    }
}
