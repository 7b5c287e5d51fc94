//! `foresee run`: starts a program, unchanged, with copies of what it reads kept on faster storage.
//!
//! What it does before the program: cache folders are made and checked, the run's file is written (`foresee_cache::run`), and
//! the copying process is told, or started. Then this process becomes the program, so that process number, signals and
//! exit status are the program's own. Only where statistics are asked for it stays behind, passes signals on, and ends as the
//! program ended.
//!
//! Whatever of that fails after the command line was understood is said in one line, and the program runs all the same.

mod elf;
mod file;
mod forking;
mod guide;
mod library;
mod places;
mod stats;
mod waiting;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use foresee_cache::run::{Run, VARIABLE};
use foresee_cache::{copier, folder};
use foresee_config::OneLine;

use file::Said;
use guide::Guidance;
use places::Places;

/// What shells report of a command that is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
const COPY_THREADS: u8 = 2;
/// What reads ahead of a storage that answers slowly needs several reads under way; they take little memory.
const GUIDE_THREADS_MIN: u8 = 8;

/// Files of the folders that are named are copied to the cache folders when they are first read, and read from there later on.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    places: places::PlaceArguments,
    #[command(flatten)]
    guide: guide::OrderArguments,
    /// Print what was read from where when the program has ended
    #[arg(long)]
    stats: bool,
    /// Write the same to a file, for programs
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,
    /// How many large files are copied at once [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    copy_threads: Option<u8>,
    /// A file with sources, caches and the rest, for what is not given here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Runs a program; gives its exit status, if this process is still the one that ran it.
pub(crate) fn run(arguments: &Arguments, library: Option<&Path>) -> anyhow::Result<u8> {
    let file = arguments.config.as_deref().map(Said::read);
    let file = file.transpose()?.unwrap_or_default();
    let places = arguments.places.read(&file)?;
    let copy_threads = arguments.copy_threads.or(file.copy_threads);
    let told = Told {
        program: &arguments.command[0],
        places,
        copy_threads: copy_threads.unwrap_or(COPY_THREADS),
    };
    let guidance = arguments.guide.read()?;
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    let started = match prepare(&told, guidance.as_ref(), library) {
        Ok(started) => started,
        Err(error) => {
            say(&format!("{error:#}; the program runs without a cache"));
            None
        }
    };
    if let Some(started) = &started {
        command.env(VARIABLE, &started.path);
        command.env(library::VARIABLE, &started.preload);
    }
    let wants_stats = arguments.stats || arguments.stats_json.is_some();
    match started.filter(|_| wants_stats) {
        Some(started) => waiting::run(command, arguments, &started),
        None => Ok(failed(&arguments.command[0], &command.exec())),
    }
}

/// What was made for the program.
pub(crate) struct Started {
    /// The file of the run.
    path: PathBuf,
    /// The run, to be summed up.
    run: Run,
    preload: OsString,
    began: std::time::Instant,
}

/// What was told of the program and of what is cached for it.
struct Told<'a> {
    program: &'a OsStr,
    places: Places,
    copy_threads: u8,
}

fn prepare(
    told: &Told<'_>,
    guidance: Option<&Guidance>,
    library: Option<&Path>,
) -> anyhow::Result<Option<Started>> {
    let program = told.program;
    if let Some(why) = elf::objection(program) {
        say(&format!(
            "{} {why}: it runs without a cache",
            OneLine(program.display())
        ));
        return Ok(None);
    }
    let library = library::find(library)?;
    let mut settings = told.places.settings()?;
    settings.tells_opens = guidance.is_some();
    let first = PathBuf::from(OsStr::from_bytes(&settings.tiers[0].path));
    let name = run_name();
    let path = first.join("runs").join(&name);
    Run::make(&path, &settings).with_context(|| format!("cannot make {}", path.display()))?;
    let run = Run::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    for tier in &settings.tiers[1..] {
        let path = Path::new(OsStr::from_bytes(&tier.path));
        folder::tidy_unused(path).with_context(|| format!("cannot tidy {}", path.display()))?;
    }
    enlist(&first, name.as_bytes(), told.copy_threads)?;
    if let Some(guidance) = guidance {
        start_guide(guidance, &path, told.copy_threads)?;
    }
    Ok(Some(Started {
        path,
        run,
        preload: library::preload(&library),
        began: std::time::Instant::now(),
    }))
}

/// This process, as others can wait for its end.
fn own_process() -> anyhow::Result<OwnedFd> {
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(rustix::process::getpid(), flags)
        .context("cannot watch this process")
}

/// Tells the copying process of this run; without one, large files are not copied, and all else works.
fn enlist(first: &Path, name: &[u8], threads: u8) -> anyhow::Result<()> {
    let process = own_process()?;
    let start = |socket| {
        forking::start(socket, |socket| {
            let _ = std::fs::write(
                first.join("copier.pid"),
                format!("{}\n", std::process::id()),
            );
            let _ = copier::serve(first, socket, threads.into());
        })
    };
    if let Err(error) = copier::enlist(first, name, process.as_fd(), start) {
        say(&format!(
            "no copying process: {error}; large files are read from the source"
        ));
    }
    Ok(())
}

/// Starts who brings files in the order in which they will be opened.
fn start_guide(guidance: &Guidance, run: &Path, threads: u8) -> anyhow::Result<()> {
    let program = std::process::id();
    let threads = threads.max(GUIDE_THREADS_MIN);
    let started = forking::start(own_process()?, |process| {
        guide::speak_through(program);
        guide::serve(guidance, run, &process, threads.into());
    });
    started.context("cannot read ahead")
}

/// A name that no other run on this host has.
fn run_name() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("{}-{:x}", std::process::id(), since.as_nanos())
}

fn failed(program: &OsStr, error: &std::io::Error) -> u8 {
    say(&format!(
        "cannot run {}: {error}",
        OneLine(program.display())
    ));
    if error.kind() == std::io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_RUN
    }
}

/// One line, on stderr: stdout is the program's.
fn say(what: &str) {
    #[expect(
        clippy::print_stderr,
        reason = "said before or after the program, never while it runs"
    )]
    {
        eprintln!("foresee: {}", OneLine(what));
    }
}
