//! What a file is, as far as its metadata tells: enough to notice that it is not what it was.
//!
//! Within a host and mount a file is its size, its times of change and its inode. Later mounts on the same host see the same
//! size and times, other hosts the same size and time of modification; network file systems number inodes as they like. A
//! host is told by its boot, a mount by its device number, which containers see alike. Its name says nothing: each container
//! has another one on the same host, and containers of different hosts may have the same.
//!
//! Stamps of earlier versions had the host's name in what tells it. They are as of another host, and never more than that.
//!
//! A stamp is as fine as the clock of its storage. A file that changed just before it was looked at may change again
//! without a new stamp: such a stamp is not trusted later ([`Stamp::trusted`]). What one call writes gets its time when the
//! call begins: a call of more than 2 s may escape. What is written through a mapping gets its time when the kernel notices,
//! and may escape.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fd::AsFd;
use rustix::fs::{FileType, Stat, fstat, stat};
use rustix::io::retry_on_intr;
use rustix::path::Arg;
use twox_hash::XxHash3_64;

/// No storage in use has a coarser clock than FAT.
const TRUSTED_AFTER_NS: i64 = 2_000_000_000;

/// Two writes within a tick of the kernel's clock may leave the same time: 10 ms where it ticks slowest.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Times that are whole seconds are no accident: some storages count by one or two of them.
const SECOND_NS: i64 = 1_000_000_000;

/// A write leaves its time when it begins, and may go on for as long as a slow disk takes: 10 MB/s.
const WRITTEN_NS_PER_BYTE: u64 = 100;

/// Of the kernel: the same in all containers of a host until it is started anew.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a stamp takes where it is written down.
pub(crate) const STAMP_BYTES: usize = 48;
const NOT_TRUSTED: u64 = 1;
const TRUSTED: u64 = 2;

/// What a file was when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Its size.
    pub size_bytes: u64,
    /// When its content was changed last, in nanoseconds since 1970; whoever may write to it can set this.
    pub mtime_ns: i64,
    /// When anything about it was changed last; nobody can set this.
    pub ctime_ns: i64,
    /// Its number in its file system.
    pub inode: u64,
    /// The host and mount on which inode and time of change mean the same.
    pub mount: u64,
    /// Whether it had rested for so long that every later change shows.
    pub trusted: bool,
}

/// What a file's times of change come to, in few bytes: after a change something else, but for one in four billion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(u32);

impl Times {
    pub(crate) fn new(mtime_ns: i64, ctime_ns: i64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mtime_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&ctime_ns.to_le_bytes());
        Self(XxHash3_64::oneshot(&bytes) as u32)
    }

    /// As they are written down.
    pub(crate) fn to_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// What was written down.
    pub(crate) fn from_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_le_bytes(bytes))
    }
}

impl Stamp {
    /// Of what is at a path, links followed, and which kind of file that is.
    pub fn of_path(path: impl Arg + Copy) -> io::Result<(Self, FileType)> {
        let now_ns = now_ns();
        let found = retry_on_intr(|| stat(path))?;
        Ok((
            Self::new(&found, now_ns),
            FileType::from_raw_mode(found.st_mode),
        ))
    }

    /// Of an open file.
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        let now_ns = now_ns();
        Ok(Self::new(&fstat(file)?, now_ns))
    }

    /// Of an open file that has these times still, which it had when it was seen to have rested: it has rested ever since, so
    /// that no clock is asked. None where it has others.
    pub(crate) fn of_unchanged(file: impl AsFd, times: Times) -> io::Result<Option<Self>> {
        let stamp = Self::of_rested(&fstat(file)?);
        Ok((stamp.times() == times).then_some(stamp))
    }

    /// Whether a file that had this stamp, perhaps on another host or mount, is surely the one that has `now`.
    pub fn still_holds(&self, now: &Self) -> bool {
        let is_alike = self.size_bytes == now.size_bytes && self.mtime_ns == now.mtime_ns;
        // Another mount of the same file system has the same times, and perhaps other inodes. Another file system, to which
        // a link leads now, has not.
        let fits_host = self.ctime_ns == now.ctime_ns || !self.is_of_same_host(now);
        let fits_mount = self.inode == now.inode || self.mount != now.mount;
        self.trusted && is_alike && fits_host && fits_mount
    }

    /// As it is written down; one that never was is all zeros, and reads back as none.
    pub(crate) fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let Self {
            size_bytes,
            mtime_ns,
            ctime_ns,
            inode,
            mount,
            trusted,
        } = self;
        let kind = if trusted { TRUSTED } else { NOT_TRUSTED };
        let words = [
            kind,
            size_bytes,
            mtime_ns.cast_unsigned(),
            ctime_ns.cast_unsigned(),
            inode,
            mount,
        ];
        let mut bytes = [0; STAMP_BYTES];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// What was written down.
    pub(crate) fn from_bytes(bytes: &[u8; STAMP_BYTES]) -> Option<Self> {
        let word = |index: usize| u64::from_le_bytes(bytes.as_chunks().0[index]);
        let trusted = match word(0) {
            TRUSTED => true,
            NOT_TRUSTED => false,
            _ => return None,
        };
        Some(Self {
            size_bytes: word(1),
            mtime_ns: word(2).cast_signed(),
            ctime_ns: word(3).cast_signed(),
            inode: word(4),
            mount: word(5),
            trusted,
        })
    }

    /// Whether it was taken on the same host since the same boot, but in another file system: what is at the path now is
    /// something else, unless it was mounted anew.
    pub(crate) fn is_of_other_mount(&self, now: &Self) -> bool {
        self.mount != now.mount && self.is_of_same_host(now)
    }

    fn is_of_same_host(&self, now: &Self) -> bool {
        self.mount >> 32 == now.mount >> 32
    }

    /// Whether nothing happened to an open file between this look and another.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Self {
            trusted: true,
            ..*self
        } == Self {
            trusted: true,
            ..*other
        }
    }

    /// How long it takes until every change shows: the file may have been changed a moment ago.
    pub(crate) fn settles_in(&self) -> Duration {
        settles_in(self.ctime_ns, self.size_bytes, now_ns())
    }

    /// What its times come to.
    pub(crate) fn times(&self) -> Times {
        Times::new(self.mtime_ns, self.ctime_ns)
    }

    fn new(found: &Stat, taken_ns: i64) -> Self {
        let stamp = Self::of_rested(found);
        Self {
            trusted: is_trusted(stamp.mtime_ns, stamp.ctime_ns, taken_ns),
            ..stamp
        }
    }

    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_wrap,
        reason = "types of fields differ between machines"
    )]
    fn of_rested(found: &Stat) -> Self {
        Self {
            size_bytes: found.st_size as u64,
            mtime_ns: nanoseconds(found.st_mtime as i64, found.st_mtime_nsec as i64),
            ctime_ns: nanoseconds(found.st_ctime as i64, found.st_ctime_nsec as i64),
            inode: found.st_ino as u64,
            mount: mount(found.st_dev as u64),
            trusted: true,
        }
    }
}

fn is_trusted(mtime_ns: i64, ctime_ns: i64, taken_ns: i64) -> bool {
    // A time of modification in the future was set by hand: the next write gives another one.
    had_rested(ctime_ns, taken_ns) && (had_rested(mtime_ns, taken_ns) || mtime_ns > taken_ns)
}

/// Changes within a tick of the storage's clock leave the same time, and so does all of one write. A clock that is far ahead
/// of ours says nothing.
fn settles_in(ctime_ns: i64, size_bytes: u64, now_ns: i64) -> Duration {
    let rest_ns = if ctime_ns % SECOND_NS == 0 {
        TRUSTED_AFTER_NS
    } else {
        let written_ns = size_bytes.saturating_mul(WRITTEN_NS_PER_BYTE);
        i64::try_from(written_ns)
            .unwrap_or(i64::MAX)
            .clamp(TICK.as_nanos() as i64, TRUSTED_AFTER_NS)
    };
    let age_ns = now_ns.saturating_sub(ctime_ns);
    if age_ns <= -rest_ns {
        return Duration::ZERO;
    }
    Duration::from_nanos(rest_ns.saturating_sub(age_ns).max(0).cast_unsigned())
}

/// A time as the system gives it, in nanoseconds since 1970.
pub(crate) fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Whether a file that was changed then had rested, when it was looked at, for so long that every later change shows.
pub(crate) fn had_rested(changed_ns: i64, taken_ns: i64) -> bool {
    taken_ns.saturating_sub(changed_ns) >= TRUSTED_AFTER_NS
}

/// Now, on the clock of the files.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A file system of this host: its boot in the upper half, since device numbers are given out anew after each. Hosts that do
/// not tell their boot count as one: then more is compared than need be, never less.
fn mount(device: u64) -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    let boot = *BOOT.get_or_init(|| {
        let id = std::fs::read(BOOT_ID).unwrap_or_default();
        XxHash3_64::oneshot(&id)
    });
    let device = XxHash3_64::oneshot(&device.to_le_bytes());
    boot << 32 | device >> 32
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEPT: Stamp = Stamp {
        size_bytes: 5,
        mtime_ns: 6,
        ctime_ns: 7,
        inode: 8,
        mount: 9,
        trusted: true,
    };

    #[test]
    fn a_file_is_its_size_times_and_inode_within_a_mount_and_its_size_and_time_elsewhere() {
        let untrusted_now = Stamp {
            trusted: false,
            ..KEPT
        };
        assert!(KEPT.still_holds(&KEPT) && KEPT.still_holds(&untrusted_now));
        let others = [
            Stamp {
                size_bytes: 0,
                ..KEPT
            },
            Stamp {
                mtime_ns: 0,
                ..KEPT
            },
            Stamp {
                ctime_ns: 0,
                ..KEPT
            },
            Stamp { inode: 0, ..KEPT },
        ];
        assert!(others.iter().all(|other| !KEPT.still_holds(other)));
        let later = others.map(|other| KEPT.still_holds(&Stamp { mount: 0, ..other }));
        assert_eq!(later, [false, false, false, true]);
        let elsewhere = others.map(|other| {
            KEPT.still_holds(&Stamp {
                mount: 1 << 32,
                ..other
            })
        });
        assert_eq!(elsewhere, [false, false, true, true]);
    }

    #[test]
    fn a_mount_is_its_device_and_the_boot_of_its_host_and_nothing_else() {
        let boot = XxHash3_64::oneshot(&fs::read(BOOT_ID).unwrap_or_default());
        assert_eq!(mount(5) >> 32, boot & u64::from(u32::MAX));
        assert_ne!(mount(5), mount(6));
        // As earlier versions had it: of no host that is known.
        let named = rustix::system::uname();
        let before = XxHash3_64::oneshot_with_seed(boot, named.nodename().to_bytes());
        let old = Stamp {
            mount: before << 32 | mount(5) & u64::from(u32::MAX),
            ..KEPT
        };
        let now = Stamp {
            mount: mount(5),
            ..KEPT
        };
        assert!(!old.is_of_same_host(&now) && old.still_holds(&now));
        let touched = Stamp { mtime_ns: 0, ..now };
        assert!(!old.still_holds(&touched));
    }

    #[test]
    fn reads_back_as_it_was_written_down() {
        for stamp in [
            KEPT,
            Stamp {
                trusted: false,
                mtime_ns: -1,
                ..KEPT
            },
        ] {
            assert_eq!(Stamp::from_bytes(&stamp.to_bytes()), Some(stamp));
        }
        assert_eq!(Stamp::from_bytes(&[0; STAMP_BYTES]), None);
    }

    #[test]
    fn what_was_not_trusted_when_it_was_taken_never_holds_later() {
        assert!(
            !Stamp {
                trusted: false,
                ..KEPT
            }
            .still_holds(&KEPT)
        );
    }

    #[test]
    fn a_file_that_was_written_just_now_is_not_trusted_whatever_its_time_of_modification_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"12345").unwrap();
        let set = fs::FileTimes::new().set_modified(UNIX_EPOCH);
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(set)
            .unwrap();
        let (stamp, kind) = Stamp::of_path(&path).unwrap();
        assert_eq!(
            (stamp.size_bytes, stamp.mtime_ns, stamp.trusted),
            (5, 0, false)
        );
        assert!(kind.is_file());
        assert!(stamp.is_same(&Stamp::of_file(fs::File::open(&path).unwrap()).unwrap()));
    }

    #[test]
    fn a_file_settles_for_a_tick_of_the_clock_that_it_was_changed_by() {
        const MS: i64 = 1_000_000;
        const NOW_NS: i64 = 1_000 * SECOND_NS + 300 * MS;
        let settles_in_ms = |ctime_ns| settles_in(ctime_ns, 100_000, NOW_NS).as_millis();
        let fine = [1, -1, -4, -10, -11, 9, 10, -2_000].map(|ms| settles_in_ms(NOW_NS + ms * MS));
        assert_eq!(fine, [11, 9, 6, 0, 0, 19, 0, 0]);
        let whole = [1_000, 999, 998, 0, 1_001, 1_002, 1_003];
        let whole = whole.map(|s| settles_in_ms(s * SECOND_NS));
        assert_eq!(whole, [1_700, 700, 0, 0, 2_700, 3_700, 0]);
    }

    #[test]
    fn a_large_file_settles_for_as_long_as_one_write_of_it_may_take() {
        let changed_just_now_ns = 1_000 * SECOND_NS + 1;
        let settles_in_ms = |size_bytes| {
            settles_in(changed_just_now_ns, size_bytes, changed_just_now_ns).as_millis()
        };
        let sizes = [0, 100_000, 1_000_000, 16_000_000, 64_000_000, u64::MAX];
        assert_eq!(sizes.map(settles_in_ms), [10, 10, 100, 1_600, 2_000, 2_000]);
    }

    #[test]
    fn times_come_to_the_same_only_if_both_are_the_same() {
        let times = KEPT.times();
        assert_eq!(times, Times::new(KEPT.mtime_ns, KEPT.ctime_ns));
        assert_eq!(times, Times::from_bytes(times.to_bytes()));
        let others = [
            Stamp {
                mtime_ns: 5,
                ..KEPT
            },
            Stamp {
                ctime_ns: 5,
                ..KEPT
            },
        ];
        assert!(others.iter().all(|other| other.times() != times));
    }

    #[test]
    fn a_file_that_rested_is_trusted() {
        const S: i64 = 1_000_000_000;
        let trusted_at_10 =
            |mtime_s: i64, ctime_s: i64| is_trusted(mtime_s * S, ctime_s * S, 10 * S);
        assert!(trusted_at_10(8, 8) && trusted_at_10(8, 0) && trusted_at_10(100, 8));
        assert!(!trusted_at_10(9, 8) && !trusted_at_10(8, 9) && !trusted_at_10(0, 100));
    }
}
