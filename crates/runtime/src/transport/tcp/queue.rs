//! What is to be sent to a rank, bounded. Small frames (requests, refusals) have a bound of their own and go first, so that
//! none is refused or late because of samples. What is gathered or offered is cut into parts only when there is room.

use std::collections::VecDeque;
use std::ops::Range;

use super::frame::{Header, Kind, PART_BYTES};
use crate::stamp::{STAMP_BYTES, Stamp};
use crate::transport::{JobKey, Payload, Sent};

/// Frames without a payload that may wait for one rank.
const SMALL_MAX: usize = 1 << 16;

/// Samples that may wait for one rank, and their bytes; one may always wait, whatever its size.
const LARGE_MAX: usize = 4096;
const LARGE_BYTES_MAX: usize = 64 << 20;

/// Taken at a time for one rank: enough to keep a line busy, little enough to let others have their turn.
const TURN_FRAMES: usize = 128;
const TURN_BYTES: usize = 512 << 10;

/// A frame to be sent.
pub(super) struct Out {
    pub(super) header: Header,
    pub(super) payload: Option<(Payload, Range<usize>)>,
    /// What its payload ends with: the sample lies elsewhere, and is not copied to be sent.
    pub(super) stamp: Option<[u8; STAMP_BYTES]>,
}

impl Out {
    pub(super) fn small(header: Header) -> Self {
        Self {
            header,
            payload: None,
            stamp: None,
        }
    }

    /// A frame with all of a payload, which is no longer than a header can say.
    pub(super) fn large(header: Header, payload: Payload) -> Self {
        let len = payload.bytes().len();
        let header = Header {
            len: len as u32,
            ..header
        };
        Self {
            header,
            payload: Some((payload, 0..len)),
            stamp: None,
        }
    }

    /// The same, with what the sample was in the source behind it; zeros where nobody can tell.
    pub(super) fn with_stamp(mut self, stamp: Option<Stamp>) -> Self {
        self.header.len += STAMP_BYTES as u32;
        self.stamp = Some(stamp.map_or([0; STAMP_BYTES], Stamp::to_bytes));
        self
    }

    /// The bytes behind the header, but for the stamp.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.payload {
            Some((payload, range)) => &payload.bytes()[range.clone()],
            None => &[],
        }
    }

    /// What stands behind those bytes.
    pub(super) fn stamp(&self) -> &[u8] {
        self.stamp.as_ref().map_or(&[], |stamp| &stamp[..])
    }
}

/// Something long that is sent in parts.
pub(super) struct Stream {
    pub(super) kind: Kind,
    pub(super) channel: JobKey,
    pub(super) call: u32,
    pub(super) payload: Payload,
    at: usize,
}

impl Stream {
    pub(super) fn new(kind: Kind, channel: JobKey, call: u32, payload: Payload) -> Self {
        Self {
            kind,
            channel,
            call,
            payload,
            at: 0,
        }
    }

    /// The same without the first `at` bytes, which are there already.
    pub(super) fn from(mut self, at: usize) -> Self {
        self.at = at.min(self.payload.bytes().len());
        self
    }

    /// The next part, and whether it is the last. What is empty has one part, too.
    fn next(&mut self) -> (Out, bool) {
        let total = self.payload.bytes().len();
        let range = self.at..total.min(self.at + PART_BYTES);
        let header = Header {
            kind: self.kind,
            channel: self.channel,
            number: u64::from(self.call) << 32 | total as u64,
            extra: self.at as u32,
            len: range.len() as u32,
        };
        self.at = range.end;
        let out = Out {
            header,
            payload: Some((self.payload.clone(), range)),
            stamp: None,
        };
        (out, self.at == total)
    }
}

/// What waits for one rank.
#[derive(Default)]
pub(super) struct Queue {
    small: VecDeque<Out>,
    large: VecDeque<Out>,
    large_bytes: usize,
    streams: VecDeque<Stream>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty() && self.streams.is_empty()
    }

    /// How many frames wait.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Takes a frame if there is room; what is refused is given back, to be dropped without a lock.
    pub(super) fn push(&mut self, out: Out) -> (Sent, Option<Out>) {
        let len = out.header.len as usize;
        let is_small = out.payload.is_none();
        let fits = self.large_bytes + len <= LARGE_BYTES_MAX || self.large.is_empty();
        let has_room = if is_small {
            self.small.len() < SMALL_MAX
        } else {
            fits && self.large.len() < LARGE_MAX
        };
        if !has_room {
            return (Sent::Full, Some(out));
        }
        if is_small {
            self.small.push_back(out);
        } else {
            self.large.push_back(out);
            self.large_bytes += len;
        }
        (Sent::Taken, None)
    }

    /// Takes a frame without a payload that is to come after all that waits already, whatever room there is: there are few,
    /// as one that waits already is not taken again, however often somebody asks for it.
    pub(super) fn push_last(&mut self, header: Header) {
        if !self.large.iter().any(|out| out.header == header) {
            self.large.push_back(Out::small(header));
        }
    }

    /// Takes something long, unless it is on its way already.
    pub(super) fn stream(&mut self, stream: Stream) {
        let same = |one: &Stream| {
            (one.kind as u8, one.channel, one.call)
                == (stream.kind as u8, stream.channel, stream.call)
        };
        if !self.streams.iter().any(same) {
            self.streams.push_back(stream);
        }
    }

    /// What goes out in one turn.
    pub(super) fn turn(&mut self) -> Vec<Out> {
        let mut turn = Vec::new();
        let mut bytes = 0;
        let small = self.small.len().min(TURN_FRAMES);
        turn.extend(self.small.drain(..small));
        while turn.len() < TURN_FRAMES && bytes < TURN_BYTES {
            let next = self.large.pop_front();
            let Some(out) = next.or_else(|| self.next_part()) else {
                break;
            };
            if !out.header.kind.is_part() {
                self.large_bytes -= out.header.len as usize;
            }
            bytes += out.header.len as usize;
            turn.push(out);
        }
        turn
    }

    fn next_part(&mut self) -> Option<Out> {
        let mut stream = self.streams.pop_front()?;
        let (out, is_last) = stream.next();
        if !is_last {
            self.streams.push_back(stream);
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: JobKey = JobKey([1; 16]);

    fn small(number: u64) -> Out {
        Out::small(Header::new(Kind::Ask, KEY, number))
    }

    fn large(len: usize) -> Out {
        let header = Header::new(Kind::Answer, KEY, 0);
        Out::large(header, Payload::new(vec![1; len]))
    }

    #[test]
    fn requests_are_taken_and_go_first_where_samples_are_refused() {
        let mut queue = Queue::default();
        assert_eq!(queue.push(large(LARGE_BYTES_MAX + 1)).0, Sent::Taken);
        let (sent, back) = queue.push(large(1));
        assert_eq!(sent, Sent::Full);
        assert!(back.is_some());
        assert_eq!(queue.push(small(7)).0, Sent::Taken);
        let kinds: Vec<Kind> = queue.turn().iter().map(|out| out.header.kind).collect();
        assert_eq!(kinds, [Kind::Ask, Kind::Answer]);
        assert!(queue.is_empty());
        assert_eq!(queue.large_bytes, 0);
    }

    #[test]
    fn turns_are_bounded() {
        let mut queue = Queue::default();
        for number in 0..SMALL_MAX as u64 {
            assert_eq!(queue.push(small(number)).0, Sent::Taken);
        }
        assert_eq!(queue.push(small(0)).0, Sent::Full);
        assert_eq!(queue.turn().len(), TURN_FRAMES);
        let mut queue = Queue::default();
        for _ in 0..20 {
            assert_eq!(queue.push(large(100_000)).0, Sent::Taken);
        }
        assert_eq!(queue.turn().len(), 6);
    }

    #[test]
    fn what_is_long_goes_in_parts_and_once() {
        let mut queue = Queue::default();
        let bytes: Vec<u8> = (0..700_000_u32).map(|at| (at / 3) as u8).collect();
        for _ in 0..2 {
            let payload = Payload::new(bytes.clone());
            queue.stream(Stream::new(Kind::GatherPart, KEY, 3, payload));
        }
        let mut came: Vec<u8> = Vec::new();
        while !queue.is_empty() {
            for out in queue.turn() {
                assert_eq!(out.header.extra as usize, came.len());
                assert_eq!(out.header.number, (3 << 32) + 700_000);
                came.extend(out.bytes());
            }
        }
        assert!(came == bytes);
    }
}
