//! What is being written to one connection: frames of a turn, as pieces that are sent where they lie. Encrypted ones are put
//! together first, in records that each begin with their length.
//!
//! Two threads write (`writing`), one at a time: whoever does has the line's lock.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::ops::Range;

use snow::StatelessTransportState;

use super::frame::{Encoder, Header, Kind};
use super::queue::Out;
use super::socket;
use crate::transport::{JobKey, Payload};

/// Plain bytes of a record: what Noise allows, less its tag.
const RECORD_BYTES: usize = 65_535 - TAG_BYTES;
const TAG_BYTES: usize = 16;

/// Pieces that are handed to the kernel at a time; it takes a thousand.
const PIECES: usize = 64;

/// Bytes that are sent one after the other.
enum Piece {
    /// A range of the line's own memory.
    Own(Range<usize>),
    Payload(Payload, Range<usize>),
}

/// How far writing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// All of it is sent.
    All,
    /// The connection takes no more now.
    Some,
}

/// One connection, for who writes.
pub(super) struct Line {
    /// Whether it may take more.
    pub(super) is_writable: bool,
    encoder: Encoder,
    /// The next record's number.
    nonce: u64,
    own: Vec<u8>,
    pieces: Vec<Piece>,
    /// The first piece that is not sent, and how much of it is.
    next: usize,
    sent: usize,
}

impl Line {
    /// Checksums begin with `seed`; `first` is the rest of the handshake.
    pub(super) fn new(seed: u64, first: Vec<u8>) -> Self {
        let all = 0..first.len();
        Self {
            is_writable: true,
            encoder: Encoder::new(seed),
            // The handshake's proof was number 0.
            nonce: 1,
            own: first,
            pieces: vec![Piece::Own(all)],
            next: 0,
            sent: 0,
        }
    }

    /// Whether nothing is left to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.pieces.len()
    }

    /// Takes the frames of a turn.
    pub(super) fn fill(&mut self, turn: Vec<Out>, cipher: Option<&StatelessTransportState>) {
        assert!(self.is_empty(), "a turn ends before the next");
        self.own.clear();
        self.pieces.clear();
        self.next = 0;
        self.sent = 0;
        for out in turn {
            let head = self
                .encoder
                .head_over(&out.header, out.bytes(), out.stamp());
            let start = self.own.len();
            self.own.extend(head);
            let own = start..self.own.len();
            self.pieces.push(Piece::Own(own));
            let payload = out.payload.filter(|(_, range)| !range.is_empty());
            if let Some((payload, range)) = payload {
                self.pieces.push(Piece::Payload(payload, range));
            }
            if let Some(stamp) = out.stamp {
                let start = self.own.len();
                self.own.extend(stamp);
                self.pieces.push(Piece::Own(start..self.own.len()));
            }
        }
        if let Some(cipher) = cipher {
            self.seal(cipher);
        }
    }

    /// Says that the connection is closed for want of use.
    pub(super) fn say_bye(&mut self, cipher: Option<&StatelessTransportState>) {
        let bye = Header::new(Kind::Bye, JobKey([0; 16]), 0);
        self.fill(vec![Out::small(bye)], cipher);
    }

    /// Encrypts what is to be sent, into memory of its own.
    fn seal(&mut self, cipher: &StatelessTransportState) {
        let mut plain = Vec::new();
        for piece in &self.pieces {
            plain.extend_from_slice(bytes(&self.own, piece));
        }
        let records = plain.len().div_ceil(RECORD_BYTES);
        let mut sealed = vec![0; plain.len() + records * (2 + TAG_BYTES)];
        let mut at = 0;
        for record in plain.chunks(RECORD_BYTES) {
            let room = &mut sealed[at + 2..at + 2 + record.len() + TAG_BYTES];
            let written = cipher.write_message(self.nonce, record, room);
            let len = written.expect("a record has room for its tag, and numbers do not run out");
            sealed[at..at + 2].copy_from_slice(&(len as u16).to_le_bytes());
            at += 2 + len;
            self.nonce += 1;
        }
        sealed.truncate(at);
        self.own = sealed;
        self.pieces.clear();
        self.pieces.push(Piece::Own(0..at));
    }

    /// Writes until all is sent or the connection takes no more.
    pub(super) fn write(&mut self, stream: &TcpStream) -> io::Result<Wrote> {
        while !self.is_empty() {
            let pieces = self.pieces[self.next..].iter().take(PIECES);
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(PIECES.min(pieces.len()));
            for (at, piece) in pieces.enumerate() {
                let skipped = if at == 0 { self.sent } else { 0 };
                slices.push(IoSlice::new(&bytes(&self.own, piece)[skipped..]));
            }
            match socket::send(stream, &slices) {
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_writable = false;
                    return Ok(Wrote::Some);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Memory of samples is given back as soon as it was sent.
        self.pieces.clear();
        self.next = 0;
        Ok(Wrote::All)
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.pieces.get(self.next) {
            let left = bytes(&self.own, piece).len() - self.sent;
            if sent < left {
                self.sent += sent;
                return;
            }
            sent -= left;
            self.next += 1;
            self.sent = 0;
        }
    }
}

fn bytes<'a>(own: &'a [u8], piece: &'a Piece) -> &'a [u8] {
    match piece {
        Piece::Own(range) => &own[range.clone()],
        Piece::Payload(payload, range) => &payload.bytes()[range.clone()],
    }
}
