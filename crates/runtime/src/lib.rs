//! The loader: what the engine decides is done here, on real time, with real threads, files and memory.

mod arena;
pub mod caches;
pub mod dataset;
pub mod desk;
pub mod extents;
pub mod fork;
mod host;
pub mod job;
mod kept;
pub mod machine;
pub mod owner;
mod pages;
pub mod peers;
mod pool;
#[cfg(all(feature = "shuttle", feature = "testing"))]
pub mod schedules;
pub mod source;
pub mod stamp;
mod sync;
mod thread_time;
pub mod tier;
pub mod trace;
pub mod transport;
