//! A read for a thread to do: which sample, from where, to where, and for whom. It has all that it needs, so it is carried
//! out without the job's lock; what it fills is its own until it is brought in.

use std::sync::Arc;

use foresee_core::engine::{Lane, Read};
use foresee_core::homes::Home;
use foresee_core::ids::{Rank, TierId};
use foresee_core::model::Origin;

use super::slots::Decoded;
use crate::arena::{Block, Filling};
use crate::transport::Payload;

/// A read for a thread to do.
pub(super) struct Fetch {
    pub(super) ticket: Ticket,
    /// Where it is read from in truth: the source, where a tier has not what the engine thinks it has.
    pub(super) way: Way,
    pub(super) raw: Raw,
    /// What a peer has sent: it only has to be copied.
    pub(super) came: Option<Payload>,
    /// Who is to have it once it is read.
    pub(super) hand_over: Option<Home>,
    /// Where it goes once decoded, if it is.
    pub(super) part: Option<Decoded>,
    /// Whether the trainer has tried it, and left it to threads.
    pub(super) tried: bool,
    /// Whether it is measured how long it sleeps.
    pub(super) measured: bool,
}

/// Whose read it is: what is needed to bring it in.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    /// The course that it was begun in. What comes after the job has moved on is of no use any more.
    pub(super) course: u64,
    pub(super) doer: Doer,
    /// The slot that it fills; none for what is read for a tier only.
    pub(super) slot: Option<u64>,
    pub(super) read: Read,
}

/// Who carries a read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doer {
    /// A loader thread, counted in this lane.
    Thread(Lane),
    /// The trainer, which would else wait.
    Trainer,
}

impl Doer {
    /// The lane that a thread serves by it; none for the trainer.
    pub(super) fn lane(self) -> Option<Lane> {
        match self {
            Self::Thread(lane) => Some(lane),
            Self::Trainer => None,
        }
    }
}

/// How this driver carries a read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From a tier of this rank.
    Tier(TierId),
    /// From the source.
    Source,
    /// From a tier of another rank, on this host or not.
    Peer {
        rank: Rank,
        tier: TierId,
        is_near: bool,
    },
}

impl Way {
    /// All that an engine can say of a read, carried out or refused.
    pub(super) fn of(read: &Read) -> Self {
        let Read {
            sample: _,
            bytes: _,
            origin,
            pace: _,
            // Kept when it is brought in; peers that asked for it are then told.
            keep: _,
            shared: _,
            // Done by who carries it out (`Fetch::hand_over`).
            hand_over: _,
        } = *read;
        match origin {
            Origin::Tier(tier) => Self::Tier(tier),
            Origin::Source => Self::Source,
            Origin::Peer { rank, tier } => Self::Peer {
                rank,
                tier,
                is_near: false,
            },
            Origin::HostPeer { rank, tier } => Self::Peer {
                rank,
                tier,
                is_near: true,
            },
        }
    }

    /// The same, where what came from another rank lies in memory of this host, or does not.
    pub(super) fn through(self, memory: bool) -> Self {
        match self {
            Self::Peer { rank, tier, .. } => Self::Peer {
                rank,
                tier,
                is_near: memory,
            },
            other @ (Self::Tier(_) | Self::Source) => other,
        }
    }

    /// As it is counted.
    pub(super) fn origin(self) -> Origin {
        match self {
            Self::Tier(tier) => Origin::Tier(tier),
            Self::Source => Origin::Source,
            Self::Peer {
                rank,
                tier,
                is_near: true,
            } => Origin::HostPeer { rank, tier },
            Self::Peer {
                rank,
                tier,
                is_near: false,
            } => Origin::Peer { rank, tier },
        }
    }
}

/// Where a read's bytes go.
pub(super) enum Raw {
    /// Here.
    Fill(Filling),
    /// They are in memory already.
    Held(Arc<Block>),
    /// Into a buffer of the thread: they are only decoded.
    Passing,
}

impl Raw {
    /// What was read; `buffer` has what is only passing.
    pub(super) fn bytes<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Fill(filling) => filling.bytes(),
            Self::Held(block) => block.bytes(),
            Self::Passing => buffer,
        }
    }
}
