//! Looks after a cache folder from outside of any job: what lies in it, whether that is whole, and emptying it. Nothing is
//! created here, and only what tiers made is ever deleted, as in [`folder`]. A sub-folder that a process has is left to it:
//! its index can be read at any time, its samples cannot be told from damage while they are replaced.
//!
//! Each sub-folder is looked at by itself: one that cannot be is named with its reason, and hides none of the others.

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

/// What something in the folder is.
enum Thing {
    /// A sub-folder that tiers made.
    Part(Folder),
    /// One that they made by its name, which cannot be looked into.
    Closed(DiskError),
    /// Something else.
    Foreign,
}

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
    /// Bytes of its index behind the last whole record.
    torn_bytes: u64,
}

/// Why it says nothing.
enum Silent {
    /// Nothing of it is of use, and why.
    Damaged(String),
    /// It cannot be read.
    Closed(DiskError),
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// What lies in it.
    pub(crate) fn status(&self) -> Result<Status, DiskError> {
        let mut status = Status::default();
        for name in self.names()? {
            if folder::is_mark(&name) {
                continue;
            }
            match self.thing(&name) {
                Thing::Part(part) => {
                    let others = strangers(&part).into_iter();
                    let others = others.map(|other| format!("{name}/{other}"));
                    status.foreign.extend(others);
                    status.parts.push(part_of(&name, &part));
                }
                Thing::Closed(why) => status.parts.push(closed(&name, &why)),
                Thing::Foreign => status.foreign.push(name),
            }
        }
        Ok(status)
    }

    /// Compares all that it holds with its checksums.
    pub(crate) fn verify(&self) -> Result<Vec<Check>, DiskError> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.check(name)).collect())
    }

    /// Deletes all that tiers have put there and nobody uses.
    pub(crate) fn clear(&self) -> Result<Vec<Cleared>, DiskError> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.remove(name)).collect())
    }

    /// The names of all that is in it, in order.
    fn names(&self) -> Result<Vec<String>, DiskError> {
        let path = &self.0.path;
        listed(path).map_err(|cause| DiskError::new(path, "list it", cause))
    }

    /// What something in it is: tiers make sub-folders with such names, and a lock in each.
    fn thing(&self, name: &str) -> Thing {
        let path = self.0.path.join(name);
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if slots::dataset_of(name).is_none() || !is_folder {
            return Thing::Foreign;
        }
        let part = Folder {
            path,
            trusted: self.0.trusted,
        };
        match fs::symlink_metadata(part.path.join(folder::LOCK)) {
            Ok(lock) if lock.is_file() => {}
            Ok(_) => return Thing::Foreign,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Thing::Foreign,
            Err(cause) => return Thing::Closed(DiskError::new(&part.path, "look into it", cause)),
        }
        match part.check() {
            Ok(()) => Thing::Part(part),
            Err(why) => Thing::Closed(why),
        }
    }

    /// Compares a part with its checksums; none where it is none of ours, or is gone by now.
    fn check(&self, name: String) -> Option<Check> {
        let mut check = Check {
            name,
            ..Check::default()
        };
        let compared = match self.thing(&check.name) {
            Thing::Part(part) => compare_part(&part, &mut check),
            Thing::Closed(why) => Err(why),
            Thing::Foreign => return None,
        };
        if let Err(why) = compared {
            check.unchecked = Some(why.told_to_keeper());
        }
        Some(check)
    }

    /// Deletes a part; none where it is none of ours.
    fn remove(&self, name: String) -> Option<Cleared> {
        let thing = self.thing(&name);
        if let Thing::Foreign = thing {
            return None;
        }
        let path = self.0.path.join(&name);
        let before = folder::disk_bytes(&path);
        let left = match (slots::other_host(&self.0, &name), thing) {
            (Some(host), _) => Some(format!(
                "of host {}, whose locks may not be seen here",
                OneLine(host)
            )),
            (None, Thing::Closed(why)) => Some(why.told_to_keeper()),
            (None, Thing::Part(part)) => self.remove_part(&name, &part),
            (None, Thing::Foreign) => None,
        };
        Some(Cleared {
            name,
            freed_bytes: before.saturating_sub(folder::disk_bytes(&path)),
            left,
        })
    }

    /// Why something of ours is still there.
    fn remove_part(&self, name: &str, part: &Folder) -> Option<String> {
        let cause = folder::remove(&self.0, name).err()?;
        match cause.kind() {
            io::ErrorKind::WouldBlock => {
                Some(format!("in use by process {}", folder::holder(part)))
            }
            // All of ours is gone; somebody else's files are in the way of the folder itself.
            io::ErrorKind::DirectoryNotEmpty => None,
            _ => Some(DiskError::new(&part.path, "delete it", cause).told_to_keeper()),
        }
    }
}

/// The names of all that is in a folder, in order.
fn listed(path: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(path)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

/// What is in a part and not of tiers: they make nothing but files, of few names.
fn strangers(part: &Folder) -> Vec<String> {
    let is_file = |name: &String| {
        let found = fs::symlink_metadata(part.path.join(name));
        found.is_ok_and(|found| found.is_file())
    };
    let mut names = listed(&part.path).unwrap_or_default();
    names.retain(|name| !(folder::is_ours(name) && is_file(name)));
    names
}

/// What is told of a part.
fn part_of(name: &str, part: &Folder) -> Part {
    let in_use_by = match access(part) {
        Ok(Access::Free(_)) => None,
        Ok(Access::InUse(holder)) => Some(holder),
        Err(why) => return closed(name, &why),
    };
    let unknown = Part {
        disk_bytes: folder::disk_bytes(&part.path),
        in_use_by,
        ..known_by_name(name)
    };
    let told = told(part).and_then(|told| match told.segments(part) {
        Ok(_) => Ok(told),
        Err(why) => Err(Silent::Closed(why)),
    });
    match told {
        Ok(told) => Part {
            entries: told.held.entries.len() as u64,
            held_bytes: told.held_bytes(),
            space_bytes: Some(told.identity.shape.capacity),
            // Whoever has it may be writing there.
            torn_bytes: match unknown.in_use_by {
                None => told.torn_bytes,
                Some(_) => 0,
            },
            ..unknown
        },
        Err(Silent::Damaged(why)) => Part {
            damage: Some(why),
            ..unknown
        },
        Err(Silent::Closed(why)) => Part {
            unreadable: Some(why.told_to_keeper()),
            ..unknown
        },
    }
}

/// What is told of a part that cannot be looked into.
fn closed(name: &str, why: &DiskError) -> Part {
    Part {
        unreadable: Some(why.told_to_keeper()),
        ..known_by_name(name)
    }
}

/// A part of which no more is known than its name.
fn known_by_name(name: &str) -> Part {
    Part {
        name: name.to_owned(),
        of: slots::dataset_of(name).map(str::to_owned),
        entries: 0,
        held_bytes: 0,
        disk_bytes: 0,
        space_bytes: None,
        in_use_by: None,
        damage: None,
        torn_bytes: 0,
        unreadable: None,
    }
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

impl Told {
    /// The data files of the part that says so.
    fn segments(&self, part: &Folder) -> Result<Segments, DiskError> {
        Segments::open(part, self.identity.shape, Bytes(0))
    }

    fn held_bytes(&self) -> u64 {
        let held = self.held.entries.values();
        held.map(|(entry, _)| entry.len()).sum()
    }
}

/// What its index says; or why it says nothing.
fn told(part: &Folder) -> Result<Told, Silent> {
    let unread =
        |cause: io::Error| Silent::Closed(DiskError::new(&part.path, "read its index", cause));
    let useless = |why: &str| Silent::Damaged(format!("{why}: what it held will be read again"));
    let index = part.path.join(folder::INDEX);
    let Some(identity) = log::identity(part).map_err(unread)? else {
        let is_there = index.exists();
        let why = if is_there { "damaged" } else { "missing" };
        return Err(useless(&format!("its index is {why}")));
    };
    let len = fs::metadata(&index).map_err(unread)?.len();
    match log::read(part, identity).map_err(unread)? {
        Past::Held(held) => Ok(Told {
            identity,
            torn_bytes: len.saturating_sub(held.len),
            held,
        }),
        Past::Nothing => Err(useless("its index is missing")),
        Past::Useless(why) => Err(useless(why)),
    }
}

/// Compares a part that nobody uses with its checksums.
fn compare_part(part: &Folder, check: &mut Check) -> Result<(), DiskError> {
    let _lock = match access(part)? {
        Access::Free(lock) => lock,
        Access::InUse(holder) => {
            check.unchecked = Some(format!("in use by process {holder}"));
            return Ok(());
        }
    };
    match told(part) {
        Ok(told) => {
            check.torn_bytes = told.torn_bytes;
            compare(part, &told, check)
        }
        Err(Silent::Damaged(why)) => {
            check.damaged.push(why);
            Ok(())
        }
        Err(Silent::Closed(why)) => Err(why),
    }
}

fn compare(part: &Folder, told: &Told, check: &mut Check) -> Result<(), DiskError> {
    let segments = told.segments(part)?;
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
