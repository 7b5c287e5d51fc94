//! A scenario made ready to run: catalog, orders, layout, system and model.

use std::sync::Arc;

use foresee_config::InputError;
use foresee_core::catalog::Catalog;
use foresee_core::digest::Digest;
use foresee_core::held::Held;
use foresee_core::model::{
    Beyond, Contention, Curve, CurveError, Decoded, Hosts, Model, Paces, Scope, System, Tier,
    Trainer,
};
use foresee_core::policy::{Assignment, Brief, Capacities};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, StreamError, Tail};
use foresee_core::threads::{Rule, ThreadPlan};
use foresee_core::units::{Bytes, Rate, Seconds};

use crate::scenario::{
    AssignmentKind, BalanceKind, ContentionKind, ExtrapolateKind, Points, Preprocess, Scenario,
    ScopeKind, ShuffleKind, SystemSpec,
};

/// Why a scenario cannot run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Its sizes cannot be had.
    #[error(transparent)]
    Scenario(#[from] InputError),
    /// Its samples cannot be dealt.
    #[error("{scenario}: {cause}")]
    Stream {
        /// The scenario's name.
        scenario: String,
        /// What is wrong with the stream.
        cause: StreamError,
    },
    /// A curve is none.
    #[error("{scenario}: {cause}")]
    Curve {
        /// The scenario's name.
        scenario: String,
        /// What is wrong with the curve.
        cause: CurveError,
    },
}

/// A job that any policy can be tried on.
#[derive(Clone)]
pub struct Job {
    /// The scenario's name.
    pub name: String,
    /// What policies know.
    pub brief: Brief,
    /// What reads cost.
    pub model: Arc<Model>,
    /// Whether a host's threads are moved to the rank that would be late; by the predicting driver only.
    pub balance: Balancing,
}

/// Whether, and how, a host's threads are shared among its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// As the policy has it.
    Policy,
    /// Each rank has its own.
    Off,
    /// By this rule, whatever the policy.
    By(Rule),
    /// As in an earlier run, host by host.
    Replay(Vec<ThreadPlan>),
}

impl Job {
    /// Makes a scenario ready; draws the samples' sizes.
    pub fn new(scenario: &Scenario) -> Result<Self, JobError> {
        Self::with_catalog(scenario, Arc::new(scenario.sizes()?))
    }

    /// Makes a scenario ready with sizes that are already there.
    pub fn with_catalog(scenario: &Scenario, catalog: Arc<Catalog>) -> Result<Self, JobError> {
        let stream = |cause| JobError::Stream {
            scenario: scenario.name.clone(),
            cause,
        };
        let curve = |cause| JobError::Curve {
            scenario: scenario.name.clone(),
            cause,
        };
        let job = &scenario.job;
        let (shuffle, spec) = dealing(scenario, catalog.len());
        let orders = Orders::new(shuffle, catalog.len(), job.epochs).map_err(stream)?;
        let layout = Layout::new(spec).map_err(stream)?;
        let system = system(&scenario.system).map_err(curve)?;
        let trainer = trainer(scenario).map_err(curve)?;
        let model = Arc::new(Model::new(&system, &trainer, job.ranks));
        let hosts = Hosts::new(job.ranks, job.ranks_per_host);
        let assignment = match job.assignment {
            AssignmentKind::Order => Assignment::Order,
            AssignmentKind::Local => Assignment::Local,
        };
        let brief = Brief {
            catalog,
            orders,
            layout,
            system: Arc::new(system),
            capacities: Capacities::Same,
            hosts,
            assignment,
            peers: true,
            start: Mark::START,
            held: Held::nothing(),
        };
        Ok(Self {
            name: scenario.name.clone(),
            brief,
            model,
            balance: match job.balance {
                BalanceKind::Policy => Balancing::Policy,
                BalanceKind::Off => Balancing::Off,
                BalanceKind::Lobster => Balancing::By(Rule::Lobster),
                BalanceKind::Foresee => Balancing::By(Rule::Foresee),
            },
        })
    }

    /// Makes a scenario ready for the predicting driver, whatever its contention says.
    pub fn predicting(scenario: &Scenario, catalog: Arc<Catalog>) -> Result<Self, JobError> {
        let mut scenario = scenario.clone();
        scenario.system.contention = ContentionKind::Reads;
        Self::with_catalog(&scenario, catalog)
    }

    /// The digest of what a policy's plan of this job is made from.
    pub fn digest(&self, policy: &str) -> Digest {
        self.brief.digest(policy, &Paces::of(&self.brief.system))
    }

    /// Accesses of all ranks over all epochs.
    pub fn accesses(&self) -> u64 {
        let per_epoch: u64 = self
            .brief
            .hosts
            .all()
            .map(|rank| self.brief.layout.rank_len(rank))
            .sum();
        per_epoch * u64::from(self.brief.orders.epochs())
    }
}

/// How samples are shuffled and dealt. Torch's sampler deals by strides; a permutation of our own can be cut into slices.
fn dealing(scenario: &Scenario, samples: u32) -> (Shuffle, LayoutSpec) {
    let job = &scenario.job;
    let seed = job.seed;
    let (shuffle, deal) = match job.shuffle {
        ShuffleKind::Feistel => (Shuffle::Feistel { seed }, Deal::Blocked),
        ShuffleKind::Torch => (Shuffle::Torch { seed }, Deal::Strided),
    };
    let layout = LayoutSpec {
        positions: u64::from(samples),
        world: job.ranks,
        global_batch: job.global_batch,
        deal,
        tail: Tail::Exact,
        drop_last: job.drop_last,
    };
    (shuffle, layout)
}

fn system(spec: &SystemSpec) -> Result<System, CurveError> {
    let beyond = match spec.extrapolate {
        ExtrapolateKind::Regression => Beyond::Regression,
        ExtrapolateKind::Clamp => Beyond::Clamp,
    };
    let curve = |points: &Points| Curve::new(points.clone(), beyond);
    let tier = |tier: &crate::scenario::TierSpec| {
        Ok(Tier {
            name: tier.name.clone(),
            capacity: Bytes::from_mb(tier.capacity_mb),
            scope: match tier.scope {
                ScopeKind::Rank => Scope::Rank,
                ScopeKind::Host => Scope::Host,
                ScopeKind::Global => Scope::Global,
            },
            threads: tier.threads,
            read: curve(&tier.read_mb_per_s)?,
            write: curve(&tier.write_mb_per_s)?,
        })
    };
    Ok(System {
        network: Rate(spec.network_mb_per_s),
        source_link: Rate(spec.source_link_mb_per_s),
        source: curve(&spec.source_read_mb_per_s)?,
        source_latency: Seconds(spec.source_latency_ms / 1e3),
        contention: match spec.contention {
            ContentionKind::Ranks => Contention::Ranks,
            ContentionKind::Reads => Contention::Reads,
        },
        tiers: spec.tiers.iter().map(tier).collect::<Result<_, _>>()?,
        cores_per_host: spec.cores_per_host,
    })
}

/// A preprocessing curve gives the rate of all staging threads together; the model wants that of one.
fn trainer(scenario: &Scenario) -> Result<Trainer, CurveError> {
    let threads = scenario.system.tiers[0].threads;
    let preprocess = match &scenario.job.preprocess_mb_per_s {
        Preprocess::PerThread(rate) => Rate(*rate),
        Preprocess::Curve(points) => {
            let beyond = match scenario.system.extrapolate {
                ExtrapolateKind::Regression => Beyond::Regression,
                ExtrapolateKind::Clamp => Beyond::Clamp,
            };
            Curve::new(points.clone(), beyond)?
                .at(threads)
                .shared_by(threads)
        }
    };
    let times = scenario.job.decoded_mb_per_mb;
    let decoded = if (times - 1.0).abs() > f64::EPSILON {
        Decoded::Times(times)
    } else {
        Decoded::AsIs
    };
    Ok(Trainer {
        compute: Rate(scenario.job.compute_mb_per_s),
        preprocess,
        decoded,
    })
}
