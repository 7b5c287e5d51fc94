//! Memory in one piece, at an address that stays as long as it lives. There are two kinds:
//!
//! - [`Private`]: of this process alone. A fork copies it page by page, when one of the two writes.
//! - [`Shared`]: a file without a name, which can be handed to other processes. It is sealed: nobody can shrink it under
//!   those who read it, nor make it grow, nor seal it further, so that whoever gets it can rely on its size. It is mapped
//!   twice: what everybody sees cannot be written, and what is written is seen by nobody else.
//!
//! Who may use which range is not decided here. Under miri, which knows no files, [`Pages`] is private and on the heap.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

#[cfg(not(miri))]
type Memory = MmapRaw;
#[cfg(miri)]
type Memory = heap::Heap;

/// Memory of this process alone.
pub(crate) struct Private(Memory);

impl Private {
    /// So many bytes, none of which is taken before it is touched.
    #[cfg(not(miri))]
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self(memmap2::MmapMut::map_anon(bytes)?.into()))
    }

    #[cfg(miri)]
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self(heap::Heap::new(bytes)))
    }

    /// The same on large pages, which save misses where memory is used again and again; a kernel without them is no worse
    /// off than before.
    pub(crate) fn on_large_pages(bytes: usize) -> io::Result<Self> {
        let memory = Self::new(bytes)?;
        #[cfg(not(miri))]
        let _ = memory.0.advise(Advice::HugePage);
        Ok(memory)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// For who has the range that it writes for itself.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Private")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Memory that other processes may read.
pub(crate) struct Shared {
    file: File,
    /// What everybody sees.
    seen: MmapRaw,
    /// Where large samples are written.
    written: MmapRaw,
}

impl Shared {
    fn new(bytes: u64) -> io::Result<Self> {
        let file = nameless()?;
        file.set_len(bytes)?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let mut options = MmapOptions::new();
        let options = options.len(bytes as usize);
        let seen = options.map_raw_read_only(&file)?;
        let written = options.map_raw(&file)?;
        // A child has nothing to write here.
        written.advise(Advice::DontFork)?;
        Ok(Self {
            file,
            seen,
            written,
        })
    }
}

/// Memory of either kind.
pub(crate) enum Pages {
    #[cfg(any(test, miri))]
    Private(Private),
    Shared(Shared),
}

impl Pages {
    /// Memory for kept samples; no page of it is taken before it is written or allocated.
    #[cfg(not(miri))]
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        Shared::new(bytes).map(Self::Shared)
    }

    #[cfg(miri)]
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        Self::private(bytes)
    }

    #[cfg(any(test, miri))]
    pub(crate) fn private(bytes: u64) -> io::Result<Self> {
        Private::new(bytes as usize).map(Self::Private)
    }

    /// What other processes are given to read it.
    pub(crate) fn file(&self) -> io::Result<File> {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Shared(memory) => read_only(&memory.file),
        }
    }

    /// Where everybody sees what is there.
    pub(crate) fn seen(&self) -> *const u8 {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(memory) => memory.as_ptr(),
            Self::Shared(memory) => memory.seen.as_ptr(),
        }
    }

    /// Where it is written; pages must have been allocated before ([`Pages::allocate`]).
    pub(crate) fn written(&self) -> *mut u8 {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(memory) => memory.as_mut_ptr(),
            Self::Shared(memory) => memory.written.as_mut_ptr(),
        }
    }

    /// Whether [`Pages::write`] is better for what is small than to write in place.
    pub(crate) fn are_written_by_calls(&self) -> bool {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(_) => false,
            Self::Shared(_) => true,
        }
    }

    /// Writes a range that the caller has for itself.
    #[cfg_attr(
        any(test, miri),
        allow(
            unsafe_code,
            reason = "threads fill different parts of it at the same time"
        )
    )]
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(memory) => {
                assert!(offset as usize + data.len() <= memory.len());
                // SAFETY: the range lies within the memory, and the caller has it for itself: nobody else has a reference.
                unsafe {
                    let to = memory.as_mut_ptr().add(offset as usize);
                    to.copy_from_nonoverlapping(data.as_ptr(), data.len());
                }
                Ok(())
            }
            Self::Shared(memory) => memory.file.write_all_at(data, offset),
        }
    }

    /// Allocates the pages of a range, where they are not; an error where there is no memory for them. What is there stays.
    pub(crate) fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            #[cfg(any(test, miri))]
            Self::Private(_) => Ok(()),
            Self::Shared(memory) => {
                let allocate =
                    || rustix::fs::fallocate(&memory.file, FallocateFlags::empty(), offset, len);
                Ok(retry_on_intr(allocate)?)
            }
        }
    }
}

/// The same file, for who must not write it.
pub(crate) fn read_only(file: &File) -> io::Result<File> {
    // A descriptor that is duplicated would be open for writing, too.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether a file has at least so many bytes, and always will.
pub(crate) fn is_whole(file: &File, bytes: u64) -> io::Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    Ok(seals.contains(SealFlags::SHRINK) && file.metadata()?.len() >= bytes)
}

/// Memory of another process, which can be read here.
pub(crate) struct Seen(MmapRaw);

impl Seen {
    /// As it was handed over. Refused where it could shrink: who reads it would be ended.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        if !is_whole(file, bytes)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        MmapOptions::new()
            .len(bytes as usize)
            .map_raw_read_only(file)
            .map(Self)
    }

    /// Where a range lies; none where it is not within.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<*const u8> {
        let end = offset.checked_add(len as u64)?;
        let is_within = end <= self.0.len() as u64;
        is_within.then(|| self.0.as_ptr().wrapping_add(offset as usize))
    }
}

/// A file in memory that can be sealed and goes with its last descriptor and mapping.
pub(crate) fn nameless() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create(c"foresee", flags | MemfdFlags::NOEXEC_SEAL);
    // Kernels before 6.3 do not know the flag that later ones may insist on.
    let made = made.or_else(|cause| match cause {
        Errno::INVAL => rustix::fs::memfd_create(c"foresee", flags),
        _ => Err(cause),
    });
    Ok(made?.into())
}

#[cfg(miri)]
mod heap {
    //! What stands in for a mapping under miri.

    use std::cell::UnsafeCell;

    /// Bytes that threads write without knowing of each other.
    pub(super) struct Heap(Box<[UnsafeCell<u8>]>);

    #[allow(unsafe_code, reason = "as a mapping is")]
    // SAFETY: it hands out addresses only; who uses them proves that nobody else uses the same range.
    unsafe impl Sync for Heap {}

    impl Heap {
        pub(super) fn new(bytes: usize) -> Self {
            Self((0..bytes).map(|_| UnsafeCell::new(0)).collect())
        }

        pub(super) fn len(&self) -> usize {
            self.0.len()
        }

        pub(super) fn as_ptr(&self) -> *const u8 {
            self.0.as_ptr().cast()
        }

        pub(super) fn as_mut_ptr(&self) -> *mut u8 {
            UnsafeCell::raw_get(self.0.as_ptr())
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn file(pages: &Pages) -> &File {
        match pages {
            Pages::Shared(memory) => &memory.file,
            Pages::Private(_) => unreachable!("it has a file"),
        }
    }

    #[test]
    fn nobody_can_change_the_size_of_what_others_read() {
        let pages = Pages::new(1 << 16).unwrap();
        let file = file(&pages);
        assert!(file.set_len(1 << 12).is_err());
        assert!(file.set_len(1 << 20).is_err());
        assert!(file.write_all_at(&[1], 1 << 16).is_err());
        assert!(
            rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_err(),
            "nor seal it against who writes"
        );
        assert!(pages.allocate(0, 1 << 16).is_ok());
        assert!(pages.allocate(1 << 16, 1).is_err());
    }

    #[test]
    fn pages_are_taken_when_they_are_allocated_or_written_and_keep_what_is_there() {
        use std::os::unix::fs::MetadataExt;

        let pages = Pages::new(1 << 20).unwrap();
        let taken = || file(&pages).metadata().unwrap().blocks() * 512;
        assert_eq!(taken(), 0);
        pages.write(5000, b"kept").unwrap();
        let written = taken();
        assert!(written > 0);
        pages.allocate(0, 1 << 19).unwrap();
        assert!(taken() >= 1 << 19 && taken() < 1 << 20);
        let mut back = [0; 4];
        file(&pages).read_exact_at(&mut back, 5000).unwrap();
        assert_eq!(&back, b"kept");
    }
}
