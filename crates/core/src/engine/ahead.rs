//! The rank's stream with what is known of its samples, looked up in groups: sizes and maps lie all over memory, and
//! looks at many of them at once overlap (a third of the time of a large simulation).

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, SampleId, Step};
use crate::stream::{Mark, Stream};
use crate::tier_map::TierMap;
use crate::units::Bytes;

/// Accesses that are looked up together.
const LOOKED_UP: u32 = 64;

/// An access of the stream that has been looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upcoming {
    pub(super) sample: SampleId,
    pub(super) epoch: Epoch,
    pub(super) step: Step,
    pub(super) bytes: Bytes,
    /// Where it lives, under a plan that gives samples homes.
    pub(super) home: Option<Home>,
}

/// A cursor over the stream.
#[derive(Clone)]
pub(super) struct Ahead {
    stream: Stream,
    catalog: Arc<Catalog>,
    homes: Option<Arc<Homes>>,
    upcoming: Vec<Upcoming>,
    at: usize,
    /// Accesses left behind.
    passed: u64,
}

impl Ahead {
    pub(super) fn new(stream: Stream, catalog: Arc<Catalog>, homes: Option<Arc<Homes>>) -> Self {
        Self {
            stream,
            catalog,
            homes,
            upcoming: Vec::with_capacity(LOOKED_UP as usize),
            at: 0,
            passed: 0,
        }
    }

    /// The next access; `None` at the end of the job. `maps` will be asked about it soon.
    #[inline]
    pub(super) fn peek(&mut self, maps: [Option<&TierMap>; 2]) -> Option<Upcoming> {
        if self.at == self.upcoming.len() {
            self.look_up(maps);
        }
        self.upcoming.get(self.at).copied()
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        self.at += 1;
        self.passed += 1;
    }

    /// How many accesses have been left behind.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Sizes of samples.
    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Draws the next accesses, then touches all that is known of them.
    #[cold]
    fn look_up(&mut self, maps: [Option<&TierMap>; 2]) {
        self.at = 0;
        self.upcoming.clear();
        self.stream.draw(LOOKED_UP, |sample, Mark { epoch, step }| {
            self.upcoming.push(Upcoming {
                sample,
                epoch,
                step,
                bytes: Bytes(0),
                home: None,
            });
        });
        for next in &mut self.upcoming {
            next.bytes = self.catalog.size(next.sample);
        }
        if let Some(homes) = &self.homes {
            for next in &mut self.upcoming {
                next.home = homes.get(next.sample);
            }
        }
        for map in maps.into_iter().flatten() {
            for next in &self.upcoming {
                std::hint::black_box(map.get(next.sample));
            }
        }
    }
}
