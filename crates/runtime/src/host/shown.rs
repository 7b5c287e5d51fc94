//! What a rank shows of its memory: its board, and who may be using what is on it.

use foresee_core::ids::{Rank, SampleId};

use super::board::{Board, Entry, Place};
use super::passing::Line;
use super::pins::PinsView;
use crate::sync::{RwLock, whole};

/// A rank that may use what lies here.
pub(super) struct Reader {
    pub(super) rank: Rank,
    pub(super) pins: PinsView,
    pub(super) line: Line,
    /// Whether it said that it sees the board.
    pub(super) sees: bool,
}

/// What a rank shows of its memory.
pub(crate) struct Shown {
    board: Board,
    /// Those that live, as far as is known.
    readers: RwLock<Vec<Reader>>,
}

impl Shown {
    pub(super) fn new(board: Board, readers: Vec<Reader>) -> Self {
        Self {
            board,
            readers: RwLock::new(readers),
        }
    }

    /// A sample is whole, and to be had here from now on. None where it cannot be told where.
    pub(crate) fn publish(&self, sample: SampleId, place: Place) -> Option<Entry> {
        self.board.publish(sample, place)
    }

    /// A sample is not to be had any more. False where somebody may still use it; that ends sooner or later.
    pub(crate) fn withdraw(&self, sample: SampleId, entry: Entry) -> bool {
        self.board.withdraw(sample, entry);
        !self.is_used(sample)
    }

    /// Whether a sample that was withdrawn may still be in use.
    pub(crate) fn is_used(&self, sample: SampleId) -> bool {
        let readers = whole(self.readers.read());
        readers.iter().any(|reader| reader.pins.has(sample))
    }

    /// Whether a rank sees this board.
    pub(crate) fn is_seen_by(&self, rank: Rank) -> bool {
        let readers = whole(self.readers.read());
        readers
            .iter()
            .any(|reader| reader.rank == rank && reader.sees)
    }

    /// What processes had marked that are gone is not in use any more.
    pub(crate) fn forget_the_dead(&self) {
        let mut readers = whole(self.readers.write());
        readers.retain(|reader| reader.line.is_open());
    }
}
