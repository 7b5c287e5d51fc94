//! Where emulated storages are: a folder that is this user's alone, because whoever can write there can slow down others.

use std::env;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::ThrottleError;

/// The folder of this user, made if it is not there.
pub(super) fn own() -> Result<PathBuf, ThrottleError> {
    let folder = place(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    make(&folder)?;
    Ok(folder)
}

/// In the user's runtime folder if there is one that is really theirs, else in `/tmp`, where all processes look.
fn place(runtime: Option<PathBuf>) -> PathBuf {
    let is_own = |path: &PathBuf| {
        path.is_absolute() && fs::metadata(path).is_ok_and(|found| is_own_folder(&found))
    };
    match runtime.filter(is_own) {
        Some(runtime) => runtime.join("foresee"),
        None => PathBuf::from(format!("/tmp/foresee-{}", geteuid().as_raw())),
    }
}

fn is_own_folder(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == geteuid().as_raw()
}

fn make(folder: &Path) -> Result<(), ThrottleError> {
    let refused = |problem: String| ThrottleError::Folder {
        path: folder.into(),
        problem,
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(error.to_string()));
        }
        _ => {}
    }
    // Of what is there, not of what it links to: a link could be anybody's.
    let found = fs::symlink_metadata(folder).map_err(|error| refused(error.to_string()))?;
    if !is_own_folder(&found) {
        return Err(refused("not a folder of this user".to_owned()));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(refused("open to other users".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn is_made_for_the_user_alone_and_found_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = place(Some(parent.path().into()));
        assert_eq!(folder, parent.path().join("foresee"));
        make(&folder).unwrap();
        make(&folder).unwrap();
        assert_eq!(
            fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn is_below_tmp_without_a_runtime_folder() {
        let fallback = PathBuf::from(format!("/tmp/foresee-{}", geteuid().as_raw()));
        for runtime in [None, Some("relative"), Some("/no/such/folder")] {
            assert_eq!(place(runtime.map(PathBuf::from)), fallback);
        }
    }

    #[test]
    fn refuses_links_and_folders_that_others_can_write() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().join("open");
        let link = parent.path().join("link");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        symlink(parent.path(), &link).unwrap();
        assert!(
            make(&open)
                .unwrap_err()
                .to_string()
                .contains("open to other users")
        );
        assert!(
            make(&link)
                .unwrap_err()
                .to_string()
                .contains("not a folder of this user")
        );
    }
}
