//! A plan looked at closely: the samples of one rank's local batch, and the uses of one sample.

use foresee_core::foresight::Foresight;
use foresee_core::homes::Homes;
use foresee_core::ids::{Epoch, Rank, SampleId, Step};
use foresee_core::policy::Part;
use serde::Serialize;

use crate::job::Job;

/// So many uses of a sample are listed.
const USES_MAX: usize = 20;

/// There is no such epoch, step, rank or sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} {asked}; give one from 0 to {last}")]
pub struct OutOfRange {
    what: &'static str,
    asked: u32,
    last: u32,
}

/// Which local batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where {
    /// In which epoch.
    pub epoch: u32,
    /// Which global batch of it.
    pub step: u32,
    /// Whose part.
    pub rank: u32,
}

/// A local batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocalBatch {
    /// In which epoch.
    pub epoch: u32,
    /// Which global batch of it.
    pub step: u32,
    /// Whose part.
    pub rank: u32,
    /// Its samples, in the order of training.
    pub samples: Vec<Sample>,
}

/// A sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Its number in the catalog.
    pub sample: u32,
    /// Its size.
    pub bytes: u64,
    /// Where it is kept; none where it is not, or where the policy gives no homes.
    pub home: Option<Home>,
}

/// Where a sample is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Home {
    /// By whom.
    pub rank: u32,
    /// In which tier.
    pub tier: u8,
}

/// A sample and its uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uses {
    /// The sample.
    #[serde(flatten)]
    pub sample: Sample,
    /// Who uses it first, and thus reads it from the source; none where no epoch uses it.
    pub first_reader: Option<u32>,
    /// In how many epochs it is used.
    pub epochs_used: u32,
    /// The first uses.
    pub uses: Vec<Use>,
}

/// One use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Use {
    /// In which epoch.
    pub epoch: u32,
    /// In which global batch of it.
    pub step: u32,
    /// By whom.
    pub rank: u32,
}

/// The samples of a local batch. What is looked at is common to all ranks, so any rank's part will do.
pub fn local_batch(job: &Job, part: &Part, at: Where) -> Result<LocalBatch, OutOfRange> {
    let layout = &job.brief.layout;
    within("epoch", at.epoch, part.orders.epochs())?;
    within("step", at.step, layout.steps())?;
    within("rank", at.rank, layout.world())?;
    let rank = Rank(at.rank);
    let step = Step(at.step);
    let order = part.orders.epoch(Epoch(at.epoch));
    let homes = homes(part);
    let indices = 0..layout.local_len(rank, step);
    let samples = indices.map(|index| order.sample(layout.dealt(rank, step, index).position));
    let samples = samples.map(|id| sample(job, homes, id)).collect();
    Ok(LocalBatch {
        epoch: at.epoch,
        step: at.step,
        rank: at.rank,
        samples,
    })
}

/// When a sample is used, and by whom.
pub fn uses(job: &Job, part: &Part, id: u32) -> Result<Uses, OutOfRange> {
    within("sample", id, job.brief.catalog.len())?;
    let foresight = Foresight::new(
        part.orders.clone(),
        job.brief.layout.clone(),
        job.brief.hosts.clone(),
    );
    let epochs = (0..part.orders.epochs()).map(Epoch);
    let mut epochs_used = 0;
    let mut uses = Vec::new();
    for found in epochs.filter_map(|epoch| foresight.user(SampleId(id), epoch)) {
        epochs_used += 1;
        if uses.len() < USES_MAX {
            uses.push(Use {
                epoch: found.when.epoch.0,
                step: found.when.step.0,
                rank: found.rank.0,
            });
        }
    }
    let first_reader = uses.first().map(|first| first.rank);
    Ok(Uses {
        sample: sample(job, homes(part), SampleId(id)),
        first_reader,
        epochs_used,
        uses,
    })
}

fn within(what: &'static str, asked: u32, count: u32) -> Result<(), OutOfRange> {
    if asked < count {
        Ok(())
    } else {
        Err(OutOfRange {
            what,
            asked,
            last: count.saturating_sub(1),
        })
    }
}

fn homes(part: &Part) -> Option<&Homes> {
    part.homes().map(|homes| &**homes)
}

fn sample(job: &Job, homes: Option<&Homes>, id: SampleId) -> Sample {
    let home = homes.and_then(|homes| homes.get(id)).map(|home| Home {
        rank: home.rank.0,
        tier: home.tier.0,
    });
    Sample {
        sample: id.0,
        bytes: job.brief.catalog.size(id).0,
        home,
    }
}
