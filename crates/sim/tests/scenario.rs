//! The scenario format as its users meet it: what a file says, what an override changes, and what each mistake is
//! answered with, to the letter.

use std::path::{Path, PathBuf};

use foresee_config::InputError;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use foresee_sim::scenario::{
    AssignmentKind, BalanceKind, ContentionKind, DatasetSpec, ExtrapolateKind, JobSpec, Preprocess,
    Scenario, ScopeKind, Set, ShuffleKind, SizeSpec, SystemSpec, Template, TierSpec,
};
use proptest::prelude::*;
use proptest::sample::Index;

const VALID: &str = r#"name = "small"

[job]
ranks = 4
ranks_per_host = 2
global_batch = 100
epochs = 10
drop_last = true
seed = 1
shuffle = "torch"
assignment = "local"
balance = "off"
decoded_mb_per_mb = 6.5
compute_mb_per_s = 100
preprocess_mb_per_s = { 2 = 350, 1 = 200 }

[dataset]
samples = 1000
size_mb = { mean = 1.0, stddev = 0.1 }

[system]
network_mb_per_s = 10_000
source_link_mb_per_s = 2e3
source_read_mb_per_s = { 1 = 66, 10 = 300, 2 = 86.5 }
source_latency_ms = 1.5
contention = "ranks"
extrapolate = "clamp"
cores_per_host = 16

[[system.tier]]
name = "staging"
capacity_mb = 1024
scope = "rank"
threads = 2
read_mb_per_s = { 2 = 21164 }

[[system.tier]]
name = "ssd"
capacity_mb = 0
scope = "host"
threads = 4
read_mb_per_s = { 2 = 86 }
write_mb_per_s = { 2 = 40 }
"#;

fn sets(texts: &[&str]) -> Result<Vec<Set>, InputError> {
    texts.iter().map(|text| text.parse()).collect()
}

fn read(text: &str, overrides: &[&str]) -> Result<Scenario, InputError> {
    Template::parse(Path::new("dir/x.toml"), text)?.with(&sets(overrides)?)
}

/// The line that the mistake is answered with.
fn line(result: Result<Scenario, InputError>) -> String {
    result.expect_err("a mistake is an error").to_string()
}

/// The valid file with one piece replaced.
fn changed(from: &str, to: &str) -> String {
    assert_eq!(
        VALID.matches(from).count(),
        1,
        "{from:?} must name one place"
    );
    VALID.replace(from, to)
}

fn assert_lines(cases: &[(&str, &str, &str)]) {
    for (from, to, expected) in cases {
        assert_eq!(
            line(read(&changed(from, to), &[])),
            format!("dir/x.toml{expected}"),
            "for {to:?}"
        );
    }
}

fn assert_set_lines(cases: &[(&[&str], &str)]) {
    for (overrides, expected) in cases {
        assert_eq!(
            line(read(VALID, overrides)),
            format!("--set {expected}"),
            "for {overrides:?}"
        );
    }
}

#[test]
fn a_file_says_every_key() {
    let scenario = read(VALID, &[]).unwrap();
    let expected = Scenario {
        name: "small".to_owned(),
        job: JobSpec {
            ranks: 4,
            ranks_per_host: 2,
            global_batch: 100,
            epochs: 10,
            drop_last: true,
            seed: 1,
            shuffle: ShuffleKind::Torch,
            assignment: AssignmentKind::Local,
            balance: BalanceKind::Off,
            decoded_mb_per_mb: 6.5,
            compute_mb_per_s: 100.0,
            preprocess_mb_per_s: Preprocess::Curve(vec![(1, 200.0), (2, 350.0)]),
        },
        dataset: DatasetSpec {
            samples: 1000,
            size_mb: SizeSpec::Normal {
                mean: 1.0,
                stddev: 0.1,
            },
        },
        system: SystemSpec {
            network_mb_per_s: 10_000.0,
            source_link_mb_per_s: 2000.0,
            source_read_mb_per_s: vec![(1, 66.0), (2, 86.5), (10, 300.0)],
            source_latency_ms: 1.5,
            contention: ContentionKind::Ranks,
            extrapolate: ExtrapolateKind::Clamp,
            cores_per_host: Some(16),
            tiers: vec![
                TierSpec {
                    name: "staging".to_owned(),
                    capacity_mb: 1024.0,
                    scope: ScopeKind::Rank,
                    threads: 2,
                    read_mb_per_s: vec![(2, 21_164.0)],
                    write_mb_per_s: vec![(2, 21_164.0)],
                },
                TierSpec {
                    name: "ssd".to_owned(),
                    capacity_mb: 0.0,
                    scope: ScopeKind::Host,
                    threads: 4,
                    read_mb_per_s: vec![(2, 86.0)],
                    write_mb_per_s: vec![(2, 40.0)],
                },
            ],
        },
    };
    assert_eq!(scenario, expected);
}

#[test]
fn what_a_file_leaves_out_has_the_documented_default() {
    let optional = [
        "ranks_per_host",
        "drop_last",
        "seed",
        "shuffle",
        "contention",
        "extrapolate",
        "cores_per_host",
        "scope",
        "write_mb_per_s",
    ];
    let is_optional = |line: &&str| optional.iter().any(|key| line.starts_with(key));
    let text: Vec<_> = VALID.lines().filter(|line| !is_optional(line)).collect();
    let scenario = read(&text.join("\n"), &[]).unwrap();
    assert_eq!(scenario.job.ranks_per_host, 1);
    assert!(!scenario.job.drop_last);
    assert_eq!(scenario.job.seed, 0);
    assert_eq!(scenario.job.shuffle, ShuffleKind::Feistel);
    assert_eq!(scenario.system.contention, ContentionKind::Reads);
    assert_eq!(scenario.system.extrapolate, ExtrapolateKind::Regression);
    assert_eq!(scenario.system.cores_per_host, None);
    assert_eq!(scenario.system.tiers[1].scope, ScopeKind::Rank);
    assert_eq!(
        scenario.system.tiers[1].write_mb_per_s,
        scenario.system.tiers[1].read_mb_per_s
    );
}

#[test]
fn whole_numbers_may_be_written_with_an_exponent() {
    assert_eq!(
        read(VALID, &["dataset.samples=1e6"])
            .unwrap()
            .dataset
            .samples,
        1_000_000
    );
}

#[test]
fn unknown_keys_are_answered_with_the_right_one_or_its_place() {
    assert_lines(&[
        (
            "global_batch",
            "globl_batch",
            ": job.globl_batch: unknown key; did you mean job.global_batch?",
        ),
        (
            "[dataset]",
            "[datasets]",
            ": datasets: unknown key; did you mean dataset?",
        ),
        (
            "epochs = 10",
            "epochs = 10\nwarmup = 3",
            ": job.warmup: unknown key; the keys here are ranks, ranks_per_host, global_batch, epochs, drop_last, \
             seed, shuffle, assignment, balance, compute_mb_per_s, preprocess_mb_per_s, decoded_mb_per_mb",
        ),
        (
            "[job]",
            "[job]\ncapacity_mb = 1",
            ": job.capacity_mb: unknown key; capacity_mb belongs in [[system.tier]]",
        ),
        (
            "name = \"small\"\n\n[job]",
            "[job]\nname = \"small\"",
            r#": name: missing; add name = "imagenet-1k" at the top, before [job]"#,
        ),
        (
            "[job]",
            "[job]\nname = \"small\"",
            ": job.name: unknown key; name belongs at the top, before [job]",
        ),
        (
            "mean = 1.0",
            "means = 1.0",
            ": dataset.size_mb.means: unknown key; did you mean dataset.size_mb.mean?",
        ),
        (
            "threads = 4",
            "thread = 4",
            ": system.tier[1].thread: unknown key; did you mean system.tier[1].threads?",
        ),
        (
            "[job]",
            "[job]\n\"a\\nb\" = 1",
            ": job.\"a\\nb\": unknown key; the keys here are ranks, ranks_per_host, global_batch, epochs, drop_last, \
             seed, shuffle, assignment, balance, compute_mb_per_s, preprocess_mb_per_s, decoded_mb_per_mb",
        ),
        (
            "name = \"small\"",
            "name = \"small\"\n\"job.ranks\" = 1",
            r#": "job.ranks": unknown key; the keys here are name, job, dataset, system"#,
        ),
    ]);
}

#[test]
fn missing_keys_are_answered_with_what_to_add() {
    assert_lines(&[
        (
            "name = \"small\"",
            "",
            r#": name: missing; add name = "imagenet-1k" at the top, before [job]"#,
        ),
        (
            "epochs = 10",
            "",
            ": job.epochs: missing; add epochs = 10 in [job]",
        ),
        (
            "preprocess_mb_per_s = { 2 = 350, 1 = 200 }",
            "",
            ": job.preprocess_mb_per_s: missing; add preprocess_mb_per_s = 200 in [job]",
        ),
        (
            "samples = 1000",
            "",
            ": dataset.samples: missing; add samples = 150000 in [dataset]",
        ),
        (
            "size_mb = { mean = 1.0, stddev = 0.1 }",
            "",
            ": dataset.size_mb: missing; add size_mb = { mean = 1.0, stddev = 0.1 } in [dataset]",
        ),
        (
            ", stddev = 0.1",
            "",
            ": dataset.size_mb.stddev: missing; add stddev = 0.1 in dataset.size_mb",
        ),
        (
            "source_read_mb_per_s = { 1 = 66, 10 = 300, 2 = 86.5 }",
            "",
            ": system.source_read_mb_per_s: missing; add source_read_mb_per_s = { 1 = 66, 4 = 146 } in [system]",
        ),
        (
            "threads = 4",
            "",
            ": system.tier[1].threads: missing; add threads = 2 in [[system.tier]]",
        ),
        (
            "capacity_mb = 0\n",
            "",
            ": system.tier[1].capacity_mb: missing; add capacity_mb = 1024 in [[system.tier]]",
        ),
    ]);
    assert_eq!(
        line(read("name = \"x\"", &[])),
        "dir/x.toml: job: missing; add a section [job]"
    );
    assert_eq!(
        line(read("", &[])),
        r#"dir/x.toml: name: missing; add name = "imagenet-1k" at the top, before [job]"#
    );
    let (without_tiers, _) = VALID.split_once("[[system.tier]]").unwrap();
    assert_eq!(
        line(read(without_tiers, &[])),
        "dir/x.toml: system.tier: there is no tier; add a [[system.tier]] for the staging buffer"
    );
    assert_eq!(
        line(read(
            &without_tiers.replace("[system]", "[system]\ntier = []"),
            &[]
        )),
        "dir/x.toml: system.tier: there is no tier; add a [[system.tier]] for the staging buffer"
    );
}

#[test]
fn wrong_types_are_named_with_the_wanted_one() {
    assert_lines(&[
        (
            "name = \"small\"",
            "name = 4",
            r#": name: found a whole number (4), wanted a string; write it as in name = "imagenet-1k""#,
        ),
        (
            "ranks = 4",
            "ranks = \"four\"",
            r#": job.ranks: found a string ("four"), wanted a whole number; write it as in ranks = 4"#,
        ),
        (
            "ranks = 4",
            "ranks = [4]",
            ": job.ranks: found a list, wanted a whole number; write it as in ranks = 4",
        ),
        (
            "ranks = 4",
            "ranks = 1979-05-27",
            ": job.ranks: found a date (1979-05-27), wanted a whole number; write it as in ranks = 4",
        ),
        (
            "drop_last = true",
            "drop_last = \"yes\"",
            r#": job.drop_last: found a string ("yes"), wanted a boolean; write it as in drop_last = true"#,
        ),
        (
            "shuffle = \"torch\"",
            "shuffle = true",
            r#": job.shuffle: found a boolean (true), wanted a string; write it as in shuffle = "feistel""#,
        ),
        (
            "compute_mb_per_s = 100",
            "compute_mb_per_s = { 1 = 100 }",
            ": job.compute_mb_per_s: found a table, wanted a number; write it as in compute_mb_per_s = 100",
        ),
        (
            "preprocess_mb_per_s = { 2 = 350, 1 = 200 }",
            "preprocess_mb_per_s = false",
            ": job.preprocess_mb_per_s: found a boolean (false), wanted a number or a table of points; write it as \
             in preprocess_mb_per_s = 200",
        ),
        (
            "size_mb = { mean = 1.0, stddev = 0.1 }",
            "size_mb = 1.0",
            ": dataset.size_mb: found a number (1), wanted a table; write it as in size_mb = { mean = 1.0, stddev = \
             0.1 }",
        ),
        (
            "{ 1 = 66, 10 = 300, 2 = 86.5 }",
            "66",
            ": system.source_read_mb_per_s: found a whole number (66), wanted a table of points; write it as in \
             source_read_mb_per_s = { 1 = 66, 4 = 146 }",
        ),
        (
            "{ 1 = 66, 10 = 300, 2 = 86.5 }",
            "{ 1 = \"fast\" }",
            ": system.source_read_mb_per_s.1: found a string (\"fast\"), wanted a number; write the points as in { 1 \
             = 66, 4 = 146 }",
        ),
        (
            "{ 1 = 66, 10 = 300, 2 = 86.5 }",
            "{ 1.5 = 66 }",
            ": system.source_read_mb_per_s.1: found a table, wanted a number; write the points as in { 1 = 66, 4 = \
             146 }",
        ),
        (
            "name = \"small\"\n\n[job]",
            "name = \"small\"\njob = 3\n[jobs]",
            ": jobs: unknown key; did you mean job?",
        ),
    ]);
    assert_eq!(
        line(read("name = \"x\"\njob = 3", &[])),
        "dir/x.toml: job: found a whole number (3), wanted a table; its keys are ranks, ranks_per_host, \
         global_batch, epochs, drop_last, seed, shuffle, assignment, balance, compute_mb_per_s, preprocess_mb_per_s, decoded_mb_per_mb"
    );
    let (without_tiers, _) = VALID.split_once("[[system.tier]]").unwrap();
    assert_eq!(
        line(read(
            &format!("{without_tiers}\n[system.tier]\nname = \"ram\""),
            &[]
        )),
        "dir/x.toml: system.tier: found a table, wanted a list of tables; write it as in [[system.tier]]"
    );
    assert_eq!(
        line(read(
            &without_tiers.replace("[system]", "[system]\ntier = [1]"),
            &[]
        )),
        "dir/x.toml: system.tier[0]: found a whole number (1), wanted a table; its keys are name, capacity_mb, \
         scope, threads, read_mb_per_s, write_mb_per_s"
    );
}

const OUT_OF_BOUNDS: &[(&str, &str, &str)] = &[
    (
        "ranks = 4",
        "ranks = 0",
        ": job.ranks: 0 is too small; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks = 4",
        "ranks = -4",
        ": job.ranks: -4 is negative; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks = 4",
        "ranks = 2.5",
        ": job.ranks: 2.5 is not whole; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks = 4",
        "ranks = nan",
        ": job.ranks: nan is not finite; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks = 4",
        "ranks = 65537",
        ": job.ranks: 65537 is too big; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks = 4",
        "ranks = 1e300",
        ": job.ranks: 1e300 is too big; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        "ranks_per_host = 2",
        "ranks_per_host = 0",
        ": job.ranks_per_host: 0 is too small; give the number of ranks on one host, a whole number from 1 to \
             65536",
    ),
    (
        "global_batch = 100",
        "global_batch = 0",
        ": job.global_batch: 0 is too small; give the samples of one step, all ranks together, a whole number \
             from 1 to 4294967294",
    ),
    (
        "epochs = 10",
        "epochs = 0",
        ": job.epochs: 0 is too small; give the number of epochs, a whole number from 1 to 1000000",
    ),
    (
        "epochs = 10",
        "epochs = 1_000_001",
        ": job.epochs: 1000001 is too big; give the number of epochs, a whole number from 1 to 1000000",
    ),
    (
        "seed = 1",
        "seed = -1",
        ": job.seed: -1 is negative; give the seed, a whole number from 0 to 9223372036854775807",
    ),
    (
        "compute_mb_per_s = 100",
        "compute_mb_per_s = 0",
        ": job.compute_mb_per_s: 0 is too small; give what one rank trains in MB/s, more than 0",
    ),
    (
        "compute_mb_per_s = 100",
        "compute_mb_per_s = -0.5",
        ": job.compute_mb_per_s: -0.5 is negative; give what one rank trains in MB/s, more than 0",
    ),
    (
        "compute_mb_per_s = 100",
        "compute_mb_per_s = inf",
        ": job.compute_mb_per_s: inf is not finite; give what one rank trains in MB/s, more than 0",
    ),
    (
        "compute_mb_per_s = 100",
        "compute_mb_per_s = 1e-300",
        ": job.compute_mb_per_s: 1e-300 is too small; give what one rank trains in MB/s, at least 0.000001",
    ),
    (
        "compute_mb_per_s = 100",
        "compute_mb_per_s = 1e300",
        ": job.compute_mb_per_s: 1e300 is too big; give what one rank trains in MB/s, at most 1e12",
    ),
    (
        "{ 2 = 350, 1 = 200 }",
        "0",
        ": job.preprocess_mb_per_s: 0 is too small; give what one thread decodes in MB/s, more than 0",
    ),
    (
        "{ 2 = 350, 1 = 200 }",
        "{ 2 = 350, 1 = 0 }",
        ": job.preprocess_mb_per_s.1: 0 is too small; give the rate of all threads together in MB/s, more than 0",
    ),
    (
        "samples = 1000",
        "samples = 0",
        ": dataset.samples: 0 is too small; give the number of samples, a whole number from 1 to 4294967294",
    ),
    (
        "samples = 1000",
        "samples = 4294967295",
        ": dataset.samples: 4294967295 is too big; give the number of samples, a whole number from 1 to 4294967294",
    ),
    (
        "mean = 1.0",
        "mean = 0",
        ": dataset.size_mb.mean: 0 is too small; give the mean size in MB, more than 0",
    ),
    (
        "mean = 1.0",
        "mean = nan",
        ": dataset.size_mb.mean: nan is not finite; give the mean size in MB, more than 0",
    ),
    (
        "stddev = 0.1",
        "stddev = -0.1",
        ": dataset.size_mb.stddev: -0.1 is negative; give the standard deviation of the size in MB, 0 or more",
    ),
    (
        "stddev = 0.1",
        "stddev = inf",
        ": dataset.size_mb.stddev: inf is not finite; give the standard deviation of the size in MB, 0 or more",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "fixed = 0.0",
        ": dataset.size_mb.fixed: 0 is too small; give the size of every sample in MB, more than 0",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "fixed = 1e-7",
        ": dataset.size_mb.fixed: 1e-7 is too small; give the size of every sample in MB, at least 0.000001",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "fixed = 1e13",
        ": dataset.size_mb: 1000 samples of up to 1e13 MB are too big; keep the dataset below 1.8e13 MB",
    ),
    (
        "network_mb_per_s = 10_000",
        "network_mb_per_s = 0",
        ": system.network_mb_per_s: 0 is too small; give the rate between two ranks in MB/s, more than 0",
    ),
    (
        "source_link_mb_per_s = 2e3",
        "source_link_mb_per_s = nan",
        ": system.source_link_mb_per_s: nan is not finite; give the rate between one rank and the source in \
             MB/s, more than 0",
    ),
    (
        "10 = 300",
        "10 = -300",
        ": system.source_read_mb_per_s.10: -300 is negative; give the rate of all readers together in MB/s, more \
             than 0",
    ),
    (
        "10 = 300",
        "10 = inf",
        ": system.source_read_mb_per_s.10: inf is not finite; give the rate of all readers together in MB/s, \
             more than 0",
    ),
    (
        "cores_per_host = 16",
        "cores_per_host = 0",
        ": system.cores_per_host: 0 is too small; give the number of cores of one host, a whole number from 1 to \
             65536",
    ),
    (
        "capacity_mb = 0\n",
        "capacity_mb = -5\n",
        ": system.tier[1].capacity_mb: -5 is negative; give the capacity in MB, 0 or more",
    ),
    (
        "capacity_mb = 0\n",
        "capacity_mb = nan\n",
        ": system.tier[1].capacity_mb: nan is not finite; give the capacity in MB, 0 or more",
    ),
    (
        "capacity_mb = 0\n",
        "capacity_mb = 1e13\n",
        ": system.tier[1].capacity_mb: 1e13 is too big for the tiers of 4 ranks; keep all tiers together below \
             1.8e13 MB",
    ),
    (
        "capacity_mb = 0\n",
        "capacity_mb = 1e14\n",
        ": system.tier[1].capacity_mb: 1e14 is too big; give the capacity in MB, at most 1.8e13",
    ),
    (
        "capacity_mb = 1024",
        "capacity_mb = 0",
        ": system.tier[0].capacity_mb: 0 is too small; give the capacity in MB, more than 0 for the staging buffer",
    ),
    (
        "threads = 4",
        "threads = 0",
        ": system.tier[1].threads: 0 is too small; give the number of threads of one rank, a whole number from 1 \
             to 65536",
    ),
    (
        "threads = 4",
        "threads = 65537",
        ": system.tier[1].threads: 65537 is too big; give the number of threads of one rank, a whole number from \
             1 to 65536",
    ),
];

#[test]
fn numbers_out_of_bounds_are_answered_with_the_bounds() {
    assert_lines(OUT_OF_BOUNDS);
}

const AGAINST_THE_RULES: &[(&str, &str, &str)] = &[
    (
        "name = \"small\"",
        "name = \" \"",
        ": name: is empty; give the name of the scenario",
    ),
    (
        "global_batch = 100",
        "global_batch = 1001",
        ": job.global_batch: 1001 is more than the 1000 samples of the dataset; lower job.global_batch or raise \
             dataset.samples",
    ),
    (
        "ranks = 4",
        "ranks = 5",
        ": job.ranks: 5 ranks do not fill hosts of 2; make job.ranks a multiple of job.ranks_per_host",
    ),
    (
        "shuffle = \"torch\"",
        "shuffle = \"random\"",
        r#": job.shuffle: "random" is not known; give the shuffle as one of "feistel", "torch""#,
    ),
    (
        "contention = \"ranks\"",
        "contention = \"rank\"",
        r#": system.contention: "rank" is not known; give the contention as one of "reads", "ranks""#,
    ),
    (
        "extrapolate = \"clamp\"",
        "extrapolate = \"linear\"",
        r#": system.extrapolate: "linear" is not known; give the extrapolation as one of "regression", "clamp""#,
    ),
    (
        "scope = \"host\"",
        "scope = \"node\"",
        r#": system.tier[1].scope: "node" is not known; give the scope as one of "rank", "host", "global""#,
    ),
    (
        "scope = \"rank\"",
        "scope = \"global\"",
        ": system.tier[0].scope: the first tier is the staging buffer, one for each rank; give scope = \"rank\", \
             or put a staging buffer before this tier",
    ),
    (
        "name = \"ssd\"",
        "name = \"staging\"",
        r#": system.tier[1].name: tier 0 has the name "staging" too; give each tier its own name"#,
    ),
    (
        "name = \"ssd\"",
        "name = \"\"",
        ": system.tier[1].name: is empty; give the name of the tier",
    ),
    (
        "{ 1 = 66, 10 = 300, 2 = 86.5 }",
        "{}",
        ": system.source_read_mb_per_s: the curve has no points; give at least one point, such as { 1 = 66, 4 = \
             146 }",
    ),
    (
        "{ 2 = 350, 1 = 200 }",
        "{}",
        ": job.preprocess_mb_per_s: the curve has no points; give at least one point, such as { 1 = 200, 4 = 700 }",
    ),
    (
        "10 = 300",
        "0 = 300",
        ": system.source_read_mb_per_s.0: there is no point 0; count readers from 1 as in { 1 = 66, 4 = 146 }",
    ),
    (
        "10 = 300",
        "ten = 300",
        ": system.source_read_mb_per_s.ten: \"ten\" is not a number of readers; give whole numbers from 1 as in \
             { 1 = 66, 4 = 146 }",
    ),
    (
        "10 = 300",
        "-1 = 300",
        ": system.source_read_mb_per_s.-1: \"-1\" is not a number of readers; give whole numbers from 1 as in { \
             1 = 66, 4 = 146 }",
    ),
    (
        "10 = 300",
        "010 = 300",
        ": system.source_read_mb_per_s.010: \"010\" is not a number of readers; give whole numbers from 1 as in \
             { 1 = 66, 4 = 146 }",
    ),
    (
        "10 = 300",
        "99999999999 = 300",
        ": system.source_read_mb_per_s.99999999999: \"99999999999\" is not a number of readers; give whole \
             numbers from 1 as in { 1 = 66, 4 = 146 }",
    ),
    (
        "{ 2 = 40 }",
        "{ two = 40 }",
        ": system.tier[1].write_mb_per_s.two: \"two\" is not a number of threads; give whole numbers from 1 as \
             in { 1 = 200, 4 = 700 }",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "fixed = 1.0, file = \"sizes.txt\"",
        ": dataset.size_mb: says the sizes in two ways; give { mean = 1.0, stddev = 0.1 } or { fixed = 1.0 } or \
             { file = \"sizes.txt\" }",
    ),
    (
        "size_mb = { mean = 1.0, stddev = 0.1 }",
        "size_mb = {}",
        ": dataset.size_mb: says no size; give { mean = 1.0, stddev = 0.1 } or { fixed = 1.0 } or { file = \
             \"sizes.txt\" }",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "file = \"\"",
        ": dataset.size_mb.file: is empty; give the path of the sizes file, from the folder of the scenario",
    ),
    (
        "mean = 1.0, stddev = 0.1",
        "file = \"sizes.txt\"",
        ": dataset.size_mb.file: dir/sizes.txt: no such file; give the path from the folder of the scenario",
    ),
];

#[test]
fn rules_that_join_keys_are_explained() {
    assert_lines(AGAINST_THE_RULES);
    let (without_tiers, _) = VALID.split_once("[[system.tier]]").unwrap();
    let tier = |name| {
        format!(
            "{{ name = \"{name}\", capacity_mb = 1, threads = 1, read_mb_per_s = {{ 1 = 1 }} }}"
        )
    };
    let tiers: Vec<_> = (0..257).map(tier).collect();
    let text = without_tiers.replace(
        "[system]",
        &format!("[system]\ntier = [{}]", tiers.join(", ")),
    );
    assert_eq!(
        line(read(&text, &[])),
        "dir/x.toml: system.tier[256]: tier 256 is too many; give at most 256 tiers"
    );
}

#[test]
fn text_that_is_not_toml_is_answered_with_the_place() {
    assert_lines(&[
        (
            "ranks = 4",
            "ranks = ",
            ":4:9: not valid TOML: string values must be quoted, expected literal string",
        ),
        (
            "ranks = 4",
            "ranks = 4\nranks = 5",
            ":5:1: not valid TOML: duplicate key",
        ),
        (
            "[job]",
            "[job",
            ":3:5: not valid TOML: unclosed table, expected `]`",
        ),
        (
            "name = \"small\"",
            "name = \"sm\nall\"",
            ":2:5: not valid TOML: key with no value, expected `=`",
        ),
        (
            "seed = 1",
            "seed = 18446744073709551615",
            ":9:8: not valid TOML: the number is too big, at most 9223372036854775807",
        ),
        (
            "seed = 1",
            "seed = 99999999999999999999999999999999999999999999999999",
            ":9:8: not valid TOML: the number is too big, at most 9223372036854775807",
        ),
        (
            "seed = 1",
            "seed = 99999999999999999999",
            ":9:8: not valid TOML: the number is too big, at most 9223372036854775807",
        ),
        (
            "seed = 1",
            "\u{e9}\u{e9} = 1",
            ":9:1: not valid TOML: invalid unquoted key, expected letters, numbers, `-`, `_`",
        ),
    ]);
    let deep = format!("name = {}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(
        line(read(&deep, &[])),
        "dir/x.toml:1:88: not valid TOML: cannot recurse further; max recursion depth met"
    );
}

#[test]
fn overrides_replace_and_add_values() {
    let overrides = [
        "job.shuffle=feistel",
        "name = \"with = sign\"",
        "job.preprocess_mb_per_s=250",
        "dataset.size_mb={ fixed = 2 }",
        "system.source_read_mb_per_s.4=200",
        "system.source_read_mb_per_s.10=310",
        "system.tier.1.capacity_mb=0.5",
        "system.tier[0].threads=3",
        "system.tier.0.write_mb_per_s.3=9000",
        "job.epochs=3",
        "job.epochs=4",
    ];
    let scenario = read(VALID, &overrides).unwrap();
    assert_eq!(scenario.job.shuffle, ShuffleKind::Feistel);
    assert_eq!(scenario.name, "with = sign");
    assert_eq!(
        scenario.job.preprocess_mb_per_s,
        Preprocess::PerThread(250.0)
    );
    assert_eq!(scenario.dataset.size_mb, SizeSpec::Fixed(2.0));
    assert_eq!(
        scenario.system.source_read_mb_per_s,
        [(1, 66.0), (2, 86.5), (4, 200.0), (10, 310.0)]
    );
    assert_eq!(scenario.system.tiers[1].capacity_mb.to_string(), "0.5");
    assert_eq!(scenario.system.tiers[0].threads, 3);
    assert_eq!(scenario.system.tiers[0].write_mb_per_s, [(3, 9000.0)]);
    assert_eq!(scenario.job.epochs, 4, "the last one wins");
}

#[test]
fn an_override_can_mend_a_file() {
    let text = changed("ranks = 4", "ranks = -4");
    assert_eq!(read(&text, &["job.ranks=8"]).unwrap().job.ranks, 8);
}

#[test]
fn overrides_know_their_key_and_value() {
    let set: Set = "system.tier.1.threads = 8".parse().unwrap();
    assert_eq!(set.key(), "system.tier[1].threads");
    assert_eq!(set.value().as_integer(), Some(8));
    assert_eq!(set.to_string(), "system.tier.1.threads = 8");
}

const BAD_OVERRIDES: &[(&[&str], &str)] = &[
    (
        &["job.ranks"],
        "job.ranks: no '='; write KEY=VALUE, such as --set job.ranks=4",
    ),
    (
        &["=4"],
        "=4: the key has an empty part; write KEY=VALUE, such as --set job.ranks=4",
    ),
    (
        &["job..ranks=4"],
        "job..ranks=4: the key has an empty part; write KEY=VALUE, such as --set job.ranks=4",
    ),
    (
        &["a.b.c.d.e.f.g.h.i=1"],
        "a.b.c.d.e.f.g.h.i=1: the key has too many parts; the longest are like system.tier.1.read_mb_per_s.2",
    ),
    (
        &["job.rank=4"],
        "job.rank=4: unknown key; did you mean job.ranks?",
    ),
    (
        &["jbo.ranks=4"],
        "jbo.ranks=4: jbo: unknown key; did you mean job?",
    ),
    (&["ranks=4"], "ranks=4: unknown key; ranks belongs in [job]"),
    (
        &["tier.1.capacity_mb=0"],
        "tier.1.capacity_mb=0: tier: unknown key; tier belongs in [system]",
    ),
    (
        &["system.tier.1.capacity=0"],
        "system.tier.1.capacity=0: unknown key; did you mean system.tier[1].capacity_mb?",
    ),
    (
        &["system.tier.2.threads=1"],
        "system.tier.2.threads=1: there is no tier 2; give 0 (the staging buffer) to 1",
    ),
    (
        &["system.tier.ssd.threads=1"],
        "system.tier.ssd.threads=1: there is no tier ssd; give 0 (the staging buffer) to 1",
    ),
    (
        &["system.tier[-1].threads=1"],
        "system.tier[-1].threads=1: there is no tier -1; give 0 (the staging buffer) to 1",
    ),
    (
        &["job.ranks.x=4"],
        "job.ranks.x=4: job.ranks is a whole number (4) and has no keys; set job.ranks itself",
    ),
    (
        &["job.ranks=four"],
        r#"job.ranks=four: found a string ("four"), wanted a whole number; write it as in ranks = 4"#,
    ),
    (
        &["job.ranks="],
        r#"job.ranks=: found a string (""), wanted a whole number; write it as in ranks = 4"#,
    ),
    (
        &["job.ranks=0"],
        "job.ranks=0: 0 is too small; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        &["job.ranks=99999999999999999999"],
        "job.ranks=99999999999999999999: 1e20 is too big; give the number of ranks, a whole number from 1 to 65536",
    ),
    (
        &["job.compute_mb_per_s=100MB"],
        "job.compute_mb_per_s=100MB: found a string (\"100MB\"), wanted a number; write it as in \
             compute_mb_per_s = 100",
    ),
    (
        &["job.compute_mb_per_s=nan"],
        "job.compute_mb_per_s=nan: nan is not finite; give what one rank trains in MB/s, more than 0",
    ),
    (
        &["system.tier.1.capacity_mb=-5"],
        "system.tier.1.capacity_mb=-5: -5 is negative; give the capacity in MB, 0 or more",
    ),
    (
        &["system.tier.0.scope=host"],
        "system.tier.0.scope=host: the first tier is the staging buffer, one for each rank; give scope = \
             \"rank\", or put a staging buffer before this tier",
    ),
    (
        &["system.tier=[]"],
        "system.tier=[]: there is no tier; add a [[system.tier]] for the staging buffer",
    ),
    (
        &["system.source_read_mb_per_s.0=5"],
        "system.source_read_mb_per_s.0=5: there is no point 0; count readers from 1 as in { 1 = 66, 4 = 146 }",
    ),
    (
        &["system.source_read_mb_per_s={ 1 = 5, x = 6 }"],
        "system.source_read_mb_per_s={ 1 = 5, x = 6 }: system.source_read_mb_per_s.x: \"x\" is not a number of \
             readers; give whole numbers from 1 as in { 1 = 66, 4 = 146 }",
    ),
    (
        &["dataset.size_mb={ mean = -1, stddev = 0 }"],
        "dataset.size_mb={ mean = -1, stddev = 0 }: dataset.size_mb.mean: -1 is negative; give the mean size in \
             MB, more than 0",
    ),
    (
        &["dataset.size_mb.fixed=2"],
        "dataset.size_mb.fixed=2: dataset.size_mb: says the sizes in two ways; give { mean = 1.0, stddev = 0.1 } \
             or { fixed = 1.0 } or { file = \"sizes.txt\" }",
    ),
    (
        &["dataset.size_mb={ file = \"none.txt\" }"],
        "dataset.size_mb={ file = \"none.txt\" }: dataset.size_mb.file: dir/none.txt: no such file; give the \
             path from the folder of the scenario",
    ),
    (
        &["job={ ranks = 4 }"],
        "job={ ranks = 4 }: job.global_batch: missing; add global_batch = 100 in [job]",
    ),
    (
        &["job.global_batch=2000"],
        "job.global_batch=2000: 2000 is more than the 1000 samples of the dataset; lower job.global_batch or \
             raise dataset.samples",
    ),
    (
        &["dataset.samples=10"],
        "dataset.samples=10: job.global_batch: 100 is more than the 10 samples of the dataset; lower \
             job.global_batch or raise dataset.samples",
    ),
    (
        &["job.ranks_per_host=3"],
        "job.ranks_per_host=3: job.ranks: 4 ranks do not fill hosts of 3; make job.ranks a multiple of \
             job.ranks_per_host",
    ),
    (
        &["job.ranks=6", "job.ranks_per_host=4"],
        "job.ranks_per_host=4: job.ranks: 6 ranks do not fill hosts of 4; make job.ranks a multiple of \
             job.ranks_per_host",
    ),
    (
        &["system.tier.1.name=staging"],
        r#"system.tier.1.name=staging: tier 0 has the name "staging" too; give each tier its own name"#,
    ),
    (&["name="], "name=: is empty; give the name of the scenario"),
    (
        &["name=a\nb"],
        "name=a\\nb: has a control character; give a name in one line of plain text",
    ),
    (
        &["job.ranks=\n"],
        r#"job.ranks=: found a string (""), wanted a whole number; write it as in ranks = 4"#,
    ),
    (
        &["no-sign-of-equality-in-a-text-that-is-longer-than-one-would-like-to-read"],
        "no-sign-of-equality-in-a-text-that-is-longer-than-one-would-...: no '='; write KEY=VALUE, such as --set \
             job.ranks=4",
    ),
    (
        &["job.ranks=-99999999999999999999"],
        "job.ranks=-99999999999999999999: -1e20 is negative; give the number of ranks, a whole number from 1 to \
             65536",
    ),
    (
        &["job.shuffle=a-word-so-long-that-it-does-not-fit-into-one-line-of-the-terminal-any-more"],
        "job.shuffle: \"a-word-so-long-that-it-does-not-fit-into\"... is not known; give the shuffle as one of \
             \"feistel\", \"torch\"",
    ),
];

#[test]
fn bad_overrides_are_blamed_by_name() {
    assert_set_lines(BAD_OVERRIDES);
}

#[test]
fn an_override_is_not_blamed_for_a_mistake_of_the_file() {
    let text = changed("epochs = 10", "epochs = 0");
    assert!(
        line(read(&text, &["job.ranks=8", "job.epoch_count=1"]))
            .starts_with("--set job.epoch_count=1: ")
    );
    assert!(
        line(read(&text, &["job.ranks=8", "system.tier.0.threads=1"]))
            .starts_with("dir/x.toml: job.epochs: ")
    );
}

#[test]
fn a_tier_cannot_be_changed_where_there_is_none() {
    let (without_tiers, _) = VALID.split_once("[[system.tier]]").unwrap();
    assert_eq!(
        line(read(without_tiers, &["system.tier.0.threads=2"])),
        "--set system.tier.0.threads=2: there is no tier 0; add a [[system.tier]] to the file"
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let said = |path: &Path| {
        let error = Scenario::load(path, &[]).unwrap_err().to_string();
        error
            .strip_prefix(&path.display().to_string())
            .expect("the path comes first")
            .to_owned()
    };
    let path = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    assert_eq!(
        said(&folder.path().join("none.toml")),
        ": no such file; check the path"
    );
    assert_eq!(said(folder.path()), ": is a folder; give a file");
    assert_eq!(
        said(&path("latin1.toml", b"name = \"a\"\n# caf\xe9\n")),
        ": line 2, column 6 is not UTF-8; save the file as UTF-8 text"
    );
    assert_eq!(
        said(&path("long.toml", &vec![b'\n'; (4 << 20) + 1])),
        ": longer than 4 MiB; give a scenario file"
    );
    assert_eq!(
        said(&path("valid.toml", VALID.as_bytes()).join("below.toml")),
        ": cannot be read: Not a directory (os error 20); check the path"
    );
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.toml");
    std::fs::write(&path, VALID).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser reads everything.
    if let Err(error) = Scenario::load(&path, &[]) {
        assert!(
            error
                .to_string()
                .ends_with("cannot be read: permission denied; allow this user to read it")
        );
    }
}

/// A scenario of four samples whose sizes are in a file with this content.
fn with_sizes_file(content: &[u8]) -> (tempfile::TempDir, Scenario) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.toml");
    std::fs::write(
        &path,
        changed("mean = 1.0, stddev = 0.1", "file = \"sizes.txt\""),
    )
    .expect("a temporary folder");
    std::fs::write(folder.path().join("sizes.txt"), content).expect("a temporary folder");
    let scenario = Scenario::load(
        &path,
        &sets(&["dataset.samples=4", "job.global_batch=4"]).expect("KEY=VALUE"),
    )
    .expect("valid");
    assert_eq!(
        scenario.dataset.size_mb,
        SizeSpec::File(folder.path().join("sizes.txt"))
    );
    (folder, scenario)
}

#[test]
fn sizes_come_from_a_file_beside_the_scenario() {
    let (_folder, scenario) =
        with_sizes_file("\u{feff}# in MB\n1.5\r\n\n0  # empty\n 1e-6\n2".as_bytes());
    let catalog = scenario.sizes().unwrap();
    let sizes: Vec<_> = catalog
        .samples()
        .map(|sample| catalog.size(sample))
        .collect();
    assert_eq!(
        sizes,
        [Bytes(1_500_000), Bytes(0), Bytes(1), Bytes(2_000_000)]
    );
}

#[test]
fn mistakes_in_a_sizes_file_are_answered_with_the_line() {
    let cases: &[(&[u8], &str)] = &[
        (
            b"1\n2\nabc\n4\n",
            r#":3: "abc" is not a number; give one size in MB per line, 0 or more"#,
        ),
        (
            b"1\n# two\n\n-2\n",
            ":4: -2 is negative; give one size in MB per line, 0 or more",
        ),
        (
            b"1\nnan\n",
            ":2: nan is not finite; give one size in MB per line, 0 or more",
        ),
        (
            b"1\ninf\n",
            ":2: inf is not finite; give one size in MB per line, 0 or more",
        ),
        (
            b"1\n1e300\n",
            ":2: 1e300 is too big; give one size in MB per line, 0 or more",
        ),
        (
            b"1\n2\n\xff\n4\n",
            ":3: the line is not UTF-8; give one size in MB per line, 0 or more",
        ),
        (
            b"1\n2\n3\n",
            ": 3 sizes, but dataset.samples = 4; give as many sizes as samples",
        ),
        (
            b"1\n2\n3\n4\n5\n",
            ":5: more sizes than dataset.samples = 4; give as many sizes as samples",
        ),
        (
            b"0\n0\n0\n0\n",
            ": all samples are of size 0; give larger sizes or more samples",
        ),
        (
            b"1e13\n1e13\n0\n0\n",
            ": the dataset is larger than 2^64 bytes; lower the sizes or the number of samples",
        ),
        (
            &[b'1'; 5000],
            ":1: the line is longer than 4096 bytes; give one size in MB per line, 0 or more",
        ),
        (
            b"",
            ": 0 sizes, but dataset.samples = 4; give as many sizes as samples",
        ),
    ];
    for (content, expected) in cases {
        let (folder, scenario) = with_sizes_file(content);
        let error = scenario.sizes().unwrap_err().to_string();
        let prefix = folder.path().join("sizes.txt").display().to_string();
        assert_eq!(error.strip_prefix(&prefix), Some(*expected));
    }
}

#[test]
fn a_sizes_file_must_be_there() {
    let (folder, scenario) = with_sizes_file(b"1\n1\n1\n1\n");
    let sizes = folder.path().join("sizes.txt");
    std::fs::remove_file(&sizes).unwrap();
    assert_eq!(
        scenario.sizes().unwrap_err().to_string(),
        format!("{}: no such file; check the path", sizes.display())
    );
    let scenario = folder.path().join("x.toml");
    let place = format!(
        "{}: dataset.size_mb.file: {}",
        scenario.display(),
        sizes.display()
    );
    let said = line(Scenario::load(&scenario, &[]));
    assert_eq!(
        said,
        format!("{place}: no such file; give the path from the folder of the scenario")
    );
    std::fs::create_dir(&sizes).unwrap();
    assert_eq!(
        line(Scenario::load(&scenario, &[])),
        format!("{place}: is a folder; give a file")
    );
}

#[test]
fn drawn_sizes_never_change() {
    let catalog = read(VALID, &[]).unwrap().sizes().unwrap();
    // The same from an independent implementation of SplitMix64 and Box-Muller.
    let first: Vec<_> = (0..5)
        .map(|sample| catalog.size(SampleId(sample)).0)
        .collect();
    assert_eq!(first, [931_074, 932_659, 986_817, 1_061_433, 1_041_676]);
    let more = read(VALID, &["dataset.samples=2000"])
        .unwrap()
        .sizes()
        .unwrap();
    assert!(
        catalog
            .samples()
            .all(|sample| catalog.size(sample) == more.size(sample)),
        "sizes do not depend on samples"
    );
    let other = read(VALID, &["job.seed=2"]).unwrap().sizes().unwrap();
    assert_ne!(other, catalog);
}

#[test]
fn drawn_sizes_are_clipped_at_zero() {
    let overrides = [
        "dataset.samples=100000",
        "dataset.size_mb={ mean = 0.1, stddev = 0.1 }",
    ];
    let catalog = read(VALID, &overrides).unwrap().sizes().unwrap();
    let zeros = catalog
        .samples()
        .filter(|&sample| catalog.size(sample) == Bytes(0))
        .count();
    // A normal number is more than one deviation below its mean in 15.87 % of cases.
    assert!((15_500..16_250).contains(&zeros), "{zeros}");
}

#[test]
fn fixed_sizes_are_whole_bytes() {
    let catalog = read(VALID, &["dataset.size_mb={ fixed = 0.0123456789 }"])
        .unwrap()
        .sizes()
        .unwrap();
    assert_eq!(catalog.common_size(), Some(Bytes(12_346)));
}

#[test]
fn a_dataset_without_a_byte_is_an_error() {
    // Of one sample with this seed, the draw is negative.
    let overrides = [
        "job.global_batch=1",
        "dataset.samples=1",
        "dataset.size_mb={ mean = 1e-3, stddev = 1000 }",
    ];
    assert_eq!(
        line(read(VALID, &overrides)),
        "--set dataset.size_mb={ mean = 1e-3, stddev = 1000 }: all samples are of size 0; give larger sizes or more \
         samples"
    );
    let mut scenario = read(VALID, &[]).unwrap();
    scenario.dataset.size_mb = SizeSpec::Fixed(0.0);
    assert_eq!(
        scenario.sizes().unwrap_err().to_string(),
        "scenario small: dataset.size_mb: all samples are of size 0; give larger sizes or more samples"
    );
    scenario.dataset.size_mb = SizeSpec::Fixed(1e12);
    scenario.dataset.samples = 100;
    assert_eq!(
        scenario.sizes().unwrap_err().to_string(),
        "scenario small: dataset.size_mb: the dataset is larger than 2^64 bytes; lower the sizes or the number of \
         samples"
    );
}

fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("scenarios")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn every_shipped_scenario_loads_under_its_own_name() {
    let paths = shipped();
    assert_eq!(paths.len(), 8);
    for path in paths {
        let scenario = Scenario::load(&path, &[]).unwrap();
        assert_eq!(path.file_stem().unwrap(), scenario.name.as_str());
        assert_eq!(scenario.system.contention, ContentionKind::Ranks);
        let catalog = scenario.sizes().unwrap();
        assert_eq!(catalog.len(), scenario.dataset.samples);
        let first = std::fs::read_to_string(&path).unwrap();
        assert!(
            first.starts_with("# "),
            "{} says what it stands for",
            path.display()
        );
    }
}

#[test]
fn shipped_scenarios_stand_for_the_cases_of_the_paper() {
    // How many of these hold less than the dataset: the RAM of a rank, all tiers of a rank, all tiers of all ranks.
    let cases = [
        ("hdmlp-s1", 0),
        ("hdmlp-s2", 1),
        ("hdmlp-s3", 2),
        ("imagenet-1k", 1),
        ("openimages", 2),
        ("places365", 2),
        ("imagenet-22k", 2),
        ("cosmoflow-512", 3),
    ];
    for (name, expected) in cases {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
        let scenario = Scenario::load(&path, &[]).unwrap();
        let [_, ram, ssd] = &scenario.system.tiers[..] else {
            panic!("{name} has a staging buffer and two tiers")
        };
        let rank = ram.capacity_mb + ssd.capacity_mb;
        let holds = [ram.capacity_mb, rank, rank * f64::from(scenario.job.ranks)];
        let dataset = scenario.sizes().unwrap().total().mb();
        assert_eq!(
            holds.iter().filter(|&&capacity| capacity < dataset).count(),
            expected,
            "{name}"
        );
    }
}

/// One change of a text.
#[derive(Clone, Debug)]
enum Mutation {
    Delete(Index, Index),
    Insert(Index, String),
    Repeat(Index, Index),
    Value(Index, &'static str),
}

impl Mutation {
    fn apply(&self, text: &str) -> String {
        let bounds: Vec<usize> = text
            .char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .collect();
        let span = |one: &Index, other: &Index| {
            let one = *one.get(&bounds);
            let other = *other.get(&bounds);
            (one.min(other), one.max(other).min(one.min(other) + 30))
        };
        let floor = |mut at: usize| {
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        match self {
            Self::Delete(one, other) => {
                let (start, end) = span(one, other);
                format!("{}{}", &text[..start], &text[floor(end)..])
            }
            Self::Insert(at, new) => {
                let at = *at.get(&bounds);
                format!("{}{new}{}", &text[..at], &text[at..])
            }
            Self::Repeat(one, other) => {
                let (start, end) = span(one, other);
                format!("{}{}", &text[..floor(end)], &text[start..])
            }
            Self::Value(at, value) => {
                let lines: Vec<&str> = text.lines().collect();
                let at = at.index(lines.len().max(1));
                let with = |(number, line): (usize, &&str)| match line.split_once('=') {
                    Some((key, _)) if number == at => format!("{key}= {value}\n"),
                    _ => format!("{line}\n"),
                };
                lines.iter().enumerate().map(with).collect()
            }
        }
    }
}

const ODD_VALUES: &[&str] = &[
    "0",
    "-1",
    "1.5",
    "nan",
    "-inf",
    "1e308",
    "5e-324",
    "4294967294",
    "9223372036854775807",
    "-9223372036854775808",
    "true",
    "\"\"",
    "\"\\n\\r\\u2028\"",
    "'torch'",
    "[]",
    "[{}]",
    "[[1]]",
    "{}",
    "{ 0 = 1 }",
    "{ 1 = 2, 01 = 3 }",
    "{ mean = 1e-6, stddev = 1e12 }",
    "{ fixed = 1e12 }",
    "{ file = \"/\" }",
    "{ file = \"a\\u0000b\" }",
    "1979-05-27T07:32:00Z",
];

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        any::<(Index, Index)>().prop_map(|(one, other)| Mutation::Delete(one, other)),
        (any::<Index>(), "[\\PC\n\"={}\\[\\].0-9a-z]{0,4}")
            .prop_map(|(at, new)| Mutation::Insert(at, new)),
        any::<(Index, Index)>().prop_map(|(one, other)| Mutation::Repeat(one, other)),
        (any::<Index>(), prop::sample::select(ODD_VALUES))
            .prop_map(|(at, value)| Mutation::Value(at, value)),
    ]
}

fn check_one_line(error: &InputError) -> Result<(), TestCaseError> {
    let said = error.to_string();
    prop_assert!(!said.is_empty());
    prop_assert!(
        !said.contains(|symbol: char| symbol.is_control() || "\u{2028}\u{2029}".contains(symbol)),
        "{said:?}"
    );
    Ok(())
}

fn check(result: Result<Scenario, InputError>) -> Result<(), TestCaseError> {
    match result {
        Ok(scenario) if scenario.dataset.samples <= 10_000 => match scenario.sizes() {
            Ok(catalog) => prop_assert_eq!(catalog.len(), scenario.dataset.samples),
            Err(error) => check_one_line(&error)?,
        },
        Ok(_) => {}
        Err(error) => check_one_line(&error)?,
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_mutation_of_a_file_panics_or_breaks_the_line(mutations in prop::collection::vec(mutation(), 1..4)) {
        let text = mutations.iter().fold(VALID.to_owned(), |text, mutation| mutation.apply(&text));
        check(read(&text, &[]))?;
    }

    #[test]
    fn no_override_panics_or_breaks_the_line(
        key in prop_oneof![
            "[a-z_.\\[\\]0-9]{0,12}",
            prop::sample::select(&[
                "name", "job", "job.ranks", "job.seed", "job.preprocess_mb_per_s", "job.preprocess_mb_per_s.3",
                "dataset.samples", "dataset.size_mb", "dataset.size_mb.mean", "system.tier", "system.tier.0",
                "system.tier.1.capacity_mb", "system.tier.1.read_mb_per_s.7", "system.source_read_mb_per_s",
            ][..]).prop_map(str::to_owned),
        ],
        value in prop_oneof![prop::sample::select(ODD_VALUES).prop_map(str::to_owned), "\\PC{0,8}", "[\n-~]{0,8}"],
    ) {
        check(read(VALID, &[&format!("{key}={value}")]))?;
    }
}
