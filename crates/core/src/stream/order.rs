//! One epoch's global order: from a position to its sample and back.

use std::sync::{Arc, OnceLock};

use super::feistel::Feistel;
use crate::ids::{Epoch, Position, SampleId};

/// Inverse of a sample that the order does not hold. An order has at most `u32::MAX` positions, so none is this.
const ABSENT: u32 = u32::MAX;

/// The samples of one epoch in their global order, before the tail is padded or dropped.
pub struct EpochOrder {
    kind: Kind,
    len: u64,
    samples: u32,
}

enum Kind {
    Table {
        forward: Forward,
        inverse: OnceLock<Vec<u32>>,
    },
    Feistel(Feistel),
    Sequential,
}

/// Lists that the job was given are shared, not copied.
enum Forward {
    Made(Vec<SampleId>),
    Given(Arc<[Vec<SampleId>]>, Epoch),
}

impl Forward {
    #[inline]
    fn get(&self) -> &[SampleId] {
        match self {
            Self::Made(list) => list,
            // One list alone holds for all epochs.
            Self::Given(lists, epoch) => &lists[epoch.index().min(lists.len() - 1)],
        }
    }
}

impl EpochOrder {
    /// The order of this list, over a catalog of `samples`. Samples may be missing or come more than once.
    ///
    /// # Panics
    ///
    /// When a sample is not in the catalog, or the list is longer than positions are counted (`u32::MAX`).
    pub fn from_samples(forward: Vec<SampleId>, samples: u32) -> Self {
        let last = forward.iter().max();
        assert!(
            last.is_none_or(|last| last.0 < samples),
            "sample {last:?} in a catalog of {samples}"
        );
        Self::table(Forward::Made(forward), samples)
    }

    /// A list that was checked when it was given.
    pub(super) fn given(lists: Arc<[Vec<SampleId>]>, epoch: Epoch, samples: u32) -> Self {
        Self::table(Forward::Given(lists, epoch), samples)
    }

    pub(super) fn feistel(feistel: Feistel) -> Self {
        let samples = feistel.samples();
        Self {
            kind: Kind::Feistel(feistel),
            len: u64::from(samples),
            samples,
        }
    }

    pub(super) fn sequential(samples: u32) -> Self {
        Self {
            kind: Kind::Sequential,
            len: u64::from(samples),
            samples,
        }
    }

    /// The same order as a table.
    pub(super) fn tabled(&self) -> Self {
        let mut forward = Vec::with_capacity(self.len as usize);
        self.each_sample((0..self.len).map(Position), |sample| forward.push(sample));
        Self::table(Forward::Made(forward), self.samples)
    }

    fn table(forward: Forward, samples: u32) -> Self {
        let len = forward.get().len() as u64;
        assert!(u32::try_from(len).is_ok(), "an order of {len} positions");
        Self {
            kind: Kind::Table {
                forward,
                inverse: OnceLock::new(),
            },
            len,
            samples,
        }
    }

    /// How many positions there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample at a position.
    ///
    /// # Panics
    ///
    /// When the order ends before `p`.
    #[inline]
    pub fn sample(&self, p: Position) -> SampleId {
        match &self.kind {
            Kind::Table { forward, .. } => forward.get()[p.index()],
            Kind::Feistel(feistel) => {
                assert!(p.0 < self.len, "position {p} of {}", self.len);
                SampleId(feistel.at(p.0 as u32))
            }
            Kind::Sequential => {
                assert!(p.0 < self.len, "position {p} of {}", self.len);
                SampleId(p.0 as u32)
            }
        }
    }

    /// The samples at many positions, one after another, as [`EpochOrder::sample`] gives them: what kind of order this
    /// is, is asked once.
    ///
    /// # Panics
    ///
    /// When the order ends before one of them.
    #[inline]
    pub(super) fn each_sample(
        &self,
        positions: impl Iterator<Item = Position>,
        mut then: impl FnMut(SampleId),
    ) {
        match &self.kind {
            Kind::Table { forward, .. } => {
                let forward = forward.get();
                positions.for_each(|p| then(forward[p.index()]));
            }
            Kind::Feistel(feistel) => positions.for_each(|p| {
                assert!(p.0 < self.len, "position {p} of {}", self.len);
                then(SampleId(feistel.at(p.0 as u32)));
            }),
            Kind::Sequential => positions.for_each(|p| then(self.sample(p))),
        }
    }

    /// The first position of a sample, or `None` when the order does not hold it. A table's inverse is made at the
    /// first call.
    #[inline]
    pub fn position(&self, s: SampleId) -> Option<Position> {
        if s.0 >= self.samples {
            return None;
        }
        let position = match &self.kind {
            Kind::Table { forward, inverse } => {
                inverse.get_or_init(|| inverse_of(forward.get(), self.samples))[s.index()]
            }
            Kind::Feistel(feistel) => feistel.invert(s.0),
            Kind::Sequential => s.0,
        };
        (position != ABSENT).then_some(Position(u64::from(position)))
    }

    /// The first positions of many samples, one after another, as [`EpochOrder::position`] gives them: what kind of
    /// order this is, is asked once.
    #[inline]
    pub(crate) fn each_position(
        &self,
        samples: impl Iterator<Item = SampleId>,
        mut then: impl FnMut(Option<Position>),
    ) {
        let known = self.samples;
        match &self.kind {
            Kind::Feistel(feistel) => {
                samples.for_each(|s| {
                    then((s.0 < known).then(|| Position(u64::from(feistel.invert(s.0)))));
                });
            }
            Kind::Table { forward, inverse } => {
                let inverse = inverse.get_or_init(|| inverse_of(forward.get(), known));
                let position = |s: SampleId| {
                    inverse
                        .get(s.index())
                        .filter(|&&position| position != ABSENT)
                };
                samples
                    .for_each(|s| then(position(s).map(|&position| Position(u64::from(position)))));
            }
            Kind::Sequential => samples.for_each(|s| then(self.position(s))),
        }
    }
}

/// First positions by sample.
fn inverse_of(forward: &[SampleId], samples: u32) -> Vec<u32> {
    let mut inverse = vec![ABSENT; samples as usize];
    // Backwards, so that of a sample's positions the first is written last.
    for (position, sample) in (0..forward.len() as u32).zip(forward).rev() {
        inverse[sample.index()] = position;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_sample_is_found_where_it_comes_first_and_a_missing_one_nowhere() {
        let order = EpochOrder::from_samples([2, 0, 2, 3].map(SampleId).to_vec(), 5);
        assert_eq!(order.len(), 4);
        let found: Vec<_> = (0..6)
            .map(|sample| order.position(SampleId(sample)).map(|p| p.0))
            .collect();
        assert_eq!(found, [Some(1), None, Some(0), Some(3), None, None]);
        assert_eq!(order.sample(Position(2)), SampleId(2));
    }

    #[test]
    #[should_panic(expected = "in a catalog of 3")]
    fn a_sample_outside_the_catalog_is_refused() {
        let _ = EpochOrder::from_samples(vec![SampleId(3)], 3);
    }

    #[test]
    #[should_panic(expected = "position 4 of 4")]
    fn no_sample_is_made_up_behind_the_end() {
        let _ = EpochOrder::sequential(4).sample(Position(4));
    }
}
