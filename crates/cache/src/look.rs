//! What a look at a file of the source gave, in words: kept for each descriptor of a copy, so that the program sees the file
//! that it opened, and for files that are trusted for a while.
//!
//! Storages on a network let the kernel keep what it knows of a file for a while (NFS for up to a minute), and ask again only when
//! the file is opened. So looks ask for what the storage says now.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Stat, Statx, StatxFlags, StatxTimestamp, fstat, makedev, statat, statx,
};
use rustix::path::Arg;

use crate::key::Identity;

/// How many words a look takes.
pub const LOOK_WORDS: usize = 11;

/// What the kernel said of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The file system it is in.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its kind and permissions.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Who owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
    /// The device that it is, if it is one.
    pub special: u64,
    /// Its size.
    pub size_bytes: u64,
    /// The size of reads that suits it.
    pub block_bytes: u64,
    /// The blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// When it was read.
    pub atime_ns: i64,
    /// When its content was changed.
    pub mtime_ns: i64,
    /// When anything about it was changed.
    pub ctime_ns: i64,
}

impl Look {
    /// What the storage says now of what a path leads to; `follow` says whether links are followed.
    pub fn at(
        folder: BorrowedFd<'_>,
        path: impl Arg + Copy,
        follow: AtFlags,
    ) -> rustix::io::Result<Self> {
        let flags = follow | AtFlags::STATX_FORCE_SYNC;
        match statx(folder, path, flags, StatxFlags::BASIC_STATS) {
            Ok(found) => Ok(Self::of_extended(&found)),
            // A kernel, or a filter of calls, that does not know it.
            Err(_) => statat(folder, path, follow).map(|found| Self::of(&found)),
        }
    }

    /// What the storage says now of an open file.
    pub fn at_open(file: impl AsFd) -> rustix::io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        match statx(&file, c"", flags, StatxFlags::BASIC_STATS) {
            Ok(found) => Ok(Self::of_extended(&found)),
            Err(_) => fstat(&file).map(|found| Self::of(&found)),
        }
    }

    /// What it says of a path that begins at the working folder, or is absolute.
    pub fn at_path(path: impl Arg + Copy) -> rustix::io::Result<Self> {
        Self::at(CWD, path, AtFlags::empty())
    }

    fn of_extended(found: &Statx) -> Self {
        Self {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            mode: found.stx_mode.into(),
            links: found.stx_nlink,
            user: found.stx_uid,
            group: found.stx_gid,
            special: makedev(found.stx_rdev_major, found.stx_rdev_minor),
            size_bytes: found.stx_size,
            block_bytes: found.stx_blksize.into(),
            blocks: found.stx_blocks,
            atime_ns: nanoseconds(&found.stx_atime),
            mtime_ns: nanoseconds(&found.stx_mtime),
            ctime_ns: nanoseconds(&found.stx_ctime),
        }
    }

    /// From what the kernel said.
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_wrap,
        reason = "types of fields differ between machines"
    )]
    pub fn of(found: &Stat) -> Self {
        let identity = Identity::of(found);
        let atime_s = found.st_atime as i64;
        Self {
            device: identity.device,
            inode: identity.inode,
            mode: found.st_mode,
            links: found.st_nlink as u32,
            user: found.st_uid,
            group: found.st_gid,
            special: found.st_rdev as u64,
            size_bytes: identity.size_bytes,
            block_bytes: found.st_blksize as u64,
            blocks: found.st_blocks as u64,
            atime_ns: atime_s
                .saturating_mul(1_000_000_000)
                .saturating_add(found.st_atime_nsec as i64),
            mtime_ns: identity.mtime_ns,
            ctime_ns: identity.ctime_ns,
        }
    }

    /// What tells one content from another.
    pub fn identity(&self) -> Identity {
        Identity {
            device: self.device,
            inode: self.inode,
            size_bytes: self.size_bytes,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
        }
    }

    /// Whether it is a file with content of its own.
    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::RegularFile
    }

    /// As words.
    pub fn to_words(self) -> [u64; LOOK_WORDS] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [
            self.device,
            self.inode,
            pair(self.mode, self.links),
            pair(self.user, self.group),
            self.special,
            self.size_bytes,
            self.block_bytes,
            self.blocks,
            self.atime_ns.cast_unsigned(),
            self.mtime_ns.cast_unsigned(),
            self.ctime_ns.cast_unsigned(),
        ]
    }

    /// From words.
    pub fn from_words(words: [u64; LOOK_WORDS]) -> Self {
        let [
            device,
            inode,
            mode_links,
            user_group,
            special,
            size_bytes,
            block_bytes,
            blocks,
            atime,
            mtime,
            ctime,
        ] = words;
        Self {
            device,
            inode,
            mode: (mode_links >> 32) as u32,
            links: mode_links as u32,
            user: (user_group >> 32) as u32,
            group: user_group as u32,
            special,
            size_bytes,
            block_bytes,
            blocks,
            atime_ns: atime.cast_signed(),
            mtime_ns: mtime.cast_signed(),
            ctime_ns: ctime.cast_signed(),
        }
    }
}

fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_look_see_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"12345").unwrap();
        for path in [file.path(), std::path::Path::new("/dev/null")] {
            let look = Look::of(&rustix::fs::stat(path).unwrap());
            assert_eq!(Look::at_path(path), Ok(look));
            let opened = std::fs::File::open(path).unwrap();
            assert_eq!(Look::at_open(&opened), Ok(look));
        }
        let missing = Look::at_path(c"/no/such/file");
        assert_eq!(missing, Err(rustix::io::Errno::NOENT));
    }

    #[test]
    fn reads_back_from_words_and_tells_files_from_folders() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let look = Look::of(&rustix::fs::stat(file.path()).unwrap());
        assert_eq!(Look::from_words(look.to_words()), look);
        assert!(look.is_file());
        let folder = Look::of(&rustix::fs::stat("/").unwrap());
        assert_eq!(Look::from_words(folder.to_words()), folder);
        assert!(!folder.is_file());
    }
}
