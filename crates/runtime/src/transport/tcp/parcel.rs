//! Frames for a carrier of messages, which keeps each message whole and those to one rank in order. Pure: no carrier in here.
//!
//! A turn's frames go as a parcel: a head, which has all headers and whatever payloads are short, and one message for each
//! longer payload, sent from where it lies and received where it stays. Headers are as on connections (`frame`), so what is
//! too long is known before it comes. What comes later may be there earlier; it waits for its turn. The stamp of a sample that is
//! handed over goes with the headers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use foresee_core::ids::Rank;

use super::frame::{self, Bounds, Broken, Encoder, Event, HEADER_BYTES, Header, Kind};
use super::queue::Out;
use super::rooms::Rooms;
use crate::stamp::STAMP_BYTES;
use crate::transport::Payload;

/// Payloads up to this go with the headers: copying them costs less than a message. With a header it is still below what
/// carriers send at once, without asking the other end.
const SHORT_BYTES_MAX: usize = 2 << 10;

/// What is sent to a rank in one turn.
pub(in crate::transport) struct Parcel {
    pub(in crate::transport) head: Vec<u8>,
    pub(in crate::transport) bodies: Vec<Body>,
}

/// A payload that is a message of its own.
pub(in crate::transport) struct Body {
    payload: Payload,
    range: Range<usize>,
}

impl Body {
    /// All of a payload.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::transport) fn whole(payload: Payload) -> Self {
        let range = 0..payload.bytes().len();
        Self { payload, range }
    }

    pub(in crate::transport) fn bytes(&self) -> &[u8] {
        &self.payload.bytes()[self.range.clone()]
    }
}

/// A message that is to come: the next payload of a rank. It is received also where nobody wants it: carriers cannot refuse one,
/// and some write past the end of memory that is too small.
pub(in crate::transport) struct Expected {
    /// What [`Unpacker::body`] knows it by.
    pub(in crate::transport) number: u64,
    /// Where it is to be received; none where there is no memory for it.
    pub(in crate::transport) memory: Option<Vec<u8>>,
    pub(in crate::transport) len: usize,
    /// Whether it is longer than is allowed.
    pub(in crate::transport) is_too_long: bool,
}

/// Both ends of a way begin their checksums with the same number, so that what was meant for another one does not pass.
fn seed(from: Rank, to: Rank) -> u64 {
    u64::from(from.0) << 32 | u64::from(to.0)
}

/// Makes parcels for one rank.
pub(super) struct Packer {
    encoder: Encoder,
}

impl Packer {
    pub(super) fn new(from: Rank, to: Rank) -> Self {
        Self {
            encoder: Encoder::new(seed(from, to)),
        }
    }

    pub(super) fn pack(&mut self, turn: Vec<Out>) -> Parcel {
        let mut head = Vec::with_capacity(turn.len() * HEADER_BYTES);
        let mut bodies = Vec::new();
        for out in turn {
            let bytes = out.bytes();
            let stamp = out.stamp();
            head.extend(self.encoder.head_over(&out.header, bytes, stamp));
            let is_short = bytes.len() + stamp.len() <= SHORT_BYTES_MAX;
            if is_short {
                head.extend_from_slice(bytes);
            }
            head.extend_from_slice(stamp);
            if let Some((payload, range)) = out.payload.filter(|_| !is_short) {
                bodies.push(Body { payload, range });
            }
        }
        Parcel { head, bodies }
    }
}

/// A frame whose turn has not come, or whose payload has not.
struct Waiting {
    header: Header,
    sum: u64,
    bytes: Arriving,
}

enum Arriving {
    /// What is to stand behind it came with the head.
    Awaited(Option<[u8; STAMP_BYTES]>),
    There(Vec<u8>),
    /// It was too long, or came in another length.
    Dropped,
}

/// Opens the parcels of one rank.
pub(super) struct Unpacker {
    seed: u64,
    rooms: Arc<Rooms>,
    /// Frames so far.
    frames: u32,
    waiting: VecDeque<Waiting>,
    /// The number of the first that waits.
    first: u64,
}

impl Unpacker {
    /// Payloads are received into memory of `rooms`.
    pub(super) fn new(from: Rank, to: Rank, rooms: Arc<Rooms>) -> Self {
        Self {
            seed: seed(from, to),
            rooms,
            frames: 0,
            waiting: VecDeque::new(),
            first: 0,
        }
    }

    /// A head came; which messages come after it.
    pub(super) fn head(
        &mut self,
        mut bytes: &[u8],
        bounds: Bounds,
    ) -> Result<Vec<Expected>, Broken> {
        let mut expected = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes
                .split_first_chunk::<HEADER_BYTES>()
                .ok_or(Broken::Header)?;
            bytes = rest;
            let (header, sum) = frame::read_head(self.seed, self.frames, head)?;
            self.frames = self.frames.wrapping_add(1);
            let len = header.len as usize;
            let is_allowed = bounds.allows(header.kind, header.len);
            let bytes_of = if len <= SHORT_BYTES_MAX {
                let (own, rest) = bytes.split_at_checked(len).ok_or(Broken::Header)?;
                bytes = rest;
                if is_allowed {
                    Arriving::There(own.to_vec())
                } else {
                    Arriving::Dropped
                }
            } else {
                let stamp = if header.kind == Kind::HandOver {
                    let (stamp, rest) = bytes.split_first_chunk().ok_or(Broken::Header)?;
                    bytes = rest;
                    Some(*stamp)
                } else {
                    None
                };
                expected.push(Expected {
                    number: self.first + self.waiting.len() as u64,
                    memory: self.rooms.take(len),
                    len: len - stamp.map_or(0, |stamp| stamp.len()),
                    is_too_long: !is_allowed,
                });
                Arriving::Awaited(stamp)
            };
            self.waiting.push_back(Waiting {
                header,
                sum,
                bytes: bytes_of,
            });
        }
        Ok(expected)
    }

    /// An expected message came; none where it was dropped.
    pub(super) fn body(&mut self, number: u64, bytes: Option<Vec<u8>>) {
        let at = number.wrapping_sub(self.first) as usize;
        if let Some(waiting) = self.waiting.get_mut(at) {
            let Arriving::Awaited(stamp) = waiting.bytes else {
                return;
            };
            let len = waiting.header.len as usize;
            let whole = bytes.map(|mut bytes| {
                bytes.extend_from_slice(stamp.as_ref().map_or(&[][..], |stamp| &stamp[..]));
                bytes
            });
            let whole = whole.filter(|bytes| bytes.len() == len);
            waiting.bytes = whole.map_or(Arriving::Dropped, Arriving::There);
        }
    }

    /// The next frame, if it is there.
    pub(super) fn next(&mut self) -> Option<Event> {
        let first = self.waiting.front()?;
        if matches!(first.bytes, Arriving::Awaited(_)) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.first += 1;
        Some(match first.bytes {
            Arriving::There(bytes) => frame::checked(self.seed, first.header, first.sum, bytes),
            Arriving::Awaited(_) | Arriving::Dropped => Event::Garbled(first.header),
        })
    }
}

/// The last frame to a rank.
pub(super) fn bye() -> Out {
    Out::small(Header::new(Kind::Bye, crate::transport::JobKey([0; 16]), 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::JobKey;

    const KEY: JobKey = JobKey([4; 16]);
    const BOUNDS: Bounds = Bounds {
        sample_bytes_max: 100_000,
    };

    fn answer(number: u64, len: usize) -> Out {
        let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 3 + number) as u8).collect();
        Out::large(Header::new(Kind::Answer, KEY, number), Payload::new(bytes))
    }

    fn ends() -> (Packer, Unpacker) {
        (
            Packer::new(Rank(0), Rank(1)),
            Unpacker::new(Rank(0), Rank(1), Rooms::up_to(0)),
        )
    }

    fn numbers(unpacker: &mut Unpacker) -> Vec<(u64, usize)> {
        let next = || match unpacker.next()? {
            Event::Frame(header, bytes) => Some((header.number, bytes.len())),
            Event::Garbled(header) => Some((header.number, usize::MAX)),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn frames_come_in_the_order_in_which_they_were_sent() {
        let (mut packer, mut unpacker) = ends();
        let lens = [0, 50_000, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 7];
        let turn = (0..).zip(lens).map(|(number, len)| answer(number, len));
        let parcel = packer.pack(turn.collect());
        assert_eq!(parcel.bodies.len(), 2);
        let expected = unpacker.head(&parcel.head, BOUNDS).unwrap();
        assert_eq!(numbers(&mut unpacker), [(0, 0)]);
        let bytes: Vec<Vec<u8>> = parcel.bodies.iter().map(|b| b.bytes().to_vec()).collect();
        unpacker.body(expected[1].number, Some(bytes[1].clone()));
        assert_eq!(numbers(&mut unpacker), []);
        unpacker.body(expected[0].number, Some(bytes[0].clone()));
        let rest: Vec<(u64, usize)> = (1..).zip(lens[1..].iter().copied()).collect();
        assert_eq!(numbers(&mut unpacker), rest);
    }

    #[test]
    fn the_stamp_of_a_sample_stands_behind_it_whether_it_is_short_or_long() {
        for len in [9, SHORT_BYTES_MAX, 5000] {
            let (mut packer, mut unpacker) = ends();
            let header = Header::new(Kind::HandOver, KEY, 0);
            let sample = Payload::new(vec![7; len]);
            let parcel = packer.pack(vec![Out::large(header, sample).with_stamp(None)]);
            let expected = unpacker.head(&parcel.head, BOUNDS).unwrap();
            for (one, body) in expected.iter().zip(&parcel.bodies) {
                assert_eq!((one.len, body.bytes().len()), (len, len));
                unpacker.body(one.number, Some(body.bytes().to_vec()));
            }
            let Some(Event::Frame(_, bytes)) = unpacker.next() else {
                panic!("a frame of {len} bytes");
            };
            assert_eq!(
                bytes.split_at(len),
                (&vec![7; len][..], &[0; STAMP_BYTES][..])
            );
        }
    }

    #[test]
    fn what_is_too_long_cut_off_or_changed_costs_itself_alone() {
        let (mut packer, mut unpacker) = ends();
        let turn = vec![
            answer(0, 100_001),
            answer(1, 5000),
            answer(2, 5000),
            answer(3, 9),
        ];
        let parcel = packer.pack(turn);
        let expected = unpacker.head(&parcel.head, BOUNDS).unwrap();
        let too_long: Vec<bool> = expected.iter().map(|one| one.is_too_long).collect();
        assert_eq!(too_long, [true, false, false]);
        assert!(expected[1].memory.as_ref().unwrap().capacity() >= 5000);
        let whole = parcel.bodies[2].bytes().to_vec();
        let mut changed = parcel.bodies[1].bytes().to_vec();
        changed[4321] ^= 1;
        unpacker.body(expected[0].number, None);
        unpacker.body(expected[1].number, Some(changed));
        unpacker.body(expected[2].number, Some(whole[..4999].to_vec()));
        let garbled = [0, 1, 2].map(|number| (number, usize::MAX));
        let came = numbers(&mut unpacker);
        assert_eq!(came[..3], garbled);
        assert_eq!(came[3..], [(3, 9)]);
    }

    #[test]
    fn what_is_no_head_or_another_ranks_is_refused() {
        let (mut packer, _) = ends();
        let parcel = packer.pack(vec![answer(0, 9), answer(1, 3000)]);
        let all = parcel.head.len();
        for cut in (1..all).filter(|cut| *cut != HEADER_BYTES + 9) {
            let (_, mut unpacker) = ends();
            assert!(
                unpacker.head(&parcel.head[..cut], BOUNDS).is_err(),
                "{cut} of {all}"
            );
        }
        let mut other = Unpacker::new(Rank(2), Rank(1), Rooms::up_to(0));
        assert!(other.head(&parcel.head, BOUNDS).is_err());
        let (_, mut again) = ends();
        assert!(again.head(&parcel.head, BOUNDS).is_ok());
        assert!(again.head(&parcel.head, BOUNDS).is_err());
    }
}
