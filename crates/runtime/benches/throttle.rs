//! How close the emulated storage comes to the throughput asked for, with reads of 100 KB. Held to: within 2 %.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::thread;
use std::time::Instant;

use foresee_core::model::{Beyond, Curve};
use foresee_core::units::{Bytes, Seconds};
use foresee_runtime::source::Throttle;

const READ_BYTES: u64 = 100_000;
const SECONDS: f64 = 2.0;

fn main() {
    for (threads, mb_per_s) in [
        (1_u32, 50.0),
        (1, 1000.0),
        (4, 50.0),
        (4, 1000.0),
        (16, 1000.0),
    ] {
        let curve = Curve::new(vec![(1, mb_per_s)], Beyond::Clamp).expect("a curve");
        let throttle =
            Throttle::open("bench-throttle", curve, Seconds(0.0)).expect("an emulated storage");
        let reads = (mb_per_s * 1e6 * SECONDS / READ_BYTES as f64) as u32 / threads;
        let started = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    (0..reads).for_each(|_| throttle.charge(Bytes(READ_BYTES)).expect("a read"));
                });
            }
        });
        let got =
            f64::from(reads * threads) * READ_BYTES as f64 / 1e6 / started.elapsed().as_secs_f64();
        println!(
            "throttle/{threads} threads: {got:.1} of {mb_per_s} MB/s, {:+.2} %",
            (got / mb_per_s - 1.0) * 100.0
        );
    }
}
