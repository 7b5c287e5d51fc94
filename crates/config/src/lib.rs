//! `foresee.toml`: the staging buffer and the tiers of a rank, as whoever trains writes them ([`Config`]).
//!
//! [`reader`] reads TOML with care and serves every file format of foresee: an unknown key is an error, and every error
//! ([`InputError`]) is one line with place, key and remedy.

mod config;
mod error;
pub mod reader;

pub use config::{Config, Tier, TierKind};
pub use error::InputError;
