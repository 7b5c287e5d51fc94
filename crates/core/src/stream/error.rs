//! Why a stream cannot be made, and what to change.

use crate::ids::{Epoch, SampleId};

/// A job that has no streams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The catalog is empty.
    #[error("the catalog holds no sample: check where the dataset is read from")]
    NoSamples,
    /// An epoch's order is empty.
    #[error("an epoch's order holds no position: give every epoch at least one sample")]
    NoPositions,
    /// Nobody trains.
    #[error("the world has 0 ranks: give at least 1")]
    NoRanks,
    /// A step would deliver nothing.
    #[error("the global batch holds 0 samples: give at least 1")]
    NoBatch,
    /// Dropping the tail leaves nothing to deal.
    #[error(
        "dropping the tail leaves nothing: {positions} positions are fewer than {world} ranks; pad the tail instead"
    )]
    AllDropped {
        /// Length of an epoch's order.
        positions: u64,
        /// Number of ranks.
        world: u32,
    },
    /// The only global batch is incomplete and dropped.
    #[error(
        "an epoch has no step: its {dealt} dealt positions do not fill a global batch of {global_batch}; take a smaller \
         batch, or keep the last incomplete one"
    )]
    NoStep {
        /// Positions dealt in an epoch, after the tail was padded or dropped.
        dealt: u64,
        /// Samples in a global batch.
        global_batch: u32,
    },
    /// Steps and positions of an epoch are counted in 32 bits.
    #[error(
        "an epoch of {positions} positions is too long for global batches of {global_batch}: at most 4294967295 positions \
         and steps are counted; cut the epoch in parts"
    )]
    TooLong {
        /// Length of an epoch's order.
        positions: u64,
        /// Samples in a global batch.
        global_batch: u32,
    },
    /// As many lists as epochs are needed, or one for all.
    #[error(
        "{lists} explicit orders were given for {epochs} epochs: give one for each, or one for all"
    )]
    ListCount {
        /// Lists given.
        lists: usize,
        /// Epochs of the job.
        epochs: u32,
    },
    /// Epochs must be equally long: they have the same steps.
    #[error(
        "the explicit order of epoch {epoch} holds {len} samples, that of epoch 0 holds {first}: make them equally long"
    )]
    ListLength {
        /// Epoch whose list differs.
        epoch: Epoch,
        /// Its length.
        len: usize,
        /// The length of the first.
        first: usize,
    },
    /// A list names a sample that the catalog does not have.
    #[error(
        "the explicit order of epoch {epoch} names sample {sample}, but the catalog ends before {samples}"
    )]
    UnknownSample {
        /// Epoch of the list.
        epoch: Epoch,
        /// The sample named.
        sample: SampleId,
        /// Samples in the catalog.
        samples: u32,
    },
}
