//! The library's edge: glibc's functions under their own names, and the only unsafe code of the crate. Each hook looks whether
//! its call is about something of ours, and makes the call that the program meant through the next library that has it.
//!
//! What holds for all: when the library is loaded it only notes whose memory this is; `errno` is what the program's own call left, as all else is done
//! by raw system calls; what panics ends as if the library were not there; functions with a variable number of arguments
//! have a fixed one here, which `x86_64` and aarch64 pass alike. Programs are started as ever: `exec` is not hooked.
#![allow(unsafe_code, reason = "the edge to C; every block says why")]
#![allow(
    clippy::cast_ptr_alignment,
    reason = "descriptors in messages are read unaligned"
)]
#![allow(
    clippy::missing_safety_doc,
    clippy::similar_names,
    reason = "these are C's functions, documented there, with C's names"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::{ManuallyDrop, MaybeUninit, transmute};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use foresee_cache::ours;
use foresee_cache::tier::Kind;
use libc::{
    DIR, FILE, iovec, mmsghdr, mode_t, msghdr, off_t, pid_t, size_t, ssize_t, stat, statx as Statx,
};
use rustix::fs::OFlags;

use crate::opening::{self, At, Call, Covered, Stream};
use crate::reading::{self, Hands, Sort};
use crate::session::{self, Session};
use crate::{seen, slots};

/// The function that a program would have called without us.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    #[inline]
    fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            // SAFETY: a zero-terminated name; the handle is one that glibc defines.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Relaxed);
        }
        (!found.is_null()).then_some(found)
    }
}

/// What a function returns that could not be called.
trait Failure {
    fn failure() -> Self;
}

macro_rules! failures {
    ($($type:ty => $value:expr),*) => { $(impl Failure for $type { fn failure() -> Self { $value } })* };
}

failures!(c_int => -1, i64 => -1, isize => -1, *mut FILE => null_mut(), *mut DIR => null_mut(), *mut c_void => libc::MAP_FAILED);

fn missing<T: Failure>() -> T {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::failure()
}

/// Defines C's function `name`; in its body `next` is the one of that name in the libraries behind us.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty, |$next:ident| $body:block)*) => { $(
        /// C's function of this name.
        #[allow(
            clippy::undocumented_unsafe_blocks,
            reason = "one note, before the table of hooks, is for all calls of the next library"
        )]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            static NEXT: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            let Some(found) = NEXT.get() else { return missing() };
            // SAFETY: what the C library has under this name takes and returns these types.
            let $next: unsafe extern "C" fn($($type),*) -> $ret = unsafe { transmute(found) };
            $body
        }
    )* };
}

/// The session; started by those calls that lead into it.
#[inline]
fn session() -> Option<&'static Session> {
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
fn open_with(folder: c_int, path: *const c_char, flags: c_int, real: impl Fn() -> c_int) -> c_int {
    let (Some(session), Some(call)) = (session(), call(folder, path, flags)) else {
        return real();
    };
    match ours(|| opening::open(session, call, || owned(real()))) {
        Some(opened) => opened.map_or(-1, IntoRawFd::into_raw_fd),
        None => real(),
    }
}

/// The program is about to change what is at a path.
fn changes(folder: c_int, path: *const c_char) {
    if let (Some(session), Some(call)) = (session(), call(folder, path, 0)) {
        ours(|| opening::changes(session, call));
    }
}

fn forget(number: c_int) {
    slots::forget(number, session::process);
}

fn fix(number: c_int) {
    slots::fix(number, session::process);
}

fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && old != new && slots::known(old).is_some() && session::is_own_memory() {
        slots::duplicate(old, new, session::process());
    }
    new
}

/// Makes a read of the program's, counted, and at the copy if there is one by now.
fn read_with(number: c_int, sort: Sort, real: impl Fn() -> ssize_t) -> ssize_t {
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
fn stream_with(
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
fn show(number: c_int, result: c_int, into: *mut stat) -> c_int {
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

fn is_empty(path: *const c_char) -> bool {
    // SAFETY: not null where it is looked at, and zero-terminated.
    path.is_null() || unsafe { *path } == 0
}

/// Descriptors that a message passes on have two owners from then on.
fn fix_passed(message: *const msghdr) {
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

fn fcntl_with(number: c_int, command: c_int, argument: c_long, real: impl Fn() -> c_int) -> c_int {
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

fn map_with(number: c_int, len: size_t, real: impl Fn() -> *mut c_void) -> *mut c_void {
    if let Some(slot) = slots::known(number)
        && let (Some(session), Some(descriptor)) = (session::started(), borrowed(number))
    {
        ours(|| reading::mapped(session, slot, descriptor, len));
    }
    real()
}

/// What reads a descriptor in a way that is not followed: it stays where it is, and a copy is asked for.
fn untracked(number: c_int) {
    if let Some(slot) = slots::known(number)
        && let (Some(session), Some(descriptor)) = (session::started(), borrowed(number))
    {
        ours(|| reading::ask_if_large(session, slot, descriptor));
        fix(number);
    }
}

/// That programs which are started shall have a descriptor; `fcntl` says the same by `F_SETFD`.
const FIONCLEX: c_ulong = 0x5450;
const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

// SAFETY, for every call of `next` below: it is the program's own call, with the arguments that the program gave, but for a path
// of ours in the place of its own, which is zero-terminated and lives until the call is over.
hooks! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || unsafe { next(path, flags, mode) })
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || unsafe { next(path, flags, mode) })
    }
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(folder, path, flags, || unsafe { next(folder, path, flags, mode) })
    }
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(folder, path, flags, || unsafe { next(folder, path, flags, mode) })
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || unsafe { next(path, flags) })
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || unsafe { next(path, flags) })
    }
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(folder, path, flags, || unsafe { next(folder, path, flags) })
    }
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(folder, path, flags, || unsafe { next(folder, path, flags) })
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, CREATE, || unsafe { next(path, mode) })
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, CREATE, || unsafe { next(path, mode) })
    }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
        stream_with(path, mode, |path| unsafe { next(path, mode) })
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
        stream_with(path, mode, |path| unsafe { next(path, mode) })
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |next| {
        reopen_with(path, mode, |path| unsafe { next(path, mode, stream) })
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |next| {
        reopen_with(path, mode, |path| unsafe { next(path, mode, stream) })
    }
    fn opendir(path: *const c_char) -> *mut DIR, |next| {
        let opened = unsafe { next(path) };
        if !opened.is_null()
            && let (Some(session), Some(call)) = (session(), call(libc::AT_FDCWD, path, 0))
            && let Some(folder) = borrowed(unsafe { libc::dirfd(opened) })
        {
            ours(|| opening::note_folder(session, call, folder));
        }
        opened
    }

    fn truncate(path: *const c_char, len: off_t) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        unsafe { next(path, len) }
    }
    fn truncate64(path: *const c_char, len: off_t) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        unsafe { next(path, len) }
    }
    fn unlink(path: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        unsafe { next(path) }
    }
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        changes(folder, path);
        unsafe { next(folder, path, flags) }
    }
    fn remove(path: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        unsafe { next(path) }
    }
    fn rename(old: *const c_char, new: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, old);
        changes(libc::AT_FDCWD, new);
        unsafe { next(old, new) }
    }
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int, |next| {
        changes(from, old);
        changes(to, new);
        unsafe { next(from, old, to, new) }
    }
    fn renameat2(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int, |next| {
        changes(from, old);
        changes(to, new);
        unsafe { next(from, old, to, new, flags) }
    }
    fn chdir(path: *const c_char) -> c_int, |next| {
        let done = unsafe { next(path) };
        moved_working();
        done
    }
    fn fchdir(folder: c_int) -> c_int, |next| {
        let done = unsafe { next(folder) };
        moved_working();
        done
    }

    fn fstat(number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, unsafe { next(number, into) }, into)
    }
    fn fstat64(number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, unsafe { next(number, into) }, into)
    }
    fn __fxstat(version: c_int, number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, unsafe { next(version, number, into) }, into)
    }
    fn __fxstat64(version: c_int, number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, unsafe { next(version, number, into) }, into)
    }
    fn fstatat(folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = unsafe { next(folder, path, into, flags) };
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn fstatat64(folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = unsafe { next(folder, path, into, flags) };
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn __fxstatat(version: c_int, folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = unsafe { next(version, folder, path, into, flags) };
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn __fxstatat64(version: c_int, folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = unsafe { next(version, folder, path, into, flags) };
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int, |next| {
        let done = unsafe { next(folder, path, flags, mask, into) };
        if done == 0
            && is_empty(path)
            && let Some(slot) = slots::known(folder)
            && !into.is_null()
        {
            let into = unsafe { &mut *into };
            ours(|| seen::show_extended(slot, into));
        }
        done
    }

    fn read(number: c_int, into: *mut c_void, len: size_t) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || unsafe { next(number, into, len) })
    }
    fn __read_chk(number: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || unsafe { next(number, into, len, room) })
    }
    fn readv(number: c_int, parts: *const iovec, count: c_int) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || unsafe { next(number, parts, count) })
    }
    fn pread(number: c_int, into: *mut c_void, len: size_t, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, into, len, from) })
    }
    fn pread64(number: c_int, into: *mut c_void, len: size_t, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, into, len, from) })
    }
    fn __pread_chk(number: c_int, into: *mut c_void, len: size_t, from: off_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, into, len, from, room) })
    }
    fn __pread64_chk(number: c_int, into: *mut c_void, len: size_t, from: off_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, into, len, from, room) })
    }
    fn preadv(number: c_int, parts: *const iovec, count: c_int, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, parts, count, from) })
    }
    fn preadv64(number: c_int, parts: *const iovec, count: c_int, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || unsafe { next(number, parts, count, from) })
    }
    fn preadv2(number: c_int, parts: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(number, parts, count, from, flags) }
    }
    fn preadv64v2(number: c_int, parts: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(number, parts, count, from, flags) }
    }
    fn lseek(number: c_int, by: off_t, whence: c_int) -> off_t, |next| {
        let _under_way = slots::known(number).and_then(|slot| slot.begin_read(session::process()));
        unsafe { next(number, by, whence) }
    }
    fn lseek64(number: c_int, by: off_t, whence: c_int) -> off_t, |next| {
        let _under_way = slots::known(number).and_then(|slot| slot.begin_read(session::process()));
        unsafe { next(number, by, whence) }
    }
    fn sendfile(to: c_int, number: c_int, from: *mut off_t, len: size_t) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(to, number, from, len) }
    }
    fn sendfile64(to: c_int, number: c_int, from: *mut off_t, len: size_t) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(to, number, from, len) }
    }
    fn copy_file_range(number: c_int, from: *mut i64, to: c_int, at: *mut i64, len: size_t, flags: c_uint) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(number, from, to, at, len, flags) }
    }
    fn splice(number: c_int, from: *mut i64, to: c_int, at: *mut i64, len: size_t, flags: c_uint) -> ssize_t, |next| {
        untracked(number);
        unsafe { next(number, from, to, at, len, flags) }
    }
    fn mmap(at: *mut c_void, len: size_t, access: c_int, flags: c_int, number: c_int, from: off_t) -> *mut c_void, |next| {
        map_with(number, len, || unsafe { next(at, len, access, flags, number, from) })
    }
    fn mmap64(at: *mut c_void, len: size_t, access: c_int, flags: c_int, number: c_int, from: off_t) -> *mut c_void, |next| {
        map_with(number, len, || unsafe { next(at, len, access, flags, number, from) })
    }

    fn close(number: c_int) -> c_int, |next| {
        forget(number);
        unsafe { next(number) }
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
        if flags == 0 {
            slots::forget_range(first, last, session::process);
        }
        unsafe { next(first, last, flags) }
    }
    fn dup(old: c_int) -> c_int, |next| {
        fix(old);
        duplicated(old, unsafe { next(old) })
    }
    fn dup2(old: c_int, new: c_int) -> c_int, |next| {
        if old != new {
            fix(old);
            forget(new);
        }
        duplicated(old, unsafe { next(old, new) })
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int, |next| {
        fix(old);
        forget(new);
        duplicated(old, unsafe { next(old, new, flags) })
    }
    fn fcntl(number: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        fcntl_with(number, command, argument, || unsafe { next(number, command, argument) })
    }
    fn fcntl64(number: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        fcntl_with(number, command, argument, || unsafe { next(number, command, argument) })
    }
    fn ioctl(number: c_int, request: c_ulong, argument: *mut c_void) -> c_int, |next| {
        if request == FIONCLEX {
            fix(number);
        }
        unsafe { next(number, request, argument) }
    }
    fn flock(number: c_int, operation: c_int) -> c_int, |next| {
        fix(number);
        unsafe { next(number, operation) }
    }
    fn lockf(number: c_int, command: c_int, len: off_t) -> c_int, |next| {
        fix(number);
        unsafe { next(number, command, len) }
    }
    fn lockf64(number: c_int, command: c_int, len: off_t) -> c_int, |next| {
        fix(number);
        unsafe { next(number, command, len) }
    }
    fn fdopen(number: c_int, mode: *const c_char) -> *mut FILE, |next| {
        untracked(number);
        unsafe { next(number, mode) }
    }
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, |next| {
        fix_passed(message);
        unsafe { next(socket, message, flags) }
    }
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, |next| {
        if !messages.is_null() {
            for index in 0..count as usize {
                fix_passed(unsafe { &raw const (*messages.add(index)).msg_hdr });
            }
        }
        unsafe { next(socket, messages, count, flags) }
    }
    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int, |next| {
        session::note_fork();
        unsafe { next(process, path, actions, attributes, arguments, environment) }
    }
    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int, |next| {
        session::note_fork();
        unsafe { next(process, file, actions, attributes, arguments, environment) }
    }
}

/// As [`stream_with`]; a stream that is only given another mode keeps its file.
fn reopen_with(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    if path.is_null() {
        return real(path);
    }
    stream_with(path, mode, real)
}

fn moved_working() {
    if let Some(session) = session::started() {
        session.coverage.forget_working();
    }
}
