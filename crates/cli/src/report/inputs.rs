//! A scenario's values as keys and texts. Each struct is taken apart by name, so that a new value cannot be forgotten.

use foresee_sim::scenario::{
    AssignmentKind, BalanceKind, ContentionKind, DatasetSpec, ExtrapolateKind, JobSpec, Points,
    Preprocess, Scenario, ScopeKind, ShuffleKind, SizeSpec, SystemSpec, TierSpec,
};

use super::format::{count, plain};

/// All values of a scenario, keys as in its file.
pub(crate) fn inputs(scenario: &Scenario) -> Vec<(String, String)> {
    let Scenario {
        name,
        job,
        dataset,
        system,
    } = scenario;
    let mut rows = vec![("name".to_owned(), name.clone())];
    add_job(&mut rows, job);
    let DatasetSpec { samples, size_mb } = dataset;
    rows.push(("dataset.samples".to_owned(), count(u64::from(*samples))));
    rows.push(("dataset.size_mb".to_owned(), size(size_mb)));
    add_system(&mut rows, system);
    rows
}

fn add_job(rows: &mut Vec<(String, String)>, job: &JobSpec) {
    let JobSpec {
        ranks,
        ranks_per_host,
        global_batch,
        epochs,
        drop_last,
        seed,
        shuffle,
        assignment,
        balance,
        decoded_mb_per_mb,
        compute_mb_per_s,
        preprocess_mb_per_s,
    } = job;
    let assignment = match assignment {
        AssignmentKind::Order => "order",
        AssignmentKind::Local => "local",
    };
    let balance = match balance {
        BalanceKind::Policy => "policy",
        BalanceKind::Off => "off",
        BalanceKind::Lobster => "lobster",
        BalanceKind::Foresee => "foresee",
    };
    let shuffle = match shuffle {
        ShuffleKind::Feistel => "feistel",
        ShuffleKind::Torch => "torch",
    };
    let preprocess = match preprocess_mb_per_s {
        Preprocess::PerThread(rate) => format!("{} per thread", megabytes_per_s(*rate)),
        Preprocess::Curve(points) => curve(points, "thread"),
    };
    let mut add = |key: &str, value: String| rows.push((format!("job.{key}"), value));
    add("ranks", count(u64::from(*ranks)));
    add("ranks_per_host", count(u64::from(*ranks_per_host)));
    add(
        "global_batch",
        format!("{} samples", count(u64::from(*global_batch))),
    );
    add("epochs", count(u64::from(*epochs)));
    add("drop_last", drop_last.to_string());
    add("seed", seed.to_string());
    add("shuffle", shuffle.to_owned());
    add("assignment", assignment.to_owned());
    add("balance", balance.to_owned());
    add("decoded_mb_per_mb", decoded_mb_per_mb.to_string());
    add("compute_mb_per_s", megabytes_per_s(*compute_mb_per_s));
    add("preprocess_mb_per_s", preprocess);
}

fn add_system(rows: &mut Vec<(String, String)>, system: &SystemSpec) {
    let SystemSpec {
        network_mb_per_s,
        source_link_mb_per_s,
        source_read_mb_per_s,
        source_latency_ms,
        contention,
        extrapolate,
        cores_per_host,
        tiers,
    } = system;
    let contention = match contention {
        ContentionKind::Ranks => "ranks",
        ContentionKind::Reads => "reads",
    };
    let extrapolate = match extrapolate {
        ExtrapolateKind::Regression => "regression",
        ExtrapolateKind::Clamp => "clamp",
    };
    let mut add = |key: &str, value: String| rows.push((format!("system.{key}"), value));
    add("network_mb_per_s", megabytes_per_s(*network_mb_per_s));
    add(
        "source_link_mb_per_s",
        megabytes_per_s(*source_link_mb_per_s),
    );
    add(
        "source_read_mb_per_s",
        curve(source_read_mb_per_s, "reader"),
    );
    add("source_latency_ms", format!("{source_latency_ms} ms"));
    add("contention", contention.to_owned());
    add("extrapolate", extrapolate.to_owned());
    if let Some(cores) = cores_per_host {
        add("cores_per_host", count(u64::from(*cores)));
    }
    for (at, tier) in tiers.iter().enumerate() {
        add_tier(rows, at, tier);
    }
}

fn add_tier(rows: &mut Vec<(String, String)>, at: usize, tier: &TierSpec) {
    let TierSpec {
        name,
        capacity_mb,
        scope,
        threads,
        read_mb_per_s,
        write_mb_per_s,
    } = tier;
    let per = match scope {
        ScopeKind::Rank => "rank",
        ScopeKind::Host => "host",
        ScopeKind::Global => "global",
    };
    let mut add = |key: &str, value: String| rows.push((format!("system.tier.{at}.{key}"), value));
    add("name", name.clone());
    add("capacity_mb", format!("{}\u{a0}MB", plain(*capacity_mb)));
    add("scope", per.to_owned());
    add("threads", count(u64::from(*threads)));
    add("read_mb_per_s", curve(read_mb_per_s, "thread"));
    add("write_mb_per_s", curve(write_mb_per_s, "thread"));
}

fn size(size_mb: &SizeSpec) -> String {
    match size_mb {
        SizeSpec::Normal { mean, stddev } => {
            format!(
                "normal, mean {}\u{a0}MB, stddev {}\u{a0}MB",
                plain(*mean),
                plain(*stddev)
            )
        }
        SizeSpec::Fixed(size) => format!("{}\u{a0}MB each", plain(*size)),
        SizeSpec::File(file) => format!("from {}", file.display()),
    }
}

fn megabytes_per_s(rate: f64) -> String {
    format!("{}\u{a0}MB/s", plain(rate))
}

/// `1 reader: 66 MB/s, 2 readers: 86 MB/s`.
fn curve(points: &Points, of: &str) -> String {
    let point = |(number, rate): &(u32, f64)| {
        let plural = if *number == 1 { "" } else { "s" };
        format!(
            "{}\u{a0}{of}{plural}: {}",
            count(u64::from(*number)),
            megabytes_per_s(*rate)
        )
    };
    points.iter().map(point).collect::<Vec<_>>().join(", ")
}
