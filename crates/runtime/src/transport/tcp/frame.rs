//! Frames: how messages lie in the stream of bytes between two ranks. Pure: bytes in, frames out, no socket and no clock.
//!
//! A frame is a header of [`HEADER_BYTES`] and a payload. The header says the format's version, the kind, the length, whom
//! it concerns, the frame's number on its connection and the payload's checksum, and ends with a checksum of its own. So a
//! payload that was garbled costs one frame: where it ends is known. A header that was garbled costs the connection, as
//! nothing behind it can be relied on. Lengths are compared with the bound of their kind before memory is taken for them.
//!
//! Checksums start from a seed that only the two ends of a connection know, one for each direction: bytes from elsewhere,
//! or of another connection, do not pass. That is no cryptography: who can change bytes on the line is kept out by
//! encryption only.

use std::collections::VecDeque;
use std::hash::Hasher;

use twox_hash::XxHash3_64;

use crate::stamp::STAMP_BYTES;
use crate::transport::{JobKey, REPORT_BYTES_MAX};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 56;

/// Where the header's own checksum lies.
const SUM_AT: usize = HEADER_BYTES - 8;

/// What each header begins with.
const MAGIC: [u8; 2] = [0xf0, 0x5e];

/// Another one where frames or what they mean change.
pub(super) const VERSION: u8 = 3;

/// Bytes of a part of what is gathered or offered: large enough to cost little, small enough to let samples through in between.
pub(super) const PART_BYTES: usize = 256 << 10;

/// Bytes of a piece of the roster.
pub(super) const ROSTER_BYTES_MAX: usize = 64 << 10;

/// Bytes of where a sample lies: two numbers and a path.
pub(super) const IN_FILE_BYTES_MAX: usize = 16 + 4096;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Ask = 1,
    Answer = 2,
    NoAnswer = 3,
    /// A sample, and behind it what it was in the source.
    HandOver = 4,
    NoHandOver = 5,
    Done = 6,
    /// The sender has left the channel; `extra` is 1 where nothing of it can be gathered any more.
    Leave = 7,
    /// What did you give in the call `number`?
    GatherAsk = 8,
    /// A part of it: `number` is the call and the total, `extra` where the part begins.
    GatherPart = 9,
    /// All of the call `number` has come.
    GatherGot = 10,
    /// Where ranks listen.
    Roster = 11,
    /// The sender closes this connection for want of use, and reads on until the other end has closed it, too.
    Bye = 12,
    /// What `channel` names is wanted of rank 0: `number` is the edition and how much of it is there already.
    OfferAsk = 13,
    /// It is not there, but may come; `number` grows while rank 0 is at work.
    OfferWait = 14,
    /// It will not come.
    OfferNone = 15,
    /// A part of it: `number` is the edition and the total, `extra` where the part begins.
    OfferPart = 16,
    /// An answer without a payload: the sample lies in memory that both ends share.
    AnswerHere = 17,
    /// The same of a sample that is handed over, with what it was in the source; or, with nothing, of one that was fetched.
    HandOverHere = 18,
    /// An answer that says in which file the sample lies.
    AnswerInFile = 19,
}

impl Kind {
    pub(super) const ALL: [Self; 19] = [
        Self::Ask,
        Self::Answer,
        Self::NoAnswer,
        Self::HandOver,
        Self::NoHandOver,
        Self::Done,
        Self::Leave,
        Self::GatherAsk,
        Self::GatherPart,
        Self::GatherGot,
        Self::Roster,
        Self::Bye,
        Self::OfferAsk,
        Self::OfferWait,
        Self::OfferNone,
        Self::OfferPart,
        Self::AnswerHere,
        Self::HandOverHere,
        Self::AnswerInFile,
    ];

    /// Whether it is a part of something long.
    pub(super) fn is_part(self) -> bool {
        matches!(self, Self::GatherPart | Self::OfferPart)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What a frame says besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Whose it is; zeros where it concerns no job.
    pub(super) channel: JobKey,
    /// A ticket, a sample, or a call.
    pub(super) number: u64,
    /// What else the kind needs.
    pub(super) extra: u32,
    /// Bytes of the payload.
    pub(super) len: u32,
}

impl Header {
    /// A frame without a payload.
    pub(super) fn new(kind: Kind, channel: JobKey, number: u64) -> Self {
        Self {
            kind,
            channel,
            number,
            extra: 0,
            len: 0,
        }
    }
}

/// The most bytes of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) sample_bytes_max: u64,
}

impl Bounds {
    pub(super) fn allows(self, kind: Kind, len: u32) -> bool {
        let most = match kind {
            Kind::Answer => self.sample_bytes_max,
            Kind::HandOver => self.sample_bytes_max + STAMP_BYTES as u64,
            Kind::HandOverHere => STAMP_BYTES as u64,
            Kind::Done => REPORT_BYTES_MAX as u64,
            Kind::GatherPart | Kind::OfferPart => PART_BYTES as u64,
            Kind::Roster => ROSTER_BYTES_MAX as u64,
            Kind::AnswerInFile => IN_FILE_BYTES_MAX as u64,
            Kind::Ask
            | Kind::NoAnswer
            | Kind::NoHandOver
            | Kind::Leave
            | Kind::GatherAsk
            | Kind::GatherGot
            | Kind::Bye
            | Kind::OfferAsk
            | Kind::OfferWait
            | Kind::OfferNone
            | Kind::AnswerHere => 0,
        };
        u64::from(len) <= most
    }
}

/// Makes headers, one after the other, for one direction of a connection.
pub(super) struct Encoder {
    seed: u64,
    /// Frames so far.
    frames: u32,
}

impl Encoder {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, frames: 0 }
    }

    /// The bytes that go before a payload in one piece.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn head(&mut self, header: &Header, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.head_over(header, payload, &[])
    }

    /// The bytes that go before a payload in two pieces.
    pub(super) fn head_over(
        &mut self,
        header: &Header,
        payload: &[u8],
        rest: &[u8],
    ) -> [u8; HEADER_BYTES] {
        assert_eq!(
            header.len as usize,
            payload.len() + rest.len(),
            "a header is its frame's"
        );
        self.head_with(header, sum_of_both(self.seed, payload, rest))
    }

    /// A header that announces what may not follow.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn bare_head(&mut self, header: &Header) -> [u8; HEADER_BYTES] {
        self.head_with(header, sum(self.seed, &[]))
    }

    fn head_with(&mut self, header: &Header, payload_sum: u64) -> [u8; HEADER_BYTES] {
        let mut head = [0; HEADER_BYTES];
        head[..2].copy_from_slice(&MAGIC);
        head[2] = VERSION;
        head[3] = header.kind as u8;
        head[4..8].copy_from_slice(&header.len.to_le_bytes());
        head[8..16].copy_from_slice(&header.number.to_le_bytes());
        head[16..20].copy_from_slice(&header.extra.to_le_bytes());
        head[20..24].copy_from_slice(&self.frames.to_le_bytes());
        head[24..40].copy_from_slice(&header.channel.0);
        head[40..SUM_AT].copy_from_slice(&payload_sum.to_le_bytes());
        let own = sum(self.seed, &head[..SUM_AT]);
        head[SUM_AT..].copy_from_slice(&own.to_le_bytes());
        self.frames = self.frames.wrapping_add(1);
        head
    }
}

fn sum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The checksum of what lies in two pieces, as if they were one.
fn sum_of_both(seed: u64, first: &[u8], second: &[u8]) -> u64 {
    if second.is_empty() {
        return sum(seed, first);
    }
    let mut hasher = XxHash3_64::with_seed(seed);
    hasher.write(first);
    hasher.write(second);
    hasher.finish()
}

/// What came out of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Frame(Header, Vec<u8>),
    /// A payload that is not as it was sent, and was dropped.
    Garbled(Header),
}

/// Why nothing more can be read from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// This is no header, or not the next one.
    Header,
    /// A payload beyond the bound of its kind, or one that there is no memory for.
    TooLong { kind: Kind, len: u32 },
}

/// A payload on its way in.
struct Body {
    header: Header,
    sum: u64,
    bytes: Vec<u8>,
}

/// Finds frames in a stream of bytes, however it is cut into pieces.
pub(super) struct Decoder {
    seed: u64,
    bounds: Bounds,
    /// Frames so far.
    frames: u32,
    head: [u8; HEADER_BYTES],
    filled: usize,
    body: Option<Body>,
}

impl Decoder {
    pub(super) fn new(seed: u64, bounds: Bounds) -> Self {
        Self {
            seed,
            bounds,
            frames: 0,
            head: [0; HEADER_BYTES],
            filled: 0,
            body: None,
        }
    }

    /// From the next frame on, lengths are compared with these.
    pub(super) fn allow(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Takes the next bytes in, and appends what is whole by them.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        out: &mut VecDeque<Event>,
    ) -> Result<(), Broken> {
        while !bytes.is_empty() {
            bytes = match &mut self.body {
                Some(body) => {
                    let missing = body.header.len as usize - body.bytes.len();
                    let (own, rest) = bytes.split_at(missing.min(bytes.len()));
                    body.bytes.extend_from_slice(own);
                    rest
                }
                None => self.fill_head(bytes)?,
            };
            self.finish(out);
        }
        Ok(())
    }

    /// Where the rest of a payload can be read to directly: what is missing is what the memory has room for. Afterwards
    /// [`Decoder::grew`] is called.
    pub(super) fn body(&mut self) -> Option<&mut Vec<u8>> {
        self.body.as_mut().map(|body| &mut body.bytes)
    }

    /// Something was appended to the payload under way.
    pub(super) fn grew(&mut self, out: &mut VecDeque<Event>) -> Result<(), Broken> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        // Memory may be had in larger pieces than were asked for.
        let len = body.header.len as usize;
        let over = body.bytes.get(len..).map(<[u8]>::to_vec);
        body.bytes.truncate(len);
        self.finish(out);
        self.push(&over.unwrap_or_default(), out)
    }

    /// Takes what belongs to the header, and returns the rest.
    fn fill_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        let missing = HEADER_BYTES - self.filled;
        let (own, rest) = bytes.split_at(missing.min(bytes.len()));
        self.head[self.filled..self.filled + own.len()].copy_from_slice(own);
        self.filled += own.len();
        if self.filled == HEADER_BYTES {
            self.filled = 0;
            self.body = Some(self.begin()?);
        }
        Ok(rest)
    }

    /// The payload that the header announces.
    fn begin(&mut self) -> Result<Body, Broken> {
        let (header, sum) = read_head(self.seed, self.frames, &self.head)?;
        let too_long = Broken::TooLong {
            kind: header.kind,
            len: header.len,
        };
        if !self.bounds.allows(header.kind, header.len) {
            return Err(too_long);
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(header.len as usize)
            .map_err(|_| too_long)?;
        self.frames = self.frames.wrapping_add(1);
        Ok(Body { header, sum, bytes })
    }

    /// Hands a payload on if it is whole.
    fn finish(&mut self, out: &mut VecDeque<Event>) {
        let whole = |body: &mut Body| body.bytes.len() == body.header.len as usize;
        let Some(body) = self.body.take_if(whole) else {
            return;
        };
        out.push_back(checked(self.seed, body.header, body.sum, body.bytes));
    }
}

/// What a header says, and its payload's checksum: the header of the frame with this number, and no other.
pub(super) fn read_head(
    seed: u64,
    number: u32,
    head: &[u8; HEADER_BYTES],
) -> Result<(Header, u64), Broken> {
    let is_whole = sum(seed, &head[..SUM_AT]).to_le_bytes() == head[SUM_AT..];
    let is_next = u32_at(head, 20) == number;
    if !is_whole || !is_next || head[..2] != MAGIC || head[2] != VERSION {
        return Err(Broken::Header);
    }
    let mut channel = [0; 16];
    channel.copy_from_slice(&head[24..40]);
    let header = Header {
        kind: Kind::from_byte(head[3]).ok_or(Broken::Header)?,
        channel: JobKey(channel),
        number: u64_at(head, 8),
        extra: u32_at(head, 16),
        len: u32_at(head, 4),
    };
    Ok((header, u64_at(head, 40)))
}

/// A frame whose payload is there, if that is as it was sent.
pub(super) fn checked(seed: u64, header: Header, expected: u64, bytes: Vec<u8>) -> Event {
    if sum(seed, &bytes) == expected {
        Event::Frame(header, bytes)
    } else {
        Event::Garbled(header)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests;
