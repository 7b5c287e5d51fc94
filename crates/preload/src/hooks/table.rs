//! The table: each of C's functions that is hooked, with what is done about its call.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    DIR, FILE, iovec, mmsghdr, mode_t, msghdr, off_t, pid_t, size_t, ssize_t, stat, statx as Statx,
};

use super::bodies::{
    changes, duplicated, fcntl_with, fix, fix_passed, forget, is_empty, map_with, moved_working,
    note_folder, open_with, read_with, reopen_with, show, show_extended, stream_with, untracked,
};
use super::next::hooks;
use crate::reading::Sort;
use crate::{session, slots};

/// That programs which are started shall have a descriptor; `fcntl` says the same by `F_SETFD`.
const FIONCLEX: c_ulong = 0x5450;
const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

// `next` below is only given what the program gave, but for a path of ours in the place of its own, which is zero-terminated and
// lives until the call is over: that is what makes it safe to call.
hooks! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || next(path, flags, mode))
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || next(path, flags, mode))
    }
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(folder, path, flags, || next(folder, path, flags, mode))
    }
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
        open_with(folder, path, flags, || next(folder, path, flags, mode))
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || next(path, flags))
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, flags, || next(path, flags))
    }
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(folder, path, flags, || next(folder, path, flags))
    }
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        open_with(folder, path, flags, || next(folder, path, flags))
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, CREATE, || next(path, mode))
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int, |next| {
        open_with(libc::AT_FDCWD, path, CREATE, || next(path, mode))
    }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
        stream_with(path, mode, |path| next(path, mode))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
        stream_with(path, mode, |path| next(path, mode))
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |next| {
        reopen_with(path, mode, |path| next(path, mode, stream))
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |next| {
        reopen_with(path, mode, |path| next(path, mode, stream))
    }
    fn opendir(path: *const c_char) -> *mut DIR, |next| {
        note_folder(path, next(path))
    }

    fn truncate(path: *const c_char, len: off_t) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        next(path, len)
    }
    fn truncate64(path: *const c_char, len: off_t) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        next(path, len)
    }
    fn unlink(path: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        next(path)
    }
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        changes(folder, path);
        next(folder, path, flags)
    }
    fn remove(path: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, path);
        next(path)
    }
    fn rename(old: *const c_char, new: *const c_char) -> c_int, |next| {
        changes(libc::AT_FDCWD, old);
        changes(libc::AT_FDCWD, new);
        next(old, new)
    }
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int, |next| {
        changes(from, old);
        changes(to, new);
        next(from, old, to, new)
    }
    fn renameat2(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int, |next| {
        changes(from, old);
        changes(to, new);
        next(from, old, to, new, flags)
    }
    fn chdir(path: *const c_char) -> c_int, |next| {
        let done = next(path);
        moved_working();
        done
    }
    fn fchdir(folder: c_int) -> c_int, |next| {
        let done = next(folder);
        moved_working();
        done
    }

    fn fstat(number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, next(number, into), into)
    }
    fn fstat64(number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, next(number, into), into)
    }
    fn __fxstat(version: c_int, number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, next(version, number, into), into)
    }
    fn __fxstat64(version: c_int, number: c_int, into: *mut stat) -> c_int, |next| {
        show(number, next(version, number, into), into)
    }
    fn fstatat(folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = next(folder, path, into, flags);
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn fstatat64(folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = next(folder, path, into, flags);
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn __fxstatat(version: c_int, folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = next(version, folder, path, into, flags);
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn __fxstatat64(version: c_int, folder: c_int, path: *const c_char, into: *mut stat, flags: c_int) -> c_int, |next| {
        let done = next(version, folder, path, into, flags);
        if is_empty(path) { show(folder, done, into) } else { done }
    }
    fn statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int, |next| {
        let done = next(folder, path, flags, mask, into);
        if is_empty(path) { show_extended(folder, done, into) } else { done }
    }

    fn read(number: c_int, into: *mut c_void, len: size_t) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || next(number, into, len))
    }
    fn __read_chk(number: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || next(number, into, len, room))
    }
    fn readv(number: c_int, parts: *const iovec, count: c_int) -> ssize_t, |next| {
        read_with(number, Sort::InOrder, || next(number, parts, count))
    }
    fn pread(number: c_int, into: *mut c_void, len: size_t, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, into, len, from))
    }
    fn pread64(number: c_int, into: *mut c_void, len: size_t, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, into, len, from))
    }
    fn __pread_chk(number: c_int, into: *mut c_void, len: size_t, from: off_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, into, len, from, room))
    }
    fn __pread64_chk(number: c_int, into: *mut c_void, len: size_t, from: off_t, room: size_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, into, len, from, room))
    }
    fn preadv(number: c_int, parts: *const iovec, count: c_int, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, parts, count, from))
    }
    fn preadv64(number: c_int, parts: *const iovec, count: c_int, from: off_t) -> ssize_t, |next| {
        read_with(number, Sort::Placed, || next(number, parts, count, from))
    }
    fn preadv2(number: c_int, parts: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t, |next| {
        untracked(number);
        next(number, parts, count, from, flags)
    }
    fn preadv64v2(number: c_int, parts: *const iovec, count: c_int, from: off_t, flags: c_int) -> ssize_t, |next| {
        untracked(number);
        next(number, parts, count, from, flags)
    }
    fn lseek(number: c_int, by: off_t, whence: c_int) -> off_t, |next| {
        let _under_way = slots::known(number).and_then(|slot| slot.begin_read(session::process()));
        next(number, by, whence)
    }
    fn lseek64(number: c_int, by: off_t, whence: c_int) -> off_t, |next| {
        let _under_way = slots::known(number).and_then(|slot| slot.begin_read(session::process()));
        next(number, by, whence)
    }
    fn sendfile(to: c_int, number: c_int, from: *mut off_t, len: size_t) -> ssize_t, |next| {
        untracked(number);
        next(to, number, from, len)
    }
    fn sendfile64(to: c_int, number: c_int, from: *mut off_t, len: size_t) -> ssize_t, |next| {
        untracked(number);
        next(to, number, from, len)
    }
    fn copy_file_range(number: c_int, from: *mut i64, to: c_int, at: *mut i64, len: size_t, flags: c_uint) -> ssize_t, |next| {
        untracked(number);
        next(number, from, to, at, len, flags)
    }
    fn splice(number: c_int, from: *mut i64, to: c_int, at: *mut i64, len: size_t, flags: c_uint) -> ssize_t, |next| {
        untracked(number);
        next(number, from, to, at, len, flags)
    }
    fn mmap(at: *mut c_void, len: size_t, access: c_int, flags: c_int, number: c_int, from: off_t) -> *mut c_void, |next| {
        map_with(number, len, || next(at, len, access, flags, number, from))
    }
    fn mmap64(at: *mut c_void, len: size_t, access: c_int, flags: c_int, number: c_int, from: off_t) -> *mut c_void, |next| {
        map_with(number, len, || next(at, len, access, flags, number, from))
    }

    fn close(number: c_int) -> c_int, |next| {
        forget(number);
        next(number)
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
        if flags == 0 {
            slots::forget_range(first, last, session::process);
        }
        next(first, last, flags)
    }
    fn dup(old: c_int) -> c_int, |next| {
        fix(old);
        duplicated(old, next(old))
    }
    fn dup2(old: c_int, new: c_int) -> c_int, |next| {
        if old != new {
            fix(old);
            forget(new);
        }
        duplicated(old, next(old, new))
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int, |next| {
        fix(old);
        forget(new);
        duplicated(old, next(old, new, flags))
    }
    fn fcntl(number: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        fcntl_with(number, command, argument, || next(number, command, argument))
    }
    fn fcntl64(number: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        fcntl_with(number, command, argument, || next(number, command, argument))
    }
    fn ioctl(number: c_int, request: c_ulong, argument: *mut c_void) -> c_int, |next| {
        if request == FIONCLEX {
            fix(number);
        }
        next(number, request, argument)
    }
    fn flock(number: c_int, operation: c_int) -> c_int, |next| {
        fix(number);
        next(number, operation)
    }
    fn lockf(number: c_int, command: c_int, len: off_t) -> c_int, |next| {
        fix(number);
        next(number, command, len)
    }
    fn lockf64(number: c_int, command: c_int, len: off_t) -> c_int, |next| {
        fix(number);
        next(number, command, len)
    }
    fn fdopen(number: c_int, mode: *const c_char) -> *mut FILE, |next| {
        untracked(number);
        next(number, mode)
    }
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, |next| {
        fix_passed(message);
        next(socket, message, flags)
    }
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, |next| {
        if !messages.is_null() {
            for index in 0..count as usize {
                // SAFETY: the program says that there are so many of them.
                fix_passed(unsafe { &raw const (*messages.add(index)).msg_hdr });
            }
        }
        next(socket, messages, count, flags)
    }
    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int, |next| {
        session::note_fork();
        next(process, path, actions, attributes, arguments, environment)
    }
    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int, |next| {
        session::note_fork();
        next(process, file, actions, attributes, arguments, environment)
    }
}
