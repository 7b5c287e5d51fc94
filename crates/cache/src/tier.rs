//! One cache folder as those see it who look for copies and make them: paths of what is in it, its ledger, and its driver,
//! which knows how much may be written there now.
//!
//! In the folder are `files/xx/KEY`, the copies; `files/xx/KEY.part`, what is being copied; `files/xx/KEY.note`, links without a
//! target, by the path of a file, which say which copy was made of it last and what its checksum is; the ledger; `runs/`,
//! a file for each run; and the mark. All that is made for a file is made in the folders `xx`, which lie apart on the disk
//! ([`crate::copying::make_folders`]).

use std::ffi::CStr;
use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::io::{Errno, retry_on_intr};

use crate::key::{KEY_CHARS, Key};
use crate::ledger::Ledger;
use crate::settings::{PATH_BYTES_MAX, TierSettings};

/// The longest path in a cache folder, with the zero at its end.
const NAME_BYTES_MAX: usize = PATH_BYTES_MAX + 64;
/// How long a look at the machine's dirty pages holds: it takes 30 us, and storages write for longer.
const LOOK_HOLDS_NS: i64 = 50_000_000;

/// The kinds of things in a cache folder that keys name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Copies.
    File,
    /// What was copied last of a path.
    Name,
    /// What is being copied.
    Claim,
}

impl Kind {
    const ALL: [Self; 3] = [Self::File, Self::Name, Self::Claim];

    /// What follows the key in a name.
    const fn ending(self) -> &'static [u8] {
        match self {
            Self::File => b"",
            Self::Name => b".note",
            Self::Claim => b".part",
        }
    }

    /// What a name in one of the folders says; none where it is nothing of ours.
    pub fn parse(name: &[u8]) -> Option<(Self, Key)> {
        let (key, ending) = name.split_at_checked(KEY_CHARS)?;
        let kind = Self::ALL.into_iter().find(|kind| kind.ending() == ending)?;
        Some((kind, Key::parse(key)?))
    }
}

/// A path in a cache folder, built without memory of the program's.
#[derive(Debug)]
pub struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl Name {
    fn new(folder: &[u8]) -> Self {
        let mut name = Self {
            bytes: [0; NAME_BYTES_MAX],
            len: 0,
        };
        name.push(folder);
        name
    }

    fn push(&mut self, part: &[u8]) {
        // What is longer than fits is no path of ours: settings are checked. It would be cut off and not be found.
        let room = NAME_BYTES_MAX - 1 - self.len;
        let part = &part[..part.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    /// The path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// What is said of the storage under a tier.
pub trait Driver: Sync {
    /// How much may still be written, the floor included.
    fn free_bytes(&self, folder: &CStr) -> io::Result<u64>;
    /// Whether who writes now would have to wait for earlier writes.
    fn is_busy(&self) -> bool;
}

/// A folder on a disk.
pub struct Folder;

impl Driver for Folder {
    fn free_bytes(&self, folder: &CStr) -> io::Result<u64> {
        let found = statvfs(folder)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn is_busy(&self) -> bool {
        memory::has_many_dirty_pages()
    }
}

/// A folder in memory: what is written there is never written out, but takes memory from all programs.
pub struct MemoryFolder;

impl Driver for MemoryFolder {
    fn free_bytes(&self, folder: &CStr) -> io::Result<u64> {
        let free_bytes = Folder.free_bytes(folder)?;
        Ok(memory::available_bytes().map_or(free_bytes, |available| available.min(free_bytes)))
    }

    fn is_busy(&self) -> bool {
        false
    }
}

/// Why there is no room for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The quota is used up.
    Quota,
    /// The file system would have less than its floor free.
    Floor,
    /// Too much waits to be written out.
    Busy,
}

/// One cache folder.
pub struct Tier {
    settings: TierSettings,
    ledger: Ledger,
    driver: &'static dyn Driver,
}

impl Tier {
    /// Of a folder that is a cache folder.
    pub fn open(settings: TierSettings) -> io::Result<Self> {
        if settings.path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let ledger = Ledger::open(ledger_path(&settings.path).as_c_str())?;
        let driver: &'static dyn Driver = if settings.in_memory {
            &MemoryFolder
        } else {
            &Folder
        };
        Ok(Self {
            settings,
            ledger,
            driver,
        })
    }

    /// What it was set to.
    pub fn settings(&self) -> &TierSettings {
        &self.settings
    }

    /// Its account.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Where something of it is.
    pub fn path(&self, kind: Kind, key: Key) -> Name {
        path_in(&self.settings.path, kind, key)
    }

    /// Opens a copy, if it is there.
    pub fn open_copy(&self, key: Key, flags: OFlags) -> io::Result<rustix::fd::OwnedFd> {
        let path = self.path(Kind::File, key);
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW;
        Ok(retry_on_intr(|| {
            openat(CWD, path.as_c_str(), flags, Mode::empty())
        })?)
    }

    /// Whether a copy of that size would be within the quota.
    pub fn has_room(&self, size_bytes: u64) -> bool {
        self.ledger.has_room(size_bytes, self.settings.quota_bytes)
    }

    /// Takes room for a copy.
    pub fn reserve(&self, size_bytes: u64, now_ns: i64) -> Result<(), NoRoom> {
        if !self.has_room(size_bytes) {
            return Err(NoRoom::Quota);
        }
        let folder = Name::new(&self.settings.path);
        let free_bytes = self.driver.free_bytes(folder.as_c_str()).unwrap_or(0);
        if free_bytes < size_bytes.saturating_add(self.settings.floor_bytes) {
            return Err(NoRoom::Floor);
        }
        if self
            .ledger
            .is_busy(now_ns, LOOK_HOLDS_NS, || self.driver.is_busy())
        {
            return Err(NoRoom::Busy);
        }
        if self.ledger.reserve(size_bytes, self.settings.quota_bytes) {
            Ok(())
        } else {
            Err(NoRoom::Quota)
        }
    }
}

/// Where something of a folder is.
pub(crate) fn path_in(folder: &[u8], kind: Kind, key: Key) -> Name {
    let mut name = Name::new(folder);
    let chars = key.chars();
    name.push(b"/files/");
    name.push(&chars[..2]);
    name.push(b"/");
    name.push(&chars);
    name.push(kind.ending());
    name
}

/// Where the ledger of a folder is.
pub fn ledger_path(folder: &[u8]) -> Name {
    let mut name = Name::new(folder);
    name.push(b"/ledger");
    name
}

/// Where the copying process listens.
pub fn copier_path(folder: &[u8]) -> Name {
    let mut name = Name::new(folder);
    name.push(b"/copier");
    name
}

/// What the kernel says of memory.
mod memory {
    use rustix::fd::OwnedFd;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    /// Where the kernel does not say: its own defaults.
    const BACKGROUND_PERCENT: u64 = 10;
    const LIMIT_PERCENT: u64 = 20;

    /// Writers are made to wait from half way between the two limits on; copies stop at three quarters of that.
    pub(super) fn has_many_dirty_pages() -> bool {
        let Some(found) = read::<4096>(c"/proc/meminfo") else {
            return false;
        };
        let text = found.text();
        let kib = |name: &[u8]| field_kib(text, name).unwrap_or(0);
        let available_kib = kib(b"MemAvailable:");
        if available_kib == 0 {
            return false;
        }
        let limit = |bytes: &core::ffi::CStr, percent: &core::ffi::CStr, or: u64| {
            let bytes_set = number(bytes).filter(|bytes| *bytes > 0);
            bytes_set.map_or_else(
                || available_kib * number(percent).unwrap_or(or) / 100,
                |bytes| bytes >> 10,
            )
        };
        let background_kib = limit(
            c"/proc/sys/vm/dirty_background_bytes",
            c"/proc/sys/vm/dirty_background_ratio",
            BACKGROUND_PERCENT,
        );
        let limit_kib = limit(
            c"/proc/sys/vm/dirty_bytes",
            c"/proc/sys/vm/dirty_ratio",
            LIMIT_PERCENT,
        );
        let throttled_kib = background_kib.midpoint(limit_kib);
        kib(b"Dirty:") + kib(b"Writeback:") > throttled_kib / 4 * 3
    }

    pub(super) fn available_bytes() -> Option<u64> {
        let found = read::<4096>(c"/proc/meminfo")?;
        field_kib(found.text(), b"MemAvailable:").map(|kib| kib << 10)
    }

    pub(super) fn field_kib(text: &[u8], name: &[u8]) -> Option<u64> {
        let line = text
            .split(|byte| *byte == b'\n')
            .find(|line| line.starts_with(name))?;
        digits(&line[name.len()..])
    }

    fn number(path: &core::ffi::CStr) -> Option<u64> {
        digits(read::<32>(path)?.text())
    }

    fn digits(text: &[u8]) -> Option<u64> {
        let text = text.trim_ascii_start();
        let end = text.iter().position(|byte| !byte.is_ascii_digit());
        let text = &text[..end.unwrap_or(text.len())];
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    struct Text<const N: usize> {
        bytes: [u8; N],
        len: usize,
    }

    impl<const N: usize> Text<N> {
        fn text(&self) -> &[u8] {
            &self.bytes[..self.len]
        }
    }

    fn read<const N: usize>(path: &core::ffi::CStr) -> Option<Text<N>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file: OwnedFd = openat(CWD, path, flags, Mode::empty()).ok()?;
        let mut bytes = [0; N];
        let len = rustix::io::read(&file, &mut bytes).ok()?;
        Some(Text { bytes, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::path_key;

    #[test]
    fn paths_are_spread_over_folders_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        crate::shared::make(folder.path().join("ledger"), b"", 4096).unwrap();
        let path = folder.path().to_str().unwrap();
        let tier = Tier::open(TierSettings {
            path: path.as_bytes().to_vec(),
            quota_bytes: 10,
            floor_bytes: 0,
            in_memory: false,
        })
        .unwrap();
        let key = path_key(b"x");
        let chars = String::from_utf8(key.chars().to_vec()).unwrap();
        for (kind, ending) in [
            (Kind::File, ""),
            (Kind::Name, ".note"),
            (Kind::Claim, ".part"),
        ] {
            let shown = tier.path(kind, key).as_c_str().to_str().unwrap().to_owned();
            let folder = format!("{path}/files/{}/", &chars[..2]);
            assert_eq!(shown, format!("{folder}{chars}{ending}"));
            let name = shown.strip_prefix(&folder).unwrap();
            assert_eq!(Kind::parse(name.as_bytes()), Some((kind, key)));
        }
        for name in ["", "note", ".part", &format!("{chars}."), &chars[1..]] {
            assert_eq!(Kind::parse(name.as_bytes()), None);
        }
    }

    #[test]
    fn room_ends_with_the_quota_and_with_the_floor() {
        let folder = tempfile::tempdir().unwrap();
        crate::shared::make(folder.path().join("ledger"), b"", 4096).unwrap();
        let settings = TierSettings {
            path: folder.path().to_str().unwrap().as_bytes().to_vec(),
            quota_bytes: 10,
            floor_bytes: 0,
            in_memory: true,
        };
        let tier = Tier::open(settings.clone()).unwrap();
        assert_eq!(tier.reserve(10, 1), Ok(()));
        assert_eq!(tier.reserve(1, 1), Err(NoRoom::Quota));
        tier.ledger().give_back(10);
        let floored = Tier::open(TierSettings {
            floor_bytes: 1 << 60,
            ..settings
        });
        assert_eq!(floored.unwrap().reserve(1, 1), Err(NoRoom::Floor));
    }

    #[test]
    fn fields_of_the_kernels_text_are_found() {
        let text = b"MemTotal:  5 kB\nDirty:       123 kB\nWriteback:\n";
        assert_eq!(memory::field_kib(text, b"Dirty:"), Some(123));
        assert_eq!(memory::field_kib(text, b"Writeback:"), None);
        assert_eq!(memory::field_kib(text, b"Other:"), None);
        assert!(memory::available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
