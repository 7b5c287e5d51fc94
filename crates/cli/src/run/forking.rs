//! Starts processes of ours beside the program: forks of this one, twice removed, as the program that this process becomes shall
//! not have children that it did not start. The only unsafe code of the command.
//!
//! This process has one thread when it gets here, so its child may do whatever it likes.
#![allow(
    unsafe_code,
    reason = "fork, and the descriptors of a process of our own"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The number that a process of ours has its descriptor at.
const KEPT: i32 = 3;

/// Starts a process that does this and ends, with one descriptor of those that are open.
pub(crate) fn start(kept: OwnedFd, serve: impl FnOnce(OwnedFd)) -> io::Result<()> {
    // SAFETY: one thread (above), so the child has no lock of a thread that it lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => detach(kept, serve),
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child, into our own variable.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if waited == child && status == 0 {
                Ok(())
            } else {
                Err(io::Error::other("it could not be started"))
            }
        }
    }
}

/// In the child: a session of its own, so that Ctrl-C is not for it, and another fork, whose parent is nobody's.
fn detach(kept: OwnedFd, serve: impl FnOnce(OwnedFd)) -> ! {
    let _ = rustix::process::setsid();
    // SAFETY: as above.
    let code = match unsafe { libc::fork() } {
        -1 => 1,
        0 => {
            let kept = leave_streams(kept);
            let _ = std::env::set_current_dir("/");
            serve(kept);
            0
        }
        _ => 0,
    };
    // SAFETY: ends this process without running what its parent registered to be run at its end.
    unsafe { libc::_exit(code) }
}

/// Nothing of what the parent had open is left but what is kept; streams lead nowhere.
fn leave_streams(kept: OwnedFd) -> OwnedFd {
    let number = kept.as_raw_fd();
    std::mem::forget(kept);
    // SAFETY: plain system calls on descriptors of this process, which has one thread; nothing else uses those that are
    // closed: this process only serves from now on. What is kept is moved to its number and owned from there.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        if number != KEPT {
            libc::dup2(number, KEPT);
        }
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..KEPT {
            libc::dup2(nowhere, stream);
        }
        libc::syscall(libc::SYS_close_range, KEPT + 1, libc::c_uint::MAX, 0);
        libc::fcntl(KEPT, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(KEPT)
    }
}
