//! One other rank, as the threads of a mesh share it: the connections to it, how it is reached where there is none, and what
//! waits to be sent.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;
use snow::StatelessTransportState;

use super::line::Line;
use super::queue::Queue;
use crate::sync::{Mutex, MutexGuard, whole};
use crate::transport::Troubles;

/// The first pause before connecting again, and the longest, before and after a rank was met.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX_UNMET: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A connection on which both ends have proved themselves.
pub(super) struct Conn {
    pub(super) id: u64,
    pub(super) rank: Rank,
    pub(super) stream: TcpStream,
    /// Whether this rank made it.
    pub(super) is_ours: bool,
    pub(super) seed_in: u64,
    pub(super) cipher: Option<StatelessTransportState>,
    /// One end has said that it closes it for want of use: its end is no loss.
    pub(super) is_closing: AtomicBool,
    /// When it was used last, in turns of those who write.
    pub(super) used: AtomicU64,
    /// What is being written to it.
    pub(super) line: Mutex<Line>,
}

impl Conn {
    /// What is being written to it. Who has it may lock the hub's state, never the other way round.
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        whole(self.line.lock())
    }
}

/// How a rank without a connection is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Idle,
    Connecting,
    /// Not before then.
    Waiting(Instant),
}

/// What brings frames to a rank and from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carriage {
    /// Connections of this mesh.
    Sockets,
    /// Something else does (`carrier`), and needs no connection.
    Other,
    /// Something else did, and does not any more.
    Over,
}

/// One other rank.
pub(super) struct Peer {
    pub(super) queue: Queue,
    pub(super) carriage: Carriage,
    /// At most one that it made and one that this rank made, if both did at the same time.
    pub(super) conns: [Option<Arc<Conn>>; 2],
    pub(super) way: Way,
    /// Where it listens; several where a name has several.
    pub(super) addresses: Vec<SocketAddr>,
    /// The process that is this rank; another one is not let in.
    pub(super) instance: Option<u64>,
    /// Attempts to connect that failed, since one did not.
    pub(super) failures: u32,
    /// How much of the roster it was sent.
    pub(super) roster_sent: usize,
    pub(super) troubles: Troubles,
    /// Whether it is in the list of those that something is to be done for.
    pub(super) is_ready: bool,
}

impl Peer {
    pub(super) fn new(rank: Rank) -> Self {
        Self {
            queue: Queue::default(),
            carriage: Carriage::Sockets,
            conns: [None, None],
            way: Way::Idle,
            addresses: Vec::new(),
            instance: None,
            failures: 0,
            roster_sent: 0,
            troubles: Troubles {
                peer: Some(rank),
                ..Troubles::default()
            },
            is_ready: false,
        }
    }

    /// The connection to send on. Of two, both ends take the one that the higher rank made.
    pub(super) fn best(&self, own: Rank) -> Option<&Arc<Conn>> {
        let [theirs, ours] = &self.conns;
        let rank = theirs.as_ref().or(ours.as_ref())?.rank;
        if rank > own {
            theirs.as_ref().or(ours.as_ref())
        } else {
            ours.as_ref().or(theirs.as_ref())
        }
    }

    /// The other one of two.
    pub(super) fn spare(&self, own: Rank) -> Option<&Arc<Conn>> {
        let best = self.best(own)?.id;
        let mut both = self.conns.iter().flatten();
        both.find(|conn| conn.id != best)
    }

    pub(super) fn is_up(&self) -> bool {
        self.carriage == Carriage::Other || self.conns.iter().any(Option::is_some)
    }

    pub(super) fn is_met(&self) -> bool {
        self.instance.is_some()
    }

    /// Whether it could not be reached when that was tried last.
    pub(super) fn is_gone(&self) -> bool {
        let is_lost = matches!(self.way, Way::Waiting(_)) && self.can_be_lost();
        !self.is_up() && (is_lost || self.carriage == Carriage::Over)
    }

    /// A rank that was never heard of is awaited, not lost.
    pub(super) fn can_be_lost(&self) -> bool {
        self.is_met() || self.roster_known()
    }

    fn roster_known(&self) -> bool {
        self.troubles.peer != Some(Rank(0)) && !self.addresses.is_empty()
    }

    /// How long to wait after the failures so far.
    pub(super) fn pause(&self) -> Duration {
        let most = if self.is_met() {
            PAUSE_MAX
        } else {
            PAUSE_MAX_UNMET
        };
        let doubled = PAUSE * (1 << self.failures.min(10));
        doubled.min(most)
    }
}

/// Ends a connection for both threads: the one that reads finds its end.
pub(super) fn end(conn: &Conn) {
    // It may have ended already.
    let _ = conn.stream.shutdown(std::net::Shutdown::Both);
}
