//! Where decoded samples go: each batch of the stream gets one piece of the staging buffer, its samples side by side in it.

use std::collections::VecDeque;

use foresee_core::ids::{Epoch, Rank, Step};
use foresee_core::stream::{Layout, Mark};

use super::stores::Stores;
use crate::arena::Part;

/// The places of the samples that are staged next.
pub(super) struct Shelf {
    sample_bytes: usize,
    layout: Layout,
    rank: Rank,
    /// Where to look for the next batch.
    next: Mark,
    /// The epoch of the batch that is being filled, and what is left of it.
    epoch: Epoch,
    left: VecDeque<Part>,
}

impl Shelf {
    pub(super) fn new(sample_bytes: usize, layout: Layout, rank: Rank, next: Mark) -> Self {
        Self {
            sample_bytes,
            layout,
            rank,
            next,
            epoch: next.epoch,
            left: VecDeque::new(),
        }
    }

    /// The place of the next sample, and the epoch it is for; none when the staging buffer has no room for its batch. When
    /// nothing else is staged it gets one in any case.
    pub(super) fn next(&mut self, stores: &Stores, starving: bool) -> Option<(Part, Epoch)> {
        if self.left.is_empty() {
            let (mark, len) = self.next_batch();
            self.left = stores
                .arena
                .stage_batch(len as usize, self.sample_bytes, starving)?
                .into();
            self.epoch = mark.epoch;
            self.next = self.after(mark);
        }
        Some((self.left.pop_front()?, self.epoch))
    }

    /// The first batch from the mark on in which this rank has samples, and how many.
    fn next_batch(&self) -> (Mark, u32) {
        let mut mark = self.next;
        loop {
            let len = self.layout.local_len(self.rank, mark.step);
            if len > 0 {
                return (mark, len);
            }
            mark = self.after(mark);
        }
    }

    fn after(&self, mark: Mark) -> Mark {
        if mark.step.0 + 1 < self.layout.steps() {
            Mark {
                step: Step(mark.step.0 + 1),
                ..mark
            }
        } else {
            Mark {
                epoch: Epoch(mark.epoch.0 + 1),
                step: Step(0),
            }
        }
    }
}
