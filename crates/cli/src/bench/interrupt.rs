//! Ctrl-C. Before there is anything to report it ends the process; while a job runs the first one only asks for an end,
//! and the second one does not wait for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::SIGINT;
use signal_hook::flag::{register, register_conditional_shutdown};
use signal_hook::low_level::unregister;

use crate::INTERRUPTED;

/// Watches for Ctrl-C until it is dropped.
pub(super) struct Interrupt {
    /// Whether the next Ctrl-C ends the process.
    raised: Arc<AtomicBool>,
    /// In the order in which the signal runs through them.
    handlers: [SigId; 2],
}

impl Interrupt {
    /// Ctrl-C ends the process for now.
    pub(super) fn watch() -> io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(true));
        let handlers = [
            register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), Arc::clone(&raised))?,
            register(SIGINT, Arc::clone(&raised))?,
        ];
        Ok(Self { raised, handlers })
    }

    /// From now on the first Ctrl-C only asks.
    pub(super) fn hold(&self) {
        self.raised.store(false, Ordering::Relaxed);
    }

    /// Whether it was asked for an end.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for handler in self.handlers {
            unregister(handler);
        }
    }
}
