//! What a rank plans from, as it tells the others before anything is planned: digests of all that they must be given alike,
//! what its own tiers can hold, and how many samples they hold from before. Whoever was given something else is named with
//! what it is ([`Premises::differences`]); what tiers can hold becomes an input of everybody's plan ([`capacities`]).
//!
//! Of a tier that the ranks of a host share, each can hold an even part to begin with. What one of them holds from before
//! beyond its part the others leave to it, as long as there is enough for all: so another number of ranks finds all that the
//! last one left.
//!
//! As bytes, little-endian, under a checksum ([`Premises::encode`]):
//!
//! ```text
//! rank u32  digests [16] each  tiers u8  capacities u64 each  copies held u64
//! shared tiers u8  for each: tier u8  place u64  bytes held u64
//! ```
//!
//! The digest of the version comes first and says whether the others can be compared at all.

use std::collections::BTreeMap;

use super::Brief;
use crate::digest::{Digest, PARTS};
use crate::framed::{self, Broken};
use crate::ids::{Rank, TierId};
use crate::units::Bytes;

/// What a rank plans from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Premises {
    /// Of what all must be given alike.
    parts: [Digest; PARTS.len()],
    /// What each of its tiers can hold, the staging buffer first.
    pub capacities: Vec<Bytes>,
    /// What its tiers hold from before.
    pub inherited: Inherited,
}

/// What the tiers of a rank hold from before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// How many copies.
    pub copies: u64,
    /// The tiers that it shares with others of its host and of which it may be allotted more or less.
    pub shared: Vec<SharedTier>,
}

/// What a rank has of a tier that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedTier {
    /// Which of its tiers.
    pub tier: TierId,
    /// Where it is: the same number for those who share it.
    pub place: u64,
    /// What it holds for this rank.
    pub held: Bytes,
}

/// Why bytes are no premises of a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PremisesError {
    /// They end too early, or go on too long.
    #[error("what rank {0} plans from was cut off or has bytes behind its end")]
    Length(Rank),
    /// They are not as they were sent.
    #[error("what rank {0} plans from is damaged: its checksum is another")]
    Damaged(Rank),
    /// They are another rank's.
    #[error("rank {rank} sent what rank {says} plans from")]
    OtherRank {
        /// Who sent it.
        rank: Rank,
        /// Whose it says it is.
        says: Rank,
    },
}

impl Premises {
    /// Those of a rank, which knows the capacities of its own tiers only.
    pub fn of(brief: &Brief, policy: &str, rank: Rank, inherited: Inherited) -> Self {
        let tiers = (0..brief.system.tiers.len() as u8).map(TierId);
        Self {
            parts: Digest::of_parts(brief, policy),
            capacities: tiers.map(|tier| brief.capacity(rank, tier)).collect(),
            inherited,
        }
    }

    /// What was given otherwise to somebody else.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = self.parts.iter().zip(&other.parts);
        let compared = PARTS.into_iter().zip(parts);
        let unlike = compared.filter(|(_, (ours, theirs))| ours != theirs);
        let mut differences: Vec<&'static str> = unlike.map(|(name, _)| name).collect();
        // Another version digests as it likes: what else it says is no difference that anybody could mend.
        if differences.first() == Some(&PARTS[0]) {
            differences.truncate(1);
        }
        differences
    }

    /// The bytes for all other ranks.
    pub fn encode(&self, rank: Rank) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(rank.0.to_le_bytes());
        for part in &self.parts {
            bytes.extend(part.0);
        }
        bytes.push(self.capacities.len() as u8);
        for capacity in &self.capacities {
            bytes.extend(capacity.0.to_le_bytes());
        }
        let Inherited { copies, shared } = &self.inherited;
        bytes.extend(copies.to_le_bytes());
        bytes.push(shared.len() as u8);
        for SharedTier { tier, place, held } in shared {
            bytes.push(tier.0);
            bytes.extend(place.to_le_bytes());
            bytes.extend(held.0.to_le_bytes());
        }
        framed::seal(bytes)
    }

    /// What `rank` sent.
    pub fn decode(bytes: &[u8], rank: Rank) -> Result<Self, PremisesError> {
        let mut rest = framed::open(bytes).map_err(|broken| match broken {
            Broken::Short => PremisesError::Length(rank),
            Broken::Damaged => PremisesError::Damaged(rank),
        })?;
        let length = || PremisesError::Length(rank);
        let says = framed::take(&mut rest).map(u32::from_le_bytes);
        let says = Rank(says.ok_or_else(length)?);
        if says != rank {
            return Err(PremisesError::OtherRank { rank, says });
        }
        let mut parts = [Digest([0; 16]); PARTS.len()];
        for part in &mut parts {
            *part = Digest(framed::take(&mut rest).ok_or_else(length)?);
        }
        let [tiers] = framed::take(&mut rest).ok_or_else(length)?;
        let mut number = || framed::take(&mut rest).map(u64::from_le_bytes);
        let capacities = (0..tiers).map(|_| number().map(Bytes));
        let capacities = capacities.collect::<Option<Vec<Bytes>>>();
        let capacities = capacities.ok_or_else(length)?;
        let copies = number().ok_or_else(length)?;
        let inherited = Inherited::decode(copies, &mut rest).ok_or_else(length)?;
        if !rest.is_empty() {
            return Err(length());
        }
        Ok(Self {
            parts,
            capacities,
            inherited,
        })
    }
}

impl Inherited {
    fn decode(copies: u64, rest: &mut &[u8]) -> Option<Self> {
        let [count] = framed::take(rest)?;
        let mut shared = Vec::new();
        for _ in 0..count {
            let [tier] = framed::take(rest)?;
            shared.push(SharedTier {
                tier: TierId(tier),
                place: framed::take(rest).map(u64::from_le_bytes)?,
                held: Bytes(framed::take(rest).map(u64::from_le_bytes)?),
            });
        }
        Some(Self { copies, shared })
    }
}

/// What each tier of each rank can hold, from what all told.
pub fn capacities(all: &[Premises]) -> Vec<Vec<Bytes>> {
    let mut capacities: Vec<Vec<Bytes>> = all.iter().map(|one| one.capacities.clone()).collect();
    let mut pools: BTreeMap<(TierId, u64), Vec<(usize, Bytes)>> = BTreeMap::new();
    for (rank, one) in all.iter().enumerate() {
        let known = |shared: &&SharedTier| shared.tier.index() < one.capacities.len();
        for &SharedTier { tier, place, held } in one.inherited.shared.iter().filter(known) {
            let pool = pools.entry((tier, place)).or_default();
            pool.push((rank, held));
        }
    }
    for ((tier, _), sharers) in pools {
        let even = sharers
            .iter()
            .map(|(rank, _)| capacities[*rank][tier.index()].0);
        let room = even.fold(0, u64::saturating_add);
        let held: Vec<u64> = sharers.iter().map(|(_, held)| held.0).collect();
        for ((rank, _), bytes) in sharers.iter().zip(divided(room, &held)) {
            capacities[*rank][tier.index()] = Bytes(bytes);
        }
    }
    capacities
}

/// Divides room among those who hold so much of it already: each gets what it holds and the same on top. Where that is more
/// than there is, those who hold most get less.
fn divided(room: u64, held: &[u64]) -> Vec<u64> {
    let total = held.iter().copied().fold(0, u64::saturating_add);
    if total <= room {
        let rest = room - total;
        let ranks = held.len() as u64;
        let up_to = |rank: u64| (u128::from(rest) * u128::from(rank) / u128::from(ranks)) as u64;
        let parts = (0..ranks).zip(held);
        return parts
            .map(|(rank, held)| held + up_to(rank + 1) - up_to(rank))
            .collect();
    }
    let mut order: Vec<usize> = (0..held.len()).collect();
    order.sort_by_key(|&rank| held[rank]);
    let mut parts = vec![0; held.len()];
    let mut left = room;
    for (given, &rank) in order.iter().enumerate() {
        let even = left / (order.len() - given) as u64;
        parts[rank] = held[rank].min(even);
        left -= parts[rank];
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn premises() -> impl Strategy<Value = Premises> {
        let part = any::<[u8; 16]>().prop_map(Digest);
        let parts = prop::array::uniform7(part);
        let capacities = prop::collection::vec(any::<u64>().prop_map(Bytes), 0..5);
        let shared = (any::<u8>(), any::<u64>(), any::<u64>());
        let shared = shared.prop_map(|(tier, place, held)| SharedTier {
            tier: TierId(tier),
            place,
            held: Bytes(held),
        });
        let inherited = (any::<u64>(), prop::collection::vec(shared, 0..4));
        let inherited = inherited.prop_map(|(copies, shared)| Inherited { copies, shared });
        let all = (parts, capacities, inherited);
        all.prop_map(|(parts, capacities, inherited)| Premises {
            parts,
            capacities,
            inherited,
        })
    }

    #[test]
    fn ranks_of_a_host_leave_each_other_what_they_hold_of_a_tier_they_share() {
        let one = |place, capacity, held| Premises {
            parts: [Digest([0; 16]); PARTS.len()],
            capacities: vec![Bytes(64), Bytes(capacity), Bytes(9)],
            inherited: Inherited {
                copies: 0,
                shared: vec![SharedTier {
                    tier: TierId(1),
                    place,
                    held: Bytes(held),
                }],
            },
        };
        // Three left 100 each in 306; the fourth is new. Another host's rank has a tier of its own.
        let all = [
            one(0, 76, 100),
            one(0, 77, 100),
            one(0, 76, 100),
            one(0, 77, 0),
            one(4, 50, 7),
        ];
        let found = capacities(&all);
        let of_tier: Vec<u64> = found.iter().map(|tiers| tiers[1].0).collect();
        assert_eq!(of_tier, [101, 102, 101, 2, 50]);
        assert!(
            found
                .iter()
                .all(|tiers| tiers[0] == Bytes(64) && tiers[2] == Bytes(9))
        );
    }

    proptest! {
        #[test]
        fn no_more_is_divided_than_there_is_and_who_fits_keeps_all(
            room in 0u64..1000, held in prop::collection::vec(0u64..300, 1..9),
        ) {
            let parts = divided(room, &held);
            let total: u64 = held.iter().sum();
            prop_assert!(parts.iter().sum::<u64>() <= room);
            if total <= room {
                prop_assert_eq!(parts.iter().sum::<u64>(), room);
                prop_assert!(parts.iter().zip(&held).all(|(part, held)| part >= held));
            } else {
                prop_assert!(parts.iter().sum::<u64>() + held.len() as u64 > room);
                prop_assert!(parts.iter().zip(&held).all(|(part, held)| part <= held));
            }
        }

        #[test]
        fn what_a_rank_tells_is_understood(premises in premises(), rank in any::<u32>()) {
            let rank = Rank(rank);
            prop_assert_eq!(Premises::decode(&premises.encode(rank), rank), Ok(premises));
        }

        #[test]
        fn no_change_on_the_way_is_believed(
            premises in premises(), at in any::<prop::sample::Index>(), bit in 0u8..8,
            cut in any::<prop::sample::Index>(),
        ) {
            let told = premises.encode(Rank(1));
            let mut changed = told.clone();
            changed[at.index(told.len())] ^= 1 << bit;
            prop_assert!(Premises::decode(&changed, Rank(1)).is_err());
            let cut = &told[..cut.index(told.len())];
            prop_assert!(Premises::decode(cut, Rank(1)).is_err());
        }

        #[test]
        fn just_the_parts_that_differ_are_named(
            premises in premises(), changed in prop::collection::btree_set(1..PARTS.len(), 0..4),
        ) {
            let mut other = premises.clone();
            for &part in &changed {
                other.parts[part].0[0] ^= 1;
            }
            let names: Vec<&str> = changed.iter().map(|&part| PARTS[part]).collect();
            prop_assert_eq!(premises.differences(&other), names);
            other.parts[0].0[0] ^= 1;
            prop_assert_eq!(premises.differences(&other), ["version"]);
        }
    }
}
