//! Looks after a cache folder from outside of any job: what lies in it, whether that is whole, and emptying it. Nothing is
//! created here, and only what tiers made is ever deleted, as in [`folder`]. A sub-folder that a process has is left to it:
//! its index can be read at any time, its samples cannot be told from damage while they are replaced.

use std::fs;
use std::io;
use std::path::Path;

use foresee_config::OneLine;
use foresee_core::units::Bytes;

use super::folder::{self, Folder, Lock};
use super::log::{self, Identity, Past, Recalled};
use super::segments::Segments;
use super::slots;
use super::{DiskError, DiskTier};
use crate::caches::{Check, Cleared, Part, Status};

/// What is being done to a sub-folder.
enum Access {
    /// Nobody else has it until this is dropped.
    Free(Lock),
    /// A process has it, as far as its number is known.
    InUse(String),
}

/// What a sub-folder says of itself.
struct Told {
    identity: Identity,
    held: Recalled,
}

/// A folder with tiers in it, which may be looked into.
pub(crate) struct Tiers(Folder);

impl Tiers {
    /// Of a folder that carries the mark of tiers.
    pub(crate) fn find(path: &Path, trusted: bool) -> Result<Self, DiskError> {
        let folder = Folder {
            path: path.to_owned(),
            trusted,
        };
        folder::look_at(&folder)?;
        Ok(Self(folder))
    }

    /// What lies in it.
    pub(crate) fn status(&self) -> Result<Status, DiskError> {
        let mut status = Status::default();
        for name in folder::names(&self.0) {
            if folder::is_mark(&name) {
                continue;
            }
            let Some(part) = self.sub_folder(&name) else {
                status.foreign.push(name);
                continue;
            };
            let others = folder::names(&part);
            let others = others.iter().filter(|other| !folder::is_ours(other));
            status
                .foreign
                .extend(others.map(|other| format!("{name}/{other}")));
            status.parts.push(part_of(&name, &part)?);
        }
        Ok(status)
    }

    /// Compares all that it holds with its checksums.
    pub(crate) fn verify(&self) -> Result<Vec<Check>, DiskError> {
        let found = self.parts();
        found.iter().map(|name| self.check(name)).collect()
    }

    /// Deletes all that tiers have put there and nobody uses.
    pub(crate) fn clear(&self) -> Vec<Cleared> {
        let found = self.parts();
        found.into_iter().map(|name| self.remove(name)).collect()
    }

    /// The names of sub-folders that are of tiers.
    fn parts(&self) -> Vec<String> {
        let mut names = folder::names(&self.0);
        names.retain(|name| self.sub_folder(name).is_some());
        names
    }

    /// A sub-folder as tiers make them: by its name, and its lock.
    fn sub_folder(&self, name: &str) -> Option<Folder> {
        slots::dataset_of(name)?;
        let path = self.0.path.join(name);
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        let lock = fs::symlink_metadata(path.join(folder::LOCK));
        let is_locked = lock.is_ok_and(|found| found.is_file());
        (is_folder && is_locked).then_some(Folder {
            path,
            trusted: self.0.trusted,
        })
    }

    fn check(&self, name: &str) -> Result<Check, DiskError> {
        let mut check = Check {
            name: name.to_owned(),
            ..Check::default()
        };
        let Some(part) = self.sub_folder(name) else {
            // Somebody removed it meanwhile.
            return Ok(check);
        };
        let _lock = match access(&part)? {
            Access::Free(lock) => lock,
            Access::InUse(holder) => {
                check.unchecked = Some(format!("in use by process {holder}"));
                return Ok(check);
            }
        };
        match told(&part) {
            Ok(told) => compare(&part, &told, &mut check)?,
            Err(damage) => check.damaged.push(damage),
        }
        Ok(check)
    }

    fn remove(&self, name: String) -> Cleared {
        let path = self.0.path.join(&name);
        let disk_bytes = || folder::disk_bytes(&path);
        let before = disk_bytes();
        if let Some(host) = slots::other_host(&self.0, &name) {
            let left = format!(
                "of host {}, whose locks may not be seen here",
                OneLine(host)
            );
            return Cleared {
                left: Some(left),
                freed_bytes: 0,
                name,
            };
        }
        let left = match folder::remove(&self.0, &name) {
            Ok(()) => None,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                let part = Folder {
                    path: self.0.path.join(&name),
                    trusted: self.0.trusted,
                };
                Some(format!("in use by process {}", folder::holder(&part)))
            }
            Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Some("it has files that are not of foresee; what was cached is gone".to_owned())
            }
            Err(cause) => Some(OneLine(cause).to_string()),
        };
        Cleared {
            name,
            freed_bytes: before.saturating_sub(disk_bytes()),
            left,
        }
    }
}

/// What is told of a part.
fn part_of(name: &str, part: &Folder) -> Result<Part, DiskError> {
    let in_use_by = match access(part)? {
        Access::Free(_) => None,
        Access::InUse(holder) => Some(holder),
    };
    let told = told(part);
    let (entries, held_bytes, capacity_bytes) = match &told {
        Ok(told) => (
            told.held.entries.len() as u64,
            told.held
                .entries
                .values()
                .map(|(entry, _)| entry.len())
                .sum(),
            Some(told.identity.shape.capacity),
        ),
        Err(_) => (0, 0, None),
    };
    Ok(Part {
        name: name.to_owned(),
        of: slots::dataset_of(name).map(str::to_owned),
        entries,
        held_bytes,
        disk_bytes: folder::disk_bytes(&part.path),
        capacity_bytes,
        in_use_by,
        damage: told.err(),
    })
}

/// Whether somebody has a sub-folder.
fn access(part: &Folder) -> Result<Access, DiskError> {
    match folder::try_lock(part, false) {
        Ok(lock) => Ok(Access::Free(lock)),
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
            Ok(Access::InUse(folder::holder(part)))
        }
        Err(cause) => Err(DiskError::new(&part.path, "lock it", cause)),
    }
}

/// What its index says; or what is wrong with it.
fn told(part: &Folder) -> Result<Told, String> {
    let damaged = |cause: io::Error| OneLine(cause).to_string();
    let Some(identity) = log::identity(part).map_err(damaged)? else {
        let is_there = part.path.join(folder::INDEX).exists();
        let why = if is_there { "is damaged" } else { "is missing" };
        return Err(format!("its index {why}: what it held will be read again"));
    };
    match log::read(part, identity).map_err(damaged)? {
        Past::Held(held) => Ok(Told { identity, held }),
        Past::Nothing => Err("its index is missing: what it held will be read again".to_owned()),
        Past::Useless(why) => Err(why.to_owned()),
    }
}

fn compare(part: &Folder, told: &Told, check: &mut Check) -> Result<(), DiskError> {
    let segments = Segments::open(part, told.identity.shape, Bytes(0))?;
    let mut samples: Vec<_> = told.held.entries.iter().collect();
    // In the order in which they lie: a disk reads on.
    samples.sort_unstable_by_key(|(_, (entry, _))| entry.parts()[0].offset);
    let mut bytes = Vec::new();
    for (sample, (entry, _)) in samples {
        // Lengths in an index that nobody wrote are no reason to run out of memory.
        let is_possible = entry.len() <= told.identity.shape.capacity;
        let whole = is_possible.then(|| {
            bytes.resize(entry.len() as usize, 0);
            segments.read(entry.parts(), &mut bytes)
        });
        let is_whole = matches!(whole, Some(Ok(()))) && DiskTier::sum(&bytes) == entry.sum;
        check.checked += 1;
        check.checked_bytes += entry.len();
        if !is_whole {
            check.damaged.push(format!("sample {sample}"));
        }
    }
    check.damaged.sort();
    Ok(())
}
