//! Whether a path is in a source. By its text, with the names that `foresee run` was given and with the real ones; the text of a
//! path with links and `..` may mislead, but only as to what is cached: which copy is right is the kernel's word (`opening`).
//!
//! What is not in a source is most of what programs open, so that is decided without memory, locks or system calls.
//! Relative paths begin at a folder, whose relation to the sources is remembered: for the working folder here, for
//! open folders with their descriptors ([`crate::slots`]).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use foresee_cache::key;
use foresee_cache::settings::Settings;

/// The longest path that the kernel takes.
const PATH_BYTES_MAX: usize = 4096;

/// A source by one of its names.
#[derive(Debug)]
struct Prefix {
    path: Vec<u8>,
    seed: u64,
}

/// Where a file or folder is, as seen from the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// In a source, or the source itself.
    Inside {
        /// Which.
        prefix: u8,
    },
    /// A folder that a source is in.
    Above {
        /// Which.
        prefix: u8,
        /// How much of the source's path is the folder's.
        len: u16,
    },
    /// Neither.
    Outside,
}

const UNKNOWN: u32 = 0;
const INSIDE: u32 = 1;
const ABOVE: u32 = 2;
const OUTSIDE: u32 = 3;

impl Relation {
    /// As a word that is not zero.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            Self::Inside { prefix } => INSIDE | u32::from(prefix) << 8,
            Self::Above { prefix, len } => ABOVE | u32::from(prefix) << 8 | u32::from(len) << 16,
            Self::Outside => OUTSIDE,
        }
    }

    /// From a word; none where it is zero.
    pub(crate) fn from_word(word: u32) -> Option<Self> {
        let prefix = (word >> 8) as u8;
        match word & 0xff {
            INSIDE => Some(Self::Inside { prefix }),
            ABOVE => Some(Self::Above {
                prefix,
                len: (word >> 16) as u16,
            }),
            OUTSIDE => Some(Self::Outside),
            _ => None,
        }
    }
}

/// The sources of a run.
#[derive(Debug)]
pub(crate) struct Coverage {
    prefixes: Vec<Prefix>,
    working: AtomicU32,
}

impl Coverage {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut prefixes = Vec::new();
        for root in &settings.roots {
            let seed = key::seed_of(&root.real);
            prefixes.push(Prefix {
                path: root.named.clone(),
                seed,
            });
            if root.real != root.named {
                prefixes.push(Prefix {
                    path: root.real.clone(),
                    seed,
                });
            }
        }
        Self {
            prefixes,
            working: AtomicU32::new(UNKNOWN),
        }
    }

    /// What copies of a source are told by.
    pub(crate) fn seed(&self, prefix: u8) -> u64 {
        self.prefixes
            .get(usize::from(prefix))
            .map_or(0, |prefix| prefix.seed)
    }

    /// The working folder changed.
    pub(crate) fn forget_working(&self) {
        self.working.store(UNKNOWN, Release);
    }

    /// Where an absolute path leads.
    pub(crate) fn of_absolute(&self, path: &[u8]) -> Relation {
        if is_plain(path) {
            return self.of_plain(path);
        }
        let mut buffer = [0; PATH_BYTES_MAX];
        normalise(&mut buffer, &[path]).map_or(Relation::Outside, |path| self.of_plain(path))
    }

    /// Where a relative path leads from a folder; `walk` gives the folder's own path where its relation does not suffice.
    pub(crate) fn of_relative(
        &self,
        folder: Relation,
        path: &[u8],
        walk: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Relation {
        if is_plain(path) && !path.starts_with(b"..") && !path.starts_with(b"./") && path != b"." {
            return match folder {
                Relation::Inside { .. } => folder,
                Relation::Above { prefix, len } => self.below(prefix, len, path),
                Relation::Outside => Relation::Outside,
            };
        }
        let mut own = [0; PATH_BYTES_MAX];
        let Some(len) = walk(&mut own) else {
            return Relation::Outside;
        };
        let mut buffer = [0; PATH_BYTES_MAX];
        normalise(&mut buffer, &[&own[..len], path])
            .map_or(Relation::Outside, |path| self.of_plain(path))
    }

    /// The working folder's relation; `walk` gives its path.
    pub(crate) fn of_working(&self, walk: impl FnOnce(&mut [u8]) -> Option<usize>) -> Relation {
        if let Some(known) = Relation::from_word(self.working.load(Acquire)) {
            return known;
        }
        let mut own = [0; PATH_BYTES_MAX];
        let found = walk(&mut own).map_or(Relation::Outside, |len| self.of_plain(&own[..len]));
        self.working.store(found.to_word(), Release);
        found
    }

    fn of_plain(&self, path: &[u8]) -> Relation {
        for (index, prefix) in self.prefixes.iter().enumerate() {
            let index = index as u8;
            if is_below(path, &prefix.path) {
                return Relation::Inside { prefix: index };
            }
            if is_below(&prefix.path, path) {
                let is_top = path == b"/";
                let len = if is_top { 0 } else { path.len() as u16 };
                return Relation::Above { prefix: index, len };
            }
        }
        Relation::Outside
    }

    /// Where a plain relative path leads from a folder above a source.
    fn below(&self, prefix: u8, len: u16, path: &[u8]) -> Relation {
        let rest = self
            .prefixes
            .get(usize::from(prefix))
            .and_then(|prefix| prefix.path.get(usize::from(len) + 1..));
        let Some(rest) = rest else {
            return Relation::Outside;
        };
        if is_below(path, rest) {
            Relation::Inside { prefix }
        } else if is_below(rest, path) {
            Relation::Above {
                prefix,
                len: len + 1 + path.len() as u16,
            }
        } else {
            Relation::Outside
        }
    }
}

/// Whether a path is a folder or in it.
fn is_below(path: &[u8], folder: &[u8]) -> bool {
    if folder == b"/" {
        return true;
    }
    match path.strip_prefix(folder) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

/// Whether a path has no `//`, `/.` or `/..` in it: names that begin with a dot are looked at more closely, too.
fn is_plain(path: &[u8]) -> bool {
    let mut was_slash = false;
    for byte in path {
        if was_slash && matches!(byte, b'/' | b'.') {
            return false;
        }
        was_slash = *byte == b'/';
    }
    !was_slash || path.len() == 1
}

/// Puts paths together, the first of which is absolute, without `.`, `..`, doubled slashes and one at the end.
fn normalise<'a>(buffer: &'a mut [u8; PATH_BYTES_MAX], paths: &[&[u8]]) -> Option<&'a [u8]> {
    let mut len = 0;
    let parts = paths
        .iter()
        .flat_map(|path| path.split(|byte| *byte == b'/'));
    for part in parts {
        match part {
            b"" | b"." => {}
            b".." => {
                let cut = buffer[..len].iter().rposition(|byte| *byte == b'/');
                len = cut.unwrap_or(0);
            }
            name => {
                let end = len + 1 + name.len();
                if end > PATH_BYTES_MAX {
                    return None;
                }
                buffer[len] = b'/';
                buffer[len + 1..end].copy_from_slice(name);
                len = end;
            }
        }
    }
    if len == 0 {
        buffer[0] = b'/';
        len = 1;
    }
    Some(&buffer[..len])
}

/// The key of an absolute path by which its file is trusted for a while; none where its text may mislead.
pub(crate) fn trusted_key(path: &[u8]) -> Option<key::Key> {
    (path.first() == Some(&b'/') && is_plain(path)).then(|| key::path_key(path))
}

#[cfg(test)]
mod tests {
    use foresee_cache::settings::Root;

    use super::*;

    fn coverage() -> Coverage {
        Coverage::new(&Settings {
            roots: vec![Root {
                named: b"/sets/data".to_vec(),
                real: b"/mnt/disk/set".to_vec(),
            }],
            ..Settings::default()
        })
    }

    const NAMED: Relation = Relation::Inside { prefix: 0 };
    const REAL: Relation = Relation::Inside { prefix: 1 };

    fn nobody(_: &mut [u8]) -> Option<usize> {
        panic!("nobody should have to walk")
    }

    #[test]
    fn a_source_is_covered_by_both_of_its_names_however_they_are_written() {
        let coverage = coverage();
        for path in [
            "/sets/data/a/b",
            "/sets/data",
            "/sets//data/x",
            "/sets/./data/x",
            "//sets/data/.hidden",
            "/etc/../sets/data/x",
            "/sets/data/../data/x",
            "/sets/data/",
        ] {
            assert_eq!(coverage.of_absolute(path.as_bytes()), NAMED, "{path}");
        }
        assert_eq!(coverage.of_absolute(b"/mnt/disk/set/x"), REAL);
        for path in [
            "/sets/database/x",
            "/sets/dat",
            "/sets/data/../x",
            "/etc/passwd",
            "/sets/data2",
            "/sets/data/../../x",
        ] {
            let found = coverage.of_absolute(path.as_bytes());
            assert!(!matches!(found, Relation::Inside { .. }), "{path}");
        }
    }

    #[test]
    fn relative_paths_are_followed_from_above_and_from_inside() {
        let coverage = coverage();
        let sets = coverage.of_absolute(b"/sets");
        assert_eq!(sets, Relation::Above { prefix: 0, len: 5 });
        assert_eq!(coverage.of_relative(sets, b"data/x", nobody), NAMED);
        assert_eq!(coverage.of_relative(sets, b"data", nobody), NAMED);
        assert_eq!(
            coverage.of_relative(sets, b"datax", nobody),
            Relation::Outside
        );
        assert_eq!(coverage.of_relative(NAMED, b"x", nobody), NAMED);
        let top = coverage.of_absolute(b"/");
        assert_eq!(coverage.of_relative(top, b"sets", nobody), sets);
        assert_eq!(coverage.of_relative(top, b"sets/data/x", nobody), NAMED);
        assert_eq!(
            coverage.of_relative(Relation::Outside, b"x/y", nobody),
            Relation::Outside
        );
        let disk = coverage.of_absolute(b"/mnt/disk");
        assert_eq!(coverage.of_relative(disk, b"set/x", nobody), REAL);
    }

    #[test]
    fn dots_in_relative_paths_are_walked() {
        let coverage = coverage();
        let at = |path: &'static [u8]| {
            move |into: &mut [u8]| {
                into[..path.len()].copy_from_slice(path);
                Some(path.len())
            }
        };
        let from = |folder, path: &[u8], own| coverage.of_relative(folder, path, at(own));
        assert_eq!(from(Relation::Outside, b"../data/x", b"/sets/other"), NAMED);
        assert_eq!(from(NAMED, b"../../x", b"/sets/data/a"), Relation::Outside);
        assert_eq!(from(NAMED, b"./x", b"/sets/data/a"), NAMED);
        assert_eq!(
            coverage.of_relative(NAMED, b"../x", |_| None),
            Relation::Outside
        );
    }

    #[test]
    fn the_working_folder_is_looked_up_once() {
        let coverage = coverage();
        let inside = |into: &mut [u8]| {
            into[..11].copy_from_slice(b"/sets/data/");
            Some(10)
        };
        assert_eq!(coverage.of_working(inside), NAMED);
        assert_eq!(coverage.of_working(nobody), NAMED);
        coverage.forget_working();
        assert_eq!(coverage.of_working(|_| None), Relation::Outside);
    }

    #[test]
    fn relations_read_back_from_words() {
        for relation in [
            NAMED,
            Relation::Above {
                prefix: 7,
                len: 400,
            },
            Relation::Outside,
        ] {
            assert_eq!(Relation::from_word(relation.to_word()), Some(relation));
        }
        assert_eq!(Relation::from_word(0), None);
    }

    #[test]
    fn paths_that_are_too_long_are_not_covered() {
        let long = vec![b'x'; PATH_BYTES_MAX];
        let path = [b"/sets/data/./", long.as_slice()].concat();
        assert_eq!(coverage().of_absolute(&path), Relation::Outside);
        assert_eq!(trusted_key(b"/sets/data/../x"), None);
        assert!(trusted_key(b"/sets/data/x").is_some());
    }
}
