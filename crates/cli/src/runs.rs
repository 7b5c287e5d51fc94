//! `foresee report`: real runs as a page to look at. Owns the form in which programs hand runs over: that of
//! `foresee bench --json`, run by run, so that its output is a run as it is. Draws nothing.

mod balance;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer};

pub(crate) use self::balance::Balance;
use crate::report;

/// Far more than the numbers of any job; whoever gives more gave another file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// More bars than anybody compares.
const RUNS_MAX: usize = 64;
/// More points than a small chart has pixels.
const EPOCHS_MAX: usize = 10_000;

/// More rows than a page should have.
const RANKS_MAX: usize = 1_024;

/// What `foresee report` takes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The runs; docs/report.md says in which form.
    #[arg(value_name = "RUNS.json")]
    runs: PathBuf,
    /// The page: one file that needs no network.
    #[arg(long, value_name = "FILE.html")]
    output: PathBuf,
}

/// Runs of the same job under several policies.
#[derive(Debug, Deserialize)]
#[allow(clippy::struct_field_names, reason = "the name of the key in the file")]
pub(crate) struct Runs {
    /// What the page is called.
    pub name: String,
    /// How long the job takes if the trainer never waits.
    pub lower_bound_s: Option<f64>,
    /// What the runs were made with, by key.
    #[serde(default)]
    pub inputs: BTreeMap<String, Input>,
    /// The first is the one that others are compared with.
    #[expect(clippy::struct_field_names, reason = "the key in the file")]
    pub runs: Vec<Run>,
}

/// A value of an input: a text, a number or a truth value, as it is shown.
#[derive(Debug)]
pub(crate) struct Input(pub String);

/// One run.
#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    /// What the page calls it; where there is none, its policy.
    name: Option<String>,
    pub epochs: Vec<Epoch>,
    pub stats: Stats,
    /// What the simulator says of it: a result of `foresee simulate --json`.
    pub prediction: Option<Prediction>,
    /// What each rank did, where there are several.
    #[serde(default)]
    pub ranks: Vec<OfRank>,
}

/// What one rank of a run did.
#[derive(Debug, Deserialize)]
pub(crate) struct OfRank {
    pub rank: u32,
    pub samples: u64,
    pub stall_s: f64,
    pub stats: RankStats,
}

/// What is shown of a rank's statistics.
#[derive(Debug, Deserialize)]
pub(crate) struct RankStats {
    #[serde(default)]
    pub origins: BTreeMap<String, Reads>,
    pub balance: Option<Balance>,
}

/// What an epoch took.
#[derive(Debug, Deserialize)]
pub(crate) struct Epoch {
    pub total_s: f64,
    pub stall_s: f64,
    /// By origin, read while the epoch was trained on.
    #[serde(default)]
    pub read_bytes: BTreeMap<String, u64>,
}

/// What is shown of a job's statistics.
#[derive(Debug, Deserialize)]
pub(crate) struct Stats {
    pub policy: String,
    pub first_batch_s: Option<f64>,
    #[serde(default)]
    pub stall_by_s: BTreeMap<String, f64>,
    #[serde(default)]
    pub origins: BTreeMap<String, Reads>,
    pub source_bytes: u64,
    /// None where it is not known: epochs have no end, or orders come from a sampler.
    pub source_minimum_bytes: Option<u64>,
    /// None where ranks of a host share no threads.
    pub balance: Option<Balance>,
}

/// Reads from one origin.
#[derive(Debug, Deserialize)]
pub(crate) struct Reads {
    pub bytes: u64,
}

/// What is shown of a prediction.
#[derive(Debug, Deserialize)]
pub(crate) struct Prediction {
    pub total_s: f64,
    #[serde(default)]
    pub startup_s: f64,
    #[serde(default)]
    pub stall_s: f64,
    /// By origin.
    #[serde(default)]
    pub bytes: BTreeMap<String, u64>,
}

/// Writes the page.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { runs: path, output } = arguments;
    report::check(output, "--output")?;
    let is_input = output
        .canonicalize()
        .is_ok_and(|output| path.canonicalize().is_ok_and(|path| path == output));
    ensure!(
        !is_input,
        "--output {}: is the file with the runs; give another name",
        output.display()
    );
    let runs = Runs::load(path).with_context(|| path.display().to_string())?;
    report::write_runs(&runs, output)
}

impl Runs {
    fn load(path: &Path) -> Result<Self> {
        ensure!(
            !fs::metadata(path)?.is_dir(),
            "is a folder; give a file in the form of docs/report.md"
        );
        let mut text = Vec::new();
        // A device says that it is empty and has no end.
        File::open(path)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut text)?;
        let is_small = text.len() as u64 <= FILE_BYTES_MAX;
        ensure!(
            is_small,
            "is larger than 64 MiB; give a file in the form of docs/report.md"
        );
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let runs: Self = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| anyhow::anyhow!("{}: {}", error.path(), error.inner()))
            .context("not in the form of docs/report.md")?;
        json.end().context("not in the form of docs/report.md")?;
        runs.check()?;
        Ok(runs)
    }

    fn check(&self) -> Result<()> {
        let Self {
            name: _,
            lower_bound_s,
            inputs: _,
            runs,
        } = self;
        ensure!(!runs.is_empty(), "runs: empty; give one at least");
        ensure!(
            runs.len() <= RUNS_MAX,
            "runs: {} are too many; give {RUNS_MAX} at most",
            runs.len()
        );
        check_seconds("lower_bound_s", *lower_bound_s)?;
        let mut names = BTreeSet::new();
        for (at, run) in runs.iter().enumerate() {
            run.check().with_context(|| format!("runs[{at}]"))?;
            ensure!(
                names.insert(run.name()),
                "runs[{at}].name: another run is called {} too; give each its own",
                run.name()
            );
        }
        Ok(())
    }
}

impl Run {
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.stats.policy)
    }

    pub(crate) fn total_s(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.total_s).sum()
    }

    pub(crate) fn stall_s(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.stall_s).sum()
    }

    fn check(&self) -> Result<()> {
        let Self {
            name: _,
            epochs,
            stats,
            prediction,
            ranks,
        } = self;
        ensure!(!epochs.is_empty(), "epochs: empty; give one at least");
        ensure!(
            epochs.len() <= EPOCHS_MAX,
            "epochs: {} are too many; give {EPOCHS_MAX} at most",
            epochs.len()
        );
        for (at, epoch) in epochs.iter().enumerate() {
            check_seconds(format_args!("epochs[{at}].total_s"), [epoch.total_s])?;
            check_seconds(format_args!("epochs[{at}].stall_s"), [epoch.stall_s])?;
        }
        check_seconds("stats.first_batch_s", stats.first_batch_s)?;
        check_seconds("stats.stall_by_s", stats.stall_by_s.values().copied())?;
        if let Some(balance) = &stats.balance {
            balance.check().context("stats.balance")?;
        }
        let predicted = prediction
            .iter()
            .flat_map(|it| [it.total_s, it.startup_s, it.stall_s]);
        check_seconds("prediction", predicted)?;
        ensure!(
            ranks.len() <= RANKS_MAX,
            "ranks: {} are too many; give {RANKS_MAX} at most",
            ranks.len()
        );
        for (at, rank) in ranks.iter().enumerate() {
            check_seconds(format_args!("ranks[{at}].stall_s"), [rank.stall_s])?;
            if let Some(balance) = &rank.stats.balance {
                let checked = balance.check();
                checked.with_context(|| format!("ranks[{at}].stats.balance"))?;
            }
        }
        Ok(())
    }
}

/// JSON has no numbers that are none, but negative ones.
fn check_seconds(what: impl fmt::Display, values: impl IntoIterator<Item = f64>) -> Result<()> {
    match values
        .into_iter()
        .find(|value| !(0.0..=1e12).contains(value))
    {
        Some(wrong) => bail!("{what}: {wrong}; give seconds, 0 or more"),
        None => Ok(()),
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Truth(bool),
            Whole(i64),
            Number(f64),
        }
        Ok(Self(match Form::deserialize(deserializer)? {
            Form::Text(text) => text,
            Form::Truth(truth) => truth.to_string(),
            Form::Whole(number) => number.to_string(),
            Form::Number(number) => number.to_string(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"name": "n", "inputs": {"a": 1, "b": "x", "c": 1.5, "d": true}, "runs": [{
        "epochs": [{"total_s": 2, "stall_s": 1.5, "read_bytes": {"source": 3}}], "dataset": {"anything": []},
        "stats": {"policy": "nopfs", "source_bytes": 3, "source_minimum_bytes": 3, "first_batch_s": null}}]}"#;

    fn said(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        format!(
            "{:#}",
            Runs::parse(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err()
        )
    }

    #[test]
    fn a_run_is_called_by_its_policy_and_unknown_keys_are_ignored() {
        let runs = Runs::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(runs.runs[0].name(), "nopfs");
        assert_eq!(
            runs.inputs
                .values()
                .map(|input| input.0.as_str())
                .collect::<Vec<_>>(),
            ["1", "x", "1.5", "true"]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(said("\"runs\"", "\"rans\"").contains("missing field `runs`"));
        assert_eq!(
            said("2,", "-2,"),
            "runs[0]: epochs[0].total_s: -2; give seconds, 0 or more"
        );
        assert!(said("1.5,", "1e999,").contains("out of range"));
        let form = "not in the form of docs/report.md";
        let kind = "invalid type: null, expected u64 at line 3";
        assert!(
            said("_bytes\": 3,", "_bytes\": null,")
                .starts_with(&format!("{form}: runs[0].stats.source_bytes: {kind}"))
        );
        assert!(
            said("\"policy\"", "\"p\"")
                .starts_with(&format!("{form}: runs[0].stats: missing field `policy`"))
        );
        let run = &GOOD[GOOD.find("{\n").unwrap()..GOOD.rfind(']').unwrap()];
        let twice = said(run, &format!("{run},{run}"));
        assert_eq!(
            twice,
            "runs[1].name: another run is called nopfs too; give each its own"
        );
    }
}
