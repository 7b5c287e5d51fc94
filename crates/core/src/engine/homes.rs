//! Keeps what lives on this rank, and copies of what it will use again soonest in what room is left (foresee).
//!
//! Every covered sample has one home. Its first user in the job reads it from the source, once, and hands it to the home:
//! when it stages the sample, or further ahead. Everyone else waits for it to arrive. Each tier's threads have a cursor
//! of their own in the stream, and take only what is kept in that tier.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::ahead::{Ahead, Upcoming};
use super::keeper::{Prefetch, admit_into};
use super::pool::{CopyPool, Space};
use super::{Next, Outlook, Read};
use crate::foresight::{By, Foresight, When};
use crate::homes::{Home, Homes};
use crate::ids::{Epoch, Rank, SampleId, Step, TierId};
use crate::model::{Hosts, Model, Origin, Scope};
use crate::policy::Brief;
use crate::units::Pace;

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
    pools: Vec<CopyPool>,
    /// Where the job began, or went on.
    start: When,
    /// From which step on an epoch may use samples again that it used before.
    repeats_from: Step,
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

/// What a rank keeps, and by what.
pub(super) struct Kept {
    pub(super) homes: Arc<Homes>,
    pub(super) foresight: Foresight,
    pub(super) pools: Vec<CopyPool>,
}

impl HomesKeeper {
    pub(super) fn new(brief: &Brief, rank: Rank, ahead: &Ahead, kept: Kept) -> Self {
        let Kept {
            homes,
            foresight,
            pools,
        } = kept;
        let cursor = |_| Cursor {
            ahead: ahead.clone(),
            taken: VecDeque::new(),
        };
        Self {
            rank,
            hosts: brief.hosts.clone(),
            repeats_from: foresight.repeats_from(),
            scopes: brief.system.tiers.iter().map(|tier| tier.scope).collect(),
            foresight,
            homes,
            cursors: brief.system.cache_tiers().map(cursor).collect(),
            pools,
            start: When {
                epoch: brief.start.epoch,
                step: brief.start.step,
            },
            lost: BTreeSet::new(),
            epoch: brief.start.epoch,
        }
    }

    /// Room for copies, fastest first.
    pub(super) fn pools(&mut self) -> &mut Vec<CopyPool> {
        &mut self.pools
    }

    /// Whether there is room for copies, which may have to go.
    #[inline]
    pub(super) fn copies(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Takes over a sample that a tier holds from before; false where it neither lives there nor has room as a copy.
    pub(super) fn adopt(&mut self, sample: SampleId, tier: TierId, space: &mut Space<'_>) -> bool {
        let here = self.home(sample).filter(|home| self.lives_here(*home));
        if let Some(home) = here {
            return home.tier == tier;
        }
        let again = self
            .foresight
            .first_use_from(sample, space.now, By::Rank(self.rank))
            .map(|again| again.when);
        admit_into(&mut self.pools, tier, sample, again, space)
    }

    /// A sample is not where it should be; it is read for its home once more.
    pub(super) fn lose(&mut self, sample: SampleId) {
        if self.home(sample).is_some() {
            self.lost.insert(sample);
        }
    }

    /// A sample is read for its home.
    #[inline]
    pub(super) fn found(&mut self, sample: SampleId) {
        if !self.lost.is_empty() {
            self.lost.remove(&sample);
        }
    }

    fn home(&self, sample: SampleId) -> Option<Home> {
        self.homes.get(sample)
    }

    /// Whether nobody used the sample since the start before this access: in the first epoch, or after it where a tail
    /// was dropped or the start lay behind its use.
    #[inline]
    fn is_first_use(&self, next: Upcoming) -> bool {
        if next.epoch == self.start.epoch {
            return next.step < self.repeats_from || !self.repeats(next);
        }
        self.foresight
            .first_use_from(next.sample, self.start, By::Anyone)
            .is_some_and(|first| first.when.epoch == next.epoch)
    }

    /// Whether an access of the first epoch is of a sample that was used in it since the start, as padding is. What one
    /// rank uses twice in a step it awaits from itself.
    #[cold]
    fn repeats(&self, next: Upcoming) -> bool {
        let first = self.foresight.user(next.sample, next.epoch);
        first
            .filter(|first| first.when >= self.start)
            .is_some_and(|first| first.rank != self.rank || first.when.step != next.step)
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

    /// The staging threads come to the access that `staged` others lie before; whether a tier's threads have taken it.
    pub(super) fn take_over(&mut self, staged: u64) -> bool {
        let mut cursors = self.cursors.iter_mut();
        let taken_by = cursors.find(|cursor| cursor.taken.front() == Some(&staged));
        taken_by.is_some_and(|cursor| cursor.taken.pop_front().is_some())
    }

    /// Whether a sample that nobody has yet is brought in by another rank, or by threads that have `taken` this access.
    pub(super) fn expects(&self, next: Upcoming, taken: bool) -> bool {
        let coming = taken || !self.is_first_use(next);
        next.home.is_some() && coming && (self.lost.is_empty() || !self.lost.contains(&next.sample))
    }

    /// Settles what a read of the staging threads keeps and hands over.
    pub(super) fn settle(&mut self, read: &mut Read, next: Upcoming, space: &mut Space<'_>) {
        let home = next.home;
        let first_hand = read.origin == Origin::Source && home.is_some();
        if first_hand {
            // It is on its way from now on: a later access that is staged as well awaits it.
            self.found(read.sample);
        }
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
    pub(super) fn prefetch(
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
            if !self.is_first_use(access) {
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
