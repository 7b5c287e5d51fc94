//! No stall ever: the lower bound that the others are measured against. Not realisable.

use super::{Brief, Delivery, Plan, Policy, Unsupported};

pub(super) struct Perfect;

impl Policy for Perfect {
    fn name(&self) -> &'static str {
        "perfect"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        Ok(Plan::cacheless(brief, Delivery::Instant))
    }
}
