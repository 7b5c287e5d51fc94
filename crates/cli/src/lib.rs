//! The `foresee` command, for its binary and for whoever offers it under another roof, such as a Python package. Bad input
//! ends with exit code 2 and one line that says what is wrong and what to do.

mod bench;
mod cache;
mod histograms;
mod plan;
mod progress;
mod report;
mod run;
mod runs;
mod simulate;
mod sweep;
mod table;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use foresee_config::OneLine;

const SUCCESS: u8 = 0;
/// What was asked for was done, but not all of it.
const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
/// What shells report of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Training-data I/O that knows every future read.
#[derive(Parser)]
#[command(name = "foresee", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate a training job on a described machine, policy by policy.
    Simulate(simulate::Arguments),
    /// Say what to expect of a training job before it runs, from a scenario or from a folder with the dataset.
    Plan(plan::Arguments),
    /// Load a dataset as a training job would and say how fast that is.
    Bench(bench::Arguments),
    /// Make a page with charts of real runs, with what was predicted beside what was measured.
    Report(runs::Arguments),
    /// Look after a cache folder, of jobs or of foresee run: what it holds, whether that is whole, emptying it.
    Cache(cache::Arguments),
    /// Run a program, unchanged, with copies of what it reads on faster storage.
    Run(run::Arguments),
}

/// Runs the command; `arguments` begin with its name.
pub fn run<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> ExitCode {
    ExitCode::from(status(arguments))
}

/// The same for those who need the exit code as a number.
pub fn status<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> u8 {
    let program = std::env::current_exe().map(|path| vec![path.into_os_string()]);
    status_of(program.unwrap_or_default(), None, arguments)
}

/// The same where the command is part of another program: `program` is what starts it again, before its arguments, and
/// `library` what `foresee run` preloads, where that is not beside the program.
pub fn status_of<T: Into<OsString> + Clone>(
    program: Vec<OsString>,
    library: Option<&Path>,
    arguments: impl IntoIterator<Item = T>,
) -> u8 {
    let given: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let invocation = bench::Invocation {
        program,
        arguments: given.iter().skip(1).cloned().collect(),
    };
    let done = match Arguments::try_parse_from(given) {
        Ok(arguments) => match arguments.command {
            Command::Simulate(arguments) => simulate::run(&arguments).map(|()| SUCCESS),
            Command::Plan(arguments) => plan::run(&arguments).map(|()| SUCCESS),
            Command::Bench(arguments) => {
                bench::run(&arguments, &invocation).map(|ended| match ended {
                    bench::Ended::Whole => SUCCESS,
                    bench::Ended::Interrupted => INTERRUPTED,
                    bench::Ended::Untraced => FAILED,
                })
            }
            Command::Report(arguments) => runs::run(&arguments).map(|()| SUCCESS),
            Command::Cache(arguments) => {
                cache::run(&arguments).map(|is_done| if is_done { SUCCESS } else { FAILED })
            }
            Command::Run(arguments) => run::run(&arguments, library),
        },
        // Help and version; whoever reads them may have gone away.
        Err(asked) if !asked.use_stderr() => asked
            .print()
            .or_else(table::forgive_broken_pipe)
            .map(|()| SUCCESS)
            .map_err(Into::into),
        Err(wrong) => Err(anyhow::Error::msg(usage(&wrong))),
    };
    done.unwrap_or_else(|error| refuse(&format!("{error:#}")))
}

/// What is wrong with the command line, in one line.
fn usage(wrong: &clap::Error) -> String {
    if wrong.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command given; try foresee --help".to_owned();
    }
    let text = wrong.to_string();
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let said: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    format!(
        "{}; try foresee --help",
        said.join(" ").trim_start_matches("error: ")
    )
}

/// Says what is wrong, on one line whatever it quotes.
fn refuse(said: &str) -> u8 {
    let line = OneLine(said);
    #[expect(clippy::print_stderr, reason = "the command's one place for errors")]
    {
        eprintln!("foresee: {line}");
    }
    BAD_INPUT
}
