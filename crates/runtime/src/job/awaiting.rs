//! Samples that have their slot and are on their way to a tier: brought in by other threads of this rank, or by another rank. Each is looked for
//! by its sample, when that has arrived or will not; those behind it are staged meanwhile.

use std::collections::BTreeMap;

use foresee_core::engine::Awaited;
use foresee_core::ids::SampleId;

use super::slots::Decoded;

/// A slot that waits for its sample.
pub(super) struct Waiting {
    pub(super) slot: u64,
    pub(super) awaited: Awaited,
    /// Where it goes once decoded, if it is.
    pub(super) part: Option<Decoded>,
}

/// All slots that wait, by sample and slot.
#[derive(Default)]
pub(super) struct Awaiting(BTreeMap<(SampleId, u64), (Awaited, Option<Decoded>)>);

impl Awaiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, waiting: Waiting) {
        let key = (waiting.awaited.sample(), waiting.slot);
        self.0.insert(key, (waiting.awaited, waiting.part));
    }

    /// The first slot after `beyond` that waits for a sample.
    pub(super) fn take(&mut self, sample: SampleId, beyond: Option<u64>) -> Option<Waiting> {
        let from = beyond.map_or(0, |slot| slot + 1);
        let (&key, _) = self.0.range((sample, from)..=(sample, u64::MAX)).next()?;
        let (awaited, part) = self.0.remove(&key)?;
        Some(Waiting {
            slot: key.1,
            awaited,
            part,
        })
    }

    /// The slot that waits for a sample, if it does.
    pub(super) fn take_slot(&mut self, sample: SampleId, slot: u64) -> Option<Waiting> {
        let (awaited, part) = self.0.remove(&(sample, slot))?;
        Some(Waiting {
            slot,
            awaited,
            part,
        })
    }

    /// What a slot waits for.
    pub(super) fn sample_at(&self, slot: u64) -> Option<SampleId> {
        let mut keys = self.0.keys();
        keys.find(|(_, other)| *other == slot)
            .map(|(sample, _)| *sample)
    }

    /// The slots that wait for such samples.
    pub(super) fn slots_where(&self, of: impl Fn(SampleId) -> bool) -> Vec<(SampleId, u64)> {
        let keys = self.0.keys().copied();
        keys.filter(|(sample, _)| of(*sample)).collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
