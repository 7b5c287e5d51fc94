//! The folder of saved catalogs: what is in it, who may use it, and how much of it there is.
//!
//! A catalog says which files are trained on, so one that somebody else owns or may write to is not used, nor is anything of
//! a folder of that kind, unless it is trusted. Whenever one is saved, those that were used least recently make way, and
//! what was left half written; only files with names that we give are ever removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use crate::owner;

/// More than anybody trains on in turns.
const CATALOGS_MAX: usize = 64;

/// Some thirty catalogs of a million files each.
const BYTES_MAX: u64 = 2 << 30;

/// Nobody takes that long to write a catalog.
const WRITTEN_AFTER: Duration = Duration::from_secs(3600);

/// A catalog that is used often is not touched each time.
const TOUCH_AFTER: Duration = Duration::from_secs(3600);

const ENDING: &str = "catalog";

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Catalogs {
    pub(super) folder: PathBuf,
    /// Whether others may own it or write to it.
    pub(super) trusted: bool,
}

impl Catalogs {
    /// The file name of what has this key.
    pub(super) fn name(key: u128) -> String {
        format!("{key:032x}.{ENDING}")
    }

    /// Refuses a folder that is not this user's alone; one that is not there is no problem.
    pub(super) fn check(&self) -> io::Result<()> {
        match fs::metadata(&self.folder) {
            Ok(found) => self.accept(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A catalog's bytes. It counts as used.
    pub(super) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        // A pipe in its place must not be waited for.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(self.folder.join(name))?;
        let found = file.metadata()?;
        self.accept(&found)?;
        let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        if found
            .modified()
            .is_ok_and(|time| is_older(time, TOUCH_AFTER))
        {
            // Where that is not possible it may make way too soon, and is listed again.
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(bytes)
    }

    /// Saves a catalog: written beside its place and renamed, so that readers see all of it or nothing.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        self.check()?;
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let beside = self
            .folder
            .join(name)
            .with_extension(format!("{}.{number}.tmp", std::process::id()));
        let written = create(&beside).and_then(|mut file| file.write_all(bytes));
        let written = written.and_then(|()| fs::rename(&beside, self.folder.join(name)));
        if written.is_err() {
            // Nothing more can be done about it.
            let _ = fs::remove_file(&beside);
        }
        written?;
        self.tidy(name);
        Ok(())
    }

    /// Removes a catalog; whether it was there does not matter.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn accept(&self, found: &fs::Metadata) -> io::Result<()> {
        match owner::objection(found).filter(|_| !self.trusted) {
            Some(why) => Err(io::Error::other(format!(
                "{why}; make it yours alone, or set catalog.trust_folder = true"
            ))),
            None => Ok(()),
        }
    }

    /// Removes what is too much or too old, but never `kept`. What cannot be removed stays.
    fn tidy(&self, kept: &str) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut catalogs = Vec::new();
        for entry in entries.flatten() {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            let Ok(found) = entry.metadata() else {
                continue;
            };
            let Ok(used) = found.modified() else { continue };
            if is_unfinished(&name) && is_older(used, WRITTEN_AFTER) {
                let _ = self.remove(&name);
            } else if is_catalog(&name) && name != kept {
                catalogs.push((used, found.len(), name));
            }
        }
        catalogs.sort_unstable_by(|a, b| b.cmp(a));
        let mut bytes = fs::metadata(self.folder.join(kept)).map_or(0, |found| found.len());
        for (place, (_, len, name)) in catalogs.iter().enumerate() {
            bytes = bytes.saturating_add(*len);
            if place + 1 >= CATALOGS_MAX || bytes > BYTES_MAX {
                let _ = self.remove(name);
            }
        }
    }
}

/// A new file for this user alone; whatever has its name is not written to.
fn create(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn is_older(time: SystemTime, age: Duration) -> bool {
    time.elapsed().is_ok_and(|passed| passed > age)
}

fn is_key(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_catalog(name: &str) -> bool {
    name.split_once('.')
        .is_some_and(|(key, ending)| is_key(key) && ending == ENDING)
}

/// Whether it is one that is being written, or was when its process died.
fn is_unfinished(name: &str) -> bool {
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    match name.split('.').collect::<Vec<_>>()[..] {
        [key, process, number, "tmp"] => is_key(key) && is_number(process) && is_number(number),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn catalogs(folder: &tempfile::TempDir) -> Catalogs {
        Catalogs {
            folder: folder.path().join("catalogs"),
            trusted: false,
        }
    }

    /// Says that a catalog was used so many seconds ago.
    fn used(catalogs: &Catalogs, name: &str, ago_s: u64) {
        let file = File::options()
            .write(true)
            .open(catalogs.folder.join(name))
            .unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(ago_s))
            .unwrap();
    }

    fn names(catalogs: &Catalogs) -> Vec<String> {
        let entries = fs::read_dir(&catalogs.folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn those_used_least_recently_make_way() {
        let folder = tempfile::tempdir().unwrap();
        let catalogs = catalogs(&folder);
        for key in 0..CATALOGS_MAX as u128 {
            catalogs.write(&Catalogs::name(key), b"listed").unwrap();
            used(&catalogs, &Catalogs::name(key), 100_000 - key as u64);
        }
        assert_eq!(catalogs.read(&Catalogs::name(0)).unwrap(), b"listed");
        catalogs.write(&Catalogs::name(1000), b"listed").unwrap();
        let left = names(&catalogs);
        assert_eq!(left.len(), CATALOGS_MAX);
        assert!(left.contains(&Catalogs::name(0)), "it was used just now");
        assert!(!left.contains(&Catalogs::name(1)));
    }

    #[test]
    fn those_that_take_too_much_room_make_way() {
        let folder = tempfile::tempdir().unwrap();
        let catalogs = catalogs(&folder);
        for key in 0..3 {
            catalogs.write(&Catalogs::name(key), b"").unwrap();
            File::options()
                .write(true)
                .open(catalogs.folder.join(Catalogs::name(key)))
                .unwrap()
                .set_len(1 << 30)
                .unwrap();
            used(&catalogs, &Catalogs::name(key), 100 - key as u64);
        }
        catalogs.write(&Catalogs::name(3), b"x").unwrap();
        assert_eq!(names(&catalogs), [Catalogs::name(2), Catalogs::name(3)]);
    }

    #[test]
    fn only_what_we_made_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let catalogs = catalogs(&folder);
        let key = Catalogs::name(1);
        let zeros = "0".repeat(32);
        catalogs.write(&key, b"").unwrap();
        let others = [
            "notes.txt".to_owned(),
            format!("{zeros}.1.tmp"),
            format!("{zeros}x.catalog"),
            format!("{zeros}.1.x.tmp"),
        ];
        let old = format!("{zeros}.77.3.tmp");
        let new = format!("{zeros}.77.4.tmp");
        for name in others.iter().chain([&old, &new]) {
            fs::write(catalogs.folder.join(name), "").unwrap();
            used(&catalogs, name, 7200);
        }
        used(&catalogs, &new, 10);
        catalogs.write(&key, b"").unwrap();
        let mut expected: Vec<String> = others.into_iter().chain([key, new]).collect();
        expected.sort();
        assert_eq!(names(&catalogs), expected);
    }

    #[test]
    fn what_others_may_write_is_refused_unless_it_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let catalogs = catalogs(&folder);
        let trusting = Catalogs {
            trusted: true,
            ..catalogs.clone()
        };
        let name = Catalogs::name(1);
        catalogs.write(&name, b"listed").unwrap();
        let refused = |what: &str| {
            let said = catalogs
                .check()
                .and_then(|()| catalogs.read(&name))
                .unwrap_err()
                .to_string();
            assert!(
                said.contains(what) && said.contains("catalog.trust_folder"),
                "{said}"
            );
            assert_eq!(
                trusting
                    .check()
                    .and_then(|()| trusting.read(&name))
                    .unwrap(),
                b"listed"
            );
        };
        let file = catalogs.folder.join(&name);
        fs::set_permissions(&file, PermissionsExt::from_mode(0o660)).unwrap();
        refused("can be written by others (mode 660)");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        fs::set_permissions(&catalogs.folder, PermissionsExt::from_mode(0o777)).unwrap();
        refused("can be written by others (mode 777)");
        assert!(catalogs.write(&name, b"other").is_err());
        fs::set_permissions(&catalogs.folder, PermissionsExt::from_mode(0o700)).unwrap();
        if !rustix::process::geteuid().is_root() {
            // Only root can give files to somebody else.
            return;
        }
        chown(&file, Some(12345), None).unwrap();
        refused("belongs to user 12345, and this is user 0");
        chown(&file, Some(0), None).unwrap();
        chown(&catalogs.folder, Some(12345), None).unwrap();
        refused("belongs to user 12345, and this is user 0");
    }
}
