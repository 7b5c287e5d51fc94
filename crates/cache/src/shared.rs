//! Memory that processes share through a file: words that each of them changes atomically. The only unsafe code of the crate.
//!
//! Files that are mapped are written in full when they are made ([`make`]): a hole would have to be filled when it is first
//! written to, and on a full disk that ends the process. They are never made shorter, only unlinked, which mappings survive.
#![allow(unsafe_code, reason = "mapping a file; each block says why")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::path::Arg;

/// The size of a word.
pub const WORD_BYTES: u64 = 8;
const PAGE_BYTES: u64 = 4096;

/// Words that are shared.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: what is mapped is only ever seen as atomic words, and stays mapped for as long as this lives, whichever thread has it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the words from a place of a file on, which begins a page.
    pub fn map(file: impl AsFd, from_bytes: u64, words: usize) -> io::Result<Self> {
        let len_bytes = words as u64 * WORD_BYTES;
        let size_bytes = fstat(&file)?.st_size.cast_unsigned();
        let is_whole = from_bytes.is_multiple_of(PAGE_BYTES) && words > 0;
        if !is_whole || from_bytes.saturating_add(len_bytes) > size_bytes {
            return Err(Errno::INVAL.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len_bytes as usize,
                access,
                MapFlags::SHARED,
                &file,
                from_bytes,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { start, words })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped, page-aligned and so long since `map`, until this is dropped; all zeros and everything else is a
        // valid atomic word, and whoever else maps the file changes words atomically, too.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Shared {
    /// A word as its two halves: the kernel waits for changes of four bytes. Who uses a word so uses it in no other way.
    pub fn halves(&self, index: usize) -> &[AtomicU32; 2] {
        let word: *const AtomicU64 = &raw const self.words()[index];
        // SAFETY: a word that is mapped, so long and so aligned, for as long as this lives; its halves are only ever seen as
        // atomic words of their own size, which any bits are.
        unsafe { &*word.cast() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: what `map` mapped, of the same length; nobody can have a reference to words any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * WORD_BYTES as usize) };
    }
}

/// Makes a file of zeros, every block of which is there, behind `head`.
pub fn make(path: impl Arg, head: &[u8], len_bytes: u64) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(rustix::fs::CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    let zeros = [0; 1 << 14];
    let mut done_bytes = write_at(&file, head, 0)?;
    while done_bytes < len_bytes {
        let next_bytes = (len_bytes - done_bytes).min(zeros.len() as u64);
        done_bytes += write_at(&file, &zeros[..next_bytes as usize], done_bytes)?;
    }
    Ok(())
}

fn write_at(file: impl AsFd, bytes: &[u8], from: u64) -> io::Result<u64> {
    let mut done = 0;
    while done < bytes.len() {
        let at = from + done as u64;
        let written = retry_on_intr(|| rustix::io::pwrite(&file, &bytes[done..], at))?;
        if written == 0 {
            return Err(Errno::NOSPC.into());
        }
        done += written;
    }
    Ok(done as u64)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_the_same_words_also_when_its_name_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        make(&path, b"", 8192).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let one = Shared::map(&file, 4096, 2).unwrap();
        let other = Shared::map(&file, 4096, 512).unwrap();
        drop(file);
        folder.close().unwrap();
        one.words()[1].store(7, Relaxed);
        assert_eq!(other.words()[1].load(Relaxed), 7);
        assert_eq!(other.words()[511].load(Relaxed), 0);
    }

    #[test]
    fn what_is_not_in_the_file_is_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        make(&path, b"head", 4096).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for (from, words) in [(0, 513), (4096, 1), (8, 1), (0, 0)] {
            assert!(Shared::map(&file, from, words).is_err());
        }
    }
}
