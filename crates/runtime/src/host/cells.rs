//! Numbers that processes share, each read and written in one piece. One process makes them and can write them; whoever it
//! hands them to can only look. They lie in a sealed file without a name. In schedules and under miri, where there are
//! no files, they lie on the heap.

use std::io;

use crate::sync::atomic::{AtomicU16, AtomicU64};

#[cfg(any(feature = "shuttle", miri))]
use self::heap as backing;
#[cfg(not(any(feature = "shuttle", miri)))]
use self::mapped as backing;

pub(super) use self::backing::{Cells, View};

/// What may lie in memory that others write: any bytes are a value of it.
pub(super) trait Cell: Send + Sync + 'static {
    /// Nothing yet.
    #[cfg_attr(not(any(feature = "shuttle", miri)), expect(dead_code))]
    fn zero() -> Self;
}

impl Cell for AtomicU64 {
    fn zero() -> Self {
        Self::new(0)
    }
}

impl Cell for AtomicU16 {
    fn zero() -> Self {
        Self::new(0)
    }
}

/// A barrier for all that was done before and will be done after.
pub(super) fn barrier() {
    // Schedules are sequentially consistent as they are.
    #[cfg(not(feature = "shuttle"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// What was seen before this was written before what comes after is read.
pub(super) fn acquire() {
    #[cfg(not(feature = "shuttle"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}

#[cfg(not(any(feature = "shuttle", miri)))]
mod mapped {
    use std::fs::File;
    use std::marker::PhantomData;

    use memmap2::{MmapOptions, MmapRaw};
    use rustix::fs::SealFlags;

    use super::{Cell, io};
    use crate::pages::{is_whole, nameless, read_only};

    /// Numbers of this process.
    pub(in super::super) struct Cells<T> {
        file: File,
        memory: MmapRaw,
        len: usize,
        kind: PhantomData<T>,
    }

    impl<T: Cell> Cells<T> {
        /// So many, all zero.
        pub(in super::super) fn new(len: usize) -> io::Result<Self> {
            let file = nameless()?;
            let bytes = len.max(1) * size_of::<T>();
            file.set_len(bytes as u64)?;
            let memory = MmapOptions::new().len(bytes).map_raw(&file)?;
            let fixed = SealFlags::GROW | SealFlags::SHRINK;
            // From now on nobody writes but through this mapping; kernels before 5.1 do not know that seal.
            let sealed = rustix::fs::fcntl_add_seals(
                &file,
                fixed | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
            );
            sealed.or_else(|_| rustix::fs::fcntl_add_seals(&file, fixed | SealFlags::SEAL))?;
            Ok(Self {
                file,
                memory,
                len,
                kind: PhantomData,
            })
        }

        /// What others are given to look at them.
        pub(in super::super) fn shown(&self) -> io::Result<File> {
            read_only(&self.file)
        }

        #[allow(unsafe_code, reason = "processes share it")]
        pub(in super::super) fn at(&self, index: usize) -> &T {
            assert!(index < self.len, "a cell is one of those there are");
            // SAFETY: the cell lies within the mapping, which begins with a page, so that it is aligned; it is atomic, and
            // any bytes are a value of it. The file cannot shrink. The mapping lives as long as `self`.
            unsafe { &*self.memory.as_ptr().cast::<T>().add(index) }
        }
    }

    /// Numbers of another process.
    pub(in super::super) struct View<T> {
        memory: MmapRaw,
        len: usize,
        kind: PhantomData<T>,
    }

    impl<T: Cell> View<T> {
        /// So many, as they were handed over. Refused where they are fewer, or could become fewer.
        pub(in super::super) fn new(file: &File, len: usize) -> io::Result<Self> {
            let bytes = len.max(1) * size_of::<T>();
            if !is_whole(file, bytes as u64)? {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let memory = MmapOptions::new().len(bytes).map_raw_read_only(file)?;
            Ok(Self {
                memory,
                len,
                kind: PhantomData,
            })
        }

        /// For who only loads from it, relaxed: the memory cannot be written.
        #[allow(unsafe_code, reason = "processes share it")]
        pub(in super::super) fn at(&self, index: usize) -> &T {
            assert!(index < self.len, "a cell is one of those there are");
            // SAFETY: as in `Cells::at`. The file has the size, and is sealed against shrinking: both were looked at.
            // Relaxed loads of so small an atomic work on memory that cannot be written.
            unsafe { &*self.memory.as_ptr().cast::<T>().add(index) }
        }
    }
}

#[cfg(any(feature = "shuttle", miri))]
#[cfg_attr(not(test), expect(dead_code, reason = "there are no processes"))]
mod heap {
    use std::fs::File;
    use std::sync::Arc;

    use super::{Cell, io};

    /// Numbers of a test.
    pub(in super::super) struct Cells<T>(Arc<[T]>);

    impl<T: Cell> Cells<T> {
        pub(in super::super) fn new(len: usize) -> io::Result<Self> {
            Ok(Self((0..len).map(|_| T::zero()).collect()))
        }

        /// There is no file to be handed over.
        #[expect(clippy::unused_self)]
        pub(in super::super) fn shown(&self) -> io::Result<File> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn at(&self, index: usize) -> &T {
            &self.0[index]
        }

        /// As another process would see them.
        pub(in super::super) fn view(&self) -> View<T> {
            View(Arc::clone(&self.0))
        }
    }

    /// The same numbers, for who looks.
    pub(in super::super) struct View<T>(Arc<[T]>);

    impl<T: Cell> View<T> {
        pub(in super::super) fn new(_: &File, _: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn at(&self, index: usize) -> &T {
            &self.0[index]
        }
    }
}
