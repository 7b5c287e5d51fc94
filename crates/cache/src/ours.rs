//! Descriptors that are open for a moment while a file is copied. A process that is forked off then has them, too, and shall
//! not keep them: they are written down here, and the child closes them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// More threads than that do not copy at once in one process; those beyond are not written down.
const PLACES: usize = 128;
const NONE: i32 = -1;

static OPEN: [AtomicI32; PLACES] = [const { AtomicI32::new(NONE) }; PLACES];

/// A descriptor that is written down while it is open.
#[derive(Debug)]
pub struct Ours {
    descriptor: OwnedFd,
    place: Option<usize>,
}

impl Ours {
    /// Writes it down.
    pub fn new(descriptor: OwnedFd) -> Self {
        let number = descriptor.as_raw_fd();
        let place = OPEN.iter().position(|place| {
            place
                .compare_exchange(NONE, number, AcqRel, Relaxed)
                .is_ok()
        });
        Self { descriptor, place }
    }
}

impl AsFd for Ours {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // Before it is closed: afterwards the number may be somebody else's.
        if let Some(place) = self.place {
            OPEN[place].store(NONE, Relaxed);
        }
    }
}

/// For a child that was just forked off: the numbers of what its parent's threads had open.
pub fn inherited() -> impl Iterator<Item = RawFd> {
    OPEN.iter()
        .map(|place| place.swap(NONE, AcqRel))
        .filter(|number| *number != NONE)
}
