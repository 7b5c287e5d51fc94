//! How ranks reach each other: messages as plain values, and the seam that carries them.
//!
//! There are four messages. An asker sends [`Ask`] to the holder of a sample; the holder sends one [`Answer`], at once or
//! when the sample has come; whoever has read a sample that has its home elsewhere sends it there with [`HandOver`]; whose
//! stream has ended says so with [`Done`]. Requests under way are named by [`Ticket`]s, so that many can be open at a time and answers may come in any order.
//!
//! # What a transport promises
//!
//! - [`Transport::send`] waits for nobody. What it cannot take now it refuses ([`Sent`]); what it has taken may still be lost.
//! - What arrives was sent by the rank that it is said to be from, is whole, and was meant for this rank.
//! - Nothing else: messages may be late, in another order than they were sent, twice, or never arrive. Who asks knows what to
//!   do then (`crate::peers`), so no transport repeats anything or keeps time for it.
//!
//! Bytes are bounded by who receives: an answer of another length than the catalog's is no sample. Nothing here knows what
//! a sample is for, where it is kept, or what the plan says.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod mpi;
pub mod tcp;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use foresee_core::ids::{Rank, SampleId};

use crate::arena::Block;
use crate::stamp::Stamp;
use crate::tier::InFile;
pub use tcp::{Meeting, Mesh, MeshError};

/// Names a job among all that the ranks of a world run: what belongs together carries the same one on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(pub [u8; 16]);

/// Names a request among all of one asker; none is used twice in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A sample's bytes on their way. They are not copied to be sent: a holder answers with the memory that keeps them.
#[derive(Clone)]
pub struct Payload(Bytes);

#[derive(Clone)]
enum Bytes {
    Any(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// In memory of this host that nobody can write.
    Block(Arc<Block>),
    /// From a file of another rank of this host.
    Read(Arc<[u8]>),
}

impl Payload {
    /// Bytes that lie in memory of whatever kind, which lives as long as this does.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Bytes::Any(Arc::new(bytes)))
    }

    /// A sample where it lies, in memory that nobody can write: it came without being sent.
    pub(crate) fn of_block(block: Arc<Block>) -> Self {
        Self(Bytes::Block(block))
    }

    /// A sample that was read where its holder has it.
    pub(crate) fn of_file(bytes: Vec<u8>) -> Self {
        Self(Bytes::Read(bytes.into()))
    }

    /// Whether it came without being sent.
    pub(crate) fn is_near(&self) -> bool {
        !matches!(self.0, Bytes::Any(_))
    }

    /// Where it lies, if it is used there.
    pub(crate) fn block(&self) -> Option<&Arc<Block>> {
        match &self.0 {
            Bytes::Any(_) | Bytes::Read(_) => None,
            Bytes::Block(block) => Some(block),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Any(bytes) => (**bytes).as_ref(),
            Bytes::Block(block) => block.bytes(),
            Bytes::Read(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} B)", self.bytes().len())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

/// What is sent of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// All of it.
    Sample(Payload),
    /// Nothing, as it need not be sent: it is on the sender's board (`crate::host`), where who gets this sees it. From a home
    /// to who has handed a sample over so: it has been fetched.
    Here,
    /// Nothing, as who gets this reads it there itself.
    InFile(InFile),
    /// Nothing, now or later: it cannot be read, was lost, or there is no room to wait for it.
    WillNotCome,
}

impl Content {
    /// How many bytes of samples are in it.
    pub fn len(&self) -> usize {
        match self {
            Self::Sample(payload) => payload.bytes().len(),
            Self::Here | Self::InFile(_) | Self::WillNotCome => 0,
        }
    }

    /// How many of them were sent.
    pub fn sent_bytes(&self) -> u64 {
        match self {
            Self::Sample(payload) if payload.is_near() => 0,
            other => other.len() as u64,
        }
    }

    /// Whether no byte is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// From an asker to a holder: send me this sample when you have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the answer is to be named by.
    pub ticket: Ticket,
    /// What is wanted.
    pub sample: SampleId,
}

/// From a holder to an asker.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// As in the request.
    pub ticket: Ticket,
    /// The sample, or that it will not come.
    pub content: Content,
}

/// From who has read a sample to the rank that has its home: keep this, or do not wait for it. And, without bytes, from that
/// rank to who is to bring the sample: somebody else did.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOver {
    /// Which sample.
    pub sample: SampleId,
    /// The sample, or that its reader could not read it.
    pub content: Content,
    /// What the sample was in the source when it was read there, where that can be told: by this a job to come knows what a
    /// tier on disk holds of it.
    pub stamp: Option<Stamp>,
}

impl HandOver {
    /// Without a stamp: nothing that is to last comes with it.
    pub fn unstamped(sample: SampleId, content: Content) -> Self {
        Self {
            sample,
            content,
            stamp: None,
        }
    }
}

/// From a rank whose stream has ended, to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its statistics; at most [`REPORT_BYTES_MAX`] of them.
    pub report: Vec<u8>,
}

/// Bytes of a rank's statistics. More is not sent.
pub const REPORT_BYTES_MAX: usize = 64 << 10;

/// All that ranks say to each other.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A sample is wanted.
    Ask(Ask),
    /// What became of a request.
    Answer(Answer),
    /// A sample for its home.
    HandOver(HandOver),
    /// A rank's stream has ended.
    Done(Done),
}

/// What went wrong on the ways to a rank so far. Nothing of it costs data, each costs time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Which rank; none for those who did not say, or could not prove, who they are.
    pub peer: Option<Rank>,
    /// Connections that broke.
    pub lost: u64,
    /// Frames that were not as they had been sent.
    pub garbled: u64,
    /// Handshakes that were refused, by this rank or by the other one.
    pub refused: u64,
    /// Attempts to connect after one that failed.
    pub retries: u64,
}

/// What became of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was not taken will not arrive"]
pub enum Sent {
    /// It is on its way, and may get lost there.
    Taken,
    /// Too much is on its way to that rank; it was dropped.
    Full,
    /// That rank cannot be reached; it was dropped.
    Gone,
}

/// Who gets what arrives at a rank. Calls come from threads of the transport, several at a time, and must not wait for other
/// messages.
pub trait Receive: Send + Sync {
    /// A message arrived.
    fn receive(&self, from: Rank, message: Message);

    /// A rank cannot be reached any more: what was asked of it will not be answered.
    fn lost(&self, rank: Rank);

    /// A rank that was lost can be reached again. What was lost stays lost. Not every transport can tell.
    fn found(&self, rank: Rank) {
        let _ = rank;
    }
}

/// While it lives, what arrives is handed on. Dropping it returns when no call is under way, and none comes after.
pub type Serving = Box<dyn Send>;

/// One rank's end of the ways to all others.
pub trait Transport: Gather {
    /// The rank whose end this is.
    fn rank(&self) -> Rank;

    /// Sends a message to another rank; waits for nobody.
    fn send(&self, to: Rank, message: Message) -> Sent;

    /// Hands what arrives at this rank to `receiver`. One receiver at a time; what arrives before there is one waits for it.
    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving>;

    /// Whether ranks prove to each other who they are by [`Transport::greet`]. Who does not shares no memory.
    fn greets(&self) -> bool {
        false
    }

    /// Two ranks of a host, at the ends of a socket, prove to each other who they are, as they do where this transport connects
    /// them; one of them is first. Waits no longer than the socket does.
    fn greet(&self, line: &UnixStream, is_first: bool) -> io::Result<Rank> {
        let _ = (line, is_first);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What went wrong on the ways to others; only those where something did.
    fn troubles(&self) -> Vec<Troubles> {
        Vec::new()
    }
}

/// What a rank gives to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The ranks that need all of it.
    pub readers: Range<u32>,
    /// For them.
    pub whole: Vec<u8>,
    /// For all others.
    pub rest: Vec<u8>,
}

impl Given {
    /// The same for everybody.
    pub fn to_all(bytes: Vec<u8>) -> Self {
        Self {
            readers: 0..u32::MAX,
            whole: bytes,
            rest: Vec::new(),
        }
    }

    /// What a rank gets of it.
    pub fn for_rank(&self, rank: Rank) -> &[u8] {
        if self.readers.contains(&rank.0) {
            &self.whole
        } else {
            &self.rest
        }
    }
}

/// So many ranks are named where not all have come; the others are counted.
const NAMED_MAX: usize = 8;

/// The ranks that did not come to a gathering; nobody where this rank itself could not take part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absent(pub Vec<Rank>);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().take(NAMED_MAX).map(Rank::to_string);
        let names: Vec<String> = names.collect();
        let noun = if self.0.len() == 1 { "rank" } else { "ranks" };
        write!(f, "{noun} {}", names.join(", "))?;
        match self.0.len() - names.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Brings something small of each rank to all ranks, before a job starts.
pub trait Gather: Send + Sync {
    /// What each rank gave to this one, in the order of ranks. All ranks call it equally often, and calls are matched in order.
    /// Where some did not come within `patience`, these.
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_absent_are_named_up_to_a_number() {
        let said = |ranks: u32| Absent((1..=ranks).map(Rank).collect()).to_string();
        assert_eq!(said(1), "rank 1");
        assert_eq!(said(3), "ranks 1, 2, 3");
        assert_eq!(said(10), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
    }
}
