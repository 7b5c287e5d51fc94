//! Looks at the source before something is served from a tier on disk, which may hold it from a time before this job: what
//! is delivered must have been in the source at some moment of it. One look a sample is enough, and none where this job
//! itself read the sample, or where the source is said not to change.
//!
//! Loader threads look, ahead of the trainer. The trainer does so itself where it reads itself, and only while looks have
//! been quick: one that hangs would make it deaf.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, whole};
use std::time::Duration;

use foresee_core::ids::SampleId;

/// A look that took longer was not answered from memory.
const QUICK_MAX: Duration = Duration::from_micros(200);

/// So many quick looks in a row make it likely that the next one is.
const QUICK_LOOKS: u32 = 32;

/// What is known of the samples that tiers hold.
pub(super) struct Looks {
    /// A bit a sample: set once it is known to be what it was in the source during this job. None at all where nobody asks.
    known: Vec<AtomicU64>,
    quick: AtomicU32,
    /// Samples that are being looked at.
    looking: Turns,
    /// Samples that were found changed and are being read anew.
    renewing: Turns,
}

/// Samples that somebody is busy with: as many as there are threads at most.
struct Turns {
    busy: Mutex<Vec<SampleId>>,
    over: Condvar,
}

/// While it lives, nobody else does the same with the sample.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    sample: SampleId,
}

impl Turns {
    fn none() -> Self {
        Self {
            busy: Mutex::new(Vec::new()),
            over: Condvar::new(),
        }
    }

    /// Waits for whoever is busy with the sample.
    fn take(&self, sample: SampleId) -> Turn<'_> {
        let mut busy = whole(self.busy.lock());
        while busy.contains(&sample) {
            busy = whole(self.over.wait(busy));
        }
        busy.push(sample);
        Turn {
            turns: self,
            sample,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        whole(self.turns.busy.lock()).retain(|&other| other != self.sample);
        self.turns.over.notify_all();
    }
}

impl Looks {
    /// For so many samples, none of which has been looked at.
    pub(super) fn of(samples: u32) -> Self {
        let known = (0..samples.div_ceil(u64::BITS))
            .map(|_| AtomicU64::new(0))
            .collect();
        Self {
            known,
            quick: AtomicU32::new(0),
            looking: Turns::none(),
            renewing: Turns::none(),
        }
    }

    /// A sample was found changed, and a loader thread is about to read it anew. Another one that found the same, for the
    /// next epoch say, waits for it: one read of the source is enough. None where the sample is known by then.
    pub(super) fn renew(&self, sample: SampleId) -> Option<Turn<'_>> {
        let turn = self.renewing.take(sample);
        self.are_due(sample).then_some(turn)
    }

    /// Somebody is about to look at a sample; one look is enough for all who want it at this moment. None where the sample is
    /// known by then.
    pub(super) fn look(&self, sample: SampleId) -> Option<Turn<'_>> {
        let turn = self.looking.take(sample);
        self.are_due(sample).then_some(turn)
    }

    /// Whether somebody is looking at a sample, for which who must not wait does not.
    pub(super) fn is_looked_at(&self, sample: SampleId) -> bool {
        whole(self.looking.busy.lock()).contains(&sample)
    }

    /// Nothing has to be looked at.
    pub(super) fn at_nothing() -> Self {
        Self::of(0)
    }

    /// Whether a sample must be looked at before a tier's copy of it is served.
    pub(super) fn are_due(&self, sample: SampleId) -> bool {
        self.known
            .get(word(sample))
            .is_some_and(|known| known.load(Ordering::Relaxed) & bit(sample) == 0)
    }

    /// What tiers hold of a sample from now on is of this job.
    pub(super) fn note(&self, sample: SampleId) {
        if let Some(known) = self.known.get(word(sample)) {
            known.fetch_or(bit(sample), Ordering::Relaxed);
        }
    }

    /// A look took so long.
    pub(super) fn took(&self, time: Duration) {
        if time > QUICK_MAX {
            self.quick.store(0, Ordering::Relaxed);
        } else if !self.are_quick() {
            self.quick.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether looks are answered from memory.
    pub(super) fn are_quick(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= QUICK_LOOKS
    }
}

fn word(sample: SampleId) -> usize {
    sample.index() / u64::BITS as usize
}

fn bit(sample: SampleId) -> u64 {
    1 << (sample.0 % u64::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_looked_at_until_it_is_known() {
        let looks = Looks::of(130);
        looks.note(SampleId(64));
        let due: Vec<u32> = (0..130)
            .filter(|&sample| !looks.are_due(SampleId(sample)))
            .collect();
        assert_eq!(due, [64]);
        assert!(!Looks::at_nothing().are_due(SampleId(0)));
    }

    #[test]
    fn who_finds_a_sample_that_is_read_anew_waits_for_it() {
        let looks = Looks::of(2);
        let first = looks.renew(SampleId(1)).unwrap();
        assert!(looks.renew(SampleId(0)).is_some(), "another one");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| looks.renew(SampleId(1)).is_none());
            looks.note(SampleId(1));
            drop(first);
            assert!(second.join().unwrap(), "it is known by then");
        });
        let failed = looks.renew(SampleId(0)).unwrap();
        drop(failed);
        assert!(looks.renew(SampleId(0)).is_some(), "still to be read");
    }

    #[test]
    fn who_wants_a_sample_that_is_looked_at_waits_and_need_not_look() {
        let looks = Looks::of(2);
        let first = looks.look(SampleId(1)).unwrap();
        assert!(looks.is_looked_at(SampleId(1)) && !looks.is_looked_at(SampleId(0)));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| looks.look(SampleId(1)).is_none());
            looks.note(SampleId(1));
            drop(first);
            assert!(second.join().unwrap(), "it is known by then");
        });
        assert!(!looks.is_looked_at(SampleId(1)));
    }

    #[test]
    fn one_slow_look_is_enough_to_doubt_the_others() {
        let looks = Looks::of(1);
        (0..QUICK_LOOKS).for_each(|_| looks.took(Duration::ZERO));
        assert!(looks.are_quick());
        looks.took(Duration::from_millis(1));
        assert!(!looks.are_quick());
    }
}
