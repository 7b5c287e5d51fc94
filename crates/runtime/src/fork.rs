//! Forks. A child has one thread and a copy of all memory, locks in whatever state they were in: what the parent's
//! threads shared must not be touched there again, only left behind. Who holds such things remembers the [`generation`]
//! in which they were made and compares.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// How many forks lie between the first process and this one, as far as anybody asked before them.
pub fn generation() -> u32 {
    HANDLER.call_once(register);
    GENERATION.load(Ordering::Relaxed)
}

#[allow(unsafe_code, reason = "there is no safe way to learn of a fork")]
fn register() {
    // SAFETY: the handler is a plain function that lives as long as the program and does nothing but add to an atomic
    // number, which is allowed in a forked child. A refusal (no memory) leaves forks unnoticed, as before.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
