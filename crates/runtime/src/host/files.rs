//! Samples in files of other ranks of this host: who knows where one lies reads it there itself, and sees by its checksum
//! whether it is what was meant. So a holder that has put something else there meanwhile does no harm.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sync::{Mutex, whole};
use crate::tier::{DiskTier, InFile};

/// Files that stay open: those of some terabytes.
const OPEN_MAX: usize = 256;

/// Files of other ranks, those that were read last.
#[derive(Default)]
pub(crate) struct Files(Mutex<VecDeque<(PathBuf, Arc<File>)>>);

impl Files {
    /// A sample of so many bytes; none where something else lies there by now.
    pub(crate) fn read(&self, at: &InFile, len: usize) -> io::Result<Option<Vec<u8>>> {
        let file = self.open(&at.path)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at.offset)?;
        let is_meant = DiskTier::sum(&bytes) == at.sum;
        Ok(is_meant.then_some(bytes))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<File>> {
        let mut open = whole(self.0.lock());
        if let Some((_, file)) = open.iter().find(|(there, _)| there == path) {
            return Ok(Arc::clone(file));
        }
        // A name that leads to something else than a file is refused, not waited for.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = Arc::new(file);
        if open.len() >= OPEN_MAX {
            open.pop_front();
        }
        open.push_back((path.to_owned(), Arc::clone(&file)));
        Ok(file)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_meant_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, b"..sample..").unwrap();
        let at = InFile {
            path: path.clone(),
            offset: 2,
            sum: DiskTier::sum(b"sample"),
        };
        let files = Files::default();
        assert_eq!(files.read(&at, 6).unwrap().unwrap(), b"sample");
        assert_eq!(files.read(&at, 5).unwrap(), None);
        assert!(files.read(&at, 60).is_err(), "the file is shorter");
        // In place, as a holder does.
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(b"other", 2)
            .unwrap();
        assert_eq!(files.read(&at, 6).unwrap(), None);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = InFile {
            path: folder.path().to_owned(),
            offset: 0,
            sum: 0,
        };
        assert!(Files::default().read(&at, 1).is_err());
    }
}
