//! What is known before the job, by every rank alike: all that a plan is made from, but for the paces, which come with
//! the ranks' shares.

use std::sync::Arc;

use super::Unsupported;
use crate::catalog::Catalog;
use crate::digest::Digest;
use crate::held::Held;
use crate::ids::{Rank, TierId};
use crate::model::{Hosts, Paces, Scope, System};
use crate::stream::{Layout, Mark, Orders};
use crate::units::Bytes;

/// What is known before the job.
#[derive(Clone)]
pub struct Brief {
    /// The samples' sizes.
    pub catalog: Arc<Catalog>,
    /// Every epoch's global order.
    pub orders: Orders,
    /// How positions are dealt to ranks and steps.
    pub layout: Layout,
    /// The machine as this rank sees it. Of it only the number of tiers and their scopes are the same for all.
    pub system: Arc<System>,
    /// What the tiers of all ranks can hold.
    pub capacities: Capacities,
    /// Which rank lives where.
    pub hosts: Hosts,
    /// Who trains on which sample of a global batch.
    pub assignment: Assignment,
    /// Whether ranks can serve each other. Ranks that cannot plan for themselves alone.
    pub peers: bool,
    /// Where the job begins, or goes on.
    pub start: Mark,
    /// What tiers hold from before: those of all ranks, or, without peers, of the rank that plans.
    pub held: Held,
}

/// Who trains on which sample of a global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// As the order is dealt.
    Order,
    /// Who holds it, as far as batches stay even.
    Local,
}

/// What the tiers of all ranks can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacities {
    /// What the machine's tiers say, on every rank.
    Same,
    /// By rank, and for each rank by tier, the staging buffer first. What ranks share is as large as the first of them says.
    ByRank(Arc<[Vec<Bytes>]>),
}

impl Brief {
    /// What a rank's tier can hold, alone or with others, by the tier's scope.
    pub fn capacity(&self, rank: Rank, tier: TierId) -> Bytes {
        match &self.capacities {
            Capacities::Same => self.system.tier(tier).capacity,
            Capacities::ByRank(ranks) => {
                let sharers = self.hosts.sharers(self.system.tier(tier).scope, rank);
                ranks[sharers.start as usize][tier.index()]
            }
        }
    }

    /// What one of the tiers of this number can hold: those that a domain of its scope shares.
    pub fn domain_capacity(&self, tier: TierId, domain: usize) -> Bytes {
        let scope = self.system.tier(tier).scope;
        let first = self.hosts.members(scope, domain).start;
        self.capacity(Rank(first), tier)
    }

    /// What all the tiers of this number can hold together.
    pub fn total_capacity(&self, tier: TierId) -> Bytes {
        let domains = 0..self.hosts.domains(self.system.tier(tier).scope) as usize;
        let capacities = domains.map(|domain| self.domain_capacity(tier, domain).0);
        Bytes(capacities.fold(0, u64::saturating_add))
    }

    /// The widest scope of the tiers that keep samples: ranks beyond it have nothing to share out among each other.
    pub(super) fn widest_scope(&self) -> Scope {
        let scopes = self.system.cache_tiers().map(|(_, tier)| tier.scope);
        scopes.max().unwrap_or(Scope::Rank)
    }

    /// The digest of all that a policy's plan is made from, with the paces that it is made with.
    pub fn digest(&self, policy: &str, paces: &Paces) -> Digest {
        Digest::of(self, policy, Some(paces))
    }

    /// The digest of what all ranks must know alike before they work out their shares.
    pub fn inputs_digest(&self, policy: &str) -> Digest {
        Digest::of(self, policy, None)
    }

    /// For policies under which no sample is on one rank only, so that batches cannot be dealt by holder.
    pub(super) fn refuse_local(&self) -> Result<(), Unsupported> {
        match self.assignment {
            Assignment::Order => Ok(()),
            Assignment::Local => Err(Unsupported(
                "assignment \"local\" needs one holder for each sample, which this policy has not"
                    .into(),
            )),
        }
    }

    /// For policies that deal batches by holder: ranks must know the same of each other's tiers, or some samples would be
    /// trained on twice and others not at all.
    pub(super) fn refuse_local_alone(&self) -> Result<(), Unsupported> {
        match self.assignment {
            Assignment::Local => self.refuse_alone(),
            Assignment::Order => Ok(()),
        }
    }

    /// The same, whatever the job asks for.
    pub(super) fn refuse_alone(&self) -> Result<(), Unsupported> {
        if self.peers || self.hosts.ranks() == 1 {
            return Ok(());
        }
        Err(Unsupported(
            "batches are dealt by holder, which needs ranks that serve each other".into(),
        ))
    }
}
