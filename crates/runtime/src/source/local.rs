//! Samples that are files. A read is one `open`, one `readv` and one `close`: the size is known from the catalog, and a
//! byte of room behind the sample tells whether the file has grown. Nothing is allocated.
//!
//! Callers do well to align buffers to 64 bytes: copies out of the page cache to 1 to 31 bytes behind a page's start were
//! measured to take almost twice as long.

use std::cell::RefCell;
use std::ffi::CStr;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{readv, retry_on_intr};

use super::{ReadError, Source};
use crate::dataset::Dataset;

thread_local! {
    /// The path of the file that is being opened.
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Without waiting: a pipe in the place of a file would wait for its writer for ever.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

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

    fn open(&self, sample: SampleId) -> io::Result<OwnedFd> {
        PATH.with_borrow_mut(|path| {
            path.clear();
            self.dataset.push_path(sample, path);
            path.push(0);
            let path = CStr::from_bytes_with_nul(path).map_err(io::Error::other)?;
            Ok(retry_on_intr(|| open(path, FLAGS, Mode::empty()))?)
        })
    }
}

impl Source for LocalFiles {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<(), ReadError> {
        if into.is_empty() {
            return Err(ReadError::Empty);
        }
        let expected = Bytes(into.len() as u64);
        let file = self.open(sample)?;
        let mut done = 0;
        // A read that stops before the end of the buffer may go on; one that stops at it met the end of the file.
        while done < into.len() {
            let mut probe = [0];
            let mut room = [IoSliceMut::new(&mut into[done..]), IoSliceMut::new(&mut probe)];
            match retry_on_intr(|| readv(&file, &mut room)).map_err(io::Error::from)? {
                0 if done == 0 => return Err(ReadError::Empty),
                0 => return Err(ReadError::Shrank { expected, found: Bytes(done as u64) }),
                more => done += more,
            }
        }
        if done > into.len() { Err(ReadError::Grew { expected }) } else { Ok(()) }
    }

    fn name(&self, sample: SampleId) -> String {
        self.dataset.path(sample).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::dataset::Listing;
    use crate::source::conformance;

    const UNSAVED: Listing<'_> = Listing { cache: None, threads: 2, progress: None };

    fn files(folder: &tempfile::TempDir, contents: &[&[u8]]) -> (LocalFiles, Vec<PathBuf>) {
        let paths: Vec<_> = (0..contents.len()).map(|index| folder.path().join(format!("{index}.bin"))).collect();
        paths.iter().zip(contents).for_each(|(path, content)| fs::write(path, content).unwrap());
        let dataset = Dataset::files(paths.clone(), None, &UNSAVED).unwrap();
        (LocalFiles::new(Arc::new(dataset)), paths)
    }

    #[test]
    fn conforms() {
        let folder = tempfile::tempdir().unwrap();
        let large = (0..3_000_000_u32).map(|index| index as u8).collect::<Vec<_>>();
        let contents: [&[u8]; 4] = [b"one", b"", b"\0", &large];
        let (source, _) = files(&folder, &contents);
        let expected: Vec<_> = (0..).map(SampleId).zip(contents.map(<[u8]>::to_vec)).collect();
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
        assert!(matches!(read(0), ReadError::Shrank { expected: Bytes(5), found: Bytes(3) }));
        assert!(matches!(read(1), ReadError::Grew { expected: Bytes(5) }));
        assert!(matches!(read(2), ReadError::Empty));
        assert!(matches!(read(3), ReadError::Io(error) if error.kind() == io::ErrorKind::NotFound));
        assert!(matches!(read(4), ReadError::Io(error) if error.kind() == io::ErrorKind::IsADirectory));
    }

    #[test]
    fn names_a_sample_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let (source, paths) = files(&folder, &[b"1"]);
        assert_eq!(source.name(SampleId(0)), paths[0].display().to_string());
    }
}
