//! The thread that reads and hands on. It is the only one that calls receivers, so a slow one holds up what arrives, never
//! what others send. What receivers say is sent by this thread, when they have returned.
//!
//! Payloads are read to where they stay, without a copy; headers and small frames through a small buffer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::channel::{Channel, Delivered, instead};
use super::frame::{Broken, Decoder, Event, Header, Kind};
use super::hub::Hub;
use super::near;
use super::peer::{Conn, end};
use super::queue::{Out, Stream};
use super::{offers, roster};
use crate::stamp::{STAMP_BYTES, Stamp};
use crate::transport::{Answer, Ask, Content, Done, HandOver, Message, Ticket};

/// Bytes of the buffer for small frames: what is read of a sample before its length is known is copied, so not too large.
const SMALL_BYTES: usize = 16 << 10;

/// A payload of which less is missing is read through the buffer, with what comes behind it.
const DIRECT_BYTES: usize = 4 << 10;

/// Encrypted bytes that are read at a time.
const SEALED_BYTES: usize = 256 << 10;

/// Bytes of a record's length, and the most that it can say.
const LENGTH_BYTES: usize = 2;
const RECORD_BYTES_MAX: usize = 65_535;

/// Reads of one connection before others have their turn.
const TURN_READS: usize = 16;

/// Reads that something came by before what was said to it is written, at the latest: one by one the other end gets its
/// answers in dribs, all at once it waits for the first of them. Tried over loopback (bench transport), three runs each, medians
/// of plain sockets: 0.74, 0.83, 0.96 after each; 0.91, 0.87, 0.74 when nothing is left to read; 0.92, 1.11, 1.02 with three;
/// 0.82, 0.83, 0.63 by the other thread. Chosen by these runs, not confirmed by others.
const ANSWERED_TOGETHER: usize = 3;

/// How long others may take to close their ends when all ends.
const CLOSE_MAX: Duration = Duration::from_secs(1);

const BELL: u64 = 0;

/// Why a connection is not read any more.
enum End {
    Closed,
    Broken(Broken),
    /// A record that was not encrypted by the other end, or not as the next.
    Forged,
}

/// What is read of one connection.
struct Inlet {
    conn: Arc<Conn>,
    decoder: Decoder,
    /// Encrypted bytes that are no whole record yet.
    sealed: Vec<u8>,
    /// One that was decrypted.
    plain: Vec<u8>,
    /// The next record's number.
    nonce: u64,
}

impl Inlet {
    /// Reads once. How many bytes came; none where there is nothing now.
    fn read(&mut self, buffer: &mut [u8], out: &mut VecDeque<Event>) -> Result<usize, End> {
        let got = if self.conn.cipher.is_some() {
            let read = recv(&self.conn.stream, &mut *buffer, RecvFlags::empty());
            let got = received(read.map(|(got, _)| got))?;
            self.sealed.extend_from_slice(&buffer[..got]);
            self.open(out)?;
            got
        } else if let Some(body) = self
            .decoder
            .body()
            .filter(|body| body.capacity() - body.len() >= DIRECT_BYTES)
        {
            let spare = rustix::buffer::spare_capacity(body);
            let read = recv(&self.conn.stream, spare, RecvFlags::empty());
            let got = received(read.map(|(got, _)| got))?;
            self.decoder.grew(out).map_err(End::Broken)?;
            got
        } else {
            let small = &mut buffer[..SMALL_BYTES];
            let read = recv(&self.conn.stream, &mut *small, RecvFlags::empty());
            let got = received(read.map(|(got, _)| got))?;
            self.decoder.push(&small[..got], out).map_err(End::Broken)?;
            got
        };
        Ok(got)
    }

    /// Decrypts all whole records.
    fn open(&mut self, out: &mut VecDeque<Event>) -> Result<(), End> {
        let Some(cipher) = &self.conn.cipher else {
            return Ok(());
        };
        self.plain.resize(RECORD_BYTES_MAX, 0);
        let mut at = 0;
        while let Some(length) = self.sealed.get(at..at + LENGTH_BYTES) {
            let len = usize::from(u16::from_le_bytes([length[0], length[1]]));
            let start = at + LENGTH_BYTES;
            let Some(record) = self.sealed.get(start..start + len) else {
                break;
            };
            let opened = cipher.read_message(self.nonce, record, &mut self.plain);
            let opened = opened.map_err(|_| End::Forged)?;
            self.nonce += 1;
            at = start + len;
            let pushed = self.decoder.push(&self.plain[..opened], out);
            pushed.map_err(End::Broken)?;
        }
        self.sealed.drain(..at);
        Ok(())
    }
}

/// What a read brought: nothing now is no error, nothing any more is.
fn received(read: Result<usize, Errno>) -> Result<usize, End> {
    match read {
        Ok(0) => Err(End::Closed),
        Ok(got) => Ok(got),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(_) => Err(End::Closed),
    }
}

/// The thread's own.
pub(super) struct Inward {
    hub: Arc<Hub>,
    epoll: OwnedFd,
    inlets: BTreeMap<u64, Inlet>,
    buffer: Vec<u8>,
    events: VecDeque<Event>,
    /// Of whom it was said that they sent garbled bytes: each once.
    said: BTreeSet<Rank>,
}

impl Inward {
    pub(super) fn new(hub: Arc<Hub>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = EventData::new_u64(BELL);
        epoll::add(&epoll, hub.in_bell.fd(), bell, EventFlags::IN)?;
        let bytes = if hub.badge.encrypt {
            SEALED_BYTES
        } else {
            SMALL_BYTES
        };
        Ok(Self {
            hub,
            epoll,
            inlets: BTreeMap::new(),
            buffer: vec![0; bytes],
            events: VecDeque::new(),
            said: BTreeSet::new(),
        })
    }

    /// Works until it is to stop, and a little longer, so that what was sent last is not cut off by what nobody reads.
    pub(super) fn run(mut self) {
        let _ = self.hub.reader.set(std::thread::current().id());
        let mut stop_by = None;
        loop {
            self.wait(stop_by);
            if self.hub.state().stop {
                let by = *stop_by.get_or_insert_with(|| Instant::now() + CLOSE_MAX);
                if self.inlets.is_empty() || Instant::now() > by {
                    return;
                }
            }
        }
    }

    fn wait(&mut self, stop_by: Option<Instant>) {
        let mut ready = Vec::with_capacity(64);
        let patience = stop_by.map(|by| by.saturating_duration_since(Instant::now()));
        // So long a time that it cannot be said is none.
        let patience = patience.and_then(|left| Timespec::try_from(left).ok());
        let buffer = rustix::buffer::spare_capacity(&mut ready);
        // Interrupted: as if nothing had come.
        let _ = epoll::wait(&self.epoll, buffer, patience.as_ref());
        for event in ready {
            match event.data.u64() {
                BELL => self.attend(),
                id => self.read(id),
            }
        }
    }

    /// Does what others want of this thread.
    fn attend(&mut self) {
        self.hub.in_bell.hush();
        let mut state = self.hub.state();
        let newcomers = std::mem::take(&mut state.newcomers);
        let losses = std::mem::take(&mut state.losses);
        let finds = std::mem::take(&mut state.finds);
        let handing = std::mem::take(&mut state.handing);
        drop(state);
        for conn in newcomers {
            self.watch(conn);
        }
        for rank in losses {
            self.hub.tell_lost(rank);
        }
        for rank in finds {
            self.hub.tell_found(rank);
        }
        for channel in handing {
            channel.hand_on();
        }
        self.hub.write_answers();
    }

    fn watch(&mut self, conn: Arc<Conn>) {
        let id = EventData::new_u64(conn.id);
        if epoll::add(&self.epoll, &conn.stream, id, EventFlags::IN).is_err() {
            self.lose(&conn);
            return;
        }
        let inlet = Inlet {
            decoder: Decoder::new(conn.seed_in, self.hub.bounds()),
            sealed: Vec::new(),
            plain: Vec::new(),
            // The handshake's proof was number 0.
            nonce: 1,
            conn,
        };
        self.inlets.insert(inlet.conn.id, inlet);
    }

    /// Reads a connection's turn, and hands on what is whole.
    fn read(&mut self, id: u64) {
        let mut unanswered = 0;
        for _ in 0..TURN_READS {
            let Some(inlet) = self.inlets.get_mut(&id) else {
                return;
            };
            inlet.decoder.allow(self.hub.bounds());
            let read = inlet.read(&mut self.buffer, &mut self.events);
            let conn = Arc::clone(&inlet.conn);
            let has_come = !self.events.is_empty();
            let is_drained = matches!(read, Ok(0));
            while let Some(event) = self.events.pop_front() {
                came(&self.hub, &conn, event);
            }
            unanswered += usize::from(has_come);
            if is_drained || unanswered >= ANSWERED_TOGETHER {
                unanswered = 0;
                self.hub.write_answers();
            }
            match read {
                Ok(0) => return,
                Ok(_) => {}
                Err(why) => {
                    self.finish(id, &why);
                    return;
                }
            }
        }
        self.hub.write_answers();
    }

    /// A connection is not read any more.
    fn finish(&mut self, id: u64, why: &End) {
        let Some(inlet) = self.inlets.remove(&id) else {
            return;
        };
        // A closed descriptor would leave the set by itself, but the other thread may have it for a while.
        let _ = epoll::delete(&self.epoll, &inlet.conn.stream);
        if !matches!(why, End::Closed) {
            let rank = inlet.conn.rank;
            self.hub.state().peer(rank).troubles.garbled += 1;
            if self.said.insert(rank) {
                note_broken(&inlet.conn, why);
            }
        }
        self.lose(&inlet.conn);
    }

    fn lose(&self, conn: &Conn) {
        if self.hub.down(conn) {
            end(conn);
            self.hub.tell_lost(conn.rank);
            // There may be another connection already; what was on this one is lost all the same.
            self.hub.tell_found(conn.rank);
            self.hub.write_answers();
        }
    }
}

fn note_broken(conn: &Conn, why: &End) {
    let rank = conn.rank;
    match why {
        End::Broken(Broken::TooLong { kind, len }) => tracing::warn!(
            "peers: rank {rank} sent {kind:?} of {len} B, more than is allowed: the connection is made anew (said once)"
        ),
        End::Broken(Broken::Header) | End::Forged => {
            tracing::warn!(
                "peers: garbled bytes from rank {rank}: the connection is made anew (said once)"
            );
        }
        End::Closed => {}
    }
}

/// Something came out of a connection.
fn came(hub: &Hub, conn: &Conn, event: Event) {
    match event {
        Event::Frame(
            Header {
                kind: Kind::Bye, ..
            },
            _,
        ) => hub.retire(conn),
        event => arrived(hub, conn.rank, event),
    }
}

/// Something came of a rank, whatever carried it.
pub(super) fn arrived(hub: &Hub, from: Rank, event: Event) {
    match event {
        Event::Frame(header, bytes) => match header.kind {
            // Nobody else knows where all are.
            Kind::Roster if from == Rank(0) => learn(hub, &bytes),
            Kind::Roster | Kind::Bye => {}
            Kind::OfferAsk | Kind::OfferWait | Kind::OfferNone | Kind::OfferPart => {
                offers::arrived(hub, from, header, &bytes);
            }
            _ => for_channel(hub, from, header, bytes),
        },
        Event::Garbled(header) => {
            hub.state().peer(from).troubles.garbled += 1;
            let message = message(hub, header, Vec::new());
            let channel = hub.channel(header.channel);
            if let (Some(message), Some(channel)) = (message, channel) {
                deliver(hub, &channel, from, instead(message));
            }
        }
    }
}

fn learn(hub: &Hub, bytes: &[u8]) {
    let entries = roster::decode(bytes, hub.badge.world);
    hub.change(|state| {
        for (rank, address) in entries {
            // Without a secret nobody else's word is taken for where to go.
            let is_allowed = !hub.is_local || address.ip().is_loopback();
            if rank != hub.badge.rank && is_allowed {
                state.learn(rank, address);
            }
        }
    });
}

/// The message that a frame is, if it is one.
fn message(hub: &Hub, header: Header, bytes: Vec<u8>) -> Option<Message> {
    let ticket = Ticket(header.number);
    let sample = SampleId(header.number as u32);
    let message = match header.kind {
        Kind::Ask => Message::Ask(Ask {
            ticket,
            sample: SampleId(header.extra),
        }),
        Kind::Answer => Message::Answer(Answer {
            ticket,
            content: Content::Sample(hub.rooms.payload(bytes)),
        }),
        Kind::NoAnswer => Message::Answer(Answer {
            ticket,
            content: Content::WillNotCome,
        }),
        Kind::HandOver => Message::HandOver(handed_over(hub, sample, bytes)),
        Kind::NoHandOver => Message::HandOver(HandOver::unstamped(sample, Content::WillNotCome)),
        Kind::AnswerHere => Message::Answer(Answer {
            ticket,
            content: Content::Here,
        }),
        Kind::AnswerInFile => Message::Answer(Answer {
            ticket,
            content: near::decode(&bytes).map_or(Content::WillNotCome, Content::InFile),
        }),
        Kind::HandOverHere => Message::HandOver(HandOver {
            sample,
            content: Content::Here,
            stamp: bytes.first_chunk().and_then(Stamp::from_bytes),
        }),
        Kind::Done => Message::Done(Done { report: bytes }),
        _ => return None,
    };
    Some(message)
}

/// A sample, with its stamp behind it. What is too short for one is no sample.
fn handed_over(hub: &Hub, sample: SampleId, mut bytes: Vec<u8>) -> HandOver {
    let Some(stamp) = bytes.last_chunk().map(Stamp::from_bytes) else {
        return HandOver::unstamped(sample, Content::WillNotCome);
    };
    bytes.truncate(bytes.len() - STAMP_BYTES);
    HandOver {
        sample,
        content: Content::Sample(hub.rooms.payload(bytes)),
        stamp,
    }
}

fn for_channel(hub: &Hub, from: Rank, header: Header, bytes: Vec<u8>) {
    let Some(channel) = hub.channel(header.channel) else {
        if header.kind == Kind::Ask {
            refuse(hub, from, header);
        }
        return;
    };
    let call = header.number as u32;
    match header.kind {
        Kind::Leave => {
            channel.rank_left(from, header.extra == 0);
            hub.forget_unopened(header.channel);
        }
        Kind::GatherAsk => gather_asked(hub, &channel, from, call),
        Kind::GatherPart => {
            channel.with_calls(|calls| calls.part(from, header.number, header.extra, &bytes));
        }
        Kind::GatherGot => {
            let others = hub.badge.world as usize - 1;
            channel.with_calls(|calls| calls.got(from, call, others));
        }
        _ => {
            if let Some(message) = message(hub, header, bytes) {
                let delivered = deliver(hub, &channel, from, message);
                if delivered == Delivered::Full && header.kind == Kind::Ask {
                    refuse(hub, from, header);
                }
            }
        }
    }
}

/// Says that what is asked for will not come.
fn refuse(hub: &Hub, to: Rank, ask: Header) {
    let refusal = Header::new(Kind::NoAnswer, ask.channel, ask.number);
    // If that is lost, too, the asker has a deadline.
    let _ = hub.send(to, Out::small(refusal));
}

fn deliver(hub: &Hub, channel: &Channel, from: Rank, message: Message) -> Delivered {
    let is_reply = matches!(message, Message::Answer(_) | Message::Done(_));
    let delivered = channel.deliver(from, message);
    // Who does not know that this rank has left is told.
    if delivered == Delivered::Left && !is_reply {
        hub.say_left(from, channel.key, true);
    }
    delivered
}

/// A rank wants what this one gave.
fn gather_asked(hub: &Hub, channel: &Channel, from: Rank, call: u32) {
    let is_left = channel.is_left_by(hub.badge.rank);
    channel.heard(from);
    match channel.with_calls(|calls| calls.asked(from, call)) {
        Some(gift) => {
            let stream = Stream::new(Kind::GatherPart, channel.key, call, gift);
            hub.stream(from, stream);
        }
        None if is_left => hub.say_left(from, channel.key, false),
        None => {}
    }
}
