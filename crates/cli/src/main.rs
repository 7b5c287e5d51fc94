//! The `foresee` command. Bad input ends with exit code 2 and one line that says what is wrong and what to do.

mod plan;
mod progress;
mod simulate;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the command's one place for errors")]
            {
                eprintln!("foresee: {error:#}");
            }
            ExitCode::from(2)
        }
    }
}
