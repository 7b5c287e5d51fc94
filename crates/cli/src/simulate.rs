//! `foresee simulate`: a scenario, policy by policy, as a table or as JSON, and as a page to look at.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use foresee_core::policy::{self, POLICIES, Policy};
use foresee_sim::job::Job;
use foresee_sim::scenario::{Scenario, Set};

use crate::progress::Progress;
use crate::report::{self, Report};
use crate::table;

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
    /// Also write a page with charts: one file that needs no network.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Simulates and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let policies = chosen(&arguments.policies)?;
    let sets = arguments.sets.iter().map(|set| set.parse::<Set>()).collect::<Result<Vec<_>, _>>()?;
    let scenario = Scenario::load(&arguments.scenario, &sets)?;
    if let Some(path) = &arguments.report {
        report::check(path)?;
    }
    let accesses = u64::from(scenario.dataset.samples) * u64::from(scenario.job.epochs);
    let mut progress = Progress::new(accesses, policies.len() as u64 + 1);
    progress.tick("drawing sizes", 0);
    let job = Job::new(&scenario)?;
    let comparison = foresee_sim::compare(&job, &policies, |policy, done| progress.tick(policy, done));
    drop(progress);
    if let Some(path) = &arguments.report {
        let inputs = report::inputs(&scenario);
        report::write(&Report { comparison: &comparison, inputs, frequency: None, reuse: None, sweep: None }, path)?;
    }
    let text = if arguments.json { serde_json::to_string_pretty(&comparison)? } else { table::comparison(&comparison) };
    table::print(&text)
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Policy>> {
    if names.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    let known = || POLICIES.iter().map(|policy| policy.name()).collect::<Vec<_>>().join(", ");
    let find = |name: &String| {
        policy::by_name(name).ok_or_else(|| anyhow!("--policy {name}: no such policy; choose from {}", known()))
    };
    names.iter().map(find).collect()
}
