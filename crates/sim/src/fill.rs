//! Filling tiers before the first step, for policies that do: how long it takes and what is read.

use foresee_core::ids::{Rank, TierId};
use foresee_core::model::{Contention, Origin, SourceLoad};
use foresee_core::policy::{Filling, Part};
use foresee_core::tally::Tally;
use foresee_core::units::Seconds;

use crate::job::Job;

/// What ranks bring in before training; nothing under most policies.
pub(crate) fn of(parts: &[Part]) -> Vec<(Rank, Filling)> {
    let filling = |part: &Part| Some((part.rank, part.filling.clone()?));
    parts.iter().filter_map(filling).collect()
}

/// When the slowest rank is done, tiers side by side, and what all ranks read, each its own `fillings`. Where all bring in
/// the same samples, rank 0 reads them and passes them on. Time spent filling is the start-up's, not that of fetching.
pub(crate) fn fill(job: &Job, fillings: &[(Rank, Filling)]) -> (Seconds, Tally) {
    let system = &job.brief.system;
    let hosts = &job.brief.hosts;
    let mut slowest = Seconds::ZERO;
    let mut tally = Tally::new(system.tiers.len());
    for (rank, filling) in fillings {
        let loads = &filling.loads;
        let busy = loads
            .iter()
            .zip(&system.tiers)
            .filter(|(load, _)| load.reads > 0);
        let threads: u32 = busy.map(|(_, tier)| tier.threads).sum();
        let ranks = if filling.same { 1 } else { hosts.ranks() };
        let load = match job.model.contention() {
            Contention::Ranks => SourceLoad {
                readers: ranks,
                own: 1,
            },
            Contention::Reads => SourceLoad {
                readers: ranks * threads,
                own: threads,
            },
        };
        for (tier, count) in loads
            .iter()
            .enumerate()
            .filter(|(_, count)| count.reads > 0)
        {
            let tier = TierId(tier as u8);
            slowest = slowest.max(job.model.fill(tier, *count, load));
            let passed_on = filling.same && *rank != Rank(0);
            let origin = if passed_on {
                hosts.as_seen_from(*rank, Rank(0), tier)
            } else {
                Origin::Source
            };
            tally.record_reads(origin, *count);
        }
    }
    (slowest, tally)
}
