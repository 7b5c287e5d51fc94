//! Hosts with several ranks: threads that go to the rank that would be late, and copies that go by when they are used again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/balanced_hosts/cases.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod cases;

use std::path::Path;

use cases::{BOTH, Case, EVICTION_ONLY, FORESEE, NEITHER, STAGING_ALONE, Source};
use foresee_core::policy::{self, by_name};
use foresee_sim::job::{Balancing, Job};
use foresee_sim::outcome::Outcome;
use foresee_sim::predict::run_detailed;
use foresee_sim::scenario::Template;
use foresee_sim::simulate;

/// Enough steps, in a second or two.
const SAMPLES: u32 = 12_800;

const ONE_HOST: [Case; 2] = [
    Case {
        hosts: 1,
        source: Source::Bounded,
    },
    Case {
        hosts: 1,
        source: Source::Growing,
    },
];

fn source_bytes(outcome: &Outcome) -> u64 {
    outcome.bytes["source"]
}

#[test]
fn lobster_is_balanced_better_than_nopfs_and_foresee_takes_no_longer() {
    for case in ONE_HOST {
        let [alone, nopfs, lobster, foresee] =
            [STAGING_ALONE, NEITHER, BOTH, FORESEE].map(|of| case.run(SAMPLES, of).unwrap());
        let job = case.job(SAMPLES, "policy").unwrap();
        let bound = simulate(&job, policy::lower_bound(), |_| ())
            .total_s
            .unwrap();
        assert!(alone.total_s.unwrap() >= 1.5 * bound, "{case:?}");
        assert!(
            lobster.imbalanced_steps < nopfs.imbalanced_steps,
            "{case:?}"
        );
        assert!(lobster.hit_ratio > nopfs.hit_ratio, "{case:?}");
        assert!(source_bytes(&lobster) <= source_bytes(&nopfs), "{case:?}");
        let ratio = foresee.total_s.unwrap() / lobster.total_s.unwrap();
        assert!(ratio <= 1.01, "{case:?}: {ratio}");
    }
}

#[test]
fn threads_that_move_make_fewer_steps_imbalanced_and_none_longer() {
    let case = ONE_HOST[0];
    let [fixed, moved] = [EVICTION_ONLY, BOTH].map(|of| case.run(SAMPLES, of).unwrap());
    assert!(moved.imbalanced_steps < fixed.imbalanced_steps);
    assert!(moved.total_s < fixed.total_s);
}

#[test]
fn a_run_is_done_again_by_its_plan_of_threads() {
    let case = ONE_HOST[0];
    let mut job = case.job(SAMPLES, "policy").unwrap();
    let policy = by_name("foresee").unwrap();
    let made = run_detailed(&job, policy, |_| ());
    assert!(made.threads[0].changes().len() > 1, "threads were moved");
    let all = 8 * 4;
    for (step, allotted) in made.threads[0].changes() {
        let given: u32 = allotted.loading.iter().sum();
        assert!(given <= all && allotted.loading.len() == 8, "step {step}");
    }
    let read_back = made
        .threads
        .iter()
        .map(|plan| plan.to_string().parse().unwrap());
    job.balance = Balancing::Replay(read_back.collect());
    let again = run_detailed(&job, policy, |_| ());
    assert_eq!(again.threads, made.threads);
    assert_eq!(again.outcome, made.outcome);
}

#[test]
fn ranks_with_a_host_of_their_own_have_their_own_threads() {
    let case = Case {
        hosts: 1,
        source: Source::Bounded,
    };
    let mut job = case.job(SAMPLES, "policy").unwrap();
    job.brief.hosts = foresee_core::model::Hosts::new(8, 1);
    let run = run_detailed(&job, by_name("foresee").unwrap(), |_| ());
    assert!(run.threads.is_empty());
}

/// Three ranks whose threads decode slowly what a fast source gives them.
const DECODING: &str = r#"name = "decoding"
[job]
ranks = 3
ranks_per_host = 3
global_batch = 96
epochs = 3
compute_mb_per_s = 100
preprocess_mb_per_s = 25
[dataset]
samples = 4800
size_mb = { mean = 0.1077, stddev = 0.1 }
[system]
network_mb_per_s = 2000
source_link_mb_per_s = 2000
source_read_mb_per_s = { 1 = 500, 8 = 4000 }
[[system.tier]]
name = "staging"
capacity_mb = 16
threads = 2
read_mb_per_s = { 2 = 21164 }
[[system.tier]]
name = "memory"
capacity_mb = 100
scope = "host"
threads = 1
read_mb_per_s = { 1 = 10000 }
"#;

#[test]
fn where_decoding_is_the_bottleneck_no_fixed_split_is_much_better() {
    let template = Template::parse(Path::new("decoding.toml"), DECODING).unwrap();
    let mut job = Job::new(&template.with(&[]).unwrap()).unwrap();
    let policy = by_name("foresee").unwrap();
    let balanced = run_detailed(&job, policy, |_| ()).outcome.total_s.unwrap();
    let mut best = f64::INFINITY;
    for (first, second) in
        (1..=7).flat_map(|first| (1..=8 - first).map(move |second| (first, second)))
    {
        let text = format!(
            "step 0: {first} {second} {}, decoding 0",
            9 - first - second
        );
        job.balance = Balancing::Replay(vec![text.parse().unwrap()]);
        let fixed = run_detailed(&job, policy, |_| ()).outcome.total_s.unwrap();
        best = best.min(fixed);
    }
    assert!(best / balanced >= 0.98, "{best} {balanced}");
}
