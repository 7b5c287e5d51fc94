//! The decoder against random cuts, random bytes and random damage.

use proptest::prelude::*;

use super::*;

const SEED: u64 = 77;
const BOUNDS: Bounds = Bounds {
    sample_bytes_max: 5000,
};

/// A small generator, so that long runs cost little: splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn frame(dice: &mut Dice) -> (Header, Vec<u8>) {
    let kinds = [Kind::Ask, Kind::Answer, Kind::HandOver, Kind::Leave];
    let kind = kinds[dice.below(kinds.len())];
    let most = match kind {
        Kind::Answer | Kind::HandOver => BOUNDS.sample_bytes_max as usize,
        _ => 0,
    };
    let len = dice.below(most + 1);
    let header = Header {
        kind,
        channel: JobKey([dice.next() as u8; 16]),
        number: dice.next(),
        extra: dice.next() as u32,
        len: len as u32,
    };
    let payload = (0..len).map(|_| dice.next() as u8).collect();
    (header, payload)
}

fn stream(frames: &[(Header, Vec<u8>)]) -> Vec<u8> {
    let mut encoder = Encoder::new(SEED);
    let mut bytes = Vec::new();
    for (header, payload) in frames {
        bytes.extend(encoder.head(header, payload));
        bytes.extend(payload);
    }
    bytes
}

/// Feeds bytes in random pieces, some of them directly into the payload under way.
fn decode(bytes: &[u8], dice: &mut Dice) -> (Vec<Event>, Result<(), Broken>) {
    let mut decoder = Decoder::new(SEED, BOUNDS);
    let mut events = VecDeque::new();
    let mut rest = bytes;
    let mut result = Ok(());
    while !rest.is_empty() && result.is_ok() {
        let is_direct = dice.below(2) == 0;
        if let Some(body) = decoder.body().filter(|_| is_direct) {
            assert!(
                body.capacity() as u64 <= BOUNDS.sample_bytes_max,
                "no more than allowed is taken"
            );
            let room = (body.capacity() - body.len()).min(rest.len());
            let (now, later) = rest.split_at(dice.below(room + 1));
            body.extend_from_slice(now);
            rest = later;
            result = decoder.grew(&mut events);
        } else {
            let most = [1, 60, 300, 8000][dice.below(4)];
            let (now, later) = rest.split_at((1 + dice.below(most)).min(rest.len()));
            rest = later;
            result = decoder.push(now, &mut events);
        }
    }
    (events.into(), result)
}

fn as_events(frames: Vec<(Header, Vec<u8>)>) -> Vec<Event> {
    let event = |(header, payload)| Event::Frame(header, payload);
    frames.into_iter().map(event).collect()
}

/// How many rounds of random damage: more by an environment variable.
fn rounds() -> u64 {
    let more = std::env::var("FORESEE_FUZZ_ROUNDS").ok();
    more.and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn frames_come_out_as_they_went_in_however_the_stream_is_cut(seed: u64, number in 0..20_usize) {
        let dice = &mut Dice(seed);
        let frames: Vec<_> = (0..number).map(|_| frame(dice)).collect();
        let (events, result) = decode(&stream(&frames), dice);
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(events, as_events(frames));
    }
}

/// Whatever happens to the bytes: what comes out is a prefix of what went in, with some payloads missing and said to be.
#[test]
fn damage_never_yields_what_was_not_sent() {
    let dice = &mut Dice(1);
    for round in 0..rounds() {
        let frames: Vec<_> = (0..=dice.below(4)).map(|_| frame(dice)).collect();
        let mut bytes = stream(&frames);
        for _ in 0..=dice.below(3) {
            let at = dice.below(bytes.len());
            match dice.below(4) {
                0 => bytes[at] ^= 1 << dice.below(8),
                1 => bytes[at] = dice.next() as u8,
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, dice.next() as u8),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let (events, _) = decode(&bytes, dice);
        assert!(events.len() <= frames.len(), "round {round}");
        for (event, (header, payload)) in events.iter().zip(&frames) {
            match event {
                Event::Frame(got, bytes) => {
                    assert_eq!(got, header, "round {round}");
                    assert!(bytes == payload, "round {round}");
                }
                Event::Garbled(got) => assert_eq!(got, header, "round {round}"),
            }
        }
    }
}

#[test]
fn random_bytes_are_no_frames() {
    let dice = &mut Dice(2);
    for _ in 0..rounds() / 4 {
        let bytes: Vec<u8> = (0..dice.below(300)).map(|_| dice.next() as u8).collect();
        let (events, _) = decode(&bytes, dice);
        assert_eq!(events, []);
    }
}

/// Who knows the seed can still not make anybody take more memory than allowed.
#[test]
fn lengths_beyond_their_bound_are_refused_before_memory_is_taken() {
    for kind in Kind::ALL {
        let mut head = Encoder::new(SEED).head(&Header::new(kind, JobKey([0; 16]), 1), &[]);
        head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let own = sum(SEED, &head[..SUM_AT]);
        head[SUM_AT..].copy_from_slice(&own.to_le_bytes());
        let mut decoder = Decoder::new(SEED, BOUNDS);
        let pushed = decoder.push(&head, &mut VecDeque::new());
        let len = u32::MAX;
        assert_eq!(pushed, Err(Broken::TooLong { kind, len }));
    }
}

#[test]
fn a_garbled_payload_costs_its_frame_alone() {
    let dice = &mut Dice(3);
    let answer = |number, payload: &[u8]| {
        let header = Header {
            len: payload.len() as u32,
            ..Header::new(Kind::Answer, JobKey([1; 16]), number)
        };
        (header, payload.to_vec())
    };
    let frames = [answer(1, b"first"), answer(2, b"second")];
    let mut bytes = stream(&frames);
    bytes[HEADER_BYTES] ^= 1;
    let (events, result) = decode(&bytes, dice);
    assert_eq!(result, Ok(()));
    let [(first, _), (second, payload)] = frames;
    assert_eq!(
        events,
        [Event::Garbled(first), Event::Frame(second, payload)]
    );
}

#[test]
fn frames_that_are_repeated_left_out_or_of_another_connection_end_it() {
    let dice = &mut Dice(4);
    let ask = |number| (Header::new(Kind::Ask, JobKey([1; 16]), number), Vec::new());
    let bytes = stream(&[ask(1), ask(2)]);
    let (first, second) = bytes.split_at(HEADER_BYTES);
    let twice = [first, first].concat();
    for wrong in [&twice[..], second] {
        let (_, result) = decode(wrong, dice);
        assert_eq!(result, Err(Broken::Header));
    }
    let mut decoder = Decoder::new(SEED + 1, BOUNDS);
    let pushed = decoder.push(&bytes, &mut VecDeque::new());
    assert_eq!(pushed, Err(Broken::Header));
}
