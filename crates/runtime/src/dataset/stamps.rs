//! Folders and when they changed last. A catalog is valid while its folders' times are what they were.
//!
//! A folder that changed just before it was listed may change again within the same tick of its storage's clock without
//! a new time. Such a one is not trusted: what was listed is used, but not saved.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::names::Names;
use super::parallel::{Next, in_chunks};

/// No storage in use has a coarser clock, except FAT (2 s), which holds no large dataset.
const TICK_NS: i64 = 1_000_000_000;

/// When something was changed last, in nanoseconds since 1970.
pub(super) fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Now, on the clock of the files.
pub(super) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Paths with their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) paths: Names,
    pub(super) mtimes_ns: Vec<i64>,
    /// When the first was looked at; before anything was listed.
    pub(super) taken_ns: i64,
}

impl Stamps {
    /// The present times of `paths`; nothing if one of them cannot be looked at.
    pub(super) fn take(paths: Names, threads: usize) -> Option<Self> {
        let taken_ns = now_ns();
        let mtimes_ns = mtimes(&paths, threads)?;
        Some(Self { paths, mtimes_ns, taken_ns })
    }

    /// These and then those.
    pub(super) fn and(mut self, others: &Self) -> Self {
        others.paths.iter().for_each(|path| self.paths.push(path));
        self.mtimes_ns.extend(&others.mtimes_ns);
        self.taken_ns = self.taken_ns.min(others.taken_ns);
        self
    }

    /// Whether a later change is certain to show.
    pub(super) fn are_trusted(&self) -> bool {
        self.mtimes_ns.iter().all(|&mtime_ns| self.taken_ns.saturating_sub(mtime_ns) >= TICK_NS)
    }

    /// Whether nothing changed since.
    pub(super) fn are_current(&self, threads: usize) -> bool {
        mtimes(&self.paths, threads).is_some_and(|now| now == self.mtimes_ns)
    }
}

fn mtimes(paths: &Names, threads: usize) -> Option<Vec<i64>> {
    let mut found = vec![None; paths.len()];
    in_chunks(&mut found, threads, |first, chunk| {
        for (offset, mtime) in chunk.iter_mut().enumerate() {
            let path = OsStr::from_bytes(paths.get(first + offset));
            match fs::metadata(path) {
                Ok(metadata) => *mtime = Some(mtime_ns(&metadata)),
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

    fn stamps(taken_ns: i64, mtimes_ns: Vec<i64>) -> Stamps {
        Stamps { paths: Names::default(), mtimes_ns, taken_ns }
    }

    #[test]
    fn trusts_only_folders_that_rested_for_a_second() {
        let now = 5_000_000_000;
        assert!(stamps(now, vec![4_000_000_000, 0]).are_trusted());
        assert!(!stamps(now, vec![4_000_000_001, 0]).are_trusted());
        assert!(!stamps(now, vec![6_000_000_000]).are_trusted());
    }

    #[test]
    fn a_path_that_is_gone_has_no_stamp() {
        let gone: Names = [b"/nowhere/at/all".as_slice()].into_iter().collect();
        assert_eq!(Stamps::take(gone, 2), None);
    }
}
