//! The `foresee` command. Bad input ends with exit code 2 and one line that says what is wrong and what to do.

mod histograms;
mod plan;
mod progress;
mod report;
mod simulate;
mod sweep;
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
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(asked) if !asked.use_stderr() => asked.exit(),
        Err(wrong) => return refuse(&usage(&wrong)),
    };
    let done = match arguments.command {
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&format!("{error:#}")),
    }
}

/// What is wrong with the command line, in one line.
fn usage(wrong: &clap::Error) -> String {
    if wrong.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command given; try foresee --help".to_owned();
    }
    let text = wrong.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let said: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information")).collect();
    format!("{}; try foresee --help", said.join(" ").trim_start_matches("error: "))
}

/// Says what is wrong, on one line whatever it quotes.
fn refuse(said: &str) -> ExitCode {
    let line: String = said.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    #[expect(clippy::print_stderr, reason = "the command's one place for errors")]
    {
        eprintln!("foresee: {line}");
    }
    ExitCode::from(2)
}
