//! The loader: what the engine decides is done here, on real time, with real threads, files and memory.

pub mod dataset;
pub mod source;
pub mod tier;
