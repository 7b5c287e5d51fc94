//! `foresee bench`: a dataset loaded as a training job would load it, with the real loader and a trainer that only looks
//! at what it gets; how fast that went as a table or as JSON.
//!
//! - `throttle`: an emulated slow storage from the command line.
//! - `trainer`: who asks for the batches; `meter`: what a terminal shows meanwhile; `interrupt`: Ctrl-C.
//! - `ranks`: several ranks, a process each; `rank`: one of these; `launched`: one that mpirun started; `merged`: their numbers
//!   as those of one job.
//! - `text`: the results for people.
//!
//! What can be refused is refused before the dataset is listed: that may take minutes.

mod interrupt;
mod launched;
mod merged;
mod meter;
mod rank;
mod ranks;
mod text;
mod throttle;
mod trainer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use foresee_config::{
    Config, Environment, Given, THREADS_MAX, Threads, Tier, TierKind, size_bytes,
};
use foresee_core::policy::Assignment;
use foresee_core::stream::{Shuffle, Tail};
use foresee_runtime::dataset::{Dataset, Listing, PATIENCE_MAX};
use foresee_runtime::job::{Job, JobSpec, OnError, OnHost, Stats, policies};
use foresee_runtime::source::{LocalFiles, Source, Throttled};
use foresee_runtime::trace;
use foresee_runtime::transport::tcp::Mesh;
use serde::Serialize;

use self::interrupt::Interrupt;
use self::launched::{Company, Launch};
use self::merged::Merged;
use self::meter::Lister;
use self::rank::Line;
pub(crate) use self::ranks::Invocation;
use self::throttle::Slowness;
use self::trainer::{Lap, Lockstep, Ran, Trainer};
use crate::table;

/// What `foresee bench` takes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder that holds the class folders, or a manifest: a text file with a path and perhaps a label a line.
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Samples of a rank in a step.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Passes over the dataset.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    epochs: u32,
    /// Seed of the shuffle.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How epochs are shuffled.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = ShuffleKind::Torch)]
    shuffle: ShuffleKind,
    /// The policy: foresee, lobster, nopfs, monarch, locality-aware, distributed-cache, lbann-preload, lbann-dynamic,
    /// staging-buffer or naive.
    #[arg(long, value_name = "NAME", default_value = "foresee")]
    policy: String,
    /// Which rank this is.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rank: u32,
    /// Of how many; each runs on its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    world_size: u32,
    /// Run a job of so many ranks on this machine, a process each, that serve each other.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with_all = ["rank", "world_size"])]
    ranks: Option<u32>,
    /// With --ranks, or under mpirun: a step begins when all ranks have trained the one before.
    #[arg(long)]
    lockstep: bool,
    /// Which of the ranks this process is: the command that starts them gives it.
    #[arg(long, hide = true, requires = "ranks")]
    as_rank: Option<u32>,
    /// Who trains on which sample of a step: as the order says, or, with several ranks, who holds it.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Dealing::Order)]
    assignment: Dealing,
    /// Staging buffer and tiers [default: `FORESEE_CONFIG`, else foresee.toml in the current folder, if there is one].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Capacity of the staging buffer, such as "64 MiB", whatever the configuration says.
    #[arg(long, value_name = "SIZE", value_parser = room)]
    staging: Option<u64>,
    /// Capacity of the memory tier, whatever the configuration says; it is added where there is none.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Loader threads of the staging buffer, whatever the configuration says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    threads: Option<u32>,
    /// Make the source as slow as an emulated storage, which all processes that give this name share.
    #[arg(long, value_name = "NAME:MB_PER_S[:LATENCY_MS]")]
    throttle: Option<Slowness>,
    /// How long the trainer computes after each batch, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    compute_ms: f64,
    /// Write what happens to a file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ShuffleKind {
    Torch,
    Feistel,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Dealing {
    Order,
    Local,
}

/// Who this process is among ranks.
enum Party {
    /// The only one that knows of the others.
    Alone,
    /// The command started it, and hears its numbers.
    Started(Line),
    /// mpirun did.
    Launched(Launch),
}

impl Party {
    fn of(arguments: &Arguments) -> Result<Self> {
        if arguments.as_rank.is_some() {
            return Line::open().map(Self::Started);
        }
        let is_said = arguments.world_size > 1;
        let launch = Launch::of_process().filter(|_| !is_said);
        Ok(launch.map_or(Self::Alone, Self::Launched))
    }

    /// Which rank this process is, of how many, and its place on this host.
    fn seat(&self, arguments: &Arguments) -> Seat {
        let (rank, world, on_host) = match (self, arguments.as_rank, arguments.ranks) {
            (Self::Launched(launch), ..) => (launch.rank, launch.world, launch.on_host),
            (_, Some(rank), Some(ranks)) => (rank, ranks, Some(OnHost { rank, ranks })),
            _ => (arguments.rank, arguments.world_size, None),
        };
        Seat {
            rank,
            world,
            on_host,
        }
    }

    /// The way to the others, until they need it no more.
    fn reach(
        &self,
        config: &Config,
        environment: &Environment,
        seat: Seat,
    ) -> Result<Option<Arc<Mesh>>> {
        match self {
            Self::Alone => Ok(None),
            Self::Started(_) => rank::reach(&config.peers, (seat.rank, seat.world), environment),
            Self::Launched(launch) => launch.reach(&config.peers, environment),
        }
    }
}

/// Which rank this is.
#[derive(Clone, Copy)]
struct Seat {
    rank: u32,
    world: u32,
    on_host: Option<OnHost>,
}

/// How a benchmark ended.
pub(crate) enum Ended {
    /// At the end of its last epoch.
    Whole,
    /// By Ctrl-C.
    Interrupted,
    /// At its end, but its trace is not whole, as the loader has said.
    Untraced,
}

#[derive(Serialize)]
struct Printed<'a> {
    dataset: DatasetLine,
    job: JobLine<'a>,
    epochs: &'a [Lap],
    interrupted: bool,
    /// As the loader gives them.
    stats: &'a Stats,
}

#[derive(Serialize)]
struct DatasetLine {
    name: String,
    samples: u32,
    bytes: u64,
    classes: usize,
    opened_s: f64,
}

/// What was asked for, beside what the loader's own statistics say.
#[derive(Serialize)]
struct JobLine<'a> {
    batch: u32,
    epochs: u32,
    seed: u64,
    shuffle: &'static str,
    compute_ms: f64,
    throttle: Option<&'a Slowness>,
    ranks: Option<u32>,
    lockstep: bool,
    assignment: Dealing,
}

/// Loads and prints; `invocation` starts this command again, where it has several ranks.
pub(crate) fn run(arguments: &Arguments, invocation: &Invocation) -> Result<Ended> {
    check(arguments)?;
    match (arguments.ranks, arguments.as_rank) {
        (Some(ranks), None) => run_ranks(arguments, ranks, invocation),
        _ => run_rank(arguments),
    }
}

/// Runs all ranks of a job, and prints it as one.
fn run_ranks(arguments: &Arguments, ranks: u32, invocation: &Invocation) -> Result<Ended> {
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    let numbers = ranks::run(invocation, ranks, &interrupt)?;
    let merged = Merged::of(numbers)?;
    print_merged(arguments, &merged)?;
    Ok(if merged.interrupted {
        Ended::Interrupted
    } else {
        Ended::Whole
    })
}

/// Runs one rank: alone, or as one of several that the command or mpirun started.
fn run_rank(arguments: &Arguments) -> Result<Ended> {
    let party = Party::of(arguments)?;
    let seat = party.seat(arguments);
    // The loader's warnings; where another listener is set already, it has them.
    let warnings = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN);
    let _ = tracing::subscriber::set_global_default(
        warnings.without_time().with_target(false).finish(),
    );
    let environment = Environment::of_process();
    let config = configured(arguments, &environment, seat)?;
    let patience = config.peers.patience;
    let throttle = arguments
        .throttle
        .as_ref()
        .map(Slowness::open)
        .transpose()?
        .map(Arc::new);
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    let mesh = party.reach(&config, &environment, seat)?;
    let began = Instant::now();
    let opening = Opening {
        config: &config,
        environment: &environment,
        mesh: mesh.as_ref(),
    };
    let dataset = Arc::new(opening.open(&arguments.dataset)?);
    let opened_s = began.elapsed().as_secs_f64();
    let files = LocalFiles::new(Arc::clone(&dataset));
    let source: Arc<dyn Source> = match throttle {
        None => Arc::new(files),
        Some(throttle) => Arc::new(Throttled::new(files, throttle)),
    };
    let job = Job::new(spec(arguments, &dataset, source, config, seat))?;
    let company = mesh.as_ref().map(|mesh| Company::of(mesh, patience));
    let ran = train(
        arguments,
        &party,
        &job,
        mesh.as_ref(),
        company.as_ref(),
        &interrupt,
    )?;
    let printed = Printed {
        dataset: DatasetLine::of(&dataset, opened_s),
        job: JobLine::of(arguments, &party),
        epochs: &ran.laps,
        interrupted: ran.interrupted,
        stats: &ran.stats,
    };
    print(arguments, &party, company.as_ref(), &printed)?;
    Ok(match job.untraced() {
        _ if ran.interrupted => Ended::Interrupted,
        Some(_) => Ended::Untraced,
        None => Ended::Whole,
    })
}

/// Runs a job to its end, with those of the other ranks.
fn train(
    arguments: &Arguments,
    party: &Party,
    job: &Job,
    mesh: Option<&Arc<Mesh>>,
    company: Option<&Company>,
    interrupt: &Interrupt,
) -> Result<Ran> {
    if let (Party::Started(line), Some(0)) = (party, arguments.as_rank) {
        rank::tell(mesh, line)?;
    }
    if let Some(mesh) = mesh {
        rank::meet(job, mesh);
    }
    interrupt.hold();
    let lockstep = match party {
        Party::Alone => None,
        Party::Started(line) => Some(Lockstep::Line(line)),
        Party::Launched(_) => company.map(Lockstep::Company),
    };
    let trainer = Trainer {
        compute: Duration::from_secs_f64(arguments.compute_ms / 1e3),
        interrupt,
        lockstep: lockstep.filter(|_| arguments.lockstep),
    };
    let ran = trainer.train(job)?;
    if !matches!(party, Party::Alone) {
        rank::linger(job, interrupt);
    }
    job.close();
    Ok(ran)
}

/// Says what a rank has to say, to whom it concerns.
fn print(
    arguments: &Arguments,
    party: &Party,
    company: Option<&Company>,
    printed: &Printed<'_>,
) -> Result<()> {
    match (party, company) {
        (Party::Started(line), _) => line.say(&format!("end {}", serde_json::to_string(printed)?)),
        (Party::Launched(launch), Some(company)) => {
            let numbers = company.numbers(&serde_json::to_string(printed)?)?;
            if launch.rank == 0 {
                print_merged(arguments, &Merged::of(numbers)?)?;
            }
            Ok(())
        }
        (Party::Alone | Party::Launched(_), _) => table::print(&if arguments.json {
            serde_json::to_string_pretty(printed)?
        } else {
            text::bench(printed)
        }),
    }
}

fn print_merged(arguments: &Arguments, merged: &Merged) -> Result<()> {
    table::print(&if arguments.json {
        serde_json::to_string_pretty(merged)?
    } else {
        text::ranks(merged)
    })
}

/// What can be refused by looking at the options alone.
fn check(arguments: &Arguments) -> Result<()> {
    let Arguments {
        policy,
        rank,
        world_size,
        lockstep,
        ranks,
        ..
    } = arguments;
    if *lockstep && ranks.is_none() && Launch::of_process().is_none() {
        bail!("--lockstep: there is one rank only; give --ranks, or start several with mpirun");
    }
    if !policies().contains(&policy.as_str()) {
        bail!(
            "--policy {policy}: the loader has no such policy; choose from {}",
            policies().join(", ")
        );
    }
    if rank >= world_size {
        bail!(
            "--rank {rank}: not in a world of {world_size}; ranks count from 0, or raise --world-size"
        );
    }
    Ok(())
}

/// What the configuration says, and over it what the options say.
fn configured(arguments: &Arguments, environment: &Environment, seat: Seat) -> Result<Config> {
    let given = arguments
        .config
        .as_deref()
        .map_or(Given::Nothing, Given::File);
    let mut config = Config::resolve(given, environment)?.config;
    if let Some(capacity_bytes) = arguments.staging {
        config.staging.capacity_bytes = capacity_bytes;
    }
    if let Some(threads) = arguments.threads {
        config.staging.threads = Threads::Number(threads);
    }
    if let Some(capacity_bytes) = arguments.memory {
        match config
            .tiers
            .iter_mut()
            .find(|tier| tier.kind == TierKind::Memory)
        {
            Some(memory) => memory.capacity_bytes = capacity_bytes,
            None => config.tiers.insert(0, Tier::memory(capacity_bytes)),
        }
    }
    if let Some(trace) = &arguments.trace {
        let of_rank = trace::path_of(trace, seat.rank, seat.world);
        check_trace(&of_rank, &arguments.dataset)?;
        config.trace = Some(trace.clone());
    }
    Ok(config)
}

/// Fails early where the loader could only fail, and where a slip of the hand would cost the dataset.
fn check_trace(trace: &Path, dataset: &Path) -> Result<()> {
    let name = trace.display();
    if trace
        .canonicalize()
        .is_ok_and(|trace| dataset.canonicalize().is_ok_and(|dataset| trace == dataset))
    {
        bail!("--trace {name}: is the dataset itself; give another name");
    }
    File::options()
        .append(true)
        .create(true)
        .open(trace)
        .with_context(|| format!("--trace {name}: cannot be written"))?;
    Ok(())
}

/// How the dataset is found: rank 0 of several lists it, the others get its catalog.
struct Opening<'a> {
    config: &'a Config,
    environment: &'a Environment,
    mesh: Option<&'a Arc<Mesh>>,
}

impl Opening<'_> {
    /// Lists the dataset, or finds it listed.
    fn open(&self, path: &Path) -> Result<Dataset> {
        let lister = Lister::new();
        let progress = |samples| lister.tick(samples);
        let cache = self.config.catalog.folder(self.environment);
        let listing = Listing {
            cache: cache.as_deref(),
            trusted: self.config.trust_catalogs,
            progress: Some(&progress),
            mesh: self.mesh,
            patience: self.config.peers.patience.min(PATIENCE_MAX),
            ..Listing::default()
        };
        let is_manifest = path.exists() && !path.is_dir();
        Ok(if is_manifest {
            Dataset::manifest(path, &listing)
        } else {
            Dataset::image_folder(path, &listing)
        }?)
    }
}

fn spec(
    arguments: &Arguments,
    dataset: &Dataset,
    source: Arc<dyn Source>,
    config: Config,
    seat: Seat,
) -> JobSpec {
    let seed = arguments.seed;
    JobSpec {
        source,
        catalog: dataset.catalog(),
        dataset: dataset.digest(),
        shuffle: match arguments.shuffle {
            ShuffleKind::Torch => Shuffle::Torch { seed },
            ShuffleKind::Feistel => Shuffle::Feistel { seed },
        },
        own_order: false,
        batch_size: arguments.batch,
        epochs: arguments.epochs,
        drop_last: false,
        tail: Tail::Pad,
        policy: arguments.policy.clone(),
        assignment: match arguments.assignment {
            Dealing::Order => Assignment::Order,
            Dealing::Local => Assignment::Local,
        },
        on_error: OnError::Raise,
        images: None,
        config,
        rank: seat.rank,
        world: seat.world,
        on_host: seat.on_host,
        consumer: 0,
        record: false,
    }
}

impl DatasetLine {
    fn of(dataset: &Dataset, opened_s: f64) -> Self {
        Self {
            name: dataset.describe(),
            samples: dataset.len(),
            bytes: dataset.catalog().total().0,
            classes: dataset.classes().len(),
            opened_s,
        }
    }
}

impl<'a> JobLine<'a> {
    fn of(arguments: &'a Arguments, party: &Party) -> Self {
        let &Arguments {
            batch,
            epochs,
            seed,
            compute_ms,
            ..
        } = arguments;
        let shuffle = match arguments.shuffle {
            ShuffleKind::Torch => "torch",
            ShuffleKind::Feistel => "feistel",
        };
        Self {
            batch,
            epochs,
            seed,
            shuffle,
            compute_ms,
            throttle: arguments.throttle.as_ref(),
            ranks: match party {
                Party::Launched(launch) => Some(launch.world),
                Party::Alone | Party::Started(_) => arguments.ranks,
            },
            lockstep: arguments.lockstep,
            assignment: arguments.assignment,
        }
    }
}

/// A size with its unit, or a whole number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().or_else(|| size_bytes(text));
    bytes.ok_or_else(|| {
        "write a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in \"4 GiB\""
            .to_owned()
    })
}

/// A size of something that cannot do without.
fn room(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| {
        if bytes > 0 {
            Ok(bytes)
        } else {
            Err("give more than 0 B".to_owned())
        }
    })
}

/// Up to an hour: longer is a slip of the hand.
fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.0..=3.6e6).contains(number));
    number.ok_or_else(|| "give milliseconds from 0 to 3600000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_or_counts_bytes() {
        assert_eq!(
            ["4096", "1 KiB", "1.5MB", "1.5 kB", "0"].map(size),
            [Ok(4096), Ok(1024), Ok(1_500_000), Ok(1500), Ok(0)]
        );
        assert!(
            ["", "-1", "1 XB", "lots", "nan"]
                .iter()
                .all(|text| size(text).is_err())
        );
        assert_eq!(room("0 B"), Err("give more than 0 B".to_owned()));
    }

    #[test]
    fn compute_is_a_time() {
        assert_eq!(
            ["0", "2.5", "3600000"].map(milliseconds),
            [Ok(0.0), Ok(2.5), Ok(3.6e6)]
        );
        assert!(
            ["-1", "nan", "inf", "3600001", "x"]
                .iter()
                .all(|text| milliseconds(text).is_err())
        );
    }
}
