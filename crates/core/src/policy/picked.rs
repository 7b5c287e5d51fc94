//! For policies that choose what each rank keeps by what it uses. Ranks that share no tier choose by themselves, and
//! nobody needs to know. Those that do are planned for together, by the first of them, whose share tells the others.

use std::ops::Range;

use super::share::{Picks, Share, Work, work_of};
use super::{Brief, Keeping};
use crate::ids::Rank;
use crate::model::Scope;
use crate::tier_map::TierMap;

/// A way to choose for ranks that are planned for together.
pub(super) struct Choice {
    /// What ranks share that are planned for together.
    pub(super) scope: Scope,
    /// Chooses for all of them.
    pub(super) choose: fn(&Brief, Range<u32>) -> Vec<Picks>,
}

impl Choice {
    /// The first phase.
    pub(super) fn work(&self, brief: &Brief, ranks: Range<u32>) -> Vec<Work> {
        let work = |rank: u32| {
            let together = brief.hosts.sharers(self.scope, Rank(rank));
            if together.len() > 1 && together.start == rank {
                Work::Picks((self.choose)(brief, together))
            } else {
                Work::Nothing
            }
        };
        ranks.map(work).collect()
    }

    /// What a rank keeps. Where the share that should tell is missing, because ranks cannot reach each other, it is worked
    /// out here.
    pub(super) fn of(&self, brief: &Brief, shares: &[Share], rank: Rank) -> Picks {
        let together = brief.hosts.sharers(self.scope, rank);
        let place = (rank.0 - together.start) as usize;
        if let Some(Work::Picks(members)) = work_of(shares, Rank(together.start))
            && let Some(picks) = members.get(place)
        {
            return picks.clone();
        }
        let mut members = (self.choose)(brief, together);
        members.swap_remove(place)
    }
}

impl Picks {
    /// Kept for good, and brought in by the tiers' own threads where `prefetch` says so.
    pub(super) fn into_keeping(self, brief: &Brief, prefetch: bool) -> Keeping {
        let mut keep = TierMap::new(brief.catalog.len(), brief.system.tiers.len());
        for (tier, _) in brief.system.cache_tiers() {
            for &sample in &self.by_tier[tier.index()] {
                keep.set(sample, Some(tier));
            }
        }
        Keeping::Fixed {
            keep,
            prefetch: if prefetch { self.by_tier } else { Vec::new() },
        }
    }
}
