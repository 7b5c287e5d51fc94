//! Reads a sample: the one place that knows how. It was resolved before where it should be ([`Way`]); what a tier turns out
//! not to have, or to have of another time, is read from the source. Who must not wait says so ([`Effort::AtOnce`]) and gets
//! only what is a matter of copying.
//!
//! It takes no lock of the job's, and knows nothing of slots, counts and the engine.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::OneLine;
use foresee_core::ids::{SampleId, TierId};
use foresee_core::model::Origin;

use super::looks::Looks;
use super::spec::JobSpec;
use super::stores::Stores;
use super::task::Way;
use crate::source::ReadError;
use crate::stamp::Stamp;
use crate::tier::{Found, Kept, Tier, TierError};

/// A storage that stumbles gets this many more chances, each after a longer pause.
const TRIES_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_FACTOR: u32 = 5;

/// How many samples are tried in the place of one that cannot be read.
const SUBSTITUTES_MAX: u64 = 1000;

/// What somebody does to get a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Whatever it takes.
    Whole,
    /// One try, and nothing that may have to be waited for.
    AtOnce,
}

/// How a sample was had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Had {
    pub(super) origin: Origin,
    /// The tier that should have had it.
    pub(super) lost_from: Option<TierId>,
    /// Whether a tier held what the sample was before.
    pub(super) stale: bool,
    /// What the sample was in the source when it was read there.
    pub(super) stamp: Option<Stamp>,
    pub(super) retries: u32,
}

/// What came of reading a sample.
pub(super) enum Got {
    /// It is there.
    Here(Had),
    /// It is not to be had at once.
    NotAtOnce,
    /// It cannot be read, after so many more tries.
    Failed(ReadError, u32),
}

/// Reads samples.
pub(super) struct Reader {
    spec: Arc<JobSpec>,
    /// What is known of the samples that tiers hold from before.
    looks: Looks,
    /// Whether a sample has another size than the catalog says: it is void.
    void: AtomicBool,
    /// Whether nothing is tried again any more: the job is closed.
    closed: AtomicBool,
}

impl Reader {
    pub(super) fn new(spec: Arc<JobSpec>, looks: Looks) -> Self {
        Self {
            spec,
            looks,
            void: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Nothing is tried again from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether the catalog is void.
    pub(super) fn is_void(&self) -> bool {
        self.void.load(Ordering::Relaxed)
    }

    /// Reads a sample: from its tier, if that has it and it is what the sample is, else from the source.
    pub(super) fn fetch(
        &self,
        sample: SampleId,
        way: Way,
        into: &mut [u8],
        stores: &Stores,
        effort: Effort,
    ) -> Got {
        match (way, effort) {
            (Way::Source, Effort::Whole) => self.fetch_source(sample, into),
            (Way::Source, Effort::AtOnce) => match self.spec.source.read(sample, into) {
                Ok(stamp) => Got::Here(Had::from_source(stamp, 0)),
                Err(error) => Got::Failed(error, 0),
            },
            (Way::Tier(tier), Effort::Whole) => self.fetch_tier(sample, tier, into, stores),
            (Way::Tier(tier), Effort::AtOnce) => {
                self.fetch_tier_at_once(sample, tier, into, stores)
            }
            // It was asked for, and what came is copied: there is nothing to read.
            (Way::Peer { .. }, Effort::Whole) => unreachable!("sample {sample} came from a peer"),
            (Way::Peer { .. }, Effort::AtOnce) => Got::NotAtOnce,
        }
    }

    fn fetch_source(&self, sample: SampleId, into: &mut [u8]) -> Got {
        match self.read_source(sample, into) {
            (Ok(stamp), retries) => Got::Here(Had::from_source(stamp, retries)),
            (Err(error), retries) => Got::Failed(error, retries),
        }
    }

    /// What a tier lost is read from the source; what it holds of another time is replaced, too.
    fn fetch_tier(
        &self,
        sample: SampleId,
        number: TierId,
        into: &mut [u8],
        stores: &Stores,
    ) -> Got {
        let tier = stores.tier(number);
        if !self.is_known(tier, sample)
            && let Some(_renewal) = self.looks.renew(sample)
        {
            return match self.fetch_source(sample, into) {
                Got::Here(had) => {
                    let is_replaced = self.is_kept(sample, tier.keep(sample, into, had.stamp));
                    let lost_from = (!is_replaced).then_some(number);
                    Got::Here(Had {
                        stale: true,
                        lost_from,
                        ..had
                    })
                }
                other => other,
            };
        }
        match tier.read(sample, into) {
            Ok(Found::Yes) => return Got::Here(Had::from_tier(number)),
            Ok(Found::NotHeld) => {}
            Err(error) => tracing::warn!("{error}; reading from the source"),
        }
        match self.fetch_source(sample, into) {
            Got::Here(had) => Got::Here(Had {
                lost_from: Some(number),
                ..had
            }),
            other => other,
        }
    }

    fn fetch_tier_at_once(
        &self,
        sample: SampleId,
        number: TierId,
        into: &mut [u8],
        stores: &Stores,
    ) -> Got {
        let tier = stores.tier(number);
        let is_quick = || self.looks.are_quick() && !self.looks.is_looked_at(sample);
        let may_look = !self.looks.are_due(sample) || is_quick();
        if !may_look || !self.is_known(tier, sample) {
            return Got::NotAtOnce;
        }
        match tier.read_at_once(sample, into) {
            Ok(true) => Got::Here(Had::from_tier(number)),
            Ok(false) => Got::NotAtOnce,
            Err(error) => Got::Failed(ReadError::Io(error.cause), 0),
        }
    }

    /// Whether what a tier holds of a sample is known to be what the source has, or had during this job; looks there the
    /// first time. What cannot be looked at is read: that says why.
    pub(super) fn is_known(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        if !self.doubts(tier, sample) {
            return true;
        }
        let Some(_turn) = self.looks.look(sample) else {
            return true;
        };
        let began = Instant::now();
        let now = self.spec.source.look(sample);
        self.looks.took(began.elapsed());
        let known = match now {
            Ok(Some(now)) => tier.is_current(sample, &now),
            Ok(None) => true,
            Err(_) => false,
        };
        if known {
            self.looks.note(sample);
        }
        known
    }

    /// Whether what a tier holds of a sample may be of another time: nobody has looked yet, or it was found to be.
    pub(super) fn doubts(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        tier.outlasts_jobs() && self.looks.are_due(sample)
    }

    /// Whether a tier has what was read during this job.
    pub(super) fn is_kept(&self, sample: SampleId, outcome: Result<Kept, TierError>) -> bool {
        match outcome {
            Ok(Kept::Yes) => {
                self.looks.note(sample);
                true
            }
            Ok(Kept::NoRoom) => false,
            Err(error) => {
                tracing::warn!("{error}; going on without");
                false
            }
        }
    }

    /// Reads a sample from the source; what may pass is tried again. Also tells how often.
    pub(super) fn read_source(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> (Result<Option<Stamp>, ReadError>, u32) {
        let mut pause = PAUSE_FIRST;
        let mut tries = 0;
        loop {
            let read = self.spec.source.read(sample, into);
            let Err(error) = &read else {
                return (read, tries);
            };
            let is_over = self.closed.load(Ordering::Relaxed);
            if !error.is_transient() || tries >= TRIES_MAX || is_over {
                if error.is_other_size() {
                    self.forget_catalog();
                }
                return (read, tries);
            }
            let name = OneLine(self.spec.source.name(sample));
            tracing::debug!("sample {sample} ({name}): {error}; trying again");
            thread::sleep(pause);
            pause *= PAUSE_FACTOR;
            tries += 1;
        }
    }

    /// A sample has another size than the catalog says. The next start lists again, and so does this one if it can.
    fn forget_catalog(&self) {
        if !self.void.swap(true, Ordering::Relaxed)
            && let Some(dataset) = self.spec.source.dataset()
        {
            dataset.forget();
        }
    }

    /// What may take the place of a sample, after `tried` that could not, each with how many were tried with it: the same on
    /// every rank and in every run.
    pub(super) fn others(
        &self,
        sample: SampleId,
        tried: u64,
    ) -> impl Iterator<Item = (u64, SampleId)> + use<> {
        let samples = u64::from(self.spec.catalog.len());
        let steps = tried.saturating_add(1)..samples.min(SUBSTITUTES_MAX);
        steps.map(move |step| {
            let other = (u64::from(sample.0) + step) % samples;
            (step, SampleId(other as u32))
        })
    }
}

impl Had {
    fn from_source(stamp: Option<Stamp>, retries: u32) -> Self {
        Self {
            origin: Origin::Source,
            lost_from: None,
            stale: false,
            stamp,
            retries,
        }
    }

    fn from_tier(tier: TierId) -> Self {
        Self {
            origin: Origin::Tier(tier),
            lost_from: None,
            stale: false,
            stamp: None,
            retries: 0,
        }
    }
}
