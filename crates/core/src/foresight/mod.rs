//! What is known of the future: who uses a sample when, how often, and how long until it is used again.
//!
//! Nothing is listed. An order knows the position of a sample in its epoch and the layout knows the rank and step of a
//! position, so a use is computed when it is asked for: one look at an epoch ([`Foresight::user`]), or a walk over
//! epochs ([`Foresight::next_use`] and all that is built on it). Memory is therefore a few bytes an epoch, whatever the
//! number of samples and ranks, plus the window of tables that [`Orders`] keep where they are not computed.
//!
//! A use is a sample's *first* position in an epoch. The order of an epoch holds a sample once, except where lists or a
//! rewriting repeat it or leave it out; padding repeats the beginning of an epoch at its end. Such repetitions are not
//! uses here, with one exception: [`Foresight::frequency`] counts accesses as they come.
//!
//! - `epochs`: the orders at hand, without a lock where all of them stay.
//! - `counts`: how often: frequency and favourites.
//! - `histogram`: the papers' figures.

mod counts;
mod epochs;
mod histogram;

use std::ops::Range;
use std::sync::Arc;

use self::epochs::Epochs;
use crate::ids::{Epoch, Host, Rank, SampleId, Step};
use crate::model::Hosts;
use crate::stream::{EpochOrder, Layout, Orders};

pub use self::counts::Favourite;
pub use self::histogram::Histogram;

/// A step of the job. Steps are ordered as they are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct When {
    /// In which epoch.
    pub epoch: Epoch,
    /// Which global batch of it.
    pub step: Step,
}

/// One use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// In which step.
    pub when: When,
    /// By whom.
    pub rank: Rank,
}

/// Whose uses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Those of one rank.
    Rank(Rank),
    /// Those of all ranks of a host.
    Host(Host),
    /// All.
    Anyone,
}

/// All uses of all samples of a job. Clones are cheap and share what is kept.
#[derive(Clone)]
pub struct Foresight {
    job: Arc<Job>,
}

struct Job {
    epochs: Epochs,
    layout: Layout,
    hosts: Hosts,
}

/// The ranks that a [`By`] means: they are numbered host by host.
#[derive(Clone, Copy)]
struct Ranks {
    first: u32,
    len: u32,
}

impl Ranks {
    #[inline]
    fn contains(self, rank: Rank) -> bool {
        rank.0.wrapping_sub(self.first) < self.len
    }

    fn iter(self) -> impl Iterator<Item = Rank> {
        (self.first..self.first + self.len).map(Rank)
    }
}

impl Foresight {
    /// The uses that these orders make, dealt so, on these hosts.
    ///
    /// # Panics
    ///
    /// When the layout is not for orders of this length, or the hosts are not those of its ranks.
    pub fn new(orders: Orders, layout: Layout, hosts: Hosts) -> Self {
        assert_eq!(
            orders.len(),
            layout.positions(),
            "positions of the orders and of the layout"
        );
        assert_eq!(
            hosts.ranks(),
            layout.world(),
            "ranks of the hosts and of the layout"
        );
        Self {
            job: Arc::new(Job {
                epochs: Epochs::new(orders),
                layout,
                hosts,
            }),
        }
    }

    /// Who uses a sample in an epoch. `None` where it is in the tail that is dropped, where lists leave it out, and
    /// after the end of the job. Where lists repeat it, its first position counts.
    #[inline]
    pub fn user(&self, sample: SampleId, epoch: Epoch) -> Option<Use> {
        if epoch.0 >= self.job.epochs.count() {
            return None;
        }
        self.job
            .epochs
            .with(epoch, |order| self.user_of(order, sample, epoch))
    }

    /// The first use of the job.
    pub fn first_use(&self, sample: SampleId, by: By) -> Option<Use> {
        self.next_use_in(sample, 0..self.job.epochs.count(), by)
    }

    /// The first use from a step on, that step included.
    pub fn first_use_from(&self, sample: SampleId, from: When, by: By) -> Option<Use> {
        let same_epoch = self.user(sample, from.epoch);
        let same_epoch =
            same_epoch.filter(|found| found.when >= from && self.ranks(by).contains(found.rank));
        same_epoch.or_else(|| self.next_use(sample, from.epoch, by))
    }

    /// The first use in an epoch later than `after`: the next one for somebody who has just used the sample.
    pub fn next_use(&self, sample: SampleId, after: Epoch, by: By) -> Option<Use> {
        self.next_use_in(
            sample,
            after.0.saturating_add(1)..self.job.epochs.count(),
            by,
        )
    }

    /// The first use in a range of epochs. Where orders are tables, looking further ahead than
    /// [`Foresight::epochs_kept`] makes tables anew, so a caller that asks often keeps its range within that.
    pub fn next_use_in(&self, sample: SampleId, epochs: Range<u32>, by: By) -> Option<Use> {
        let ranks = self.ranks(by);
        let end = epochs.end.min(self.job.epochs.count());
        (epochs.start..end).map(Epoch).find_map(|epoch| {
            let found = self
                .job
                .epochs
                .with(epoch, |order| self.user_of(order, sample, epoch));
            found.filter(|found| ranks.contains(found.rank))
        })
    }

    /// The first use strictly after a step, in the same epoch or a later one.
    pub fn next_use_after(&self, sample: SampleId, after: When, by: By) -> Option<Use> {
        let same_epoch = self.use_in_rest(sample, after, by);
        same_epoch.or_else(|| self.next_use(sample, after.epoch, by))
    }

    /// How many uses are left strictly after a step, up to the end of the job (Lobster's reuse count).
    pub fn uses_left(&self, sample: SampleId, after: When, by: By) -> u32 {
        let ranks = self.ranks(by);
        let later = (after.epoch.0.saturating_add(1)..self.job.epochs.count()).map(Epoch);
        let uses = later
            .filter_map(|epoch| self.user(sample, epoch))
            .filter(|found| ranks.contains(found.rank));
        u32::from(self.use_in_rest(sample, after, by).is_some()) + uses.count() as u32
    }

    /// Steps from `at` to the next use (Lobster's reuse distance), counted on over the ends of epochs. `None` when
    /// there is no further use.
    pub fn reuse_distance(&self, sample: SampleId, at: When, by: By) -> Option<u64> {
        let next = self.next_use_after(sample, at, by)?;
        Some(self.job_step(next.when) - self.job_step(at))
    }

    /// The first step in which an epoch may repeat samples that it used before: none where nothing is padded, the first
    /// where lists say what is used.
    pub fn repeats_from(&self) -> Step {
        let Job { epochs, layout, .. } = &*self.job;
        if epochs.orders().may_repeat() {
            return Step(0);
        }
        let padded_from = layout.positions() / u64::from(layout.global_batch());
        Step(u32::try_from(padded_from).unwrap_or(u32::MAX))
    }

    /// How many epochs' orders are kept at once: all of them where they are computed, a window where they are tables.
    pub fn epochs_kept(&self) -> u32 {
        self.job.epochs.kept()
    }

    /// What foresight keeps, its window of tables when that is full and the scratch of one [`Foresight::favourites`]
    /// included; answers belong to the caller.
    pub fn memory_bytes(&self) -> u64 {
        size_of::<Job>() as u64 + self.job.epochs.bytes_max() + self.scratch_bytes()
    }

    #[inline]
    fn user_of(&self, order: &EpochOrder, sample: SampleId, epoch: Epoch) -> Option<Use> {
        let slot = self.job.layout.slot(order.position(sample)?)?;
        Some(Use {
            when: When {
                epoch,
                step: slot.step,
            },
            rank: slot.rank,
        })
    }

    /// The use in what is left of the epoch after a step.
    fn use_in_rest(&self, sample: SampleId, after: When, by: By) -> Option<Use> {
        let found = self.user(sample, after.epoch)?;
        (found.when > after && self.ranks(by).contains(found.rank)).then_some(found)
    }

    /// A step's number in the whole job.
    fn job_step(&self, when: When) -> u64 {
        u64::from(when.epoch.0) * u64::from(self.job.layout.steps()) + u64::from(when.step.0)
    }

    #[inline]
    fn ranks(&self, by: By) -> Ranks {
        let all = self.job.hosts.ranks();
        match by {
            By::Rank(rank) => Ranks {
                first: rank.0,
                len: u32::from(rank.0 < all),
            },
            By::Host(host) => {
                let ranks = self.job.hosts.ranks_of(host);
                Ranks {
                    first: ranks.start,
                    len: ranks.end - ranks.start,
                }
            }
            By::Anyone => Ranks { first: 0, len: all },
        }
    }
}
