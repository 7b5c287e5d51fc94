//! What trainers waited for: a stall is blamed on what the sample that ended it was doing meanwhile. Simulator and
//! loader blame alike.

use std::collections::BTreeMap;

use crate::ids::TierId;
use crate::model::Origin;
use crate::units::Seconds;

/// What a trainer waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes from the source.
    Source,
    /// Bytes from a rank of another host.
    Peer,
    /// Bytes from a rank of the same host.
    HostPeer,
    /// Bytes from an own tier.
    Tier(TierId),
    /// Decoding.
    Preprocess,
}

impl Cause {
    /// What most of a stall went to, for a sample that had its bytes from `origin` after it was waited for so long.
    pub fn of(origin: Origin, fetched: Seconds, stall: Seconds) -> Self {
        if stall - fetched > fetched {
            return Self::Preprocess;
        }
        match origin {
            Origin::Source => Self::Source,
            Origin::Peer { .. } => Self::Peer,
            Origin::HostPeer { .. } => Self::HostPeer,
            Origin::Tier(tier) => Self::Tier(tier),
        }
    }

    /// By the names of origins.
    pub fn name(self) -> String {
        match self {
            Self::Source => "source".to_owned(),
            Self::Peer => "peer".to_owned(),
            Self::HostPeer => "host_peer".to_owned(),
            Self::Tier(tier) => format!("tier{}", tier.0),
            Self::Preprocess => "preprocess".to_owned(),
        }
    }
}

/// Seconds of stall by cause, of one rank or of several merged.
#[derive(Clone, Debug)]
pub struct Causes {
    source: f64,
    peer: f64,
    host_peer: f64,
    preprocess: f64,
    /// By tier; the staging buffer's stays zero.
    tiers: Vec<f64>,
}

impl Causes {
    /// Nothing yet, with room for `tiers` tiers.
    pub fn new(tiers: usize) -> Self {
        Self {
            source: 0.0,
            peer: 0.0,
            host_peer: 0.0,
            preprocess: 0.0,
            tiers: vec![0.0; tiers],
        }
    }

    /// A stall from `since` until `now`, for a sample that had its bytes from `origin` at `fetched`: until then it was
    /// the origin that the trainer waited for, afterwards decoding.
    #[inline]
    pub fn blame(&mut self, origin: Origin, [since, fetched, now]: [Seconds; 3]) {
        let stall = (now - since).0;
        let fetching = (fetched - since).0.clamp(0.0, stall.max(0.0));
        self.preprocess += stall - fetching;
        *match origin {
            Origin::Source => &mut self.source,
            Origin::Peer { .. } => &mut self.peer,
            Origin::HostPeer { .. } => &mut self.host_peer,
            Origin::Tier(tier) => &mut self.tiers[tier.index()],
        } += fetching;
    }

    /// Adds another rank's.
    pub fn merge(&mut self, other: &Self) {
        self.source += other.source;
        self.peer += other.peer;
        self.host_peer += other.host_peer;
        self.preprocess += other.preprocess;
        self.tiers
            .iter_mut()
            .zip(&other.tiers)
            .for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Seconds by the names of origins.
    pub fn by_name(&self) -> BTreeMap<String, f64> {
        let fixed = [
            (Cause::Source, self.source),
            (Cause::Peer, self.peer),
            (Cause::HostPeer, self.host_peer),
            (Cause::Preprocess, self.preprocess),
        ];
        let tiers = (0..).map(TierId).zip(self.tiers.iter().copied());
        let tiers = tiers
            .skip(1)
            .map(|(tier, stall)| (Cause::Tier(tier), stall));
        let all = fixed.into_iter().chain(tiers);
        all.map(|(cause, stall)| (cause.name(), stall)).collect()
    }

    /// A stall divided by what ranks waited for, by the names of origins. What a rank loses at the end of a step to one
    /// that waits for data is divided in the same way.
    pub fn of(&self, stall_s: f64) -> BTreeMap<String, f64> {
        let waited = self.by_name();
        let total: f64 = waited.values().sum();
        waited
            .into_iter()
            .map(|(name, part)| {
                (
                    name,
                    if total > 0.0 {
                        stall_s * part / total
                    } else {
                        0.0
                    },
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rank;

    #[test]
    fn a_stall_has_the_cause_that_most_of_it_went_to() {
        let of = |fetched, stall| Cause::of(Origin::Source, Seconds(fetched), Seconds(stall));
        assert_eq!(of(3.0, 4.0), Cause::Source);
        assert_eq!(of(1.0, 4.0), Cause::Preprocess);
        assert_eq!(of(0.0, 4.0), Cause::Preprocess);
        let tier = Cause::of(Origin::Tier(TierId(2)), Seconds(1.0), Seconds(1.0));
        assert_eq!(tier.name(), "tier2");
        let known = Causes::new(3).by_name();
        for cause in [
            tier,
            Cause::Source,
            Cause::Peer,
            Cause::HostPeer,
            Cause::Preprocess,
        ] {
            assert!(known.contains_key(&cause.name()), "{cause:?}");
        }
    }

    #[test]
    fn a_stall_is_split_where_the_bytes_were_there() {
        let mut causes = Causes::new(2);
        causes.blame(Origin::Source, [1.0, 4.0, 6.0].map(Seconds));
        causes.blame(Origin::Tier(TierId(1)), [10.0, 3.0, 12.0].map(Seconds));
        causes.blame(
            Origin::Peer {
                rank: Rank(1),
                tier: TierId(1),
            },
            [20.0, 22.0, 21.0].map(Seconds),
        );
        let expected = [
            ("host_peer", 0.0),
            ("peer", 0.5),
            ("preprocess", 2.0),
            ("source", 1.5),
            ("tier1", 0.0),
        ];
        assert_eq!(
            causes.of(4.0),
            expected
                .map(|(name, stall)| (name.to_owned(), stall))
                .into()
        );
    }
}
