//! What a job is made from, and what is checked before anything runs.

use std::sync::{Arc, OnceLock};

use foresee_config::{Config, Threads, TierKind};
use foresee_core::catalog::Catalog;
use foresee_core::digest::Digest;
use foresee_core::held::Held;
use foresee_core::ids::{Epoch, Rank, SampleId, TierId};
use foresee_core::model::{
    Beyond, Contention, Curve, Decoded, Hosts, Model, Paces, Scope, System, Tier, Trainer,
};
use foresee_core::policy::specimen::{self, Caching, Traits};
use foresee_core::policy::{Assignment, Brief, Capacities, Keeping, Part, Policy, Share, by_name};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Tail};
use foresee_core::units::{Bytes, Rate, Seconds};
use foresee_image::{Key, Pipeline};

use super::error::JobError;
use super::sharing;
use crate::machine::{self, Place};
use crate::pool::Budget;
use crate::source::{Source, Speed};
use crate::tier::HostSlot;

/// The names of the policies that a job can run with.
pub fn policies() -> &'static [&'static str] {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMES.get_or_init(|| {
        specimen::real()
            .map(foresee_core::policy::Policy::name)
            .collect()
    })
}

/// What nobody measured: rates in MB/s that are right in their order, which is all that choosing an origin needs.
const MEMORY_MB_PER_S: f64 = 10_000.0;
const DISK_MB_PER_S: f64 = 1_000.0;
const SOURCE_MB_PER_S: f64 = 100.0;
/// Faster than anything: what limits a lone rank is never the way to the source.
const UNLIMITED_MB_PER_S: f64 = 1e9;

/// What happens to a sample that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The job says so, and can go on when it has been mended.
    Raise,
    /// The next sample of the catalog that can be read takes its place.
    Skip,
}

/// What is made of images.
#[derive(Clone)]
pub struct Images {
    /// The transforms.
    pub pipeline: Arc<Pipeline>,
    /// Of the random numbers.
    pub seed: u64,
}

impl Images {
    /// What the random numbers of a sample follow from.
    pub(super) fn key(&self, epoch: Epoch, sample: SampleId) -> Key {
        Key {
            seed: self.seed,
            epoch: epoch.0.into(),
            sample: sample.0.into(),
        }
    }
}

/// A rank among those of its host, which share memory, cores and disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Which one, from 0.
    pub rank: u32,
    /// Of how many.
    pub ranks: u32,
}

/// What a job is made from.
#[derive(Clone)]
pub struct JobSpec {
    /// Where the samples are.
    pub source: Arc<dyn Source>,
    /// Their sizes.
    pub catalog: Arc<Catalog>,
    /// Names the dataset, so that a cache of another one is not mistaken for this one's.
    pub dataset: [u8; 16],
    /// How epochs are ordered.
    pub shuffle: Shuffle,
    /// Whether all of that order is this rank's: others have orders of their own, and nothing is dealt.
    pub own_order: bool,
    /// Samples of a rank in a step.
    pub batch_size: u32,
    /// Passes over the dataset.
    pub epochs: u32,
    /// Whether an incomplete last step is dropped.
    pub drop_last: bool,
    /// What happens to samples that the world does not divide.
    pub tail: Tail,
    /// The policy's name.
    pub policy: String,
    /// Who trains on which sample of a global batch.
    pub assignment: Assignment,
    /// What happens to a sample that cannot be read.
    pub on_error: OnError,
    /// What is made of images; none where samples are handed over as they are.
    pub images: Option<Images>,
    /// Staging buffer and tiers.
    pub config: Config,
    /// Which rank this is.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// Which of the ranks on its host it is, where the launcher says so.
    pub on_host: Option<OnHost>,
    /// Which of its process's consumers it is: each has memory of its own.
    pub consumer: u32,
    /// Whether all that the engine is told is written down.
    pub record: bool,
}

impl JobSpec {
    /// The order of every epoch.
    pub(super) fn orders(&self) -> Result<Orders, JobError> {
        Ok(Orders::new(
            self.shuffle.clone(),
            self.catalog.len(),
            self.epochs,
        )?)
    }

    /// How positions are dealt to ranks and steps.
    pub(super) fn layout(&self, positions: u64) -> Result<Layout, JobError> {
        if self.rank >= self.world {
            return Err(JobError::Rank {
                rank: self.rank,
                world: self.world,
            });
        }
        if self.epochs == 0 {
            return Err(JobError::NoEpochs);
        }
        let world = self.dealt_to();
        let global_batch = self
            .batch_size
            .checked_mul(world)
            .ok_or(JobError::BatchTooLarge)?;
        let deal = if matches!(self.shuffle, Shuffle::Feistel { .. }) {
            Deal::Blocked
        } else {
            Deal::Strided
        };
        let (tail, drop_last) = (self.tail, self.drop_last);
        Ok(Layout::new(LayoutSpec {
            positions,
            world,
            global_batch,
            deal,
            tail,
            drop_last,
        })?)
    }

    /// The policy, if a job can run with it.
    pub(super) fn policy(&self) -> Result<&'static dyn Policy, JobError> {
        by_name(&self.policy)
            .filter(|policy| Traits::of(*policy).is_real)
            .ok_or_else(|| JobError::Policy(self.policy.clone()))
    }

    /// Whether anything is kept that other ranks could want.
    pub fn keeps(&self) -> bool {
        let keeps = |policy| Traits::of(policy).keeps != Caching::Nothing;
        let does_keep = self.policy().is_ok_and(keeps);
        does_keep && self.config.tiers.iter().any(|tier| tier.capacity_bytes > 0)
    }

    /// What a sample is in the staging buffer, where that is the same for all.
    pub(super) fn decoded_bytes(&self) -> Option<u64> {
        self.images
            .as_ref()
            .map(|images| images.pipeline.output().bytes as u64)
    }

    /// Checks what needs the machine: that samples fit the staging buffer, and memory what is asked of it.
    pub(super) fn check(&self) -> Result<(), JobError> {
        let staged = |sample| {
            self.decoded_bytes()
                .map_or_else(|| self.catalog.size(sample), Bytes)
        };
        let largest = self.catalog.samples().max_by_key(|sample| staged(*sample));
        if let Some(sample) = largest
            && staged(sample).0 > self.config.staging.capacity_bytes
        {
            return Err(JobError::TooLarge {
                sample,
                name: self.source.name(sample),
                bytes: staged(sample),
                capacity: Bytes(self.config.staging.capacity_bytes),
            });
        }
        self.check_scopes()?;
        let memory_tiers = self
            .config
            .tiers
            .iter()
            .filter(|tier| tier.kind == TierKind::Memory);
        let places = self
            .config
            .tiers
            .iter()
            .enumerate()
            .filter(|(_, tier)| tier.kind == TierKind::Memory);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        if let [first, second, ..] = places[..] {
            return Err(JobError::TwoMemoryTiers {
                tiers: [first, second],
            });
        }
        let own_bytes = self.config.staging.capacity_bytes;
        let wanted = memory_tiers
            .map(|tier| self.part_bytes(tier))
            .fold(own_bytes, u64::saturating_add)
            .saturating_add(sharing::bytes(self, self.ranks_on_host()));
        let ranks = self.ranks_on_host();
        match machine::memory_bytes() {
            Some(there) if wanted.saturating_mul(ranks.into()) > there => Err(JobError::Memory {
                wanted: Bytes(wanted),
                ranks,
                there: Bytes(there),
            }),
            _ => Ok(()),
        }
    }

    /// A tier that the ranks of a host share holds each sample once: its home there. Only plans that give every sample one
    /// home, of ranks that serve each other, do that.
    fn check_scopes(&self) -> Result<(), JobError> {
        let is_shared = |tier: &foresee_config::Tier| {
            tier.scope == foresee_config::Scope::Host && tier.capacity_bytes > 0
        };
        let Some(tier) = self.config.tiers.iter().position(is_shared) else {
            return Ok(());
        };
        let policy = self.policy()?;
        if Traits::of(policy).keeps == Caching::Own {
            let policy = self.policy.clone();
            return Err(JobError::SharedTier { tier, policy });
        }
        let has_others = self.host_slot().slots > 1;
        if has_others && self.config.peers.transport == foresee_config::Transport::None {
            return Err(JobError::SharedByNobody { tier });
        }
        Ok(())
    }

    /// What a tier holds for this rank.
    pub(super) fn part_bytes(&self, tier: &foresee_config::Tier) -> u64 {
        let host = self.host_slot();
        tier.part_bytes(host.slot, host.slots)
    }

    /// How many ranks share this machine, as far as it is known.
    fn ranks_on_host(&self) -> u32 {
        self.on_host.map_or(1, |on_host| on_host.ranks.max(1))
    }

    /// Its place for what outlasts jobs on its host. Where nobody tells it, ranks are taken to be on one host: then each
    /// still finds what it kept.
    pub(super) fn host_slot(&self) -> HostSlot {
        let on_host = self.on_host.unwrap_or(OnHost {
            rank: self.rank,
            ranks: self.world,
        });
        HostSlot {
            slot: on_host.rank,
            slots: on_host.ranks,
            rank: self.rank,
        }
    }

    /// Where it is among ranks of its host; alone where nobody tells.
    pub(super) fn place(&self) -> Place {
        self.on_host.map_or_else(Place::default, |on_host| Place {
            slot: on_host.rank,
            slots: on_host.ranks,
        })
    }

    /// Cores that are this rank's.
    pub(super) fn cores(&self) -> u32 {
        machine::cores(self.ranks_on_host())
    }

    /// Threads of the staging buffer to begin with, and whether they are ours to choose.
    pub(super) fn staging_threads(&self) -> (u32, bool) {
        match (self.config.staging.threads, self.source.speed()) {
            (Threads::Number(threads), _) => (threads, false),
            (Threads::OfHost(threads), _) => ((threads / self.ranks_on_host()).max(1), false),
            (Threads::Auto, Some(speed)) => {
                let mean = self.catalog.total().0 as f64 / f64::from(self.catalog.len().max(1));
                (knee(&speed, Bytes(mean as u64)), false)
            }
            (Threads::Auto, None) => (self.cores().max(2), true),
        }
    }

    /// Whose memory it lives on, with other jobs of its process.
    pub(super) fn budget(&self) -> Budget {
        Budget {
            config: self.config.clone(),
            consumer: self.consumer,
        }
    }

    /// Whether threads go to the rank of the host that needs them.
    pub(super) fn shares_threads(&self) -> bool {
        !matches!(self.config.staging.threads, Threads::Number(_))
    }

    /// What the policy is told. `kept` is what each tier can hold, `held` what they hold already.
    pub(super) fn brief(
        &self,
        orders: Orders,
        (layout, start): (Layout, Mark),
        kept: &[u64],
        held: &[(SampleId, TierId)],
    ) -> Result<Brief, JobError> {
        let system = Arc::new(self.system(kept)?);
        let hosts = Hosts::new(layout.world(), 1);
        Ok(Brief {
            catalog: Arc::clone(&self.catalog),
            orders,
            layout,
            system,
            capacities: Capacities::Same,
            hosts,
            assignment: self.assignment,
            peers: false,
            start,
            held: Held::by_rank(self.rank(), held),
        })
    }

    /// This rank's part of the plan, from the shares of all, and whether tiers are filled first. Without peers its own share
    /// is all there is.
    pub(super) fn part(
        &self,
        brief: &Brief,
        gathered: Option<&[Share]>,
    ) -> Result<(Part, bool), JobError> {
        let policy = self.policy()?;
        let own;
        let shares = if let Some(shares) = gathered {
            shares
        } else {
            own = [policy.share(brief, self.rank())];
            &own
        };
        let unsupported = |cause| JobError::Unsupported {
            policy: self.policy.clone(),
            cause,
        };
        let part = policy
            .part(brief, shares, self.rank())
            .map_err(unsupported)?;
        assert_eq!(part.only_simulated(), None, "{}", self.policy);
        Ok(part.filled_by_threads())
    }

    /// What ranks of a host share holds each sample once, at its home: there is no room for copies in it.
    pub(super) fn keep_once(&self, part: &mut Part) {
        let Keeping::Homes { spare, .. } = &mut part.keeping else {
            return;
        };
        for (tier, spare) in self.config.tiers.iter().zip(spare.iter_mut().skip(1)) {
            if tier.scope == foresee_config::Scope::Host {
                *spare = Bytes(0);
            }
        }
    }

    /// The digest of all that this rank's plan is made from.
    pub fn digest(&self, brief: &Brief) -> Digest {
        brief.digest(&self.policy, &Paces::of(&brief.system))
    }

    /// What reads cost, as far as it is known.
    pub(super) fn model(&self, brief: &Brief) -> Arc<Model> {
        let unlimited = Rate(UNLIMITED_MB_PER_S);
        let decoded = self
            .decoded_bytes()
            .map_or(Decoded::AsIs, |bytes| Decoded::Fixed(Bytes(bytes)));
        let trainer = Trainer {
            compute: unlimited,
            preprocess: unlimited,
            decoded,
        };
        Arc::new(Model::new(&brief.system, &trainer, 1))
    }

    fn system(&self, kept: &[u64]) -> Result<System, JobError> {
        let flat = |rate| Curve::new(vec![(1, rate)], Beyond::Clamp);
        let tier = |name: &str, capacity, threads, rate| -> Result<Tier, JobError> {
            let (read, write) = (flat(rate)?, flat(rate)?);
            Ok(Tier {
                name: name.into(),
                capacity: Bytes(capacity),
                scope: Scope::Rank,
                threads,
                read,
                write,
            })
        };
        let (threads, _) = self.staging_threads();
        let mut tiers = vec![tier(
            "staging",
            self.config.staging.capacity_bytes,
            threads,
            MEMORY_MB_PER_S,
        )?];
        for (config, &capacity) in self.config.tiers.iter().zip(kept) {
            tiers.push(match config.kind {
                TierKind::Memory => tier("memory", capacity, config.threads, MEMORY_MB_PER_S)?,
                TierKind::Disk { .. } => tier("disk", capacity, config.threads, DISK_MB_PER_S)?,
            });
        }
        let speed = match self.source.speed() {
            Some(speed) => speed,
            None => Speed {
                curve: flat(SOURCE_MB_PER_S)?,
                latency: Seconds::ZERO,
            },
        };
        Ok(System {
            network: Rate(UNLIMITED_MB_PER_S),
            source_link: Rate(UNLIMITED_MB_PER_S),
            source: speed.curve,
            source_latency: speed.latency,
            contention: Contention::Reads,
            tiers,
            // A rank plans as if it were alone on its host, with its part of the cores.
            cores_per_host: Some(self.cores()),
        })
    }

    /// This rank among those that the order is dealt to.
    pub(super) fn rank(&self) -> Rank {
        Rank(if self.own_order { 0 } else { self.rank })
    }

    /// How many ranks the order is dealt to.
    pub(super) fn dealt_to(&self) -> u32 {
        if self.own_order { 1 } else { self.world }
    }
}

/// The fewest readers that get nearly all there is from a storage of known speed, with samples of this size.
fn knee(speed: &Speed, sample: Bytes) -> u32 {
    const READERS_MAX: u32 = 64;
    let throughput = |readers: u32| {
        let rate = speed.curve.at(readers);
        let transfer_s = (rate.pace() * sample).0.max(f64::MIN_POSITIVE);
        // A reader gets bytes for a part of its time only, so others must read meanwhile: without the one that has just
        // got a sample and is bringing it in, there must still be enough to keep the storage busy.
        let busy = f64::from(readers - 1) * transfer_s / (speed.latency.0 + transfer_s);
        rate.0 * busy.min(1.0)
    };
    let best = (2..=READERS_MAX).map(throughput).fold(0.0, f64::max);
    (2..=READERS_MAX)
        .find(|&readers| throughput(readers) >= 0.98 * best)
        .unwrap_or(READERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readers(points: &[(u32, f64)], latency_s: f64) -> u32 {
        let curve = Curve::new(points.to_vec(), Beyond::Clamp).unwrap();
        knee(
            &Speed {
                curve,
                latency: Seconds(latency_s),
            },
            Bytes(100_000),
        )
    }

    #[test]
    fn as_many_threads_read_as_get_nearly_all_of_an_emulated_storage() {
        assert_eq!(
            readers(&[(1, 50.0)], 0.0),
            2,
            "one reads while the other brings in"
        );
        assert_eq!(readers(&[(1, 20.0), (4, 50.0), (8, 50.5)], 0.0), 4);
        assert_eq!(readers(&[(1, 20.0), (4, 50.0), (8, 10.0)], 0.0), 4);
    }

    #[test]
    fn threads_that_wait_for_their_first_byte_are_made_up_for() {
        assert_eq!(
            readers(&[(1, 50.0)], 0.002),
            3,
            "half of the time of a read is its latency"
        );
        assert_eq!(readers(&[(1, 50.0)], 0.020), 12);
        assert_eq!(readers(&[(1, 50.0)], 1.0), 63);
    }
}
