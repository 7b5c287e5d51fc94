//! A sample in the trainer's hands. Its place in the staging buffer is free again when the lease is dropped, whichever
//! thread drops it. In a forked child it is only left behind: its memory may be read, but it is the parent's to give back.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::Shared;
use super::state::Staged;
use crate::arena::Piece;
use crate::fork;

/// A sample in the trainer's hands.
pub struct Lease {
    piece: ManuallyDrop<Piece>,
    shared: ManuallyDrop<Arc<Shared>>,
    sample: SampleId,
    /// What the engine counts it by.
    loan: Option<u64>,
    /// Of the job's moves.
    generation: u64,
    /// Of this process, when it was handed over.
    forks: u32,
}

impl Lease {
    pub(super) fn new(
        shared: &Arc<Shared>,
        staged: &Staged,
        loan: Option<u64>,
        generation: u64,
    ) -> Self {
        Self {
            piece: ManuallyDrop::new(staged.piece.clone()),
            shared: ManuallyDrop::new(Arc::clone(shared)),
            sample: staged.sample,
            loan,
            generation,
            forks: fork::forks(),
        }
    }

    /// The sample.
    pub fn bytes(&self) -> &[u8] {
        self.piece.bytes()
    }

    /// Whether others have it, too, so that its memory cannot be written.
    pub fn is_shared(&self) -> bool {
        self.piece.block().is_kept()
    }

    /// From here to the end of another sample of the same batch.
    pub(super) fn up_to<'a>(&'a self, last: &'a Self) -> Option<&'a [u8]> {
        self.piece.up_to(&last.piece)
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("sample", &self.sample)
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

impl Drop for Lease {
    #[allow(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if self.shared.generation != fork::generation() {
            return;
        }
        // SAFETY: both are taken here, once, and not touched again: this is the end of the lease.
        let (piece, shared) = unsafe {
            (
                ManuallyDrop::take(&mut self.piece),
                ManuallyDrop::take(&mut self.shared),
            )
        };
        piece.block().returned(self.forks);
        let homeless = if piece.block().is_kept() {
            None
        } else {
            shared.stores.settle(self.sample)
        };
        drop(piece);
        let mut state = shared.state();
        if state.generation != self.generation {
            return;
        }
        // While nobody plans with it.
        if let Some(tier) = homeless
            && shared.stores.tier(tier).give_up(self.sample)
        {
            state.desk.lost(self.sample, tier);
            state.counts.not_kept += 1;
        }
        if let Some(loan) = self.loan {
            state.release(loan);
        }
        shared.go_on(state);
    }
}
