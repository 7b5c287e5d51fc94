//! What the library is in this process: the run that it belongs to, or nothing. Found out at the first call that is hooked, from
//! the environment; a process whose run cannot be opened is left alone for good. Nobody waits: whoever comes while it is
//! being found out goes on as without the library.

use std::ffi::CStr;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use foresee_cache::counters::{Count, Stripe};
use foresee_cache::placing::Cache;
use foresee_cache::run::Run;

use crate::coverage::Coverage;

const UNKNOWN: u32 = 0;
const STARTING: u32 = 1;
const OFF: u32 = 2;
const ON: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
static SESSION: OnceLock<Session> = OnceLock::new();
/// Forks of this process, and programs that it started in ways that may share descriptors.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Descriptors that are being moved.
static MOVES: AtomicU32 = AtomicU32::new(0);
/// The process that this memory is of.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// A process counts itself once; a fork is another one.
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// A run, in a process of it.
pub(crate) struct Session {
    pub(crate) run: Run,
    pub(crate) cache: Cache,
    pub(crate) coverage: Coverage,
    /// The name of the run's file.
    pub(crate) run_name: Vec<u8>,
}

impl Session {
    fn open(path: &CStr) -> io::Result<Self> {
        let run = Run::open(path)?;
        let cache = Cache::open(run.settings())?;
        let coverage = Coverage::new(run.settings());
        let path = path.to_bytes();
        let name_from = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |at| at + 1);
        Ok(Self {
            run,
            cache,
            coverage,
            run_name: path[name_from..].to_vec(),
        })
    }

    /// Where this process counts.
    pub(crate) fn stripe(&self) -> Stripe<'_> {
        let process = process();
        let stripe = self.run.stripe(process);
        if COUNTED.load(Relaxed) != u64::from(process) {
            COUNTED.store(u64::from(process), Relaxed);
            stripe.count(Count::Processes);
        }
        stripe
    }
}

/// The session, if there is one. `path` is asked for once: what the environment says.
#[inline]
pub(crate) fn session(path: impl FnOnce() -> Option<&'static CStr>) -> Option<&'static Session> {
    match STATE.load(Acquire) {
        ON => SESSION.get(),
        UNKNOWN => start(path),
        _ => None,
    }
}

/// The session, if it has been started: for calls that only matter behind an open.
#[inline]
pub(crate) fn started() -> Option<&'static Session> {
    if STATE.load(Acquire) == ON {
        SESSION.get()
    } else {
        None
    }
}

#[cold]
fn start(path: impl FnOnce() -> Option<&'static CStr>) -> Option<&'static Session> {
    if !is_own_memory() {
        return None;
    }
    STATE
        .compare_exchange(UNKNOWN, STARTING, AcqRel, Relaxed)
        .ok()?;
    let opened = path().and_then(|path| Session::open(path).ok());
    let Some(session) = opened else {
        STATE.store(OFF, Release);
        return None;
    };
    let _ = SESSION.set(session);
    STATE.store(ON, Release);
    SESSION.get()
}

/// This process. By a system call: what is remembered would be wrong between `vfork` and `exec`.
pub(crate) fn process() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned()
}

/// Whether this process's memory is its own: a child of `vfork` has its parent's, and must not write down there what only it
/// has open. A child that was made past the C library has its own, but cannot be told from that.
pub(crate) fn is_own_memory() -> bool {
    OWNER.load(Relaxed) == process()
}

/// The memory is this process's: it was just started, or forked off.
pub(crate) fn own_memory() {
    OWNER.store(process(), Relaxed);
}

/// How often this process was forked.
pub(crate) fn forks() -> u32 {
    FORKS.load(SeqCst)
}

/// A child is about to be made that has all descriptors, too: from now on none moves. Those that are being moved are waited
/// for, a few microseconds.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, SeqCst);
    while MOVES.load(SeqCst) != 0 {
        rustix::thread::sched_yield();
    }
}

/// While it lives no child is made. To be held before [`forks`] is looked at: then one of the two sees the other.
pub(crate) struct NoFork;

pub(crate) fn no_fork() -> NoFork {
    MOVES.fetch_add(1, SeqCst);
    NoFork
}

impl Drop for NoFork {
    fn drop(&mut self) {
        MOVES.fetch_sub(1, SeqCst);
    }
}
