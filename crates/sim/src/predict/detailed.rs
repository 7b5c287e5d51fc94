//! A run in more detail than its outcome.

use std::collections::BTreeMap;

use foresee_core::tally::Tally;
use foresee_core::threads::ThreadPlan;

use crate::outcome::Outcome;

/// A run, epoch by epoch, and what its trainers waited for.
#[derive(Clone, Debug)]
pub struct Detailed {
    /// As [`run`](super::run) gives it.
    pub outcome: Outcome,
    /// What was read and waited in each epoch, all ranks together: up to the end of its last step, so reading ahead
    /// into the next epoch counts in the one in which it was done. Filling before training counts in the first.
    pub epochs: Vec<Tally>,
    /// When each epoch ended.
    pub epoch_ends_s: Vec<f64>,
    /// The stall by what the trainer's next sample was doing meanwhile, mean over ranks: `source`, `peer`, `host_peer`,
    /// `tierN` while it was fetched, or waited to be fetched, from there; `preprocess` while it was decoded and staged.
    pub stall_by: BTreeMap<String, f64>,
    /// By rank: steps in which it was late while another was not; empty where there was none.
    pub late: Vec<u64>,
    /// Who had how many of a host's threads, host by host; of hosts whose ranks share them.
    pub threads: Vec<ThreadPlan>,
}

impl Detailed {
    /// Nothing ran.
    pub(super) fn without_run(outcome: Outcome) -> Self {
        Self {
            outcome,
            epochs: Vec::new(),
            epoch_ends_s: Vec::new(),
            stall_by: BTreeMap::new(),
            late: Vec::new(),
            threads: Vec::new(),
        }
    }
}
