//! Every sample is read from the source when the trainer asks for it; nothing overlaps.

use super::{Brief, Delivery, Part, Parts, Policy, Share, Unsupported};

pub(super) struct Naive;

impl Policy for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        Ok(Box::new(|rank| Part {
            delivery: Delivery::OnDemand,
            ..Part::cacheless(brief, rank)
        }))
    }
}
