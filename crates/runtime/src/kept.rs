//! The memory tier's part of an arena. Trainers get samples in place, and not every library respects that a view is
//! read-only; what they are given must not be a way to change what is kept. So the memory is a file without a name, and
//! what is handed out lies in a mapping of it that cannot be written.
//!
//! Samples come in by a system call: page for page, that takes little more than half as long as to fault in memory of a
//! file and write there (on Linux 6.18 90 us for 110 KB, as long as into private memory, where the other way takes 134).
//! Large samples are written through a second mapping all the same, or each thread would need as much memory again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Samples up to this size are read into a buffer first: small enough to be in the processor's cache when it is copied.
const BUFFER_MAX: usize = 1 << 20;

/// Memory that only loader threads can write.
pub(crate) struct Kept {
    file: File,
    /// What everybody sees.
    seen: MmapRaw,
    /// Where large samples are written.
    written: MmapRaw,
    /// Buffers of small samples that are not in use: as many as were being read at a time.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Kept {
    /// So many bytes; no page of them is taken before it is written.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let file = nameless()?;
        file.set_len(bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
        let mut options = MmapOptions::new();
        let options = options.len(bytes as usize);
        let seen = options.map_raw_read_only(&file)?;
        let written = options.map_raw(&file)?;
        // A child has nothing to write here.
        written.advise(Advice::DontFork)?;
        Ok(Self { file, seen, written, spare: Mutex::default() })
    }

    /// What lies there, for all to see.
    pub(crate) fn address(&self, offset: u64) -> *const u8 {
        self.seen.as_ptr().wrapping_add(offset as usize)
    }

    /// The same place, for who writes it; none where small samples are written by [`Kept::write`], or where there is no
    /// memory.
    pub(crate) fn address_mut(&self, offset: u64, len: usize) -> Option<*mut u8> {
        if len <= BUFFER_MAX {
            return None;
        }
        // A page that cannot be had would end the process when it is written.
        let there = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len as u64);
        there.ok().map(|()| self.written.as_mut_ptr().wrapping_add(offset as usize))
    }

    /// Writes a sample.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// A buffer of at least so many bytes, with whatever is in it.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare().pop().unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        buffer
    }

    /// Takes a buffer back, unless it is too large to lie about.
    pub(crate) fn put_back(&self, buffer: Vec<u8>) {
        if buffer.len() <= BUFFER_MAX {
            self.spare().push(buffer);
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
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
