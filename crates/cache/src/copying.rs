//! Makes a copy: reads a file from an open descriptor, writes it to the claim, and gives it its name when it is whole and the
//! file is still what it was. Reads are by place: the descriptor's own place is the program's. No more than a piece of the
//! file is in memory.

use std::hash::Hasher;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    Advice, AtFlags, CWD, FlockOperation, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    fadvise, flock, fstat, futimens, ioctl_getflags, ioctl_setflags, mkdirat, openat, readlinkat,
    renameat_with, symlinkat, unlinkat,
};
use rustix::io::{Errno, pread, retry_on_intr, write};
use twox_hash::XxHash3_64;

use crate::claim::{Claim, Claimed};
use crate::key::{Identity, Key, now_ns, path_key};
use crate::look::Look;
use crate::ours::Ours;
use crate::settings::SMALL_BYTES;
use crate::tier::{Kind, NoRoom, Tier};

/// What is read at once: a storage that answers slowly should be asked seldom, and 256 KiB still lie in the cache of a core.
const PIECE_BYTES: usize = 256 << 10;
const FOLDER_MODE: Mode = Mode::RWXU;

/// Memory for pieces, kept from one copy to the next: what is asked for anew comes page by page and cleared, which takes longer
/// than a small file takes to be moved. Nobody waits for it: who finds none free, or has been forked off while it was in
/// use, asks for some of its own.
static PIECES: [Mutex<Vec<u8>>; 8] = [const { Mutex::new(Vec::new()) }; 8];

/// Why there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// No tier has room for it.
    Quota,
    /// File systems would have too little free space.
    Floor,
    /// Too much waits to be written to the disk.
    Busy,
    /// It was changed a moment ago.
    Young,
    /// It changed while it was copied.
    Changed,
    /// It has attributes or an access list that a copy would not have.
    Attributes,
    /// Somebody else copies it and takes too long.
    Claimed,
    /// Something failed.
    Failed,
}

impl From<NoRoom> for Skip {
    fn from(why: NoRoom) -> Self {
        match why {
            NoRoom::Quota => Self::Quota,
            NoRoom::Floor => Self::Floor,
            NoRoom::Busy => Self::Busy,
        }
    }
}

/// Whose word it is that a file did not change while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// What the kernel knows of it. Others may have changed a file on a network meanwhile: that shows to whoever asks the storage, and
    /// nobody may be given this copy who has not asked it since.
    Kernel,
    /// What the storage says when all of it was read.
    Storage,
}

/// What is to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its descriptor, open for reading.
    pub source: BorrowedFd<'a>,
    /// What it was when that was opened.
    pub identity: Identity,
    /// What its copy will be named by.
    pub key: Key,
    /// Whose word it is that it did not change meanwhile.
    pub witness: Witness,
    /// Set when nobody wants it any more; looked at between pieces.
    pub stop: &'a AtomicBool,
}

impl Wanted<'_> {
    /// Whether the file is still what it was.
    fn is_same(&self) -> rustix::io::Result<bool> {
        let now = match self.witness {
            Witness::Kernel => Identity::of(&fstat(self.source)?),
            Witness::Storage => Look::at_open(self.source)?.identity(),
        };
        Ok(now == self.identity)
    }
}

/// For who is never stopped.
pub static GOES_ON: AtomicBool = AtomicBool::new(false);

/// What came of a copy that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// It was made, in this tier.
    Here(usize),
    /// Somebody had made it.
    Before,
    /// Somebody makes it.
    Claimed,
}

/// Copies a file to the fastest tier that has room.
pub fn copy(tiers: &[Tier], wanted: Wanted<'_>) -> Result<Copied, Skip> {
    let began_ns = now_ns();
    let size_bytes = wanted.identity.size_bytes;
    if !wanted.identity.has_rested(began_ns) {
        return Err(Skip::Young);
    }
    let first = tiers.first().ok_or(Skip::Failed)?;
    if size_bytes <= SMALL_BYTES && tiers.iter().any(|tier| tier.has_room(size_bytes)) {
        begin_reading(wanted);
    }
    let Claimed::Ours(claim) = Claim::take(first, wanted.key).map_err(why)? else {
        return Ok(Copied::Claimed);
    };
    // It may have been copied between the look for it and the claim.
    if find(tiers, wanted.key).is_some() {
        return Ok(Copied::Before);
    }
    if has_attributes(wanted.source) {
        return Err(Skip::Attributes);
    }
    let mut last = Skip::Quota;
    for (index, tier) in tiers.iter().enumerate() {
        match tier.reserve(size_bytes, began_ns) {
            Ok(()) => {
                let place = Place {
                    tier,
                    is_first: index == 0,
                };
                return fill(place, claim, wanted, began_ns).map(|()| Copied::Here(index));
            }
            Err(NoRoom::Quota) => {}
            Err(other) => last = other.into(),
        }
    }
    Err(last)
}

/// Has the kernel ask for a file, and does not wait for it: it comes while its copy is made ready. If there will be none, it is
/// not lost: who opened it reads it next.
fn begin_reading(wanted: Wanted<'_>) {
    if let Some(size_bytes) = NonZeroU64::new(wanted.identity.size_bytes) {
        let _ = fadvise(wanted.source, 0, Some(size_bytes), Advice::WillNeed);
    }
}

/// The tier that has a copy.
pub fn find(tiers: &[Tier], key: Key) -> Option<usize> {
    let is_in = |tier: &Tier| {
        let path = tier.path(Kind::File, key);
        rustix::fs::statat(CWD, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    };
    tiers.iter().position(is_in)
}

/// Where a copy goes.
#[derive(Clone, Copy)]
struct Place<'a> {
    tier: &'a Tier,
    is_first: bool,
}

/// Fills room that was reserved, or gives it back.
fn fill(
    place: Place<'_>,
    mut claim: Claim<'_>,
    wanted: Wanted<'_>,
    began_ns: i64,
) -> Result<(), Skip> {
    let ledger = place.tier.ledger();
    let filled = if place.is_first {
        write_copy(place.tier, claim.as_fd(), wanted).inspect(|()| claim.became_copy())
    } else {
        elsewhere(place.tier, wanted)
    };
    match filled {
        Ok(()) => {
            ledger.publish((now_ns() - began_ns).max(0).cast_unsigned());
            Ok(())
        }
        Err(why) => {
            ledger.give_back(wanted.identity.size_bytes);
            Err(why)
        }
    }
}

/// Writes a copy to a tier that the claim is not in.
fn elsewhere(tier: &Tier, wanted: Wanted<'_>) -> Result<(), Skip> {
    let path = tier.path(Kind::Claim, wanted.key);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Who has the claim is alone: what is there is of a process that was killed. It may be read-only.
    let _ = unlinkat(CWD, path.as_c_str(), AtFlags::empty());
    let file = Ours::open(|| openat(CWD, path.as_c_str(), flags, Mode::RUSR)).map_err(failed)?;
    // Who tidies the folder up leaves alone what is locked.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    write_copy(tier, file.as_fd(), wanted).inspect_err(|_| {
        let _ = unlinkat(CWD, path.as_c_str(), AtFlags::empty());
    })
}

/// Writes the bytes, then what they are, and publishes them: a copy never is without its note.
fn write_copy(tier: &Tier, into: BorrowedFd<'_>, wanted: Wanted<'_>) -> Result<(), Skip> {
    // Before the bytes are there, as all that can be done.
    let path = path_of(wanted.source);
    let checksum = pump(wanted, into)?;
    if !wanted.is_same().map_err(failed)? {
        return Err(Skip::Changed);
    }
    // A descriptor of a copy is told from others by it (the library's slots).
    let modified = Timespec {
        tv_sec: wanted.identity.mtime_ns.div_euclid(1_000_000_000),
        tv_nsec: wanted.identity.mtime_ns.rem_euclid(1_000_000_000),
    };
    let times = Timestamps {
        last_access: modified,
        last_modification: modified,
    };
    futimens(into, &times).map_err(failed)?;
    if let Some(path) = path {
        remember(tier, path, wanted, checksum);
    }
    publish(tier, wanted.key).map_err(why)
}

/// Moves exactly as many bytes as the file has; another number means that it changed.
fn pump(wanted: Wanted<'_>, into: BorrowedFd<'_>) -> Result<u64, Skip> {
    let size_bytes = wanted.identity.size_bytes;
    let mut kept = PIECES.iter().find_map(|piece| piece.try_lock().ok());
    let mut own = Vec::new();
    let piece = kept.as_deref_mut().unwrap_or(&mut own);
    let piece_bytes = PIECE_BYTES.min(size_bytes as usize + 1);
    if piece.len() < piece_bytes {
        piece.resize(piece_bytes, 0);
    }
    let piece = &mut piece[..piece_bytes];
    let mut checksum = XxHash3_64::new();
    let mut done_bytes = 0;
    loop {
        if wanted.stop.load(Ordering::Relaxed) {
            return Err(Skip::Failed);
        }
        let got =
            retry_on_intr(|| pread(wanted.source, &mut *piece, done_bytes)).map_err(failed)?;
        if got == 0 {
            break;
        }
        done_bytes += got as u64;
        if done_bytes > size_bytes {
            return Err(Skip::Changed);
        }
        checksum.write(&piece[..got]);
        write_all(into, &piece[..got])?;
        // The end is known; asking for it would cost a read of the source.
        if done_bytes == size_bytes {
            break;
        }
    }
    if done_bytes == size_bytes {
        Ok(checksum.finish())
    } else {
        Err(Skip::Changed)
    }
}

fn write_all(into: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Skip> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| write(into, bytes)).map_err(failed)?;
        if written == 0 {
            return Err(Skip::Failed);
        }
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Gives a whole copy its name, unless something has it.
fn publish(tier: &Tier, key: Key) -> io::Result<()> {
    let claim = tier.path(Kind::Claim, key);
    let file = tier.path(Kind::File, key);
    let rename = |flags| renameat_with(CWD, claim.as_c_str(), CWD, file.as_c_str(), flags);
    match rename(RenameFlags::NOREPLACE) {
        // A file system that cannot do that: the claim is ours, so nothing has the name.
        Err(Errno::INVAL) => Ok(rename(RenameFlags::empty())?),
        other => Ok(other?),
    }
}

/// Writes down what is copied of this path, and removes what was copied of it before. Programs do without it, but the cache would
/// keep copies of what files were, and nobody could tell damaged ones.
fn remember(tier: &Tier, path: Key, wanted: Wanted<'_>, checksum: u64) {
    let name = tier.path(Kind::Name, path);
    let key = String::from_utf8_lossy(&wanted.key.chars()).into_owned();
    let size_bytes = wanted.identity.size_bytes;
    let said = format!("{key}.{size_bytes:x}.{checksum:016x}");
    match symlinkat(said.as_str(), CWD, name.as_c_str()) {
        Err(Errno::EXIST) => {}
        Ok(()) | Err(_) => return,
    }
    let now = Note {
        key: wanted.key,
        size_bytes,
        checksum,
    };
    if let Some(before) = note(name.as_c_str()) {
        // It was copied before, and removed.
        if before == now {
            return;
        }
        if before.key != wanted.key {
            remove(tier, before.key);
        }
    }
    let _ = unlinkat(CWD, name.as_c_str(), AtFlags::empty());
    let _ = symlinkat(said.as_str(), CWD, name.as_c_str());
}

/// The path of an open file, as a key.
pub fn path_of(source: BorrowedFd<'_>) -> Option<Key> {
    let own = format!("/proc/self/fd/{}", source.as_raw_fd());
    let path = readlinkat(CWD, &own, Vec::new()).ok()?;
    Some(path_key(path.as_bytes()))
}

/// Removes what was copied of a file's path when it was another file, such as before it was replaced, or before its storage
/// was mounted anew. A cache that is full would keep that for ever. Says whether there was something.
pub fn remove_old(tiers: &[Tier], path: Key, key: Key) -> bool {
    let mut is_removed = false;
    for tier in tiers {
        let old = note(tier.path(Kind::Name, path).as_c_str());
        if let Some(old) = old.filter(|old| old.key != key) {
            is_removed |= remove(tier, old.key);
        }
    }
    is_removed
}

/// What is written down of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The copy that was made of it last.
    pub key: Key,
    /// Its size.
    pub size_bytes: u64,
    /// Its checksum (XXH3, 64 bits).
    pub checksum: u64,
}

/// Reads what is written down under a name; none where it is nothing of ours.
pub fn note(name: &std::ffi::CStr) -> Option<Note> {
    let said = readlinkat(CWD, name, Vec::new()).ok()?;
    let mut parts = said.as_bytes().split(|byte| *byte == b'.');
    let mut hexadecimal = || {
        let text = std::str::from_utf8(parts.next()?).ok()?;
        Some(text.to_owned())
    };
    let key = Key::parse(hexadecimal()?.as_bytes())?;
    let size_bytes = u64::from_str_radix(&hexadecimal()?, 16).ok()?;
    let checksum = u64::from_str_radix(&hexadecimal()?, 16).ok()?;
    Some(Note {
        key,
        size_bytes,
        checksum,
    })
}

/// Removes a copy from a tier; who has it open can read on.
pub fn remove(tier: &Tier, key: Key) -> bool {
    let path = tier.path(Kind::File, key);
    let found = rustix::fs::statat(CWD, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
    let removed = unlinkat(CWD, path.as_c_str(), AtFlags::empty()).is_ok();
    if let (Ok(found), true) = (found, removed) {
        tier.ledger().release(found.st_size.cast_unsigned());
    }
    removed
}

/// Makes the folders that copies are spread over; says whether there were none before.
pub fn make_folders(path: &std::path::Path) -> io::Result<bool> {
    let files = path.join("files");
    let is_new = make_folder(&files)?;
    let _ = lie_apart(&files);
    for number in 0..=0xff_u8 {
        make_folder(&files.join(format!("{number:02x}")))?;
    }
    make_folder(&path.join("runs"))?;
    Ok(is_new)
}

/// Has the folders in a folder lie in different parts of the disk, where the file system knows how (ext4). It puts a file beside its
/// folder, and passes over the numbers of files that were deleted in the last minutes, one by one: in a part where a thousand
/// were, making a file takes a millisecond.
fn lie_apart(folder: &std::path::Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags, Mode::empty())?;
    let attributes = ioctl_getflags(&folder)?;
    ioctl_setflags(&folder, attributes | IFlags::TOPDIR)
}

fn make_folder(path: &std::path::Path) -> io::Result<bool> {
    match mkdirat(CWD, path, FOLDER_MODE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

/// Whether a file has what a copy would not have and programs may look for: attributes of users, or an access list.
fn has_attributes(source: BorrowedFd<'_>) -> bool {
    let mut names = [0; 4096];
    match rustix::fs::flistxattr(source, &mut names) {
        Ok(len) => names[..len]
            .split(|byte| *byte == 0)
            .any(|name| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")),
        Err(Errno::RANGE) => true,
        Err(_) => false,
    }
}

fn failed(_: Errno) -> Skip {
    Skip::Failed
}

fn why(_: io::Error) -> Skip {
    Skip::Failed
}
