//! From an encoded image to its place in a batch tensor, in one pass.
//!
//! A [`Pipeline`] is made once from a list of [`Transform`]s with torchvision's names, parameters and semantics. For each
//! image it reads the header, works out which pixels the transforms will look at, decodes only those (JPEG; other
//! formats are decoded whole), and resamples, flips, normalises and lays them out straight into the slice that the
//! caller gives: the sample's place in the batch.
//!
//! - Images are read as `PIL.Image.open(file).convert("RGB")` reads them: alpha is dropped, the EXIF orientation is not
//!   applied, a truncated file is an error.
//! - Random numbers are a function of (seed, epoch, sample) and of the place in the list ([`Key`]), so a result depends
//!   neither on threads nor on ranks, and never changes between versions or machines.
//! - Resizing is the antialiased bilinear filter of PIL and torchvision, rounded to eight bits. It uses no fused
//!   multiply-add, so every machine gets the same bits.
//! - A [`Scratch`] keeps the buffers of one thread: after the largest image nothing of ours is allocated any more.
//!
//! It starts no thread, opens no file and keeps no global state.

mod decode;
mod draw;
mod error;
mod geometry;
mod pipeline;
mod resample;
mod store;
mod transform;

pub use decode::Encoding;
pub use draw::Key;
pub use error::{ImageError, PipelineError};
pub use geometry::{Rect, Size};
pub use pipeline::{Output, Pipeline, Scratch, decode, probe};
pub use store::{Dtype, Layout};
pub use transform::{Drawn, RandomResizedCrop, Resize, Transform};
