//! `foresee plan`: what to expect of a job before it is trained, as a block of text or as JSON.

mod folder;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use foresee_core::catalog::Catalog;
use foresee_core::policy::{self, POLICIES, Policy};
use foresee_sim::forecast::show::{self, LocalBatch, Uses, Where};
use foresee_sim::forecast::{self, Forecast};
use foresee_sim::job::Job;
use foresee_sim::scenario::{Scenario, Set};
use serde::Serialize;

use crate::progress::Progress;
use crate::table;

/// What `foresee plan` takes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A scenario, or the folder that holds the dataset: every file below it is a sample.
    #[arg(value_name = "SCENARIO.toml|FOLDER")]
    job: PathBuf,
    /// The policy that is planned for.
    #[arg(long, value_name = "NAME", default_value = "foresee")]
    policy: String,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Change a value of the scenario, such as `job.ranks=8` or `system.tier.1.capacity_mb=0`; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Only show the samples of a rank's local batch.
    #[arg(long, value_name = "EPOCH:STEP:RANK")]
    show_step: Option<String>,
    /// Only show when, and by whom, a sample is used.
    #[arg(long, value_name = "K")]
    show_sample: Option<String>,
    #[command(flatten)]
    folder: folder::Options,
}

/// What is planned: a scenario with its samples, and what is not known of it but assumed.
struct Subject {
    scenario: Scenario,
    catalog: Arc<Catalog>,
    /// The samples' files, where they are of a folder.
    paths: Option<Vec<PathBuf>>,
    assumed: BTreeMap<&'static str, f64>,
}

#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    forecast: &'a Forecast,
    assumed: &'a BTreeMap<&'static str, f64>,
}

/// What was asked to be shown.
#[derive(Serialize)]
struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<LocalBatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Uses>,
    /// By sample, of those shown, where they are of a folder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    paths: BTreeMap<u32, String>,
}

/// Plans and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let policy = chosen(&arguments.policy)?;
    let at = arguments.show_step.as_deref().map(place).transpose()?;
    let sample = arguments
        .show_sample
        .as_deref()
        .map(|text| number("--show-sample", text, text))
        .transpose()?;
    let subject = subject(arguments)?;
    let text = if at.is_some() || sample.is_some() {
        let shown = shown(&subject, policy, at, sample)?;
        if arguments.json {
            serde_json::to_string_pretty(&shown)?
        } else {
            text::shown(&shown)
        }
    } else {
        let forecast = predicted(&subject, policy)?;
        let printed = Printed {
            forecast: &forecast,
            assumed: &subject.assumed,
        };
        if arguments.json {
            serde_json::to_string_pretty(&printed)?
        } else {
            text::forecast(&forecast, &subject.assumed)
        }
    };
    table::print(&text)
}

fn chosen(name: &str) -> Result<&'static dyn Policy> {
    policy::by_name(name).ok_or_else(|| {
        let known = POLICIES
            .iter()
            .map(|policy| policy.name())
            .collect::<Vec<_>>()
            .join(", ");
        anyhow!("--policy {name}: no such policy; choose from {known}")
    })
}

/// From a scenario or from a folder; options of the one say nothing about the other.
fn subject(arguments: &Arguments) -> Result<Subject> {
    if arguments.job.is_dir() {
        if let Some(set) = arguments.sets.first() {
            bail!(
                "--set {set}: changes a scenario, but {} is a folder; use --ranks and the like",
                arguments.job.display()
            );
        }
        return folder::subject(&arguments.job, &arguments.folder);
    }
    if let Some(option) = arguments.folder.first_given() {
        bail!(
            "{option}: is for a folder, but {} is none; use --set KEY=VALUE",
            arguments.job.display()
        );
    }
    let sets = arguments
        .sets
        .iter()
        .map(|set| set.parse::<Set>())
        .collect::<Result<Vec<_>, _>>()?;
    let scenario = Scenario::load(&arguments.job, &sets)?;
    let catalog = Arc::new(scenario.sizes()?);
    Ok(Subject {
        scenario,
        catalog,
        paths: None,
        assumed: BTreeMap::new(),
    })
}

fn predicted(subject: &Subject, policy: &dyn Policy) -> Result<Forecast> {
    let accesses = u64::from(subject.catalog.len()) * u64::from(subject.scenario.job.epochs);
    let mut progress = Progress::new(accesses, 1);
    let tick = |phase: &str, done: u64| progress.tick(phase, done);
    Ok(forecast::forecast(
        &subject.scenario,
        &subject.catalog,
        policy,
        tick,
    )?)
}

fn shown(
    subject: &Subject,
    policy: &dyn Policy,
    at: Option<Where>,
    sample: Option<u32>,
) -> Result<Shown> {
    let job = Job::predicting(&subject.scenario, Arc::clone(&subject.catalog))?;
    let parts = policy.plan(&job.brief).map_err(|reason| {
        anyhow!(
            "policy {} cannot run this job: {reason}; choose another with --policy",
            policy.name()
        )
    })?;
    // A world has a rank, and what is shown is common to all.
    let part = &parts[0];
    let step = at.map(|at| {
        let name = || format!("--show-step {}:{}:{}", at.epoch, at.step, at.rank);
        show::local_batch(&job, part, at).with_context(name)
    });
    let sample =
        sample.map(|id| show::uses(&job, part, id).with_context(|| format!("--show-sample {id}")));
    let step = step.transpose()?;
    let sample = sample.transpose()?;
    let mut paths = BTreeMap::new();
    if let Some(files) = &subject.paths {
        let of_step = step
            .iter()
            .flat_map(|step| step.samples.iter().map(|sample| sample.sample));
        for id in of_step.chain(sample.iter().map(|uses| uses.sample.sample)) {
            paths.insert(id, files[id as usize].to_string_lossy().into_owned());
        }
    }
    Ok(Shown {
        step,
        sample,
        paths,
    })
}

/// EPOCH:STEP:RANK.
fn place(text: &str) -> Result<Where> {
    let parts: Vec<&str> = text.split(':').collect();
    let [epoch, step, rank] = parts[..] else {
        bail!("--show-step {text}: not a place in the job; give EPOCH:STEP:RANK, as in 0:12:3");
    };
    let part = |part| number("--show-step", text, part);
    Ok(Where {
        epoch: part(epoch)?,
        step: part(step)?,
        rank: part(rank)?,
    })
}

fn number(option: &str, text: &str, part: &str) -> Result<u32> {
    part.parse()
        .map_err(|_| anyhow!("{option} {text}: {part:?} is not a whole number; count from 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_three_numbers() {
        assert_eq!(
            place("1:20:3").unwrap(),
            Where {
                epoch: 1,
                step: 20,
                rank: 3
            }
        );
        let said = |text| place(text).unwrap_err().to_string();
        assert_eq!(
            said("1:2"),
            "--show-step 1:2: not a place in the job; give EPOCH:STEP:RANK, as in 0:12:3"
        );
        assert_eq!(
            said("1:-2:3"),
            "--show-step 1:-2:3: \"-2\" is not a whole number; count from 0"
        );
    }
}
