//! Policies: who keeps which sample, in which tier, and how the trainer's next samples get into the staging buffer.
//!
//! A plan is made by all ranks together, in two phases. Each rank works out its [`Share`]: by a range of samples, or by
//! its own stream, as the policy divides the work. All shares are gathered, and from them each rank makes its own
//! [`Part`] of the plan, which its engine carries out. No rank knows more of the others than what all know alike,
//! O(samples) in all. Ranks of one process, as in the simulator, go through the same two phases ([`Policy::plan`]) and
//! do what is common to their parts once.
//!
//! One file for each policy; `placement`, `picked` and [`cover`] for what several share or one of them takes apart.

mod brief;
pub mod cover;
mod deepio;
mod distributed_cache;
mod foresee;
mod lbann;
mod lobster;
mod locality_aware;
mod monarch;
mod naive;
mod nopfs;
mod parallel_staging;
mod perfect;
mod picked;
pub mod placement;
mod premises;
mod share;
pub mod specimen;
mod staging_buffer;

use std::ops::Range;
use std::sync::Arc;

use crate::foresight::Foresight;
use crate::homes::Homes;
use crate::ids::{Rank, SampleId, TierId};
use crate::model::{Origin, Paces};
use crate::stream::Orders;
use crate::tally::Count;
use crate::threads::Rule;
use crate::tier_map::TierMap;
use crate::units::Bytes;

pub use self::brief::{Assignment, Brief, Capacities};
pub use self::premises::{Inherited, Premises, PremisesError, SharedTier, capacities};
pub use self::share::{Picks, Share, ShareError, Work, range_of};

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

/// How a rank's tiers are filled before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Filling {
    /// By tier.
    pub loads: Vec<Count>,
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

/// What a policy decided for one rank of a job.
#[derive(Clone)]
pub struct Part {
    /// Whose it is.
    pub rank: Rank,
    /// Every epoch's order, of all ranks: as given, or as the policy changed it.
    pub orders: Orders,
    /// How samples come in.
    pub delivery: Delivery,
    /// From where.
    pub routes: Routes,
    /// What is brought in before training; everything in [`Keeping::Fixed`] is then held from the start.
    pub filling: Option<Filling>,
    /// For so many epochs all ranks read the source side by side, in lockstep.
    pub lockstep_epochs: u32,
    /// What the rank is to keep.
    pub keeping: Keeping,
    /// What its tiers hold from before. Of a rank with many peers the brief may not know all of it; the rank does.
    pub held: Vec<(SampleId, TierId)>,
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
}

impl Part {
    /// Why no loader can carry this plan out, if none can. Of each part of a plan it is said here, and nowhere else.
    pub fn only_simulated(&self) -> Option<OnlySimulated> {
        let Self {
            rank: _,
            orders: _,
            delivery,
            routes: _,
            // By the tiers' threads, before anything is staged ([`Part::filled_by_threads`]).
            filling: _,
            // Trainers step together by themselves.
            lockstep_epochs: _,
            keeping: _,
            held: _,
        } = self;
        match delivery {
            Delivery::Instant => Some(OnlySimulated::Instant),
            Delivery::AheadIfHeld => Some(OnlySimulated::AheadIfHeld),
            Delivery::OnDemand | Delivery::Ahead => None,
        }
    }

    /// The same part for a loader, in which the tiers' threads fill tiers; and whether they have to before anything is staged.
    #[must_use]
    pub fn filled_by_threads(mut self) -> (Self, bool) {
        let Some(filling) = self.filling.take() else {
            return (self, false);
        };
        if let Keeping::Fixed { keep, prefetch } = &mut self.keeping {
            *prefetch = vec![Vec::new(); filling.loads.len()];
            for (sample, tier) in keep.iter() {
                prefetch[tier.index()].push(sample);
            }
        }
        (self, true)
    }

    /// Whether the rank is to keep anything.
    pub fn keeps(&self) -> bool {
        !matches!(self.keeping, Keeping::Nothing)
    }

    /// The homes of all ranks' samples, where samples have them.
    pub fn homes(&self) -> Option<&Arc<Homes>> {
        match &self.keeping {
            Keeping::Homes { homes, .. } => Some(homes),
            Keeping::Nothing | Keeping::Fixed { .. } | Keeping::Reuse { .. } => None,
        }
    }

    /// Staged ahead from the source, with nothing kept and nothing changed: what other parts differ from.
    fn cacheless(brief: &Brief, rank: Rank) -> Self {
        Self {
            rank,
            orders: brief.orders.clone(),
            delivery: Delivery::Ahead,
            routes: Routes::Source,
            filling: None,
            lockstep_epochs: 0,
            keeping: Keeping::Nothing,
            held: brief.held.of_rank(rank).collect(),
        }
    }
}

/// Why a policy cannot run a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Who is to hold which sample, where a plan fixes that for good: as far as all ranks can know it without asking. One holder of
/// each is enough.
#[derive(Clone, Debug)]
pub struct Holders {
    /// Of each sample, the rank and tier that are to hold it.
    pub homes: Arc<Homes>,
    /// Of each sample, how many others its holder brings in before it, where that is done while training runs. Who has brought
    /// in as many itself takes the sample to be there, rightly or not (HDMLP's heuristic). None where holders make others
    /// wait until they have it.
    pub turns: Option<Arc<[u32]>>,
}

/// What is common to all ranks has been worked out; gives the part of each.
pub type Parts<'a> = Box<dyn Fn(Rank) -> Part + 'a>;

/// One way to place samples.
pub trait Policy: Sync {
    /// What people call it on the command line.
    fn name(&self) -> &'static str;

    /// Whether a rank may train on other samples than the order says, and some samples are not used at all.
    fn substitutes(&self) -> bool {
        false
    }

    /// How the threads of a host are moved to the rank that would be late, if they are.
    fn balances(&self) -> Option<Rule> {
        None
    }

    /// What these ranks work out for all, rank by rank. What one rank finds does not depend on who is asked with it; but
    /// ranks of one process have it faster together.
    fn work(&self, _: &Brief, ranks: Range<u32>) -> Vec<Work> {
        vec![Work::Nothing; ranks.len()]
    }

    /// Each rank's part, from the shares of all in the order of their ranks. Ranks without peers have their own only. The
    /// same shares give the same parts on every rank.
    fn parts<'a>(&self, brief: &'a Brief, shares: &'a [Share]) -> Result<Parts<'a>, Unsupported>;

    /// Who is to hold what, under plans that fix it for good; all ranks find the same. None where samples have homes, which the
    /// plan names, where ranks serve nobody, or where what they hold changes.
    fn holders(&self, _: &Brief) -> Option<Holders> {
        None
    }

    /// The first phase: the share of one rank.
    fn share(&self, brief: &Brief, rank: Rank) -> Share {
        let work = self.work(brief, rank.0..rank.0 + 1);
        Share {
            rank,
            paces: Paces::of(&brief.system),
            work: work.into_iter().next().unwrap_or(Work::Nothing),
        }
    }

    /// The second phase: the part of one rank.
    fn part(&self, brief: &Brief, shares: &[Share], rank: Rank) -> Result<Part, Unsupported> {
        let parts = self.parts(brief, shares)?;
        Ok(parts(rank))
    }

    /// Both phases for all ranks, where they live in one process.
    fn plan(&self, brief: &Brief) -> Result<Vec<Part>, Unsupported> {
        let work = self.work(brief, 0..brief.hosts.ranks());
        let paces = Paces::of(&brief.system);
        let share = |(rank, work)| Share {
            rank,
            paces: paces.clone(),
            work,
        };
        let shares: Vec<Share> = brief.hosts.all().zip(work).map(share).collect();
        let parts = self.parts(brief, &shares)?;
        Ok(brief.hosts.all().map(parts).collect())
    }
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
