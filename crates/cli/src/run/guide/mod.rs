//! Knows in which order a program will open its files, and brings them before it does: a process of its own for each run that was
//! told an order. The engine and the policy are `core`'s, as in the loader and the simulator, with a file as a sample:
//! a part of the quota is the staging buffer, a window that moves ahead of the reader; in the rest, the policy keeps what saves
//! most of the source. Here is only what reads files and hears what was opened.
//!
//! The program need not follow: what it opens is right in any case. After 64 opens that are not in the order, the guide says so
//! in one line and ends, and the cache goes on as without it.

mod driver;
mod follow;
mod order;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use foresee_cache::serving::Served;
use foresee_config::OneLine;

/// What shuffles a program's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sampler {
    /// torch's `DistributedSampler` over torchvision's `ImageFolder`
    TorchDistributed,
}

#[derive(Args)]
pub(crate) struct OrderArguments {
    /// The files in the order in which they will be opened, one path a line, below the source; an empty line ends an epoch
    #[arg(long, value_name = "FILE", conflicts_with = "sampler")]
    order: Option<PathBuf>,
    /// What shuffles the files of the source, which are in class folders
    #[arg(long, value_name = "NAME", requires = "epochs")]
    sampler: Option<Sampler>,
    /// The sampler's seed
    #[arg(long, value_name = "S", default_value_t = 0, requires = "sampler")]
    seed: u64,
    /// How many epochs the program runs
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// How many ranks share the order; those of this host, unless RANK says which this is
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: u32,
}

/// An order that a program was said to follow.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// A list for each epoch.
    Listed { file: PathBuf, epochs: Option<u32> },
    /// A sampler's.
    Sampled { seed: u64, epochs: u32 },
}

/// What the guide goes by.
#[derive(Clone, Debug)]
pub(crate) struct Guidance {
    said: Said,
    ranks: u32,
    /// Which of the ranks is guided; none means all of them.
    rank: Option<u32>,
    /// Guides that share the cache folders on this host.
    sharers: u32,
}

impl OrderArguments {
    /// What was said of the order, if anything was.
    pub(crate) fn read(&self) -> anyhow::Result<Option<Guidance>> {
        let said = match (&self.order, self.sampler, self.epochs) {
            (Some(file), _, epochs) => Said::Listed {
                file: std::path::absolute(file)?,
                epochs,
            },
            (None, Some(Sampler::TorchDistributed), Some(epochs)) => Said::Sampled {
                seed: self.seed,
                epochs,
            },
            _ => return Ok(None),
        };
        let rank = first_number(&["RANK", "SLURM_PROCID"]).filter(|_| self.ranks > 1);
        if let Some(rank) = rank.filter(|rank| *rank >= self.ranks) {
            bail!(
                "this is rank {rank} of {}; give --ranks as many as there are",
                self.ranks
            );
        }
        let sharers = rank.and(first_number(&["LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"]));
        Ok(Some(Guidance {
            said,
            ranks: self.ranks,
            rank,
            sharers: sharers.unwrap_or(1).max(1),
        }))
    }
}

fn first_number(names: &[&str]) -> Option<u32> {
    let number = |name: &&str| std::env::var(name).ok()?.parse().ok();
    names.iter().find_map(number)
}

/// Guides a run until its process ends; for a process of its own.
pub(crate) fn serve(guidance: &Guidance, run_path: &Path, process: &OwnedFd, threads: usize) {
    if let Err(error) = guide(guidance, run_path, process, threads) {
        tell(&format!("{error:#}; files are cached as they are opened"));
    }
}

fn guide(
    guidance: &Guidance,
    run_path: &Path,
    process: &OwnedFd,
    threads: usize,
) -> anyhow::Result<()> {
    let served = Served::open(run_path)?;
    let course = order::course(guidance, served.run.settings(), &served.cache)?;
    driver::drive(course, &served, process.as_fd(), threads);
    Ok(())
}

/// One line on the stream that the program has for errors, opened for just that: the guide keeps none.
fn tell(what: &str) {
    if let Some(stream) = STREAM.get()
        && let Ok(mut stream) = std::fs::File::options().append(true).open(stream)
    {
        let _ = writeln!(stream, "foresee: {}", OneLine(what));
    }
}

static STREAM: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();

/// Says by whose stream [`tell`] speaks.
pub(crate) fn speak_through(process: u32) {
    let _ = STREAM.set(PathBuf::from(format!("/proc/{process}/fd/2")));
}
