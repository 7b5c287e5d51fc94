//! What happened, counted the same way by the simulator and the loader: one event type, one aggregation.

use crate::model::Origin;
use crate::units::{Bytes, Seconds};

/// One thing that happened to a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A sample was read, for the staging buffer or for a tier.
    Read {
        /// Where from.
        origin: Origin,
        /// How much.
        bytes: Bytes,
        /// How long one thread fetched it.
        took: Seconds,
    },
    /// The trainer waited for data, its own or, at the end of a step, another rank's.
    Stall(Seconds),
}

/// Reads and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// How many reads.
    pub reads: u64,
    /// How many bytes.
    pub bytes: Bytes,
    /// How long threads fetched them, all added up.
    pub took: Seconds,
}

impl Count {
    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.took += other.took;
    }

    /// What was counted after `earlier`, an earlier state of this count.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            bytes: self.bytes - earlier.bytes,
            took: self.took - earlier.took,
        }
    }
}

/// The events of one rank, or of several merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// From the source.
    pub source: Count,
    /// From ranks of other hosts.
    pub peer: Count,
    /// From other ranks of the same host.
    pub host_peer: Count,
    /// From own tiers, by tier; the staging buffer's entry stays empty.
    pub tiers: Vec<Count>,
    /// How long the trainer waited.
    pub stall: Seconds,
}

impl Tally {
    /// Nothing yet, with room for `tiers` tiers.
    pub fn new(tiers: usize) -> Self {
        Self {
            tiers: vec![Count::default(); tiers],
            ..Self::default()
        }
    }

    /// Counts one event.
    #[inline]
    pub fn record(&mut self, event: Event) {
        match event {
            Event::Read {
                origin,
                bytes,
                took,
            } => self.count_mut(origin).add(Count {
                reads: 1,
                bytes,
                took,
            }),
            Event::Stall(time) => self.stall += time,
        }
    }

    /// Counts many reads from one origin at once.
    pub fn record_reads(&mut self, origin: Origin, count: Count) {
        self.count_mut(origin).add(count);
    }

    #[inline]
    fn count_mut(&mut self, origin: Origin) -> &mut Count {
        match origin {
            Origin::Source => &mut self.source,
            Origin::Peer { .. } => &mut self.peer,
            Origin::HostPeer { .. } => &mut self.host_peer,
            Origin::Tier(tier) => &mut self.tiers[tier.index()],
        }
    }

    /// Adds another rank's events.
    pub fn merge(&mut self, other: &Self) {
        let pairs = [
            (&mut self.source, other.source),
            (&mut self.peer, other.peer),
            (&mut self.host_peer, other.host_peer),
        ];
        for (mine, theirs) in pairs
            .into_iter()
            .chain(self.tiers.iter_mut().zip(other.tiers.iter().copied()))
        {
            mine.add(theirs);
        }
        self.stall += other.stall;
    }

    /// What happened after `earlier`, an earlier state of this tally.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            source: self.source.since(earlier.source),
            peer: self.peer.since(earlier.peer),
            host_peer: self.host_peer.since(earlier.host_peer),
            tiers: self
                .tiers
                .iter()
                .zip(&earlier.tiers)
                .map(|(now, then)| now.since(*then))
                .collect(),
            stall: self.stall - earlier.stall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Rank, TierId};

    #[test]
    fn counts_by_origin_and_merges_ranks() {
        let mut one = Tally::new(3);
        one.record(Event::Read {
            origin: Origin::Source,
            bytes: Bytes(7),
            took: Seconds(2.0),
        });
        one.record(Event::Read {
            origin: Origin::Peer {
                rank: Rank(1),
                tier: TierId(2),
            },
            bytes: Bytes(5),
            took: Seconds(1.0),
        });
        one.record(Event::Stall(Seconds(0.5)));
        let mut two = Tally::new(3);
        two.record(Event::Read {
            origin: Origin::HostPeer {
                rank: Rank(1),
                tier: TierId(1),
            },
            bytes: Bytes(3),
            took: Seconds(1.0),
        });
        two.record_reads(
            Origin::Tier(TierId(2)),
            Count {
                reads: 4,
                bytes: Bytes(40),
                took: Seconds(4.0),
            },
        );
        two.record(Event::Stall(Seconds(1.0)));
        one.merge(&two);
        assert_eq!(
            one.source,
            Count {
                reads: 1,
                bytes: Bytes(7),
                took: Seconds(2.0)
            }
        );
        assert_eq!(
            one.peer,
            Count {
                reads: 1,
                bytes: Bytes(5),
                took: Seconds(1.0)
            }
        );
        assert_eq!(
            one.host_peer,
            Count {
                reads: 1,
                bytes: Bytes(3),
                took: Seconds(1.0)
            }
        );
        assert_eq!(
            one.tiers[2],
            Count {
                reads: 4,
                bytes: Bytes(40),
                took: Seconds(4.0)
            }
        );
        assert_eq!(one.stall, Seconds(1.5));
    }
}
