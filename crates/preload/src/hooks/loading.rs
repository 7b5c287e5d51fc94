//! What is done when the library is loaded, around forks, and when the first call leads into it.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

use foresee_cache::ours;

use crate::session::{self, Session};

/// The session; started by those calls that lead into it.
#[inline]
pub(super) fn session() -> Option<&'static Session> {
    session::session(run_path)
}

fn run_path() -> Option<&'static CStr> {
    // SAFETY: a zero-terminated name. What is found is in the environment, and is read before the program goes on.
    unsafe {
        let found = libc::getenv(c"FORESEE_RUN".as_ptr());
        (!found.is_null()).then(|| CStr::from_ptr(found))
    }
}

unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        library: *mut c_void,
    ) -> c_int;
}

extern "C" fn before_fork() {
    session::note_fork();
    ours::begin_fork();
}

extern "C" fn after_fork() {
    ours::end_fork();
}

/// Closes what threads of the parent had open for a moment.
extern "C" fn in_child() {
    session::own_memory();
    for number in ours::inherited() {
        // SAFETY: in this process nobody else has it: the thread that opened it exists in the parent only.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

/// Called by the loader. Whose memory this is has to be known before the first `vfork`, whose child cannot be told otherwise.
extern "C" fn loaded() {
    session::own_memory();
    // SAFETY: handlers that take no lock and ask for no memory. The library is never unloaded: it is preloaded.
    unsafe {
        __register_atfork(
            Some(before_fork),
            Some(after_fork),
            Some(in_child),
            null_mut(),
        )
    };
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
