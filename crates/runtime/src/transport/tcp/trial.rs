//! What a fuzzer calls (`fuzz/`): the decoder of frames, and both ends of a handshake, on bytes that anybody made up. Each
//! call checks what must hold whatever comes: nobody panics, no memory is taken beyond the bounds, what was sent well before
//! anything was damaged arrives as it was, and nobody gets through a handshake that was damaged.
//!
//! Bytes at random would never pass a checksum, so most of what is fed has the right one: a fuzzer's bytes say what a header
//! holds, not what it looks like.

use std::collections::VecDeque;

use foresee_core::ids::Rank;

use super::Meeting;
use super::frame::{
    Bounds, Broken, Decoder, Encoder, Event, HEADER_BYTES, Header, Kind, PART_BYTES,
};
use super::greeting::{Badge, Greeter, Refusal, Step};
use crate::transport::JobKey;

const SEED: u64 = 77;
const BOUNDS: Bounds = Bounds {
    sample_bytes_max: 5000,
};

/// Takes what is left of the fuzzer's bytes from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (own, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        own
    }

    /// A number of so many bytes; where there are fewer the rest is 0.
    fn number(&mut self, len: usize) -> u64 {
        let mut number = [0; 8];
        let own = self.take(len);
        number[..own.len()].copy_from_slice(own);
        u64::from_le_bytes(number)
    }
}

/// What is sent, and what of it must arrive.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    /// Frames before anything that ends the connection; those whose payload was damaged arrive as garbled.
    due: Vec<Event>,
    is_sound: bool,
}

impl Line {
    /// Appends a frame as the fuzzer's bytes say.
    fn say(&mut self, encoder: &mut Encoder, from: &mut Bytes<'_>) {
        let how = from.byte().unwrap_or(0);
        let kind = Kind::ALL[usize::from(from.byte().unwrap_or(0)) % Kind::ALL.len()];
        let mut channel = [0; 16];
        channel[0] = how;
        let mut header = Header {
            kind,
            channel: JobKey(channel),
            number: from.number(8),
            extra: from.number(4) as u32,
            len: 0,
        };
        let len = from.number(2) as usize;
        let payload = from.take(len);
        header.len = payload.len() as u32;
        let is_allowed = BOUNDS.allows(kind, header.len);
        let mut head = encoder.head(&header, payload);
        let mut payload = payload.to_vec();
        match how % 8 {
            0 => {
                header.len = from.number(4) as u32;
                head = encoder.bare_head(&header);
                self.is_sound = false;
            }
            1 => {
                let at = from.number(1) as usize % HEADER_BYTES;
                head[at] ^= 1 << (how >> 5);
                self.is_sound = false;
            }
            2 if !payload.is_empty() => {
                let at = from.number(2) as usize % payload.len();
                payload[at] ^= 1 << (how >> 5);
                if self.is_sound && is_allowed {
                    self.due.push(Event::Garbled(header));
                }
            }
            _ if self.is_sound && is_allowed => {
                self.due.push(Event::Frame(header, payload.clone()));
            }
            _ => {}
        }
        self.is_sound &= is_allowed;
        self.bytes.extend(head);
        self.bytes.extend(payload);
    }
}

/// Frames of all kinds, some damaged, and what is no frame, in pieces.
///
/// # Panics
/// If anything is not as it must be.
pub fn frames(data: &[u8]) {
    let mut from = Bytes(data);
    let piece = 1 + from.number(2) as usize;
    let mut encoder = Encoder::new(SEED);
    let mut line = Line {
        is_sound: true,
        ..Line::default()
    };
    while let Some(what) = from.byte() {
        if what % 16 == 0 {
            line.is_sound = false;
            let len = usize::from(from.byte().unwrap_or(0));
            line.bytes.extend(from.take(len));
        } else {
            line.say(&mut encoder, &mut from);
        }
    }
    let mut decoder = Decoder::new(SEED, BOUNDS);
    let mut came = VecDeque::new();
    let ended = line
        .bytes
        .chunks(piece)
        .try_for_each(|piece| feed(&mut decoder, piece, &mut came));
    let came: Vec<Event> = came.into();
    assert!(came.starts_with(&line.due), "what was sent well arrives");
    assert!(!line.is_sound || ended.is_ok(), "and breaks nothing");
}

/// Hands a piece to a decoder, into the payload under way where there is one, as who reads a socket does.
fn feed(decoder: &mut Decoder, piece: &[u8], came: &mut VecDeque<Event>) -> Result<(), Broken> {
    let mut rest = piece;
    if let Some(body) = decoder.body() {
        assert!(body.capacity() <= 2 * PART_BYTES, "no kind may be longer");
        let room = body.capacity() - body.len();
        let (own, behind) = rest.split_at(room.min(rest.len()));
        body.extend_from_slice(own);
        rest = behind;
        decoder.grew(came)?;
    }
    decoder.push(rest, came)
}

fn badge(rank: u32) -> Badge {
    let meeting = Meeting {
        rank: Rank(rank),
        world: 3,
        first: ("127.0.0.1".to_owned(), 0),
        bind: [127, 0, 0, 1].into(),
        secret: Some(b"a secret of sixteen bytes".to_vec()),
        launch: "trial".to_owned(),
        encrypt: false,
        sample_bytes_max: 0,
    };
    Badge::new(&meeting, 1)
}

/// Gives an end bytes, as many as it wants at a time; what became of the last of them.
fn tell(greeter: &mut Greeter, mut bytes: &[u8]) -> Result<Step, Refusal> {
    let mut step = Step::Wait;
    while !bytes.is_empty() && matches!(step, Step::Wait) {
        let (now, later) = bytes.split_at(greeter.wants().min(bytes.len()));
        step = greeter.take(now)?;
        bytes = later;
    }
    Ok(step)
}

/// Changes bytes as the fuzzer's say; whether anything is another.
fn damage(bytes: &mut Vec<u8>, from: &mut Bytes<'_>) -> bool {
    let before = bytes.clone();
    while let Some(how) = from.byte() {
        let at = from.number(2) as usize % bytes.len().max(1);
        match (how % 4, bytes.get_mut(at)) {
            (0, _) => bytes.truncate(at),
            (1, _) => bytes.insert(at, from.byte().unwrap_or(0)),
            (_, Some(byte)) => *byte ^= how | 1,
            (_, None) => {}
        }
    }
    *bytes != before
}

/// A handshake of which one message is damaged, or made up.
///
/// # Panics
/// If anything is not as it must be.
pub fn handshake(data: &[u8]) {
    let mut from = Bytes(data);
    let how = from.byte().unwrap_or(0);
    let (Ok(mut first), Ok(mut second)) = (Greeter::first(&badge(1)), Greeter::second(&badge(0)))
    else {
        return;
    };
    let mut said = std::mem::take(&mut first.output);
    match how % 5 {
        0 => {
            let made_up = tell(&mut second, from.0);
            assert!(matches!(made_up, Ok(Step::Wait) | Err(_)));
            return;
        }
        1 => {
            let made_up = tell(&mut first, from.0);
            assert!(matches!(made_up, Ok(Step::Wait) | Err(_)));
            return;
        }
        _ => {}
    }
    if how % 5 == 2 && damage(&mut said, &mut from) {
        let told = tell(&mut second, &said);
        assert!(!is_through(&told) || has_more_behind(&said));
        return;
    }
    let Ok(Step::Met(hello)) = tell(&mut second, &said) else {
        unreachable!("it is whole");
    };
    assert!(second.accept(hello).is_ok());
    let mut reply = std::mem::take(&mut second.output);
    if how % 5 == 3 && damage(&mut reply, &mut from) {
        let told = tell(&mut first, &reply);
        assert!(!is_through(&told));
        return;
    }
    assert!(matches!(tell(&mut first, &reply), Ok(Step::Done(_))));
    let mut proof = std::mem::take(&mut first.output);
    let is_damaged = damage(&mut proof, &mut from);
    let told = tell(&mut second, &proof);
    assert!(is_damaged || matches!(told, Ok(Step::Done(_))));
}

fn is_through(told: &Result<Step, Refusal>) -> bool {
    matches!(told, Ok(Step::Met(_) | Step::Done(_)))
}

/// What was only appended to is a whole message, and what is behind it for somebody else.
fn has_more_behind(said: &[u8]) -> bool {
    let Some(length) = said.get(8..10) else {
        return false;
    };
    let end = 10 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    said.len() > end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_for_bytes_at_random() {
        let mut seed = 1_u64;
        let mut next = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        for round in 0..2000_usize {
            let data: Vec<u8> = (0..round % 300).map(|_| next()).collect();
            frames(&data);
            handshake(&data[..data.len().min(60)]);
        }
    }
}
