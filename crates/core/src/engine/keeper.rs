//! What a rank keeps, by the plan's [`Keeping`]:
//!
//! - `Fixed`: a tier for each sample and a list for each tier's threads, made before the job.
//! - `Homes`: what has its home here, and copies in room that no home takes (`homes`).
//! - `Reuse`: what this host will use again soonest, brought in ahead of its use (`reuse`).

use super::ahead::{Ahead, Upcoming};
use super::homes::{HomesKeeper, Kept};
use super::pool::{CopyPool, Space};
use super::reuse::{self, ReuseKeeper};
use super::{Evicted, Next, Outlook, Read};
use crate::catalog::Catalog;
use crate::foresight::{By, When};
use crate::homes::Home;
use crate::ids::{Epoch, Rank, SampleId, TierId};
use crate::policy::{Brief, Keeping};
use crate::tier_map::TierMap;
use crate::units::Bytes;

/// A read for a tier's own threads.
pub(super) struct Prefetch {
    pub(super) access: Upcoming,
    pub(super) keep: Option<TierId>,
    pub(super) shared: bool,
    pub(super) hand_over: Option<Home>,
}

pub(super) enum Keeper {
    Fixed(Fixed),
    Homes(Box<HomesKeeper>),
    Reuse(Box<ReuseKeeper>),
}

pub(super) struct Fixed {
    keep: TierMap,
    lists: Vec<Vec<SampleId>>,
    cursors: Vec<usize>,
}

impl Keeper {
    /// The keeper of a rank, and what it holds from the start; with `filled`, all that it is to keep.
    pub(super) fn new(
        brief: &Brief,
        keeping: Keeping,
        rank: Rank,
        ahead: &Ahead,
        filled: bool,
    ) -> (Self, TierMap) {
        let start = brief.start;
        let tiers = brief.system.tiers.len();
        let empty = || TierMap::new(brief.catalog.len(), tiers);
        let pools = |room: Vec<Bytes>, shared: bool| -> Vec<CopyPool> {
            let tiers = room
                .into_iter()
                .enumerate()
                .skip(1)
                .filter(|(_, room)| room.0 > 0);
            tiers
                .map(|(tier, room)| CopyPool::new(TierId(tier as u8), room, shared))
                .collect()
        };
        let lanes = || vec![ahead.clone(); tiers - 1];
        match keeping {
            Keeping::Nothing => (Self::Fixed(Fixed::nothing()), TierMap::nothing()),
            Keeping::Fixed { keep, .. } if filled => (Self::Fixed(Fixed::nothing()), keep),
            Keeping::Fixed { keep, prefetch } => {
                let cursors = vec![0; prefetch.len()];
                (
                    Self::Fixed(Fixed {
                        keep,
                        lists: prefetch,
                        cursors,
                    }),
                    empty(),
                )
            }
            Keeping::Homes {
                homes,
                spare,
                foresight,
            } => {
                let pools = pools(spare, false);
                let holdings = if pools.is_empty() {
                    TierMap::nothing()
                } else {
                    empty()
                };
                let kept = Kept {
                    homes,
                    foresight,
                    pools,
                };
                let keeper = HomesKeeper::new(brief, rank, ahead, kept);
                (Self::Homes(Box::new(keeper)), holdings)
            }
            Keeping::Reuse { room, foresight } => {
                let pools = pools(room, true);
                let at = reuse::Start {
                    samples: brief.catalog.len(),
                    epoch: start.epoch,
                };
                let keeper = ReuseKeeper::new(
                    By::Host(brief.hosts.host(rank)),
                    foresight,
                    lanes(),
                    pools,
                    at,
                );
                (Self::Reuse(Box::new(keeper)), empty())
            }
        }
    }

    /// The map beside the holdings that is asked about every sample.
    #[inline]
    pub(super) fn map(&self) -> Option<&TierMap> {
        match self {
            Self::Fixed(fixed) => Some(&fixed.keep),
            Self::Homes(_) | Self::Reuse(_) => None,
        }
    }

    /// Whether a sample that is being read for keeping is awaited instead of being read twice.
    #[inline]
    pub(super) fn awaits_reads(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Whether copies may have to go.
    #[inline]
    pub(super) fn evicts(&self) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Homes(keeper) => keeper.copies(),
            Self::Reuse(_) => true,
        }
    }

    /// Whether a tier's threads read from the source, whatever else there is.
    pub(super) fn first_hand(&self) -> bool {
        matches!(self, Self::Homes(_))
    }

    /// Whether a sample that nobody has yet is brought in by another rank, or by this rank's other threads, if those have
    /// `taken` this access upon them.
    #[inline]
    pub(super) fn expects(&self, next: Upcoming, taken: bool) -> bool {
        match self {
            Self::Homes(keeper) => keeper.expects(next, taken),
            Self::Fixed(_) | Self::Reuse(_) => false,
        }
    }

    /// The staging threads come to the access that `staged` others lie before; whether a tier's threads have taken it.
    #[inline]
    pub(super) fn take_over(&mut self, staged: u64) -> bool {
        match self {
            Self::Homes(keeper) => keeper.take_over(staged),
            Self::Fixed(_) | Self::Reuse(_) => false,
        }
    }

    /// The keeper of homes, where samples have them.
    #[inline]
    pub(super) fn homes(&self) -> Option<&HomesKeeper> {
        match self {
            Self::Homes(keeper) => Some(keeper),
            Self::Fixed(_) | Self::Reuse(_) => None,
        }
    }

    /// Settles what a read of the staging threads keeps and hands over.
    #[inline]
    pub(super) fn settle(
        &mut self,
        read: &mut Read,
        next: Upcoming,
        space: &mut Space<'_>,
        outlook: &mut impl Outlook,
    ) {
        match self {
            Self::Fixed(fixed) => {
                read.keep = if space.holdings.get(read.sample).is_none() {
                    fixed.keep.get(read.sample)
                } else {
                    None
                };
                read.shared = true;
            }
            Self::Homes(keeper) => keeper.settle(read, next, space),
            Self::Reuse(keeper) => keeper.settle(read, space, outlook),
        }
    }

    /// The next read of a tier's own threads.
    pub(super) fn prefetch(
        &mut self,
        tier: TierId,
        staged: u64,
        epoch: Epoch,
        space: &mut Space<'_>,
        outlook: &mut impl Outlook,
    ) -> Result<Prefetch, Next> {
        match self {
            Self::Fixed(fixed) => fixed.prefetch(tier, epoch, space),
            Self::Homes(keeper) => keeper.prefetch(tier, staged, space, outlook),
            Self::Reuse(keeper) => keeper.prefetch(tier, staged, space, outlook),
        }
    }

    /// A read has completed; returns the tier in which others can now see the sample.
    #[inline]
    pub(super) fn completed(&mut self, read: &Read, holdings: &mut TierMap) -> Option<TierId> {
        if let Self::Homes(keeper) = self
            && (read.keep.is_some() || read.hand_over.is_some())
        {
            // Also of what tiers' threads read, and of what was called lost while it was being read: it has come now.
            keeper.found(read.sample);
        }
        let tier = read.keep?;
        match self {
            Self::Fixed(_) => {
                if holdings.get(read.sample).is_some() {
                    return None;
                }
                holdings.set(read.sample, Some(tier));
                Some(tier)
            }
            Self::Homes(_) => read.shared.then_some(tier),
            Self::Reuse(_) => (holdings.get(read.sample) == Some(tier)).then_some(tier),
        }
    }

    /// Takes over a sample that a tier holds from before; false where the plan has no place for it.
    pub(super) fn adopt(&mut self, sample: SampleId, tier: TierId, space: &mut Space<'_>) -> bool {
        match self {
            Self::Fixed(fixed) => {
                let planned = fixed.keep.get(sample) == Some(tier);
                if planned {
                    space.holdings.set(sample, Some(tier));
                }
                planned
            }
            Self::Homes(keeper) => keeper.adopt(sample, tier, space),
            Self::Reuse(keeper) => {
                let (foresight, by) = keeper.sees();
                let again = foresight
                    .first_use_from(sample, space.now, by)
                    .map(|again| again.when);
                admit_into(keeper.pools(), tier, sample, again, space)
            }
        }
    }

    /// Nobody reads the copy of a sample any more.
    pub(super) fn let_go(
        &mut self,
        sample: SampleId,
        catalog: &Catalog,
        holdings: &mut TierMap,
        evicted: &mut Vec<Evicted>,
    ) {
        if let Self::Reuse(keeper) = self {
            evicted.extend(keeper.let_go(sample, catalog, holdings));
        }
    }

    /// A tier does not have a sample that it should.
    pub(super) fn lost(
        &mut self,
        sample: SampleId,
        tier: TierId,
        catalog: &Catalog,
        holdings: &mut TierMap,
    ) {
        match self {
            Self::Fixed(_) => {}
            Self::Homes(keeper) => keeper.lose(sample),
            Self::Reuse(keeper) => keeper.stays(sample),
        }
        self.not_copied(sample, tier, catalog, holdings);
    }

    /// A tier does not have a copy that it should; where it lives it is all the same.
    pub(super) fn not_copied(
        &mut self,
        sample: SampleId,
        tier: TierId,
        catalog: &Catalog,
        holdings: &mut TierMap,
    ) {
        let pools = match self {
            Self::Fixed(_) => &mut Vec::new(),
            Self::Homes(keeper) => keeper.pools(),
            Self::Reuse(keeper) => keeper.pools(),
        };
        if holdings.get(sample) != Some(tier) {
            return;
        }
        match pools.iter_mut().find(|pool| pool.tier() == tier) {
            Some(pool) => pool.lose(sample, catalog, holdings),
            None => holdings.set(sample, None),
        }
    }
}

impl Fixed {
    fn nothing() -> Self {
        Self {
            keep: TierMap::nothing(),
            lists: Vec::new(),
            cursors: Vec::new(),
        }
    }

    fn prefetch(
        &mut self,
        tier: TierId,
        epoch: Epoch,
        space: &Space<'_>,
    ) -> Result<Prefetch, Next> {
        let list = self.lists.get(tier.index()).ok_or(Next::Done)?;
        let cursor = &mut self.cursors[tier.index()];
        while let Some(&sample) = list.get(*cursor) {
            *cursor += 1;
            if space.holdings.get(sample).is_none() {
                let bytes = space.catalog.size(sample);
                let access = Upcoming {
                    sample,
                    epoch,
                    step: space.now.step,
                    bytes,
                    home: None,
                };
                return Ok(Prefetch {
                    access,
                    keep: self.keep.get(sample),
                    shared: true,
                    hand_over: None,
                });
            }
        }
        Err(Next::Done)
    }
}

/// Takes a copy into the pool of a tier, if it is used again and fits.
pub(super) fn admit_into(
    pools: &mut [CopyPool],
    tier: TierId,
    sample: SampleId,
    again: Option<When>,
    space: &mut Space<'_>,
) -> bool {
    let pool = pools.iter_mut().find(|pool| pool.tier() == tier);
    pool.zip(again)
        .is_some_and(|(pool, again)| pool.admit(sample, again, space))
}
