//! The performance model: what a read costs. Curves give aggregate throughput for a number of readers or threads,
//! [`System`] describes the machine, [`Model`] turns both into seconds a byte for each origin, and picks the cheapest.
//! [`yang_cong`] holds the closed-form model of locality-aware loading beside it.

mod cost;
mod curve;
mod system;
pub mod yang_cong;

pub use cost::{Model, Origin, SourceLoad};
pub use curve::{Beyond, Curve, CurveError};
pub use system::{Contention, Decoded, Hosts, Scope, System, Tier, Trainer};
