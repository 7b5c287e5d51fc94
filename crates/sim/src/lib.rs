//! The simulator.

pub mod scenario;
