//! The library's edge: glibc's functions under their own names, and the only unsafe code of the crate. Each hook looks whether
//! its call is about something of ours, and makes the call that the program meant through the next library that has it.
//!
//! What holds for all: when the library is loaded it only notes whose memory this is; `errno` is what the program's own call
//! left, as all else is done by raw system calls; what panics ends as if the library were not there; functions with a
//! variable number of arguments have a fixed one here, which `x86_64` and aarch64 pass alike. Programs are started as
//! ever: `exec` is not hooked.
//!
//! `table` has the functions, `next` finds those behind them, `bodies` is between C's arguments and the library's own types,
//! and `loading` is what the loader and `fork` call.
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

mod bodies;
mod loading;
mod next;
mod table;
