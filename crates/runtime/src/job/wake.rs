//! Whom a change concerns. A transition of the job's state returns it, and the one place that unlocks the state
//! (`Shared::change`) then wakes them: nobody is woken to find the lock taken.

use std::ops::{BitOr, BitOrAssign};

/// Who is to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "whoever is not woken sleeps on"]
pub(super) struct Wake {
    /// The trainer, if it waits.
    pub(super) trainer: bool,
    /// Loader threads.
    pub(super) threads: Call,
    /// The job can use so many loader threads from now on.
    pub(super) threads_most: Option<u32>,
}

/// Which loader threads are woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    #[default]
    Nobody,
    /// One, if none is on its way.
    One,
    /// One more.
    Another,
}

impl Wake {
    pub(super) const NOBODY: Self = Self {
        trainer: false,
        threads: Call::Nobody,
        threads_most: None,
    };

    pub(super) const TRAINER: Self = Self {
        trainer: true,
        ..Self::NOBODY
    };

    pub(super) const ANOTHER: Self = Self {
        threads: Call::Another,
        ..Self::NOBODY
    };

    /// Loader threads alone.
    pub(super) fn call(threads: Call) -> Self {
        Self {
            threads,
            ..Self::NOBODY
        }
    }

    /// This, where a condition holds.
    pub(super) fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NOBODY }
    }
}

impl BitOr for Wake {
    type Output = Self;

    /// All that either concerns.
    fn bitor(self, other: Self) -> Self {
        Self {
            trainer: self.trainer || other.trainer,
            threads: self.threads.max(other.threads),
            threads_most: self.threads_most.max(other.threads_most),
        }
    }
}

impl BitOrAssign for Wake {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_changes_wake_all_whom_either_concerns() {
        let both = Wake::TRAINER | Wake::call(Call::One);
        assert!(both.trainer);
        assert_eq!(both.threads, Call::One);
        assert_eq!((both | Wake::ANOTHER).threads, Call::Another);
        assert_eq!(Wake::ANOTHER | Wake::NOBODY, Wake::ANOTHER);
        assert_eq!(Wake::TRAINER.when(false), Wake::NOBODY);
    }
}
