//! `foresee.toml` and its environment: the staging buffer, the tiers, saved catalogs and the trace of a rank, and how
//! ranks serve each other and share threads, as whoever trains writes them ([`Config`]).
//!
//! [`reader`] reads TOML with care and serves every file format of foresee: an unknown key is an error, and every error
//! ([`InputError`]) is one line with place, key and remedy.
//!
//! ```
//! use foresee_config::{Config, Environment, Given, Threads};
//!
//! let environment = Environment::from_iter([("FORESEE_STAGING_THREADS", "8")]);
//! let table = "[staging]\ncapacity = '64 MiB'".parse()?;
//! let resolved = Config::resolve(Given::Table(table), &environment)?;
//! assert_eq!(resolved.config.staging.capacity_bytes, 64 << 20);
//! assert_eq!(resolved.config.staging.threads, Threads::Number(8));
//! assert_eq!(resolved.given_by, ["config", "FORESEE_STAGING_THREADS=8"]);
//!
//! let environment = Environment::from_iter([("FORESEE_STAGING_THREAD", "8")]);
//! let error = Config::resolve(Given::Nothing, &environment).unwrap_err().to_string();
//! assert_eq!(error, "FORESEE_STAGING_THREAD: unknown variable; did you mean FORESEE_STAGING_THREADS?");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod balance;
mod config;
mod environment;
mod error;
mod line;
mod peers;
pub mod reader;
mod resolve;
mod tier;
mod variables;

pub use balance::Balance;
pub use config::{CatalogFolder, Config, Staging, THREADS_MAX, Threads, size_bytes};
pub use environment::Environment;
pub use error::InputError;
pub use line::{OneLine, shown};
pub use peers::{Peers, Secret, Transport};
pub use resolve::{Given, Resolved};
pub use tier::{Scope, Tier, TierKind};
