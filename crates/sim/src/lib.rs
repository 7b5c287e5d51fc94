//! Runs the decisions of `foresee-core` on virtual time: which policy on which machine takes how long, and reads what
//! from where. [`scenario`] is the file format, [`job`] makes it ready, [`sequential`] drives the engines.

pub mod job;
pub mod outcome;
pub mod scenario;
pub mod sequential;

use foresee_core::bound;
use foresee_core::policy::{self, Policy};

use crate::job::Job;
use crate::outcome::Comparison;

/// Runs policies on a job, and the lower bound with them. `progress` is told the policy and the accesses done, from 0
/// on.
///
/// # Panics
/// If the lower bound does not run, which would be a defect: it needs nothing of the system.
pub fn compare(job: &Job, policies: &[&dyn Policy], mut progress: impl FnMut(&str, u64)) -> Comparison {
    let bound_policy = policy::lower_bound();
    let mut run = |policy: &dyn Policy| sequential::run(job, policy, |done| progress(policy.name(), done));
    let lower_bound = run(bound_policy);
    let lower_bound_s = lower_bound.total_s.expect("the lower bound runs on every job");
    let results = policies
        .iter()
        .map(|policy| if policy.name() == bound_policy.name() { lower_bound.clone() } else { run(*policy) })
        .collect();
    let source_minimum_bytes = bound::source_minimum(&job.brief).0;
    Comparison { scenario: job.name.clone(), lower_bound_s, source_minimum_bytes, results }
}
