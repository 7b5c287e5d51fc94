//! NoPFS / HDMLP: clairvoyant frequency placement. Each rank counts how often it will use every sample over the whole
//! job, keeps the most frequent in its fastest tier, the next in the next, and brings them in beside training, in the
//! order of first use. No rank knows the others' choice: some samples are held twice, others by nobody.
//!
//! A tier that ranks share is planned once for all of them, by their frequencies together, without what is already in
//! a faster tier of one of them.

use super::placement::{Room, most_used_first};
use super::{Brief, Delivery, Keeping, Plan, Policy, Routes, Unsupported};
use crate::ids::{Epoch, Rank, SampleId, Step, TierId};
use crate::model::Scope;
use crate::tier_map::TierMap;

pub(super) struct NoPfs;

impl Policy for NoPfs {
    fn name(&self) -> &'static str {
        "nopfs"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        brief.refuse_local()?;
        let tiers = brief.system.tiers.len();
        let empty = RankPlan {
            keep: TierMap::new(brief.catalog.len(), tiers),
            prefetch: vec![Vec::new(); tiers],
        };
        let mut ranks = vec![empty; brief.hosts.ranks() as usize];
        let mut room = Room::new(brief, None);
        // Consecutive tiers of one scope are filled from one count of frequencies.
        let cache_tiers: Vec<(TierId, Scope)> = brief
            .system
            .cache_tiers()
            .map(|(id, tier)| (id, tier.scope))
            .collect();
        for group in cache_tiers.chunk_by(|a, b| a.1 == b.1) {
            let scope = group[0].1;
            for domain in 0..brief.hosts.domains(scope) as usize {
                let members: Vec<Rank> = brief.hosts.members(scope, domain).collect();
                let uses = Uses::count(brief, &members);
                place(brief, group, &members, &uses, &mut room, &mut ranks);
            }
        }
        Ok(Plan {
            orders: brief.orders.clone(),
            delivery: Delivery::Ahead,
            routes: Routes::Cheapest,
            filling: None,
            lockstep_epochs: 0,
            ranks: ranks
                .into_iter()
                .map(|RankPlan { keep, prefetch }| Keeping::Fixed { keep, prefetch })
                .collect(),
        })
    }
}

/// What one rank keeps.
#[derive(Clone)]
struct RankPlan {
    keep: TierMap,
    prefetch: Vec<Vec<SampleId>>,
}

/// How often some ranks together use each sample.
struct Uses {
    frequency: Vec<u32>,
    /// Samples with their first user, in order of first use.
    first: Vec<(SampleId, Rank)>,
}

impl Uses {
    fn count(brief: &Brief, members: &[Rank]) -> Self {
        let mut frequency = vec![0u32; brief.catalog.len() as usize];
        let mut first = Vec::new();
        let mut batch = Vec::new();
        for epoch in (0..brief.orders.epochs()).map(Epoch) {
            let order = brief.orders.epoch(epoch);
            for step in (0..brief.layout.steps()).map(Step) {
                for &rank in members {
                    // Drawn first, counted then: the counts lie all over memory, and looks at them overlap.
                    batch.clear();
                    let indices = 0..brief.layout.local_len(rank, step);
                    batch.extend(
                        indices.map(|index| {
                            order.sample(brief.layout.dealt(rank, step, index).position)
                        }),
                    );
                    for &sample in &batch {
                        let count = &mut frequency[sample.index()];
                        if *count == 0 {
                            first.push((sample, rank));
                        }
                        *count += 1;
                    }
                }
            }
        }
        Self { frequency, first }
    }

    /// The samples by frequency, most frequent first; equally frequent ones in order of first use.
    fn by_frequency(&self) -> impl Iterator<Item = (SampleId, Rank)> + '_ {
        let order = most_used_first(self.first.len(), |index| {
            self.frequency[self.first[index].0.index()]
        });
        order.into_iter().map(|index| self.first[index as usize])
    }
}

/// Fills the tiers of `group` for the ranks that share them.
fn place(
    brief: &Brief,
    group: &[(TierId, Scope)],
    members: &[Rank],
    uses: &Uses,
    room: &mut Room,
    ranks: &mut [RankPlan],
) {
    for (sample, rank) in uses.by_frequency() {
        if members
            .iter()
            .any(|member| ranks[member.index()].keep.get(sample).is_some())
        {
            continue;
        }
        let bytes = brief.catalog.size(sample);
        if let Some(&(tier, _)) = group.iter().find(|(tier, _)| room.take(rank, *tier, bytes)) {
            ranks[rank.index()].keep.set(sample, Some(tier));
        }
    }
    for &(sample, rank) in &uses.first {
        let plan = &mut ranks[rank.index()];
        if let Some(tier) = plan
            .keep
            .get(sample)
            .filter(|tier| group.iter().any(|(id, _)| id == tier))
        {
            plan.prefetch[tier.index()].push(sample);
        }
    }
}
