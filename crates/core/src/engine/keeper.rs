//! What a rank keeps, by the plan's [`Keeping`]:
//!
//! - `Fixed`: a tier for each sample and a list for each tier's threads, made before the job.
//! - `Homes`: every covered sample has one home. Its first user in the job reads it from the source, once, by the
//!   staging threads or, further ahead, by the tiers' threads, and hands it to the home. Everyone else waits for
//!   it to arrive. Space that no home takes holds copies of what this rank will use again soonest.
//! - `Reuse`: what this host will use again soonest, brought in ahead of its use (Lobster).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::ahead::{Ahead, Upcoming};
use super::pool::{Pool, Space};
use super::reuse::{self, ReuseKeeper};
use super::{Evicted, Next, Outlook, Read};
use crate::catalog::Catalog;
use crate::foresight::{By, Foresight, When};
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, Rank, SampleId, TierId};
use crate::model::{Hosts, Model, Origin, Scope};
use crate::policy::{Brief, Keeping};
use crate::tier_map::TierMap;
use crate::units::{Bytes, Pace};

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

pub(super) struct HomesKeeper {
    rank: Rank,
    hosts: Hosts,
    /// Whose each tier is.
    scopes: Vec<Scope>,
    foresight: Foresight,
    /// Where homes are asked for beside the stream.
    homes: Arc<Homes>,
    /// By tier, from the first that keeps samples on.
    cursors: Vec<Cursor>,
    /// Room for copies, fastest first.
    pools: Vec<Pool>,
    /// Where the job began, or went on.
    start: When,
    /// Samples that are not at their home here although they have been read for it.
    lost: BTreeSet<SampleId>,
    epoch: Epoch,
}

/// Where the threads that fill one tier are in the stream.
struct Cursor {
    ahead: Ahead,
    /// The accesses they have taken and the staging threads have not reached, in order.
    taken: VecDeque<u64>,
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
        let pools = |room: Vec<Bytes>, shared: bool| -> Vec<Pool> {
            let tiers = room
                .into_iter()
                .enumerate()
                .skip(1)
                .filter(|(_, room)| room.0 > 0);
            tiers
                .map(|(tier, room)| Pool::new(TierId(tier as u8), room, shared))
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
                let scopes = brief.system.tiers.iter().map(|tier| tier.scope).collect();
                let cursor = |ahead| Cursor {
                    ahead,
                    taken: VecDeque::new(),
                };
                let keeper = HomesKeeper {
                    rank,
                    hosts: brief.hosts.clone(),
                    scopes,
                    foresight,
                    homes,
                    cursors: lanes().into_iter().map(cursor).collect(),
                    pools,
                    start: When {
                        epoch: start.epoch,
                        step: start.step,
                    },
                    lost: BTreeSet::new(),
                    epoch: start.epoch,
                };
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
            Self::Homes(keeper) => !keeper.pools.is_empty(),
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
        let tier = read.keep?;
        match self {
            Self::Fixed(_) => {
                if holdings.get(read.sample).is_some() {
                    return None;
                }
                holdings.set(read.sample, Some(tier));
                Some(tier)
            }
            Self::Homes(keeper) => {
                if !keeper.lost.is_empty() {
                    keeper.lost.remove(&read.sample);
                }
                read.shared.then_some(tier)
            }
            Self::Reuse(_) => (holdings.get(read.sample) == Some(tier)).then_some(tier),
        }
    }

    /// Takes over a sample that a tier holds from before; false where the plan has no place for it.
    pub(super) fn adopt(&mut self, sample: SampleId, tier: TierId, space: &mut Space<'_>) -> bool {
        let again = |foresight: &Foresight, by| {
            foresight
                .first_use_from(sample, space.now, by)
                .map(|again| again.when)
        };
        match self {
            Self::Fixed(fixed) => {
                let planned = fixed.keep.get(sample) == Some(tier);
                if planned {
                    space.holdings.set(sample, Some(tier));
                }
                planned
            }
            Self::Homes(keeper) => {
                if keeper
                    .home(sample)
                    .is_some_and(|home| keeper.lives_here(home))
                {
                    return keeper.home(sample).is_some_and(|home| home.tier == tier);
                }
                let again = again(&keeper.foresight, By::Rank(keeper.rank));
                admit_into(&mut keeper.pools, tier, sample, again, space)
            }
            Self::Reuse(keeper) => {
                let (foresight, by) = keeper.sees();
                let again = again(foresight, by);
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
        let pools = match self {
            Self::Fixed(_) => &mut Vec::new(),
            Self::Homes(keeper) => {
                if keeper.home(sample).is_some() {
                    keeper.lost.insert(sample);
                }
                &mut keeper.pools
            }
            Self::Reuse(keeper) => {
                keeper.stays(sample);
                keeper.pools()
            }
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

/// Takes a copy into the pool of a tier, if it is used again and fits.
fn admit_into(
    pools: &mut [Pool],
    tier: TierId,
    sample: SampleId,
    again: Option<When>,
    space: &mut Space<'_>,
) -> bool {
    let pool = pools.iter_mut().find(|pool| pool.tier() == tier);
    pool.zip(again)
        .is_some_and(|(pool, again)| pool.admit(sample, again, space))
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

impl HomesKeeper {
    fn home(&self, sample: SampleId) -> Option<Home> {
        self.homes.get(sample)
    }

    /// Whether nobody used the sample since the start before this access: in the first epoch, or after it where a tail
    /// was dropped or the start lay behind its use.
    #[inline]
    fn is_first_use(&self, next: Upcoming) -> bool {
        next.epoch == self.start.epoch
            || self
                .foresight
                .first_use_from(next.sample, self.start, By::Anyone)
                .is_some_and(|first| first.when.epoch == next.epoch)
    }

    /// A sample at its home, seen from here.
    #[inline]
    pub(super) fn as_seen_here(&self, home: Home) -> Origin {
        if self.lives_here(home) {
            return Origin::Tier(home.tier);
        }
        self.hosts.as_seen_from(self.rank, home.rank, home.tier)
    }

    /// Whether a home is in a tier of this rank, its own or a shared one.
    #[inline]
    fn lives_here(&self, home: Home) -> bool {
        let scope = self.scopes[home.tier.index()];
        self.hosts.domain(scope, home.rank) == self.hosts.domain(scope, self.rank)
    }

    fn take_over(&mut self, staged: u64) -> bool {
        let mut cursors = self.cursors.iter_mut();
        let taken_by = cursors.find(|cursor| cursor.taken.front() == Some(&staged));
        taken_by.is_some_and(|cursor| cursor.taken.pop_front().is_some())
    }

    fn expects(&self, next: Upcoming, taken: bool) -> bool {
        let coming = taken || !self.is_first_use(next);
        next.home.is_some() && coming && (self.lost.is_empty() || !self.lost.contains(&next.sample))
    }

    fn settle(&mut self, read: &mut Read, next: Upcoming, space: &mut Space<'_>) {
        let home = next.home;
        let first_hand = read.origin == Origin::Source && home.is_some();
        match home {
            Some(home) if self.lives_here(home) => {
                read.keep = first_hand.then_some(home.tier);
                read.shared = true;
            }
            _ => {
                read.hand_over = home.filter(|_| first_hand);
                if !self.pools.is_empty() {
                    read.keep = self.copy(next, space);
                }
            }
        }
    }

    /// Keeps or renews a copy of a sample that this rank uses now and whose home is elsewhere. Returns the tier of a
    /// new copy.
    fn copy(&mut self, next: Upcoming, space: &mut Space<'_>) -> Option<TierId> {
        let sample = next.sample;
        if self.epoch < next.epoch {
            self.epoch = next.epoch;
            self.pools
                .iter_mut()
                .for_each(|pool| pool.forget_before(space.now));
        }
        if let Some(tier) = space.holdings.get(sample) {
            let again = self.again(next, Epoch(u32::MAX));
            let pool = self.pools.iter_mut().find(|pool| pool.tier() == tier)?;
            pool.touch(sample, again);
            return None;
        }
        // A use beyond all that a full pool holds is not worth a copy: it need not be looked for.
        let fetch = self.fetch(next.home, space.model);
        let worthwhile = self
            .pools
            .iter()
            .filter(|pool| is_worth_copying(pool.tier(), fetch, space.model));
        let horizon = worthwhile.map(|pool| pool.horizon(next.bytes)).max()?;
        let again = self.again(next, horizon)?;
        self.admit(sample, again, fetch, space)
    }

    /// When this rank uses a sample again, up to an epoch, as far as orders are kept.
    fn again(&self, next: Upcoming, horizon: Epoch) -> Option<When> {
        // Tables at hand: the epoch of the staging threads, and as many as are kept beyond it.
        let kept = next
            .epoch
            .0
            .saturating_add(self.foresight.epochs_kept().max(2));
        let epochs = next.epoch.0 + 1..horizon.0.saturating_add(1).min(kept);
        self.foresight
            .next_use_in(next.sample, epochs, By::Rank(self.rank))
            .map(|again| again.when)
    }

    /// What a byte costs from a home that is elsewhere.
    #[inline]
    fn fetch(&self, home: Option<Home>, model: &Model) -> Option<Pace> {
        home.and_then(|home| model.cached(self.hosts.as_seen_from(self.rank, home.rank, home.tier)))
    }

    /// Takes a copy in where it is no dearer than fetching from its home.
    fn admit(
        &mut self,
        sample: SampleId,
        again: When,
        fetch: Option<Pace>,
        space: &mut Space<'_>,
    ) -> Option<TierId> {
        for pool in &mut self.pools {
            if is_worth_copying(pool.tier(), fetch, space.model) && pool.admit(sample, again, space)
            {
                return Some(pool.tier());
            }
        }
        None
    }

    /// The next first use of this rank beyond the staging threads that is worth reading ahead into a tier: one that lives
    /// there, or of which a copy can stay there until then. Others are left to the staging threads: handed over now, they
    /// would have to be fetched back.
    fn prefetch(
        &mut self,
        tier: TierId,
        staged: u64,
        space: &mut Space<'_>,
        outlook: &mut impl Outlook,
    ) -> Result<Prefetch, Next> {
        loop {
            let ahead = &mut self.cursors[tier.index() - 1].ahead;
            let access = ahead
                .peek([None; 2])
                .filter(|access| access.epoch == self.start.epoch)
                .ok_or(Next::Done)?;
            let place = ahead.passed();
            ahead.advance();
            let Some(home) = access.home.filter(|_| place >= staged) else {
                continue;
            };
            let shared = self.lives_here(home);
            // What lives in another tier of this rank is left to that tier's threads.
            if shared && home.tier != tier {
                continue;
            }
            // Kept from an earlier run.
            if outlook.is_at(access.sample, home.tier) {
                continue;
            }
            if shared || self.admit_ahead(tier, access, home, space) {
                self.cursors[tier.index() - 1].taken.push_back(place);
                return Ok(Prefetch {
                    access,
                    keep: Some(tier),
                    shared,
                    hand_over: Some(home).filter(|_| !shared),
                });
            }
        }
    }

    /// Takes a copy into a tier until it is used, unless a faster tier has it or has room for it.
    fn admit_ahead(
        &mut self,
        tier: TierId,
        access: Upcoming,
        home: Home,
        space: &mut Space<'_>,
    ) -> bool {
        let fetch = self.fetch(Some(home), space.model);
        if space.holdings.get(access.sample).is_some()
            || !is_worth_copying(tier, fetch, space.model)
        {
            return false;
        }
        let mut faster = self.pools.iter().take_while(|pool| pool.tier() != tier);
        if faster.any(|pool| pool.has_room(access.bytes)) {
            return false;
        }
        let used = When {
            epoch: access.epoch,
            step: access.step,
        };
        admit_into(&mut self.pools, tier, access.sample, Some(used), space)
    }
}

/// Whether reading a copy in a tier of this rank is no dearer than fetching from the home, where there is one.
#[inline]
fn is_worth_copying(tier: TierId, fetch: Option<Pace>, model: &Model) -> bool {
    fetch.is_none() || model.cached(Origin::Tier(tier)) <= fetch
}
