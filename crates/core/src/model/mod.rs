//! The performance model: what a read costs. Curves give aggregate throughput for a number of readers or threads,
//! [`System`] describes the machine, [`Model`] turns both into seconds a byte for each origin, and picks the cheapest.
//! [`Paces`] are what plans are made with of it, [`Hosts`] says who lives where. [`yang_cong`] holds the closed-form model of locality-aware loading beside it.

mod cost;
mod curve;
mod hosts;
mod paces;
mod system;
pub mod yang_cong;

pub use cost::{Model, Origin, SourceLoad};
pub use curve::{Beyond, Curve, CurveError};
pub use hosts::Hosts;
pub use paces::Paces;
pub use system::{Contention, Decoded, Scope, System, Tier, Trainer};
