//! The bytes of a disk tier: one space of `capacity` bytes over consecutive files of one length, the last one shorter. A
//! file is allocated in full before anything is put into it, so a disk that fills up refuses a segment, not a sample.
//! Reads and writes go to their place from any number of threads; who may use which range is not decided here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use foresee_core::units::Bytes;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::{Errno, retry_on_intr};

use super::error::DiskError;
use super::folder::{Folder, data_name};
use crate::extents::Extent;
use crate::sync::others_may_come;
use crate::tier::check_may_write;

/// The shape of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many bytes there are.
    pub(super) capacity: u64,
    /// How many of them are in one file.
    pub(super) segment: u64,
}

impl Shape {
    /// A space of so many bytes, in files of at most `segment`.
    pub(super) fn new(capacity: u64, segment: u64) -> Self {
        Self {
            capacity,
            segment: segment.min(capacity),
        }
    }

    /// The same with at least so many bytes, in which all that lies in this one keeps its offset.
    pub(super) fn grown(self, capacity: u64, segment: u64) -> Self {
        if capacity <= self.capacity {
            return self;
        }
        let is_one_file = self.segment == self.capacity;
        let segment = if is_one_file {
            self.segment.max(segment.min(capacity))
        } else {
            self.segment
        };
        Self { capacity, segment }
    }

    fn segments(self) -> usize {
        self.capacity.div_ceil(self.segment) as usize
    }

    fn range(self, segment: usize) -> Extent {
        let offset = segment as u64 * self.segment;
        Extent {
            offset,
            len: self.segment.min(self.capacity - offset),
        }
    }
}

/// Makes the last data file of a space as long as it is in a larger one. What is added takes nothing of the disk yet.
pub(super) fn lengthen(folder: &Folder, old: Shape, new: Shape) -> io::Result<()> {
    let last = old.segments() - 1;
    let mut options = OpenOptions::new();
    match folder.open(&data_name(last), options.read(true).write(true)) {
        Ok(file) if file.metadata()?.len() >= old.range(last).len => {
            file.set_len(new.range(last).len)
        }
        Ok(_) => Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}

/// The data files of a tier.
#[derive(Debug)]
pub(super) struct Segments {
    folder: Folder,
    shape: Shape,
    /// What must stay free on the file system.
    floor: Bytes,
    /// Those that are allocated.
    files: Vec<OnceLock<File>>,
}

impl Segments {
    /// Finds the files that are there in full.
    pub(super) fn open(folder: &Folder, shape: Shape, floor: Bytes) -> Result<Self, DiskError> {
        let count = shape.segments();
        let files = (0..count).map(|_| OnceLock::new()).collect();
        let segments = Self {
            folder: folder.clone(),
            shape,
            floor,
            files,
        };
        for segment in 0..count {
            let found = segments.find(segment);
            if let Some(file) =
                found.map_err(|cause| DiskError::new(&folder.path, "open its data", cause))?
            {
                let _ = segments.files[segment].set(file);
            }
        }
        Ok(segments)
    }

    /// The ranges of the space that are allocated.
    pub(super) fn allocated(&self) -> impl Iterator<Item = Extent> {
        (0..self.files.len())
            .filter(|&segment| self.files[segment].get().is_some())
            .map(|segment| self.range(segment))
    }

    /// The first segment that is not allocated.
    pub(super) fn next(&self) -> Option<usize> {
        self.files.iter().position(|file| file.get().is_none())
    }

    /// Makes a segment and gives its range; allocated in full, unless it is to be `thin`. One thread at a time.
    pub(super) fn allocate(&self, segment: usize, thin: bool) -> io::Result<Extent> {
        check_may_write();
        let range = self.range(segment);
        self.check_floor(range.len)?;
        let path = self.path(segment);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = self.folder.open(&data_name(segment), options)?;
        let made = if thin {
            file.set_len(range.len)
        } else {
            reserve(&file, range.len)
        };
        if let Err(cause) = made {
            // A part may have been allocated: nothing of it is of use.
            let _ = fs::remove_file(&path);
            return Err(cause);
        }
        let _ = self.files[segment].set(file);
        Ok(range)
    }

    /// Reads the ranges, one after another.
    pub(super) fn read(&self, parts: &[Extent], mut into: &mut [u8]) -> io::Result<()> {
        for (segment, offset, len) in self.pieces(parts) {
            others_may_come();
            let (head, tail) = std::mem::take(&mut into).split_at_mut(len);
            self.file(segment)?.read_exact_at(head, offset)?;
            into = tail;
        }
        Ok(())
    }

    /// Writes the ranges, one after another.
    pub(super) fn write(&self, parts: &[Extent], mut data: &[u8]) -> io::Result<()> {
        check_may_write();
        for (segment, offset, len) in self.pieces(parts) {
            others_may_come();
            let (head, tail) = data.split_at(len);
            self.file(segment)?.write_all_at(head, offset)?;
            data = tail;
        }
        Ok(())
    }

    /// Gives the disk back what whole blocks of a range took, where its file system can do that.
    pub(super) fn punch(&self, range: Extent) {
        check_may_write();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (segment, offset, len) in self.pieces(&[range]) {
            if let Ok(file) = self.file(segment) {
                let _ = retry_on_intr(|| fallocate(file, flags, offset, len as u64));
            }
        }
    }

    /// The ranges cut where files end: segment, offset in its file, length.
    fn pieces(&self, parts: &[Extent]) -> impl Iterator<Item = (usize, u64, usize)> {
        let segment = self.shape.segment;
        parts.iter().flat_map(move |part| {
            let mut rest = *part;
            std::iter::from_fn(move || {
                let within = rest.offset % segment;
                let len = rest.len.min(segment - within);
                let piece = ((rest.offset / segment) as usize, within, len as usize);
                rest = Extent {
                    offset: rest.offset + len,
                    len: rest.len - len,
                };
                (len > 0).then_some(piece)
            })
        })
    }

    /// The file that a range lies in, and where; none where it lies in two.
    pub(super) fn in_file(&self, part: Extent) -> Option<(PathBuf, u64)> {
        let segment = (part.offset / self.shape.segment) as usize;
        let within = part.offset % self.shape.segment;
        (within + part.len <= self.shape.segment).then(|| (self.path(segment), within))
    }

    fn find(&self, segment: usize) -> io::Result<Option<File>> {
        match self.folder.open(
            &data_name(segment),
            OpenOptions::new().read(true).write(true),
        ) {
            // Longer is one that was about to grow.
            Ok(file) => Ok((file.metadata()?.len() >= self.range(segment).len).then_some(file)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    fn range(&self, segment: usize) -> Extent {
        self.shape.range(segment)
    }

    fn path(&self, segment: usize) -> PathBuf {
        self.folder.path.join(data_name(segment))
    }

    fn file(&self, segment: usize) -> io::Result<&File> {
        self.files[segment]
            .get()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether so many bytes more leave free what is to stay free.
    pub(super) fn check_floor(&self, len: u64) -> io::Result<()> {
        let free = free(&self.folder.path)?;
        if free.0 >= len.saturating_add(self.floor.0) {
            return Ok(());
        }
        let floor = self.floor;
        let why = format!(
            "{free} are free on its file system, {len} B more are needed, and {floor} are to stay free"
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, why))
    }
}

/// How many bytes the file system has in all; none where it does not say.
pub(super) fn total(folder: &Path) -> io::Result<Option<Bytes>> {
    let found = statvfs(folder)?;
    Ok(Some(Bytes(found.f_blocks.saturating_mul(found.f_frsize))).filter(|total| total.0 > 0))
}

/// How many bytes are free for us.
pub(super) fn free(folder: &Path) -> io::Result<Bytes> {
    let found = statvfs(folder)?;
    Ok(Bytes(found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Gives the file its length, and blocks where the file system can do that ahead.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(()),
        Err(Errno::NOTSUP | Errno::NOSYS) => file.set_len(len),
        Err(cause) => Err(cause.into()),
    }
}
