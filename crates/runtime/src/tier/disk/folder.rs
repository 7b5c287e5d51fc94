//! The folders of a disk tier, and what makes them ours. The user's folder carries a mark; without it, a folder that is
//! not empty is refused, so that nothing of the user is ever touched. Under it, each dataset and slot has a sub-folder,
//! locked while a process uses it. Only files of the few names below are ever deleted, and only in a sub-folder whose lock
//! is ours.
//!
//! Folders and files that somebody else owns or may write to are refused, unless they are trusted: whoever made them could
//! feed samples. Files are looked at through their descriptor, so it does not matter who can move their folders.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::{DiskError, ForeignFile};
use crate::owner::{self, Foreign};

/// Whoever only looks whether a sub-folder is in use has its lock for less than this.
const LOOKED_AT_MAX: Duration = Duration::from_millis(200);

/// The mark of a user's folder.
pub(super) const MARK: &str = ".foresee";
/// The lock of a sub-folder.
pub(super) const LOCK: &str = "foresee.lock";
/// What is held where.
pub(super) const INDEX: &str = "index";
/// An index that is being written.
pub(super) const NEW_INDEX: &str = "index.new";
/// What the names of data files begin with; their number follows.
pub(super) const DATA: &str = "data-";

const MARK_TEXT: &str = "This folder is a cache of foresee, which reads training data ahead of its use.\n\
    It can be deleted whenever no job uses it: what was in it is read from the dataset again.\n\
    version 1\n";
/// What the line that tells the version begins with; a number follows.
const MARK_VERSION: &str = "version ";

/// The data file of a segment.
pub(super) fn data_name(segment: usize) -> String {
    format!("{DATA}{segment:05}")
}

/// A folder, and whether those who own it or may write to it are trusted.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) trusted: bool,
}

impl Folder {
    /// Opens a file of it as the options say: for its owner only, and never through a link that someone else put there.
    pub(super) fn open(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        // Without waiting: a pipe in the place of a file would wait for somebody at its other end.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let options = options.mode(0o600).custom_flags(flags.bits().cast_signed());
        let file = options.open(self.path.join(name)).map_err(|cause| {
            // The system says "too many levels", which tells nobody that there is a link where none may be.
            if Errno::from_io_error(&cause) == Some(Errno::LOOP) {
                io::Error::other(format!(
                    "{name} is a symbolic link, which foresee never makes"
                ))
            } else {
                cause
            }
        })?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other(format!("{name} is not a file")));
        }
        if let Some(why) = self.objection(&found) {
            return Err(io::Error::other(ForeignFile {
                name: name.to_owned(),
                why,
            }));
        }
        Ok(file)
    }

    /// Refuses a folder that is not ours alone.
    pub(super) fn check(&self) -> Result<(), DiskError> {
        let found = fs::metadata(&self.path)
            .map_err(|cause| DiskError::new(&self.path, "look at it", cause))?;
        match self.objection(&found) {
            Some(why) => Err(DiskError::Foreign {
                path: self.path.clone(),
                why,
            }),
            None => Ok(()),
        }
    }

    fn objection(&self, found: &fs::Metadata) -> Option<Foreign> {
        if self.trusted {
            None
        } else {
            owner::objection(found)
        }
    }
}

/// Makes the user's folder ours, or finds that it is.
pub(super) fn claim(folder: &Folder) -> Result<(), DiskError> {
    let path = &folder.path;
    make(path, true)?;
    folder.check()?;
    if !is_unused(path).map_err(|cause| DiskError::new(path, "list it", cause))? {
        return check_mark(folder);
    }
    write_mark(folder).map_err(|cause| DiskError::new(path, "write to it", cause))?;
    check_mark(folder)
}

/// Finds that a folder is ours, and makes nothing.
pub(super) fn look_at(folder: &Folder) -> Result<(), DiskError> {
    folder.check()?;
    check_mark(folder)
}

/// Makes the sub-folder of a dataset and slot in a folder that is ours.
pub(super) fn enter(folder: &Folder, name: &str) -> Result<Folder, DiskError> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(DiskError::BadName {
            path: folder.path.clone(),
            name: name.to_owned(),
        });
    }
    let path = folder.path.join(name);
    if path.is_symlink() {
        return Err(DiskError::NotAFolder { path });
    }
    make(&path, false)?;
    let entered = Folder {
        path,
        trusted: folder.trusted,
    };
    entered.check()?;
    Ok(entered)
}

/// A sub-folder that is ours alone until this is dropped, or the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    /// The process that has it: a fork of it inherits the file, but must not unlock it.
    holder: u32,
}

impl Lock {
    /// Locks a sub-folder by its lock file, which is made where that is asked for.
    fn new(folder: &Folder, create: bool) -> io::Result<Self> {
        loop {
            let name = folder.path.join(LOCK);
            let mut options = OpenOptions::new();
            let file = folder.open(
                LOCK,
                options
                    .read(true)
                    .write(true)
                    .create(create)
                    .truncate(false),
            )?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let lock = Self {
                file,
                holder: std::process::id(),
            };
            // It may have been removed as stale between opening and locking.
            if lock.is_at(&name) {
                return Ok(lock);
            }
        }
    }

    /// Whether the locked file is the one that has the name now.
    fn is_at(&self, name: &Path) -> bool {
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let named = fs::symlink_metadata(name).ok().map(inode);
        named.is_some() && named == self.file.metadata().ok().map(inode)
    }
}

impl Drop for Lock {
    /// Closing alone would not do: a process that is being forked off at this moment has the file open, too.
    fn drop(&mut self) {
        if self.holder == std::process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Locks a sub-folder, whose lock file is made where that is asked for. Somebody may only be looking whether it is in use:
/// where the process that had it last is gone, that is waited for.
pub(super) fn try_lock(folder: &Folder, create: bool) -> io::Result<Lock> {
    let began = Instant::now();
    loop {
        match Lock::new(folder, create) {
            Err(cause)
                if cause.kind() == io::ErrorKind::WouldBlock
                    && began.elapsed() < LOOKED_AT_MAX
                    && !is_process(&holder(folder)) =>
            {
                thread::sleep(LOOKED_AT_MAX / 100);
            }
            outcome => return outcome,
        }
    }
}

/// Whether such a process lives here. One of another container may, and is not seen.
fn is_process(number: &str) -> bool {
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number && Path::new("/proc").join(number).exists()
}

/// Locks a sub-folder for this process.
pub(super) fn lock(folder: &Folder) -> Result<Lock, DiskError> {
    match try_lock(folder, true) {
        Ok(mut lock) => {
            // The number is for people only: without it the lock holds as well.
            let _ = lock
                .file
                .set_len(0)
                .and_then(|()| writeln!(lock.file, "{}", lock.holder));
            Ok(lock)
        }
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Err(in_use(folder)),
        Err(cause) => Err(DiskError::new(&folder.path, "lock it", cause)),
    }
}

/// Deletes what was kept in a sub-folder that is locked by us; the lock stays.
pub(super) fn clear(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_kept_file) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The names of all that is in a folder, in order; none where it cannot be listed.
pub(super) fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.path).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// A sub-folder that is there, locked; none where it is not, or where somebody has it.
pub(super) fn find(folder: &Folder, name: &str) -> Result<Option<(Folder, Lock)>, DiskError> {
    let path = folder.path.join(name);
    if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
        return Ok(None);
    }
    let found = Folder {
        path,
        trusted: folder.trusted,
    };
    found.check()?;
    let lock = Lock::new(&found, false).ok();
    Ok(lock.map(|lock| (found, lock)))
}

/// What the files that we made in a sub-folder take of the disk.
pub(super) fn disk_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
    // A block is 512 bytes, whatever the file system's are.
    ours.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512))
        .sum()
}

/// When somebody opened a sub-folder last; none where that was not us, or where somebody has it.
pub(super) fn last_use(folder: &Folder, name: &str) -> Option<SystemTime> {
    let (found, _lock) = find(folder, name).ok()??;
    fs::metadata(found.path.join(LOCK)).ok()?.modified().ok()
}

/// Gives a sub-folder that we made and nobody uses another name, which nothing has. Where that cannot be done, it stays.
pub(super) fn rename(folder: &Folder, old: &str, new: &str) {
    let new = folder.path.join(new);
    if check_mark(folder).is_err() || fs::symlink_metadata(&new).is_ok() {
        return;
    }
    if let Ok(Some((found, _lock))) = find(folder, old) {
        let _ = fs::rename(&found.path, new);
    }
}

/// Deletes the sub-folders of `folder` that are meant and in use by nobody; gives their names. What cannot be deleted stays.
pub(super) fn remove_stale(
    folder: &Folder,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<String>, DiskError> {
    check_mark(folder)?;
    let mut stale = names(folder);
    stale.retain(|name| is_meant(name) && remove(folder, name).is_ok());
    Ok(stale)
}

/// Deletes a sub-folder that we made and nobody uses.
pub(super) fn remove(folder: &Folder, name: &str) -> io::Result<()> {
    let stale = Folder {
        path: folder.path.join(name),
        trusted: folder.trusted,
    };
    let path = &stale.path;
    if !fs::symlink_metadata(path)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let _lock = try_lock(&stale, false)?;
    clear(path)?;
    fs::remove_file(path.join(LOCK))?;
    fs::remove_dir(path)
}

/// Whether a file of a sub-folder is one of ours, by its name.
pub(super) fn is_ours(name: &str) -> bool {
    name == LOCK || is_kept_file(name)
}

/// Whether a file of the user's folder is its mark, or one that was not completed.
pub(super) fn is_mark(name: &str) -> bool {
    name == MARK || name.starts_with(".foresee.")
}

fn is_kept_file(name: &str) -> bool {
    let is_data = |name: &str| {
        name.strip_prefix(DATA)
            .is_some_and(|n| n.len() >= 5 && n.bytes().all(|digit| digit.is_ascii_digit()))
    };
    name == INDEX || name == NEW_INDEX || is_data(name)
}

fn make(path: &Path, with_parents: bool) -> Result<(), DiskError> {
    match DirBuilder::new()
        .mode(0o700)
        .recursive(with_parents)
        .create(path)
    {
        Ok(()) => Ok(()),
        Err(_) if path.is_dir() => Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Err(DiskError::NotAFolder {
            path: path.to_owned(),
        }),
        Err(cause) => Err(DiskError::new(path, "create it", cause)),
    }
}

/// Whether nobody has put anything into the folder, nor has a mark been completed there.
fn is_unused(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        // A new file system is empty but for its own folder; a mark of another rank may be half written.
        let is_nothing = name == "lost+found"
            || name
                .to_str()
                .is_some_and(|name| name.starts_with(".foresee."));
        if !is_nothing {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the mark there at once, so that no rank ever sees a part of it.
fn write_mark(folder: &Folder) -> io::Result<()> {
    static MARKS: AtomicU32 = AtomicU32::new(0);
    let number = MARKS.fetch_add(1, Ordering::Relaxed);
    let name = format!("{MARK}.{}.{number}", std::process::id());
    let temporary = folder.path.join(&name);
    let written = folder.open(
        &name,
        OpenOptions::new().write(true).create(true).truncate(true),
    );
    let written = written.and_then(|mut file| file.write_all(MARK_TEXT.as_bytes()));
    written
        .and_then(|()| fs::rename(&temporary, folder.path.join(MARK)))
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
}

fn check_mark(folder: &Folder) -> Result<(), DiskError> {
    let path = &folder.path;
    let bad = |why| DiskError::BadMark {
        path: path.clone(),
        mark: MARK,
        why,
    };
    let kind = match fs::symlink_metadata(path.join(MARK)) {
        Ok(found) => found.file_type(),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Err(DiskError::NotOurs { path: path.clone() });
        }
        Err(cause) => return Err(DiskError::new(path, "look into it", cause)),
    };
    if kind.is_symlink() {
        return Err(bad("is a symbolic link"));
    }
    if !kind.is_file() {
        return Err(bad("is not a file"));
    }
    let mut text = Vec::new();
    let read = folder.open(MARK, OpenOptions::new().read(true));
    let read = read.and_then(|file| file.take(4096).read_to_end(&mut text));
    read.map_err(|cause| DiskError::new(path, "read its mark", cause))?;
    if text == MARK_TEXT.as_bytes() {
        return Ok(());
    }
    match other_version(&text) {
        Some(version) => Err(DiskError::OtherVersion {
            path: path.clone(),
            mark: MARK,
            version,
        }),
        None => Err(bad("is damaged: it is not what foresee writes")),
    }
}

/// The version that a mark tells, where it is one of foresee and not this one's: it begins as all of them do.
fn other_version(text: &[u8]) -> Option<u64> {
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    if lines.next() != MARK_TEXT.lines().next() {
        return None;
    }
    let version = lines.find_map(|line| line.strip_prefix(MARK_VERSION)?.parse().ok())?;
    let is_own = format!("{MARK_VERSION}{version}");
    (!MARK_TEXT.lines().any(|line| line == is_own)).then_some(version)
}

/// The number of the process that has a sub-folder, or had it last.
pub(super) fn holder(folder: &Folder) -> String {
    let mut holder = String::new();
    let read = folder.open(LOCK, OpenOptions::new().read(true));
    let read = read.and_then(|file| file.take(32).read_to_string(&mut holder));
    let is_number = |text: &&str| text.bytes().all(|digit| digit.is_ascii_digit());
    Some(holder.trim())
        .filter(|holder| read.is_ok() && !holder.is_empty())
        .filter(is_number)
        .unwrap_or("unknown")
        .to_owned()
}

fn in_use(folder: &Folder) -> DiskError {
    DiskError::InUse {
        path: folder.path.clone(),
        holder: holder(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(folder: &tempfile::TempDir) -> Folder {
        Folder {
            path: folder.path().to_owned(),
            trusted: false,
        }
    }

    #[test]
    fn a_lock_ends_with_its_holder_though_a_fork_has_the_file_open() {
        let folder = tempfile::TempDir::new().unwrap();
        let first = lock(&ours(&folder)).unwrap();
        let inherited = first.file.try_clone().unwrap();
        assert!(lock(&ours(&folder)).is_err());
        drop(first);
        drop(lock(&ours(&folder)).unwrap());
        drop(inherited);
    }

    #[test]
    fn a_fork_that_ends_does_not_unlock_its_parent() {
        let folder = tempfile::TempDir::new().unwrap();
        let parent = lock(&ours(&folder)).unwrap();
        drop(Lock {
            file: parent.file.try_clone().unwrap(),
            holder: parent.holder + 1,
        });
        assert!(lock(&ours(&folder)).is_err());
    }

    #[test]
    fn a_mark_of_another_version_is_told_from_one_that_is_damaged() {
        let next = MARK_TEXT.replace("version 1", "version 2");
        let with_more = format!("{next}and a line that this version does not know\n");
        for other in [next, with_more] {
            assert_eq!(other_version(other.as_bytes()), Some(2), "{other}");
        }
        let cut_off = &MARK_TEXT[..MARK_TEXT.len() - 4];
        let with_more = format!("{MARK_TEXT}and more\n");
        let damaged = ["", "version 2\n", "xyz", cut_off, &with_more];
        for text in damaged {
            assert_eq!(other_version(text.as_bytes()), None, "{text}");
        }
        assert_eq!(other_version(b"\xff\xfe"), None);
    }

    #[test]
    fn only_names_that_the_tier_gives_are_deleted() {
        assert!(
            [INDEX, NEW_INDEX, "data-00000", "data-123456"]
                .into_iter()
                .all(is_kept_file)
        );
        assert!(
            ![
                LOCK,
                MARK,
                "data-",
                "data-1",
                "data-0000x",
                "data-00000.bak",
                "index2"
            ]
            .into_iter()
            .any(is_kept_file)
        );
    }
}
