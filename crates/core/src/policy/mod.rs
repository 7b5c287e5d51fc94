//! Policies: who keeps which sample, in which tier, and how the trainer's next samples get into the staging buffer.
//! A policy is one function from what is known before the job to a [`Plan`]; the engine carries the plan out. One file
//! for each policy, [`placement`] for what several share.

mod deepio;
mod distributed_cache;
pub mod foresee;
mod lbann;
mod lobster;
mod locality_aware;
mod monarch;
mod naive;
mod nopfs;
mod parallel_staging;
mod perfect;
pub mod placement;
pub mod specimen;
mod staging_buffer;

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::foresight::Foresight;
use crate::homes::Homes;
use crate::ids::{SampleId, TierId};
use crate::model::{Hosts, Origin, System};
use crate::stream::{Layout, Mark, Orders};
use crate::tally::Count;
use crate::tier_map::TierMap;
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
    /// The machine.
    pub system: Arc<System>,
    /// Which rank lives where.
    pub hosts: Hosts,
    /// Who trains on which sample of a global batch.
    pub assignment: Assignment,
    /// Whether ranks can serve each other. Ranks that cannot plan for themselves alone.
    pub peers: bool,
    /// Where the job begins, or goes on.
    pub start: Mark,
    /// What the tiers of a rank without peers hold from before.
    pub held: Arc<[(SampleId, TierId)]>,
}

/// Who trains on which sample of a global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// As the order is dealt.
    Order,
    /// Who holds it, as far as batches stay even.
    Local,
}

/// How the trainer's samples are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// They are there when they are needed, without a read: the lower bound.
    Instant,
    /// Each is read when the trainer asks for it.
    OnDemand,
    /// They are staged ahead, in order.
    Ahead,
    /// What some rank holds is staged ahead, the rest is read when the trainer asks for it.
    AheadIfHeld,
}

/// Which origins serve a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// The source alone.
    Source,
    /// The rank's own tiers; the source for what is not there.
    Own,
    /// The cheapest of the tiers of the rank's host; the source for what is in none.
    Host,
    /// The cheapest of own tiers and peers; the source for what is in none.
    Caches,
    /// The cheapest of all, the source included.
    Cheapest,
}

impl Routes {
    /// Whether other ranks' tiers serve.
    pub fn peers(self) -> bool {
        matches!(self, Self::Host | Self::Caches | Self::Cheapest)
    }

    /// Whether this origin may serve.
    pub fn reaches(self, origin: Origin) -> bool {
        self != Self::Host || !matches!(origin, Origin::Peer { .. })
    }
}

/// How tiers are filled before the first step.
#[derive(Clone, Debug)]
pub struct Filling {
    /// By rank and tier.
    pub loads: Vec<Vec<Count>>,
    /// All ranks bring in the same samples: one read of the source serves all of them.
    pub same: bool,
}

/// What one rank is to keep.
#[derive(Clone)]
pub enum Keeping {
    /// Nothing.
    Nothing,
    /// What was chosen before the job, for good.
    Fixed {
        /// The tier each sample belongs into on this rank.
        keep: TierMap,
        /// What the tier's own threads bring in while training runs, in order, by tier; none for a tier without.
        prefetch: Vec<Vec<SampleId>>,
    },
    /// Its share of the samples that have a home, and copies of others in what room is left.
    Homes {
        /// The homes of all ranks' samples.
        homes: Arc<Homes>,
        /// Room that no home takes, by tier.
        spare: Vec<Bytes>,
        /// Tells when samples are used again.
        foresight: Foresight,
    },
    /// What its host uses again soonest.
    Reuse {
        /// Room, by tier.
        room: Vec<Bytes>,
        /// Tells when samples are used again.
        foresight: Foresight,
    },
}

/// Whose loader threads are: what a tier's number of threads means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Those of a lane serve that lane and no other: the papers' reading.
    OfLanes,
    /// All serve whichever lane has something to do. A tier's number is how many may fill it at a time.
    OfRank,
}

impl Keeping {
    /// Whose the threads are of a rank that keeps this. Homes are filled once, in the first epoch: threads that serve
    /// nothing else would idle from then on. What the papers' policies keep is read as the papers have it.
    pub fn threads(&self) -> Threads {
        match self {
            Self::Homes { .. } => Threads::OfRank,
            Self::Nothing | Self::Fixed { .. } | Self::Reuse { .. } => Threads::OfLanes,
        }
    }
}

/// What a policy decided for a job.
#[derive(Clone)]
pub struct Plan {
    /// Every epoch's order: as given, or as the policy changed it.
    pub orders: Orders,
    /// How samples come in.
    pub delivery: Delivery,
    /// From where.
    pub routes: Routes,
    /// What is brought in before training; everything in [`Keeping::Fixed`] is then held from the start.
    pub filling: Option<Filling>,
    /// For so many epochs all ranks read the source side by side, in lockstep.
    pub lockstep_epochs: u32,
    /// Rank by rank.
    pub ranks: Vec<Keeping>,
}

impl Brief {
    /// For policies under which no sample is on one rank only, so that batches cannot be dealt by holder.
    fn refuse_local(&self) -> Result<(), Unsupported> {
        match self.assignment {
            Assignment::Order => Ok(()),
            Assignment::Local => Err(Unsupported(
                "assignment \"local\" needs one holder for each sample, which this policy has not"
                    .into(),
            )),
        }
    }
}

/// What only a simulator can do of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnlySimulated {
    /// [`Delivery::Instant`].
    #[error("its samples come from nowhere: it is the lower bound")]
    Instant,
    /// [`Delivery::AheadIfHeld`].
    #[error("it reads on demand what nobody holds")]
    AheadIfHeld,
    /// [`Plan::filling`].
    #[error("it fills tiers before training")]
    Filling,
    /// [`Plan::lockstep_epochs`].
    #[error("its ranks read the source in lockstep")]
    Lockstep,
}

impl Plan {
    /// Why no loader can carry this plan out, if none can. Of each part of a plan it is said here, and nowhere else.
    pub fn only_simulated(&self) -> Option<OnlySimulated> {
        let Self {
            orders: _,
            delivery,
            routes: _,
            filling,
            lockstep_epochs,
            ranks: _,
        } = self;
        match delivery {
            Delivery::Instant => return Some(OnlySimulated::Instant),
            Delivery::AheadIfHeld => return Some(OnlySimulated::AheadIfHeld),
            Delivery::OnDemand | Delivery::Ahead => {}
        }
        if filling.is_some() {
            return Some(OnlySimulated::Filling);
        }
        (*lockstep_epochs > 0).then_some(OnlySimulated::Lockstep)
    }

    /// Whether any rank is to keep anything.
    pub fn keeps(&self) -> bool {
        let nothing = |keeping: &Keeping| matches!(keeping, Keeping::Nothing);
        !self.ranks.iter().all(nothing)
    }

    /// A plan that keeps nothing and changes nothing.
    fn cacheless(brief: &Brief, delivery: Delivery) -> Self {
        Self {
            orders: brief.orders.clone(),
            delivery,
            routes: Routes::Source,
            filling: None,
            lockstep_epochs: 0,
            ranks: vec![Keeping::Nothing; brief.hosts.ranks() as usize],
        }
    }
}

/// Why a policy cannot run a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// One way to place samples.
pub trait Policy: Sync {
    /// What people call it on the command line.
    fn name(&self) -> &'static str;
    /// Whether a rank may train on other samples than the order says, and some samples are not used at all.
    fn substitutes(&self) -> bool {
        false
    }
    /// Decides for all ranks.
    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported>;
}

/// All policies, in the order in which they are shown.
pub static POLICIES: [&dyn Policy; 14] = [
    &perfect::Perfect,
    &naive::Naive,
    &staging_buffer::StagingBuffer,
    &deepio::Ordered,
    &deepio::Opportunistic,
    &parallel_staging::ParallelStaging,
    &lbann::Dynamic,
    &lbann::Preload,
    &distributed_cache::DistributedCache,
    &locality_aware::LocalityAware,
    &monarch::Monarch,
    &nopfs::NoPfs,
    &lobster::Lobster,
    &foresee::Foresee,
];

/// The policy that gives the lower bound.
pub fn lower_bound() -> &'static dyn Policy {
    &perfect::Perfect
}

/// A policy by its name.
pub fn by_name(name: &str) -> Option<&'static dyn Policy> {
    POLICIES
        .iter()
        .copied()
        .find(|policy| policy.name() == name)
}
