//! Copies of whole files on faster storage, shared by all processes of a host: what `foresee run` keeps, and where.
//!
//! A *cache folder* is a tier: it has a quota, a mark that makes it ours ([`folder`]), and one [`ledger`] that all processes
//! share. A copy is named by what its file was when it was copied ([`key`]: source, device, inode, size and times). So
//! a copy that is found is right, however the program came to the file: a changed file has another name, and there is nothing
//! to keep in step. Who copies a file has its [`claim`]; others wait for it a while. A copy gets its name when it is whole
//! ([`copying`]).
//!
//! What is below is used inside of other people's programs ([`placing`] and all that it calls). It therefore starts no thread,
//! keeps no descriptor open, waits for no lock, speaks to the kernel through raw system calls (`rustix`), which neither
//! come back through a preloaded library nor touch `errno`, and has one answer to all that fails: read the source. What is
//! for the command alone ([`folder`], [`keeping`], [`copier`], [`serving`]) says so at its head.
//!
//! Eviction is deliberately absent: with one shuffled pass an epoch, what was used last is needed last.

pub mod asking;
pub mod claim;
pub mod copier;
pub mod copying;
pub mod counters;
pub mod folder;
pub mod keeping;
pub mod key;
pub mod ledger;
pub mod look;
pub mod ours;
pub mod placing;
pub mod run;
pub mod serving;
pub mod settings;
pub mod shared;
pub mod tier;
