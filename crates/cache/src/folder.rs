//! Cache folders as the command sees them: made and marked, counted, checked and emptied. Not for use inside of programs.
//!
//! Only what has the names that copies, notes, claims and runs have is ever deleted, and only under a folder with our mark. A
//! folder that is not empty and has no mark is refused, as is one that others own or may write to: whoever can put
//! a file there decides what programs read.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use std::hash::Hasher;
use twox_hash::XxHash3_64;

use crate::copying::{self, Note};
use crate::key::Key;
use crate::ledger::{LEDGER_BYTES, Ledger};
use crate::settings::PATH_BYTES_MAX;
use crate::shared;

/// The mark of a cache folder of `foresee run`; that of the loader's disk tiers is another.
pub const MARK: &str = ".foresee-run";
const MARK_TEXT: &str = "This folder is a cache of `foresee run`: copies of files that programs read.\n\
    It can be deleted at any time: what was in it is read from its source again.\n\
    version 1\n";
const LEDGER: &str = "ledger";
const PIECE_BYTES: usize = 1 << 20;

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
        copying::make_folders(&real).map_err(io_error(&real, "make folders in it"))?;
        make_ledger(&real).map_err(io_error(&real, "make its ledger"))?;
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

fn make_ledger(path: &Path) -> io::Result<()> {
    let own = path.join(format!("{LEDGER}.{}", std::process::id()));
    let _ = fs::remove_file(&own);
    shared::make(&own, b"", LEDGER_BYTES)?;
    let ledger = Ledger::open(&own)?;
    ledger.count_anew(counted(path)?.bytes);
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

fn check_cache(path: &Path) -> Result<PathBuf, FolderError> {
    let real = fs::canonicalize(path).map_err(io_error(path, "look at it"))?;
    check_owner(&real)?;
    if fs::read(real.join(MARK)).is_ok_and(|text| text == MARK_TEXT.as_bytes()) {
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
}

fn counted(path: &Path) -> io::Result<Counted> {
    let mut sum = Counted::default();
    each_file(&path.join("files"), |_, file| {
        let found = fs::symlink_metadata(file)?;
        sum.copies += 1;
        sum.bytes += found.len();
        Ok(())
    })?;
    Ok(sum)
}

/// Calls with each copy or note, by its key. What goes away meanwhile is no error.
fn each_file(folder: &Path, mut each: impl FnMut(Key, &Path) -> io::Result<()>) -> io::Result<()> {
    let Ok(folders) = fs::read_dir(folder) else {
        return Ok(());
    };
    for part in folders {
        for entry in fs::read_dir(part?.path())? {
            let entry = entry?;
            let Some(key) = Key::parse(entry.file_name().as_bytes()) else {
                continue;
            };
            match each(key, &entry.path()) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
    }
    Ok(())
}

/// What is left by processes that were killed is removed, if nobody else uses the folder now: claims, runs, and
/// reservations. Says how many copies' worth was counted anew.
pub fn tidy(path: &Path) -> io::Result<bool> {
    remove_claims(path)?;
    let ledger = Ledger::open(path.join(LEDGER))?;
    if ledger.under_way() == 0 {
        return Ok(false);
    }
    ledger.count_anew(counted(path)?.bytes);
    Ok(true)
}

/// Removes claims that nobody holds.
fn remove_claims(path: &Path) -> io::Result<()> {
    let Ok(claims) = fs::read_dir(path.join("claims")) else {
        return Ok(());
    };
    for entry in claims {
        let entry = entry?;
        if Key::parse(entry.file_name().as_bytes()).is_none() {
            continue;
        }
        let Ok(file) = fs::File::open(entry.path()) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// How a cache folder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What is in it.
    pub counted: Counted,
    /// What its ledger says that is used, with copies that are being made.
    pub used_bytes: u64,
    /// Copies that are being made.
    pub under_way: u64,
}

/// Says how a cache folder stands.
pub fn status(path: &Path) -> Result<Status, FolderError> {
    let path = &check_cache(path)?;
    let counted = counted(path).map_err(io_error(path, "count its copies"))?;
    let ledger = Ledger::open(path.join(LEDGER)).map_err(io_error(path, "open its ledger"))?;
    Ok(Status {
        counted,
        used_bytes: ledger.used_bytes(),
        under_way: ledger.under_way(),
    })
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Copies whose bytes are those that were copied.
    pub whole: Counted,
    /// Copies that were damaged, and are removed.
    pub damaged: Counted,
    /// Copies of which no checksum is known, as whoever made them was killed at that moment; removed.
    pub unknown: Counted,
}

/// Reads all copies and removes those that are not what was copied.
pub fn verify(path: &Path) -> Result<Verified, FolderError> {
    let path = &check_cache(path)?;
    verified(path).map_err(io_error(path, "read its copies"))
}

fn verified(path: &Path) -> io::Result<Verified> {
    let mut notes: Vec<Note> = Vec::new();
    each_file(&path.join("names"), |_, name| {
        let name = CString::new(name.as_os_str().as_bytes())?;
        notes.extend(copying::note(&name));
        Ok(())
    })?;
    notes.sort_unstable_by_key(|note| note.key);
    let ledger = Ledger::open(path.join(LEDGER))?;
    let mut sum = Verified::default();
    each_file(&path.join("files"), |key, file| {
        let found = notes.binary_search_by_key(&key, |note| note.key);
        let note = found.ok().map(|index| notes[index]);
        let bytes = fs::symlink_metadata(file)?.len();
        let is_whole = match note {
            Some(note) => note.size_bytes == bytes && checksum(file)? == note.checksum,
            None => false,
        };
        let kind = match (is_whole, note) {
            (true, _) => &mut sum.whole,
            (false, Some(_)) => &mut sum.damaged,
            (false, None) => &mut sum.unknown,
        };
        kind.copies += 1;
        kind.bytes += bytes;
        if !is_whole {
            fs::remove_file(file)?;
            ledger.release(bytes);
        }
        Ok(())
    })?;
    Ok(sum)
}

fn checksum(path: &Path) -> io::Result<u64> {
    let mut file = fs::File::open(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut hasher = XxHash3_64::new();
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            got => hasher.write(&piece[..got]),
        }
    }
}

/// Removes all copies; says how many. Programs that have some open can read on.
pub fn clear(path: &Path) -> Result<Counted, FolderError> {
    let path = &check_cache(path)?;
    cleared(path).map_err(io_error(path, "remove its copies"))
}

fn cleared(path: &Path) -> io::Result<Counted> {
    let mut sum = Counted::default();
    let ledger = Ledger::open(path.join(LEDGER))?;
    each_file(&path.join("files"), |_, file| {
        let bytes = fs::symlink_metadata(file)?.len();
        fs::remove_file(file)?;
        ledger.release(bytes);
        sum.copies += 1;
        sum.bytes += bytes;
        Ok(())
    })?;
    each_file(&path.join("names"), |_, name| fs::remove_file(name))?;
    remove_claims(path)?;
    Ok(sum)
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
        assert_eq!(status(&path).unwrap().counted, Counted::default());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("thesis.tex"), b"x").unwrap();
        let refused = prepare(outer.path()).unwrap_err().to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        assert!(clear(outer.path()).is_err() && verify(outer.path()).is_err());
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
        let open = tempfile::tempdir().unwrap();
        fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = prepare(open.path()).unwrap_err().to_string();
        assert!(refused.contains("can be written by others"), "{refused}");
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(MARK), b"version 2").unwrap();
        assert!(matches!(
            prepare(other.path()),
            Err(FolderError::OtherVersion { .. })
        ));
    }

    #[test]
    fn only_names_of_ours_are_deleted() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        let kept = real.join("files/ab/notes.txt");
        fs::write(&kept, b"x").unwrap();
        fs::write(real.join("files/ab").join("ab".repeat(16)), b"12345").unwrap();
        assert_eq!(
            clear(&real).unwrap(),
            Counted {
                copies: 1,
                bytes: 5
            }
        );
        assert!(kept.exists() && is_cache(&real));
    }

    #[test]
    fn a_lost_ledger_is_made_from_what_is_there() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        fs::write(real.join("files/ab").join("ab".repeat(16)), b"12345").unwrap();
        fs::remove_file(real.join(LEDGER)).unwrap();
        prepare(&real).unwrap();
        assert_eq!(status(&real).unwrap().used_bytes, 5);
    }

    #[test]
    fn a_copy_without_a_known_checksum_is_removed_by_a_check() {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        fs::write(real.join("files/ab").join("ab".repeat(16)), b"12345").unwrap();
        let found = verify(&real).unwrap();
        assert_eq!(
            found.unknown,
            Counted {
                copies: 1,
                bytes: 5
            }
        );
        assert_eq!(status(&real).unwrap().counted.copies, 0);
    }
}
