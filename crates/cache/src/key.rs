//! What a copy is named by: all that tells one content of a file from another, and the source it is of. Paths are no part of
//! it, so links, `..` and working folders cannot lead to a wrong copy, and a file with several names is copied once.

use rustix::fs::Stat;
use twox_hash::{XxHash3_64, XxHash3_128};

/// Two writes within a tick of a storage's clock leave the same times. No clock in use ticks slower than this, but for those
/// that count whole seconds.
const RESTED_NS: i64 = 1_000_000_000;
/// FAT counts by two seconds, `MooseFS` and ext3 by one.
const RESTED_WHOLE_SECONDS_NS: i64 = 2_000_000_000;

/// The number of characters that a key has in a file's name.
pub const KEY_CHARS: usize = 32;

/// What a file was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file system it is in.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its size.
    pub size_bytes: u64,
    /// When its content was changed last; whoever may write to it can set this.
    pub mtime_ns: i64,
    /// When anything about it was changed last.
    pub ctime_ns: i64,
}

impl Identity {
    /// Of what a look at a file gave.
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_wrap,
        reason = "types of fields differ between machines"
    )]
    pub fn of(found: &Stat) -> Self {
        Self {
            device: found.st_dev as u64,
            inode: found.st_ino as u64,
            size_bytes: found.st_size as u64,
            mtime_ns: nanoseconds(found.st_mtime as i64, found.st_mtime_nsec as i64),
            ctime_ns: nanoseconds(found.st_ctime as i64, found.st_ctime_nsec as i64),
        }
    }

    /// Whether it was left alone for so long that every later change shows in its times.
    pub fn has_rested(&self, now_ns: i64) -> bool {
        // A time of modification in the future was set by hand: the next write gives another one.
        let mtime_ns = Some(self.mtime_ns).filter(|mtime_ns| *mtime_ns <= now_ns);
        let newest_ns = mtime_ns.map_or(self.ctime_ns, |mtime_ns| self.ctime_ns.max(mtime_ns));
        let rest_ns = if self.ctime_ns % RESTED_NS == 0 {
            RESTED_WHOLE_SECONDS_NS
        } else {
            RESTED_NS
        };
        now_ns.saturating_sub(newest_ns) >= rest_ns
    }

    /// What the copy of such a file is named by, if it is reached through the source that has `seed`.
    pub fn key(&self, seed: u64) -> Key {
        let words = [
            self.device,
            self.inode,
            self.size_bytes,
            self.mtime_ns.cast_unsigned(),
            self.ctime_ns.cast_unsigned(),
        ];
        let mut bytes = [0; 40];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        Key(XxHash3_128::oneshot_with_seed(seed, &bytes))
    }
}

/// The name of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// As it is in file names.
    pub fn chars(self) -> [u8; KEY_CHARS] {
        let mut chars = [0; KEY_CHARS];
        for (index, char) in chars.iter_mut().enumerate() {
            let nibble = (self.0 >> (124 - 4 * index)) & 0xf;
            *char = b"0123456789abcdef"[nibble as usize];
        }
        chars
    }

    /// What a file's name says; none where it is no key.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let is_key = name.len() == KEY_CHARS
            && name
                .iter()
                .all(|char| char.is_ascii_digit() || (b'a'..=b'f').contains(char));
        let text = std::str::from_utf8(name).ok().filter(|_| is_key)?;
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// As words, the upper half first.
    pub fn to_words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }

    /// From words.
    pub fn from_words([high, low]: [u64; 2]) -> Self {
        Self(u128::from(high) << 64 | u128::from(low))
    }

    /// For tables of keys.
    pub fn low_bits(self) -> u64 {
        self.0 as u64
    }
}

/// What tells the copies of one source from those of another.
pub fn seed_of(real_root: &[u8]) -> u64 {
    XxHash3_64::oneshot(real_root)
}

/// What a path comes to where its copies are looked for by it.
pub fn path_key(path: &[u8]) -> Key {
    Key(XxHash3_128::oneshot(path))
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Now, on the clock of the files.
pub fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    nanoseconds(now.tv_sec, now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity {
        device: 1,
        inode: 2,
        size_bytes: 3,
        mtime_ns: 4,
        ctime_ns: 5,
    };

    #[test]
    fn whatever_differs_gives_another_key() {
        let others = [
            Identity { device: 9, ..FILE },
            Identity { inode: 9, ..FILE },
            Identity {
                size_bytes: 9,
                ..FILE
            },
            Identity {
                mtime_ns: 9,
                ..FILE
            },
            Identity {
                ctime_ns: 9,
                ..FILE
            },
        ];
        assert!(others.iter().all(|other| other.key(7) != FILE.key(7)));
        assert_ne!(FILE.key(7), FILE.key(8));
        assert_eq!(FILE.key(7), FILE.key(7));
    }

    #[test]
    fn a_key_reads_back_from_its_name_and_nothing_else_is_a_key() {
        let key = FILE.key(7);
        assert_eq!(Key::parse(&key.chars()), Some(key));
        let long: &[u8] = &[b'0'; 33];
        for name in [
            b"".as_slice(),
            b"lost+found",
            &[b'G'; 32],
            &[b'+'; 32],
            long,
        ] {
            assert_eq!(Key::parse(name), None);
        }
    }

    #[test]
    fn a_file_has_rested_for_a_second_or_two_where_clocks_are_coarse() {
        const MS: i64 = 1_000_000;
        const NOW_NS: i64 = 100_000 * MS + 7;
        let rested = |mtime_ms: i64, ctime_ms: i64, fraction: i64| {
            let identity = Identity {
                mtime_ns: mtime_ms * MS,
                ctime_ns: ctime_ms * MS + fraction,
                ..FILE
            };
            identity.has_rested(NOW_NS)
        };
        assert!(rested(1, 98_999, 1) && !rested(1, 99_001, 1) && !rested(99_500, 1, 1));
        assert!(!rested(1, 99_000, 0) && rested(1, 98_000, 0));
        assert!(rested(200_000, 1, 1) && !rested(1, 200_000, 1));
    }
}
