//! From a TOML table to a [`Scenario`]: one function per section, then the rules that join several keys.

use std::path::PathBuf;

use foresee_config::InputError;
use foresee_config::reader::{Document, Limits, Section, open, shown, unreadable};
use toml::Value;

use super::curve::{BY_READERS, BY_THREADS, RATE};
use super::schema::{DATASET, JOB, SIZE, SYSTEM, TIER, TOP};
use super::{
    AssignmentKind, BalanceKind, ContentionKind, DatasetSpec, ExtrapolateKind, JobSpec, Preprocess,
    Scenario, ScopeKind, ShuffleKind, SizeSpec, SystemSpec, TierSpec, sizes,
};

const RANKS_MAX: u64 = 1 << 16;
const EPOCHS_MAX: u64 = 1_000_000;
/// Samples are numbered by u32, and one number stays free.
const SAMPLES_MAX: u64 = u32::MAX as u64 - 1;
const THREADS_MAX: u64 = 1 << 16;
/// TOML has no whole number above this.
const SEED_MAX: u64 = i64::MAX as u64;
/// Tiers are numbered by u8.
const TIERS_MAX: usize = 1 << 8;
/// A little less than 2^64 bytes: what all samples, or all tiers, hold together is counted in u64.
const TOTAL_MB_MAX: f64 = 1.8e13;

/// One byte: smaller sizes round to nothing.
const SIZE_MB: Limits = Limits {
    min: 1e-6,
    max: TOTAL_MB_MAX,
    said: "more than 0",
};
const SPREAD_MB: Limits = Limits {
    min: 0.0,
    max: TOTAL_MB_MAX,
    said: "0 or more",
};
/// Decoding a sample to nothing, or to a million times its size, is a slip.
const EXPANSION: Limits = Limits {
    min: 1e-3,
    max: 1e6,
    said: "more than 0",
};
/// Up to a minute.
const LATENCY_MS: Limits = Limits {
    min: 0.0,
    max: 60_000.0,
    said: "0 or more",
};
const STAGING_MB: Limits = Limits {
    said: "more than 0 for the staging buffer",
    ..SIZE_MB
};
const CAPACITY_MB: Limits = SPREAD_MB;

pub(super) fn scenario(document: Document<'_>, root: &Value) -> Result<Scenario, InputError> {
    let top = Section::open(document, "", &TOP, root)?;
    let scenario = Scenario {
        name: name(&top)?,
        job: job(&top.section("job", &JOB)?)?,
        dataset: dataset(document, &top.section("dataset", &DATASET)?)?,
        system: system(document, &top.section("system", &SYSTEM)?)?,
    };
    check_job(document, &scenario)?;
    check_sizes(document, &scenario)?;
    check_capacities(document, &scenario)?;
    Ok(scenario)
}

/// The name goes to terminals and pages as it is.
fn name(top: &Section<'_>) -> Result<String, InputError> {
    let name = top.text("name")?;
    if name.chars().any(char::is_control) {
        return Err(top.error(
            "name",
            "has a control character",
            "give a name in one line of plain text",
        ));
    }
    Ok(name.to_owned())
}

fn job(section: &Section<'_>) -> Result<JobSpec, InputError> {
    Ok(JobSpec {
        ranks: section.whole("ranks", 1..=RANKS_MAX)? as u32,
        ranks_per_host: if section.has("ranks_per_host") {
            section.whole("ranks_per_host", 1..=RANKS_MAX)? as u32
        } else {
            1
        },
        global_batch: section.whole("global_batch", 1..=SAMPLES_MAX)? as u32,
        epochs: section.whole("epochs", 1..=EPOCHS_MAX)? as u32,
        drop_last: section.flag("drop_last")?,
        seed: if section.has("seed") {
            section.whole("seed", 0..=SEED_MAX)?
        } else {
            0
        },
        shuffle: section.choice(
            "shuffle",
            &[
                ("feistel", ShuffleKind::Feistel),
                ("torch", ShuffleKind::Torch),
            ],
        )?,
        assignment: section.choice(
            "assignment",
            &[
                ("order", AssignmentKind::Order),
                ("local", AssignmentKind::Local),
            ],
        )?,
        balance: if section.has("balance") {
            section.choice(
                "balance",
                &[
                    ("policy", BalanceKind::Policy),
                    ("off", BalanceKind::Off),
                    ("lobster", BalanceKind::Lobster),
                    ("foresee", BalanceKind::Foresee),
                ],
            )?
        } else {
            BalanceKind::Policy
        },
        decoded_mb_per_mb: if section.has("decoded_mb_per_mb") {
            section.number("decoded_mb_per_mb", &EXPANSION)?
        } else {
            1.0
        },
        compute_mb_per_s: section.number("compute_mb_per_s", &RATE)?,
        preprocess_mb_per_s: match section.need("preprocess_mb_per_s")? {
            Value::Table(_) => {
                Preprocess::Curve(BY_THREADS.points(section, "preprocess_mb_per_s")?)
            }
            Value::Integer(_) | Value::Float(_) => {
                Preprocess::PerThread(section.number("preprocess_mb_per_s", &RATE)?)
            }
            other => {
                return Err(section.mistyped(
                    "preprocess_mb_per_s",
                    other,
                    "a number or a table of points",
                ));
            }
        },
    })
}

fn dataset(document: Document<'_>, section: &Section<'_>) -> Result<DatasetSpec, InputError> {
    let samples = section.whole("samples", 1..=SAMPLES_MAX)? as u32;
    let value = section.need("size_mb")?;
    if !value.is_table() {
        return Err(section.mistyped("size_mb", value, "a table"));
    }
    let size = section.section("size_mb", &SIZE)?;
    let normal = size.has("mean") || size.has("stddev");
    let size_mb = match (normal, size.has("fixed"), size.has("file")) {
        (true, false, false) => SizeSpec::Normal {
            mean: size.number("mean", &SIZE_MB)?,
            stddev: size.number("stddev", &SPREAD_MB)?,
        },
        (false, true, false) => SizeSpec::Fixed(size.number("fixed", &SIZE_MB)?),
        (false, false, true) => SizeSpec::File(sizes_file(document, &size)?),
        (some_normal, fixed, file) => {
            let what = if some_normal || fixed || file {
                "says the sizes in two ways"
            } else {
                "says no size"
            };
            let ways =
                r#"give { mean = 1.0, stddev = 0.1 } or { fixed = 1.0 } or { file = "sizes.txt" }"#;
            return Err(section.error("size_mb", what, ways));
        }
    };
    Ok(DatasetSpec { samples, size_mb })
}

/// The path of the sizes file, seen from the scenario's folder. What cannot be opened is documentd here, where it is
/// known who named it; what it says is read when sizes are asked for.
fn sizes_file(document: Document<'_>, size: &Section<'_>) -> Result<PathBuf, InputError> {
    let path = document
        .file
        .parent()
        .map_or_else(PathBuf::new, PathBuf::from)
        .join(size.text("file")?);
    match open(&path) {
        Ok(_) => Ok(path),
        Err(error) => {
            let (what, remedy) = unreadable(&error);
            let remedy = match error.kind() {
                std::io::ErrorKind::NotFound => "give the path from the folder of the scenario",
                _ => remedy,
            };
            Err(size.error("file", format!("{}: {what}", path.display()), remedy))
        }
    }
}

fn system(document: Document<'_>, section: &Section<'_>) -> Result<SystemSpec, InputError> {
    let contention = [
        ("reads", ContentionKind::Reads),
        ("ranks", ContentionKind::Ranks),
    ];
    let extrapolate = [
        ("regression", ExtrapolateKind::Regression),
        ("clamp", ExtrapolateKind::Clamp),
    ];
    Ok(SystemSpec {
        network_mb_per_s: section.number("network_mb_per_s", &RATE)?,
        source_link_mb_per_s: section.number("source_link_mb_per_s", &RATE)?,
        source_read_mb_per_s: BY_READERS.points(section, "source_read_mb_per_s")?,
        source_latency_ms: if section.has("source_latency_ms") {
            section.number("source_latency_ms", &LATENCY_MS)?
        } else {
            0.0
        },
        contention: section.choice("contention", &contention)?,
        extrapolate: section.choice("extrapolate", &extrapolate)?,
        cores_per_host: if section.has("cores_per_host") {
            Some(section.whole("cores_per_host", 1..=THREADS_MAX)? as u32)
        } else {
            None
        },
        tiers: tiers(document, section)?,
    })
}

fn tiers(document: Document<'_>, section: &Section<'_>) -> Result<Vec<TierSpec>, InputError> {
    let none = || {
        section.error(
            "tier",
            "there is no tier",
            "add a [[system.tier]] for the staging buffer",
        )
    };
    let values = match section.get("tier") {
        None => return Err(none()),
        Some(Value::Array(values)) if values.is_empty() => return Err(none()),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(section.mistyped("tier", other, "a list of tables")),
    };
    let mut tiers: Vec<TierSpec> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let path = format!("system.tier[{index}]");
        if index >= TIERS_MAX {
            let what = format!("tier {index} is too many");
            return Err(document.error(
                &path,
                &[],
                what,
                format!("give at most {TIERS_MAX} tiers"),
            ));
        }
        let tier = tier(&Section::open(document, &path, &TIER, value)?, index)?;
        if let Some(twin) = tiers.iter().position(|other| other.name == tier.name) {
            let what = format!("tier {twin} has the name {:?} too", tier.name);
            let key = format!("{path}.name");
            let twin = format!("system.tier[{twin}].name");
            return Err(document.error(
                &key,
                &[&twin],
                what,
                "give each tier its own name".to_owned(),
            ));
        }
        tiers.push(tier);
    }
    Ok(tiers)
}

fn tier(section: &Section<'_>, index: usize) -> Result<TierSpec, InputError> {
    let scopes = [
        ("rank", ScopeKind::Rank),
        ("host", ScopeKind::Host),
        ("global", ScopeKind::Global),
    ];
    let is_staging = index == 0;
    let scope = section.choice("scope", &scopes)?;
    if is_staging && scope != ScopeKind::Rank {
        let remedy = r#"give scope = "rank", or put a staging buffer before this tier"#;
        return Err(section.error(
            "scope",
            "the first tier is the staging buffer, one for each rank",
            remedy,
        ));
    }
    let read = BY_THREADS.points(section, "read_mb_per_s")?;
    Ok(TierSpec {
        name: section.text("name")?.to_owned(),
        capacity_mb: section.number(
            "capacity_mb",
            if is_staging {
                &STAGING_MB
            } else {
                &CAPACITY_MB
            },
        )?,
        scope,
        threads: section.whole("threads", 1..=THREADS_MAX)? as u32,
        write_mb_per_s: if section.has("write_mb_per_s") {
            BY_THREADS.points(section, "write_mb_per_s")?
        } else {
            read.clone()
        },
        read_mb_per_s: read,
    })
}

fn check_job(
    document: Document<'_>,
    Scenario { job, dataset, .. }: &Scenario,
) -> Result<(), InputError> {
    if job.global_batch > dataset.samples {
        let what = format!(
            "{} is more than the {} samples of the dataset",
            job.global_batch, dataset.samples
        );
        let remedy = "lower job.global_batch or raise dataset.samples".to_owned();
        return Err(document.error("job.global_batch", &["dataset.samples"], what, remedy));
    }
    if !job.ranks.is_multiple_of(job.ranks_per_host) {
        let what = format!(
            "{} ranks do not fill hosts of {}",
            job.ranks, job.ranks_per_host
        );
        let remedy = "make job.ranks a multiple of job.ranks_per_host".to_owned();
        return Err(document.error("job.ranks", &["job.ranks_per_host"], what, remedy));
    }
    Ok(())
}

fn check_sizes(document: Document<'_>, scenario: &Scenario) -> Result<(), InputError> {
    let key = "dataset.size_mb";
    let samples = scenario.dataset.samples;
    let largest_mb = sizes::largest_mb(&scenario.dataset.size_mb);
    if largest_mb * f64::from(samples) >= TOTAL_MB_MAX {
        let what = format!(
            "{samples} samples of up to {} MB are too big",
            shown(largest_mb)
        );
        let remedy = format!("keep the dataset below {TOTAL_MB_MAX:e} MB");
        return Err(document.error(key, &["dataset.samples"], what, remedy));
    }
    // Reads of all epochs are counted in u64, and filling reads once more.
    let epochs = f64::from(scenario.job.epochs) + 1.0;
    if largest_mb * f64::from(samples) * epochs >= TOTAL_MB_MAX {
        let what = format!(
            "{samples} samples of up to {} MB in {epochs} epochs are too much",
            shown(largest_mb)
        );
        let remedy = format!("keep what all epochs read below {TOTAL_MB_MAX:e} MB");
        return Err(document.error(key, &["dataset.samples", "job.epochs"], what, remedy));
    }
    if sizes::are_all_zero(scenario) {
        let others = ["dataset.samples", "job.seed"];
        return Err(document.error(
            key,
            &others,
            sizes::ALL_ZERO.to_owned(),
            sizes::ALL_ZERO_REMEDY.to_owned(),
        ));
    }
    Ok(())
}

fn check_capacities(
    document: Document<'_>,
    Scenario { job, system, .. }: &Scenario,
) -> Result<(), InputError> {
    let mut total_mb = 0.0;
    for (index, tier) in system.tiers.iter().enumerate() {
        let copies = match tier.scope {
            ScopeKind::Rank => job.ranks,
            ScopeKind::Host => job.ranks / job.ranks_per_host,
            ScopeKind::Global => 1,
        };
        total_mb += tier.capacity_mb * f64::from(copies);
        if total_mb >= TOTAL_MB_MAX {
            let key = format!("system.tier[{index}].capacity_mb");
            let what = format!(
                "{} is too big for the tiers of {} ranks",
                shown(tier.capacity_mb),
                job.ranks
            );
            let remedy = format!("keep all tiers together below {TOTAL_MB_MAX:e} MB");
            return Err(document.error(&key, &["job.ranks", "job.ranks_per_host"], what, remedy));
        }
    }
    Ok(())
}
