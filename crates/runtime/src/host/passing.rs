//! How ranks of a host hand each other their memory: descriptors, over a socket between the two, once for each job.
//!
//! Each rank connects to those of its host that come before it, and then waits for those behind. Both ends prove to each
//! other who they are, as they do to the transport; then each hands over its board, its memory and the pins that it will set
//! on the other's, looks at what it got, and says that it has it. Who was told so may use the other's memory: its pins
//! are seen. All of it takes milliseconds, and is given up at a deadline: who has not shared by then is reached as ranks of
//! other hosts are.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

use super::board::Board;
use super::card::{Card, Listener};
use super::crews::{CrewBoard, CrewView, Crews, RANKS_MAX};
use super::neighbour::{Had, Neighbour, Neighbours};
use super::pins::{Pins, PinsView};
use super::shown::{Reader, Shown};
use crate::transport::Transport;

/// Pieces of memory of one rank: stripes of what it keeps, and of what it leaves for others.
const PIECES_MAX: usize = 16;

/// A board, pins, a board of threads, and pieces of memory.
const FILES_MAX: usize = PIECES_MAX + 3;

/// What is said with the descriptors: how many samples boards have.
const HEADER_BYTES: usize = 8;
const MAGIC: [u8; 4] = *b"fme2";

/// What an end says when it has mapped what it got.
const READY: u8 = b'R';

/// A stranger that connects and says nothing is waited for no longer than this.
const STEP_MAX: Duration = Duration::from_secs(2);

/// The socket between two ranks. Nothing is said on it any more; it ends with the last process that has it.
#[derive(Clone)]
pub(super) struct Line(Arc<UnixStream>);

impl Line {
    /// Whether a process has the other end.
    pub(super) fn is_open(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&*self.0, &mut byte, flags) {
            Ok((_, got)) => got > 0,
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

/// What a rank has to offer.
pub(crate) struct Offer {
    /// How many samples there are: the same for all.
    pub(crate) samples: u32,
    /// Pieces of memory where samples lie.
    pub(crate) memory: Vec<File>,
}

/// What a rank has after the exchange.
pub(crate) struct Exchanged {
    /// What others may look at.
    pub(crate) shown: Shown,
    /// What it may look at.
    pub(crate) neighbours: Neighbours,
    /// What all of them show of their threads; none where it did not work with all, or where there are too many.
    pub(crate) crews: Option<Crews>,
    /// Ranks of this host with which it did not work, and why.
    pub(crate) failed: Vec<(Rank, io::Error)>,
}

/// Exchanges memory with all other ranks that are on this host, by the cards of all ranks.
pub(crate) fn exchange(
    transport: &dyn Transport,
    listener: &Listener,
    cards: &[Option<Card>],
    offer: &Offer,
    deadline: Instant,
) -> io::Result<Exchanged> {
    let own = transport.rank();
    let board = Board::new(offer.samples)?;
    let near: Vec<Rank> = (0..)
        .map(Rank)
        .zip(cards)
        .filter(|(rank, card)| {
            *rank != own && card.is_some_and(|card| card.is_near(&listener.card()))
        })
        .map(|(rank, _)| rank)
        .collect();
    let crew = CrewBoard::new()?;
    let mut table = Table {
        transport,
        offer,
        board: board.shown()?,
        crew: crew.shown()?,
        crews: Vec::new(),
        deadline,
        readers: Vec::new(),
        neighbours: cards.iter().map(|_| None).collect(),
        failed: Vec::new(),
    };
    let (before, behind): (Vec<Rank>, Vec<Rank>) = near.iter().partition(|rank| **rank < own);
    for rank in before {
        if let Some(card) = &cards[rank.index()] {
            table.call(rank, card);
        }
    }
    table.wait_for(&behind, listener);
    let crews = crews(own, &near, crew, table.crews).filter(|_| table.failed.is_empty());
    Ok(Exchanged {
        crews,
        shown: Shown::new(board, table.readers),
        neighbours: Neighbours::new(table.neighbours),
        failed: table.failed,
    })
}

/// The boards of threads of all ranks of the host, each at its place; none where a rank is alone there, where one is missing,
/// or where there are too many.
fn crews(
    own: Rank,
    near: &[Rank],
    board: CrewBoard,
    mut seen: Vec<(Rank, CrewView)>,
) -> Option<Crews> {
    let is_alone = near.is_empty();
    if is_alone || seen.len() != near.len() || near.len() >= RANKS_MAX {
        return None;
    }
    seen.sort_by_key(|(rank, _)| *rank);
    Some(Crews::new(own, board, seen))
}

/// What a holder, rank 0, and a reader of its memory have, in one process: for schedules, which know no others.
#[cfg(all(test, feature = "shuttle"))]
pub(crate) fn within_a_process(
    samples: u32,
    memory: &[File],
) -> io::Result<(Exchanged, Exchanged)> {
    let (one, other) = UnixStream::pair()?;
    let [one, other] = [one, other].map(|stream| Line(Arc::new(stream)));
    let board = Board::new(samples)?;
    let pins = Pins::new(samples)?;
    let reader = Reader {
        rank: Rank(1),
        pins: pins.view(samples),
        line: one,
        sees: true,
    };
    let holder = Neighbour::within_a_process(samples, &board, memory, pins, other)?;
    let exchanged = |board, readers, neighbours| Exchanged {
        shown: Shown::new(board, readers),
        neighbours: Neighbours::new(neighbours),
        crews: None,
        failed: Vec::new(),
    };
    let own = Board::new(samples)?;
    Ok((
        exchanged(board, vec![reader], Vec::new()),
        exchanged(own, Vec::new(), vec![Some(Arc::new(holder))]),
    ))
}

/// An exchange under way.
struct Table<'a> {
    transport: &'a dyn Transport,
    offer: &'a Offer,
    board: File,
    crew: File,
    crews: Vec<(Rank, CrewView)>,
    deadline: Instant,
    readers: Vec<Reader>,
    neighbours: Vec<Option<Arc<Neighbour>>>,
    failed: Vec<(Rank, io::Error)>,
}

impl Table<'_> {
    /// Connects to a rank.
    fn call(&mut self, rank: Rank, card: &Card) {
        let shared = card.connect().and_then(|stream| {
            self.limit(&stream)?;
            let who = self.transport.greet(&stream, true)?;
            if who != rank {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.share(rank, stream)
        });
        if let Err(cause) = shared {
            self.failed.push((rank, cause));
        }
    }

    /// Waits for ranks that connect here.
    fn wait_for(&mut self, expected: &[Rank], listener: &Listener) {
        let mut missing = expected.to_vec();
        while !missing.is_empty() {
            let Ok(Some(stream)) = listener.accept(self.deadline) else {
                break;
            };
            // Who cannot prove who it is is nobody that is waited for.
            let greeted = self
                .limit(&stream)
                .and_then(|()| self.transport.greet(&stream, false));
            let Ok(rank) = greeted else {
                continue;
            };
            let Some(at) = missing.iter().position(|one| *one == rank) else {
                continue;
            };
            missing.remove(at);
            if let Err(cause) = self.share(rank, stream) {
                self.failed.push((rank, cause));
            }
        }
        let late = missing
            .into_iter()
            .map(|rank| (rank, io::ErrorKind::TimedOut.into()));
        self.failed.extend(late);
    }

    /// No step takes longer than is left.
    fn limit(&self, stream: &UnixStream) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.min(STEP_MAX);
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))
    }

    /// Hands over what this rank has, and takes what the other has.
    fn share(&mut self, rank: Rank, stream: UnixStream) -> io::Result<()> {
        self.limit(&stream)?;
        let samples = self.offer.samples;
        let pins = Pins::new(samples)?;
        let shown_pins = pins.shown()?;
        let mut files = vec![self.board.as_fd(), shown_pins.as_fd(), self.crew.as_fd()];
        files.extend(self.offer.memory.iter().map(AsFd::as_fd));
        send_files(&stream, samples, &files)?;
        let mut got = receive_files(&stream, samples)?.into_iter();
        let [Some(board), Some(their_pins), Some(crew)] = [got.next(), got.next(), got.next()]
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let crew = CrewView::new(&crew)?;
        let line = Line(Arc::new(stream));
        let neighbour = Neighbour::new(
            samples,
            Had {
                board,
                memory: got.collect(),
                pins,
                line: line.clone(),
            },
        )?;
        // From now on its pins count, whatever becomes of the rest.
        self.readers.push(Reader {
            rank,
            pins: PinsView::new(&their_pins, samples)?,
            line: line.clone(),
            sees: false,
        });
        let mut stream = &*line.0;
        stream.write_all(&[READY])?;
        let mut said = [0];
        stream.read_exact(&mut said)?;
        if said != [READY] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if let Some(reader) = self.readers.last_mut() {
            reader.sees = true;
        }
        self.neighbours[rank.index()] = Some(Arc::new(neighbour));
        self.crews.push((rank, crew));
        Ok(())
    }
}

fn header(samples: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..].copy_from_slice(&samples.to_le_bytes());
    header
}

/// Sends descriptors, in one message.
fn send_files(stream: &UnixStream, samples: u32, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if files.len() > FILES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let header = header(samples);
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&header)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent == header.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Takes descriptors that came in one message, of who has as many samples.
fn receive_files(stream: &UnixStream, samples: u32) -> io::Result<Vec<File>> {
    let mut said = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut said)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            files.extend(more.map(File::from));
        }
    }
    let is_whole = got.bytes == said.len() && !got.flags.contains(ReturnFlags::CTRUNC);
    if !is_whole || said != header(samples) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(files)
}
