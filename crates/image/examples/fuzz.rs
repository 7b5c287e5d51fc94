//! Damages the test images over and over until the time is up: `fuzz [SECONDS] [SEED]`. A crash ends it; images that
//! take long are named.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a command for developers"
)]

#[path = "../tests/mutation/mod.rs"]
mod mutation;

use std::time::{Duration, Instant};

use foresee_image::{
    Dtype, Key, Layout, Pipeline, RandomResizedCrop, Scratch, Size, Transform, decode,
};
use mutation::{Edit, fixtures, mutate};

/// Far above what an image of the size of the test images takes.
const SLOW: Duration = Duration::from_millis(500);

fn main() {
    let number = |at: usize, default: u64| {
        std::env::args()
            .nth(at)
            .map_or(default, |word| word.parse().unwrap())
    };
    let limit = Duration::from_secs(number(1, 60));
    let mut state = number(2, 1);
    let crop = Transform::RandomResizedCrop(RandomResizedCrop::new(Size::square(32)));
    let pipeline = Pipeline::new(&[crop], Dtype::Uint8, Layout::Chw).unwrap();
    let files = fixtures();
    let mut scratch = Scratch::default();
    let mut result = vec![0; pipeline.output().bytes];
    let start = Instant::now();
    let mut tries = 0_u64;
    let mut decodes = 0_u64;
    while start.elapsed() < limit {
        let seed = state;
        let file = &files[next(&mut state) as usize % files.len()];
        let edits: Vec<Edit> = (0..=next(&mut state) % 6)
            .map(|_| edit(&mut state))
            .collect();
        let damaged = mutate(file, &files, &edits);
        let begun = Instant::now();
        let key = Key {
            seed,
            epoch: 0,
            sample: tries,
        };
        let ran = pipeline.run(&damaged, key, &mut scratch, &mut result);
        let whole = decode(&damaged, &mut scratch, &mut Vec::new());
        if begun.elapsed() > SLOW {
            println!("seed {seed}: {:?}, {:?}", begun.elapsed(), whole.err());
        }
        tries += 1;
        decodes += u64::from(ran.is_ok());
    }
    println!("{tries} damaged images, {decodes} of them decoded, no crash");
}

fn edit(state: &mut u64) -> Edit {
    let at = next(state) as usize;
    let byte = next(state);
    let value = [
        0xff, 0, 0xd9, 0xda, 0xc4, byte as u8, byte as u8, byte as u8,
    ][(byte >> 8) as usize % 8];
    match next(state) % 16 {
        0..5 => Edit::Flip(at, value),
        5..9 => Edit::Set(at, value),
        9..13 => Edit::Set(at % 700, value),
        13 => Edit::Truncate(at),
        14 => Edit::Cut(at, byte as usize),
        _ => Edit::Splice(
            at,
            next(state) as usize,
            next(state) as usize,
            byte as usize,
        ),
    }
}

/// `SplitMix64`.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
