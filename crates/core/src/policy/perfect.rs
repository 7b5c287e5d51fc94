//! No stall ever: the lower bound that the others are measured against. Not realisable.

use super::{Brief, Delivery, Part, Parts, Policy, Share, Unsupported};

pub(super) struct Perfect;

impl Policy for Perfect {
    fn name(&self) -> &'static str {
        "perfect"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        Ok(Box::new(|rank| Part {
            delivery: Delivery::Instant,
            ..Part::cacheless(brief, rank)
        }))
    }
}
