//! Samples that are files. A read is one `open`, one `read` between two looks at the file, and one `close`. What the looks
//! find must be the same: else somebody wrote to the file meanwhile, and what was read may be torn. The look before is the
//! listing's: a file that has the times of change that it had then is what it was then. Once one is found that was changed
//! since, each read looks twice at the open file. A file that was changed a moment ago is left to rest first, since a second
//! change within the same tick of the storage's clock would not show, nor the rest of a write that is under way. Nothing is
//! allocated.
//!
//! The folder that all files are below is opened once, since to walk there costs as much as a look (0.6 us). It may be moved
//! away meanwhile, and another one put in its place: what is found below it is taken only if it is what was listed, and
//! once a file is found that is not, paths are walked whole.
//!
//! Callers do well to align buffers to 64 bytes: copies out of the page cache to 1 to 31 bytes behind a page's start were
//! measured to take almost twice as long.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::thread;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::{pread, retry_on_intr};

use super::{ReadError, Source};
use crate::dataset::Dataset;
use crate::stamp::{Stamp, Times};

thread_local! {
    /// The path of the file that is being opened.
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Without waiting: a pipe in the place of a file would wait for its writer for ever.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// To walk on from, and for nothing else.
const FOLDER_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// The folder that all files are below.
#[derive(Debug)]
struct Top {
    folder: OwnedFd,
    /// Bytes of each path up to what is below it.
    above: usize,
}

/// The files of a dataset.
#[derive(Debug)]
pub struct LocalFiles {
    dataset: Arc<Dataset>,
    /// Opened with the first read; none where files have no folder in common, or it cannot be opened.
    top: OnceLock<Option<Top>>,
    /// What each file's times came to when it was listed, where every change since shows.
    listed: Option<Arc<[Times]>>,
    /// Whether a file was found that has been changed since: then others may have been, too.
    changed: AtomicBool,
}

impl LocalFiles {
    /// The files of `dataset`.
    pub fn new(dataset: Arc<Dataset>) -> Self {
        let listed = dataset.measured().times;
        Self {
            dataset,
            top: OnceLock::new(),
            listed,
            changed: AtomicBool::new(false),
        }
    }

    /// Gives the path of a sample's file, without so many bytes of its beginning, to a call of the system.
    fn at_path<T>(
        &self,
        sample: SampleId,
        above: usize,
        call: impl FnOnce(&CStr) -> io::Result<T>,
    ) -> io::Result<T> {
        PATH.with_borrow_mut(|path| {
            path.clear();
            self.dataset.push_path(sample, path);
            path.push(0);
            call(CStr::from_bytes_with_nul(&path[above..]).map_err(io::Error::other)?)
        })
    }

    fn open(&self, sample: SampleId) -> io::Result<OwnedFd> {
        self.at_path(sample, 0, |path| {
            Ok(retry_on_intr(|| open(path, FLAGS, Mode::empty()))?)
        })
    }

    /// Opens what is below the folder of all files, wherever that is by now.
    fn open_below(&self, sample: SampleId) -> io::Result<OwnedFd> {
        let Some(top) = self.top.get_or_init(|| self.open_top()) else {
            return self.open(sample);
        };
        let below = self.at_path(sample, top.above, |path| {
            Ok(retry_on_intr(|| {
                openat(&top.folder, path, FLAGS, Mode::empty())
            })?)
        });
        below.or_else(|_| self.open(sample))
    }

    fn open_top(&self) -> Option<Top> {
        let path = self.dataset.folder_of_all();
        let folder = open(path, FOLDER_FLAGS, Mode::empty()).ok()?;
        let slash = 1;
        Some(Top {
            folder,
            above: path.len() + slash,
        })
    }

    /// What a file's times came to when it was listed, as long as none was found that has others by now.
    fn listed(&self, sample: SampleId) -> Option<Times> {
        let listed = self.listed.as_ref()?;
        let is_as_listed = !self.changed.load(Relaxed);
        is_as_listed.then(|| listed[sample.index()])
    }
}

impl Source for LocalFiles {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        if let Some(listed) = self.listed(sample) {
            let file = self.open_below(sample)?;
            if let Some(stamp) = read_unchanged(&file, into, listed)? {
                return Ok(Some(stamp));
            }
            self.changed.store(true, Relaxed);
        }
        let file = self.open(sample)?;
        read_between_looks(&file, into).map(Some)
    }

    fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
        let (stamp, _) = self.at_path(sample, 0, |path| Stamp::of_path(path))?;
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
    let settles_in = stamp.settles_in();
    if settles_in.is_zero() {
        return Ok(stamp);
    }
    thread::sleep(settles_in);
    let stamp = Stamp::of_file(file)?;
    if stamp.settles_in().is_zero() {
        Ok(stamp)
    } else {
        Err(ReadError::Torn)
    }
}

/// Reads a file, unless it was changed since the dataset was listed: what has the times that it had then was not written to
/// since, so the listing was the look before.
fn read_unchanged(
    file: &OwnedFd,
    into: &mut [u8],
    listed: Times,
) -> Result<Option<Stamp>, ReadError> {
    let done = fill(file, into)?;
    let Some(stamp) = Stamp::of_unchanged(file, listed)? else {
        return Ok(None);
    };
    check_size(&stamp, into)?;
    if done < into.len() {
        Err(ReadError::Torn)
    } else {
        Ok(Some(stamp))
    }
}

fn read_between_looks(file: &OwnedFd, into: &mut [u8]) -> Result<Stamp, ReadError> {
    let before = look_when_settled(file)?;
    if before.size_bytes != into.len() as u64 {
        // A folder in the place of a file says so.
        fill(file, &mut [0])?;
    }
    check_size(&before, into)?;
    let done = fill(file, into)?;
    if done < into.len() || !before.is_same(&Stamp::of_file(file)?) {
        return Err(ReadError::Torn);
    }
    Ok(before)
}

fn check_size(stamp: &Stamp, into: &[u8]) -> Result<(), ReadError> {
    let expected = Bytes(into.len() as u64);
    let found = Bytes(stamp.size_bytes);
    match found.cmp(&expected) {
        Ordering::Greater => Err(ReadError::Grew { expected }),
        Ordering::Less => Err(ReadError::Shrank { expected, found }),
        Ordering::Equal if into.is_empty() => Err(ReadError::Empty),
        Ordering::Equal => Ok(()),
    }
}

/// Reads from the beginning, as far as there is room or the file goes; how far that was.
fn fill(file: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match retry_on_intr(|| pread(file, &mut into[done..], done as u64))? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::dataset::Listing;
    use crate::source::conformance;
    use crate::stamp::TICK;

    const UNSAVED: Listing<'_> = Listing {
        cache: None,
        trusted: false,
        threads: 2,
        progress: None,
        mesh: None,
        patience: crate::dataset::PATIENCE_MAX,
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

    fn times(paths: &[PathBuf]) -> Arc<[Times]> {
        let times = |path| Stamp::of_path(path).map(|(stamp, _)| stamp.times());
        paths
            .iter()
            .map(|path| times(path).unwrap_or_default())
            .collect()
    }

    /// With a look before each read; with none, since nothing has changed; with none until what has changed is found.
    fn listed(source: &LocalFiles, paths: &[PathBuf]) -> [LocalFiles; 3] {
        let others = paths.iter().map(|_| Times::default()).collect();
        [None, Some(times(paths)), Some(others)].map(|listed| LocalFiles {
            listed,
            ..LocalFiles::new(Arc::clone(&source.dataset))
        })
    }

    #[test]
    fn conforms() {
        let folder = tempfile::tempdir().unwrap();
        let large = (0..3_000_000_u32)
            .map(|index| index as u8)
            .collect::<Vec<_>>();
        let contents: [&[u8]; 4] = [b"one", b"", b"\0", &large];
        let (source, paths) = files(&folder, &contents);
        let expected: Vec<_> = (0..)
            .map(SampleId)
            .zip(contents.map(<[u8]>::to_vec))
            .collect();
        for source in listed(&source, &paths) {
            conformance::check(&source, &expected);
        }
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
        for source in listed(&source, &paths) {
            says_what_changed(&source);
        }
    }

    fn says_what_changed(source: &LocalFiles) {
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
    fn looks_before_each_read_once_a_file_was_changed_after_the_listing() {
        let folder = tempfile::tempdir().unwrap();
        let (source, paths) = files(&folder, &[b"12345".as_slice(); 2]);
        let [_, source, _] = listed(&source, &paths);
        let mut read = [0; 5];
        source.read(SampleId(0), &mut read).unwrap();
        assert!(!source.changed.load(Relaxed));
        thread::sleep(2 * TICK);
        fs::write(&paths[1], b"54321").unwrap();
        let stamp = source.read(SampleId(1), &mut read).unwrap().unwrap();
        assert!(stamp.times() == times(&paths)[1] && source.changed.load(Relaxed));
        assert_eq!(&read, b"54321");
    }

    #[test]
    fn a_change_shows_even_if_clocks_were_set_back_since_the_listing() {
        const FUTURE_NS: i64 = i64::MAX / 2;
        let folder = tempfile::tempdir().unwrap();
        let (source, _) = files(&folder, &[b"12345"]);
        let source = LocalFiles {
            listed: Some([Times::new(FUTURE_NS, FUTURE_NS)].into()),
            ..source
        };
        source.read(SampleId(0), &mut [0; 5]).unwrap();
        assert!(source.changed.load(Relaxed));
    }

    #[test]
    fn a_folder_that_another_one_took_the_place_of_is_left_for_it_once_that_shows() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let write = |root: &Path, content: [&[u8]; 2]| {
            for (class, content) in ["a", "b"].into_iter().zip(content) {
                fs::create_dir_all(root.join(class)).unwrap();
                fs::write(root.join(class).join("1.bin"), content).unwrap();
            }
        };
        write(&root, [b"12345", b"12345"]);
        let paths = ["a", "b"].map(|class| root.join(class).join("1.bin"));
        let dataset = Dataset::files(paths.to_vec(), None, &UNSAVED).unwrap();
        assert_eq!(dataset.folder_of_all(), root.as_os_str().as_bytes());
        let source = LocalFiles {
            listed: Some(times(&paths)),
            ..LocalFiles::new(Arc::new(dataset))
        };
        let mut read = [0; 5];
        source.read(SampleId(0), &mut read).unwrap();
        assert!(source.top.get().is_some_and(Option::is_some));
        thread::sleep(2 * TICK);
        fs::rename(&root, folder.path().join("old")).unwrap();
        write(&root, [b"54321", b"54321"]);
        // As it was listed, in the folder that it was listed in.
        source.read(SampleId(0), &mut read).unwrap();
        assert_eq!(&read, b"12345");
        fs::write(folder.path().join("old/b/1.bin"), b"wrong").unwrap();
        source.read(SampleId(1), &mut read).unwrap();
        assert_eq!(&read, b"54321");
        source.read(SampleId(0), &mut read).unwrap();
        assert_eq!(&read, b"54321");
    }

    #[test]
    fn names_a_sample_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let (source, paths) = files(&folder, &[b"1"]);
        assert_eq!(source.name(SampleId(0)), paths[0].display().to_string());
    }
}
