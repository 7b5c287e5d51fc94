//! What a rank sees of the others at this moment of a prediction.

use foresee_core::engine::Outlook;
use foresee_core::ids::{Epoch, Rank, SampleId, TierId};
use foresee_core::model::{Model, Origin};
use foresee_core::units::{Pace, Seconds};

use super::source::Source;
use crate::copies::Copies;

/// What a rank sees now.
pub(super) struct Sight<'a> {
    pub(super) copies: &'a Copies,
    pub(super) source: &'a Source,
    pub(super) model: &'a Model,
    pub(super) rank: Rank,
}

impl Outlook for Sight<'_> {
    fn source(&mut self, _: Epoch) -> Pace {
        self.source.pace_of_another(self.rank)
    }

    fn elsewhere(&mut self, sample: SampleId) -> Option<Origin> {
        // What is recorded is there: arrivals are events.
        self.copies
            .cheapest(sample, self.rank, Seconds::ZERO, self.model)
    }

    fn is_at(&mut self, sample: SampleId, tier: TierId) -> bool {
        self.copies.is_at(sample, tier, Seconds::ZERO)
    }

    fn is_last_copy(&mut self, sample: SampleId) -> bool {
        self.copies.count(sample) <= 1
    }
}
