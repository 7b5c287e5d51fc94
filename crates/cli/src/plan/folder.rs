//! A job on a folder: every file below it is a sample, the rest comes from options and `foresee.toml`. Rates that
//! nobody gave are assumed, and listed as such.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use foresee_config::{Config, Environment, Given, Resolved, Scope, Threads, Tier, TierKind};
use foresee_core::catalog::Catalog;
use foresee_sim::scenario::{
    AssignmentKind, BalanceKind, ContentionKind, DatasetSpec, ExtrapolateKind, JobSpec, Preprocess,
    Scenario, ScopeKind, ShuffleKind, SizeSpec, SystemSpec, TierSpec,
};

use super::Subject;

/// What `staging.threads = "auto"` is here: the machine that trains may be another one.
const STAGING_THREADS: u32 = 4;
const MEMORY_MB_PER_S: f64 = 10_000.0;
const DISK_MB_PER_S: f64 = 500.0;
const NETWORK_MB_PER_S: f64 = 1_000.0;
const SOURCE_LINK_MB_PER_S: f64 = 10_000.0;
const SOURCE_MB_PER_S: f64 = 100.0;
const COMPUTE_MB_PER_S: f64 = 200.0;
/// Of one thread: about what one core decodes of JPEG.
const PREPROCESS_MB_PER_S: f64 = 200.0;
const GLOBAL_BATCH: u32 = 256;
const EPOCHS: u32 = 10;

/// Deeper folders are links that lead back to themselves.
const DEPTH_MAX: u32 = 64;

/// One number stays free.
const SAMPLES_MAX: usize = u32::MAX as usize - 1;

/// The job on a folder.
#[derive(clap::Args)]
#[command(next_help_heading = "For a FOLDER")]
pub(super) struct Options {
    /// Training processes [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,
    /// How many of them share a host [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks_per_host: Option<u32>,
    /// Samples of a step, all ranks together [default: 256, or all samples where they are fewer].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Passes over the dataset [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    epochs: Option<u32>,
    /// Seed of the shuffle [default: 0].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How epochs are shuffled [default: feistel].
    #[arg(long, value_name = "NAME")]
    shuffle: Option<Shuffle>,
    /// What a rank trains, in MB/s [default: 200].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    compute_mb_per_s: Option<f64>,
    /// What the folder's storage gives to all readers together, in MB/s [default: 100].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    source_mb_per_s: Option<f64>,
    /// Staging buffer and tiers [default: `FORESEE_CONFIG`, else foresee.toml in the current folder, if there is one].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shuffle {
    Feistel,
    Torch,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1e-6..=1e12).contains(&rate) {
        Ok(rate)
    } else {
        Err("give a rate in MB/s, more than 0".to_owned())
    }
}

impl Options {
    /// An option that was given.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.ranks.is_some(), "--ranks"),
            (self.ranks_per_host.is_some(), "--ranks-per-host"),
            (self.batch.is_some(), "--batch"),
            (self.epochs.is_some(), "--epochs"),
            (self.seed.is_some(), "--seed"),
            (self.shuffle.is_some(), "--shuffle"),
            (self.compute_mb_per_s.is_some(), "--compute-mb-per-s"),
            (self.source_mb_per_s.is_some(), "--source-mb-per-s"),
            (self.config.is_some(), "--config"),
        ];
        given
            .into_iter()
            .find_map(|(given, name)| given.then_some(name))
    }
}

/// The job on a folder.
pub(super) fn subject(folder: &Path, options: &Options) -> Result<Subject> {
    let given = options
        .config
        .as_deref()
        .map_or(Given::Nothing, Given::File);
    let Resolved { config, given_by } = Config::resolve(given, &Environment::of_process())?;
    let mut files = Vec::new();
    list(folder, 0, &mut files)?;
    files.sort_unstable();
    let samples = files.len();
    let total: u128 = files.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
    if samples == 0 {
        bail!(
            "{}: no files; give the folder that holds the dataset",
            folder.display()
        );
    }
    if samples > SAMPLES_MAX {
        bail!(
            "{}: {samples} files are too many; give a folder with at most {SAMPLES_MAX}",
            folder.display()
        );
    }
    if total == 0 || u64::try_from(total).is_err() {
        bail!(
            "{}: its files have {total} bytes; give the folder that holds the dataset",
            folder.display()
        );
    }
    let (paths, sizes): (Vec<PathBuf>, Vec<u64>) = files.into_iter().unzip();
    let catalog = Arc::new(Catalog::new(sizes));
    // Where catalogs are saved or a trace goes says nothing of the machine.
    let aside =
        |by: &String| by.starts_with("FORESEE_CATALOG_") || by.starts_with("FORESEE_TRACE_");
    let mut assumed = assumed(options, &config, !given_by.iter().all(aside));
    let scenario = scenario(folder, options, &config, &catalog)?;
    if scenario.job.ranks == 1 {
        assumed.remove("network_mb_per_s");
    }
    Ok(Subject {
        scenario,
        catalog,
        paths: Some(paths),
        assumed,
    })
}

/// All files below a folder with their sizes; hidden ones are left out.
fn list(folder: &Path, depth: u32, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let unreadable = || format!("{}: cannot be read", folder.display());
    if depth > DEPTH_MAX {
        bail!(
            "{}: nested deeper than {DEPTH_MAX} folders; remove a link that leads back",
            folder.display()
        );
    }
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let metadata = std::fs::metadata(&path)
            .with_context(|| format!("{}: cannot be read", path.display()))?;
        if metadata.is_dir() {
            list(&path, depth + 1, files)?;
        } else if metadata.is_file() {
            files.push((path, metadata.len()));
        }
    }
    Ok(())
}

/// What nobody gave.
fn assumed(options: &Options, config: &Config, configured: bool) -> BTreeMap<&'static str, f64> {
    let has_disk = config.tiers.iter().any(is_disk);
    let all = [
        (
            "compute_mb_per_s",
            COMPUTE_MB_PER_S,
            options.compute_mb_per_s.is_none(),
        ),
        (
            "source_mb_per_s",
            SOURCE_MB_PER_S,
            options.source_mb_per_s.is_none(),
        ),
        ("preprocess_mb_per_s", PREPROCESS_MB_PER_S, true),
        ("source_link_mb_per_s", SOURCE_LINK_MB_PER_S, true),
        ("network_mb_per_s", NETWORK_MB_PER_S, true),
        ("memory_mb_per_s", MEMORY_MB_PER_S, true),
        ("disk_mb_per_s", DISK_MB_PER_S, has_disk),
        (
            "staging_mib",
            (config.staging.capacity_bytes >> 20) as f64,
            !configured,
        ),
    ];
    all.into_iter()
        .filter(|(.., assumed)| *assumed)
        .map(|(name, value, _)| (name, value))
        .collect()
}

fn scenario(
    folder: &Path,
    options: &Options,
    config: &Config,
    catalog: &Catalog,
) -> Result<Scenario> {
    let samples = catalog.len();
    let ranks = options.ranks.unwrap_or(1);
    let ranks_per_host = options.ranks_per_host.unwrap_or(1);
    let global_batch = options.batch.unwrap_or_else(|| GLOBAL_BATCH.min(samples));
    if global_batch > samples {
        bail!(
            "--batch {global_batch}: more than the {samples} samples of {}; lower it",
            folder.display()
        );
    }
    if !ranks.is_multiple_of(ranks_per_host) {
        bail!(
            "--ranks {ranks}: do not fill hosts of {ranks_per_host}; give a multiple of --ranks-per-host"
        );
    }
    let job = JobSpec {
        ranks,
        ranks_per_host,
        global_batch,
        epochs: options.epochs.unwrap_or(EPOCHS),
        drop_last: false,
        seed: options.seed.unwrap_or(0),
        shuffle: match options.shuffle {
            None | Some(Shuffle::Feistel) => ShuffleKind::Feistel,
            Some(Shuffle::Torch) => ShuffleKind::Torch,
        },
        assignment: AssignmentKind::Order,
        balance: BalanceKind::Policy,
        decoded_mb_per_mb: 1.0,
        compute_mb_per_s: options.compute_mb_per_s.unwrap_or(COMPUTE_MB_PER_S),
        preprocess_mb_per_s: Preprocess::PerThread(PREPROCESS_MB_PER_S),
    };
    let mean_mb = catalog.total().mb() / f64::from(samples);
    let name = folder.file_name().map_or_else(
        || folder.display().to_string(),
        |name| name.to_string_lossy().into(),
    );
    Ok(Scenario {
        name,
        job,
        // The catalog says how large each one is.
        dataset: DatasetSpec {
            samples,
            size_mb: SizeSpec::Fixed(mean_mb),
        },
        system: system(options, config, ranks_per_host),
    })
}

fn system(options: &Options, config: &Config, ranks_per_host: u32) -> SystemSpec {
    let threads = match config.staging.threads {
        Threads::Auto => STAGING_THREADS,
        Threads::Number(threads) => threads,
        Threads::OfHost(threads) => (threads / ranks_per_host).max(1),
    };
    let staging = Tier {
        kind: TierKind::Memory,
        capacity_bytes: config.staging.capacity_bytes,
        scope: Scope::Rank,
        threads,
    };
    let mut tiers = vec![tier("staging".to_owned(), &staging)];
    for (index, configured) in config.tiers.iter().enumerate() {
        let kind = match configured.kind {
            TierKind::Memory => "memory",
            TierKind::Disk { .. } => "disk",
        };
        let is_twin = config
            .tiers
            .iter()
            .filter(|other| is_disk(other) == is_disk(configured))
            .count()
            > 1;
        let name = if is_twin {
            format!("{kind} {}", index + 1)
        } else {
            kind.to_owned()
        };
        tiers.push(tier(name, configured));
    }
    SystemSpec {
        network_mb_per_s: NETWORK_MB_PER_S,
        source_link_mb_per_s: SOURCE_LINK_MB_PER_S,
        source_read_mb_per_s: vec![(1, options.source_mb_per_s.unwrap_or(SOURCE_MB_PER_S))],
        source_latency_ms: 0.0,
        contention: ContentionKind::Reads,
        extrapolate: ExtrapolateKind::Clamp,
        cores_per_host: None,
        tiers,
    }
}

fn is_disk(tier: &Tier) -> bool {
    matches!(tier.kind, TierKind::Disk { .. })
}

fn tier(name: String, tier: &Tier) -> TierSpec {
    let rate = if is_disk(tier) {
        DISK_MB_PER_S
    } else {
        MEMORY_MB_PER_S
    };
    let curve = vec![(tier.threads, rate)];
    TierSpec {
        name,
        capacity_mb: tier.capacity_bytes as f64 / 1e6,
        scope: match tier.scope {
            Scope::Rank => ScopeKind::Rank,
            Scope::Host => ScopeKind::Host,
        },
        threads: tier.threads,
        read_mb_per_s: curve.clone(),
        write_mb_per_s: curve,
    }
}
