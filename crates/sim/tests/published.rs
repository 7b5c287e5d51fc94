//! The published results of HDMLP's simulator, cell by cell, and claims of the papers that need a simulated run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use foresee_core::model::yang_cong::{Cache, Epoch};
use foresee_core::policy::{POLICIES, by_name};
use foresee_sim::job::Job;
use foresee_sim::outcome::Comparison;
use foresee_sim::scenario::{Scenario, Set};
use foresee_sim::{compare, sequential};

const SCENARIOS: [&str; 3] = ["hdmlp-s1", "hdmlp-s2", "hdmlp-s3"];

/// Seconds, by scenario; `None` where the policy cannot run.
const PUBLISHED: [(&str, [Option<f64>; 3]); 10] = [
    ("perfect", [Some(7.30), Some(3825.66), Some(7655.25)]),
    ("naive", [Some(27.78), Some(15130.54), Some(30272.96)]),
    ("nopfs", [Some(7.78), Some(3836.12), Some(7661.26)]),
    (
        "staging-buffer",
        [Some(10.24), Some(4982.27), Some(9945.29)],
    ),
    (
        "deepio-ordered",
        [Some(8.41), Some(4433.27), Some(23948.24)],
    ),
    (
        "deepio-opportunistic",
        [Some(8.40), Some(4432.90), Some(8487.42)],
    ),
    (
        "parallel-staging",
        [Some(10.11), Some(4972.65), Some(9313.58)],
    ),
    ("lbann-dynamic", [Some(7.71), Some(4051.12), None]),
    ("lbann-preload", [Some(8.41), Some(4433.27), None]),
    ("locality-aware", [Some(8.41), Some(4433.27), Some(9314.33)]),
];

fn job(name: &str, sets: &[&str]) -> Job {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scenarios")
        .join(format!("{name}.toml"));
    let sets: Vec<Set> = sets.iter().map(|set| set.parse().unwrap()).collect();
    Job::new(&Scenario::load(&path, &sets).unwrap()).unwrap()
}

fn total_s(comparison: &Comparison, policy: &str) -> Option<f64> {
    comparison
        .results
        .iter()
        .find(|outcome| outcome.policy == policy)
        .unwrap()
        .total_s
}

fn policy_s(job: &Job, policy: &str) -> f64 {
    sequential::run(job, by_name(policy).unwrap(), |_| ())
        .total_s
        .unwrap()
}

#[test]
fn reproduces_the_published_table() {
    let comparisons = SCENARIOS.map(|name| compare(&job(name, &[]), &POLICIES, |_, _| ()));
    let mut within_2 = 0;
    let mut within_6 = 0;
    let mut supported = 0;
    for (policy, published) in PUBLISHED {
        for (comparison, published) in comparisons.iter().zip(published) {
            let Some(published) = published else {
                assert_eq!(
                    total_s(comparison, policy),
                    None,
                    "{policy} cannot run {}",
                    comparison.scenario
                );
                continue;
            };
            let off = total_s(comparison, policy).unwrap() / published - 1.0;
            supported += 1;
            within_2 += usize::from(off.abs() <= 0.02);
            within_6 += usize::from(off.abs() <= 0.06);
            println!("{policy} {}: {:+.2} %", comparison.scenario, off * 100.0);
        }
    }
    assert_eq!(supported, 28);
    // The aim was 21 and 24; this is what is reached, so that no change loses it unseen.
    assert!(within_2 >= 27, "{within_2} cells within 2 %");
    assert_eq!(within_6, 28, "cells within 6 %");
    for (index, comparison) in comparisons.iter().enumerate() {
        published_order_holds(comparison, index);
    }
}

/// Policies that are published as more than 2 % apart are in that order here.
fn published_order_holds(comparison: &Comparison, index: usize) {
    for (faster, a) in PUBLISHED {
        for (slower, b) in PUBLISHED {
            if let (Some(a), Some(b)) = (a[index], b[index])
                && a * 1.02 < b
            {
                let fast = total_s(comparison, faster);
                let slow = total_s(comparison, slower);
                assert!(
                    fast < slow,
                    "{}: {faster} {fast:?} before {slower} {slow:?}",
                    comparison.scenario
                );
            }
        }
    }
}

#[test]
fn the_staging_buffer_alone_takes_2_76_hours_whatever_its_size() {
    for capacity in [1024, 2048, 4096] {
        let staging = format!("system.tier.0.capacity_mb={capacity}");
        let sets = [
            staging.as_str(),
            "system.tier.1.capacity_mb=0",
            "system.tier.2.capacity_mb=0",
        ];
        let hours = policy_s(&job("hdmlp-s3", &sets), "nopfs") / 3600.0;
        assert!((hours - 2.76).abs() < 0.03, "{capacity} MB: {hours:.3} h");
    }
}

#[test]
fn eighty_gigabytes_of_slow_storage_are_as_good_as_forty_of_memory() {
    // Figure 8 of HDMLP: S3, a staging buffer of 4 GB, and storage of 100 MB/s for two threads.
    let hours = |policy: &str, memory: u32, slow: u32| {
        let memory = memory * 1024;
        let slow = slow * 1024;
        let sets = [
            "system.tier.0.capacity_mb=4096".to_owned(),
            format!("system.tier.1.capacity_mb={memory}"),
            format!("system.tier.2.capacity_mb={slow}"),
            "system.tier.2.read_mb_per_s={2=100}".to_owned(),
            "system.tier.2.write_mb_per_s={2=100}".to_owned(),
        ];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        policy_s(&job("hdmlp-s3", &sets), policy) / 3600.0
    };
    for policy in ["nopfs", "foresee"] {
        let none = hours(policy, 0, 0);
        let memory = hours(policy, 40, 0);
        let slow = hours(policy, 0, 80);
        assert!(
            (none - 2.76).abs() < 0.03,
            "{policy} without tiers: {none:.3} h"
        );
        assert!(
            (slow / memory - 1.0).abs() < 0.05,
            "{policy}: {slow:.3} h against {memory:.3} h"
        );
        assert!(
            memory < 0.95 * none,
            "{policy}: {memory:.3} h, and {none:.3} h without"
        );
    }
}

#[test]
fn locality_aware_loading_saves_what_the_closed_form_says() {
    // One reader thread, no preprocessing or training to speak of: what is left is the I/O of equations 7 and 8.
    let sets = [
        "job.compute_mb_per_s=1e9",
        "job.preprocess_mb_per_s=1e9",
        "dataset.size_mb={fixed=1.0}",
        "dataset.samples=20000",
        "system.network_mb_per_s=50",
        "system.tier.0.threads=1",
        "system.tier.0.read_mb_per_s={1=1e9}",
        "system.tier.1.read_mb_per_s={2=1e9}",
        "job.epochs=3",
    ];
    let job = job("hdmlp-s2", &sets);
    let epoch_s = |policy: &str| {
        let outcome = sequential::run(&job, by_name(policy).unwrap(), |_| ());
        (outcome.total_s.unwrap() - outcome.startup_s.unwrap()) / 3.0
    };
    let epoch = Epoch {
        samples: 20_000.0,
        hosts: 4.0,
        train_rate: 1e9,
        source_rate: 146.0,
        preprocess_rate: 1e9,
    };
    // All cached; four ranks fetch side by side at 50 MB/s each.
    let cache = Cache {
        share: 1.0,
        rate: 200.0,
    };
    let distributed = epoch_s("distributed-cache");
    let local = epoch_s("locality-aware");
    let expected = epoch.distributed_cache_s(cache);
    assert!(
        (distributed / expected - 1.0).abs() < 0.05,
        "{distributed} against {expected}"
    );
    // 25 samples a rank: about 6 % of a batch moves, and the staging buffer evens out who has to fetch.
    let expected = epoch.locality_aware_s(cache, 0.062);
    assert!(
        (local / expected - 1.0).abs() < 0.25,
        "{local} against {expected}"
    );
}
