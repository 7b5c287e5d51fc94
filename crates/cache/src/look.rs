//! What a look at a file of the source gave, in words: kept for each descriptor of a copy, so that the program sees the file
//! that it opened, and for files that are trusted for a while.

use rustix::fs::{FileType, Stat};

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

#[cfg(test)]
mod tests {
    use super::*;

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
