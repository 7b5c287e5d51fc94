//! What each rank reads and when: the access streams of a job, known before its first step.
//!
//! Three layers, each usable alone:
//!
//! - [`Orders`]: every epoch's global order of samples, drawn from the seed (exactly as torch draws it, by a keyed
//!   permutation without memory, in catalog order, or given as lists). An order knows its inverse.
//! - [`Layout`]: how the positions of an order are cut into global batches and dealt to the ranks. Arithmetic only,
//!   the same for all epochs, in both directions: from a rank's slot to its position and back.
//! - [`Stream`]: one rank's accesses one after another, from any [`Mark`].
//!
//! The order is defined before it is dealt, so a job can go on with another number of ranks
//! ([`Layout::redealt`]): every global batch keeps its samples.

mod accesses;
mod error;
mod feistel;
mod layout;
mod order;
mod orders;
mod torch;

pub use accesses::{Access, Mark, Stream};
pub use error::StreamError;
pub use feistel::Feistel;
pub use layout::{Deal, Dealt, Layout, LayoutSpec, Seat, Tail};
pub use order::EpochOrder;
pub use orders::{Orders, Shuffle};
