//! Cache folders as the command makes them: marked, counted, and tidied where processes were killed or the machine went down.
//! Not for use inside of programs. Who looks after a folder finds the rest in [`crate::keeping`].
//!
//! Only what has the names that copies, notes, claims and runs have is ever deleted, and only under a folder with our mark. A
//! folder that is not empty and has no mark is refused, as is one that others own or may write to: whoever can put
//! a file there decides what programs read.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use twox_hash::XxHash3_64;

use crate::copying;
use crate::keeping::Notes;
use crate::key::Key;
use crate::ledger::{LEDGER_BYTES, Ledger};
use crate::settings::PATH_BYTES_MAX;
use crate::shared;
use crate::tier::{self, Kind};

/// The mark of a cache folder of `foresee run`; that of the loader's disk tiers is another.
pub const MARK: &str = ".foresee-run";
const MARK_TEXT: &str = "This folder is a cache of `foresee run`: copies of files that programs read.\n\
    It can be deleted at any time: what was in it is read from its source again.\n\
    version 2\n";
pub(crate) const LEDGER: &str = "ledger";
const USERS: &str = "users";
/// What was written longer before the machine went down than this is on the disk: kernels write after half a minute, and
/// nothing is copied while much waits to be written.
const WRITTEN_NS: i64 = 300_000_000_000;

/// What is wrong with a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system says no.
    #[error("cache folder {}: {doing}: {cause}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What failed.
        doing: &'static str,
        /// Why.
        cause: io::Error,
    },
    /// There is something in it that we did not put there.
    #[error("cache folder {} is not empty and has no mark of foresee run; name an empty folder, or one that does not exist", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// Its mark is another version's.
    #[error("cache folder {} is of another version of foresee; name another folder, or delete it", path.display())]
    OtherVersion {
        /// The folder.
        path: PathBuf,
    },
    /// Others could put files there.
    #[error("cache folder {} {why}; name a folder that is yours alone (chmod 700)", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Who.
        why: String,
    },
    /// Its path is too long.
    #[error("cache folder {} has a path of more than {PATH_BYTES_MAX} bytes; name a shorter one", path.display())]
    TooLong {
        /// The folder.
        path: PathBuf,
    },
}

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |cause| FolderError::Io { path, doing, cause }
}

/// Makes a folder a cache folder, or finds that it is one; gives its real path.
pub fn prepare(path: &Path) -> Result<PathBuf, FolderError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    if let Err(cause) = made
        && !path.is_dir()
    {
        return Err(io_error(path, "create it")(cause));
    }
    let real = fs::canonicalize(path).map_err(io_error(path, "look at it"))?;
    if real.as_os_str().len() > PATH_BYTES_MAX {
        return Err(FolderError::TooLong { path: real });
    }
    check_owner(&real)?;
    if !is_marked(&real)? {
        mark(&real)?;
    }
    // The last that is made: a folder that has it has all.
    if !real.join(LEDGER).exists() {
        let is_new = copying::make_folders(&real).map_err(io_error(&real, "make folders in it"))?;
        make_ledger(&real, is_new).map_err(io_error(&real, "make its ledger"))?;
    }
    Ok(real)
}

fn check_owner(path: &Path) -> Result<(), FolderError> {
    let found = fs::metadata(path).map_err(io_error(path, "look at it"))?;
    let here = rustix::process::geteuid().as_raw();
    let why = if found.uid() != here {
        format!("belongs to user {}, and this is user {here}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!(
            "can be written by others (mode {:o})",
            found.mode() & 0o7777
        )
    } else {
        return Ok(());
    };
    Err(FolderError::Foreign {
        path: path.to_owned(),
        why,
    })
}

/// Whether the folder has our mark; one that has neither a mark nor anything else is to be marked.
fn is_marked(path: &Path) -> Result<bool, FolderError> {
    match fs::read(path.join(MARK)) {
        Ok(text) if text == MARK_TEXT.as_bytes() => return Ok(true),
        Ok(_) => {
            return Err(FolderError::OtherVersion {
                path: path.to_owned(),
            });
        }
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(io_error(path, "read its mark")(cause)),
    }
    for entry in fs::read_dir(path).map_err(io_error(path, "list it"))? {
        let name = entry.map_err(io_error(path, "list it"))?.file_name();
        let is_nothing = name == "lost+found" || name.as_bytes().starts_with(MARK.as_bytes());
        if !is_nothing {
            return Err(FolderError::NotOurs {
                path: path.to_owned(),
            });
        }
    }
    Ok(false)
}

/// Puts the mark there at once, so that nobody sees a part of it.
fn mark(path: &Path) -> Result<(), FolderError> {
    let own = path.join(format!("{MARK}.{}", std::process::id()));
    fs::write(&own, MARK_TEXT)
        .and_then(|()| fs::rename(&own, path.join(MARK)))
        .map_err(io_error(path, "write to it"))
}

/// Makes the ledger of what is there; in a folder that is new there is nothing, and nobody need look.
fn make_ledger(path: &Path, is_new: bool) -> io::Result<()> {
    let own = path.join(format!("{LEDGER}.{}", std::process::id()));
    let _ = fs::remove_file(&own);
    shared::make(&own, b"", LEDGER_BYTES)?;
    let ledger = Ledger::open(&own)?;
    if is_new {
        ledger.set_boot(boot());
    } else {
        ledger.count_anew(counted(path)?.bytes);
    }
    // Whoever comes second finds the first one's, and all go on with the same.
    match rustix::fs::renameat_with(
        rustix::fs::CWD,
        &own,
        rustix::fs::CWD,
        path.join(LEDGER),
        rustix::fs::RenameFlags::NOREPLACE,
    ) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => fs::remove_file(&own),
        Err(_) => fs::rename(&own, path.join(LEDGER)),
    }
}

/// Whether a folder is one of these.
pub fn is_cache(path: &Path) -> bool {
    path.join(MARK).is_file()
}

/// A folder that is one of these, by its real path. One that others own or may write to is refused unless it is trusted.
pub(crate) fn marked(path: &Path, trusted: bool) -> Result<PathBuf, FolderError> {
    let real = fs::canonicalize(path).map_err(io_error(path, "look at it"))?;
    if !trusted {
        check_owner(&real)?;
    }
    if is_marked(&real)? {
        Ok(real)
    } else {
        Err(FolderError::NotOurs { path: real })
    }
}

/// What is in a cache folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many copies.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they take of the disk.
    pub disk_bytes: u64,
}

impl Counted {
    pub(crate) fn add(&mut self, found: &fs::Metadata) {
        self.copies += 1;
        self.bytes += found.len();
        self.disk_bytes += found.blocks() * 512;
    }
}

/// Counts the copies.
pub(crate) fn counted(path: &Path) -> io::Result<Counted> {
    let mut sum = Counted::default();
    each(path, Kind::File, |_, file| {
        sum.add(&fs::symlink_metadata(file)?);
        Ok(())
    })?;
    Ok(sum)
}

/// Where something of a cache folder is.
pub(crate) fn place(path: &Path, kind: Kind, key: Key) -> PathBuf {
    let name = tier::path_in(path.as_os_str().as_bytes(), kind, key);
    PathBuf::from(OsStr::from_bytes(name.as_c_str().to_bytes()))
}

/// Calls with each copy, note or claim in a cache folder, by its key. What goes away meanwhile is no error.
pub(crate) fn each(
    path: &Path,
    kind: Kind,
    mut call: impl FnMut(Key, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let folders = match fs::read_dir(path.join("files")) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        folders => folders?,
    };
    for part in folders {
        let part = part?;
        // What is no folder is none of ours.
        if !part.file_type()?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(part.path())? {
            let entry = entry?;
            let found = Kind::parse(entry.file_name().as_bytes());
            let Some((_, key)) = found.filter(|(found, _)| *found == kind) else {
                continue;
            };
            match call(key, &entry.path()) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
    }
    Ok(())
}

/// What is left by processes that were killed, or by a machine that went down, is removed: claims, reservations, and copies
/// that may not have reached the disk. For who knows that nobody uses the folder.
fn tidy(path: &Path) -> io::Result<()> {
    let ledger = Ledger::open(path.join(LEDGER))?;
    let boot = boot();
    let has_restarted = ledger.boot() != boot;
    // To look at all that is in a large cache takes a while. A claim for which nothing was reserved yet goes when somebody
    // wants its file.
    if !has_restarted && ledger.under_way() == 0 {
        return Ok(());
    }
    remove_claims(path)?;
    if has_restarted {
        remove_unwritten(path)?;
    }
    ledger.count_anew(counted(path)?.bytes);
    ledger.set_boot(boot);
    Ok(())
}

/// What tells this start of the machine from others.
fn boot() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    XxHash3_64::oneshot(&id)
}

/// Copies get their names before the disk has their bytes. When the machine has gone down since, those that were made last are
/// read and compared; what is not whole is removed.
fn remove_unwritten(path: &Path) -> io::Result<()> {
    let mut copies = Vec::new();
    each(path, Kind::File, |key, file| {
        let found = fs::symlink_metadata(file)?;
        let changed_ns = found.ctime() * 1_000_000_000 + found.ctime_nsec();
        copies.push((changed_ns, key, file.to_owned()));
        Ok(())
    })?;
    let newest_ns = copies.iter().map(|(changed_ns, ..)| *changed_ns).max();
    let Some(newest_ns) = newest_ns else {
        return Ok(());
    };
    let notes = Notes::read(path)?;
    for (changed_ns, key, file) in copies {
        let is_whole = if newest_ns - changed_ns < WRITTEN_NS {
            notes.is_whole(key, &file)?
        } else {
            notes.has_size(key, &file)?
        };
        if !is_whole {
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

/// Says that somebody uses a folder, for as long as it is kept: the copying process, in place of the programs.
pub fn use_tier(path: &Path) -> io::Result<fs::File> {
    let users = users(path)?;
    flock(&users, FlockOperation::NonBlockingLockShared)?;
    Ok(users)
}

/// Tidies a folder, unless somebody uses it.
pub fn tidy_unused(path: &Path) -> io::Result<()> {
    let users = users(path)?;
    if flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok() {
        tidy(path)?;
    }
    Ok(())
}

fn users(path: &Path) -> io::Result<fs::File> {
    fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join(USERS))
}

/// Removes claims that nobody holds.
pub(crate) fn remove_claims(path: &Path) -> io::Result<()> {
    each(path, Kind::Claim, |_, claim| {
        let file = fs::File::open(claim)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_file(claim)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_is_made_marked_and_found_again() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/b");
        let real = prepare(&path).unwrap();
        assert!(is_cache(&real));
        assert_eq!(prepare(&path).unwrap(), real);
        assert_eq!(counted(&real).unwrap(), Counted::default());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("thesis.tex"), b"x").unwrap();
        let refused = prepare(outer.path()).unwrap_err().to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
        let open = tempfile::tempdir().unwrap();
        fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = prepare(open.path()).unwrap_err().to_string();
        assert!(refused.contains("can be written by others"), "{refused}");
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(MARK), b"version 1").unwrap();
        assert!(matches!(
            prepare(other.path()),
            Err(FolderError::OtherVersion { .. })
        ));
    }

    #[test]
    fn a_lost_ledger_is_made_from_what_is_there() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        fs::write(real.join("files/ab").join("ab".repeat(16)), b"12345").unwrap();
        fs::remove_file(real.join(LEDGER)).unwrap();
        prepare(&real).unwrap();
        let ledger = Ledger::open(real.join(LEDGER)).unwrap();
        assert_eq!(ledger.used_bytes(), 5);
    }

    /// A copy with its note, as they are made.
    fn kept(real: &Path, name: u8, bytes: &[u8]) -> PathBuf {
        let key = format!("{name:02x}").repeat(16);
        let file = real.join(format!("files/{name:02x}/{key}"));
        fs::write(&file, bytes).unwrap();
        let said = format!(
            "{key}.{:x}.{:016x}",
            bytes.len(),
            XxHash3_64::oneshot(bytes)
        );
        std::os::unix::fs::symlink(said, real.join(format!("files/{name:02x}/{key}.note")))
            .unwrap();
        file
    }

    #[test]
    fn what_did_not_reach_the_disk_before_the_machine_went_down_is_removed() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        let whole = kept(&real, 1, b"12345");
        let zeros = kept(&real, 2, b"12345");
        let short = kept(&real, 3, b"12345");
        fs::write(&zeros, [0; 5]).unwrap();
        fs::write(&short, b"").unwrap();
        let ledger = Ledger::open(real.join(LEDGER)).unwrap();
        // On the same start of the machine nobody looks.
        ledger.set_boot(boot());
        tidy(&real).unwrap();
        assert!(whole.exists() && zeros.exists() && short.exists());
        ledger.set_boot(boot() ^ 1);
        tidy(&real).unwrap();
        assert!(whole.exists() && !zeros.exists() && !short.exists());
        assert_eq!((ledger.used_bytes(), ledger.boot()), (5, boot()));
    }

    #[test]
    fn a_folder_that_somebody_uses_is_not_tidied() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        let claim = real.join(format!("files/ab/{}.part", "ab".repeat(16)));
        fs::write(&claim, b"half").unwrap();
        let ledger = Ledger::open(real.join(LEDGER)).unwrap();
        assert!(ledger.reserve(4, 4));
        let user = use_tier(&real).unwrap();
        tidy_unused(&real).unwrap();
        assert!(claim.exists());
        drop(user);
        tidy_unused(&real).unwrap();
        assert!(!claim.exists());
        assert_eq!((ledger.used_bytes(), ledger.under_way()), (0, 0));
    }
}
