//! The cache folders of `foresee run`, as those of jobs are told: one part, whose entries are copies of files. Programs that use
//! it are not in the way: a copy can go at any time.

use std::io;

use foresee_cache::folder::FolderError;
use foresee_cache::keeping::Keeper;

use super::{Check, Cleared, Part, Status};

/// The part's name: the sub-folder that the copies are in.
const NAME: &str = "files";

/// What to do about a folder that is refused, beside what it says itself.
pub(super) fn remedy(why: &FolderError) -> &'static str {
    match why {
        FolderError::Foreign { .. } => ", or give --trust-folder",
        _ => "",
    }
}

pub(super) fn status(keeper: &Keeper) -> Status {
    let (foreign, unlisted) = match keeper.foreign() {
        Ok(foreign) => (foreign, None),
        Err(cause) => (Vec::new(), Some(cause)),
    };
    let mut part = Part {
        name: NAME.to_owned(),
        of: None,
        entries: 0,
        held_bytes: 0,
        disk_bytes: 0,
        space_bytes: None,
        in_use_by: None,
        damage: None,
        torn_bytes: 0,
        unreadable: unlisted.map(|cause| unreadable(&cause)),
    };
    match keeper.status() {
        Ok(status) => {
            part.entries = status.counted.copies;
            part.held_bytes = status.counted.bytes;
            part.disk_bytes = status.counted.disk_bytes;
            part.in_use_by = status.copier.map(|process| process.to_string());
        }
        Err(cause) => part.unreadable = Some(unreadable(&cause)),
    }
    Status {
        parts: vec![part],
        foreign,
    }
}

fn unreadable(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "no permission to look into it".to_owned(),
        _ => cause.to_string(),
    }
}

pub(super) fn verify(keeper: &Keeper) -> Check {
    let mut check = Check {
        name: NAME.to_owned(),
        ..Check::default()
    };
    match keeper.verify() {
        Ok(found) => {
            check.checked = found.read.copies;
            check.checked_bytes = found.read.bytes;
            check.damaged = found.removed;
        }
        Err(cause) => check.unchecked = Some(unreadable(&cause)),
    }
    check
}

pub(super) fn clear(keeper: &Keeper) -> Cleared {
    let cleared = keeper.clear();
    Cleared {
        name: NAME.to_owned(),
        freed_bytes: cleared.as_ref().map_or(0, |counted| counted.disk_bytes),
        left: cleared.err().map(|cause| unreadable(&cause)),
    }
}
