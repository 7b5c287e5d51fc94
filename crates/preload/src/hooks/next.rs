//! The functions behind ours: how they are found, and the macro that the table of hooks is written with.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libc::{DIR, FILE};

/// The function that a program would have called without us.
pub(super) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(null_mut()),
        }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<*mut c_void> {
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
pub(super) trait Failure {
    fn failure() -> Self;
}

macro_rules! failures {
    ($($type:ty => $value:expr),*) => { $(impl Failure for $type { fn failure() -> Self { $value } })* };
}

failures!(c_int => -1, i64 => -1, isize => -1, *mut FILE => null_mut(), *mut DIR => null_mut(), *mut c_void => libc::MAP_FAILED);

pub(super) fn missing<T: Failure>() -> T {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::failure()
}

/// Defines C's function `name`; in its body `next` is the one of that name in the libraries behind us.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty, |$next:ident| $body:block)*) => { $(
        /// C's function of this name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            static NEXT: $crate::hooks::next::Next = $crate::hooks::next::Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            let Some(found) = NEXT.get() else { return $crate::hooks::next::missing() };
            // SAFETY: what the C library has under this name takes and returns these types.
            let real: unsafe extern "C" fn($($type),*) -> $ret = unsafe { std::mem::transmute(found) };
            // SAFETY: it is the program's own call, with what the program gave; see the table for what else it may be.
            let $next = |$($arg: $type),*| -> $ret { unsafe { real($($arg),*) } };
            $body
        }
    )* };
}

pub(super) use hooks;
