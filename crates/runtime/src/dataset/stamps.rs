//! Folders and what they were when they were listed. A catalog is valid while they are the same.
//!
//! A folder that changed just before it was listed is not trusted: what was listed is used, but not saved.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::names::Names;
use super::parallel::{Next, in_chunks};
use crate::stamp::Stamp;

/// Paths with their stamps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) paths: Names,
    /// Each taken before what it stands for was listed.
    pub(super) stamps: Vec<Stamp>,
}

impl Stamps {
    /// The present stamps of `paths`; nothing if one of them cannot be looked at.
    pub(super) fn take(paths: Names, threads: usize) -> Option<Self> {
        let stamps = look(&paths, threads)?;
        Some(Self { paths, stamps })
    }

    /// These and then those.
    pub(super) fn and(mut self, others: &Self) -> Self {
        others.paths.iter().for_each(|path| self.paths.push(path));
        self.stamps.extend(&others.stamps);
        self
    }

    /// Whether a later change is certain to show.
    pub(super) fn are_trusted(&self) -> bool {
        self.stamps.iter().all(|stamp| stamp.trusted)
    }

    /// Whether nothing changed since. A folder in another file system of the same host is another one: a link on the way to
    /// it may lead elsewhere now. Listing again after a mount costs time, taking one folder for another would cost samples.
    pub(super) fn are_current(&self, threads: usize) -> bool {
        let is_current =
            |(then, now): (&Stamp, &Stamp)| then.still_holds(now) && !then.is_of_other_mount(now);
        look(&self.paths, threads).is_some_and(|now| self.stamps.iter().zip(&now).all(is_current))
    }

    /// Whether the first of them, which the others lie below, is here what it was where these were taken, perhaps on another
    /// host. One look, whatever their number.
    pub(super) fn begin_here(&self) -> bool {
        let Some(then) = self.stamps.first() else {
            return false;
        };
        let path = OsStr::from_bytes(self.paths.get(0));
        Stamp::of_path(path).is_ok_and(|(now, _)| is_here(then, &now))
    }

    /// The same of all of them.
    pub(super) fn are_here(&self, threads: usize) -> bool {
        let are_all = |now: Vec<Stamp>| {
            self.stamps
                .iter()
                .zip(&now)
                .all(|(then, now)| is_here(then, now))
        };
        look(&self.paths, threads).is_some_and(are_all)
    }
}

/// Whether a folder is what it was a moment ago, in this very launch: whether each change would show does not matter.
fn is_here(then: &Stamp, now: &Stamp) -> bool {
    let then = Stamp {
        trusted: true,
        ..*then
    };
    then.still_holds(now) && !then.is_of_other_mount(now)
}

fn look(paths: &Names, threads: usize) -> Option<Vec<Stamp>> {
    let mut found = vec![None; paths.len()];
    in_chunks(&mut found, threads, |first, chunk| {
        for (offset, stamp) in chunk.iter_mut().enumerate() {
            let path = OsStr::from_bytes(paths.get(first + offset));
            match Stamp::of_path(path) {
                Ok((now, _)) => *stamp = Some(now),
                Err(_) => return Next::Stop,
            }
        }
        Next::Go
    });
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_gone_has_no_stamp() {
        let gone: Names = [b"/nowhere/at/all".as_slice()].into_iter().collect();
        assert_eq!(Stamps::take(gone, 2), None);
    }

    #[test]
    fn a_folder_of_another_mount_of_this_host_is_another_folder() {
        let here: Names = [b"/".as_slice()].into_iter().collect();
        let taken = Stamps::take(here, 1).unwrap();
        let trusted = |mount: fn(u64) -> u64| Stamps {
            stamps: taken
                .stamps
                .iter()
                .map(|stamp| Stamp {
                    trusted: true,
                    mount: mount(stamp.mount),
                    ..*stamp
                })
                .collect(),
            ..taken.clone()
        };
        assert!(trusted(|mount| mount).are_current(1));
        assert!(!trusted(|mount| mount ^ 1).are_current(1));
        assert!(
            trusted(|mount| mount ^ 1 << 32).are_current(1),
            "of a boot before this one"
        );
    }
}
