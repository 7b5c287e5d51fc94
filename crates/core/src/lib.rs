//! The part of foresee that decides: which sample a rank needs when, where each read is served from, what is kept
//! and what goes. It does nothing itself: no clock, thread, file, socket or environment (see `clippy.toml`). The
//! simulator drives it on virtual time, the loader on real time; both see the same decisions.

pub mod assign;
pub mod bound;
pub mod catalog;
pub mod causes;
pub mod digest;
pub mod engine;
pub mod foresight;
mod framed;
pub mod held;
pub mod homes;
pub mod ids;
pub mod model;
pub mod policy;
pub mod steps;
pub mod stream;
pub mod tally;
pub mod threads;
pub mod tier_map;
pub mod units;
