//! What a byte costs from each origin, worked out once so that a read costs a multiplication.
//!
//! `fetch = s / min(b_fs, t(gamma)/gamma)` from the source, `s / min(b_c, r_j(p_j)/p_j)` from a peer's tier and
//! `s / (r_j(p_j)/p_j)` from the rank's own; `write = max(s/beta, s/(w_0(p_0)/p_0))` into the staging buffer. In the
//! papers' reading ([`Contention::Ranks`]) a read from a tier gets `r_j(p_j)`, as one from the source gets
//! `t(gamma)/gamma`, whatever the number of threads: so it must be for their figures to come out.

use super::{Contention, Curve, Decoded, System, Trainer};
use crate::ids::{Rank, TierId};
use crate::tally::Count;
use crate::units::{Bytes, Pace, Seconds};

/// Where a read is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The rank's own tier, or one it shares.
    Tier(TierId),
    /// The tier of another rank on the same host.
    HostPeer {
        /// Whose.
        rank: Rank,
        /// Which of its tiers.
        tier: TierId,
    },
    /// The tier of a rank on another host.
    Peer {
        /// Whose.
        rank: Rank,
        /// Which of its tiers.
        tier: TierId,
    },
    /// Where the dataset lives.
    Source,
}

/// Who reads from the source at a moment, the read in question included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLoad {
    /// Ranks with a read under way, or reads under way, by [`Contention`].
    pub readers: u32,
    /// Of these, reads of the same rank: they share its link. 1 where readers are ranks.
    pub own: u32,
}

#[derive(Clone, Debug)]
struct TierCost {
    read: Pace,
    peer: Pace,
    write: Pace,
    threads: f64,
}

/// Readers, or writers, up to which a curve is worked out before the job.
const TABLE_MAX: u32 = 1 << 16;

/// A byte of the source for each of so many readers.
fn share(curve: &Curve, readers: u32) -> Pace {
    curve.at(readers).shared_by(readers).pace()
}

/// Costs of one job on one system.
#[derive(Clone, Debug)]
pub struct Model {
    contention: Contention,
    compute: Pace,
    preprocess: Pace,
    /// By how many threads stage at a time, from the staging buffer's own number up to all that a rank has.
    stage_writes: Vec<Pace>,
    tiers: Vec<TierCost>,
    /// t(gamma)/gamma by gamma, from 1, as far as it is asked often.
    source: Vec<Pace>,
    source_curve: Curve,
    link: Pace,
    latency: Seconds,
    decoded: Decoded,
    network: Pace,
    /// No read from elsewhere is cheaper than this.
    best_elsewhere: Pace,
}

impl Model {
    /// The costs of `ranks` ranks with this trainer on this system.
    pub fn new(system: &System, trainer: &Trainer, ranks: u32) -> Self {
        let tiers: Vec<TierCost> = system
            .tiers
            .iter()
            .map(|tier| {
                let together = tier.read.at(tier.threads);
                let read = match system.contention {
                    Contention::Ranks => together,
                    Contention::Reads => together.shared_by(tier.threads),
                };
                TierCost {
                    read: read.pace(),
                    peer: read.min(system.network).pace(),
                    write: tier.write.at(tier.threads).shared_by(tier.threads).pace(),
                    threads: f64::from(tier.threads),
                }
            })
            .collect();
        let threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
        let readers_max = match system.contention {
            Contention::Ranks => ranks,
            Contention::Reads => ranks.saturating_mul(threads),
        };
        let source: Vec<Pace> = (1..=readers_max.clamp(1, TABLE_MAX))
            .map(|g| share(&system.source, g))
            .collect();
        let preprocess = trainer.preprocess.pace();
        let times = match trainer.decoded {
            Decoded::Times(times) => times,
            Decoded::AsIs | Decoded::Fixed(_) => 1.0,
        };
        let staging = &system.tiers[0];
        let stage_write = |writers| {
            let write = staging.write.at(writers).shared_by(writers).pace();
            preprocess.max(Pace(write.0 * times))
        };
        let link = system.source_link.pace();
        let best_elsewhere = tiers
            .iter()
            .skip(1)
            .map(|tier| tier.read)
            .chain(source.iter().map(|pace| pace.max(link)))
            .fold(
                Pace(f64::INFINITY),
                |best, pace| if pace < best { pace } else { best },
            );
        Self {
            contention: system.contention,
            compute: trainer.compute.pace(),
            preprocess,
            stage_writes: (staging.threads..=threads)
                .take(TABLE_MAX as usize)
                .map(stage_write)
                .collect(),
            tiers,
            source,
            source_curve: system.source.clone(),
            link,
            latency: system.source_latency,
            decoded: trainer.decoded,
            network: system.network.pace(),
            best_elsewhere,
        }
    }

    /// How readers of the source are counted.
    pub fn contention(&self) -> Contention {
        self.contention
    }

    /// A byte of the source under this load.
    #[inline]
    pub fn source(&self, load: SourceLoad) -> Pace {
        self.source_among(load, load.readers)
    }

    /// A byte of the source for one of the `served` readers of this load, while the others wait for their first byte.
    #[inline]
    pub fn source_among(&self, load: SourceLoad, served: u32) -> Pace {
        let gamma = load.readers.max(1);
        let even = self
            .source
            .get(gamma as usize - 1)
            .copied()
            .unwrap_or_else(|| share(&self.source_curve, gamma));
        let shared = Pace(even.0 * (f64::from(served.max(1)) / f64::from(gamma)));
        shared.max(Pace(self.link.0 * f64::from(load.own.max(1))))
    }

    /// How long an origin takes to deliver, at this pace.
    #[inline]
    pub fn fetch(&self, origin: Origin, pace: Pace, bytes: Bytes) -> Seconds {
        let transfer = pace * bytes;
        if origin == Origin::Source {
            self.latency + transfer
        } else {
            transfer
        }
    }

    /// What a sample takes of the staging buffer: its size once decoded.
    #[inline]
    pub fn staged(&self, bytes: Bytes) -> Bytes {
        match self.decoded {
            Decoded::AsIs => bytes,
            Decoded::Times(times) => Bytes((bytes.0 as f64 * times).ceil() as u64),
            Decoded::Fixed(bytes) => bytes,
        }
    }

    /// Handing a sample to its home, which receives it as from `origin`, and writing it there, which overlap.
    #[inline]
    pub fn hand_over(&self, origin: Origin, tier: TierId, bytes: Bytes) -> Seconds {
        let write = self.tier_write(tier);
        (if matches!(origin, Origin::Peer { .. }) {
            self.network.max(write)
        } else {
            write
        }) * bytes
    }

    /// A byte of an origin other than the source.
    #[inline]
    pub fn cached(&self, origin: Origin) -> Option<Pace> {
        match origin {
            Origin::Tier(tier) | Origin::HostPeer { tier, .. } => {
                Some(self.tiers[tier.index()].read)
            }
            Origin::Peer { tier, .. } => Some(self.tiers[tier.index()].peer),
            Origin::Source => None,
        }
    }

    /// Whether no other origin can beat this cost, so that none need be asked.
    #[inline]
    pub fn is_unbeatable(&self, pace: Pace) -> bool {
        pace <= self.best_elsewhere
    }

    /// Preprocessing a sample and writing it into the staging buffer, which overlap.
    #[inline]
    pub fn stage_write(&self) -> Pace {
        self.stage_writes[0]
    }

    /// The same while so many threads of the rank stage.
    #[inline]
    pub fn stage_write_among(&self, writers: u32) -> Pace {
        let beyond_own = (f64::from(writers) - self.tiers[0].threads).max(0.0) as usize;
        self.stage_writes[beyond_own.min(self.stage_writes.len() - 1)]
    }

    /// How much longer a read from a tier takes while so many threads of the rank read from it. The model has what a
    /// thread gets while the tier's own threads read, or the staging buffer's, whichever are more; beyond that number
    /// they share what so many get.
    #[inline]
    pub fn tier_crowding(&self, tier: TierId, readers: u32) -> f64 {
        let served = self.tiers[tier.index()].threads.max(self.tiers[0].threads);
        (f64::from(readers) / served).max(1.0)
    }

    /// Writing a sample into a tier as it is.
    #[inline]
    pub fn tier_write(&self, tier: TierId) -> Pace {
        self.tiers[tier.index()].write
    }

    /// Loader threads of a tier.
    #[inline]
    pub fn threads(&self, tier: TierId) -> f64 {
        self.tiers[tier.index()].threads
    }

    /// Training on a sample.
    #[inline]
    pub fn compute(&self, bytes: Bytes) -> Seconds {
        self.compute * bytes
    }

    /// Filling a tier before training: each thread waits for the source, reads and preprocesses, and the write goes on
    /// beside it, so the slower of the two counts.
    pub fn fill(&self, tier: TierId, count: Count, load: SourceLoad) -> Seconds {
        let latency = Seconds(self.latency.0 * count.reads as f64);
        let prepared = latency + (self.source(load) + self.preprocess) * count.bytes;
        let written = self.tier_write(tier) * count.bytes;
        prepared.max(written) / self.threads(tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Beyond, Scope, Tier};
    use crate::units::Rate;

    fn tier(threads: u32, mb_per_s: f64) -> Tier {
        let curve = Curve::new(vec![(threads, mb_per_s)], Beyond::Clamp).expect("a curve");
        Tier {
            name: "tier".into(),
            capacity: Bytes::from_mb(100.0),
            scope: Scope::Rank,
            threads,
            read: curve.clone(),
            write: curve,
        }
    }

    /// Two staging threads write 100 MB/s together, three threads of a tier 60 MB/s; the source gives 50 MB/s after 10 ms.
    fn model() -> Model {
        let system = System {
            network: Rate(1000.0),
            source_link: Rate(1000.0),
            source: Curve::new(vec![(1, 50.0)], Beyond::Clamp).expect("a curve"),
            source_latency: Seconds(0.01),
            contention: Contention::Reads,
            tiers: vec![tier(2, 100.0), tier(3, 60.0)],
            cores_per_host: None,
        };
        let trainer = Trainer {
            compute: Rate(1e6),
            preprocess: Rate(1e6),
            decoded: Decoded::AsIs,
        };
        Model::new(&system, &trainer, 1)
    }

    fn takes(pace: Pace) -> f64 {
        (pace * Bytes::from_mb(1.0)).0
    }

    #[test]
    fn threads_that_help_to_stage_share_what_the_buffer_takes() {
        let model = model();
        let own = takes(model.stage_write());
        assert!((own - 0.02).abs() < 1e-9);
        let by_writers = [1, 2, 5].map(|writers| takes(model.stage_write_among(writers)) / own);
        let expected = [1.0, 1.0, 2.5];
        for (ratio, expected) in by_writers.into_iter().zip(expected) {
            assert!((ratio - expected).abs() < 1e-9, "{by_writers:?}");
        }
    }

    #[test]
    fn more_threads_than_a_tier_or_the_staging_buffer_has_get_no_more_of_it() {
        let model = model();
        let crowding = [1, 3, 6].map(|readers| model.tier_crowding(TierId(1), readers));
        assert!((crowding[0] - 1.0).abs() < 1e-9 && (crowding[1] - 1.0).abs() < 1e-9);
        assert!((crowding[2] - 2.0).abs() < 1e-9, "{crowding:?}");
    }

    #[test]
    fn filling_waits_for_the_first_byte_of_each_read() {
        let load = SourceLoad { readers: 1, own: 1 };
        let count = |reads| Count {
            reads,
            bytes: Bytes::from_mb(60.0),
            took: Seconds::ZERO,
        };
        let fill = |reads| model().fill(TierId(1), count(reads), load).0;
        let difference = fill(600) - fill(300);
        assert!(
            (difference - 300.0 * 0.01 / 3.0).abs() < 1e-6,
            "{difference}"
        );
    }
}
