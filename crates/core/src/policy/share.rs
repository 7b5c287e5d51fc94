//! What one rank works out for all before a plan is made, and how it travels.
//!
//! A share is plain data: the rank's paces, and its [`Work`] as the policy divides it. [`Share::encode`] writes it as
//! bytes, little-endian, between a head and a checksum:
//!
//! ```text
//! digest of the inputs [16]  rank u32
//! network f64  tiers u8  paces f64 each
//! kind of work u8  the work  checksum [8]
//! ```
//!
//! The digest covers the version and all inputs, so what is read in another way, or was worked out for another job, is
//! told apart before a byte of the work is looked at. [`Share::decode`] believes nothing: whatever comes in ends as a
//! share that fits the job or as a [`ShareError`].

use std::ops::Range;

use super::Brief;
use crate::digest::Digest;
use crate::foresight::Favourite;
use crate::framed::{self, Broken};
use crate::ids::{Rank, SampleId};
use crate::model::Paces;
use crate::units::Pace;

/// What one rank works out for all.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Who.
    pub rank: Rank,
    /// How fast it finds the machine. Plans are made with those of the first rank of the world.
    pub paces: Paces,
    /// What it found.
    pub work: Work,
}

/// The work of one rank, as the policy divides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// There is nothing that others need.
    Nothing,
    /// Who uses each sample of the rank's range most ([`range_of`]).
    Favourites(Vec<Favourite>),
    /// What the ranks keep that share a tier with this one, which is the first of them; rank by rank.
    Picks(Vec<Picks>),
    /// How many samples it stages before training.
    Staged(u32),
}

/// What a rank is to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picks {
    /// By tier, the staging buffer first, which keeps none; of a tier in the order in which they are brought in.
    pub by_tier: Vec<Vec<SampleId>>,
}

impl Picks {
    pub(super) fn none(tiers: usize) -> Self {
        Self {
            by_tier: vec![Vec::new(); tiers],
        }
    }
}

/// The samples that a rank looks at for all, where work is divided by samples.
pub fn range_of(brief: &Brief, rank: Rank) -> Range<u32> {
    let samples = u64::from(brief.catalog.len());
    let ranks = u64::from(brief.hosts.ranks());
    let start = |rank: u64| (rank * samples / ranks) as u32;
    start(u64::from(rank.0))..start(u64::from(rank.0) + 1)
}

/// The work of a rank among shares in the order of their ranks; those of some ranks may be missing.
pub(super) fn work_of(shares: &[Share], rank: Rank) -> Option<&Work> {
    let place = shares
        .binary_search_by_key(&rank, |share| share.rank)
        .ok()?;
    Some(&shares[place].work)
}

/// The paces that all ranks plan with; a rank that is alone plans with its own.
pub(super) fn paces(brief: &Brief, shares: &[Share]) -> Paces {
    match shares.first() {
        Some(first) => first.paces.clone(),
        None => Paces::of(&brief.system),
    }
}

/// Why bytes are no share of this job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// They end too early, or go on too long.
    #[error("the share of rank {0} was cut off or has bytes behind its end")]
    Length(Rank),
    /// They are not as they were sent.
    #[error("the share of rank {0} is damaged: its checksum is another")]
    Damaged(Rank),
    /// It is of another job, version or set of inputs.
    #[error(
        "the share of rank {rank} was worked out for the plan {theirs}, this is the plan {ours}"
    )]
    OtherPlan {
        /// Whose.
        rank: Rank,
        /// The digest of what it was made from.
        theirs: Digest,
        /// The digest of what is known here.
        ours: Digest,
    },
    /// It is another rank's.
    #[error("rank {rank} sent the share of rank {says}")]
    OtherRank {
        /// Who sent it.
        rank: Rank,
        /// Whose it says it is.
        says: Rank,
    },
    /// It says what cannot be.
    #[error("the share of rank {rank} cannot be: {what}")]
    Impossible {
        /// Whose.
        rank: Rank,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Kinds of work.
const NOTHING: u8 = 0;
const FAVOURITES: u8 = 1;
const PICKS: u8 = 2;
const STAGED: u8 = 3;

impl Share {
    /// The ranks that need the work; all need the paces of the first rank.
    pub fn readers(&self, ranks: u32) -> Range<u32> {
        match &self.work {
            Work::Nothing => 0..0,
            Work::Favourites(_) | Work::Staged(_) => 0..ranks,
            Work::Picks(members) => self.rank.0..self.rank.0 + members.len() as u32,
        }
    }

    /// The bytes for all ranks among [`Share::readers`]; `inputs` is the digest of what it was made from.
    pub fn encode(&self, inputs: Digest) -> Vec<u8> {
        self.encode_with(inputs, &self.work)
    }

    /// The bytes for all other ranks, which need no more than the paces: else they would get more than they plan for.
    pub fn encode_paces(&self, inputs: Digest) -> Vec<u8> {
        self.encode_with(inputs, &Work::Nothing)
    }

    fn encode_with(&self, inputs: Digest, work: &Work) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(inputs.0);
        put(&mut bytes, self.rank.0);
        bytes.extend(self.paces.network.0.to_le_bytes());
        bytes.push(self.paces.tiers.len() as u8);
        for pace in &self.paces.tiers {
            bytes.extend(pace.0.to_le_bytes());
        }
        put_work(&mut bytes, work);
        framed::seal(bytes)
    }

    /// The share that `rank` sent, for a job of which `inputs` is the digest.
    pub fn decode(
        bytes: &[u8],
        brief: &Brief,
        inputs: Digest,
        rank: Rank,
    ) -> Result<Self, ShareError> {
        let content = framed::open(bytes).map_err(|broken| match broken {
            Broken::Short => ShareError::Length(rank),
            Broken::Damaged => ShareError::Damaged(rank),
        })?;
        let mut reader = Reader {
            rank,
            rest: content,
        };
        let theirs = Digest(reader.take()?);
        if theirs != inputs {
            return Err(ShareError::OtherPlan {
                rank,
                theirs,
                ours: inputs,
            });
        }
        let says = Rank(reader.number()?);
        if says != rank {
            return Err(ShareError::OtherRank { rank, says });
        }
        let paces = reader.paces(brief.system.tiers.len())?;
        let work = reader.work(brief)?;
        if !reader.rest.is_empty() {
            return Err(ShareError::Length(rank));
        }
        Ok(Self { rank, paces, work })
    }
}

fn put(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_le_bytes());
}

fn put_work(bytes: &mut Vec<u8>, work: &Work) {
    match work {
        Work::Nothing => bytes.push(NOTHING),
        Work::Favourites(favourites) => {
            bytes.push(FAVOURITES);
            put(bytes, favourites.len() as u32);
            for favourite in favourites {
                put(bytes, favourite.rank.0);
                put(bytes, favourite.uses);
            }
        }
        Work::Picks(members) => {
            bytes.push(PICKS);
            put(bytes, members.len() as u32);
            for samples in members.iter().flat_map(|picks| &picks.by_tier) {
                put(bytes, samples.len() as u32);
                for sample in samples {
                    put(bytes, sample.0);
                }
            }
        }
        Work::Staged(samples) => {
            bytes.push(STAGED);
            put(bytes, *samples);
        }
    }
}

/// Bytes of a share that are still to be read.
struct Reader<'a> {
    rank: Rank,
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ShareError> {
        framed::take(&mut self.rest).ok_or(ShareError::Length(self.rank))
    }

    fn number(&mut self) -> Result<u32, ShareError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// How many entries of so many bytes follow: no more than there are bytes for, so that a wrong number cannot ask
    /// for memory.
    fn count(&mut self, entry_bytes: usize) -> Result<usize, ShareError> {
        let count = self.number()? as usize;
        if count > self.rest.len() / entry_bytes {
            return Err(ShareError::Length(self.rank));
        }
        Ok(count)
    }

    fn expect(&self, holds: bool, what: &'static str) -> Result<(), ShareError> {
        if holds {
            Ok(())
        } else {
            Err(ShareError::Impossible {
                rank: self.rank,
                what,
            })
        }
    }

    fn pace(&mut self) -> Result<Pace, ShareError> {
        let pace = f64::from_le_bytes(self.take()?);
        self.expect(pace >= 0.0, "a pace is no time")?;
        Ok(Pace(pace))
    }

    fn paces(&mut self, tiers: usize) -> Result<Paces, ShareError> {
        let network = self.pace()?;
        let [count] = self.take()?;
        self.expect(
            usize::from(count) == tiers,
            "it has another number of tiers",
        )?;
        let tiers = (0..tiers).map(|_| self.pace()).collect::<Result<_, _>>()?;
        Ok(Paces { network, tiers })
    }

    fn work(&mut self, brief: &Brief) -> Result<Work, ShareError> {
        let [kind] = self.take()?;
        match kind {
            NOTHING => Ok(Work::Nothing),
            FAVOURITES => self.favourites(brief),
            PICKS => self.picks(brief),
            STAGED => {
                let samples = self.number()?;
                let known = samples <= brief.catalog.len();
                self.expect(known, "it stages more samples than there are")?;
                Ok(Work::Staged(samples))
            }
            _ => Err(ShareError::Impossible {
                rank: self.rank,
                what: "it is of no known kind",
            }),
        }
    }

    fn favourites(&mut self, brief: &Brief) -> Result<Work, ShareError> {
        let count = self.count(8)?;
        let range = range_of(brief, self.rank);
        self.expect(count == range.len(), "it is of another range of samples")?;
        let mut favourites = Vec::with_capacity(count);
        for _ in 0..count {
            let favourite = Favourite {
                rank: Rank(self.number()?),
                uses: self.number()?,
            };
            let known = favourite.rank.0 < brief.hosts.ranks();
            self.expect(known, "it names a rank that is not there")?;
            let possible = favourite.uses <= brief.orders.epochs();
            self.expect(
                possible,
                "a sample is used more often than there are epochs",
            )?;
            favourites.push(favourite);
        }
        Ok(Work::Favourites(favourites))
    }

    fn picks(&mut self, brief: &Brief) -> Result<Work, ShareError> {
        let count = self.count(4)?;
        let known = u64::from(self.rank.0) + count as u64 <= u64::from(brief.hosts.ranks());
        self.expect(known, "it is for a rank that is not there")?;
        let tiers = brief.system.tiers.len();
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let by_tier = (0..tiers).map(|_| self.samples(brief));
            members.push(Picks {
                by_tier: by_tier.collect::<Result<_, _>>()?,
            });
        }
        Ok(Work::Picks(members))
    }

    fn samples(&mut self, brief: &Brief) -> Result<Vec<SampleId>, ShareError> {
        let count = self.count(4)?;
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let sample = SampleId(self.number()?);
            let known = sample.0 < brief.catalog.len();
            self.expect(known, "it names a sample that is not there")?;
            samples.push(sample);
        }
        Ok(samples)
    }
}
