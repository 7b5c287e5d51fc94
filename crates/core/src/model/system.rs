//! The machine as the model sees it: ranks on hosts, tiers, network and source, and how fast the trainer consumes.

use super::{Curve, Origin};
use std::num::NonZeroU16;

use crate::ids::{Host, Rank, TierId};
use crate::units::{Bytes, Rate, Seconds};

/// Whose a tier's capacity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// How much it holds, for each rank, host or all by `scope`.
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

/// Which rank lives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    ranks: u32,
    ranks_per_host: u32,
}

impl Hosts {
    /// `ranks` ranks, numbered host by host.
    ///
    /// # Panics
    /// If either number is zero.
    pub fn new(ranks: u32, ranks_per_host: u32) -> Self {
        assert!(
            ranks > 0 && ranks_per_host > 0,
            "a job has ranks and a host has ranks"
        );
        Self {
            ranks,
            ranks_per_host,
        }
    }

    /// The number of ranks.
    pub fn ranks(self) -> u32 {
        self.ranks
    }

    /// How many ranks a host has.
    pub fn ranks_per_host(self) -> u32 {
        self.ranks_per_host
    }

    /// All ranks.
    pub fn all(self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.ranks).map(Rank)
    }

    /// The host of a rank.
    #[inline]
    pub fn host(self, rank: Rank) -> Host {
        Host(rank.0 / self.ranks_per_host)
    }

    /// A rank within its host, counted from 1; none beyond what 16 bits can tell.
    #[inline]
    pub fn place_on_host(self, rank: Rank) -> Option<NonZeroU16> {
        let place = rank.0 % self.ranks_per_host + 1;
        u16::try_from(place).ok().and_then(NonZeroU16::new)
    }

    /// The rank at a place of a host.
    #[inline]
    pub fn rank_at(self, host: Host, place: NonZeroU16) -> Rank {
        Rank(host.0 * self.ranks_per_host + u32::from(place.get()) - 1)
    }

    /// How `from`'s data reach `rank`: `from` keeps them in `tier`, or hands them over into it.
    pub fn as_seen_from(self, rank: Rank, from: Rank, tier: TierId) -> Origin {
        if self.host(rank) == self.host(from) {
            Origin::HostPeer { rank: from, tier }
        } else {
            Origin::Peer { rank: from, tier }
        }
    }

    /// How many ranks share one tier of this scope; the last host may have fewer.
    fn sharers(self, scope: Scope) -> u32 {
        match scope {
            Scope::Rank => 1,
            Scope::Host => self.ranks_per_host,
            Scope::Global => self.ranks,
        }
    }

    /// How many separate tiers of this scope there are.
    pub fn domains(self, scope: Scope) -> u32 {
        self.ranks.div_ceil(self.sharers(scope))
    }

    /// Which of them a rank uses.
    #[inline]
    pub fn domain(self, scope: Scope, rank: Rank) -> usize {
        (rank.0 / self.sharers(scope)) as usize
    }

    /// The ranks that share one of them.
    pub fn members(
        self,
        scope: Scope,
        domain: usize,
    ) -> impl Iterator<Item = Rank> + Clone + use<> {
        let first = domain as u32 * self.sharers(scope);
        (first..(first + self.sharers(scope)).min(self.ranks)).map(Rank)
    }
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
