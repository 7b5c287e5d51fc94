//! Runs the decisions of `foresee-core` on virtual time: which policy on which machine takes how long, and reads what
//! from where. [`scenario`] is the file format, [`job`] makes it ready; two drivers run it: [`sequential`], the papers'
//! reading (`contention = "ranks"`), and [`predict`], which is event-driven and predicts (`contention = "reads"`).
//! [`forecast`] asks the latter what to expect of a job.

mod copies;
mod fill;
pub mod forecast;
pub mod job;
pub mod outcome;
pub mod predict;
pub mod scenario;
pub mod sequential;

use foresee_core::bound;
use foresee_core::model::Contention;
use foresee_core::policy::{self, Policy};

use crate::job::Job;
use crate::outcome::{Comparison, Outcome};

/// Runs one policy on a job. `progress` is told now and then how many accesses are done.
pub fn simulate(job: &Job, policy: &dyn Policy, progress: impl FnMut(u64)) -> Outcome {
    match job.model.contention() {
        Contention::Ranks => sequential::run(job, policy, progress),
        Contention::Reads => predict::run(job, policy, progress),
    }
}

/// Runs policies on a job, and the lower bound with them. `progress` is told the policy and the accesses done, from 0
/// on.
///
/// # Panics
/// If the lower bound does not run, which would be a defect: it needs nothing of the system.
pub fn compare(
    job: &Job,
    policies: &[&dyn Policy],
    mut progress: impl FnMut(&str, u64),
) -> Comparison {
    let bound_policy = policy::lower_bound();
    let mut run = |policy: &dyn Policy| simulate(job, policy, |done| progress(policy.name(), done));
    let lower_bound = run(bound_policy);
    let lower_bound_s = lower_bound
        .total_s
        .expect("the lower bound runs on every job");
    let results = policies
        .iter()
        .map(|policy| {
            if policy.name() == bound_policy.name() {
                lower_bound.clone()
            } else {
                run(*policy)
            }
        })
        .collect();
    let source_minimum_bytes = bound::source_minimum(&job.brief).0;
    Comparison {
        scenario: job.name.clone(),
        lower_bound_s,
        source_minimum_bytes,
        results,
    }
}
