//! How long a thread slept in between: it gave its core away by itself, and was not just pushed off it.

use std::mem::MaybeUninit;
use std::time::Duration;

/// What a thread has used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTime {
    busy_s: f64,
    /// How often it gave its core away.
    sleeps: i64,
}

impl ThreadTime {
    /// Of this thread, now.
    #[allow(
        unsafe_code,
        reason = "the standard library does not tell how a thread spent its time"
    )]
    pub(crate) fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a rusage that lives until after the call, and all zeros are a valid rusage, so it is
        // initialised whether or not the call succeeds.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            busy_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            sleeps: usage.ru_nvcsw,
        }
    }

    /// How much of `took` since this was made the thread slept.
    pub(crate) fn slept_s(self, took: Duration) -> f64 {
        let now = Self::now();
        if now.sleeps == self.sleeps {
            0.0
        } else {
            (took.as_secs_f64() - (now.busy_s - self.busy_s)).max(0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn sleeping_counts_and_working_does_not() {
        let before = ThreadTime::now();
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(before.slept_s(began.elapsed()) > 0.015);
    }
}
