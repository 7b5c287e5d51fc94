//! `foresee simulate`: a scenario, policy by policy, as a table or as JSON, and as a page to look at.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use foresee_core::policy::{self, POLICIES, Policy};
use foresee_sim::job::Job;
use foresee_sim::outcome::Comparison;
use foresee_sim::scenario::{Scenario, Set, Template};

use crate::progress::Progress;
use crate::report::{self, Report};
use crate::sweep::{self, Axis, Sweep};
use crate::{histograms, table};

/// A sweep of more keys would fit no table and no chart.
const AXES_MAX: usize = 2;

/// What `foresee simulate` takes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The scenario: job, dataset and system.
    #[arg(value_name = "FILE.toml")]
    scenario: PathBuf,
    /// Run only this policy; repeat for more. Default: all.
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Change a value of the scenario, such as `job.ranks=8` or `system.tier.1.capacity_mb=0`; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Run once for every value of a key, such as `system.tier.1.capacity_mb=0,10240,20480`; twice for a grid.
    #[arg(long = "sweep", value_name = "KEY=V1,V2,...")]
    sweeps: Vec<String>,
    /// Also write a page with charts: one file that needs no network.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Simulates and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let policies = chosen(&arguments.policies)?;
    let sets = arguments
        .sets
        .iter()
        .map(|set| set.parse::<Set>())
        .collect::<Result<Vec<_>, _>>()?;
    let axes = arguments
        .sweeps
        .iter()
        .map(|text| Axis::parse(text))
        .collect::<Result<Vec<_>>>()?;
    if axes.len() > AXES_MAX {
        bail!(
            "--sweep {}: {} keys are too many; sweep one or two",
            arguments.sweeps[AXES_MAX],
            axes.len()
        );
    }
    if let [one, other] = &axes[..]
        && one.key == other.key
    {
        bail!(
            "--sweep {}: the key is swept twice; give all its values in one --sweep",
            one.key
        );
    }
    let template = Template::load(&arguments.scenario)?;
    let scenario = template.with(&sets)?;
    let points = if axes.is_empty() {
        Vec::new()
    } else {
        sweep::points(&template, &sets, &axes)?
    };
    if let Some(path) = &arguments.report {
        report::check(path, "--report")?;
        let same = path.canonicalize().is_ok_and(|path| {
            arguments
                .scenario
                .canonicalize()
                .is_ok_and(|other| path == other)
        });
        if same {
            bail!(
                "--report {}: is the scenario itself; give another name",
                path.display()
            );
        }
    }
    let accesses = u64::from(scenario.dataset.samples) * u64::from(scenario.job.epochs);
    let mut progress = Progress::new(
        accesses,
        (policies.len() as u64 + 1) * (points.len() as u64 + 1),
    );
    let sweep = if points.is_empty() {
        None
    } else {
        Some(sweep::run(points, axes, &policies, |label, done| {
            progress.tick(label, done);
        })?)
    };
    let comparison = if sweep.is_none() || arguments.report.is_some() {
        progress.tick("drawing sizes", 0);
        let job = Job::new(&scenario)?;
        let comparison =
            foresee_sim::compare(&job, &policies, |policy, done| progress.tick(policy, done));
        if let Some(path) = &arguments.report {
            progress.tick("report", 0);
            write_report(path, &scenario, &job, &comparison, sweep.as_ref())?;
        }
        Some(comparison)
    } else {
        None
    };
    drop(progress);
    let text = match (&sweep, &comparison) {
        (Some(sweep), _) if arguments.json => serde_json::to_string_pretty(sweep)?,
        (Some(sweep), _) => table::sweep(sweep),
        (None, Some(comparison)) if arguments.json => serde_json::to_string_pretty(comparison)?,
        (None, Some(comparison)) => table::comparison(comparison),
        (None, None) => String::new(),
    };
    table::print(&text)
}

fn write_report(
    path: &Path,
    scenario: &Scenario,
    job: &Job,
    comparison: &Comparison,
    sweep: Option<&Sweep>,
) -> Result<()> {
    let (frequency, reuse) = histograms::of(job);
    let sweep = sweep.map(|sweep| report::Sweep {
        keys: sweep.axes.iter().map(|axis| axis.key.clone()).collect(),
        points: sweep
            .sweep
            .iter()
            .map(|point| report::SweepPoint {
                values: point.values.clone(),
                results: point.results.clone(),
            })
            .collect(),
    });
    let inputs = report::inputs(scenario);
    let page = Report {
        comparison,
        inputs,
        frequency: Some(frequency),
        reuse: Some(reuse),
        sweep: sweep.as_ref(),
    };
    report::write(&page, path)
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Policy>> {
    if names.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    let known = || {
        POLICIES
            .iter()
            .map(|policy| policy.name())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let nearest = |name: &str| {
        let near = POLICIES
            .iter()
            .map(|policy| (strsim::jaro_winkler(policy.name(), name), policy.name()));
        near.filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let find = |name: &String| {
        policy::by_name(name).ok_or_else(|| match nearest(name) {
            Some((_, near)) => anyhow!("--policy {name}: no such policy; did you mean {near}?"),
            None => anyhow!("--policy {name}: no such policy; choose from {}", known()),
        })
    };
    names.iter().map(find).collect()
}
