//! The machine as the model sees it: tiers, network and source, and how fast the trainer consumes.

use super::Curve;
use crate::ids::TierId;
use crate::units::{Bytes, Rate, Seconds};

/// Whose a tier's capacity is; a wider scope is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Each rank has its own.
    Rank,
    /// The ranks of a host share one.
    Host,
    /// All ranks share one, a burst buffer.
    Global,
}

/// A place of a rank, a host or all ranks that keeps samples. Tier 0 is the staging buffer.
#[derive(Clone, Debug)]
pub struct Tier {
    /// What people call it.
    pub name: String,
    /// How much it holds, for each rank, host or all by `scope`, unless ranks differ ([`crate::policy::Capacities`]).
    pub capacity: Bytes,
    /// Whose the capacity is.
    pub scope: Scope,
    /// Loader threads of a rank that fill it.
    pub threads: u32,
    /// Aggregate read throughput by threads.
    pub read: Curve,
    /// Aggregate write throughput by threads.
    pub write: Curve,
}

/// How reads that are under way at the same time share the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// The papers' reading: gamma is the number of ranks with a source read under way, and each read gets
    /// t(gamma)/gamma, and from a tier `r_j(p_j)`, whatever its rank's number of threads.
    Ranks,
    /// The physical one: gamma is the number of reads under way, which get t(gamma) all together.
    Reads,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct System {
    /// Between two ranks of different hosts.
    pub network: Rate,
    /// Between a rank and the source.
    pub source_link: Rate,
    /// Aggregate source throughput by the number of readers.
    pub source: Curve,
    /// How long a read of the source takes before its first byte.
    pub source_latency: Seconds,
    /// How readers share the source.
    pub contention: Contention,
    /// Staging buffer first, then fastest to slowest.
    pub tiers: Vec<Tier>,
    /// Cores of a host, where known.
    pub cores_per_host: Option<u32>,
}

impl System {
    /// The tiers that keep samples: all but the staging buffer.
    pub fn cache_tiers(&self) -> impl Iterator<Item = (TierId, &Tier)> {
        self.tiers
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, tier)| (TierId(index as u8), tier))
    }

    /// The loader threads of a rank by lane: the staging buffer's, then each tier's. A tier that is switched off has
    /// none.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.tiers.iter().map(|tier| {
            if tier.capacity > Bytes(0) {
                tier.threads
            } else {
                0
            }
        })
    }

    /// A tier by its number.
    pub fn tier(&self, tier: TierId) -> &Tier {
        &self.tiers[tier.index()]
    }
}

/// How fast a rank turns samples into training.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// Training throughput of a rank.
    pub compute: Rate,
    /// Preprocessing throughput of one loader thread.
    pub preprocess: Rate,
    /// How large a sample is once decoded.
    pub decoded: Decoded,
}

/// How large a sample is in the staging buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decoded {
    /// As large as it is.
    AsIs,
    /// So many bytes for each byte that is read.
    Times(f64),
    /// So large, whatever it was before.
    Fixed(Bytes),
}
