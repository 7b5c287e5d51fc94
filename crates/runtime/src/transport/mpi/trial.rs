//! Bare MPI, to compare with: what a program does that has nothing but samples to fetch. It looks without a pause, uses the
//! same memory again and again and computes no checksums.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::MpiError;
use super::abi::Abi;
use super::calls::{Memory, Pending, World};
use crate::transport::Payload;
use crate::transport::tcp::parcel::Body;

const REQUEST: c_int = 11;
const SAMPLE: c_int = 12;

/// Bytes of a request: as many as the transport's have.
const REQUEST_BYTES: usize = 56;

/// Rank 0 fetches `number` samples of rank 1, `in_flight` at a time; how long that took.
pub(super) fn fetch<A: Abi>(
    world: &World<A>,
    number: u64,
    sample_bytes: usize,
    in_flight: u64,
) -> Result<Duration, MpiError> {
    let started = Instant::now();
    if world.rank == Rank(0) {
        ask(world, number, sample_bytes, in_flight)?;
    } else {
        answer(world, number, sample_bytes, in_flight)?;
    }
    Ok(started.elapsed())
}

fn ask<A: Abi>(
    world: &World<A>,
    number: u64,
    sample_bytes: usize,
    in_flight: u64,
) -> Result<(), MpiError> {
    let holder = Rank(1);
    let mut pending = Pending::new(world.clone());
    let request = || Memory::Own(vec![0; REQUEST_BYTES]);
    for _ in 0..in_flight {
        let room = Vec::with_capacity(sample_bytes);
        pending.receive((holder, SAMPLE), room, ())?;
        pending.send((holder, REQUEST), request(), false, ())?;
    }
    let mut asked = in_flight;
    let mut came = 0;
    while came < number {
        for done in pending.look()? {
            let Some(room) = done.received else {
                continue;
            };
            came += 1;
            if asked < number {
                asked += 1;
                pending.receive((holder, SAMPLE), room, ())?;
                pending.send((holder, REQUEST), request(), false, ())?;
            }
        }
    }
    Ok(())
}

fn answer<A: Abi>(
    world: &World<A>,
    number: u64,
    sample_bytes: usize,
    in_flight: u64,
) -> Result<(), MpiError> {
    let asker = Rank(0);
    let mut pending = Pending::new(world.clone());
    let sample = Payload::new(vec![7; sample_bytes]);
    for _ in 0..in_flight.min(number) {
        let room = Vec::with_capacity(REQUEST_BYTES);
        pending.receive((asker, REQUEST), room, ())?;
    }
    let mut awaited = in_flight.min(number);
    while !pending.is_empty() {
        for done in pending.look()? {
            let Some(room) = done.received else {
                continue;
            };
            let body = Memory::Body(Body::whole(sample.clone()));
            pending.send((asker, SAMPLE), body, false, ())?;
            if awaited < number {
                awaited += 1;
                pending.receive((asker, REQUEST), room, ())?;
            }
        }
    }
    Ok(())
}
