//! Finds the samples of class folders as torchvision's `ImageFolder` does: a class for each folder, classes by name, and
//! in each class all files below it, by the path of their folder, then by name. Links are followed.
//!
//! Folders are read by several threads, from a list that they add to; the order comes from sorting at the end.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};

use super::error::DatasetError;
use super::files::{Files, folder_bytes};
use super::names::Names;
use super::order::python_order;
use super::parallel::on_threads;
use super::stamps::Stamps;
use super::{EXTENSIONS, Listing};
use crate::stamp::Stamp;

/// What a walk found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) files: Files,
    pub(super) classes: Vec<OsString>,
    /// Of all folders that were read.
    pub(super) stamps: Stamps,
}

/// Walks through the class folders of `root`.
pub(super) fn walk(root: &Path, listing: &Listing<'_>) -> Result<Found, DatasetError> {
    let top = read_root(root, listing)?;
    let classes = top.below.clone();
    let todo = todo_below(&top, 0)
        .enumerate()
        .map(|(class, todo)| Todo {
            class: class as u32,
            ..todo
        })
        .collect();
    let mut folders = read_all(todo, listing)?;
    folders.sort_unstable_by(|a, b| {
        a.class
            .cmp(&b.class)
            .then_with(|| python_order(folder_bytes(&a.path), folder_bytes(&b.path)))
    });
    refuse_empty_classes(root, &classes, &folders)?;
    folders.insert(0, top);
    let stamps = Stamps {
        paths: folders
            .iter()
            .map(|folder| folder.path.as_os_str().as_bytes())
            .collect(),
        stamps: folders.iter().map(|folder| folder.stamp).collect(),
    };
    Ok(Found {
        files: gather(&folders[1..]),
        classes,
        stamps,
    })
}

/// What tells folders apart, however they were reached.
type Identity = (u64, u64);

/// A folder that was read.
struct Folder {
    path: PathBuf,
    class: u32,
    stamp: Stamp,
    /// Itself and the folders it was reached through.
    line: Vec<Identity>,
    /// Names of samples, sorted.
    samples: Names,
    /// Names of folders, sorted.
    below: Vec<OsString>,
    /// Whether there is nothing at all in it.
    is_empty: bool,
}

/// A folder to be read.
struct Todo {
    path: PathBuf,
    class: u32,
    above: Vec<Identity>,
}

fn read_root(root: &Path, listing: &Listing<'_>) -> Result<Folder, DatasetError> {
    match fs::metadata(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(DatasetError::Missing(root.into()));
        }
        Ok(metadata) if !metadata.is_dir() => return Err(DatasetError::NotAFolder(root.into())),
        _ => {}
    }
    let top = read_folder(
        Todo {
            path: root.into(),
            class: 0,
            above: Vec::new(),
        },
        listing,
    )?;
    if top.is_empty {
        return Err(DatasetError::Empty(root.into()));
    }
    if top.below.is_empty() {
        return Err(DatasetError::NoClasses(root.into()));
    }
    Ok(top)
}

fn todo_below(folder: &Folder, class: u32) -> impl Iterator<Item = Todo> {
    folder.below.iter().map(move |name| Todo {
        path: folder.path.join(name),
        class,
        above: folder.line.clone(),
    })
}

/// What the threads share.
struct Work {
    todo: Vec<Todo>,
    /// Folders that are being read: they may add to `todo`.
    busy: usize,
    done: Vec<Folder>,
    failed: Option<DatasetError>,
}

fn read_all(todo: Vec<Todo>, listing: &Listing<'_>) -> Result<Vec<Folder>, DatasetError> {
    let work = Mutex::new(Work {
        todo,
        busy: 0,
        done: Vec::new(),
        failed: None,
    });
    let more = Condvar::new();
    on_threads(listing.threads, || read_some(&work, &more, listing));
    let work = work.into_inner().expect("no holder panics");
    work.failed.map_or(Ok(work.done), Err)
}

fn read_some(work: &Mutex<Work>, more: &Condvar, listing: &Listing<'_>) {
    while let Some(todo) = next(work, more) {
        let read = read_folder(todo, listing);
        let mut work = work.lock().expect("no holder panics");
        work.busy -= 1;
        match read {
            Ok(folder) => {
                work.todo.extend(todo_below(&folder, folder.class));
                work.done.push(folder);
            }
            Err(error) => work.failed = Some(error),
        }
        more.notify_all();
    }
}

/// Waits for a folder to read; nothing once there can be none.
fn next(work: &Mutex<Work>, more: &Condvar) -> Option<Todo> {
    let work = work.lock().expect("no holder panics");
    let idle = |work: &mut Work| work.failed.is_none() && work.todo.is_empty() && work.busy > 0;
    let mut work = more.wait_while(work, idle).expect("no holder panics");
    if work.failed.is_some() {
        return None;
    }
    let todo = work.todo.pop()?;
    work.busy += 1;
    Some(todo)
}

fn read_folder(todo: Todo, listing: &Listing<'_>) -> Result<Folder, DatasetError> {
    let Todo {
        path,
        class,
        above: mut line,
    } = todo;
    let unreadable = |cause| DatasetError::Unreadable {
        path: path.clone(),
        cause,
    };
    // Before its entries: a change while they are read must show later.
    let (stamp, _) = Stamp::of_path(&path).map_err(unreadable)?;
    let identity = (stamp.mount, stamp.inode);
    if line.contains(&identity) {
        return Err(DatasetError::Loop(path));
    }
    line.push(identity);
    let mut samples = Vec::new();
    let mut below = Vec::new();
    let mut is_empty = true;
    for entry in fs::read_dir(&path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        listing.stir();
        is_empty = false;
        if is_folder(&entry)? {
            below.push(entry.file_name());
        } else if is_sample(&entry.file_name()) {
            samples.push(entry.file_name());
        }
    }
    samples.sort_unstable_by(|a, b| python_order(a.as_bytes(), b.as_bytes()));
    below.sort_unstable_by(|a, b| python_order(a.as_bytes(), b.as_bytes()));
    let samples = samples.iter().map(|name| name.as_bytes()).collect();
    Ok(Folder {
        path,
        class,
        stamp,
        line,
        samples,
        below,
        is_empty,
    })
}

/// Whether it is a folder or a link to one. A link that leads nowhere is none.
fn is_folder(entry: &DirEntry) -> Result<bool, DatasetError> {
    let path = entry.path();
    let kind = entry
        .file_type()
        .map_err(|cause| DatasetError::Unreadable {
            path: path.clone(),
            cause,
        })?;
    if !kind.is_symlink() {
        return Ok(kind.is_dir());
    }
    match fs::metadata(&path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Err(DatasetError::Loop(path))
        }
        Err(_) => Ok(false),
    }
}

/// By the end of its name alone, so that `.jpg` is one too, as it is for torchvision.
fn is_sample(name: &OsStr) -> bool {
    let name = name.as_bytes();
    EXTENSIONS.iter().any(|end| {
        name.len()
            .checked_sub(end.len())
            .is_some_and(|start| name[start..].eq_ignore_ascii_case(end.as_bytes()))
    })
}

fn refuse_empty_classes(
    root: &Path,
    classes: &[OsString],
    folders: &[Folder],
) -> Result<(), DatasetError> {
    let mut counts = vec![0; classes.len()];
    for folder in folders {
        counts[folder.class as usize] += folder.samples.len();
    }
    let empty = |(class, &count): (&OsString, &usize)| {
        (count == 0).then(|| class.to_string_lossy().into_owned())
    };
    let classes = classes
        .iter()
        .zip(&counts)
        .filter_map(empty)
        .collect::<Vec<_>>();
    if classes.is_empty() {
        Ok(())
    } else {
        Err(DatasetError::EmptyClass {
            root: root.into(),
            classes,
        })
    }
}

/// The samples of all folders, one folder after another.
fn gather(folders: &[Folder]) -> Files {
    let mut files = Files::default();
    let mut labels = Vec::new();
    for folder in folders.iter().filter(|folder| folder.samples.len() > 0) {
        files.folders.push(folder_bytes(&folder.path));
        for name in folder.samples.iter() {
            files.names.push(name);
            files.folder_of.push(files.folders.len() as u32 - 1);
            labels.push(i64::from(folder.class));
        }
    }
    labels.shrink_to_fit();
    files.shrink();
    Files {
        labels: Some(labels),
        ..files
    }
}
