//! What threads share, under many schedules: shuttle runs a test again and again, each time with another order in which
//! threads take their steps, and fails where one of them ends badly: an assertion, or threads that all wait for each other.
//!
//! The tests here are of the parts that only this crate can name; those of whole jobs are in `tests/schedules.rs`.
//! `tools/planted` has bugs that they must find.

#[cfg(test)]
mod arena;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod host;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod transport;

pub use shuttle::{sync, thread};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Schedules of each kind. Both are drawn from the same seed on each run, so that a test that passed passes again.
const RANDOM: usize = 5_000;
const FEW_PREEMPTIONS: usize = 5_000;
const SEED: u64 = 0x0f0_2e5ee;

/// Preemptions of a schedule that has few: most bugs need no more than two or three at the right places, which drawing
/// each step on its own finds only in small tests.
const PREEMPTIONS: usize = 3;

/// Bytes of a thread's stack: mapped, but only touched where they are used.
const STACK_BYTES: usize = 256 << 10;

/// Runs a test under many schedules.
pub fn explore(test: impl Fn() + Send + Sync + Copy + 'static) {
    run(RandomScheduler::new_from_seed(SEED, RANDOM), test);
    let few = PctScheduler::new_from_seed(SEED, PREEMPTIONS, FEW_PREEMPTIONS);
    run(few, test);
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    // Atomics are taken as sequentially consistent: what weaker orders allow is not looked for here.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(test);
}
