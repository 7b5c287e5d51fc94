//! What the trainer asks for, and what it is handed.

use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::lease::Lease;
use crate::arena::Arena;

/// A sample as it is handed over.
pub struct Sample {
    /// What it is: the sample of the stream, or the one in its place.
    pub id: SampleId,
    /// Whether it repeats a sample of this epoch to fill the tail.
    pub padded: bool,
    /// Its bytes; their place is free again when this is dropped, where samples are decoded with the last one of the batch.
    pub lease: Lease,
}

/// The samples of one rank in one step.
pub struct Batch {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Step in it, from 0.
    pub step: u32,
    /// The samples, in order. None where the world's tail leaves this rank without.
    pub samples: Vec<Sample>,
}

impl Batch {
    /// The bytes of all samples, one after the other, where they are decoded.
    pub fn tensor(&self) -> Option<&[u8]> {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else {
            return Some(&[]);
        };
        first.lease.up_to(&last.lease)
    }
}

/// The staging buffer's memory. It stays mapped as long as this lives; loader threads write to it.
#[derive(Clone)]
pub struct StagingMemory(pub(super) Arc<Arena>);

impl StagingMemory {
    /// Where it begins, and how many bytes it has.
    pub fn place(&self) -> (usize, usize) {
        self.0.staging()
    }
}

/// What asking for a batch gave.
pub enum Asked {
    /// Here it is.
    Batch(Batch),
    /// It is not there yet; ask again.
    NotYet,
    /// The job is over.
    End,
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// One sample, not what is left of a batch.
    pub alone: bool,
    /// The job is over where this epoch is.
    pub within: Option<u32>,
}

/// What became of bringing together what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// It can be taken.
    Ready,
    /// It is not there yet; ask again.
    NotYet,
    /// The job is over.
    End,
}
