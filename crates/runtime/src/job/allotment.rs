//! What the tiers of a rank may hold. Those of a host are divided among its ranks by what each holds from before, which they tell
//! each other (`agreement`); a rank that goes on alone has an even part.

use foresee_core::ids::TierId;
use foresee_core::policy::{Inherited, SharedTier};
use foresee_core::units::Bytes;

use super::spec::JobSpec;
use super::stores::Stores;
use crate::tier::DiskTier;

/// Gives each tier an even part.
pub(super) fn allot_evenly(spec: &JobSpec, stores: &Stores) {
    let tiers = even_capacities(spec, stores).into_iter().map(Bytes);
    let staging = Bytes(spec.config.staging.capacity_bytes);
    let capacities: Vec<Bytes> = std::iter::once(staging).chain(tiers).collect();
    stores.allot(&capacities);
}

/// What each tier can hold if nobody else has more of it.
pub(super) fn even_capacities(spec: &JobSpec, stores: &Stores) -> Vec<u64> {
    let tiers = spec.config.tiers.iter().zip(&stores.tiers);
    let capacities = tiers.map(|(config, tier)| {
        if tier.is_flexible() {
            spec.part_bytes(config)
        } else {
            tier.capacity().0
        }
    });
    capacities.collect()
}

/// What the tiers of this rank hold from before, as others are told.
pub(super) fn inherited(spec: &JobSpec, stores: &Stores) -> Inherited {
    let held = stores.held();
    let bytes_in = |tier: TierId| -> Bytes {
        let held = held.iter().filter(|(_, of)| *of == tier);
        held.map(|(sample, _)| spec.catalog.size(*sample)).sum()
    };
    let numbered = (1..).map(TierId).zip(&spec.config.tiers);
    let shared = numbered
        .zip(&stores.tiers)
        .filter_map(|((number, config), tier)| {
            let is_shared = config.scope == foresee_config::Scope::Host && tier.is_flexible();
            let folder = config.kind.path().filter(|_| is_shared)?;
            Some(SharedTier {
                tier: number,
                place: DiskTier::place(folder)?,
                held: bytes_in(number),
            })
        });
    Inherited {
        copies: held.len() as u64,
        shared: shared.collect(),
    }
}
