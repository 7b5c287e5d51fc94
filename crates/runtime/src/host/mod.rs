//! Memory that ranks of a host share. What a rank keeps lies in files without a name (`crate::pages`); the others of its host
//! have them mapped, and use samples where they lie: nothing is copied, nothing is asked, and the holder is not woken.
//!
//! # Who shows what to whom
//!
//! - A rank's **board** has a word for each sample of the dataset: nothing, or where the sample lies in the rank's memory.
//!   Only the rank itself can write there.
//! - Each pair of ranks has **pins**, one table in each direction: a reader marks there what it uses of the holder's. Only the
//!   reader can write there, so a reader that fails, or is out for harm, can make a holder keep memory, and nothing else.
//! - A **line** between the two, a socket on which nothing is said once memory was exchanged: it ends when a process does.
//!
//! # The life of a shared sample
//!
//! 1. The holder writes it, and then publishes it on its board.
//! 2. A reader pins it, and then looks at the board. If it is there it stays where it is until the pin is gone.
//! 3. The holder lets go of it: it withdraws it from the board, and then looks at all pins. What is pinned is not used again
//!    before the pins are gone, or the process that set them.
//!
//! Reader and holder each write first and then look at what the other writes, with a barrier between: whatever the order, at
//! least one of them sees the other. So there is no lock, and nobody waits.
//!
//! A sample that has to get to its home is left in an area for that, published likewise, and fetched by its home (`job`).
//!
//! Each also shows what its loader threads are about (`crews`), so that they can be where they are needed.
//!
//! What a rank keeps on disk the others read in its file (`files`), where it tells them that it lies.
//!
//! # Who is on a host
//!
//! Ranks with the same boot id, namespaces of network and mounts, and user (`card`), which could in fact hand each other
//! their memory (`passing`). Nothing of this has a name in a file system, so nothing is left behind by whoever is killed.

mod board;
mod card;
mod cells;
mod crews;
mod files;
mod neighbour;
mod passing;
mod pins;
mod shown;
#[cfg(all(test, not(any(feature = "shuttle", miri))))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
pub(crate) use self::passing::within_a_process;

pub(crate) use self::board::{Entry, Place};
pub(crate) use self::card::{Card, Listener};
pub(crate) use self::crews::{Crews, Stepped};
pub(crate) use self::files::Files;
pub(crate) use self::neighbour::{Borrowed, Neighbours};
pub(crate) use self::passing::{Exchanged, Offer, exchange};
pub(crate) use self::shown::Shown;

/// What a rank's boards take, and its tables of pins, one for each other rank of its host.
pub(crate) fn tables_bytes(samples: u32, ranks: u32) -> u64 {
    let others = u64::from(ranks.saturating_sub(1));
    board::board_bytes(samples) + crews::BOARD_BYTES + others * pins::table_bytes(samples)
}
