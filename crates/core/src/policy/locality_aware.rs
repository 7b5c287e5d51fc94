//! Locality-aware loading (Yang & Cong): distributed caching in even, disjoint shares, and each global batch re-dealt
//! so that ranks train on what they hold, evened out by the greedy balance.

use super::placement::Spread;
use super::{Brief, Delivery, Plan, Policy, Unsupported};
use crate::assign;

pub(super) struct LocalityAware;

impl Policy for LocalityAware {
    fn name(&self) -> &'static str {
        "locality-aware"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        let spread = Spread::new(brief, None);
        let orders = assign::local(&brief.orders, &brief.layout, &spread.homes);
        Ok(spread.into_plan_with(orders, Delivery::Ahead))
    }
}
