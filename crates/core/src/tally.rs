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
    },
    /// The trainer waited for data.
    Stall(Seconds),
}

/// Reads and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many reads.
    pub reads: u64,
    /// How many bytes.
    pub bytes: Bytes,
}

impl Count {
    fn add(&mut self, reads: u64, bytes: Bytes) {
        self.reads += reads;
        self.bytes += bytes;
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
        Self { tiers: vec![Count::default(); tiers], ..Self::default() }
    }

    /// Counts one event.
    #[inline]
    pub fn record(&mut self, event: Event) {
        match event {
            Event::Read { origin, bytes } => self.count_mut(origin).add(1, bytes),
            Event::Stall(time) => self.stall += time,
        }
    }

    /// Counts many reads from one origin at once.
    pub fn record_reads(&mut self, origin: Origin, reads: u64, bytes: Bytes) {
        self.count_mut(origin).add(reads, bytes);
    }

    #[inline]
    fn count_mut(&mut self, origin: Origin) -> &mut Count {
        match origin {
            Origin::Source => &mut self.source,
            Origin::Peer(_) => &mut self.peer,
            Origin::HostPeer(_) => &mut self.host_peer,
            Origin::Tier(tier) => &mut self.tiers[tier.index()],
        }
    }

    /// Adds another rank's events.
    pub fn merge(&mut self, other: &Self) {
        let pairs =
            [(&mut self.source, other.source), (&mut self.peer, other.peer), (&mut self.host_peer, other.host_peer)];
        for (mine, theirs) in pairs.into_iter().chain(self.tiers.iter_mut().zip(other.tiers.iter().copied())) {
            mine.add(theirs.reads, theirs.bytes);
        }
        self.stall += other.stall;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TierId;

    #[test]
    fn counts_by_origin_and_merges_ranks() {
        let mut one = Tally::new(3);
        one.record(Event::Read { origin: Origin::Source, bytes: Bytes(7) });
        one.record(Event::Read { origin: Origin::Peer(TierId(2)), bytes: Bytes(5) });
        one.record(Event::Stall(Seconds(0.5)));
        let mut two = Tally::new(3);
        two.record(Event::Read { origin: Origin::HostPeer(TierId(1)), bytes: Bytes(3) });
        two.record_reads(Origin::Tier(TierId(2)), 4, Bytes(40));
        two.record(Event::Stall(Seconds(1.0)));
        one.merge(&two);
        assert_eq!(one.source, Count { reads: 1, bytes: Bytes(7) });
        assert_eq!(one.peer, Count { reads: 1, bytes: Bytes(5) });
        assert_eq!(one.host_peer, Count { reads: 1, bytes: Bytes(3) });
        assert_eq!(one.tiers[2], Count { reads: 4, bytes: Bytes(40) });
        assert_eq!(one.stall, Seconds(1.5));
    }
}
