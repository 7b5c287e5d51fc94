//! A cache folder as whoever looks after a machine sees it: what lies in it, whether that is what was copied, and emptying
//! it. Not for use inside of programs.
//!
//! Copies can go at any time: who has one open reads on, and others read the source. So nothing here waits for programs or keeps
//! them out, and what is damaged is removed, as programs compare nothing. What we did not make is named and never touched.

use std::ffi::{CString, OsStr};
use std::fs;
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::asking;
use crate::copying::{self, Note};
use crate::folder::{self, Counted, FolderError, LEDGER, MARK};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::tier::Kind;

const PIECE_BYTES: usize = 1 << 20;
/// What we make at the top of a folder. The mark and the ledger get their names when they are whole, and end with the number
/// of a process until then.
const OURS: [&str; 7] = [MARK, LEDGER, "files", "runs", "gate", "users", "copier"];
const NUMBERED: [&str; 3] = [MARK, LEDGER, "copier"];

/// What was written down of all copies, by their keys.
pub(crate) struct Notes(Vec<Note>);

impl Notes {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut notes = Vec::new();
        folder::each(path, Kind::Name, |_, name| {
            let name = CString::new(name.as_os_str().as_bytes())?;
            notes.extend(copying::note(&name));
            Ok(())
        })?;
        notes.sort_unstable_by_key(|note: &Note| note.key);
        Ok(Self(notes))
    }

    fn of(&self, key: Key) -> Option<Note> {
        let found = self.0.binary_search_by_key(&key, |note| note.key);
        found.ok().map(|index| self.0[index])
    }

    /// Whether a copy is as long as it was.
    pub(crate) fn has_size(&self, key: Key, file: &Path) -> io::Result<bool> {
        let bytes = fs::symlink_metadata(file)?.len();
        Ok(self.of(key).is_some_and(|note| note.size_bytes == bytes))
    }

    /// Whether a copy is what was copied. One of which nothing is known is not.
    pub(crate) fn is_whole(&self, key: Key, file: &Path) -> io::Result<bool> {
        let Some(note) = self.of(key) else {
            return Ok(false);
        };
        Ok(self.has_size(key, file)? && checksum(file)? == note.checksum)
    }
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

/// How a folder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What is in it.
    pub counted: Counted,
    /// What its ledger says that is used, with copies that are being made.
    pub used_bytes: u64,
    /// The copying process, where a run uses the folder first of all.
    pub copier: Option<u32>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// All copies that were read.
    pub read: Counted,
    /// The names of those that were not what was copied; they are gone.
    pub removed: Vec<String>,
}

/// A cache folder.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
}

impl Keeper {
    /// Of a folder with our mark. One that others own or may write to is refused unless it is trusted.
    pub fn find(path: &Path, trusted: bool) -> Result<Self, FolderError> {
        let path = folder::marked(path, trusted)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says how it stands.
    pub fn status(&self) -> io::Result<Status> {
        let counted = folder::counted(&self.path)?;
        Ok(Status {
            counted,
            used_bytes: self.ledger()?.used_bytes(),
            copier: self.copier(),
        })
    }

    fn ledger(&self) -> io::Result<Ledger> {
        Ledger::open(self.path.join(LEDGER))
    }

    /// A copying process hears at the socket; its number is beside it.
    fn copier(&self) -> Option<u32> {
        if !asking::is_heard(self.path.as_os_str().as_bytes()) {
            return None;
        }
        let said = fs::read_to_string(self.path.join("copier.pid")).ok()?;
        said.trim().parse().ok()
    }

    /// Reads all copies and removes those that are not what was copied.
    pub fn verify(&self) -> io::Result<Verified> {
        let ledger = self.ledger()?;
        let mut copies = Vec::new();
        folder::each(&self.path, Kind::File, |key, file| {
            copies.push((key, file.to_owned(), fs::symlink_metadata(file)?.ino()));
            Ok(())
        })?;
        // After the copies, each of which had its note before its name.
        let notes = Notes::read(&self.path)?;
        let mut found = Verified::default();
        for (key, file, inode) in copies {
            // What is gone meanwhile is no error, nor what was made anew: its note may be, too.
            let Ok(about) = fs::symlink_metadata(&file) else {
                continue;
            };
            if about.ino() != inode {
                continue;
            }
            let is_whole = match notes.is_whole(key, &file) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            found.read.add(&about);
            if !is_whole {
                fs::remove_file(file)?;
                ledger.release(about.len());
                let name = String::from_utf8_lossy(&key.chars()).into_owned();
                found.removed.push(name);
            }
        }
        Ok(found)
    }

    /// Removes all copies; says what they were. Programs that have some open read on.
    pub fn clear(&self) -> io::Result<Counted> {
        let ledger = self.ledger()?;
        let mut sum = Counted::default();
        folder::each(&self.path, Kind::File, |_, file| {
            let found = fs::symlink_metadata(file)?;
            fs::remove_file(file)?;
            ledger.release(found.len());
            sum.add(&found);
            Ok(())
        })?;
        folder::each(&self.path, Kind::Name, |_, name| self.remove_note(name))?;
        folder::remove_claims(&self.path)?;
        Ok(sum)
    }

    /// Removes a note, unless its copy is being made, or was made a moment ago: that would be a copy of which nothing is known.
    fn remove_note(&self, name: &Path) -> io::Result<()> {
        let note = CString::new(name.as_os_str().as_bytes())?;
        let is_there = |kind, key| folder::place(&self.path, kind, key).exists();
        // The claim first: it becomes the copy.
        let is_wanted = copying::note(&note)
            .is_some_and(|note| is_there(Kind::Claim, note.key) || is_there(Kind::File, note.key));
        if is_wanted {
            return Ok(());
        }
        fs::remove_file(name)
    }

    /// What lies there that we did not make, as paths below the folder.
    pub fn foreign(&self) -> io::Result<Vec<String>> {
        let mut foreign = self.foreign_in("", is_ours)?;
        for part in names(&self.path.join("files"))? {
            let below = format!("files/{}", part.to_string_lossy());
            if self.path.join(&below).is_dir() {
                foreign.extend(self.foreign_in(&below, is_named_by_key)?);
            } else {
                foreign.push(below);
            }
        }
        foreign.sort_unstable();
        Ok(foreign)
    }

    fn foreign_in(
        &self,
        folder: &str,
        is_ours: impl Fn(&OsStr) -> bool,
    ) -> io::Result<Vec<String>> {
        let all = names(&self.path.join(folder))?;
        let foreign = all.iter().filter(|name| !is_ours(name));
        let below = |name: &OsStr| Path::new(folder).join(name).display().to_string();
        Ok(foreign.map(|name| below(name)).collect())
    }
}

fn is_named_by_key(name: &OsStr) -> bool {
    Kind::parse(name.as_bytes()).is_some()
}

fn is_ours(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let is_numbered = || {
        let stem = name.rsplit_once('.').map(|(stem, _)| stem);
        stem.is_some_and(|stem| NUMBERED.contains(&stem))
    };
    OURS.contains(&name) || name == "lost+found" || is_numbered()
}

/// The names in a folder; none where it is gone.
fn names(folder: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<_>>(),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::prepare;

    fn filled() -> (tempfile::TempDir, Keeper) {
        let outer = tempfile::tempdir().unwrap();
        let real = prepare(&outer.path().join("c")).unwrap();
        fs::write(real.join("files/ab").join("ab".repeat(16)), b"12345").unwrap();
        (outer, Keeper::find(&real, false).unwrap())
    }

    #[test]
    fn only_names_of_ours_are_deleted_and_others_are_named() {
        let (_outer, keeper) = filled();
        assert_eq!(keeper.foreign().unwrap(), [""; 0]);
        for name in [
            "files/ab/notes.txt",
            "thesis.tex",
            "files/photo",
            "ledger.x",
        ] {
            fs::write(keeper.path().join(name), b"x").unwrap();
        }
        let foreign = ["files/ab/notes.txt", "files/photo", "thesis.tex"];
        assert_eq!(keeper.foreign().unwrap(), foreign);
        let cleared = keeper.clear().unwrap();
        assert_eq!((cleared.copies, cleared.bytes), (1, 5));
        assert_eq!(keeper.foreign().unwrap(), foreign);
        assert_eq!(keeper.status().unwrap().counted, Counted::default());
    }

    #[test]
    fn a_copy_without_a_known_checksum_is_removed_by_a_check() {
        let (_outer, keeper) = filled();
        let found = keeper.verify().unwrap();
        assert_eq!(
            (found.read.copies, found.removed),
            (1, vec!["ab".repeat(16)])
        );
        assert_eq!(keeper.status().unwrap().counted.copies, 0);
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("thesis.tex"), b"x").unwrap();
        assert!(Keeper::find(outer.path(), true).is_err());
    }
}
