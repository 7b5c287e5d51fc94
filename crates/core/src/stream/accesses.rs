//! One rank's accesses in order: a cursor over epochs, steps and the rank's local batches.

use std::sync::Arc;

use super::layout::{Layout, Portion};
use super::order::EpochOrder;
use super::orders::Orders;
use crate::ids::{Epoch, Rank, SampleId, Step};

/// Where a job stands: the next step to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Epoch of the step.
    pub epoch: Epoch,
    /// The step. The number of steps in an epoch stands for the first step of the next.
    pub step: Step,
}

impl Mark {
    /// The beginning of a job.
    pub const START: Self = Self {
        epoch: Epoch(0),
        step: Step(0),
    };
}

/// One use of a sample by a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is used.
    pub sample: SampleId,
    /// In which epoch.
    pub epoch: Epoch,
    /// In which global batch.
    pub step: Step,
    /// Index in the rank's local batch.
    pub index: u32,
    /// Whether it repeats a sample of this epoch to fill the tail.
    pub padded: bool,
}

/// One rank's accesses in order. Steps without a share for this rank do not appear.
///
/// The epoch's order is held, so the window of [`Orders`] is asked (and a table perhaps made) only when an epoch
/// begins: in [`Stream::new`] and by the [`Stream::advance`] that leaves an epoch's last access.
#[derive(Clone)]
pub struct Stream {
    orders: Orders,
    layout: Layout,
    rank: Rank,
    at: Option<Cursor>,
}

/// The local batch that is being read.
#[derive(Clone)]
struct Cursor {
    order: Arc<EpochOrder>,
    epoch: Epoch,
    step: Step,
    share: Portion,
    index: u32,
}

impl Cursor {
    #[inline]
    fn access(&self, layout: &Layout) -> Access {
        let dealt = layout.dealt_of(self.share, self.index);
        let sample = self.order.sample(dealt.position);
        Access {
            sample,
            epoch: self.epoch,
            step: self.step,
            index: self.index,
            padded: dealt.padded,
        }
    }
}

impl Stream {
    /// The accesses of `rank` from a mark to the end of the job. Nothing is walked through to get there.
    ///
    /// # Panics
    ///
    /// When the layout is not for orders of this length, or has no such rank.
    pub fn new(orders: Orders, layout: Layout, rank: Rank, from: Mark) -> Self {
        assert_eq!(
            orders.len(),
            layout.positions(),
            "positions of the orders and of the layout"
        );
        assert!(rank.0 < layout.world(), "rank {rank} of {}", layout.world());
        let mut stream = Self {
            orders,
            layout,
            rank,
            at: None,
        };
        stream.enter(from);
        stream
    }

    /// The next access, or `None` at the end of the job.
    #[inline]
    pub fn peek(&self) -> Option<Access> {
        self.at.as_ref().map(|at| at.access(&self.layout))
    }

    /// Leaves the next access behind.
    #[inline]
    pub fn advance(&mut self) {
        let Some(at) = &mut self.at else { return };
        at.index += 1;
        if at.index >= at.share.len {
            let mark = Mark {
                epoch: at.epoch,
                step: Step(at.step.0 + 1),
            };
            self.enter(mark);
        }
    }

    /// Leaves the next accesses behind, up to `count` of them; `then` gets each sample and its step. What is the same
    /// for a local batch is worked out once for it, and looks at its order overlap.
    #[inline]
    pub(crate) fn draw(&mut self, count: u32, mut then: impl FnMut(SampleId, Mark)) {
        let mut wanted = count;
        while wanted > 0 && self.at.is_some() {
            wanted -= self.draw_of_batch(wanted, &mut then);
        }
    }

    /// The same, none beyond the local batch; returns how many there were.
    #[inline]
    fn draw_of_batch(&mut self, count: u32, mut then: impl FnMut(SampleId, Mark)) -> u32 {
        let Some(at) = &mut self.at else { return 0 };
        let mark = Mark {
            epoch: at.epoch,
            step: at.step,
        };
        let drawn = count.min(at.share.len - at.index);
        let positions = (at.index..at.index + drawn)
            .map(|index| self.layout.dealt_of(at.share, index).position);
        at.order.each_sample(positions, |sample| then(sample, mark));
        at.index += drawn;
        if at.index == at.share.len {
            self.enter(Mark {
                step: Step(mark.step.0 + 1),
                ..mark
            });
        }
        drawn
    }

    /// Moves to the first local batch from `mark` on that is not empty.
    fn enter(&mut self, mark: Mark) {
        let held = self.at.take();
        self.at = self.busy_mark(mark).map(|Mark { epoch, step }| {
            let order = match held {
                Some(held) if held.epoch == epoch => held.order,
                _ => self.orders.epoch(epoch),
            };
            Cursor {
                order,
                epoch,
                step,
                share: self.layout.share(self.rank, step),
                index: 0,
            }
        });
    }

    fn busy_mark(&self, mark: Mark) -> Option<Mark> {
        let epochs = self.orders.epochs();
        if mark.epoch.0 >= epochs {
            return None;
        }
        if let Some(step) = self.layout.busy_step(self.rank, mark.step) {
            return Some(Mark { step, ..mark });
        }
        let epoch = Epoch(mark.epoch.0 + 1);
        if epoch.0 >= epochs {
            return None;
        }
        self.layout
            .busy_step(self.rank, Step(0))
            .map(|step| Mark { epoch, step })
    }
}

impl Iterator for Stream {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        let access = self.peek();
        self.advance();
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Deal, LayoutSpec, Shuffle, Tail};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn draws_what_would_come_one_by_one(samples in 1u32..40, world in 1u32..5, batch in 1u32..9, count in 1u32..30) {
            for shuffle in [Shuffle::Feistel { seed: 7 }, Shuffle::Sequential] {
                let orders = Orders::new(shuffle, samples, 3).unwrap();
                let positions = u64::from(samples);
                let tail = Tail::Pad;
                let spec =
                    LayoutSpec { positions, world, global_batch: batch, deal: Deal::Strided, tail, drop_last: false };
                let Ok(layout) = Layout::new(spec) else { continue };
                let start = Mark { epoch: Epoch(0), step: Step(0) };
                let mut stream = Stream::new(orders, layout, Rank(world - 1), start);
                let singly: Vec<_> = stream.clone().map(|a| (a.sample, Mark { epoch: a.epoch, step: a.step })).collect();
                let mut drawn = Vec::new();
                while stream.peek().is_some() {
                    let before = drawn.len();
                    stream.draw(count, |sample, mark| drawn.push((sample, mark)));
                    prop_assert_eq!(drawn.len(), singly.len().min(before + count as usize));
                }
                prop_assert_eq!(drawn, singly);
            }
        }
    }
}
