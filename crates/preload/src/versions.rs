//! What the library takes of the C library, in versions that old ones have, too (2.28): a program brings its own C library, and one
//! that lacks a version that is asked for does not start.
//!
//! A linker takes the newest version of a function that the building machine has, for the standard library's calls
//! as well. So functions that got a newer version without a change (2.32, 2.34: they moved to another of the C library's
//! files), or came later (2.30, 2.33), are put here, visible to this library alone, and go on to what was there before. In old C
//! libraries they lie in `libdl.so.2` and `libpthread.so.0`, which are named as needed for that (`build.rs`).
#![allow(
    unsafe_code,
    reason = "functions of two or three instructions that go on to the C library's"
)]

use std::arch::global_asm;

/// Calls of a function go on to the version of it that there was first.
macro_rules! first_version {
    ($jump:literal, $version:literal, $($name:literal),+) => {
        $(global_asm!(
            concat!(".symver foresee_first_", $name, ", ", $name, "@", $version),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ": ", $jump, " foresee_first_", $name, "@PLT"),
            concat!(".size ", $name, ", . - ", $name),
        );)+
    };
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
first_version!(
    "jmp",
    "GLIBC_2.2.5",
    "dlsym",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setspecific",
    "pthread_sigmask"
);

// `gettid` is the system call; `stat64` is what compilers made of it, where 1 is how the fields lie.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
global_asm!(
    ".globl gettid",
    ".hidden gettid",
    ".type gettid, @function",
    "gettid: mov eax, 186",
    "syscall",
    "ret",
    ".size gettid, . - gettid",
    ".globl stat64",
    ".hidden stat64",
    ".type stat64, @function",
    "stat64: mov rdx, rsi",
    "mov rsi, rdi",
    "mov edi, 1",
    "jmp __xstat64@PLT",
    ".size stat64, . - stat64",
);
