//! What the policy `foresee` promises: the source minimum to the sample, and less traffic than frequency placement.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use foresee_core::bound;
use foresee_core::held::Held;
use foresee_core::policy::by_name;
use foresee_sim::job::Job;
use foresee_sim::outcome::Outcome;
use foresee_sim::scenario::{Scenario, Template};
use foresee_sim::{compare, simulate};
use proptest::prelude::*;

/// A job on ranks with one size of tiers, capacities in MB.
#[derive(Clone, Debug)]
struct Case {
    ranks: u32,
    ranks_per_host: u32,
    batch: u32,
    epochs: u32,
    samples: u32,
    seed: u32,
    size_mb: String,
    assignment: &'static str,
    contention: &'static str,
    shuffle: &'static str,
    staging_mb: u32,
    tiers_mb: Vec<f64>,
}

impl Case {
    fn new(ranks: u32, samples: u32, epochs: u32, size_mb: &str, tiers_mb: &[f64]) -> Self {
        Self {
            ranks,
            ranks_per_host: 1,
            batch: ranks * 8,
            epochs,
            samples,
            seed: 5,
            size_mb: size_mb.to_owned(),
            assignment: "order",
            contention: "ranks",
            shuffle: "feistel",
            staging_mb: 16,
            tiers_mb: tiers_mb.to_vec(),
        }
    }

    fn job(&self) -> Job {
        let Self {
            ranks,
            ranks_per_host,
            batch,
            epochs,
            samples,
            seed,
            size_mb,
            ..
        } = self;
        let Self {
            assignment,
            contention,
            shuffle,
            staging_mb,
            ..
        } = self;
        let batch = batch.min(samples);
        let tier = |(index, capacity): (usize, &f64)| {
            let rate = 20_000 >> (4 * index);
            format!(
                "[[system.tier]]\nname = \"t{index}\"\ncapacity_mb = {capacity:?}\nthreads = 1\n\
                 read_mb_per_s = {{ 1 = {rate} }}\n"
            )
        };
        let tiers: String = self.tiers_mb.iter().enumerate().map(tier).collect();
        let text = format!(
            "name = \"case\"\n[job]\nranks = {ranks}\nranks_per_host = {ranks_per_host}\nglobal_batch = {batch}\n\
             epochs = {epochs}\nseed = {seed}\nshuffle = \"{shuffle}\"\nassignment = \"{assignment}\"\n\
             compute_mb_per_s = 100\npreprocess_mb_per_s = 200\n[dataset]\nsamples = {samples}\nsize_mb = {size_mb}\n\
             [system]\nnetwork_mb_per_s = 10000\nsource_link_mb_per_s = 500\n\
             source_read_mb_per_s = {{ 1 = 66, 4 = 146 }}\ncontention = \"{contention}\"\n[[system.tier]]\n\
             name = \"staging\"\ncapacity_mb = {staging_mb}\nthreads = 2\nread_mb_per_s = {{ 2 = 20000 }}\n{tiers}"
        );
        let template = Template::parse(Path::new("case.toml"), &text).unwrap();
        Job::new(&template.with(&[]).unwrap()).unwrap()
    }

    fn run(&self, policy: &str) -> Outcome {
        simulate(&self.job(), by_name(policy).unwrap(), |_| ())
    }
}

fn outside(outcome: &Outcome) -> u64 {
    ["source", "peer", "host_peer"]
        .iter()
        .map(|origin| outcome.bytes[*origin])
        .sum()
}

fn case() -> impl Strategy<Value = Case> {
    let choice = |a: &'static str, b: &'static str| prop_oneof![Just(a), Just(b)];
    let job = (1u32..5, 1u32..4, 1u32..40, 1u32..6, 1u32..150, any::<u16>());
    let kinds = (
        choice("order", "local"),
        choice("ranks", "reads"),
        choice("feistel", "torch"),
    );
    // Whole samples of 2 MB: any K from nothing to several times S.
    let system = (
        1u32..200,
        prop::collection::vec((0u32..100).prop_map(|samples| f64::from(samples * 2)), 0..3),
    );
    (job, kinds, system).prop_map(
        |(job, (assignment, contention, shuffle), (staging_mb, tiers_mb))| {
            let (hosts, ranks_per_host, batch, epochs, samples, seed) = job;
            Case {
                ranks: hosts * ranks_per_host,
                ranks_per_host,
                batch,
                epochs,
                samples,
                seed: u32::from(seed),
                size_mb: "{ fixed = 2.0 }".to_owned(),
                assignment,
                contention,
                shuffle,
                staging_mb,
                tiers_mb,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn reads_the_source_minimum_to_the_sample(case in case()) {
        let job = case.job();
        let comparison = compare(&job, &[by_name("foresee").unwrap()], |_, _| ());
        let outcome = &comparison.results[0];
        prop_assert_eq!(outcome.bytes["source"], comparison.source_minimum_bytes);
        prop_assert_eq!(outcome.reads["source"] * 2_000_000, comparison.source_minimum_bytes);
        let staged: u64 = outcome.reads.values().sum();
        prop_assert!(staged >= job.accesses());
    }
}

#[test]
fn reads_at_most_one_per_cent_more_when_sizes_vary() {
    for (ranks, samples, epochs) in [(4, 2000, 10), (16, 8000, 30), (3, 500, 50)] {
        for share in [0.1, 0.5, 0.9, 0.95, 1.02, 1.1, 2.0] {
            // S is about 2 MB a sample; two tiers, the second twice the first.
            let per_rank = share * 2.0 * f64::from(samples) / f64::from(ranks);
            let tiers = [per_rank / 3.0, per_rank * 2.0 / 3.0];
            let case = Case::new(
                ranks,
                samples,
                epochs,
                "{ mean = 2.0, stddev = 0.5 }",
                &tiers,
            );
            let comparison = compare(&case.job(), &[by_name("foresee").unwrap()], |_, _| ());
            let ratio = comparison.results[0].bytes["source"] as f64
                / comparison.source_minimum_bytes as f64;
            assert!(
                (1.0..=1.01).contains(&ratio),
                "{ranks} ranks, K = {share} S: {ratio}"
            );
        }
    }
}

#[test]
fn fills_small_tiers_with_samples_of_nearly_one_size() {
    for ranks in [5, 10, 20] {
        let case = Case::new(
            ranks,
            34 * ranks,
            7,
            "{ mean = 1.0, stddev = 0.05 }",
            &[30.9],
        );
        let comparison = compare(&case.job(), &[by_name("foresee").unwrap()], |_, _| ());
        let ratio =
            comparison.results[0].bytes["source"] as f64 / comparison.source_minimum_bytes as f64;
        assert!((1.0..=1.01).contains(&ratio), "{ranks} ranks: {ratio}");
    }
}

#[test]
fn threads_of_a_tier_help_to_stage_unless_it_is_switched_off() {
    for contention in ["ranks", "reads"] {
        let seconds = |tiers_mb: &[f64]| {
            // A buffer for several reads at once, and a source that is slower than the trainers.
            let mut case = Case::new(2, 400, 2, "{ fixed = 1.0 }", tiers_mb);
            case.contention = contention;
            case.run("foresee").total_s.unwrap()
        };
        let without = seconds(&[]);
        let switched_off = seconds(&[0.0, 0.0]);
        let one_sample = seconds(&[1.0, 1.0]);
        assert!((switched_off / without - 1.0).abs() < 1e-9, "{contention}");
        assert!(
            one_sample < 0.9 * without,
            "{contention}: {one_sample} s, {without} s without tiers"
        );
    }
}

#[test]
fn moves_a_sixth_less_than_frequency_placement_at_twice_the_room() {
    // 16 ranks, K = 2 S, 45 epochs.
    let case = Case::new(16, 16_000, 45, "{ fixed = 1.0 }", &[2000.0]);
    let ours = outside(&case.run("foresee")) as f64;
    let theirs = outside(&case.run("nopfs")) as f64;
    assert!(ours <= 0.85 * theirs, "{:.3} of nopfs", ours / theirs);
}

#[test]
fn never_moves_more_than_frequency_placement_when_all_fits() {
    for (ranks, samples) in [(2, 2000), (4, 2000), (8, 4000), (32, 8000)] {
        for room in [1.05, 1.25, 1.5, 2.0, 3.0] {
            for epochs in [5, 20] {
                let per_rank = (room * f64::from(samples) / f64::from(ranks)).ceil();
                let case = Case::new(ranks, samples, epochs, "{ fixed = 1.0 }", &[per_rank]);
                let ours = outside(&case.run("foresee")) as f64;
                let theirs = outside(&case.run("nopfs")) as f64;
                assert!(
                    ours <= 1.02 * theirs,
                    "{ranks} ranks, K = {room} S, {epochs} epochs: {:.3}",
                    ours / theirs
                );
            }
        }
    }
}

#[test]
fn local_batches_leave_only_the_balance_to_peers() {
    for (local_batch, published) in [(32, 6.9), (64, 4.8), (128, 3.4)] {
        let samples = 16 * 128 * 20;
        let mut case = Case::new(
            16,
            samples,
            11,
            "{ fixed = 1.0 }",
            &[f64::from(samples / 16)],
        );
        case.batch = 16 * local_batch;
        case.assignment = "local";
        let outcome = case.run("foresee");
        // Epoch 0 fills; the ten others move what balances the batches.
        let share = 100.0 * outcome.bytes["peer"] as f64 / (10.0 * f64::from(samples) * 1e6);
        assert!(
            (share - published).abs() <= 0.5,
            "{local_batch} a rank: {share:.2} %, published {published} %"
        );
    }
}

#[test]
fn takes_no_longer_and_moves_no_more_than_frequency_placement_in_the_shipped_scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    for name in ["hdmlp-s1", "hdmlp-s2", "hdmlp-s3", "cosmoflow-512"] {
        let scenario = Scenario::load(&folder.join(format!("{name}.toml")), &[]).unwrap();
        let job = Job::new(&scenario).unwrap();
        let run = |policy: &str| simulate(&job, by_name(policy).unwrap(), |_| ());
        let ours = run("foresee");
        let theirs = run("nopfs");
        let ours_s = ours.total_s.unwrap();
        let theirs_s = theirs.total_s.unwrap();
        assert!(
            ours_s <= 1.01 * theirs_s,
            "{name}: {ours_s} s against {theirs_s} s"
        );
        if name != "cosmoflow-512" {
            let ours = outside(&ours) as f64;
            let theirs = outside(&theirs) as f64;
            assert!(
                ours <= 1.02 * theirs,
                "{name}, K > S: {:.3} of nopfs",
                ours / theirs
            );
        }
    }
}

/// What the tiers of all ranks hold when a job is done, as the next one finds it.
fn held_after(job: &Job) -> Held {
    let part = by_name("foresee")
        .unwrap()
        .plan(&job.brief)
        .unwrap()
        .remove(0);
    let homes = part.homes().unwrap();
    let copies = job.brief.catalog.samples().filter_map(|sample| {
        let home = homes.get(sample)?;
        Some(Held::by_rank(home.rank, &[(sample, home.tier)]))
    });
    Held::merged(&copies.collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_warm_restart_reads_what_no_tier_holds_and_nothing_else(case in case(), seed: u16) {
        let held = held_after(&case.job());
        // Another order, so that favourites are others.
        let next = Case { seed: u32::from(seed), ..case };
        let mut job = next.job();
        job.brief.held = held;
        let outcome = simulate(&job, by_name("foresee").unwrap(), |_| ());
        let total = job.brief.catalog.total().0;
        let carried = bound::carried(&job.brief).0.min(total);
        prop_assert_eq!(outcome.bytes["source"], (total - carried) * u64::from(next.epochs));
    }
}
