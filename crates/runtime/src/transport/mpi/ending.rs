//! The end: nobody of ours may call MPI when it is finalised, whoever does that and when.
//!
//! What is attached to MPI's communicator of one process is deleted first when MPI is finalised, and MPI tells so: there our
//! threads say good-bye to the other ranks and stop. Where this library initialised MPI it finalises it when the process
//! exits, unless that has failed: then the launcher is to see a process that died and end the others, who else would wait for
//! it. A forked child does nothing of this.

#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::MpiError;
use super::abi::Abi;
use super::calls::Mpi;
use crate::fork;
use crate::transport::tcp::carrier::Stopper;

/// A thread takes no longer to end: it has bounds of its own.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// Who may call MPI: while a thread is inside, MPI is not finalised.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// Whether the thread has ended.
    has_ended: bool,
}

/// While it lives, MPI may be called.
pub(super) struct Inside<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, State>);

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a thread call MPI; none when that is over.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        let state = self.state();
        (!state.is_closed).then_some(Inside(state))
    }

    /// The thread has ended.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits for the thread to end, for a while, and lets nobody in any more.
    fn close(&self) {
        let by = Instant::now() + ENDING_MAX;
        let mut state = self.state();
        while !state.has_ended && Instant::now() < by {
            let left = by.saturating_duration_since(Instant::now());
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_closed = true;
    }
}

/// Threads that call MPI, in this process and of this fork.
static THREADS: Mutex<Vec<(u32, Stopper, Arc<Gate>)>> = Mutex::new(Vec::new());

/// A thread that calls MPI has been started.
pub(super) fn enlist(stopper: Stopper, gate: Arc<Gate>) {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|(_, _, gate)| !gate.state().has_ended);
    threads.push((fork::generation(), stopper, gate));
}

/// Ends all threads that call MPI.
fn end_threads() {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = std::mem::take(&mut *threads);
    drop(threads);
    for (_, stopper, _) in &all {
        stopper.stop();
    }
    for (_, _, gate) in &all {
        gate.close();
    }
}

/// Whether this process is a child of the one that used MPI.
fn is_elsewhere() -> bool {
    OWNER
        .get()
        .is_some_and(|generation| *generation != fork::generation())
}

/// The fork in which MPI is used.
static OWNER: OnceLock<u32> = OnceLock::new();

/// Has our threads ended before MPI is finalised.
pub(super) fn watch<A: Abi>(mpi: &Mpi<A>) -> Result<(), MpiError> {
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let _ = OWNER.set(fork::generation());
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*watched {
        mpi.before_end(finalising::<A>)?;
        *watched = true;
    }
    Ok(())
}

/// MPI is about to be finalised.
unsafe extern "C" fn finalising<A: Abi>(
    _: A::Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // A panic must not go through C; there is nothing to be done about one.
    let _ = catch_unwind(|| {
        if !is_elsewhere() {
            end_threads();
        }
    });
    0
}

/// How an MPI that this library initialised is finalised.
static FINALISE: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Has MPI finalised when the process exits.
pub(super) fn finalise_at_exit<A: Abi>(mpi: &'static Mpi<A>) {
    let _ = OWNER.set(fork::generation());
    let finalise = move || {
        // Somebody else may have.
        if mpi.is_live().unwrap_or(false) {
            mpi.finalise();
        }
    };
    if FINALISE.set(Box::new(finalise)).is_ok() {
        register();
    }
}

#[cfg(target_env = "gnu")]
fn register() {
    unsafe extern "C" {
        fn on_exit(
            function: unsafe extern "C" fn(c_int, *mut c_void),
            argument: *mut c_void,
        ) -> c_int;
    }
    // SAFETY: the function lives as long as the process, and looks at no argument.
    let _ = unsafe { on_exit(exiting, std::ptr::null_mut()) };
}

/// Other systems do not say how a process exits.
#[cfg(not(target_env = "gnu"))]
fn register() {
    extern "C" fn exiting_well() {
        exited(0);
    }
    // SAFETY: the function lives as long as the process.
    let _ = unsafe { libc::atexit(exiting_well) };
}

#[cfg(target_env = "gnu")]
unsafe extern "C" fn exiting(status: c_int, _: *mut c_void) {
    exited(status);
}

/// The process exits with a status.
fn exited(status: c_int) {
    // A panic must not go through C; there is nothing to be done about one.
    let _ = catch_unwind(|| {
        if is_elsewhere() || status != 0 {
            return;
        }
        end_threads();
        if let Some(finalise) = FINALISE.get() {
            finalise();
        }
    });
}
