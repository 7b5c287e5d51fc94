//! What hooks do before and after the program's own call, which they are given: from C's arguments to the library's own
//! types, and back.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use foresee_cache::tier::Kind;
use libc::{DIR, FILE, msghdr, size_t, ssize_t, stat, statx as Statx};
use rustix::fs::OFlags;

use super::loading::session;
use crate::opening::{self, At, Call, Covered, Stream};
use crate::reading::{self, Hands, Sort};
use crate::session::{self, Session};
use crate::{seen, slots};

/// Does what is ours, or nothing if that panics.
#[inline]
fn ours<T>(does: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(does)).ok()
}

/// Borrows a number of the program's for the time of its call.
fn borrowed<'a>(number: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: not -1. If it is closed meanwhile, by another thread of the program, system calls on it fail, or meet what was
    // opened there since, which is compared with what is known before anything follows from it.
    (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

fn owned(number: c_int) -> Option<OwnedFd> {
    // SAFETY: the next library has just opened it, and nobody else knows of it.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

fn call<'a>(folder: c_int, path: *const c_char, flags: c_int) -> Option<Call<'a>> {
    if path.is_null() {
        return None;
    }
    let at = if folder == libc::AT_FDCWD {
        At::Working
    } else {
        At::Folder(borrowed(folder)?)
    };
    // SAFETY: not null; the program gives a zero-terminated path, as it has to, and waits for us.
    let path = unsafe { CStr::from_ptr(path) };
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    Some(Call { at, path, flags })
}

/// Opens for the program; `real` makes its own call.
pub(super) fn open_with(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    real: impl Fn() -> c_int,
) -> c_int {
    let (Some(session), Some(call)) = (session(), call(folder, path, flags)) else {
        return real();
    };
    match ours(|| opening::open(session, call, || owned(real()))) {
        Some(opened) => opened.map_or(-1, IntoRawFd::into_raw_fd),
        None => real(),
    }
}

/// The program is about to change what is at a path.
pub(super) fn changes(folder: c_int, path: *const c_char) {
    if let (Some(session), Some(call)) = (session(), call(folder, path, 0)) {
        ours(|| opening::changes(session, call));
    }
}

pub(super) fn forget(number: c_int) {
    slots::forget(number, session::process);
}

pub(super) fn fix(number: c_int) {
    slots::fix(number, session::process);
}

pub(super) fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && old != new && slots::known(old).is_some() && session::is_own_memory() {
        slots::duplicate(old, new, session::process());
    }
    new
}

/// Makes a read of the program's, counted, and at the copy if there is one by now.
pub(super) fn read_with(number: c_int, sort: Sort, real: impl Fn() -> ssize_t) -> ssize_t {
    let known = slots::known(number)
        .zip(session::started())
        .zip(borrowed(number));
    let Some(((slot, session), descriptor)) = known else {
        return real();
    };
    let hands = Hands {
        replace: &|copy| replace(number, &copy),
        undisturbed: &undisturbed,
    };
    let prepared = ours(|| reading::before(session, slot, descriptor, sort, &hands)).flatten();
    let got = real();
    if let Some(prepared) = prepared {
        reading::after(session, &prepared, got);
    }
    got
}

fn replace(number: RawFd, copy: &OwnedFd) -> bool {
    let Some(descriptor) = borrowed(number) else {
        return false;
    };
    let Ok(kept) = rustix::io::fcntl_getfd(descriptor) else {
        return false;
    };
    let flags = if kept.contains(rustix::io::FdFlags::CLOEXEC) {
        rustix::io::DupFlags::CLOEXEC
    } else {
        rustix::io::DupFlags::empty()
    };
    // SAFETY: the program's own number, which it is about to read; it keeps it, so it is not closed here.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup3(copy, &mut target, flags).is_ok()
}

fn undisturbed(does: &mut dyn FnMut()) {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are written before they are read; a mask that is set is set back by the same thread.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        does();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
    }
}

/// What `fopen` opens by a mode, in the flags of `open`.
fn stream_flags(mode: *const c_char) -> c_int {
    if mode.is_null() {
        return libc::O_RDWR;
    }
    // SAFETY: not null; the program gives a zero-terminated mode.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let letters = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let is_read = letters.first() == Some(&b'r') && !letters.contains(&b'+');
    let mut flags = if is_read {
        libc::O_RDONLY
    } else {
        libc::O_RDWR
    };
    if letters.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    flags
}

/// Opens a stream; `real` makes the program's own call with a path.
pub(super) fn stream_with(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let found = session()
        .zip(call(libc::AT_FDCWD, path, stream_flags(mode)))
        .and_then(|(session, call)| Some((session, ours(|| opening::stream(session, call))?)));
    let (session, tier, covered) = match found {
        Some((session, Stream::Copy { tier, covered })) => (session, Some(tier), covered),
        Some((session, Stream::Source(covered))) => (session, None, covered),
        _ => return real(path),
    };
    if let Some(tier) = tier {
        let copy = session.cache.tiers()[tier].path(Kind::File, covered.key);
        let stream = real(copy.as_c_str().as_ptr());
        if !stream.is_null() {
            enter_stream(session, stream, Some(tier), covered);
            return stream;
        }
    }
    let stream = real(path);
    if !stream.is_null() {
        enter_stream(session, stream, None, covered);
    }
    stream
}

fn enter_stream(session: &Session, stream: *mut FILE, tier: Option<usize>, covered: Covered) {
    // SAFETY: a stream that was just opened.
    let number = unsafe { libc::fileno(stream) };
    let descriptor = borrowed(number);
    ours(|| {
        opening::enter_stream(session, number, tier, covered);
        if let (None, Some(descriptor)) = (tier, descriptor) {
            opening::ask_for_stream(session, covered, descriptor);
        }
    });
}

/// Shows the source's file where the kernel spoke of a copy.
pub(super) fn show(number: c_int, result: c_int, into: *mut stat) -> c_int {
    if result == 0
        && let Some(slot) = slots::known(number)
        && !into.is_null()
    {
        // SAFETY: the call succeeded, so the program gave a place that was written in full.
        let into = unsafe { &mut *into };
        ours(|| seen::show(slot, into));
    }
    result
}

/// The same for the newer structure.
pub(super) fn show_extended(number: c_int, result: c_int, into: *mut Statx) -> c_int {
    if result == 0
        && let Some(slot) = slots::known(number)
        && !into.is_null()
    {
        // SAFETY: as above.
        let into = unsafe { &mut *into };
        ours(|| seen::show_extended(slot, into));
    }
    result
}

/// A folder was opened: paths may begin at it from now on.
pub(super) fn note_folder(path: *const c_char, opened: *mut DIR) -> *mut DIR {
    if opened.is_null() {
        return opened;
    }
    // SAFETY: the next library has just opened it.
    let number = unsafe { libc::dirfd(opened) };
    if let (Some(session), Some(call)) = (session(), call(libc::AT_FDCWD, path, 0))
        && let Some(folder) = borrowed(number)
    {
        ours(|| opening::note_folder(session, call, folder));
    }
    opened
}

pub(super) fn is_empty(path: *const c_char) -> bool {
    // SAFETY: not null where it is looked at, and zero-terminated.
    path.is_null() || unsafe { *path } == 0
}

/// Descriptors that a message passes on have two owners from then on.
pub(super) fn fix_passed(message: *const msghdr) {
    // SAFETY: the program's own message, walked by C's own macros within its lengths.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 {
            return;
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                let len = (*part).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let numbers = libc::CMSG_DATA(part).cast::<c_int>();
                for index in 0..len / size_of::<c_int>() {
                    fix(numbers.add(index).read_unaligned());
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// Whether a command of `fcntl` ties a descriptor to its open file.
fn ties(command: c_int) -> bool {
    matches!(
        command,
        libc::F_SETFL
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
            | libc::F_SETLEASE
            | libc::F_SETOWN
    )
}

pub(super) fn fcntl_with(
    number: c_int,
    command: c_int,
    argument: c_long,
    real: impl Fn() -> c_int,
) -> c_int {
    if slots::known(number).is_none() {
        return real();
    }
    // Programs that are started have it, too, from now on.
    if command == libc::F_SETFD && argument & c_long::from(libc::FD_CLOEXEC) == 0 {
        fix(number);
    }
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        fix(number);
        return duplicated(number, real());
    }
    if ties(command) {
        fix(number);
    }
    real()
}

pub(super) fn map_with(number: c_int, len: size_t, real: impl Fn() -> *mut c_void) -> *mut c_void {
    if let Some(slot) = slots::known(number)
        && let (Some(session), Some(descriptor)) = (session::started(), borrowed(number))
    {
        ours(|| reading::mapped(session, slot, descriptor, len));
    }
    real()
}

/// What reads a descriptor in a way that is not followed: it stays where it is, and a copy is asked for.
pub(super) fn untracked(number: c_int) {
    if let Some(slot) = slots::known(number)
        && let (Some(session), Some(descriptor)) = (session::started(), borrowed(number))
    {
        ours(|| reading::ask_if_large(session, slot, descriptor));
        fix(number);
    }
}

/// As [`stream_with`]; a stream that is only given another mode keeps its file.
pub(super) fn reopen_with(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    if path.is_null() {
        return real(path);
    }
    stream_with(path, mode, real)
}

pub(super) fn moved_working() {
    if let Some(session) = session::started() {
        session.coverage.forget_working();
    }
}
