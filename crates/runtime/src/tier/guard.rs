//! A check of debug builds: who has a job's lock, or is its trainer, must not write files. Whoever is in such a place holds
//! a [`NoWrites`], and what writes a tier's files asks [`check_may_write`]. Release builds do nothing of this.

use std::marker::PhantomData;

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
crate::sync::thread_local! {
    /// How many places this thread is in where no file may be written.
    static PLACES: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, this thread must not write files.
#[must_use]
pub(crate) struct NoWrites {
    /// It belongs to its thread.
    _of_thread: PhantomData<*const ()>,
}

/// Says that this thread must not write files from here on.
pub(crate) fn forbid_writes() -> NoWrites {
    #[cfg(debug_assertions)]
    PLACES.with(|places| places.set(places.get() + 1));
    NoWrites {
        _of_thread: PhantomData,
    }
}

impl Drop for NoWrites {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        PLACES.with(|places| places.set(places.get() - 1));
    }
}

/// A file is about to be written by this thread.
///
/// # Panics
/// In debug builds, if it must not.
#[track_caller]
pub(crate) fn check_may_write() {
    #[cfg(debug_assertions)]
    PLACES.with(|places| {
        assert_eq!(
            places.get(),
            0,
            "a tier's file is written with the job's lock, or by the trainer"
        );
    });
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn who_must_not_write_is_caught_until_the_last_such_place_is_left() {
        check_may_write();
        let outer = forbid_writes();
        drop(forbid_writes());
        assert!(std::panic::catch_unwind(check_may_write).is_err());
        drop(outer);
        check_may_write();
    }

    #[test]
    fn other_threads_may_write() {
        let _here = forbid_writes();
        std::thread::scope(|scope| {
            scope.spawn(check_may_write);
        });
    }
}
