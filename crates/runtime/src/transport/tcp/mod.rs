//! Ranks over TCP. A [`Mesh`] is a process's end of the connections to all other ranks; each job has a channel of it, as a
//! [`Transport`].
//!
//! # How ranks meet
//!
//! Rank 0 listens at an address that all know. The others connect to it, prove that they are of the job (`greeting`), and say
//! on which port they listen; rank 0 tells each where the others are (`roster`). All other connections are made when there is
//! something to send. Where two ranks connect to each other at the same time, both send on the connection that the higher
//! one made. A connection that breaks is made again after a pause that grows; what was under way on it is lost, and each
//! channel's receiver is told.
//!
//! # Who does what
//!
//! Two threads: `outward` (with `reach` and `greet`) connects, greets and writes, `inward` reads and calls receivers. What they
//! share is in `hub` and `peer`; `near` greets ranks of this host on sockets of theirs. What is between two ranks is in `frame` (bytes),
//! `queue` (what waits), `line` (what is being written), `channel` (what has arrived), `gathering` and `shelf` (what rank 0
//! offers to all, with `offers`); none of these touches a socket but `line`.
//!
//! Where something else than sockets carries the messages (`transport::mpi`), `carrier` stands in the place of the two threads,
//! and `parcel` in that of the stream of frames; all else is the same.
//!
//! # Who is let in
//!
//! Who knows the job's secret, is of the same launch and world, and is the same process as before. Without a secret only
//! this host is talked to. Unless frames are encrypted, what is sent can be read, and with some effort changed, by who sits
//! on the line between two ranks: encrypt where the network is not the job's own.

pub(super) mod carrier;
mod channel;
mod frame;
mod gathering;
mod greet;
mod greeting;
mod hub;
mod inward;
mod line;
mod near;
mod offers;
mod outward;
pub(super) mod parcel;
mod peer;
mod queue;
mod reach;
mod rooms;
mod roster;
mod shelf;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod trial;
mod writing;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use self::channel::Channel;
use self::frame::{Header, Kind};
use self::gathering::GIFT_BYTES_MAX;
use self::greeting::Badge;
use self::hub::Hub;
use self::inward::Inward;
use self::outward::Outward;
use self::queue::{Out, Stream};
use super::{
    Absent, Answer, Content, Gather, Given, HandOver, JobKey, Message, Payload, REPORT_BYTES_MAX,
    Receive, Sent, Serving, Transport, Troubles,
};
use crate::sync::thread;

pub use self::offers::Announced;
pub use self::shelf::{Missed, OfferName, Offered};

/// A rank that has not answered is asked again what it gives, after so long without anything from anybody.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// Where asking failed it is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// All that a rank needs to meet the others.
#[derive(Clone)]
pub struct Meeting {
    /// Which rank this is.
    pub rank: Rank,
    /// How many ranks there are.
    pub world: u32,
    /// Where rank 0 listens: a name or an address, and the port. Rank 0 may give port 0, then [`Mesh::port`] says which it is.
    pub first: (String, u16),
    /// Where this rank listens.
    pub bind: IpAddr,
    /// What only ranks of this job know. Without it only this host is talked to.
    pub secret: Option<Vec<u8>>,
    /// Names the launch, with the number of restarts.
    pub launch: String,
    /// Whether frames are encrypted; the same for all ranks.
    pub encrypt: bool,
    /// No sample is larger, unless a job says so ([`Mesh::allow`]).
    pub sample_bytes_max: u64,
}

/// Why there is no mesh.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Others could read samples.
    #[error(
        "peers: {what} is not on this host, and the job has no secret: give all ranks the same one (peers.secret_file, or FORESEE_PEERS_SECRET), or use a loopback address"
    )]
    NoSecret {
        /// Which address.
        what: String,
    },
    /// The port is not to be had.
    #[error(
        "peers: listen on {at}: {cause}; choose another address or port (peers.bind, peers.port)"
    )]
    Listen {
        /// Which address and port.
        at: String,
        /// Why.
        cause: io::Error,
    },
    /// The system refuses what is needed.
    #[error(
        "peers: {0}; free memory, descriptors or threads, or switch peers off (peers.transport = \"none\")"
    )]
    System(#[from] io::Error),
    /// No rank of its world.
    #[error("peers: rank {rank} of {world} ranks: ranks are counted from 0")]
    Rank {
        /// As given.
        rank: Rank,
        /// As given.
        world: u32,
    },
}

impl Meeting {
    /// Whether nobody outside of this host is reached or listened to, which is all that is allowed without a secret.
    fn check(&self) -> Result<(), MeshError> {
        let (rank, world) = (self.rank, self.world);
        if rank.0 >= world {
            return Err(MeshError::Rank { rank, world });
        }
        if self.secret.is_some() {
            return Ok(());
        }
        let refuse = |what: String| Err(MeshError::NoSecret { what });
        if !self.bind.to_canonical().is_loopback() {
            return refuse(format!("the address {} to listen on", self.bind));
        }
        let (name, port) = &self.first;
        // A name that is not known yet may be later, and is looked at again then.
        let Ok(found) = (name.as_str(), *port).to_socket_addrs() else {
            return Ok(());
        };
        let mut found = found;
        if rank == Rank(0) || found.any(|at| at.ip().to_canonical().is_loopback()) {
            Ok(())
        } else {
            refuse(format!("rank 0 ({name})"))
        }
    }
}

/// A process's end of the connections to all other ranks.
pub struct Mesh {
    hub: Arc<Hub>,
    port: u16,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Mesh {
    /// Begins to meet the others; returns at once.
    pub fn start(meeting: Meeting) -> Result<Arc<Self>, MeshError> {
        meeting.check()?;
        let rank = meeting.rank;
        let wanted = if rank == Rank(0) { meeting.first.1 } else { 0 };
        let failed = |cause| MeshError::Listen {
            at: format!("{}, port {wanted}", meeting.bind),
            cause,
        };
        let listener = socket::listen(meeting.bind, wanted).map_err(failed)?;
        let port = listener.local_addr()?.port();
        let badge = Badge::new(&meeting, port);
        let hub = Arc::new(Hub::new(badge, meeting.secret.is_none())?);
        hub.allow(meeting.sample_bytes_max);
        let mut mesh = Self {
            hub: Arc::clone(&hub),
            port,
            threads: Vec::new(),
        };
        let outward = Outward::new(Arc::clone(&hub), listener, meeting.first)?;
        let inward = Inward::new(hub)?;
        mesh.run("foresee-net-out", || outward.run())?;
        mesh.run("foresee-net-in", || inward.run())?;
        Ok(Arc::new(mesh))
    }

    fn run(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The port on which this rank listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Which rank this is.
    pub fn rank(&self) -> Rank {
        self.hub.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.hub.badge.world
    }

    /// A job's samples are as large as this at most; those of other jobs may be larger.
    pub fn allow(&self, sample_bytes_max: u64) {
        self.hub.allow(sample_bytes_max);
    }

    /// A job's channel. When the last one for a job is dropped the others are told that this rank is lost to it.
    pub fn transport(self: &Arc<Self>, job: JobKey) -> Arc<dyn Transport> {
        let channel = if self.hub.is_elsewhere() {
            Channel::new(job)
        } else {
            self.hub.open(job)
        };
        Arc::new(Handle {
            mesh: Arc::clone(self),
            channel,
        })
    }

    /// What went wrong so far, by rank; only those where something did.
    pub fn troubles(&self) -> Vec<Troubles> {
        self.hub.troubles()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // In a child nothing is touched: threads are not there, and sockets are the parent's.
        if self.hub.is_elsewhere() {
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.hub.change(|state| state.stop = true);
        self.hub.in_bell.ring();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // Whoever lets go of it while being called is the thread itself.
            if thread_id(&thread) != own {
                // One that panicked has said so.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(not(feature = "shuttle"))]
fn thread_id(thread: &thread::JoinHandle<()>) -> std::thread::ThreadId {
    thread.thread().id()
}

/// No schedule has a mesh.
#[cfg(feature = "shuttle")]
fn thread_id(_: &thread::JoinHandle<()>) -> std::thread::ThreadId {
    std::thread::current().id()
}

/// A number that nobody else has.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// One job's end.
struct Handle {
    mesh: Arc<Mesh>,
    channel: Arc<Channel>,
}

impl Handle {
    fn hub(&self) -> &Hub {
        &self.mesh.hub
    }

    /// The frame that a message is; none where it is longer than anybody takes.
    fn frame(&self, message: Message) -> Option<Out> {
        let key = self.channel.key;
        let most = self.hub().bounds().sample_bytes_max;
        let sample = |kinds: [Kind; 3], number: u64, content: Content| {
            let [with, here, without] = kinds;
            match content {
                Content::Sample(payload) if payload.bytes().len() as u64 <= most => {
                    Out::large(Header::new(with, key, number), payload)
                }
                Content::Here => Out::small(Header::new(here, key, number)),
                Content::InFile(at) => match near::encode(&at) {
                    Some(place) => {
                        let header = Header::new(Kind::AnswerInFile, key, number);
                        Out::large(header, Payload::new(place))
                    }
                    None => Out::small(Header::new(without, key, number)),
                },
                // What nobody would take does not come.
                Content::Sample(_) | Content::WillNotCome => {
                    Out::small(Header::new(without, key, number))
                }
            }
        };
        let out = match message {
            Message::Ask(ask) => {
                let header = Header::new(Kind::Ask, key, ask.ticket.0);
                let extra = ask.sample.0;
                Out::small(Header { extra, ..header })
            }
            Message::Answer(Answer { ticket, content }) => {
                let kinds = [Kind::Answer, Kind::AnswerHere, Kind::NoAnswer];
                sample(kinds, ticket.0, content)
            }
            Message::HandOver(HandOver {
                sample: id,
                content,
                stamp,
            }) => {
                let number = u64::from(id.0);
                let kinds = [Kind::HandOver, Kind::HandOverHere, Kind::NoHandOver];
                let out = sample(kinds, number, content);
                match out.header.kind {
                    Kind::HandOver => out.with_stamp(stamp),
                    // Who only says that it has fetched something says nothing of the source.
                    Kind::HandOverHere if stamp.is_some() => out.with_stamp(stamp),
                    _ => out,
                }
            }
            Message::Done(done) => {
                if done.report.len() > REPORT_BYTES_MAX {
                    return None;
                }
                let header = Header::new(Kind::Done, key, 0);
                Out::large(header, Payload::new(done.report))
            }
        };
        Some(out)
    }

    /// Asks all whose gifts are missing; false where somebody could not be asked.
    fn ask_for(&self, missing: &[Rank], call: u32) -> bool {
        let header = Header::new(Kind::GatherAsk, self.channel.key, u64::from(call));
        let ask = |rank: &Rank| self.hub().send(*rank, Out::small(header)) == Sent::Taken;
        let asked: Vec<bool> = missing.iter().map(ask).collect();
        asked.into_iter().all(|asked| asked)
    }

    /// Waits until nothing is missing; where that will not be, says whose gifts are.
    fn await_gifts(&self, call: u32, deadline: Instant) -> Result<(), Absent> {
        let mut ask_at = Instant::now();
        let mut seen = u64::MAX;
        loop {
            let others = self.hub().others();
            let (missing, progress) = self
                .channel
                .look(|calls| (calls.missing(others), calls.progress()));
            if missing.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if self.channel.take_is_to_ask() {
                ask_at = now;
            }
            if now >= deadline || self.channel.is_hopeless(&missing) {
                return Err(Absent(missing));
            }
            if now >= ask_at {
                let all_asked = self.ask_for(&missing, call);
                ask_at = now + if all_asked { ASK_AGAIN } else { TRY_AGAIN };
            } else if progress != seen {
                ask_at = now + ASK_AGAIN;
            }
            seen = progress;
            let wait = ask_at.min(deadline).saturating_duration_since(now);
            self.channel.wait(progress, wait);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.hub().is_elsewhere() && self.channel.close() {
            self.hub().leave(&self.channel, true);
        }
    }
}

impl Transport for Handle {
    fn rank(&self) -> Rank {
        self.hub().rank()
    }

    fn send(&self, to: Rank, message: Message) -> Sent {
        assert_ne!(to, self.rank(), "a rank does not talk to itself");
        if self.hub().is_elsewhere() || self.channel.is_left_by(to) {
            return Sent::Gone;
        }
        match self.frame(message) {
            Some(out) => self.hub().send(to, out),
            None => Sent::Full,
        }
    }

    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
        if self.hub().is_elsewhere() {
            return Err(io::Error::other("a forked child has no peers"));
        }
        self.channel.receive_by(receiver);
        // What waits is handed on by the thread that calls receivers.
        self.hub().state().handing.push(Arc::clone(&self.channel));
        self.hub().in_bell.ring();
        Ok(Box::new(Server {
            mesh: Arc::clone(&self.mesh),
            channel: Arc::clone(&self.channel),
        }))
    }

    fn greets(&self) -> bool {
        !self.hub().is_elsewhere()
    }

    fn greet(&self, line: &UnixStream, is_first: bool) -> io::Result<Rank> {
        near::greet(self.hub(), line, is_first)
    }

    fn troubles(&self) -> Vec<Troubles> {
        self.hub().troubles()
    }
}

impl Gather for Handle {
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
        let deadline = Instant::now() + patience;
        let too_long = given.whole.len().max(given.rest.len()) > GIFT_BYTES_MAX;
        if self.hub().is_elsewhere() || too_long || !self.channel.is_open() {
            return Err(Absent::default());
        }
        let (call, early) = self.channel.with_calls(|calls| calls.begin(given));
        for rank in early {
            let gift = self.channel.with_calls(|calls| calls.asked(rank, call));
            if let Some(gift) = gift {
                let stream = Stream::new(Kind::GatherPart, self.channel.key, call, gift);
                self.hub().stream(rank, stream);
            }
        }
        if let Err(absent) = self.await_gifts(call, deadline) {
            // The others are not to count on this rank, nor wait for it.
            self.hub().leave(&self.channel, false);
            return Err(absent);
        }
        let got = Header::new(Kind::GatherGot, self.channel.key, u64::from(call));
        for rank in self.hub().others() {
            // Who does not hear of it keeps its gift a little longer.
            let _ = self.hub().send(rank, Out::small(got));
        }
        let (rank, world) = (self.hub().rank(), self.hub().badge.world);
        Ok(self.channel.with_calls(|calls| calls.end(rank, world)))
    }
}

/// While it lives, a channel's receiver is called.
struct Server {
    mesh: Arc<Mesh>,
    channel: Arc<Channel>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.mesh.hub.is_elsewhere() {
            let reader = self.mesh.hub.reader.get().copied();
            self.channel.let_go(reader);
        }
    }
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests;
