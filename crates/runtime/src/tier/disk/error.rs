//! Why a disk tier cannot be opened: one line that names the folder, the cause and the remedy. Once it is open, a tier
//! refuses and misses; see `Tier`.
//!
//! The remedies are those of whoever configures a job. Who looks after a folder with the command has others
//! ([`DiskError::told_to_keeper`]).

use std::io;
use std::path::{Path, PathBuf};

use foresee_config::{OneLine, shown};
use foresee_core::units::Bytes;

use crate::owner::Foreign;

/// A file that is not this user's alone.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} {why}", OneLine(name))]
pub struct ForeignFile {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: Foreign,
}

/// Why a disk tier cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It could hold nothing.
    #[error(
        "cache folder {}: capacity is 0; give the tier a capacity, or leave it out",
        shown(path)
    )]
    NoCapacity {
        /// The configured folder.
        path: PathBuf,
    },
    /// It could never hold that much.
    #[error(
        "cache folder {}: capacity is {capacity}, but its file system has {available}; lower the capacity",
        shown(path)
    )]
    LargerThanDisk {
        /// The configured folder.
        path: PathBuf,
        /// What is to be kept.
        capacity: Bytes,
        /// All bytes of the file system, used or not.
        available: Bytes,
    },
    /// The sub-folder's name would lead elsewhere.
    #[error(
        "cache folder {}: {name:?} is no name for a sub-folder; use one without slashes and leading dots",
        shown(path)
    )]
    BadName {
        /// The configured folder.
        path: PathBuf,
        /// The name that was asked for.
        name: String,
    },
    /// Somebody else could feed samples.
    #[error(
        "cache folder {} {why}; choose another one, make it yours alone (chown, chmod go-w), or trust it (trust_folder = true)",
        shown(path)
    )]
    Foreign {
        /// The configured folder, or the sub-folder.
        path: PathBuf,
        /// Why.
        why: Foreign,
    },
    /// The same of a file in it.
    #[error(
        "cache folder {}: its file {file}; choose another one, delete that file, or trust it (trust_folder = true)",
        shown(path)
    )]
    ForeignFile {
        /// The folder.
        path: PathBuf,
        /// Which file, and why.
        file: ForeignFile,
    },
    /// There is something else.
    #[error("cache folder {} is not a folder; choose another path", shown(path))]
    NotAFolder {
        /// What is not a folder.
        path: PathBuf,
    },
    /// It may hold data of the user.
    #[error(
        "cache folder {} is not empty and was not made by foresee; choose an empty or a new folder",
        shown(path)
    )]
    NotOurs {
        /// The configured folder.
        path: PathBuf,
    },
    /// Another foresee made it, which may keep its files in another way.
    #[error(
        "cache folder {}: it is of another version of foresee (its mark {mark} says version {version}); choose another folder, or delete this one: what was in it is read from the dataset again",
        shown(path)
    )]
    OtherVersion {
        /// The configured folder.
        path: PathBuf,
        /// The mark's file name.
        mark: &'static str,
        /// Which one.
        version: u64,
    },
    /// What says that the folder is ours is not what we write.
    #[error(
        "cache folder {}: its mark {mark} {why}; choose another folder, or delete this one if it is a cache: what was in it is read from the dataset again",
        shown(path)
    )]
    BadMark {
        /// The configured folder.
        path: PathBuf,
        /// The mark's file name.
        mark: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another process keeps its samples there.
    #[error(
        "cache folder {} is in use by process {holder} (another job); end it, or choose another folder",
        shown(path)
    )]
    InUse {
        /// The locked sub-folder.
        path: PathBuf,
        /// The process that has it, as far as it is known.
        holder: String,
    },
    /// Not for us.
    #[error(
        "cache folder {}: no permission to {what}; choose another folder, or change its owner or mode",
        shown(path)
    )]
    NoPermission {
        /// What is not permitted to be used.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
    },
    /// Nothing can be kept there.
    #[error(
        "cache folder {}: the file system is read-only; choose another folder, or mount it writable",
        shown(path)
    )]
    ReadOnly {
        /// What cannot be written.
        path: PathBuf,
    },
    /// There is not even room for an index.
    #[error(
        "cache folder {}: no space left to {what}; free some, or choose another folder",
        shown(path)
    )]
    Full {
        /// What cannot be written.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
    },
    /// Anything else that the file system says.
    #[error(
        "cache folder {}: cannot {what}: {cause}; choose another folder",
        shown(path)
    )]
    Io {
        /// What failed.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the file system says.
        cause: io::Error,
    },
}

impl DiskError {
    /// What is wrong, and what can be done about it by who looks after the folder; `Display` is for who configures a job.
    /// Without the path, which that one knows.
    pub(crate) fn told_to_keeper(&self) -> String {
        const TRUST: &str = "or trust it (--trust-folder)";
        const DELETE: &str = "what was in it is read from the dataset again";
        match self {
            Self::Foreign { why, .. } => {
                format!("{why}; make it yours alone (chown, chmod go-w), {TRUST}")
            }
            Self::ForeignFile { file, .. } => {
                format!("its file {file}; make that yours alone (chown, chmod go-w), {TRUST}")
            }
            Self::NotAFolder { .. } => "not a folder".to_owned(),
            Self::OtherVersion { mark, version, .. } => format!(
                "it is of another version of foresee (its mark {mark} says version {version}); use that one, or delete the folder: {DELETE}"
            ),
            Self::BadMark { mark, why, .. } => {
                format!("its mark {mark} {why}; if it is a cache, delete the folder: {DELETE}")
            }
            Self::NoPermission { what, .. } => {
                format!("no permission to {what}; ask its owner, or change its owner or mode")
            }
            Self::Io { what, cause, .. } => format!("cannot {what}: {}", OneLine(cause)),
            // What only a job meets.
            other => other.to_string(),
        }
    }

    /// What `cause` means for someone who wanted to `what` at `path`.
    pub(super) fn new(path: &Path, what: &'static str, cause: io::Error) -> Self {
        let path = path.to_owned();
        if let Some(file) = cause
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<ForeignFile>())
        {
            return Self::ForeignFile {
                path,
                file: file.clone(),
            };
        }
        match cause.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { path, what },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::NotADirectory => Self::NotAFolder { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path, what },
            _ => Self::Io { path, what, cause },
        }
    }
}
