//! What a rank plans from, as it tells the others before anything is planned: digests of all that they must be given alike,
//! what its own tiers can hold, and how many samples they hold from before. Whoever was given something else is named with
//! what it is ([`Premises::differences`]); what tiers can hold becomes an input of everybody's plan.
//!
//! As bytes, little-endian, under a checksum ([`Premises::encode`]):
//!
//! ```text
//! rank u32  digests [16] each  tiers u8  capacities u64 each  copies held u64
//! ```
//!
//! The digest of the version comes first and says whether the others can be compared at all.

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
    /// Copies that its tiers hold from before.
    pub held: u64,
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
    pub fn of(brief: &Brief, policy: &str, rank: Rank, held: u64) -> Self {
        let tiers = (0..brief.system.tiers.len() as u8).map(TierId);
        Self {
            parts: Digest::of_parts(brief, policy),
            capacities: tiers.map(|tier| brief.capacity(rank, tier)).collect(),
            held,
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
        bytes.extend(self.held.to_le_bytes());
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
        let held = number().ok_or_else(length)?;
        if !rest.is_empty() {
            return Err(length());
        }
        Ok(Self {
            parts,
            capacities,
            held,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn premises() -> impl Strategy<Value = Premises> {
        let part = any::<[u8; 16]>().prop_map(Digest);
        let parts = prop::array::uniform7(part);
        let capacities = prop::collection::vec(any::<u64>().prop_map(Bytes), 0..5);
        let all = (parts, capacities, any::<u64>());
        all.prop_map(|(parts, capacities, held)| Premises {
            parts,
            capacities,
            held,
        })
    }

    proptest! {
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
