//! Prints the table of docs/policies.md on hosts with several ranks: threads that go to the rank that would be late, and
//! copies that go by when they are used again, each alone and both. `cargo run --release -p foresee-sim --example
//! balanced_hosts [-- SAMPLES]`.

mod cases;

use std::error::Error;

use cases::{
    BOTH, Case, EVICTION_ONLY, FORESEE, FORESEE_FIXED, NEITHER, STAGING_ALONE, Source,
    THREADS_ONLY, Try,
};
use foresee_core::bound;
use foresee_core::policy;
use foresee_sim::outcome::Outcome;
use foresee_sim::simulate;

const TRIES: [Try; 7] = [
    STAGING_ALONE,
    NEITHER,
    THREADS_ONLY,
    EVICTION_ONLY,
    BOTH,
    FORESEE_FIXED,
    FORESEE,
];

fn main() -> Result<(), Box<dyn Error>> {
    let samples = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 128_000,
    };
    for hosts in [1, 4] {
        for source in [Source::Bounded, Source::Growing, Source::Distant] {
            print_table(Case { hosts, source }, samples)?;
        }
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the example's output")]
fn print_table(case: Case, samples: u32) -> Result<(), Box<dyn Error>> {
    let job = case.job(samples, "policy")?;
    let lower = simulate(&job, policy::lower_bound(), |_| ());
    let lower_s = lower.total_s.unwrap_or(f64::NAN);
    let minimum = bound::source_minimum(&job.brief).0;
    println!("{case:?}: the bound is {lower_s:.1} s\n");
    println!(
        "| | time / bound | imbalanced steps | hit ratio | source bytes / minimum | p95 / p50 of a step |"
    );
    println!("|---|---|---|---|---|---|");
    for of in TRIES {
        let outcome = case.run(samples, of)?;
        println!("{}", row(of.name, &outcome, lower_s, minimum));
    }
    println!();
    Ok(())
}

fn row(name: &str, outcome: &Outcome, lower_s: f64, minimum: u64) -> String {
    let part = |value: Option<f64>| 100.0 * value.unwrap_or(f64::NAN);
    let time = outcome.total_s.unwrap_or(f64::NAN) / lower_s;
    let source = outcome.bytes["source"] as f64 / minimum as f64;
    let spread = outcome.steps_s["p95"] / outcome.steps_s["p50"];
    format!(
        "| {name} | {time:.3} | {:.1} % | {:.1} % | {source:.3} | {spread:.2} |",
        part(outcome.imbalanced_steps),
        part(outcome.hit_ratio),
    )
}
