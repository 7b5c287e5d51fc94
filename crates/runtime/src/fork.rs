//! Forks. A child has one thread and a copy of all memory, locks in whatever state they were in: what the parent's
//! threads shared must not be touched there again, only left behind. Who holds such things remembers the [`generation`]
//! in which they were made and compares.
//!
//! Memory of kept samples is no copy: a child sees the parent's. What the parent's trainer held at a fork, the child may
//! look at as long as it lives, so that memory is not used again before. Forks are counted (`forks`), and each child is
//! given a page of a file that only it and its own children have mapped: while they do, the file cannot be sealed.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;

use crate::pages::nameless;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The last fork after which the child could not be watched: it may live for ever.
static UNWATCHED: AtomicU32 = AtomicU32::new(0);
/// How many want to know which children live.
static WATCHERS: AtomicU32 = AtomicU32::new(0);
/// Children of this process; those that a fork brought along are left behind with their lock.
static CHILDREN: AtomicPtr<Mutex<Vec<Child>>> = AtomicPtr::new(ptr::null_mut());
static HANDLER: Once = Once::new();

thread_local! {
    /// The number of the fork that this thread is in.
    static UNDER_WAY: Cell<u32> = const { Cell::new(0) };
}

/// Bytes of the page that children are known by; nobody ever touches it.
const PAGE_BYTES: u64 = 1;

/// How many forks lie between the first process and this one, as far as anybody asked before them.
pub fn generation() -> u32 {
    HANDLER.call_once(register);
    GENERATION.load(Ordering::Relaxed)
}

/// How many forks this process has begun, and those before it.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// While it lives, children are watched.
pub(crate) struct Watch(());

impl Watch {
    pub(crate) fn new() -> Self {
        HANDLER.call_once(register);
        WATCHERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Whether the child of a fork after the `after`th, up to the `until`th, may live, or a child of it.
    #[expect(clippy::unused_self, reason = "without it nobody was watched")]
    pub(crate) fn may_live(&self, after: u32, until: u32) -> bool {
        if UNWATCHED.load(Ordering::Relaxed) > after {
            return true;
        }
        let mut children = children().lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(Child::lives);
        children
            .iter()
            .any(|child| (after + 1..=until).contains(&child.fork))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a child is known by.
struct Child {
    fork: u32,
    file: File,
    /// Until the child has it.
    page: Option<MmapRaw>,
}

impl Child {
    fn new(fork: u32) -> io::Result<Self> {
        let file = nameless()?;
        file.set_len(PAGE_BYTES)?;
        let page = MmapOptions::new().map_raw(&file)?;
        Ok(Self {
            fork,
            file,
            page: Some(page),
        })
    }

    fn lives(&self) -> bool {
        // Refused as long as anybody could write, here or in another process.
        rustix::fs::fcntl_add_seals(&self.file, SealFlags::WRITE).is_err()
    }
}

#[allow(
    unsafe_code,
    reason = "a lock that a fork brought along may be held for ever"
)]
fn children() -> &'static Mutex<Vec<Child>> {
    let mut there = CHILDREN.load(Ordering::Acquire);
    if there.is_null() {
        let fresh = Box::into_raw(Box::default());
        let swapped =
            CHILDREN.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        there = match swapped {
            Ok(_) => fresh,
            Err(others) => {
                // SAFETY: just made here, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                others
            }
        };
    }
    // SAFETY: comes from a box that is never freed.
    unsafe { &*there }
}

/// Miri knows no forks, and does not let anybody ask for them.
#[cfg(miri)]
fn register() {}

#[cfg(not(miri))]
#[allow(unsafe_code, reason = "there is no safe way to learn of a fork")]
fn register() {
    // SAFETY: the handlers are plain functions that live as long as the program. The child's only sets atomic numbers and
    // pointers, which is allowed there. A refusal (no memory) leaves forks unnoticed, as before.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

#[cfg_attr(miri, expect(dead_code))]
extern "C" fn before() {
    let fork = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    UNDER_WAY.set(fork);
    if WATCHERS.load(Ordering::Relaxed) == 0 {
        return;
    }
    match Child::new(fork) {
        Ok(child) => children()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(child),
        Err(_) => {
            UNWATCHED.fetch_max(fork, Ordering::Relaxed);
        }
    }
}

#[cfg_attr(miri, expect(dead_code))]
extern "C" fn in_parent() {
    if CHILDREN.load(Ordering::Acquire).is_null() {
        return;
    }
    let mut children = children().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(child) = children
        .iter_mut()
        .find(|child| child.fork == UNDER_WAY.get())
    {
        child.page = None;
    }
    children.retain(Child::lives);
}

#[cfg_attr(miri, expect(dead_code))]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    CHILDREN.store(ptr::null_mut(), Ordering::Release);
}
