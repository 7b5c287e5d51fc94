//! A look at a host's threads: 8 ranks, 64 threads of which decoding gives some away, as before every step of a job.
//! The aim is 50 us.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use foresee_core::threads::balance::Ahead;
use foresee_core::threads::{Balance, Demand, Division, Rule, Terms};
use foresee_core::units::Seconds;

const RANKS: u32 = 8;

/// What ranks have before them: different from step to step, too much for all threads.
fn demands(step: u64) -> impl Fn(Division) -> Vec<Demand> {
    move |division| {
        let of_rank = |rank: u32| {
            let part = (step * 31 + u64::from(rank) * 17) % 23;
            Demand {
                work: Seconds(4.0 + 0.5 * part as f64),
                decode: Seconds(1.6 / f64::from(division.decoding.max(1))),
                queued: 8 + part as u32,
                least: 1,
                most: 64,
            }
        };
        (0..RANKS).map(of_rank).collect()
    }
}

fn looks(criterion: &mut Criterion) {
    for (name, rule) in [("lobster", Rule::Lobster), ("foresee", Rule::Foresee)] {
        for peak in [0, 16] {
            let ahead = Ahead {
                threads: 64,
                decoding_peak: peak,
                train: Seconds(0.5),
            };
            let terms = Terms {
                every: 1,
                gain: 0.0,
                rule,
            };
            let mut balance = Balance::new(terms);
            let mut step = 0;
            criterion.bench_function(
                &format!("{name}, 8 ranks, 64 threads, {peak} decode"),
                |bench| {
                    bench.iter(|| {
                        step += 1;
                        balance
                            .look(black_box(step), ahead, demands(step))
                            .is_some()
                    });
                },
            );
        }
    }
}

criterion_group!(benches, looks);
criterion_main!(benches);
