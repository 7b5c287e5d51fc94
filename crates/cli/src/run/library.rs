//! Where the library is that is preloaded, and what the environment says of it.
//!
//! Programs of other C libraries that the program starts inherit the environment, and musl's do not start with a library that was
//! made for glibc. So what is named has a part in it that only glibc's loader fills in (`$LIB`): links in the user's cache,
//! under all that it fills in. Others find nothing there, and go on.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::bail;
use foresee_config::OneLine;

/// Names libraries to glibc's loader.
pub(crate) const VARIABLE: &str = "LD_PRELOAD";
/// As cargo names it.
const LIBRARY: &str = "libforesee_preload.so";
/// What glibc's loader fills in: Debian's, Fedora's, others'.
const FILLED_IN: [&str; 4] = [
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "lib",
];

/// Finds the library, where it was named or beside this command.
pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(LIBRARY)));
    let candidates = [named.map(Path::to_owned), beside];
    let Some(found) = candidates.into_iter().flatten().find(|path| path.is_file()) else {
        bail!("{LIBRARY} is not beside the command; build it with: cargo build --release");
    };
    if !can_be_named(&found) {
        let shown = OneLine(found.display().to_string());
        bail!(
            "{shown} has a colon, a blank or a dollar in its path, which {VARIABLE} cannot have; move it"
        );
    }
    Ok(found)
}

fn can_be_named(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes
        .iter()
        .any(|byte| matches!(byte, b':' | b' ' | b'$' | b'\n'))
}

/// What is preloaded anyway, and the library behind it.
pub(crate) fn preload(library: &Path) -> OsString {
    let mut all = std::env::var_os(VARIABLE).unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    // Without links, programs of other C libraries are the only ones that are worse off.
    match linked(library) {
        Ok(links) => all.push(links.join("$LIB").join(LIBRARY)),
        Err(_) => all.push(library),
    }
    all
}

/// A folder with links to the library, made once.
fn linked(library: &Path) -> io::Result<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let caches = caches.ok_or(io::ErrorKind::NotFound)?;
    let library = fs::canonicalize(library)?;
    let name = foresee_cache::key::path_key(library.as_os_str().as_bytes()).low_bits();
    let links = caches.join("foresee").join(format!("preload-{name:016x}"));
    if !can_be_named(&links) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for part in FILLED_IN {
        let link = links.join(part).join(LIBRARY);
        if fs::read_link(&link).is_ok_and(|leads| leads == library) {
            continue;
        }
        fs::create_dir_all(links.join(part))?;
        match symlink(&library, &link) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
            _ => {}
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_would_be_taken_apart_are_refused() {
        assert!(can_be_named(Path::new("/opt/x/libforesee_preload.so")));
        for path in ["/a b/x.so", "/a:b/x.so", "/$a/x.so"] {
            assert!(!can_be_named(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_library_that_was_named_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library.so");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(find(Some(&path)).unwrap(), path);
    }
}
