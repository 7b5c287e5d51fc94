//! Where a job stands: enough to go on with the very next batch, also with another number of ranks. What was delivered
//! counts, not what was read ahead.

use foresee_core::ids::{Epoch, Step};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Shuffle, Tail};
use serde::{Deserialize, Serialize};

use super::error::JobError;
use super::spec::JobSpec;

/// The layout of this record.
const VERSION: u32 = 1;

/// More ranks than any job has.
const RANKS_MAX: u32 = 1 << 20;

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Layout of the record.
    pub version: u32,
    /// How epochs are ordered.
    pub shuffle: String,
    /// The seed of the order, where it has one.
    pub seed: Option<u64>,
    /// Samples of the dataset.
    pub samples: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Samples of all ranks in a step.
    pub global_batch: u32,
    /// Ranks that the job began with.
    pub began_with: u32,
    /// Ranks of the run that was saved.
    pub world: u32,
    /// What happens to samples that the world does not divide.
    pub tail: String,
    /// Whether an incomplete last step is dropped.
    pub drop_last: bool,
    /// The next batch's epoch.
    pub epoch: u32,
    /// The next batch's step.
    pub step: u32,
    /// Samples of it that were handed over one by one.
    pub index: u32,
}

impl Saved {
    pub(super) fn of(
        spec: &JobSpec,
        layout: &Layout,
        began_with: u32,
        mark: Mark,
        index: u32,
    ) -> Self {
        let (shuffle, seed) = named(&spec.shuffle);
        Self {
            version: VERSION,
            shuffle,
            seed,
            samples: spec.catalog.len(),
            bytes: spec.catalog.total().0,
            global_batch: layout.global_batch(),
            began_with,
            world: layout.world(),
            tail: tail_name(spec.tail).into(),
            drop_last: spec.drop_last,
            epoch: mark.epoch.0,
            step: mark.step.0,
            index,
        }
    }

    /// The global batches of the saved job, dealt to the ranks of this one; where tails are padded, so that none is left
    /// without a sample.
    pub(super) fn layout(&self, spec: &JobSpec, positions: u64) -> Result<Layout, JobError> {
        let (shuffle, seed) = named(&spec.shuffle);
        same("version", &self.version, &VERSION)?;
        same("shuffle", &self.shuffle, &shuffle)?;
        let said =
            |seed: Option<u64>| seed.map_or_else(|| "none".to_owned(), |seed| seed.to_string());
        same("seed", &said(self.seed), &said(seed))?;
        same("number of samples", &self.samples, &spec.catalog.len())?;
        same("size of the dataset", &self.bytes, &spec.catalog.total().0)?;
        same("tail", &self.tail, &tail_name(spec.tail).to_owned())?;
        same("drop_last", &self.drop_last, &spec.drop_last)?;
        self.check_ranks()?;
        let deal = if matches!(spec.shuffle, Shuffle::Feistel { .. }) {
            Deal::Blocked
        } else {
            Deal::Strided
        };
        let layout = Layout::new(LayoutSpec {
            positions,
            world: self.began_with,
            global_batch: self.global_batch,
            deal,
            tail: spec.tail,
            drop_last: self.drop_last,
        })?;
        let here = spec.batch_size.saturating_mul(spec.dealt_to());
        if self.global_batch != here {
            tracing::warn!(
                "the state has global batches of {}, batch_size and world_size give {here}: going on with those of the state",
                self.global_batch
            );
        }
        let redealt = layout.redealt(spec.dealt_to())?;
        Ok(if spec.tail == Tail::Pad {
            redealt.filled()
        } else {
            redealt
        })
    }

    /// All ranks have the same batch size; and where tails are padded for more of them than there are, an epoch has no end.
    fn check_ranks(&self) -> Result<(), JobError> {
        let Self {
            began_with,
            global_batch,
            ..
        } = *self;
        let divides = began_with > 0 && global_batch > 0 && global_batch.is_multiple_of(began_with);
        if divides && began_with <= RANKS_MAX {
            return Ok(());
        }
        Err(JobError::BeganWith {
            began_with,
            global_batch,
        })
    }

    /// How many samples of the next batch were handed over already.
    pub(super) fn index_for(
        &self,
        spec: &JobSpec,
        layout: &Layout,
        mark: Mark,
    ) -> Result<u32, JobError> {
        if self.index > 0 && self.world != spec.dealt_to() {
            return Err(JobError::MidBatch {
                index: self.index,
                then: self.world,
                now: spec.dealt_to(),
            });
        }
        if self.index > 0 && self.index >= layout.local_len(spec.rank(), mark.step) {
            let then = format!("sample {} of a batch", self.index);
            let now = format!("{} samples", layout.local_len(spec.rank(), mark.step));
            return Err(JobError::OtherJob {
                what: "the place",
                then,
                now,
            });
        }
        Ok(self.index)
    }

    /// The next batch's place. After the last of an epoch that is the first of the next one.
    pub(super) fn mark(&self, spec: &JobSpec, layout: &Layout) -> Result<Mark, JobError> {
        let beyond = self.epoch > spec.epochs
            || self.step > layout.steps()
            || (self.epoch == spec.epochs && self.step > 0);
        if self.step == layout.steps() && self.index == 0 && !beyond {
            return Ok(Mark {
                epoch: Epoch(self.epoch + 1),
                step: Step(0),
            });
        }
        if beyond || self.step == layout.steps() {
            let then = format!("epoch {}, step {}", self.epoch, self.step);
            let now = format!("{} epochs of {} steps", spec.epochs, layout.steps());
            return Err(JobError::OtherJob {
                what: "the place",
                then,
                now,
            });
        }
        Ok(Mark {
            epoch: Epoch(self.epoch),
            step: Step(self.step),
        })
    }
}

fn same<T: PartialEq + std::fmt::Display>(
    what: &'static str,
    then: &T,
    now: &T,
) -> Result<(), JobError> {
    if then == now {
        return Ok(());
    }
    Err(JobError::OtherJob {
        what,
        then: then.to_string(),
        now: now.to_string(),
    })
}

fn named(shuffle: &Shuffle) -> (String, Option<u64>) {
    match shuffle {
        Shuffle::Torch { seed } => ("torch".into(), Some(*seed)),
        Shuffle::Feistel { seed } => ("feistel".into(), Some(*seed)),
        Shuffle::Sequential => ("sequential".into(), None),
        Shuffle::Explicit(_) => ("explicit".into(), None),
    }
}

fn tail_name(tail: Tail) -> &'static str {
    match tail {
        Tail::Pad => "pad",
        Tail::Drop => "drop",
        Tail::Exact => "exact",
    }
}
