//! Filling tiers before the first step, for policies that do: how long it takes and what is read.

use foresee_core::ids::TierId;
use foresee_core::model::{Contention, Origin, SourceLoad};
use foresee_core::policy::Filling;
use foresee_core::tally::{Count, Tally};
use foresee_core::units::{Bytes, Seconds};

use crate::job::Job;

/// When the slowest rank is done, tiers side by side, and what all ranks read. Ranks that bring in the same samples
/// pass them on: the source is read once, in equal parts.
pub(crate) fn fill(job: &Job, filling: &Filling) -> (Seconds, Tally) {
    let system = &job.brief.system;
    let world = filling.loads.len() as u64;
    let mut slowest = Seconds::ZERO;
    let mut tally = Tally::new(system.tiers.len());
    for (rank, loads) in (0u64..).zip(&filling.loads) {
        let busy = loads.iter().zip(&system.tiers).filter(|(load, _)| load.reads > 0);
        let threads: u32 = busy.map(|(_, tier)| tier.threads).sum();
        let ranks = if filling.same { 1 } else { world as u32 };
        let load = match job.model.contention() {
            Contention::Ranks => SourceLoad { readers: ranks, own: 1 },
            Contention::Reads => SourceLoad { readers: ranks * threads, own: threads },
        };
        for (tier, count) in loads.iter().enumerate().filter(|(_, count)| count.reads > 0) {
            let tier = TierId(tier as u8);
            slowest = slowest.max(job.model.fill(tier, count.bytes, load));
            let part =
                |whole: u64| if filling.same { whole * (rank + 1) / world - whole * rank / world } else { whole };
            let (reads, bytes) = (part(count.reads), Bytes(part(count.bytes.0)));
            tally.record_reads(Origin::Source, Count { reads, bytes, took: job.model.source(load) * bytes });
            let (reads, bytes) = (count.reads - reads, count.bytes - bytes);
            tally.record_reads(Origin::Peer(tier), Count { reads, bytes, took: Seconds::ZERO });
        }
    }
    (slowest, tally)
}
