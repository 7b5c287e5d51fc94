//! Locks, atomics and threads of all that jobs share. With the feature `shuttle` they are shuttle's, which runs a test under
//! many schedules (`tests/schedules.rs`); else they are the standard library's. What is not shared between a job's threads
//! (listing, the source, the trace, what a fork does) takes the standard ones, and so do counted pointers: to count them is
//! no step that a schedule could turn round.
//!
//! Shuttle has no time: a wait with an end does not end by itself. So whatever a deadline leads to is called, not waited
//! for, in what is tested so.

pub(crate) use std::sync::{LockResult, PoisonError, TryLockError};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread_local;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{thread, thread_local};

/// Shuttle's threads. One that sleeps lets all others go first: whoever looks again and again would else be all that runs.
#[cfg(feature = "shuttle")]
pub(crate) mod thread {
    pub(crate) use shuttle::thread::*;

    pub(crate) fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

/// Others may come in between here: before what threads share by other means than a lock is read or written, such as a file.
/// Schedules change hands only at steps that shuttle knows of.
#[inline]
pub(crate) fn others_may_come() {
    // No more than a step: who yields lets all others go first in schedules with few preemptions.
    #[cfg(feature = "shuttle")]
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

/// Nobody's panic makes what a lock protects unusable: it is a defect, but not one that should take the trainer's data with
/// it.
pub(crate) fn whole<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
