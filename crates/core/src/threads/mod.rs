//! How many loader threads load and decode, and for whom; how far ahead they stage.
//!
//! On a host with several ranks every step ends with a collective, so one rank's slow reads delay all. What a rank needs next
//! is known, so who will be late can be predicted, and threads can be moved there before (Lobster):
//!
//! - [`decoding`]: what threads decode, and how many are enough.
//! - [`loading`]: how long a rank loads what is before it.
//! - [`mod@allot`]: threads by rank.
//! - [`balance`]: loading and decoding threads of a host, made anew now and then, and left alone where that gains nothing.
//! - [`plan`]: the same written down, to be done again.
//! - [`permits`]: the same among processes that only see what the others show of themselves.
//!
//! One rank alone has [`crew`], how many threads are of use where nobody said, and [`window`], how much is staged ahead.
//! Nothing here has a thread or a clock: drivers tell what they measured, and do what is decided.

pub mod allot;
pub mod balance;
pub mod crew;
pub mod decoding;
pub mod loading;
pub mod permits;
pub mod plan;
pub mod window;

pub use self::allot::{Demand, Host, Rule, Score, allot, by_queue};
pub use self::balance::{Allotted, Balance, Division, Terms, divide};
pub use self::decoding::{Decodes, Decoding, Measured};
pub use self::loading::{Crowd, Need};
pub use self::plan::ThreadPlan;

/// Why a text is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}")]
pub struct TextError {
    /// Which line, from 1.
    pub line: usize,
    /// What should be there.
    pub expected: &'static str,
}
