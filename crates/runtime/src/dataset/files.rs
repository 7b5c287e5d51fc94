//! The files of a dataset by number: their folders once, their names in one block. Knows nothing of what is in them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::names::Names;

/// Names and labels of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Paths of folders, without a slash at the end.
    pub(super) folders: Names,
    /// Of each file, which folder it is in.
    pub(super) folder_of: Vec<u32>,
    pub(super) names: Names,
    /// Of each file, where there are any.
    pub(super) labels: Option<Vec<i64>>,
}

impl Files {
    /// These files, in this order.
    pub(super) fn from_paths(paths: &[PathBuf], labels: Option<Vec<i64>>) -> Self {
        let mut files = Self {
            labels,
            ..Self::default()
        };
        let mut known: HashMap<&Path, u32> = HashMap::new();
        for path in paths {
            let folder = path.parent().unwrap_or(Path::new(""));
            let index = *known.entry(folder).or_insert_with(|| {
                files.folders.push(folder_bytes(folder));
                files.folders.len() as u32 - 1
            });
            files.folder_of.push(index);
            // Only a path that ends in `..` has no name.
            files
                .names
                .push(path.file_name().map_or(b"..", OsStrExt::as_bytes));
        }
        files.shrink();
        files
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Appends a file's path.
    pub(super) fn push_path(&self, index: usize, path: &mut Vec<u8>) {
        path.extend_from_slice(self.folders.get(self.folder_of[index] as usize));
        path.push(b'/');
        path.extend_from_slice(self.names.get(index));
    }

    /// The path of the folder that all files are below, near or far, without a slash at the end; empty where that is the
    /// root, or there is none.
    pub(super) fn folder_of_all(&self) -> &[u8] {
        let mut folders = self.folders.iter();
        let first = folders.next().unwrap_or_default();
        folders.fold(first, folder_of_both)
    }

    pub(super) fn path(&self, index: usize) -> PathBuf {
        let mut path = Vec::new();
        self.push_path(index, &mut path);
        OsString::from_vec(path).into()
    }

    /// Gives back memory that was taken for more.
    pub(super) fn shrink(&mut self) {
        self.folders.shrink();
        self.folder_of.shrink_to_fit();
        self.names.shrink();
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let labels = self
            .labels
            .as_ref()
            .map_or(0, |labels| labels.capacity() * size_of::<i64>());
        self.folders.memory_bytes()
            + self.folder_of.capacity() * size_of::<u32>()
            + self.names.memory_bytes()
            + labels
    }
}

/// A folder's path so that `/name` can follow; the root's is empty.
pub(super) fn folder_bytes(folder: &Path) -> &[u8] {
    let bytes = folder.as_os_str().as_bytes();
    bytes.strip_suffix(b"/").unwrap_or(bytes)
}

/// The folder that two folders are or are below; all paths are without a slash at the end.
fn folder_of_both<'a>(one: &'a [u8], other: &[u8]) -> &'a [u8] {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let ends = |path: &[u8]| path.get(same).is_none_or(|next| *next == b'/');
    if ends(one) && ends(other) {
        return &one[..same];
    }
    let slash = one[..same].iter().rposition(|byte| *byte == b'/');
    &one[..slash.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_the_paths_and_keeps_each_folder_once() {
        let paths = ["/a/x", "/b/y", "/a/z", "/top", "/a/b c/\u{e9}", "/a/.."].map(PathBuf::from);
        let files = Files::from_paths(&paths, None);
        assert_eq!(
            (0..files.len())
                .map(|index| files.path(index))
                .collect::<Vec<_>>(),
            paths
        );
        assert_eq!(files.folders.len(), 4);
    }
    #[test]
    fn finds_the_folder_that_all_files_are_below() {
        let below = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            let files = Files::from_paths(&paths, None);
            String::from_utf8(files.folder_of_all().to_vec()).unwrap()
        };
        assert_eq!(below(&["/data/a/x", "/data/b/x", "/data/a/y"]), "/data");
        assert_eq!(below(&["/data/ab/x", "/data/a/x"]), "/data");
        assert_eq!(below(&["/data/a/b/x", "/data/a/x"]), "/data/a");
        assert_eq!(below(&["/data/a/x", "/data/a/b/x"]), "/data/a");
        assert_eq!(below(&["/data/a/x"]), "/data/a");
        assert_eq!(below(&["/data/a/x", "/top"]), "");
        assert_eq!(below(&["/data/a/x", "/other/a/x"]), "");
        assert_eq!(below(&[]), "");
    }
}
