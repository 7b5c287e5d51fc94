//! MONARCH: a host keeps what its ranks read first, until its tiers are full, and never evicts; hosts do not serve each
//! other. What did not fit comes from the source in every epoch.

use super::placement::Room;
use super::{Brief, Delivery, Keeping, Plan, Policy, Routes, Unsupported};
use crate::ids::{Epoch, Rank, SampleId, Step};
use crate::tier_map::TierMap;

pub(super) struct Monarch;

impl Policy for Monarch {
    fn name(&self) -> &'static str {
        "monarch"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        brief.refuse_local()?;
        let mut room = Room::new(brief, None);
        let empty = TierMap::new(brief.catalog.len(), brief.system.tiers.len());
        let mut keep = vec![empty; brief.hosts.ranks() as usize];
        let hosts = brief.hosts.domains(crate::model::Scope::Host) as usize;
        for host in 0..hosts {
            first_come(brief, host, &mut room, &mut keep);
        }
        let fixed = |keep| Keeping::Fixed {
            keep,
            prefetch: Vec::new(),
        };
        Ok(Plan {
            orders: brief.orders.clone(),
            delivery: Delivery::Ahead,
            routes: Routes::Host,
            filling: None,
            lockstep_epochs: 0,
            ranks: keep.into_iter().map(fixed).collect(),
        })
    }
}

/// Gives a host's room to what its ranks read, in the order of the steps, until nothing more fits.
fn first_come(brief: &Brief, host: usize, room: &mut Room, keep: &mut [TierMap]) {
    let ranks: Vec<Rank> = brief
        .hosts
        .members(crate::model::Scope::Host, host)
        .collect();
    let mut seen = vec![false; brief.catalog.len() as usize];
    let mut unseen = seen.len();
    for epoch in (0..brief.orders.epochs()).map(Epoch) {
        let order = brief.orders.epoch(epoch);
        for step in (0..brief.layout.steps()).map(Step) {
            for &rank in &ranks {
                for index in 0..brief.layout.local_len(rank, step) {
                    let sample: SampleId =
                        order.sample(brief.layout.dealt(rank, step, index).position);
                    if std::mem::replace(&mut seen[sample.index()], true) {
                        continue;
                    }
                    unseen -= 1;
                    if let Some(tier) = room.first_fit(rank, brief.catalog.size(sample)) {
                        keep[rank.index()].set(sample, Some(tier));
                    }
                }
            }
        }
        if unseen == 0 || ranks.iter().all(|&rank| room.is_full(rank)) {
            return;
        }
    }
}
