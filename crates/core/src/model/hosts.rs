//! Which rank lives on which host. Ranks are numbered host by host; hosts may have different numbers of them. Two small
//! tables that all clones share answer both ways, so that a look costs one access to memory.

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use super::{Origin, Scope};
use crate::ids::{Host, Rank, TierId};

/// Which rank lives where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The first rank of each host, and behind the last host the number of ranks.
    first: Arc<[u32]>,
    /// The host of each rank.
    host_of: Arc<[u32]>,
}

impl Hosts {
    /// `ranks` ranks, so many on each host; the last one may have fewer.
    ///
    /// # Panics
    /// If either number is zero.
    pub fn new(ranks: u32, ranks_per_host: u32) -> Self {
        assert!(
            ranks > 0 && ranks_per_host > 0,
            "a job has ranks and a host has ranks"
        );
        let hosts = ranks.div_ceil(ranks_per_host);
        let sizes: Vec<u32> = (0..hosts)
            .map(|host| ranks_per_host.min(ranks - host * ranks_per_host))
            .collect();
        Self::of_sizes(&sizes)
    }

    /// Host by host so many ranks.
    ///
    /// # Panics
    /// If there is no host, or one without a rank.
    pub fn of_sizes(sizes: &[u32]) -> Self {
        assert!(
            !sizes.is_empty() && sizes.iter().all(|&size| size > 0),
            "a job has hosts and a host has ranks"
        );
        let mut first = vec![0];
        let mut host_of = Vec::new();
        for (host, &size) in sizes.iter().enumerate() {
            host_of.resize(host_of.len() + size as usize, host as u32);
            first.push(host_of.len() as u32);
        }
        Self {
            first: first.into(),
            host_of: host_of.into(),
        }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.host_of.len() as u32
    }

    /// The number of hosts.
    pub fn count(&self) -> u32 {
        self.first.len() as u32 - 1
    }

    /// Whether some host has more than one rank.
    pub fn are_shared(&self) -> bool {
        self.count() < self.ranks()
    }

    /// How many ranks each host has.
    pub fn sizes(&self) -> impl Iterator<Item = u32> + '_ {
        self.first.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// All ranks.
    pub fn all(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.ranks()).map(Rank)
    }

    /// The host of a rank.
    #[inline]
    pub fn host(&self, rank: Rank) -> Host {
        Host(self.host_of[rank.index()])
    }

    /// The ranks of a host, by their numbers; none of one that is not there.
    #[inline]
    pub fn ranks_of(&self, host: Host) -> Range<u32> {
        match self.first.get(host.index()..) {
            Some(&[first, end, ..]) => first..end,
            _ => 0..0,
        }
    }

    /// A rank within its host, counted from 1; none beyond what 16 bits can tell.
    #[inline]
    pub fn place_on_host(&self, rank: Rank) -> Option<NonZeroU16> {
        let place = rank.0 - self.first[self.host(rank).index()] + 1;
        u16::try_from(place).ok().and_then(NonZeroU16::new)
    }

    /// The rank at a place of a host.
    #[inline]
    pub fn rank_at(&self, host: Host, place: NonZeroU16) -> Rank {
        Rank(self.first[host.index()] + u32::from(place.get()) - 1)
    }

    /// How `from`'s data reach `rank`: `from` keeps them in `tier`, or hands them over into it.
    #[inline]
    pub fn as_seen_from(&self, rank: Rank, from: Rank, tier: TierId) -> Origin {
        if self.host(rank) == self.host(from) {
            Origin::HostPeer { rank: from, tier }
        } else {
            Origin::Peer { rank: from, tier }
        }
    }

    /// How many separate tiers of this scope there are.
    pub fn domains(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Rank => self.ranks(),
            Scope::Host => self.count(),
            Scope::Global => 1,
        }
    }

    /// Which of them a rank uses.
    #[inline]
    pub fn domain(&self, scope: Scope, rank: Rank) -> usize {
        match scope {
            Scope::Rank => rank.index(),
            Scope::Host => self.host(rank).index(),
            Scope::Global => 0,
        }
    }

    /// The ranks that share one of them, by their numbers.
    pub fn members(&self, scope: Scope, domain: usize) -> Range<u32> {
        match scope {
            Scope::Rank => domain as u32..domain as u32 + 1,
            Scope::Host => self.ranks_of(Host(domain as u32)),
            Scope::Global => 0..self.ranks(),
        }
    }

    /// The ranks that share a tier of this scope with a rank, itself included.
    pub fn sharers(&self, scope: Scope, rank: Rank) -> Range<u32> {
        self.members(scope, self.domain(scope, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_have_different_numbers_of_ranks() {
        let hosts = Hosts::of_sizes(&[2, 1, 3]);
        let host_of: Vec<u32> = hosts.all().map(|rank| hosts.host(rank).0).collect();
        assert_eq!(host_of, [0, 0, 1, 2, 2, 2]);
        assert_eq!(hosts.ranks_of(Host(2)), 3..6);
        assert!(hosts.ranks_of(Host(3)).is_empty());
        let places: Vec<u16> = hosts
            .all()
            .filter_map(|rank| hosts.place_on_host(rank).map(NonZeroU16::get))
            .collect();
        assert_eq!(places, [1, 2, 1, 1, 2, 3]);
        for rank in hosts.all() {
            let place = hosts.place_on_host(rank).unwrap();
            assert_eq!(hosts.rank_at(hosts.host(rank), place), rank);
        }
        assert_eq!(hosts.sharers(Scope::Rank, Rank(4)), 4..5);
        assert_eq!(hosts.sharers(Scope::Host, Rank(4)), 3..6);
        assert_eq!(hosts.sharers(Scope::Global, Rank(4)), 0..6);
    }

    #[test]
    fn the_last_of_equal_hosts_may_have_fewer() {
        assert_eq!(Hosts::new(7, 3), Hosts::of_sizes(&[3, 3, 1]));
        assert!(!Hosts::new(3, 1).are_shared());
    }
}
