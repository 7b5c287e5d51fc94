//! Every sample is read from the source when the trainer asks for it; nothing overlaps.

use super::{Brief, Delivery, Plan, Policy, Unsupported};

pub(super) struct Naive;

impl Policy for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        Ok(Plan::cacheless(brief, Delivery::OnDemand))
    }
}
