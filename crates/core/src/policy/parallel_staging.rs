//! Parallel data staging: before training each rank fills all its tiers and then trains on nothing else. Where the
//! whole dataset fits on every rank, all stage the same samples, so one read of the source serves them all, and the
//! order stays. Otherwise each rank stages its own part, beginning at its share and going round, and what it does not
//! hold is replaced by what it holds.

use std::ops::Range;

use super::placement::{Own, Room, substitute};
use super::share::work_of;
use super::{Brief, Filling, Keeping, Part, Parts, Policy, Routes, Share, Unsupported, Work};
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

    fn work(&self, brief: &Brief, ranks: Range<u32>) -> Vec<Work> {
        let staged = |rank| Work::Staged(Staged::new(brief, Rank(rank)).samples);
        ranks.map(staged).collect()
    }

    fn parts<'a>(&self, brief: &'a Brief, shares: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        brief.refuse_local()?;
        let runs = Runs::new(brief, shares);
        if let Some(rank) = runs.lens.iter().position(|&len| len == 0) {
            return Err(Unsupported(format!(
                "the tiers of rank {rank} hold no sample to train on"
            )));
        }
        let same = runs.lens.iter().all(|&len| len == brief.catalog.len());
        let orders = if same {
            brief.orders.clone()
        } else {
            substitute(brief, runs)
        };
        Ok(Box::new(move |rank| {
            let staged = Staged::new(brief, rank);
            Part {
                orders: orders.clone(),
                routes: Routes::Own,
                filling: Some(Filling {
                    loads: staged.loads,
                    same,
                }),
                keeping: Keeping::Fixed {
                    keep: staged.keep,
                    prefetch: Vec::new(),
                },
                ..Part::cacheless(brief, rank)
            }
        }))
    }
}

/// What all ranks stage. Each goes round the dataset from a place of its own, so its samples are a run of so many.
struct Runs {
    samples: u32,
    /// By rank.
    lens: Vec<u32>,
}

impl Runs {
    fn new(brief: &Brief, shares: &[Share]) -> Self {
        let len = |rank| match work_of(shares, rank) {
            Some(Work::Staged(samples)) => *samples,
            _ => Staged::new(brief, rank).samples,
        };
        Self {
            samples: brief.catalog.len(),
            lens: brief.hosts.all().map(len).collect(),
        }
    }

    fn start(&self, rank: Rank) -> u64 {
        start(rank, self.samples, self.lens.len() as u32)
    }
}

impl Own for Runs {
    fn len(&self, rank: Rank) -> u32 {
        self.lens[rank.index()]
    }

    fn get(&self, rank: Rank, index: u32) -> SampleId {
        around(self.start(rank) + u64::from(index), self.samples)
    }

    fn replaces(&self, rank: Rank, sample: SampleId) -> bool {
        let behind = u64::from(sample.0) + u64::from(self.samples) - self.start(rank);
        around(behind, self.samples).0 >= self.lens[rank.index()]
    }
}

/// Where a rank begins: at its even share.
fn start(rank: Rank, samples: u32, ranks: u32) -> u64 {
    u64::from(rank.0) * u64::from(samples) / u64::from(ranks)
}

fn around(number: u64, samples: u32) -> SampleId {
    SampleId((number % u64::from(samples)) as u32)
}

/// What one rank stages: from its share on, round the dataset, until a sample does not fit any more. A shared tier
/// counts with the rank's even part of it.
struct Staged {
    keep: TierMap,
    samples: u32,
    loads: Vec<Count>,
}

impl Staged {
    fn new(brief: &Brief, rank: Rank) -> Self {
        let samples = brief.catalog.len();
        let tiers = brief.system.tiers.len();
        let mut room = Room::of_rank(brief, rank);
        let mut staged = Self {
            keep: TierMap::new(samples, tiers),
            samples: 0,
            loads: vec![Count::default(); tiers],
        };
        let start = start(rank, samples, brief.hosts.ranks());
        for step in 0..samples {
            let sample = around(start + u64::from(step), samples);
            let bytes = brief.catalog.size(sample);
            let Some(tier) = room.first_fit(rank, bytes) else {
                break;
            };
            staged.keep.set(sample, Some(tier));
            staged.samples += 1;
            staged.loads[tier.index()].reads += 1;
            staged.loads[tier.index()].bytes += bytes;
        }
        staged
    }
}
