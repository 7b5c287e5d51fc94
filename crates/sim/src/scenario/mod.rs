//! Scenarios: what `foresee simulate FILE.toml` runs. A scenario names a job, a dataset and a system.
//!
//! The way from a file to a [`Scenario`] has four stations, so that a sweep can repeat the last two cheaply:
//! text -> TOML table ([`Template`]) -> overrides ([`Set`]) -> the reader, which checks every key and value. What the
//! reader lets through is plain data within the bounds named in the key's error message; turning it into a model is
//! done elsewhere. The keys are listed in `schema.rs`: a misspelt key is an error, never a silent default.
//!
//! Every error is one line that says where the value came from (the file, or the `--set` that gave it), which key it
//! is and what to write instead.
//!
//! ```
//! use foresee_sim::scenario::{ShuffleKind, Template};
//!
//! let text = r#"
//!     name = "tiny"
//!     [job]
//!     ranks = 2
//!     global_batch = 4
//!     epochs = 3
//!     compute_mb_per_s = 100
//!     preprocess_mb_per_s = 200
//!     [dataset]
//!     samples = 1000
//!     size_mb = { mean = 0.1, stddev = 0.02 }
//!     [system]
//!     network_mb_per_s = 10_000
//!     source_link_mb_per_s = 2000
//!     source_read_mb_per_s = { 1 = 66, 2 = 86 }
//!     [[system.tier]]
//!     name = "staging"
//!     capacity_mb = 64
//!     threads = 2
//!     read_mb_per_s = { 2 = 21_164 }
//! "#;
//! let template = Template::parse("tiny.toml".as_ref(), text)?;
//! let scenario = template.with(&["job.shuffle=torch".parse()?])?;
//! assert_eq!(scenario.job.shuffle, ShuffleKind::Torch);
//! assert_eq!(scenario.sizes()?.len(), 1000);
//!
//! let error = template.with(&["job.rank=4".parse()?]).unwrap_err();
//! assert_eq!(error.to_string(), "--set job.rank=4: unknown key; did you mean job.ranks?");
//! # Ok::<(), foresee_config::InputError>(())
//! ```

mod curve;
mod normal;
mod read;
mod schema;
mod set;
mod sizes;

use std::path::{Path, PathBuf};

use foresee_config::InputError;
use foresee_config::reader::{self, Document, Override};

pub use set::Set;

/// A job on a dataset on a system: everything a simulation starts from.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What reports call it.
    pub name: String,
    /// What is trained.
    pub job: JobSpec,
    /// What it is trained on.
    pub dataset: DatasetSpec,
    /// What it runs on.
    pub system: SystemSpec,
}

/// The training job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Training processes, up to 65,536.
    pub ranks: u32,
    /// Ranks that share one host; divides `ranks`.
    pub ranks_per_host: u32,
    /// Samples of one step, all ranks together; at most the dataset.
    pub global_batch: u32,
    /// Passes over the dataset.
    pub epochs: u32,
    /// Whether an incomplete last batch of an epoch is dropped.
    pub drop_last: bool,
    /// Seed of the shuffle and of the sizes.
    pub seed: u64,
    /// How each epoch's order is drawn.
    pub shuffle: ShuffleKind,
    /// Who trains on which sample of a global batch.
    pub assignment: AssignmentKind,
    /// Whether a host's threads go to the rank that would be late.
    pub balance: BalanceKind,
    /// How large a sample is once decoded, for each MB that is read: what it takes of the staging buffer.
    pub decoded_mb_per_mb: f64,
    /// What one rank trains a second.
    pub compute_mb_per_s: f64,
    /// What one rank decodes a second.
    pub preprocess_mb_per_s: Preprocess,
}

/// How each epoch's order is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShuffleKind {
    /// A keyed permutation that needs no memory.
    Feistel,
    /// The order that `PyTorch` draws from the same seed.
    Torch,
}

/// Who trains on which sample of a global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentKind {
    /// As the order is dealt.
    Order,
    /// Who holds it, as far as batches stay even.
    Local,
}

/// Whether a host's threads go to the rank that would be late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceKind {
    /// As the policy has it: `lobster` and `foresee` do.
    #[default]
    Policy,
    /// No: each rank has its own.
    Off,
    /// By Lobster's Algorithm 1, whatever the policy.
    Lobster,
    /// The next one to the latest rank, whatever the policy.
    Foresee,
}

/// How fast one rank decodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Preprocess {
    /// The rate of each thread, whatever their number.
    PerThread(f64),
    /// The rate of all threads together, by their number.
    Curve(Points),
}

/// Points of a curve, sorted by the first, strictly increasing: (readers or threads, MB/s of all of them together).
pub type Points = Vec<(u32, f64)>;

/// The dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetSpec {
    /// How many samples, up to 2^32 - 2.
    pub samples: u32,
    /// How big they are.
    pub size_mb: SizeSpec,
}

/// How big samples are.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeSpec {
    /// Drawn from a normal distribution, clipped at 0.
    Normal {
        /// Mean before clipping, in MB.
        mean: f64,
        /// Standard deviation before clipping, in MB.
        stddev: f64,
    },
    /// All the same, in MB.
    Fixed(f64),
    /// One size in MB per line of this file.
    File(PathBuf),
}

/// The machines, their network and the source.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemSpec {
    /// Between two ranks.
    pub network_mb_per_s: f64,
    /// Between one rank and the source.
    pub source_link_mb_per_s: f64,
    /// What the source gives to all readers together, by their number.
    pub source_read_mb_per_s: Points,
    /// How long a read of the source takes before its first byte.
    pub source_latency_ms: f64,
    /// What counts as one reader of the source.
    pub contention: ContentionKind,
    /// What a curve is beyond its points.
    pub extrapolate: ExtrapolateKind,
    /// Cores for the threads of one host, where threads are balanced.
    pub cores_per_host: Option<u32>,
    /// The tiers, fastest first; the first is the staging buffer. Never empty.
    pub tiers: Vec<TierSpec>,
}

/// What counts as one reader of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentionKind {
    /// A rank with a read under way, whatever its number of threads: the papers' reading.
    Ranks,
    /// A read under way: the physical reading.
    Reads,
}

/// What a curve is beyond its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtrapolateKind {
    /// The line of least squares through all points.
    Regression,
    /// The nearest point.
    Clamp,
}

/// One tier.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSpec {
    /// What reports call it; no two tiers of a system share a name.
    pub name: String,
    /// What it holds, for each rank, each host or all together, by `scope`.
    pub capacity_mb: f64,
    /// Who shares it.
    pub scope: ScopeKind,
    /// Threads of one rank that fill it.
    pub threads: u32,
    /// Reads of all threads together, by their number.
    pub read_mb_per_s: Points,
    /// Writes of all threads together, by their number; as reads where the file says nothing.
    pub write_mb_per_s: Points,
}

/// Who shares a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// Nobody: each rank has its own.
    Rank,
    /// The ranks of one host.
    Host,
    /// All ranks.
    Global,
}

impl Scenario {
    /// The scenario in this file, with overrides; later ones win.
    pub fn load(path: &Path, sets: &[Set]) -> Result<Self, InputError> {
        Template::load(path)?.with(sets)
    }
}

/// A scenario file read once, to be made into scenarios with different overrides.
#[derive(Clone, Debug)]
pub struct Template {
    path: PathBuf,
    root: toml::Value,
}

impl Template {
    /// The file as it is: TOML, but no key looked at yet.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        Self::parse(path, &reader::read_text(path, "scenario")?)
    }

    /// Of a text that stands for the file `path`: errors name it, and files named in the text are sought beside it.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InputError> {
        Ok(Self {
            path: path.to_owned(),
            root: toml::Value::Table(reader::parse(path, text)?),
        })
    }

    /// The scenario with these overrides; later ones win.
    pub fn with(&self, sets: &[Set]) -> Result<Scenario, InputError> {
        let mut root = self.root.clone();
        for set in sets {
            set.apply(&mut root)?;
        }
        let overrides: Vec<Override> = sets.iter().map(Set::blamed).collect();
        read::scenario(
            Document {
                file: &self.path,
                tables: schema::TABLES,
                overrides: &overrides,
            },
            &root,
        )
    }
}
