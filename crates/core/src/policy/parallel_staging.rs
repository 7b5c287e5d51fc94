//! Parallel data staging: before training each rank fills all its tiers and then trains on nothing else. Where the
//! whole dataset fits on every rank, all stage the same samples, so one read of the source serves them all, and the
//! order stays. Otherwise each rank stages its own part, beginning at its share and going round, and what it does not
//! hold is replaced by what it holds.

use std::sync::Arc;

use super::placement::{Room, substitute};
use super::{Brief, Delivery, Filling, Keeping, Plan, Policy, Routes, Unsupported};
use crate::ids::{Rank, SampleId};
use crate::tally::Count;
use crate::tier_map::TierMap;

pub(super) struct ParallelStaging;

impl Policy for ParallelStaging {
    fn name(&self) -> &'static str {
        "parallel-staging"
    }

    fn substitutes(&self) -> bool {
        true
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        brief.refuse_local()?;
        let staged: Vec<Staged> = brief
            .hosts
            .all()
            .map(|rank| Staged::new(brief, rank))
            .collect();
        if let Some(rank) = staged.iter().position(|staged| staged.samples.is_empty()) {
            return Err(Unsupported(format!(
                "the tiers of rank {rank} hold no sample to train on"
            )));
        }
        let same = staged
            .iter()
            .all(|staged| staged.samples.len() == brief.catalog.len() as usize);
        let loads = staged.iter().map(|staged| staged.loads.clone()).collect();
        let (maps, own): (Vec<_>, Vec<_>) = staged
            .into_iter()
            .map(|staged| (staged.keep, staged.samples))
            .unzip();
        let maps = Arc::new(maps);
        let orders = if same {
            brief.orders.clone()
        } else {
            let held = Arc::clone(&maps);
            substitute(brief, own, move |rank, sample| {
                held[rank.index()].get(sample).is_none()
            })
        };
        let ranks = maps
            .iter()
            .map(|keep| Keeping::Fixed {
                keep: keep.clone(),
                prefetch: Vec::new(),
            })
            .collect();
        let filling = Some(Filling { loads, same });
        Ok(Plan {
            orders,
            delivery: Delivery::Ahead,
            routes: Routes::Own,
            filling,
            lockstep_epochs: 0,
            ranks,
        })
    }
}

/// What one rank stages: from its share on, round the dataset, until a sample does not fit any more. A shared tier
/// counts with the rank's even part of it.
struct Staged {
    keep: TierMap,
    samples: Vec<SampleId>,
    loads: Vec<Count>,
}

impl Staged {
    fn new(brief: &Brief, rank: Rank) -> Self {
        let (count, ranks) = (
            u64::from(brief.catalog.len()),
            u64::from(brief.hosts.ranks()),
        );
        let tiers = brief.system.tiers.len();
        let mut room = Room::of_rank(brief, rank);
        let mut staged = Self {
            keep: TierMap::new(brief.catalog.len(), tiers),
            samples: vec![],
            loads: vec![Count::default(); tiers],
        };
        let start = u64::from(rank.0) * count / ranks;
        for step in 0..count {
            let sample = SampleId(((start + step) % count) as u32);
            let bytes = brief.catalog.size(sample);
            let Some(tier) = room.first_fit(rank, bytes) else {
                break;
            };
            staged.keep.set(sample, Some(tier));
            staged.samples.push(sample);
            staged.loads[tier.index()].reads += 1;
            staged.loads[tier.index()].bytes += bytes;
        }
        staged
    }
}
