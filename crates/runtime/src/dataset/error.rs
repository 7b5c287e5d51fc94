//! What can be wrong with a dataset when it is listed: one line each, that names what, where and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use foresee_config::{OneLine, shown};

use super::EXTENSIONS;

/// Why there is no dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The folder is not there.
    #[error("dataset {}: no such folder; check the path", shown(.0))]
    Missing(PathBuf),
    /// It is something else than a folder.
    #[error("dataset {}: not a folder; give the folder that holds the class folders", shown(.0))]
    NotAFolder(PathBuf),
    /// The folder holds nothing.
    #[error("dataset {}: the folder is empty; check the path, and that its storage is mounted", shown(.0))]
    Empty(PathBuf),
    /// The folder holds files but no folders.
    #[error("dataset {}: no class folders in it; put the files of each class in a folder, or give a list of files",
            shown(.0))]
    NoClasses(PathBuf),
    /// Class folders without a sample.
    #[error("dataset {}: class {}: no file that ends in {}; add some or remove the folder",
            shown(.root), listed(.classes), EXTENSIONS.join(" "))]
    EmptyClass {
        /// The dataset's folder.
        root: PathBuf,
        /// All classes without a sample.
        classes: Vec<String>,
    },
    /// A folder cannot be read.
    #[error("folder {}: {cause}; make it readable, or remove it", shown(.path))]
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A link to a folder that it is in, or to itself.
    #[error("link {}: leads back to itself; remove it", shown(.0))]
    Loop(PathBuf),
    /// An empty list of files.
    #[error("files: the list is empty; give at least one path")]
    NoFiles,
    /// Not as many labels as files.
    #[error(
        "files: {labels} labels for {paths} paths; give one label for each path, or none at all"
    )]
    Labels {
        /// How many paths there are.
        paths: usize,
        /// How many labels.
        labels: usize,
    },
    /// A file that is no sample.
    #[error("file {}: {problem}; {}", shown(.path), .problem.remedy())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// The manifest cannot be read.
    #[error("manifest {}: {cause}; check the path", shown(.path))]
    Manifest {
        /// Which one.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Something else that was given in place of one.
    #[error("manifest {}: {why}; give a folder that holds class folders, or a text file with a path a line",
            shown(.path))]
    NotAManifest {
        /// What was given.
        path: PathBuf,
        /// How that shows.
        why: String,
    },
    /// A manifest that names no file.
    #[error("manifest {}: names no file; write one path a line", shown(.0))]
    EmptyManifest(PathBuf),
    /// A line of a manifest.
    #[error("manifest {}: line {line}: {problem}", shown(.path))]
    Line {
        /// The manifest.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it, and the remedy.
        problem: String,
    },
    /// More samples than can be numbered.
    #[error("dataset {}: {samples} samples are too many; split it into parts of less than {max}", OneLine(.name), max = u32::MAX)]
    TooMany {
        /// Which one.
        name: String,
        /// How many there are.
        samples: usize,
    },
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum FileProblem {
    /// It is not there.
    Missing,
    /// It is a folder.
    Folder,
    /// It is a pipe, a socket or a device.
    Special,
    /// The storage says no.
    Io(io::Error),
}

impl FileProblem {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Missing => "restore it, or take it (or the link to it) away",
            Self::Folder => "give the files in it",
            Self::Special => "take it away",
            Self::Io(_) => "make it readable, or take it away",
        }
    }
}

impl From<io::Error> for FileProblem {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound {
            Self::Missing
        } else {
            Self::Io(error)
        }
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such file"),
            Self::Folder => f.write_str("a folder, not a file"),
            Self::Special => f.write_str("not a regular file"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// Up to three of them, and how many more.
fn listed(classes: &[String]) -> String {
    let first = classes
        .iter()
        .take(3)
        .map(|class| OneLine(class).to_string())
        .collect::<Vec<_>>()
        .join(", ");
    match classes.len().saturating_sub(3) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
