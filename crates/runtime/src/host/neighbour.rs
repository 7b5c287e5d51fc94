//! Another rank's memory, as it is seen from this one.

use std::fs::File;
use std::io;
use std::sync::Arc;

use foresee_core::ids::{Rank, SampleId};

use super::board::{BoardView, Entry};
use super::passing::Line;
use super::pins::Pins;
use crate::pages::Seen;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{RwLock, whole};

/// Another rank of this host.
pub(crate) struct Neighbour {
    samples: u32,
    board: BoardView,
    memory: Vec<Seen>,
    pins: Pins,
    /// Its end says that this process is gone. It lives as long as anything of the neighbour's is in use.
    line: Line,
    /// Whether it could not be reached once, so that it may be gone.
    is_doubted: AtomicBool,
}

/// What is had of a neighbour.
pub(super) struct Had {
    pub(super) board: File,
    pub(super) memory: Vec<File>,
    pub(super) pins: Pins,
    pub(super) line: Line,
}

impl Neighbour {
    pub(super) fn new(samples: u32, had: Had) -> io::Result<Self> {
        let memory = had.memory.iter().map(Seen::new);
        Ok(Self {
            samples,
            board: BoardView::new(&had.board, samples)?,
            memory: memory.collect::<io::Result<_>>()?,
            pins: had.pins,
            line: had.line,
            is_doubted: AtomicBool::new(false),
        })
    }

    #[cfg(all(test, feature = "shuttle"))]
    pub(super) fn within_a_process(
        samples: u32,
        board: &super::board::Board,
        memory: &[File],
        pins: Pins,
        line: Line,
    ) -> io::Result<Self> {
        let memory = memory.iter().map(Seen::new);
        Ok(Self {
            samples,
            board: board.view(),
            memory: memory.collect::<io::Result<_>>()?,
            pins,
            line,
            is_doubted: AtomicBool::new(false),
        })
    }

    /// A sample of so many bytes that lies there, which stays as long as what is returned; none where it does not.
    fn take(self: &Arc<Self>, sample: SampleId, len: usize) -> Option<Borrowed> {
        // Most that are not there are seen not to be, without a mark.
        self.board.look(sample)?;
        if !self.pins.set(sample, self.samples) {
            return None;
        }
        let mut borrowed = Borrowed {
            of: Arc::clone(self),
            sample,
            address: std::ptr::null(),
        };
        let entry = self.board.look(sample)?;
        borrowed.address = self.address(entry, len)?;
        Some(borrowed)
    }

    /// Where so many bytes lie; none where they would not lie within what was handed over.
    fn address(&self, entry: Entry, len: usize) -> Option<*const u8> {
        let place = entry.place();
        let memory = self.memory.get(usize::from(place.piece))?;
        memory.range(place.offset, len)
    }

    /// Whether its process is known to be gone. It is looked at only after it could not be reached.
    fn is_gone(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed) && !self.line.is_open()
    }
}

/// A sample in a neighbour's memory, in use.
pub(crate) struct Borrowed {
    of: Arc<Neighbour>,
    sample: SampleId,
    address: *const u8,
}

#[allow(unsafe_code, reason = "it has an address")]
// SAFETY: the address is of memory that nobody writes while it is pinned, and it is only read.
unsafe impl Send for Borrowed {}
#[allow(unsafe_code, reason = "it has an address")]
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Where it lies. There are as many bytes as were asked for.
    pub(crate) fn address(&self) -> *const u8 {
        self.address
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.of.pins.clear(self.sample, self.of.samples);
    }
}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Borrowed")
            .field("sample", &self.sample)
            .finish_non_exhaustive()
    }
}

/// The other ranks of this host, as one job sees them.
#[derive(Default)]
pub(crate) struct Neighbours {
    by_rank: RwLock<Vec<Option<Arc<Neighbour>>>>,
}

impl Neighbours {
    pub(super) fn new(by_rank: Vec<Option<Arc<Neighbour>>>) -> Self {
        Self {
            by_rank: RwLock::new(by_rank),
        }
    }

    /// A sample of so many bytes that lies at a rank of this host.
    pub(crate) fn take(&self, rank: Rank, sample: SampleId, len: usize) -> Option<Borrowed> {
        let by_rank = whole(self.by_rank.read());
        let neighbour = by_rank.get(rank.index())?.as_ref()?;
        if !neighbour.is_gone() {
            return neighbour.take(sample, len);
        }
        drop(by_rank);
        self.let_go(rank);
        None
    }

    /// Whether a rank is of this host.
    pub(crate) fn has(&self, rank: Rank) -> bool {
        let by_rank = whole(self.by_rank.read());
        by_rank.get(rank.index()).is_some_and(Option::is_some)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        whole(self.by_rank.read()).iter().flatten().count()
    }

    /// A rank cannot be reached. If its process is gone its memory is let go of, now or when it is needed next: connections of
    /// a process that ends do not end at once.
    pub(crate) fn lost(&self, rank: Rank) {
        let by_rank = whole(self.by_rank.read());
        let Some(Some(neighbour)) = by_rank.get(rank.index()) else {
            return;
        };
        neighbour.is_doubted.store(true, Ordering::Relaxed);
        let is_gone = neighbour.is_gone();
        drop(by_rank);
        if is_gone {
            self.let_go(rank);
        }
    }

    /// What is in use of it lives on.
    fn let_go(&self, rank: Rank) {
        let gone = whole(self.by_rank.write())
            .get_mut(rank.index())
            .and_then(Option::take);
        drop(gone);
    }

    /// Lets go of all.
    pub(crate) fn leave(&self) {
        let all = std::mem::take(&mut *whole(self.by_rank.write()));
        drop(all);
    }
}
