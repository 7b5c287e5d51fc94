//! The board of a rank: for each sample of the dataset, a word that says whether it is to be had here, and where. It is as
//! long as the catalog, 8 bytes a sample: by number, since who looks knows that, and a table of what has its home here
//! would need as much again on each rank to be looked up in.
//!
//! A word is written in one piece: 0 is nothing, else the generation of what lies there (24 bits), the piece of memory
//! (5 bits) and the place in it (35 bits, in units of 64 bytes). The generation of two samples that lie at the same place
//! after each other differs, so who withdraws a sample never withdraws its successor.

use std::fs::File;
use std::io;

use foresee_core::ids::SampleId;

use super::cells::{Cells, View, acquire, barrier};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places begin at multiples of this.
pub(super) const UNIT_BYTES: u64 = 64;

const UNIT_BITS: u32 = 35;
const PIECE_BITS: u32 = 5;
const GENERATION_BITS: u32 = 64 - UNIT_BITS - PIECE_BITS;

/// Where a sample lies: the piece of memory, and the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) piece: u8,
    pub(crate) offset: u64,
}

/// What the board says of a sample that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    /// None where the place cannot be told in a word.
    fn new(place: Place, generation: u32) -> Option<Self> {
        let unit = place.offset / UNIT_BYTES;
        let fits = unit >> UNIT_BITS == 0 && u32::from(place.piece) >> PIECE_BITS == 0;
        if !fits || !place.offset.is_multiple_of(UNIT_BYTES) {
            return None;
        }
        let generation = u64::from(generation) << (UNIT_BITS + PIECE_BITS);
        Some(Self(
            generation | u64::from(place.piece) << UNIT_BITS | unit,
        ))
    }

    fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(super) fn place(self) -> Place {
        let unit = self.0 & ((1 << UNIT_BITS) - 1);
        let piece = (self.0 >> UNIT_BITS) as u8 & ((1 << PIECE_BITS) - 1);
        Place {
            piece,
            offset: unit * UNIT_BYTES,
        }
    }
}

/// What a board takes.
pub(super) fn board_bytes(samples: u32) -> u64 {
    u64::from(samples) * size_of::<AtomicU64>() as u64
}

/// The board of this rank.
pub(super) struct Board {
    words: Cells<AtomicU64>,
    generation: AtomicU32,
}

impl Board {
    /// For so many samples, none of which is there.
    pub(super) fn new(samples: u32) -> io::Result<Self> {
        Ok(Self {
            words: Cells::new(samples as usize)?,
            generation: AtomicU32::new(0),
        })
    }

    /// What others are given to look at it.
    pub(super) fn shown(&self) -> io::Result<File> {
        self.words.shown()
    }

    #[cfg(all(test, any(feature = "shuttle", miri)))]
    pub(super) fn view(&self) -> BoardView {
        BoardView(self.words.view())
    }

    /// A sample is whole, and to be had at this place. None where it cannot be told.
    pub(super) fn publish(&self, sample: SampleId, place: Place) -> Option<Entry> {
        let entry = Entry::new(place, self.next_generation())?;
        // After all that was written there.
        self.words
            .at(sample.index())
            .store(entry.0, Ordering::Release);
        Some(entry)
    }

    /// Counts from 1 on, so that no word is 0.
    fn next_generation(&self) -> u32 {
        let counted = self.generation.fetch_add(1, Ordering::Relaxed);
        1 + counted % ((1 << GENERATION_BITS) - 1)
    }

    /// A sample is not to be had any more, unless it has been published anew. Who looks at pins from now on sees those of
    /// all who still found it.
    pub(super) fn withdraw(&self, sample: SampleId, entry: Entry) {
        let word = self.words.at(sample.index());
        // Another one means that it lies elsewhere by now.
        let _ = word.compare_exchange(entry.0, 0, Ordering::Relaxed, Ordering::Relaxed);
        barrier();
    }
}

/// The board of another rank.
pub(super) struct BoardView(View<AtomicU64>);

impl BoardView {
    /// For so many samples.
    pub(super) fn new(file: &File, samples: u32) -> io::Result<Self> {
        View::new(file, samples as usize).map(Self)
    }

    /// Where a sample is to be had. What was written there before it was published can be read now.
    pub(super) fn look(&self, sample: SampleId) -> Option<Entry> {
        let word = self.0.at(sample.index()).load(Ordering::Relaxed);
        acquire();
        Entry::of(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_where_a_sample_lies_and_is_never_nothing() {
        let all = [0, 64, 1 << 20, ((1 << UNIT_BITS) - 1) * UNIT_BYTES];
        for (piece, offset) in (0..32).flat_map(|piece| all.map(|offset| (piece, offset))) {
            let place = Place { piece, offset };
            for generation in [1, (1 << GENERATION_BITS) - 1] {
                let entry = Entry::new(place, generation).unwrap();
                assert_eq!(entry.place(), place);
                assert_ne!(entry.0, 0);
            }
        }
    }

    #[test]
    fn a_place_that_does_not_fit_a_word_is_not_told() {
        let place = |piece, offset| Place { piece, offset };
        assert_eq!(Entry::new(place(32, 0), 1), None);
        assert_eq!(Entry::new(place(0, 32), 1), None);
        assert_eq!(Entry::new(place(0, UNIT_BYTES << UNIT_BITS), 1), None);
    }

    #[test]
    #[cfg(not(any(feature = "shuttle", miri)))]
    fn what_is_withdrawn_is_not_its_successor_at_the_same_place() {
        let board = Board::new(3).unwrap();
        let view = BoardView::new(&board.shown().unwrap(), 3).unwrap();
        let place = Place {
            piece: 2,
            offset: 128,
        };
        assert_eq!(view.look(SampleId(1)), None);
        let first = board.publish(SampleId(1), place).unwrap();
        assert_eq!(view.look(SampleId(1)).unwrap().place(), place);
        let second = board.publish(SampleId(1), place).unwrap();
        assert_ne!(first, second);
        board.withdraw(SampleId(1), first);
        assert_eq!(view.look(SampleId(1)), Some(second));
        board.withdraw(SampleId(1), second);
        assert_eq!(view.look(SampleId(1)), None);
    }
}
