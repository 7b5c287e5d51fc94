//! Where copies of samples are, and since when: what ranks can know of each other. For each tier and sample one copy
//! is remembered, the earliest; with several ranks to a host, also which hosts have one.

use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::model::{Hosts, Model, Origin, Scope, System};
use foresee_core::units::Seconds;

struct TierCopies {
    scope: Scope,
    since: Vec<f64>,
    holder: Vec<u16>,
    /// One bit a sample for each host; none where a host has one rank.
    hosts: Vec<Vec<u64>>,
}

/// The copies of all ranks.
pub(super) struct Copies {
    hosts: Hosts,
    tiers: Vec<TierCopies>,
}

impl Copies {
    /// No copies yet.
    pub(super) fn new(system: &System, hosts: Hosts, samples: u32) -> Self {
        let samples = samples as usize;
        let tiers = system.cache_tiers().map(|(_, tier)| {
            let bits = vec![0; samples.div_ceil(64)];
            let maps = if hosts.ranks_per_host() > 1 { hosts.domains(Scope::Host) as usize } else { 0 };
            TierCopies {
                scope: tier.scope,
                since: vec![f64::INFINITY; samples],
                holder: vec![0; samples],
                hosts: vec![bits; maps],
            }
        });
        Self { hosts, tiers: tiers.collect() }
    }

    /// For runs in which nobody looks at others.
    pub(super) fn none(hosts: Hosts) -> Self {
        Self { hosts, tiers: Vec::new() }
    }

    /// From `since` on, `rank` holds the sample in `tier`.
    #[inline]
    pub(super) fn record(&mut self, sample: SampleId, tier: TierId, rank: Rank, since: Seconds) {
        let Some(copies) = self.tiers.get_mut(tier.index() - 1) else { return };
        if since.0 < copies.since[sample.index()] {
            copies.since[sample.index()] = since.0;
            copies.holder[sample.index()] = rank.0 as u16;
        }
        if let Some(bits) = copies.hosts.get_mut(self.hosts.host(rank).index()) {
            bits[sample.index() / 64] |= 1 << (sample.index() % 64);
        }
    }

    /// The cheapest copy that `rank` can reach at a time, its own tiers aside.
    #[inline]
    pub(super) fn cheapest(&self, sample: SampleId, rank: Rank, at: Seconds, model: &Model) -> Option<Origin> {
        let mut best: Option<Origin> = None;
        for (index, copies) in self.tiers.iter().enumerate() {
            let origin = copies.reach(sample, rank, at, self.hosts, TierId(index as u8 + 1));
            if let Some(origin) = origin
                && best.is_none_or(|best| model.cached(origin) < model.cached(best))
            {
                best = Some(origin);
            }
        }
        best
    }
}

impl TierCopies {
    #[inline]
    fn reach(&self, sample: SampleId, rank: Rank, at: Seconds, hosts: Hosts, tier: TierId) -> Option<Origin> {
        if self.since[sample.index()] > at.0 {
            return None;
        }
        let holder = Rank(u32::from(self.holder[sample.index()]));
        let on_host = self
            .hosts
            .get(hosts.host(rank).index())
            .map_or(holder == rank, |bits| bits[sample.index() / 64] >> (sample.index() % 64) & 1 == 1);
        match self.scope {
            Scope::Global => Some(Origin::Tier(tier)),
            Scope::Host if on_host => Some(Origin::Tier(tier)),
            _ if holder == rank => None,
            Scope::Rank if on_host => Some(Origin::HostPeer(tier)),
            Scope::Rank | Scope::Host => Some(Origin::Peer(tier)),
        }
    }
}
