//! Pins: what a reader uses of a holder's memory at present. A table of counts belongs to one reader and one holder; the
//! reader writes it, the holder looks at it before it uses memory again.
//!
//! Samples have a count by their number. In a large dataset several share one: then the holder takes another sample's pin
//! for this one's and waits a little longer, which is right, too. So the table is bounded whatever the dataset's size.

use std::fs::File;
use std::io;

use foresee_core::ids::SampleId;

use super::cells::{Cells, View, acquire, barrier};
use crate::sync::atomic::{AtomicU16, Ordering};

/// Counts of a table: far more than samples that a rank has staged at a time, half a megabyte.
const COUNTS_MAX: u32 = 1 << 18;

fn counts(samples: u32) -> usize {
    samples.clamp(1, COUNTS_MAX) as usize
}

/// What a table takes.
pub(super) fn table_bytes(samples: u32) -> u64 {
    (counts(samples) * size_of::<AtomicU16>()) as u64
}

/// What this rank uses of one holder's.
pub(super) struct Pins(Cells<AtomicU16>);

impl Pins {
    /// Nothing, of so many samples.
    pub(super) fn new(samples: u32) -> io::Result<Self> {
        Cells::new(counts(samples)).map(Self)
    }

    /// What the holder is given to look at it.
    pub(super) fn shown(&self) -> io::Result<File> {
        self.0.shown()
    }

    #[cfg(all(test, any(feature = "shuttle", miri)))]
    pub(super) fn view(&self, samples: u32) -> PinsView {
        PinsView {
            counts: self.0.view(),
            len: counts(samples),
        }
    }

    /// Marks a sample, before it is looked for on the board. False where no more can be counted.
    pub(super) fn set(&self, sample: SampleId, samples: u32) -> bool {
        let count = self.0.at(sample.index() % counts(samples));
        let more = |there: u16| there.checked_add(1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        barrier();
        counted.is_ok()
    }

    /// It is not used any more: nothing of it is read after this.
    pub(super) fn clear(&self, sample: SampleId, samples: u32) {
        let count = self.0.at(sample.index() % counts(samples));
        count.fetch_sub(1, Ordering::Release);
    }
}

/// What another rank uses of this one's.
pub(super) struct PinsView {
    counts: View<AtomicU16>,
    len: usize,
}

impl PinsView {
    /// Of so many samples.
    pub(super) fn new(file: &File, samples: u32) -> io::Result<Self> {
        let len = counts(samples);
        let counts = View::new(file, len)?;
        Ok(Self { counts, len })
    }

    /// Whether a sample that was withdrawn may still be in use.
    pub(super) fn has(&self, sample: SampleId) -> bool {
        let count = self.counts.at(sample.index() % self.len);
        let is_set = count.load(Ordering::Relaxed) > 0;
        // What its user read it has read before memory is used again.
        acquire();
        is_set
    }
}

#[cfg(all(test, not(any(feature = "shuttle", miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_pinned_as_often_as_it_is_used() {
        let pins = Pins::new(10).unwrap();
        let view = PinsView::new(&pins.shown().unwrap(), 10).unwrap();
        assert!(!view.has(SampleId(3)));
        assert!(pins.set(SampleId(3), 10) && pins.set(SampleId(3), 10));
        pins.clear(SampleId(3), 10);
        assert!(view.has(SampleId(3)) && !view.has(SampleId(4)));
        pins.clear(SampleId(3), 10);
        assert!(!view.has(SampleId(3)));
    }

    #[test]
    fn samples_of_a_large_dataset_share_counts() {
        let samples = COUNTS_MAX * 2;
        let pins = Pins::new(samples).unwrap();
        let view = PinsView::new(&pins.shown().unwrap(), samples).unwrap();
        assert!(pins.set(SampleId(COUNTS_MAX + 5), samples));
        assert!(view.has(SampleId(5)));
        assert!(!view.has(SampleId(6)));
    }

    #[test]
    fn more_than_can_be_counted_are_refused() {
        let pins = Pins::new(1).unwrap();
        for _ in 0..u16::MAX {
            assert!(pins.set(SampleId(0), 1));
        }
        assert!(!pins.set(SampleId(0), 1));
    }

    #[test]
    fn who_looks_cannot_write() {
        use std::os::unix::fs::FileExt;

        let pins = Pins::new(10).unwrap();
        let shown = pins.shown().unwrap();
        assert!(shown.write_all_at(&[1], 0).is_err());
        assert!(memmap2::MmapOptions::new().map_raw(&shown).is_err());
        assert!(shown.set_len(0).is_err());
    }
}
