//! Descriptors that are open for a moment while a file is copied. A process that is forked off then has them, too, and shall
//! not keep them: they are written down here, and the child closes them.
//!
//! Between opening and writing down no child is made, nor between striking out and closing: who forks waits for those who
//! are at it, and they for who forks. Both wait for some turns only, since a handler of signals may fork in their midst:
//! then the child keeps a descriptor, and nobody hangs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};

/// More threads than that do not copy at once in one process; those beyond are not written down.
const PLACES: usize = 128;
const NONE: i32 = -1;
const TURNS_MAX: usize = 10_000;

static OPEN: [AtomicI32; PLACES] = [const { AtomicI32::new(NONE) }; PLACES];
/// Threads that open or close one.
static AT_IT: AtomicU32 = AtomicU32::new(0);
/// Threads that are forking.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// A descriptor that is written down while it is open.
#[derive(Debug)]
pub struct Ours {
    place: Option<usize>,
    descriptor: OwnedFd,
    /// Let go after the descriptor is closed.
    closing: Option<NoFork>,
}

impl Ours {
    /// Opens it and writes it down.
    pub fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        let _no_fork = NoFork::begin();
        let descriptor = open()?;
        let number = descriptor.as_raw_fd();
        let place = OPEN.iter().position(|place| {
            place
                .compare_exchange(NONE, number, AcqRel, Relaxed)
                .is_ok()
        });
        Ok(Self {
            place,
            descriptor,
            closing: None,
        })
    }
}

impl AsFd for Ours {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.closing = Some(NoFork::begin());
        // Before it is closed: afterwards the number may be somebody else's.
        if let Some(place) = self.place {
            OPEN[place].store(NONE, Relaxed);
        }
    }
}

/// While it lives no child is made.
#[derive(Debug)]
struct NoFork;

impl NoFork {
    fn begin() -> Self {
        for _ in 0..TURNS_MAX {
            AT_IT.fetch_add(1, SeqCst);
            if FORKING.load(SeqCst) == 0 {
                return Self;
            }
            AT_IT.fetch_sub(1, SeqCst);
            rustix::thread::sched_yield();
        }
        AT_IT.fetch_add(1, SeqCst);
        Self
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        AT_IT.fetch_sub(1, SeqCst);
    }
}

/// For a process that is about to fork: none is opened or closed until [`end_fork`].
pub fn begin_fork() {
    FORKING.fetch_add(1, SeqCst);
    for _ in 0..TURNS_MAX {
        if AT_IT.load(SeqCst) == 0 {
            return;
        }
        rustix::thread::sched_yield();
    }
}

/// For a process that has forked.
pub fn end_fork() {
    FORKING.fetch_sub(1, SeqCst);
}

/// For a child that was just forked off: the numbers of what its parent's threads had open.
pub fn inherited() -> impl Iterator<Item = RawFd> {
    // Nobody else is here.
    FORKING.store(0, SeqCst);
    AT_IT.store(0, SeqCst);
    OPEN.iter()
        .map(|place| place.swap(NONE, AcqRel))
        .filter(|number| *number != NONE)
}
