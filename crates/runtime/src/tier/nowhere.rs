//! A tier that is switched off: it has no room, and never holds anything.

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::{Arrived, Found, Kept, Secured, Tier, TierError};
use crate::stamp::Stamp;

/// No tier.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl Tier for Nowhere {
    fn capacity(&self) -> Bytes {
        Bytes(0)
    }

    fn held(&self) -> Vec<SampleId> {
        Vec::new()
    }

    fn read(&self, _: SampleId, _: &mut [u8]) -> Result<Found, TierError> {
        Ok(Found::NotHeld)
    }

    fn keep_secured(
        &self,
        _: SampleId,
        _: Arrived<'_>,
        _: Secured,
        _: Option<Stamp>,
    ) -> Result<Kept, TierError> {
        Ok(Kept::NoRoom)
    }

    fn evict(&self, _: SampleId) {}

    fn is_closed_to(&self, _: Bytes) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::conformance;

    #[test]
    fn conforms() {
        conformance::check_holds_nothing(&Nowhere);
    }
}
