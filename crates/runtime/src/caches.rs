//! Cache folders as whoever looks after a machine sees them: what lies in one, whether it is whole, and emptying it. A
//! folder is of a kind, which its mark tells; each kind knows its own files, and here is what they have in common. What no
//! kind has made is named, and never touched.

mod copies;

use std::path::{Path, PathBuf};

use foresee_cache::folder::FolderError;
use foresee_cache::keeping::Keeper;
use foresee_config::shown;
use serde::Serialize;

use crate::tier::DiskError;
use crate::tier::disk::Tiers;

/// Why there is nothing to look after.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Nothing is there.
    #[error(
        "{}: no such folder; give the path of a cache, as [[tier]] in foresee.toml or foresee run --cache has it",
        shown(path)
    )]
    Missing {
        /// What was given.
        path: PathBuf,
    },
    /// It is a folder of somebody else.
    #[error(
        "{}: not a cache of foresee: it has no file .foresee or .foresee-run; give the path of a cache, as [[tier]] in foresee.toml or foresee run --cache has it",
        shown(path)
    )]
    Unmarked {
        /// What was given.
        path: PathBuf,
    },
    /// It cannot be looked into.
    #[error("{}: {}", shown(path), why.told_to_keeper())]
    Disk {
        /// What was given.
        path: PathBuf,
        /// Why.
        why: DiskError,
    },
    /// It is of `foresee run`, and cannot be looked into.
    #[error("{why}{}", copies::remedy(why))]
    Folder {
        /// Why, with its path.
        #[from]
        why: FolderError,
    },
}

impl CacheError {
    fn disk(path: &Path, why: DiskError) -> Self {
        let path = path.to_owned();
        Self::Disk { path, why }
    }
}

/// What a cache folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Tiers of jobs: samples, by dataset and slot of a host.
    Tiers,
    /// Of `foresee run`: copies of files.
    Copies,
}

/// What the parts of a folder have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its sub-folder.
    pub name: String,
    /// What it is a cache of: the digest of a dataset.
    pub of: Option<String>,
    /// How many samples or files it holds.
    pub entries: u64,
    /// Their bytes.
    pub held_bytes: u64,
    /// What its files take of the disk; those of tiers are mostly allocated ahead.
    pub disk_bytes: u64,
    /// What there is space for in them; less may be held, where ranks share a tier or its capacity was lowered.
    pub space_bytes: Option<u64>,
    /// The process that has it now.
    pub in_use_by: Option<String>,
    /// What is wrong with it, so that it holds nothing.
    pub damage: Option<String>,
    /// Bytes at the end of its index that are no whole records: what they told of will be read again.
    pub torn_bytes: u64,
    /// Why it could not be looked into, so that nothing is known of it.
    pub unreadable: Option<String>,
}

/// What lies in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What is ours.
    pub parts: Vec<Part>,
    /// What is not.
    pub foreign: Vec<String>,
}

/// What came of comparing a part with its checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its sub-folder.
    pub name: String,
    /// How many samples or files were compared.
    pub checked: u64,
    /// Their bytes.
    pub checked_bytes: u64,
    /// What is not as it was kept.
    pub damaged: Vec<String>,
    /// Bytes at the end of its index that are no whole records.
    pub torn_bytes: u64,
    /// Why nothing was compared.
    pub unchecked: Option<String>,
}

/// What came of emptying a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cleared {
    /// Its sub-folder.
    pub name: String,
    /// What the disk has again.
    pub freed_bytes: u64,
    /// Why something of ours is still there.
    pub left: Option<String>,
}

/// A folder that carries a mark of ours.
pub struct Cache(Marked);

/// Each kind, with what it needs.
enum Marked {
    Tiers(Tiers),
    Copies(Keeper),
}

impl Cache {
    /// Finds out what a folder is. Those that others own or may write to are refused unless they are trusted.
    pub fn find(path: &Path, trusted: bool) -> Result<Self, CacheError> {
        if !path.is_dir() {
            let path = path.to_owned();
            return Err(match path.symlink_metadata() {
                Ok(_) => CacheError::disk(&path, DiskError::NotAFolder { path: path.clone() }),
                Err(_) => CacheError::Missing { path },
            });
        }
        if foresee_cache::folder::is_cache(path) {
            return Ok(Self(Marked::Copies(Keeper::find(path, trusted)?)));
        }
        match Tiers::find(path, trusted) {
            Ok(tiers) => Ok(Self(Marked::Tiers(tiers))),
            Err(DiskError::NotOurs { path }) => Err(CacheError::Unmarked { path }),
            Err(why) => Err(CacheError::disk(path, why)),
        }
    }

    /// What it is for.
    pub fn kind(&self) -> Kind {
        match self.0 {
            Marked::Tiers(_) => Kind::Tiers,
            Marked::Copies(_) => Kind::Copies,
        }
    }

    /// What lies in it. A part that cannot be looked into is one of it, with the reason.
    pub fn status(&self) -> Result<Status, CacheError> {
        match &self.0 {
            Marked::Tiers(tiers) => tiers.status().map_err(|why| disk_error(tiers, why)),
            Marked::Copies(keeper) => Ok(copies::status(keeper)),
        }
    }

    /// Compares what it holds with its checksums, part by part, whatever becomes of the others. A job that starts meanwhile
    /// may find a part in use, and go without it. Copies that are damaged are deleted: programs would read them.
    pub fn verify(&self) -> Result<Vec<Check>, CacheError> {
        match &self.0 {
            Marked::Tiers(tiers) => tiers.verify().map_err(|why| disk_error(tiers, why)),
            Marked::Copies(keeper) => Ok(vec![copies::verify(keeper)]),
        }
    }

    /// Deletes what nobody uses; the folder and its mark stay.
    pub fn clear(&self) -> Result<Vec<Cleared>, CacheError> {
        match &self.0 {
            Marked::Tiers(tiers) => tiers.clear().map_err(|why| disk_error(tiers, why)),
            Marked::Copies(keeper) => Ok(vec![copies::clear(keeper)]),
        }
    }
}

fn disk_error(tiers: &Tiers, why: DiskError) -> CacheError {
    CacheError::disk(tiers.path(), why)
}
