//! How large each file is, and where it is if its name is a link: one `lstat` a file, many at a time, because storage far
//! away takes long to answer each.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use twox_hash::XxHash3_128;

use super::Listing;
use super::error::FileProblem;
use super::files::Files;
use super::parallel::{Next, in_chunks};
use crate::stamp::{Times, had_rested, nanoseconds, now_ns};

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) size_bytes: u64,
    /// Of the file that a link leads to, a number made of its resolved path; 0 where the name is no link.
    pub(super) link: u128,
    /// When anything about it was changed last, in nanoseconds since 1970.
    pub(super) changed_ns: i64,
    /// What its times of change come to.
    pub(super) times: Times,
}

/// What is known of all files.
#[derive(Debug)]
pub(super) struct Measures {
    pub(super) files: Vec<Measure>,
    /// Whether each had rested when it was looked at, so that every later change shows in its times.
    pub(super) had_rested: bool,
}

/// A file that is no sample.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) index: usize,
    pub(super) problem: FileProblem,
}

/// Looks at all files; of those that are no samples the first is the error.
pub(super) fn measure(files: &Files, listing: &Listing<'_>) -> Result<Measures, Misfit> {
    let began_ns = now_ns();
    let mut measures = vec![Measure::default(); files.len()];
    let misfit: Mutex<Option<Misfit>> = Mutex::new(None);
    let done = Mutex::new(0);
    in_chunks(
        &mut measures,
        listing.threads,
        |first, chunk| match measure_chunk(files, first, chunk) {
            Ok(()) => {
                tell(listing, &done, chunk.len());
                Next::Go
            }
            Err(found) => {
                let mut least = misfit.lock().expect("no holder panics");
                if least.as_ref().is_none_or(|least| found.index < least.index) {
                    *least = Some(found);
                }
                Next::Stop
            }
        },
    );
    if let Some(misfit) = misfit.into_inner().expect("no holder panics") {
        return Err(misfit);
    }
    let had_rested = measures
        .iter()
        .all(|measure| had_rested(measure.changed_ns, began_ns));
    Ok(Measures {
        files: measures,
        had_rested,
    })
}

/// Under a lock, so that the numbers only grow.
fn tell(listing: &Listing<'_>, done: &Mutex<u64>, more: usize) {
    listing.stir();
    if let Some(progress) = listing.progress {
        let mut done = done.lock().expect("no listener panics");
        *done += more as u64;
        progress(*done);
    }
}

fn measure_chunk(files: &Files, first: usize, chunk: &mut [Measure]) -> Result<(), Misfit> {
    let mut path = Vec::new();
    for (offset, measure) in chunk.iter_mut().enumerate() {
        let index = first + offset;
        path.clear();
        files.push_path(index, &mut path);
        *measure =
            measure_one(OsStr::from_bytes(&path)).map_err(|problem| Misfit { index, problem })?;
    }
    Ok(())
}

fn measure_one(path: &OsStr) -> Result<Measure, FileProblem> {
    let mut metadata = fs::symlink_metadata(path)?;
    let mut link = 0;
    if metadata.is_symlink() {
        metadata = fs::metadata(path)?;
        link = XxHash3_128::oneshot(fs::canonicalize(path)?.as_os_str().as_bytes());
    }
    match metadata.file_type() {
        kind if kind.is_file() => {
            let modified_ns = nanoseconds(metadata.mtime(), metadata.mtime_nsec());
            // Storage that is no file system may tell one of the two only.
            let changed_ns = nanoseconds(metadata.ctime(), metadata.ctime_nsec());
            Ok(Measure {
                size_bytes: metadata.len(),
                link,
                changed_ns: changed_ns.max(modified_ns),
                times: Times::new(modified_ns, changed_ns),
            })
        }
        kind if kind.is_dir() => Err(FileProblem::Folder),
        _ => Err(FileProblem::Special),
    }
}
