//! What can go wrong with a job, each in one line that names what, where and the remedy.

use std::path::PathBuf;
use std::sync::Arc;

use foresee_config::{InputError, OneLine, shown};
use foresee_core::ids::SampleId;
use foresee_core::model::CurveError;
use foresee_core::policy::Unsupported;
use foresee_core::stream::StreamError;
use foresee_core::units::Bytes;

use super::agreement::AgreementError;
use super::spec::policies;
use crate::source::ReadError;
use crate::tier::DiskError;

/// Why a job cannot begin or go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobError {
    /// The rank is none of the world's.
    #[error("rank {rank} of a world of {world}: ranks are 0 to world_size - 1")]
    Rank {
        /// The rank that was given.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// Nothing to do.
    #[error("epochs is 0: give at least 1")]
    NoEpochs,
    /// All ranks' batches together are beyond counting.
    #[error("batch_size x world_size is beyond 2^32: give a smaller batch_size")]
    BatchTooLarge,
    /// No such policy.
    #[error("policy {0:?} is not known; give one of {known}", known = policies().join(", "))]
    Policy(String),
    /// A sample does not fit.
    #[error(
        "sample {sample} ({}) has {bytes} and the staging buffer {capacity}: give staging.capacity at least the size \
         of the largest sample",
        OneLine(name)
    )]
    TooLarge {
        /// The largest sample.
        sample: SampleId,
        /// Its path.
        name: String,
        /// Its size.
        bytes: Bytes,
        /// The staging buffer's.
        capacity: Bytes,
    },
    /// Memory is one place.
    #[error("tier[{}] and tier[{}] are both of memory, which is one: add their capacities", .tiers[0], .tiers[1])]
    TwoMemoryTiers {
        /// The first two.
        tiers: [usize; 2],
    },
    /// A tier that would hold samples more than once.
    #[error(
        "tier[{tier}].scope is \"host\", which needs a policy that gives each sample one home, and policy {policy} does not: \
         give policy \"foresee\", or scope = \"rank\""
    )]
    SharedTier {
        /// Which one.
        tier: usize,
        /// The job's policy.
        policy: String,
    },
    /// A tier of ranks that do not know each other.
    #[error(
        "tier[{tier}].scope is \"host\", and ranks do not serve each other (peers.transport = \"none\"): give another \
         transport, or scope = \"rank\""
    )]
    SharedByNobody {
        /// Which one.
        tier: usize,
    },
    /// More memory is asked for than there is.
    #[error(
        "staging buffer, memory tier and what is shared with other ranks take {wanted}{}, and this machine (or control group) has {there}: lower their capacity",
        for_each(*ranks)
    )]
    Memory {
        /// What the configuration says.
        wanted: Bytes,
        /// For each of so many ranks on this host.
        ranks: u32,
        /// What there is.
        there: Bytes,
    },
    /// Not even one thread is to be had.
    #[error(
        "cannot start a loader thread: {cause}; raise the limit of processes (ulimit -u) or of memory (ulimit -v)"
    )]
    Threads {
        /// What the system said.
        cause: Arc<std::io::Error>,
    },
    /// Memory was refused.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        cause: Arc<std::io::Error>,
    },
    /// The trace cannot be written.
    #[error(
        "trace {}: {cause}; give trace.path a file that can be written",
        shown(path)
    )]
    Trace {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        cause: Arc<std::io::Error>,
    },
    /// A plan of threads cannot be followed.
    #[error(
        "plan of threads {}: {cause}; give balance.replay what balance.record wrote",
        shown(path)
    )]
    ThreadPlan {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A tier on disk cannot be used.
    #[error(transparent)]
    Disk(#[from] Arc<DiskError>),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] Arc<InputError>),
    /// The samples cannot be dealt.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The policy cannot do it.
    #[error("policy {policy}: {cause}")]
    Unsupported {
        /// The policy's name.
        policy: String,
        /// Why not.
        cause: Unsupported,
    },
    /// Ranks that are to serve each other do not agree.
    #[error(transparent)]
    Agreement(#[from] AgreementError),
    /// A speed makes no sense.
    #[error(transparent)]
    Curve(#[from] CurveError),
    /// A sample cannot be read.
    #[error("rank {rank}: sample {sample} ({}): {cause}", OneLine(name))]
    Sample {
        /// Whose job.
        rank: u32,
        /// Which sample.
        sample: SampleId,
        /// Its path.
        name: String,
        /// Why not.
        cause: Arc<ReadError>,
    },
    /// A state is of another job.
    #[error("the state is of another job: {what} was {then}, and is {now} here")]
    OtherJob {
        /// What differs.
        what: &'static str,
        /// In the state.
        then: String,
        /// In this job.
        now: String,
    },
    /// A state that no job can have saved.
    #[error(
        "state: began_with={began_with} with global_batch={global_batch}, which no job can have saved; give what state_dict() returned"
    )]
    BeganWith {
        /// Ranks that the job began with.
        began_with: u32,
        /// Samples of all of them in a step.
        global_batch: u32,
    },
    /// Samples of a batch cannot be dealt anew once some were handed over.
    #[error(
        "the state is {index} samples into a batch of {then} ranks and cannot go on with {now}: save it between two batches"
    )]
    MidBatch {
        /// Samples handed over.
        index: u32,
        /// Ranks of the state.
        then: u32,
        /// Ranks of this job.
        now: u32,
    },
    /// A loader thread failed in a way that it must not.
    #[error("a loader thread failed: {0}; this is a defect of foresee, please report it")]
    Defect(String),
    /// A place beyond the job, or behind.
    #[error("epoch {epoch} is not ahead: the job stands in epoch {at} of {epochs}")]
    Seek {
        /// Where to go.
        epoch: u32,
        /// Where it stands.
        at: u32,
        /// How many there are.
        epochs: u32,
    },
    /// The job is over.
    #[error("the job is closed")]
    Closed,
}

fn for_each(ranks: u32) -> String {
    if ranks == 1 {
        return String::new();
    }
    format!(" for each of {ranks} ranks")
}
