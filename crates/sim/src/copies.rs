//! Where copies of samples are, and since when: what ranks can know of each other. For each tier and sample the time of
//! the earliest copy is remembered, and whose it is; with several ranks to a host, also of each host who has one. One
//! holder is enough: a rank that holds a copy itself never asks, or finds that no other is cheaper.

use std::num::NonZeroU16;

use foresee_core::homes::Home;
use foresee_core::ids::{Host, Rank, SampleId, TierId};
use foresee_core::model::{Hosts, Model, Origin, Scope};
use foresee_core::policy::{Brief, Keeping, Part};
use foresee_core::tier_map::TierMap;
use foresee_core::units::{Pace, Seconds};

struct TierHosts {
    scope: Scope,
    /// For each host and sample which rank of the host has a copy, counted from 1; none where a host has one rank.
    hosts: Vec<Vec<Local>>,
}

/// A rank within its host, counted from 1.
type Local = Option<NonZeroU16>;

/// The copies of all ranks.
pub(crate) struct Copies {
    hosts: Hosts,
    tiers: Vec<TierHosts>,
    /// Seconds, by sample, and within a sample by tier, so that a look costs one access to memory. Rounded up to what
    /// 32 bits can tell: half a millisecond after two hours.
    earliest: Vec<f32>,
    /// Whose the earliest is, in the same order. Where it went and others stay, it is the one that went: only policies
    /// whose ranks serve nobody outside their host let copies go.
    holders: Vec<Rank>,
    /// How many there are, in the same order; none where copies never go.
    counts: Vec<u16>,
    arriving: Arriving,
}

/// How many samples are still on their way to their homes. Under a plan with homes every copy that others can see is at
/// home and stays there, so from the last arrival on nobody has to look.
struct Arriving {
    homes: usize,
    /// The last arrival so far.
    last: f32,
    /// The last of all; never while homes are without.
    done: f32,
}

impl Arriving {
    fn none() -> Self {
        Self {
            homes: 0,
            last: 0.0,
            done: f32::INFINITY,
        }
    }

    fn new(parts: &[Part]) -> Self {
        let homes = parts.iter().find_map(Part::homes);
        let count = homes.map_or(0, |homes| {
            (0..homes.len())
                .filter(|&s| homes.get(SampleId(s)).is_some())
                .count()
        });
        Self {
            homes: count,
            ..Self::none()
        }
    }

    /// A sample gets to its home.
    fn record(&mut self, since: f32) {
        if self.homes == 0 {
            return;
        }
        self.homes -= 1;
        self.last = self.last.max(since);
        if self.homes == 0 {
            self.done = self.last;
        }
    }
}

impl Copies {
    /// What a plan needs: nothing where nobody looks at others.
    pub(crate) fn for_plan(brief: &Brief, parts: &[Part]) -> Self {
        if !parts.iter().any(|part| part.routes.peers()) {
            return Self {
                hosts: brief.hosts.clone(),
                tiers: Vec::new(),
                earliest: Vec::new(),
                holders: Vec::new(),
                counts: Vec::new(),
                arriving: Arriving::none(),
            };
        }
        let hosts = brief.hosts.clone();
        let samples = brief.catalog.len() as usize;
        let maps = if hosts.are_shared() {
            hosts.domains(Scope::Host) as usize
        } else {
            0
        };
        let tier = |scope| TierHosts {
            scope,
            hosts: vec![vec![None; samples]; maps],
        };
        let tiers: Vec<TierHosts> = brief
            .system
            .cache_tiers()
            .map(|(_, spec)| tier(spec.scope))
            .collect();
        let earliest = vec![f32::INFINITY; samples * tiers.len()];
        let holders = vec![Rank(0); earliest.len()];
        let evicts = parts
            .iter()
            .any(|part| matches!(part.keeping, Keeping::Reuse { .. }));
        let counts = if evicts {
            vec![0; earliest.len()]
        } else {
            Vec::new()
        };
        let mut copies = Self {
            hosts,
            tiers,
            earliest,
            holders,
            counts,
            arriving: Arriving::new(parts),
        };
        copies.record_held(parts);
        copies
    }

    /// What was at its home before the job.
    fn record_held(&mut self, parts: &[Part]) {
        for part in parts {
            for &(sample, tier) in &part.held {
                let rank = part.rank;
                let home = part.homes().and_then(|homes| homes.get(sample));
                if home == Some(Home { rank, tier }) {
                    self.record(sample, tier, rank, Seconds::ZERO);
                }
            }
        }
    }

    /// What a rank holds from the start.
    pub(crate) fn record_all(&mut self, holdings: &TierMap, rank: Rank) {
        for (sample, tier) in holdings.iter() {
            self.record(sample, tier, rank, Seconds::ZERO);
        }
    }

    /// From `since` on, `rank` holds the sample in `tier`.
    #[inline]
    pub(crate) fn record(&mut self, sample: SampleId, tier: TierId, rank: Rank, since: Seconds) {
        let count = self.tiers.len();
        let Some(there) = self.tiers.get_mut(tier.index() - 1) else {
            return;
        };
        let place = sample.index() * count + tier.index() - 1;
        if let Some(copies) = self.counts.get_mut(place) {
            *copies += 1;
        }
        let earliest = &mut self.earliest[place];
        let known_since = rounded_up(since);
        if *earliest == f32::INFINITY {
            self.arriving.record(known_since);
        }
        if since.0 < f64::from(*earliest) {
            *earliest = known_since;
            self.holders[place] = rank;
        }
        if !there.hosts.is_empty() {
            there.record(sample, rank, &self.hosts);
        }
    }

    /// `rank` does not hold the sample any more.
    pub(crate) fn remove(&mut self, sample: SampleId, tier: TierId, rank: Rank) {
        let place = sample.index() * self.tiers.len() + tier.index() - 1;
        let Some(copies) = self.counts.get_mut(place).filter(|copies| **copies > 0) else {
            return;
        };
        *copies -= 1;
        if *copies == 0 {
            self.earliest[place] = f32::INFINITY;
        }
        let there = &mut self.tiers[tier.index() - 1];
        if let Some(local) = there.hosts.get_mut(self.hosts.host(rank).index()) {
            local[sample.index()] = None;
        }
    }

    /// How many copies there are, where they are counted.
    pub(crate) fn count(&self, sample: SampleId) -> u32 {
        let first = sample.index() * self.tiers.len();
        let counts = self
            .counts
            .get(first..first + self.tiers.len())
            .unwrap_or(&[]);
        counts.iter().copied().map(u32::from).sum()
    }

    /// Whether some rank has a copy in this tier at a time.
    #[inline]
    pub(crate) fn is_at(&self, sample: SampleId, tier: TierId, at: Seconds) -> bool {
        let arrived = f64::from(self.arriving.done) <= at.0;
        arrived
            || f64::from(self.earliest[sample.index() * self.tiers.len() + tier.index() - 1])
                <= at.0
    }

    /// Since when there is a copy, or from when on there will be.
    pub(crate) fn since(&self, sample: SampleId) -> Seconds {
        let first = sample.index() * self.tiers.len();
        let earliest = &self.earliest[first..first + self.tiers.len()];
        Seconds(f64::from(
            earliest.iter().copied().fold(f32::INFINITY, f32::min),
        ))
    }

    /// The cheapest copy that `rank` can reach at a time, its own tiers aside.
    #[inline]
    pub(crate) fn cheapest(
        &self,
        sample: SampleId,
        rank: Rank,
        at: Seconds,
        model: &Model,
    ) -> Option<Origin> {
        let first = sample.index() * self.tiers.len();
        let copies = &self.earliest[first..first + self.tiers.len()];
        // Only which tier and its pace are carried through the loop: this is asked at every access.
        let mut best = None;
        let mut least = Pace(f64::INFINITY);
        for (index, (&since, there)) in copies.iter().zip(&self.tiers).enumerate() {
            if f64::from(since) > at.0 {
                continue;
            }
            let pace =
                model.cached(there.origin(sample, rank, &self.hosts, self.home(first, index)));
            if let Some(pace) = pace.filter(|pace| best.is_none() || *pace < least) {
                best = Some(index);
                least = pace;
            }
        }
        let best = best?;
        let earliest = self.home(first, best);
        Some(self.tiers[best].origin(sample, rank, &self.hosts, earliest))
    }

    /// Where the earliest copy in a tier is, of a sample that begins at `first`.
    #[inline]
    fn home(&self, first: usize, index: usize) -> Home {
        Home {
            rank: self.holders[first + index],
            tier: TierId(index as u8 + 1),
        }
    }
}

impl TierHosts {
    /// `rank` has a copy, which others of its host may ask for.
    fn record(&mut self, sample: SampleId, rank: Rank, hosts: &Hosts) {
        self.hosts[hosts.host(rank).index()][sample.index()] = hosts.place_on_host(rank);
    }

    /// How `rank` gets a sample, the earliest copy of which is at `earliest`.
    #[inline]
    fn origin(&self, sample: SampleId, rank: Rank, hosts: &Hosts, earliest: Home) -> Origin {
        let Home { rank: holder, tier } = earliest;
        if self.scope == Scope::Global {
            return Origin::Tier(tier);
        }
        // Where a host has one rank, whatever is elsewhere is on another host.
        let near = if self.hosts.is_empty() {
            None
        } else {
            self.on_host(sample, tier, hosts.host(rank), hosts)
        };
        near.unwrap_or(Origin::Peer { rank: holder, tier })
    }

    /// A copy of a host's own.
    fn on_host(&self, sample: SampleId, tier: TierId, host: Host, hosts: &Hosts) -> Option<Origin> {
        let place = self.hosts.get(host.index())?[sample.index()]?;
        Some(match self.scope {
            Scope::Rank => Origin::HostPeer {
                rank: hosts.rank_at(host, place),
                tier,
            },
            Scope::Host | Scope::Global => Origin::Tier(tier),
        })
    }
}

#[inline]
fn rounded_up(time: Seconds) -> f32 {
    let near = time.0 as f32;
    if f64::from(near) < time.0 {
        near.next_up()
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_homes_are_there_from_the_last_arrival_on_and_not_before_it_is_known() {
        let mut arriving = Arriving {
            homes: 2,
            ..Arriving::none()
        };
        let mut without = Arriving::none();
        let done = [3.0, 1.0].map(|since| {
            arriving.record(since);
            without.record(since);
            (arriving.done.to_bits(), without.done.to_bits())
        });
        let never = f32::INFINITY.to_bits();
        assert_eq!(done, [(never, never), (3f32.to_bits(), never)]);
    }
}
