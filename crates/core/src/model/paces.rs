//! The speeds that plans are made with: what a thread reads from each tier, and what the network carries. All ranks
//! must plan with the same, so they take those of one rank, which come with its share of the work; what is measured
//! later chooses among planned origins and changes no plan.

use super::System;
use crate::ids::TierId;
use crate::units::Pace;

/// What a byte costs, as far as plans depend on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Paces {
    /// Between two ranks of different hosts.
    pub network: Pace,
    /// For one thread that reads a tier while all its threads do; tier by tier.
    pub tiers: Vec<Pace>,
}

impl Paces {
    /// Those of a machine.
    pub fn of(system: &System) -> Self {
        let tiers = system
            .tiers
            .iter()
            .map(|tier| tier.read.at(tier.threads).shared_by(tier.threads).pace());
        Self {
            network: system.network.pace(),
            tiers: tiers.collect(),
        }
    }

    /// Reading a tier of a rank on another host.
    pub fn from_afar(&self, tier: TierId) -> Pace {
        self.tiers[tier.index()].max(self.network)
    }
}
