//! What became of a read that was carried out, as it is brought in.

use std::sync::Arc;
use std::time::Instant;

use foresee_core::ids::{SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::units::Seconds;

use super::slots::{Decoded, Staged};
use super::task::{Fetch, Ticket};
use crate::arena::{Block, Piece};
use crate::source::ReadError;

/// How a read went.
pub(super) struct Done {
    pub(super) began: Instant,
    /// When its bytes were there, and when it was decoded.
    pub(super) fetched: Instant,
    pub(super) ready: Instant,
    pub(super) origin: Origin,
    pub(super) lost_from: Option<TierId>,
    /// Whether a tier held what the sample was before.
    pub(super) stale: bool,
    pub(super) retries: u32,
    /// Time the thread slept, if it was measured.
    pub(super) slept_s: Option<f64>,
}

impl Done {
    /// A read of what is in memory.
    pub(super) fn at_once(now: Instant, origin: Origin) -> Self {
        Self {
            began: now,
            fetched: now,
            ready: now,
            origin,
            lost_from: None,
            stale: false,
            retries: 0,
            slept_s: None,
        }
    }

    /// How long it took until the bytes were there.
    pub(super) fn took(&self) -> Seconds {
        Seconds((self.fetched - self.began).as_secs_f64())
    }

    pub(super) fn staged(&self, piece: Piece, sample: SampleId) -> Staged {
        Staged {
            piece,
            sample,
            origin: self.origin,
            fetched: self.fetched,
            ready: self.ready,
        }
    }
}

/// A read that was carried out, as it is brought in.
pub(super) enum Outcome {
    /// Its bytes have come. What is to be kept without writing a file is kept now, if the tier has a block for it.
    Came {
        ticket: Ticket,
        done: Done,
        piece: Option<Piece>,
        to_keep: Option<Arc<Block>>,
    },
    /// Its bytes came before, and have been written to a tier's files since, or could not be.
    Written { ticket: Ticket, kept: bool },
    /// The sample could not be read or decoded; another one may take its place.
    Failed {
        ticket: Ticket,
        done: Done,
        cause: ReadError,
        part: Option<Decoded>,
        instead: Option<(SampleId, Piece)>,
    },
    /// It came when the job had moved on already, which was noted.
    Moved,
    /// The trainer leaves it to threads: it cannot be had at once. `failed`: it was tried, and went wrong.
    Left { fetch: Fetch, failed: bool },
}
