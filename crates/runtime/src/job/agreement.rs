//! What a job and its peers agree on before it starts. Three things are gathered, each from all ranks:
//!
//! 1. what each plans from ([`Premises`]): whoever was given something else than rank 0 is an error that names it, on all
//!    ranks alike; and what its tiers can hold, which all plan with, and which is allotted to them then;
//! 2. what its tiers hold from before ([`Held`]), by ranges of samples where it is much: O(samples) lie here at a time;
//! 3. its share of the work ([`Share`]), under the digest of all that.
//!
//! What was agreed on holds for as long as the job lives, also when it moves: so homes stay where they are, and a move waits
//! for nobody.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use foresee_core::held::{Expected, Held, HeldError};
use foresee_core::ids::Rank;
use foresee_core::policy::{
    Brief, Capacities, Holders, Inherited, Policy, Premises, PremisesError, Share, ShareError,
    capacities, range_of,
};

use super::stores::Stores;
use crate::transport::{Absent, Given, Transport};

/// Copies of each sample, on average, that are told of in one go; where there are more it is done range by range.
const COPIES_AT_ONCE: u64 = 4;

/// Why ranks do not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgreementError {
    /// Somebody was given something else.
    #[error(
        "rank {rank} and rank 0 differ in {what}: give all ranks the same dataset and arguments"
    )]
    Unlike {
        /// Who.
        rank: Rank,
        /// Than rank 0.
        what: String,
    },
    /// The ways lead to another number of ranks.
    #[error("{came} ranks came, and the world has {world}: give all ranks the same world_size")]
    World {
        /// Who came.
        came: usize,
        /// Who should.
        world: u32,
    },
    /// What a rank plans from cannot be read.
    #[error(transparent)]
    Premises(#[from] PremisesError),
    /// What a rank holds cannot be read.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// What a rank worked out cannot be read.
    #[error(transparent)]
    Share(#[from] ShareError),
}

/// Why there is no agreement.
pub(super) enum Apart {
    /// These did not come.
    Late(Absent),
    /// There can be none.
    Unlike(AgreementError),
}

impl<E: Into<AgreementError>> From<E> for Apart {
    fn from(error: E) -> Self {
        Self::Unlike(error.into())
    }
}

/// What all ranks agreed on.
pub(super) struct Agreed {
    capacities: Capacities,
    /// What tiers held when the job started.
    pub(super) held: Held,
    pub(super) shares: Vec<Share>,
    /// Who is to hold what for good, once somebody asked.
    pub(super) holders: OnceLock<Option<Holders>>,
}

impl Agreed {
    /// What this rank knows, with what is known of all.
    pub(super) fn complete(&self, brief: Brief) -> Brief {
        Brief {
            capacities: self.capacities.clone(),
            held: self.held.clone(),
            peers: true,
            ..brief
        }
    }
}

/// Where ranks meet.
pub(super) struct Table<'a> {
    pub(super) rank: Rank,
    pub(super) policy: &'static dyn Policy,
    pub(super) transport: &'a dyn Transport,
    pub(super) patience: Duration,
    pub(super) stores: &'a Stores,
}

impl Table<'_> {
    pub(super) fn agree(&self, brief: Brief, inherited: Inherited) -> Result<Agreed, Apart> {
        let brief = Brief {
            peers: true,
            ..brief
        };
        let premises = self.premises(&brief, inherited)?;
        let copies = premises.iter().map(|one| one.inherited.copies);
        let copies = copies.fold(0, u64::saturating_add);
        let capacities = capacities(&premises);
        self.stores.allot(&capacities[self.rank.index()]);
        let held = Held::by_rank(self.rank, &self.stores.held());
        let held = self.holdings(&brief, &held, copies)?;
        let brief = Brief {
            capacities: Capacities::ByRank(capacities.into()),
            held,
            ..brief
        };
        let shares = self.shares(&brief)?;
        let Brief {
            capacities, held, ..
        } = brief;
        Ok(Agreed {
            capacities,
            held,
            shares,
            holders: OnceLock::new(),
        })
    }

    /// What each rank gave, with its number.
    fn gather(
        &self,
        brief: &Brief,
        given: Given,
    ) -> Result<impl Iterator<Item = (Rank, Vec<u8>)>, Apart> {
        let all = self.transport.gather(given, self.patience);
        let all = all.map_err(Apart::Late)?;
        let world = brief.hosts.ranks();
        if all.len() != world as usize {
            let came = all.len();
            return Err(AgreementError::World { came, world }.into());
        }
        Ok((0..).map(Rank).zip(all))
    }

    /// What all plan from: the same, or an error that is the same on all ranks.
    fn premises(&self, brief: &Brief, inherited: Inherited) -> Result<Vec<Premises>, Apart> {
        let own = Premises::of(brief, self.policy.name(), self.rank, inherited);
        let given = Given::to_all(own.encode(self.rank));
        let mut all: Vec<Premises> = Vec::new();
        for (rank, bytes) in self.gather(brief, given)? {
            let one = Premises::decode(&bytes, rank)?;
            let first = all.first().unwrap_or(&one);
            let what = first.differences(&one).join(", ");
            if !what.is_empty() {
                return Err(AgreementError::Unlike { rank, what }.into());
            }
            all.push(one);
        }
        Ok(all)
    }

    /// What the tiers of all ranks hold, `copies` in all. All of it may be more than a rank has room for, so it is brought
    /// down to what is remembered range by range.
    fn holdings(&self, brief: &Brief, own: &Held, copies: u64) -> Result<Held, Apart> {
        if copies == 0 {
            return Ok(Held::nothing());
        }
        let samples = brief.catalog.len();
        let is_little = copies <= COPIES_AT_ONCE * u64::from(samples);
        let all_at_once = is_little.then_some(0..samples);
        let ranks = brief.hosts.all().filter(|_| !is_little);
        let by_rank = ranks.map(|rank| range_of(brief, rank));
        let ranges: Vec<Range<u32>> = all_at_once.into_iter().chain(by_rank).collect();
        let mut parts = Vec::with_capacity(ranges.len());
        for samples in ranges {
            let given = Given::to_all(own.within(samples.clone()).encode(self.rank));
            let mut told = Vec::new();
            for (rank, bytes) in self.gather(brief, given)? {
                let expected = Expected {
                    rank,
                    samples: samples.clone(),
                    tiers: brief.system.tiers.len(),
                };
                told.push(Held::decode(&bytes, &expected)?);
            }
            parts.push(Held::merged(&told));
        }
        Ok(Held::merged(&parts))
    }

    fn shares(&self, brief: &Brief) -> Result<Vec<Share>, Apart> {
        let inputs = brief.inputs_digest(self.policy.name());
        let own = self.policy.share(brief, self.rank);
        let given = Given {
            readers: own.readers(brief.hosts.ranks()),
            whole: own.encode(inputs),
            rest: own.encode_paces(inputs),
        };
        let mut shares = Vec::with_capacity(brief.hosts.ranks() as usize);
        for (rank, bytes) in self.gather(brief, given)? {
            shares.push(Share::decode(&bytes, brief, inputs, rank)?);
        }
        Ok(shares)
    }
}
