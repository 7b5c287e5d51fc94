//! A sample in the trainer's hands. Its place in the staging buffer is free again when the lease is dropped, whichever
//! thread drops it. In a forked child it is only left behind: its memory may be read, but it is the parent's to give back.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use foresee_core::ids::{SampleId, TierId};
use foresee_core::units::Bytes;

use super::Shared;
use super::state::Staged;
use super::stores::Store;
use crate::arena::Block;
use crate::fork;

/// A sample in the trainer's hands.
pub struct Lease {
    block: ManuallyDrop<Arc<Block>>,
    shared: ManuallyDrop<Arc<Shared>>,
    sample: SampleId,
    /// What the engine counts for it.
    bytes: Bytes,
    /// Of the job's moves.
    generation: u64,
}

impl Lease {
    pub(super) fn new(shared: &Arc<Shared>, staged: &Staged, bytes: Bytes, generation: u64) -> Self {
        Self {
            block: ManuallyDrop::new(Arc::clone(&staged.block)),
            shared: ManuallyDrop::new(Arc::clone(shared)),
            sample: staged.sample,
            bytes,
            generation,
        }
    }

    /// The sample.
    pub fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("sample", &self.sample).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Lease {
    #[allow(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if self.shared.generation != fork::generation() {
            return;
        }
        // SAFETY: both are taken here, once, and not touched again: this is the end of the lease.
        let (block, shared) = unsafe { (ManuallyDrop::take(&mut self.block), ManuallyDrop::take(&mut self.shared)) };
        let homeless = shared.settle_in_memory(self.sample, &block);
        drop(block);
        let mut state = shared.state();
        if state.generation != self.generation {
            return;
        }
        if let Some(tier) = homeless {
            state.desk.lost(self.sample, tier);
            state.counts.not_kept += 1;
        }
        if self.bytes > Bytes(0) {
            state.release(self.bytes);
        }
        drop(state);
        shared.pool.signal();
    }
}

impl Shared {
    /// A sample that is to stay in memory and found no room there until now gets it. Returns the tier that has no room.
    fn settle_in_memory(&self, sample: SampleId, block: &Arc<Block>) -> Option<TierId> {
        if block.is_kept() {
            return None;
        }
        let memories = self.stores.tiers.iter().enumerate().filter_map(|(index, store)| match store {
            Store::Memory(memory) => Some((TierId(index as u8 + 1), memory)),
            Store::Nothing | Store::Disk(..) => None,
        });
        memories.filter(|(_, memory)| !memory.settle(sample, block)).map(|(tier, _)| tier).next()
    }
}
