//! Samples that are files. A read is one `open`, one `read` between two looks at the open file, and one `close`. What the
//! looks find must be the same: else somebody wrote to the file meanwhile, and what was read may be torn. A file that was
//! changed a moment ago is left to rest first, since a second change within the same tick of the clock would not show.
//! Nothing is allocated.
//!
//! Callers do well to align buffers to 64 bytes: copies out of the page cache to 1 to 31 bytes behind a page's start were
//! measured to take almost twice as long.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::thread;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, retry_on_intr};

use super::{ReadError, Source};
use crate::dataset::Dataset;
use crate::stamp::{Stamp, TICK};

thread_local! {
    /// The path of the file that is being opened.
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Without waiting: a pipe in the place of a file would wait for its writer for ever.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The files of a dataset.
#[derive(Debug)]
pub struct LocalFiles {
    dataset: Arc<Dataset>,
}

impl LocalFiles {
    /// The files of `dataset`.
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset }
    }

    /// Gives the path of a sample's file to a call of the system.
    fn at_path<T>(
        &self,
        sample: SampleId,
        call: impl FnOnce(&CStr) -> io::Result<T>,
    ) -> io::Result<T> {
        PATH.with_borrow_mut(|path| {
            path.clear();
            self.dataset.push_path(sample, path);
            path.push(0);
            call(CStr::from_bytes_with_nul(path).map_err(io::Error::other)?)
        })
    }

    fn open(&self, sample: SampleId) -> io::Result<OwnedFd> {
        self.at_path(sample, |path| {
            Ok(retry_on_intr(|| open(path, FLAGS, Mode::empty()))?)
        })
    }
}

impl Source for LocalFiles {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        let file = self.open(sample)?;
        let before = look_when_settled(&file)?;
        fill(&file, into, &before)?;
        if !before.is_same(&Stamp::of_file(&file)?) {
            return Err(ReadError::Torn);
        }
        Ok(Some(before))
    }

    fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
        let (stamp, _) = self.at_path(sample, |path| Stamp::of_path(path))?;
        Ok(Some(stamp))
    }

    fn name(&self, sample: SampleId) -> String {
        self.dataset.path(sample).display().to_string()
    }

    fn dataset(&self) -> Option<&Dataset> {
        Some(&self.dataset)
    }
}

/// What a file is, once a change from now on is certain to show.
fn look_when_settled(file: &OwnedFd) -> Result<Stamp, ReadError> {
    let stamp = Stamp::of_file(file)?;
    if !stamp.is_settling() {
        return Ok(stamp);
    }
    thread::sleep(TICK);
    let stamp = Stamp::of_file(file)?;
    if stamp.is_settling() {
        Err(ReadError::Torn)
    } else {
        Ok(stamp)
    }
}

/// Reads all of a file that has as many bytes as there is room.
fn fill(file: &OwnedFd, into: &mut [u8], stamp: &Stamp) -> Result<(), ReadError> {
    let (expected, found) = (Bytes(into.len() as u64), Bytes(stamp.size_bytes));
    if found != expected {
        // A folder in the place of a file says so.
        read(file, &mut [0]).map_err(io::Error::from)?;
    }
    match found.cmp(&expected) {
        Ordering::Greater => return Err(ReadError::Grew { expected }),
        Ordering::Less => return Err(ReadError::Shrank { expected, found }),
        Ordering::Equal if into.is_empty() => return Err(ReadError::Empty),
        Ordering::Equal => {}
    }
    let mut done = 0;
    while done < into.len() {
        match retry_on_intr(|| read(file, &mut into[done..])).map_err(io::Error::from)? {
            0 => return Err(ReadError::Torn),
            more => done += more,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::dataset::Listing;
    use crate::source::conformance;

    const UNSAVED: Listing<'_> = Listing {
        cache: None,
        trusted: false,
        threads: 2,
        progress: None,
    };

    fn files(folder: &tempfile::TempDir, contents: &[&[u8]]) -> (LocalFiles, Vec<PathBuf>) {
        let paths: Vec<_> = (0..contents.len())
            .map(|index| folder.path().join(format!("{index}.bin")))
            .collect();
        paths
            .iter()
            .zip(contents)
            .for_each(|(path, content)| fs::write(path, content).unwrap());
        let dataset = Dataset::files(paths.clone(), None, &UNSAVED).unwrap();
        (LocalFiles::new(Arc::new(dataset)), paths)
    }

    #[test]
    fn conforms() {
        let folder = tempfile::tempdir().unwrap();
        let large = (0..3_000_000_u32)
            .map(|index| index as u8)
            .collect::<Vec<_>>();
        let contents: [&[u8]; 4] = [b"one", b"", b"\0", &large];
        let (source, _) = files(&folder, &contents);
        let expected: Vec<_> = (0..)
            .map(SampleId)
            .zip(contents.map(<[u8]>::to_vec))
            .collect();
        conformance::check(&source, &expected);
    }

    #[test]
    fn says_what_changed_since_the_listing() {
        let folder = tempfile::tempdir().unwrap();
        let (source, paths) = files(&folder, &[b"12345".as_slice(); 5]);
        fs::write(&paths[0], b"123").unwrap();
        fs::write(&paths[1], b"123456").unwrap();
        fs::write(&paths[2], b"").unwrap();
        fs::remove_file(&paths[3]).unwrap();
        fs::remove_file(&paths[4]).unwrap();
        fs::create_dir(&paths[4]).unwrap();
        let read = |sample| source.read(SampleId(sample), &mut [0; 5]).unwrap_err();
        assert!(matches!(
            read(0),
            ReadError::Shrank {
                expected: Bytes(5),
                found: Bytes(3)
            }
        ));
        assert!(matches!(read(1), ReadError::Grew { expected: Bytes(5) }));
        assert!(matches!(
            read(2),
            ReadError::Shrank {
                expected: Bytes(5),
                found: Bytes(0)
            }
        ));
        assert!(matches!(read(3), ReadError::Io(error) if error.kind() == io::ErrorKind::NotFound));
        assert!(
            matches!(read(4), ReadError::Io(error) if error.kind() == io::ErrorKind::IsADirectory)
        );
    }

    #[test]
    fn names_a_sample_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let (source, paths) = files(&folder, &[b"1"]);
        assert_eq!(source.name(SampleId(0)), paths[0].display().to_string());
    }
}
