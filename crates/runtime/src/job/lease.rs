//! A sample in the trainer's hands. Its place in the staging buffer is free again when the lease is dropped, whichever
//! thread drops it. In a forked child it is only left behind: its memory may be read, but it is the parent's to give back.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use foresee_core::ids::{SampleId, TierId};

use super::Shared;
use super::state::Staged;
use super::stores::Store;
use crate::arena::{Block, Piece};
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
        let homeless = shared.settle_in_memory(self.sample, piece.block());
        drop(piece);
        let mut state = shared.state();
        if state.generation != self.generation {
            return;
        }
        // While nobody plans with it.
        if let Some(tier) = homeless.filter(|tier| shared.stores.gives_up(self.sample, *tier)) {
            state.desk.lost(self.sample, tier);
            state.counts.not_kept += 1;
        }
        if let Some(loan) = self.loan {
            state.release(loan);
        }
        shared.go_on(state);
    }
}

impl Shared {
    /// A sample that is to stay in memory and found no room there until now gets it. Returns the tier that has no room.
    fn settle_in_memory(&self, sample: SampleId, block: &Arc<Block>) -> Option<TierId> {
        if block.is_kept() {
            return None;
        }
        let memories =
            self.stores
                .tiers
                .iter()
                .enumerate()
                .filter_map(|(index, store)| match store {
                    Store::Memory(memory) => Some((TierId(index as u8 + 1), memory)),
                    Store::Nothing | Store::Disk(..) => None,
                });
        memories
            .filter(|(_, memory)| !memory.settle(sample))
            .map(|(tier, _)| tier)
            .next()
    }
}
