//! Closes after a failure for a while: a full disk is not asked again for every sample, and a log is not flooded.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::locked;

/// 30 s: someone who frees space sees the tier use it soon, and a failing call costs nothing in between.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

/// What failed last, if it has not succeeded since.
#[derive(Debug, Default)]
pub(super) struct Gate {
    trouble: Mutex<Option<Trouble>>,
    /// Warned of once, whatever comes later.
    warned: AtomicBool,
}

#[derive(Debug)]
struct Trouble {
    reason: String,
    until: Instant,
}

impl Gate {
    /// Whether it may be tried now.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        locked(&self.trouble)
            .as_ref()
            .is_none_or(|trouble| trouble.until <= now)
    }

    /// It failed.
    pub(super) fn close(&self, now: Instant, reason: String) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("{reason}; what does not fit is read from the source");
        }
        *locked(&self.trouble) = Some(Trouble {
            reason,
            until: now + PAUSE,
        });
    }

    /// It succeeded.
    pub(super) fn reopen(&self) {
        *locked(&self.trouble) = None;
    }

    /// Why it failed last.
    pub(super) fn reason(&self) -> Option<String> {
        locked(&self.trouble)
            .as_ref()
            .map(|trouble| trouble.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_closed_for_the_pause_and_keeps_the_reason_until_a_success() {
        let gate = Gate::default();
        let now = Instant::now();
        assert!(gate.is_open(now) && gate.reason().is_none());
        gate.close(now, "full".to_owned());
        assert!(!gate.is_open(now + PAUSE / 2));
        assert!(gate.is_open(now + PAUSE));
        assert_eq!(gate.reason().as_deref(), Some("full"));
        gate.reopen();
        assert!(gate.is_open(now) && gate.reason().is_none());
    }
}
