//! A program's open of a file of the source: is there a copy, and if not, can there be one? All answers but "yes" mean that
//! the source is read.

use std::io;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;

use crate::claim;
use crate::copying::{self, Copied, Skip, Wanted};
use crate::key::Key;
use crate::settings::Settings;
use crate::tier::Tier;

/// The tiers of a run.
pub struct Cache {
    tiers: Vec<Tier>,
}

/// A copy that somebody made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// We did, just now.
    Here(usize),
    /// Another process did while we waited.
    Elsewhere,
}

/// What came of a copy that somebody else may be making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Nobody makes one.
    Nobody,
    /// It is there.
    There,
    /// It takes too long, or was given up.
    InVain,
}

impl Cache {
    /// Opens all tiers.
    pub fn open(settings: &Settings) -> io::Result<Self> {
        let tiers: io::Result<Vec<Tier>> = settings.tiers.iter().cloned().map(Tier::open).collect();
        Ok(Self { tiers: tiers? })
    }

    /// Its tiers, fastest first.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Opens a copy; says which tier has it.
    pub fn open_copy(&self, key: Key, flags: OFlags) -> Option<(OwnedFd, usize)> {
        let opened =
            |(index, tier): (usize, &Tier)| Some((tier.open_copy(key, flags).ok()?, index));
        self.tiers.iter().enumerate().find_map(opened)
    }

    /// Copies a file, or waits for who does.
    pub fn place(&self, wanted: Wanted<'_>) -> Result<Placed, Skip> {
        match copying::copy(&self.tiers, wanted)? {
            Copied::Here(tier) => return Ok(Placed::Here(tier)),
            Copied::Before => return Ok(Placed::Elsewhere),
            Copied::Claimed => {}
        }
        let first = self.tiers.first().ok_or(Skip::Failed)?;
        if self.is_there_after(first, wanted.key) {
            Ok(Placed::Elsewhere)
        } else {
            Err(Skip::Claimed)
        }
    }

    fn is_there_after(&self, first: &Tier, key: Key) -> bool {
        claim::wait(first, key, || copying::find(&self.tiers, key).is_some())
    }

    /// Whether somebody copies a file at this moment.
    pub fn is_claimed(&self, key: Key) -> bool {
        let first = self.tiers.first();
        first.is_some_and(|first| claim::is_claimed(first, key))
    }

    /// Waits for who copies a file, if somebody does. For who has not opened it: to some storages an open is a reason to forget
    /// what was read of a file, and it would be read again for the copy.
    pub fn wait_for_others(&self, key: Key) -> Waited {
        let claimed = |first: &&Tier| claim::is_claimed(first, key);
        match self.tiers.first().filter(claimed) {
            None => Waited::Nobody,
            Some(first) if self.is_there_after(first, key) => Waited::There,
            Some(_) => Waited::InVain,
        }
    }

    /// Whether a copy of that size would fit anywhere.
    pub fn has_room(&self, size_bytes: u64) -> bool {
        self.tiers.iter().any(|tier| tier.has_room(size_bytes))
    }

    /// The same; where there is no room, what was copied of another file that had this one's path makes some.
    pub fn makes_room(
        &self,
        size_bytes: u64,
        key: Key,
        path: impl FnOnce() -> Option<Key>,
    ) -> bool {
        let is_old_removed =
            || path().is_some_and(|path| copying::remove_old(&self.tiers, path, key));
        self.has_room(size_bytes) || is_old_removed() && self.has_room(size_bytes)
    }

    /// Changes whenever a copy was published.
    pub fn published(&self) -> u64 {
        let published = |sum: u64, tier: &Tier| sum.wrapping_add(tier.ledger().published());
        self.tiers.iter().fold(0, published)
    }

    /// Removes a copy that will not be right any more.
    pub fn remove(&self, key: Key) -> bool {
        self.tiers.iter().any(|tier| copying::remove(tier, key))
    }
}
