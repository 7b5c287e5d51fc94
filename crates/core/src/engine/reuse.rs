//! Keeps what this host will use again soonest, brought in ahead of its use (Lobster). A copy whose last use it is goes
//! when that read is complete, not before: until then its room is taken.

use super::ahead::Ahead;
use super::keeper::Prefetch;
use super::pool::{CopyPool, Space};
use super::{Evicted, Next, Outlook, Read};
use crate::catalog::Catalog;
use crate::foresight::{By, Foresight, When};
use crate::ids::{Epoch, SampleId, TierId};
use crate::model::Origin;
use crate::tier_map::TierMap;

/// What is in [`ReuseKeeper::unused`].
const UNUSED: TierId = TierId(1);

pub(super) struct ReuseKeeper {
    by: By,
    foresight: Foresight,
    lanes: Vec<Ahead>,
    pools: Vec<CopyPool>,
    /// Copies that go as soon as nobody reads them.
    leaving: Vec<SampleId>,
    /// Copies that were brought in and not used yet. Were they to go for what has just been used, they would have to be
    /// read twice for one use, and nothing would be gained.
    unused: TierMap,
    epoch: Epoch,
}

/// Of how many samples a job is, and where it begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) samples: u32,
    pub(super) epoch: Epoch,
}

impl ReuseKeeper {
    pub(super) fn new(
        by: By,
        foresight: Foresight,
        lanes: Vec<Ahead>,
        pools: Vec<CopyPool>,
        start: Start,
    ) -> Self {
        let Start { samples, epoch } = start;
        Self {
            by,
            foresight,
            lanes,
            pools,
            leaving: Vec::new(),
            unused: TierMap::new(samples, 2),
            epoch,
        }
    }

    /// What it looks at, and for whom.
    pub(super) fn sees(&self) -> (&Foresight, By) {
        (&self.foresight, self.by)
    }

    pub(super) fn pools(&mut self) -> &mut Vec<CopyPool> {
        &mut self.pools
    }

    pub(super) fn settle(
        &mut self,
        read: &mut Read,
        space: &mut Space<'_>,
        outlook: &mut impl Outlook,
    ) {
        let sample = read.sample;
        let now = space.now;
        if self.epoch < now.epoch {
            self.epoch = now.epoch;
            // From now on, not after it: what is used in this very step stays, too.
            let next = |sample| {
                self.foresight
                    .first_use_from(sample, now, self.by)
                    .map(|again| again.when)
            };
            self.pools
                .iter_mut()
                .for_each(|pool| pool.renew(space.holdings, next));
        }
        let again = self
            .foresight
            .next_use_after(sample, now, self.by)
            .map(|again| again.when);
        self.unused.set(sample, None);
        if let Some(tier) = space.holdings.get(sample) {
            let keep_until = self.keep_until(sample, again, now, outlook);
            let Some(pool) = self.pools.iter_mut().find(|pool| pool.tier() == tier) else {
                return;
            };
            self.leaving.retain(|leaving| *leaving != sample);
            match keep_until {
                Some(until) => pool.touch(sample, Some(until)),
                // This read is of the copy itself.
                None => self.leaving.push(sample),
            }
            return;
        }
        // One copy a host is enough.
        let on_host = matches!(read.origin, Origin::HostPeer { .. } | Origin::Tier(_));
        if let Some(again) = again.filter(|again| !on_host && !is_far(*again, now)) {
            let spares = |other| self.unused.get(other).is_some();
            let mut pools = self.pools.iter_mut();
            read.keep = pools.find_map(|pool| {
                pool.admit_sparing(sample, again, space, spares)
                    .then(|| pool.tier())
            });
            read.shared = true;
        }
    }

    /// Until when a copy that is used now is worth keeping: not beyond its last use on this host (unless no other rank
    /// has it and somebody needs it), and not when this host does not use it in the next epoch.
    fn keep_until(
        &self,
        sample: SampleId,
        again: Option<When>,
        now: When,
        outlook: &mut impl Outlook,
    ) -> Option<When> {
        match again {
            Some(again) => (!is_far(again, now)).then_some(again),
            None if outlook.is_last_copy(sample) => self
                .foresight
                .next_use_after(sample, now, By::Anyone)
                .map(|again| again.when),
            None => None,
        }
    }

    /// The next access of this rank beyond the staging threads that is not on the host, if there is room for it.
    pub(super) fn prefetch(
        &mut self,
        tier: TierId,
        staged: u64,
        space: &mut Space<'_>,
        outlook: &mut impl Outlook,
    ) -> Result<Prefetch, Next> {
        let pool = self
            .pools
            .iter_mut()
            .find(|pool| pool.tier() == tier)
            .ok_or(Next::Done)?;
        let lane = &mut self.lanes[tier.index() - 1];
        loop {
            let access = lane.peek([None; 2]).ok_or(Next::Done)?;
            let held = space.holdings.get(access.sample).is_some() || space.is_busy(access.sample);
            let near = held
                || matches!(
                    outlook.elsewhere(access.sample),
                    Some(Origin::HostPeer { .. } | Origin::Tier(_))
                );
            if lane.passed() < staged || near {
                lane.advance();
                continue;
            }
            if !pool.admit(
                access.sample,
                When {
                    epoch: access.epoch,
                    step: access.step,
                },
                space,
            ) {
                return Err(Next::Full);
            }
            lane.advance();
            self.unused.set(access.sample, Some(UNUSED));
            return Ok(Prefetch {
                access,
                keep: Some(tier),
                shared: true,
                hand_over: None,
            });
        }
    }

    /// Nobody reads the copy of a sample any more: it goes, if it was to go.
    pub(super) fn let_go(
        &mut self,
        sample: SampleId,
        catalog: &Catalog,
        holdings: &mut TierMap,
    ) -> Option<Evicted> {
        let place = self.leaving.iter().position(|leaving| *leaving == sample)?;
        self.leaving.swap_remove(place);
        let pool = self
            .pools
            .iter_mut()
            .find(|pool| holdings.get(sample) == Some(pool.tier()))?;
        Some(pool.remove(sample, catalog, holdings))
    }

    /// A copy does not go after all, or has gone.
    pub(super) fn stays(&mut self, sample: SampleId) {
        self.leaving.retain(|leaving| *leaving != sample);
    }
}

/// Whether the reuse distance is beyond 2 I - h, for step h of I: the sample is not used in the next epoch.
fn is_far(again: When, now: When) -> bool {
    again.epoch.0 > now.epoch.0 + 1
}
