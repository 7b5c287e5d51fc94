//! The library that `foresee run` preloads into a program: what the program opens for reading in a source is led to a copy on
//! faster storage, and nothing else about the program changes.
//!
//! **Redirect at open.** The program gets a real descriptor, of the copy or of the source. So reading, seeking, mapping,
//! duplicating, forking and passing on are the kernel's, and need no hooks. Hooked are the ways to open a file; those that
//! change one, so that its copy goes; and those that ask what a descriptor is of, so that a copy is seen as the file that it is
//! of.
//!
//! **Right by construction.** At each open the kernel is asked what the path leads to now, with all links and dots;
//! device, inode, size and times name the copy (`foresee_cache::key`). The text of the path only decides whether to ask.
//! A file that is changed has another name from then on, and no copy.
//!
//! **Small files** are copied by who opens them, in one pass, and read from the copy: the source is read once. **Large ones**
//! are read from the source while the copying process fetches them; descriptors that are open move to the copy inside of the
//! program's own reads (`reading`).
//!
//! **Never in the way.** Whatever fails means that the source is read. The library starts no thread, keeps no descriptor,
//! waits for no lock, writes nothing to the program's streams, and does its own work by raw system calls. What is remembered of
//! descriptors is a table of atomic words (`slots`), which is compared with the kernel's word before it is relied on.
//!
//! `hooks` is the only room with unsafe code, but for `versions`, some assembly for the linker, so that the library loads with
//! old C libraries.

// Only hooks call most of it, and a test that hooked its own calls would test itself.
#![cfg_attr(test, allow(dead_code, reason = "hooks are not in tests"))]

mod coverage;
#[cfg(not(test))]
mod hooks;
mod opening;
mod reading;
mod seen;
mod session;
mod slots;
#[cfg(not(test))]
mod versions;
