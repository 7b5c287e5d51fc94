//! How the positions of an epoch are dealt to the ranks.
//!
//! An epoch's order is first padded or cut to what is dealt ([`Tail`]), then cut into global batches: step h is the
//! dealt positions `h * batch .. (h + 1) * batch`, the last perhaps fewer. Within a global batch every rank gets its
//! share ([`Deal`]); shares differ by at most one. With a batch that the world divides this is exactly what torch's
//! `DistributedSampler` and `DataLoader` deliver, because cutting a rank's strided list into local batches is the same
//! as striding through each global batch.
//!
//! All ranks have the same number of steps, always: a rank that had one more would wait for the others for ever. Hence
//! `drop_last` drops the last step for all ranks when its *global* batch is incomplete; and a rank whose share of a
//! step is empty still takes part in that step.

use std::ops::Range;

use super::error::StreamError;
use crate::ids::{Position, Rank, Step};

/// Which of a global batch's offsets a rank gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// Every world-th, from the rank on.
    Strided,
    /// A contiguous part.
    Blocked,
}

/// What happens to the positions that the world does not divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The order is extended from its own beginning, again and again if need be.
    Pad,
    /// They are left out.
    Drop,
    /// They are dealt as they are: nothing twice, nothing missing, and some ranks get one less in the last step.
    Exact,
}

/// What a layout is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutSpec {
    /// Length of an epoch's order.
    pub positions: u64,
    /// Number of ranks.
    pub world: u32,
    /// Samples of all ranks in a step.
    pub global_batch: u32,
    /// Which offsets a rank gets.
    pub deal: Deal,
    /// What happens to the positions that the world does not divide.
    pub tail: Tail,
    /// Whether the last step of an epoch is dropped, for all ranks, when its global batch is incomplete.
    pub drop_last: bool,
}

/// The dealing of every epoch of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    positions: u64,
    world: u32,
    global_batch: u32,
    deal: Deal,
    /// Positions that are dealt and belong to a step.
    kept: u64,
    steps: u32,
    last_len: u32,
}

/// A place in a rank's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Whose.
    pub rank: Rank,
    /// In which global batch.
    pub step: Step,
    /// Index in the rank's local batch.
    pub index: u32,
}

/// What a slot is dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealt {
    /// Index into the epoch's order.
    pub position: Position,
    /// Whether the position was dealt before in this epoch, to fill the tail.
    pub padded: bool,
}

/// A rank's part of one global batch: dealt positions `first`, `first + stride` ...
#[derive(Clone, Copy, Debug)]
pub(super) struct Portion {
    first: u64,
    stride: u32,
    pub(super) len: u32,
}

impl Layout {
    /// The dealing that `spec` asks for.
    pub fn new(spec: LayoutSpec) -> Result<Self, StreamError> {
        let LayoutSpec {
            positions,
            world,
            global_batch,
            deal,
            tail,
            drop_last,
        } = spec;
        if world == 0 {
            return Err(StreamError::NoRanks);
        }
        if global_batch == 0 {
            return Err(StreamError::NoBatch);
        }
        if positions == 0 {
            return Err(StreamError::NoPositions);
        }
        let too_long = StreamError::TooLong {
            positions,
            global_batch,
        };
        let ranks = u64::from(world);
        let batch = u64::from(global_batch);
        let dealt = match tail {
            Tail::Pad => positions
                .checked_next_multiple_of(ranks)
                .ok_or_else(|| too_long.clone())?,
            Tail::Drop => positions - positions % ranks,
            Tail::Exact => positions,
        };
        if dealt == 0 {
            return Err(StreamError::AllDropped { positions, world });
        }
        let kept = if drop_last {
            dealt - dealt % batch
        } else {
            dealt
        };
        if kept == 0 {
            return Err(StreamError::NoStep {
                dealt,
                global_batch,
            });
        }
        let steps = u32::try_from(kept.div_ceil(batch)).map_err(|_| too_long)?;
        let last_len = (kept - u64::from(steps - 1) * batch) as u32;
        Ok(Self {
            positions,
            world,
            global_batch,
            deal,
            kept,
            steps,
            last_len,
        })
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Samples of all ranks in a step (the last of an epoch may have fewer).
    pub fn global_batch(&self) -> u32 {
        self.global_batch
    }

    /// Steps in an epoch, the same for all ranks.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The dealt positions of a global batch. Those from the length of the order on are padding.
    ///
    /// # Panics
    ///
    /// When the epoch ends before `step`.
    pub fn batch(&self, step: Step) -> Range<u64> {
        assert!(step.0 < self.steps, "step {step} of {}", self.steps);
        let from = u64::from(step.0) * u64::from(self.global_batch);
        from..from + u64::from(self.batch_len(step))
    }

    /// How many samples a rank gets in a step; may be none.
    pub fn local_len(&self, rank: Rank, step: Step) -> u32 {
        self.share(rank, step).len
    }

    /// How many accesses a rank has in an epoch.
    pub fn rank_len(&self, rank: Rank) -> u64 {
        let full = u64::from(self.part(rank, self.global_batch).1);
        let last = u64::from(self.part(rank, self.last_len).1);
        full * u64::from(self.steps - 1) + last
    }

    /// What a rank is dealt at an index of its local batch, which must be below [`Layout::local_len`].
    #[inline]
    pub fn dealt(&self, rank: Rank, step: Step, index: u32) -> Dealt {
        self.dealt_of(self.share(rank, step), index)
    }

    /// Where a position of the order is dealt (not where it is repeated as padding); `None` when it is dropped.
    #[inline]
    pub fn slot(&self, p: Position) -> Option<Seat> {
        if p.0 >= self.kept.min(self.positions) {
            return None;
        }
        let batch = u64::from(self.global_batch);
        let step = Step((p.0 / batch) as u32);
        let offset = (p.0 % batch) as u32;
        let (rank, index) = match self.deal {
            Deal::Strided => (offset % self.world, offset / self.world),
            Deal::Blocked => {
                let len = self.batch_len(step);
                // The last rank whose block begins at or before the offset: r * len < (offset + 1) * world.
                let rank =
                    (((u64::from(offset) + 1) * u64::from(self.world) - 1) / u64::from(len)) as u32;
                (rank, offset - self.block_start(rank, len))
            }
        };
        Some(Seat {
            rank: Rank(rank),
            step,
            index,
        })
    }

    /// The same global batches dealt to another number of ranks. What is padded or dropped stays as it was for the
    /// world that the job began with, so steps and samples are those of the job before.
    pub fn redealt(&self, world: u32) -> Result<Layout, StreamError> {
        if world == 0 {
            return Err(StreamError::NoRanks);
        }
        Ok(Self {
            world,
            ..self.clone()
        })
    }

    /// The same with the last global batch filled up, from the order's beginning, until it divides by the ranks or is
    /// whole: no rank is left without a sample there.
    #[must_use]
    pub fn filled(&self) -> Layout {
        let even = self
            .last_len
            .checked_next_multiple_of(self.world)
            .unwrap_or(self.global_batch);
        let last_len = even.min(self.global_batch);
        Self {
            kept: self.kept + u64::from(last_len - self.last_len),
            last_len,
            ..self.clone()
        }
    }

    /// Length of the orders that are dealt.
    pub(crate) fn positions(&self) -> u64 {
        self.positions
    }

    /// Which offsets a rank gets.
    pub(crate) fn deal(&self) -> Deal {
        self.deal
    }

    /// Positions that are dealt and belong to a step.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// A rank's part of a step.
    #[inline]
    pub(super) fn share(&self, rank: Rank, step: Step) -> Portion {
        debug_assert!(step.0 < self.steps, "step {step} of {}", self.steps);
        let (offset, len) = self.part(rank, self.batch_len(step));
        let stride = match self.deal {
            Deal::Strided => self.world,
            Deal::Blocked => 1,
        };
        let first = u64::from(step.0) * u64::from(self.global_batch) + u64::from(offset);
        Portion { first, stride, len }
    }

    /// All that a rank is dealt in an epoch, in order.
    pub(crate) fn each_dealt(&self, rank: Rank, mut then: impl FnMut(Dealt)) {
        for step in (0..self.steps).map(Step) {
            let share = self.share(rank, step);
            (0..share.len).for_each(|index| then(self.dealt_of(share, index)));
        }
    }

    /// Whether every position of the order is dealt exactly once.
    pub(crate) fn deals_each_once(&self) -> bool {
        self.kept == self.positions
    }

    /// What a share holds at an index.
    #[inline]
    pub(super) fn dealt_of(&self, share: Portion, index: u32) -> Dealt {
        debug_assert!(index < share.len, "index {index} of {}", share.len);
        let dealt = share.first + u64::from(index) * u64::from(share.stride);
        let padded = dealt >= self.positions;
        Dealt {
            position: Position(if padded {
                dealt % self.positions
            } else {
                dealt
            }),
            padded,
        }
    }

    /// The first step from `from` on in which a rank gets anything. All steps but the last are alike, so there are
    /// two to look at.
    pub(super) fn busy_step(&self, rank: Rank, from: Step) -> Option<Step> {
        let last = Step(self.steps - 1);
        [from, last]
            .into_iter()
            .find(|&step| from <= last && self.local_len(rank, step) > 0)
    }

    #[inline]
    fn batch_len(&self, step: Step) -> u32 {
        if step.0 + 1 < self.steps {
            self.global_batch
        } else {
            self.last_len
        }
    }

    /// A rank's first offset in a global batch of `len`, and how many it gets.
    #[inline]
    fn part(&self, rank: Rank, len: u32) -> (u32, u32) {
        debug_assert!(rank.0 < self.world, "rank {rank} of {}", self.world);
        match self.deal {
            Deal::Strided => (rank.0, len.saturating_sub(rank.0).div_ceil(self.world)),
            Deal::Blocked => {
                let start = self.block_start(rank.0, len);
                (start, self.block_start(rank.0 + 1, len) - start)
            }
        }
    }

    #[inline]
    fn block_start(&self, rank: u32, len: u32) -> u32 {
        (u64::from(rank) * u64::from(len) / u64::from(self.world)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: LayoutSpec = LayoutSpec {
        positions: 10,
        world: 4,
        global_batch: 4,
        deal: Deal::Strided,
        tail: Tail::Exact,
        drop_last: false,
    };

    #[test]
    fn what_cannot_be_dealt_is_refused_by_name() {
        let error = |spec| Layout::new(spec).unwrap_err();
        assert_eq!(error(LayoutSpec { world: 0, ..SPEC }), StreamError::NoRanks);
        assert_eq!(
            error(LayoutSpec {
                global_batch: 0,
                ..SPEC
            }),
            StreamError::NoBatch
        );
        assert_eq!(
            error(LayoutSpec {
                positions: 0,
                ..SPEC
            }),
            StreamError::NoPositions
        );
        assert_eq!(
            error(LayoutSpec {
                positions: 3,
                tail: Tail::Drop,
                ..SPEC
            }),
            StreamError::AllDropped {
                positions: 3,
                world: 4
            }
        );
        assert_eq!(
            error(LayoutSpec {
                global_batch: 11,
                drop_last: true,
                ..SPEC
            }),
            StreamError::NoStep {
                dealt: 10,
                global_batch: 11
            }
        );
        let positions = 1 << 40;
        assert_eq!(
            error(LayoutSpec {
                positions,
                global_batch: 4,
                ..SPEC
            }),
            StreamError::TooLong {
                positions,
                global_batch: 4
            }
        );
        assert_eq!(
            Layout::new(SPEC).unwrap().redealt(0),
            Err(StreamError::NoRanks)
        );
    }

    #[test]
    fn padding_repeats_the_order_as_often_as_needed() {
        let spec = LayoutSpec {
            positions: 3,
            world: 8,
            global_batch: 8,
            tail: Tail::Pad,
            ..SPEC
        };
        let layout = Layout::new(spec).unwrap();
        let dealt: Vec<_> = (0..8)
            .map(|rank| layout.dealt(Rank(rank), Step(0), 0))
            .collect();
        assert_eq!(
            dealt
                .iter()
                .map(|dealt| dealt.position.0)
                .collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2, 0, 1]
        );
        assert_eq!(dealt.iter().filter(|dealt| dealt.padded).count(), 5);
    }

    #[test]
    fn a_batch_smaller_than_the_world_leaves_ranks_without_a_share() {
        let layout = Layout::new(LayoutSpec {
            global_batch: 3,
            ..SPEC
        })
        .unwrap();
        assert_eq!(
            (0..4)
                .map(|rank| layout.rank_len(Rank(rank)))
                .collect::<Vec<_>>(),
            [4, 3, 3, 0]
        );
        assert_eq!(layout.busy_step(Rank(3), Step(0)), None);
        assert_eq!(layout.busy_step(Rank(1), Step(3)), None);
        assert_eq!(layout.busy_step(Rank(1), Step(2)), Some(Step(2)));
    }

    #[test]
    fn a_rank_may_be_busy_in_the_last_step_only() {
        // Blocks of 3 to 5 ranks leave ranks 0 and 2 without; of 2, ranks 2 and 4 have one each.
        let spec = LayoutSpec {
            positions: 5,
            world: 5,
            global_batch: 3,
            deal: Deal::Blocked,
            ..SPEC
        };
        let layout = Layout::new(spec).unwrap();
        assert_eq!(layout.busy_step(Rank(2), Step(0)), Some(Step(1)));
        assert_eq!(layout.busy_step(Rank(0), Step(0)), None);
    }
}
