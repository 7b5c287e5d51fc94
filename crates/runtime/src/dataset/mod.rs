//! The dataset: which samples there are, in which order, how large, with which labels. A dataset is class folders, a
//! list of files, or a manifest that lists them.
//!
//! Listing millions of files takes minutes on far storage, so what was listed is saved and reused while the folders'
//! times have not changed (see `saved`, `stamps`). A file that changes in place does not change its folder's time:
//! sources compare sizes when they read. Each sample takes 28 bytes besides its name, each folder its path once.

mod error;
mod files;
mod manifest;
mod names;
mod order;
mod parallel;
mod saved;
mod sizes;
mod stamps;
mod walk;

#[cfg(test)]
mod tests;

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use sha2::{Digest as _, Sha256};

pub use self::error::{DatasetError, FileProblem};
use self::files::Files;
use self::names::Names;
use self::saved::{Key, Saved};
use self::sizes::{Measure, Misfit, measure};
use self::stamps::Stamps;

/// How the names of samples in class folders end, in any case: torchvision's `IMG_EXTENSIONS`.
const EXTENSIONS: [&str; 9] = [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Files looked at at once: far storage takes a millisecond for each, however many others are under way.
const THREADS: usize = 16;

/// How to list a dataset.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    /// The folder of saved catalogs; nothing is saved or reused without one.
    pub cache: Option<&'a Path>,
    /// How many files are looked at at once.
    pub threads: usize,
    /// Told, from any thread, how many samples have been looked at so far.
    pub progress: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl Default for Listing<'_> {
    /// Saves to `$XDG_CACHE_HOME/foresee/catalogs`, or to `~/.cache/foresee/catalogs`.
    fn default() -> Self {
        static CACHE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let cache = CACHE.get_or_init(|| cache_folder(|name| env::var_os(name).map(PathBuf::from)));
        Self { cache: cache.as_deref(), threads: THREADS, progress: None }
    }
}

/// The XDG base directory specification: a relative path counts as none.
fn cache_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let given = |name| variable(name).filter(|path| path.is_absolute());
    let caches = given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("foresee/catalogs"))
}

/// All samples of a dataset: names, labels and sizes.
#[derive(PartialEq, Eq)]
pub struct Dataset {
    described: String,
    files: Files,
    catalog: Arc<Catalog>,
    classes: Vec<String>,
    digest: [u8; 16],
}

impl Dataset {
    /// The images in class folders: the classes, the order and the labels of `torchvision.datasets.ImageFolder(root)`.
    pub fn image_folder(root: &Path, listing: &Listing<'_>) -> Result<Self, DatasetError> {
        let root = absolute(root).map_err(|cause| DatasetError::Unreadable { path: root.into(), cause })?;
        let key = Key::new("image folder").with(root.as_os_str().as_bytes());
        saved_or_listed(listing, &key, || {
            let walk::Found { files, classes, stamps } = walk::walk(&root, listing.threads)?;
            let measures = measure(&files, listing).map_err(|misfit| file_error(&files, misfit))?;
            let draft = Draft { described: root.display().to_string(), base: &root, files, classes };
            Ok((draft.finish(&measures)?, Some(stamps)))
        })
    }

    /// A list of files: sample k is `paths[k]`, with the label `labels[k]` where there are any.
    pub fn files(paths: Vec<PathBuf>, labels: Option<Vec<i64>>, listing: &Listing<'_>) -> Result<Self, DatasetError> {
        if paths.is_empty() {
            return Err(DatasetError::NoFiles);
        }
        if let Some(labels) = labels.as_ref().filter(|labels| labels.len() != paths.len()) {
            return Err(DatasetError::Labels { paths: paths.len(), labels: labels.len() });
        }
        let paths = paths.into_iter().map(absolute_file).collect::<Result<Vec<_>, _>>()?;
        let key = files_key(&paths, labels.as_deref());
        saved_or_listed(listing, &key, || {
            let described = format!("{} files", paths.len());
            let files = Files::from_paths(&paths, labels);
            let stamps = Stamps::take(folders(&files), listing.threads);
            let measures = measure(&files, listing).map_err(|misfit| file_error(&files, misfit))?;
            let draft = Draft { described, base: Path::new("/"), files, classes: Vec::new() };
            Ok((draft.finish(&measures)?, stamps))
        })
    }

    /// The files that a text file lists, one a line: `path<TAB>label`, `path,label` (split at the last comma) or `path`.
    /// Relative paths begin at the manifest's folder; blank lines and lines that begin with `#` are skipped.
    pub fn manifest(path: &Path, listing: &Listing<'_>) -> Result<Self, DatasetError> {
        let unreadable = |cause: io::Error| DatasetError::Manifest { path: path.into(), cause };
        let path = absolute(path).map_err(unreadable)?;
        let key = Key::new("manifest").with(path.as_os_str().as_bytes());
        saved_or_listed(listing, &key, || {
            let manifest: Names = [path.as_os_str().as_bytes()].into_iter().collect();
            let stamp = Stamps::take(manifest, 1);
            let text = fs::read(&path).map_err(unreadable)?;
            let (dataset, folders) = list_manifest(&path, &text, listing)?;
            Ok((dataset, stamp.zip(folders).map(|(manifest, folders)| manifest.and(&folders))))
        })
    }

    /// How many samples there are: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a dataset without samples is an error when it is listed")]
    pub fn len(&self) -> u32 {
        self.catalog.len()
    }

    /// The samples' sizes.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// A sample's label; 0 where there are none.
    pub fn label(&self, sample: SampleId) -> i64 {
        self.files.labels.as_ref().map_or(0, |labels| labels[sample.index()])
    }

    /// Whether the samples have labels.
    pub fn has_labels(&self) -> bool {
        self.files.labels.is_some()
    }

    /// A sample's file.
    pub fn path(&self, sample: SampleId) -> PathBuf {
        self.files.path(sample.index())
    }

    /// Appends the path of a sample's file.
    pub(crate) fn push_path(&self, sample: SampleId, path: &mut Vec<u8>) {
        self.files.push_path(sample.index(), path);
    }

    /// The classes' names by label; none where files were listed.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Differs between datasets: covers names below the dataset's folder, sizes, labels and times of change.
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }

    /// What people call it: its folder, its manifest, or how many files it has.
    pub fn describe(&self) -> String {
        self.described.clone()
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.files.memory_bytes() + self.catalog.len() as usize * size_of::<u64>()
    }

    /// Saves a catalog of `root` and its class folders as if each held `files_per_class` files, for measurements.
    #[doc(hidden)]
    pub fn pretend_image_folder(root: &Path, files_per_class: u32, listing: &Listing<'_>) -> io::Result<()> {
        pretend(root, files_per_class, listing)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({}, {} samples)", self.described, self.len())
    }
}

/// What was saved if it is valid, else what `list` finds, which is saved if its folders have been at rest.
fn saved_or_listed(
    listing: &Listing<'_>,
    key: &Key,
    list: impl FnOnce() -> Result<(Dataset, Option<Stamps>), DatasetError>,
) -> Result<Dataset, DatasetError> {
    let saved = listing.cache.map(|folder| Saved::new(folder, key));
    if let Some(dataset) = saved.as_ref().and_then(|saved| saved.load(listing.threads)) {
        return Ok(dataset);
    }
    let (dataset, stamps) = list()?;
    match (saved, stamps.filter(Stamps::are_trusted)) {
        (Some(saved), Some(stamps)) => saved.store(&dataset, &stamps),
        (Some(_), None) => tracing::debug!("catalog is not saved: a folder was changed just now"),
        (None, _) => {}
    }
    Ok(dataset)
}

fn list_manifest(path: &Path, text: &[u8], listing: &Listing<'_>) -> Result<(Dataset, Option<Stamps>), DatasetError> {
    let base = path.parent().unwrap_or(Path::new("/"));
    let line_error = |line, problem| DatasetError::Line { path: path.into(), line, problem };
    let listed = manifest::parse(text, base).map_err(|bad| line_error(bad.line, bad.problem))?;
    if listed.paths.is_empty() {
        return Err(DatasetError::EmptyManifest(path.into()));
    }
    let files = Files::from_paths(&listed.paths, listed.labels);
    let stamps = Stamps::take(folders(&files), listing.threads);
    let measures = measure(&files, listing)
        .map_err(|misfit| line_error(listed.lines[misfit.index], file_error(&files, misfit).to_string()))?;
    let draft = Draft { described: path.display().to_string(), base, files, classes: Vec::new() };
    Ok((draft.finish(&measures)?, stamps))
}

fn file_error(files: &Files, misfit: Misfit) -> DatasetError {
    DatasetError::File { path: files.path(misfit.index), problem: misfit.problem }
}

fn absolute_file(path: PathBuf) -> Result<PathBuf, DatasetError> {
    absolute(&path).map_err(|cause| DatasetError::File { path, problem: FileProblem::Io(cause) })
}

/// The folders' paths as the system takes them.
fn folders(files: &Files) -> Names {
    files.folders.iter().map(|folder| if folder.is_empty() { b"/" } else { folder }).collect()
}

fn files_key(paths: &[PathBuf], labels: Option<&[i64]>) -> Key {
    let key = Key::new(if labels.is_some() { "labelled files" } else { "files" });
    let key = paths.iter().fold(key, |key, path| key.with(path.as_os_str().as_bytes()));
    labels.unwrap_or_default().iter().fold(key, |key, label| key.with(&label.to_le_bytes()))
}

/// A dataset before it is measured.
struct Draft<'a> {
    described: String,
    /// Names in the digest begin here, so that a dataset may be moved.
    base: &'a Path,
    files: Files,
    classes: Vec<String>,
}

impl Draft<'_> {
    fn finish(self, measures: &[Measure]) -> Result<Dataset, DatasetError> {
        let samples = measures.len();
        // One number stays free.
        if samples >= u32::MAX as usize {
            return Err(DatasetError::TooMany { name: self.described, samples });
        }
        let digest = digest(&self.files, self.base, measures);
        let catalog = Arc::new(Catalog::new(measures.iter().map(|measure| measure.size_bytes).collect()));
        Ok(Dataset { described: self.described, files: self.files, catalog, classes: self.classes, digest })
    }
}

/// The first 16 bytes of a SHA-256; numbers with a fixed width, texts behind their length.
fn digest(files: &Files, base: &Path, measures: &[Measure]) -> [u8; 16] {
    let mut hash = Sha256::new();
    let base = files::folder_bytes(base);
    hash.update((files.folders.len() as u64).to_le_bytes());
    for folder in files.folders.iter() {
        let relative = folder.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        let name = relative.unwrap_or(folder);
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
    }
    hash.update([u8::from(files.labels.is_some())]);
    let mut record = Vec::new();
    for (index, measure) in measures.iter().enumerate() {
        let name = files.names.get(index);
        record.clear();
        record.extend(files.folder_of[index].to_le_bytes());
        record.extend((name.len() as u64).to_le_bytes());
        record.extend(name);
        record.extend(measure.size_bytes.to_le_bytes());
        record.extend(measure.mtime_ns.to_le_bytes());
        record.extend(files.labels.as_ref().map_or(0, |labels| labels[index]).to_le_bytes());
        hash.update(&record);
    }
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|index| whole[index])
}

fn pretend(root: &Path, files_per_class: u32, listing: &Listing<'_>) -> io::Result<()> {
    let root = absolute(root)?;
    let mut folders = fs::read_dir(&root)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    folders.sort_unstable();
    let (mut files, mut labels, mut classes) = (Files::default(), Vec::new(), Vec::new());
    for (class, folder) in (0_u32..).zip(&folders) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.folders.push(files::folder_bytes(folder));
        for file in 0..files_per_class {
            files.names.push(format!("{name}_{file}.JPEG").as_bytes());
            files.folder_of.push(class);
            labels.push(i64::from(class));
        }
        classes.push(name);
    }
    let measures = vec![Measure { size_bytes: 110_000, mtime_ns: 0 }; files.len()];
    files.shrink();
    files.labels = Some(labels);
    folders.push(root.clone());
    let stamped = folders.iter().map(|folder| folder.as_os_str().as_bytes()).collect();
    let stamps = Stamps::take(stamped, listing.threads).ok_or(io::ErrorKind::NotFound)?;
    let draft = Draft { described: root.display().to_string(), base: &root, files, classes };
    let dataset = draft.finish(&measures).map_err(io::Error::other)?;
    let key = Key::new("image folder").with(root.as_os_str().as_bytes());
    if let Some(cache) = listing.cache {
        Saved::new(cache, &key).store(&dataset, &stamps);
    }
    Ok(())
}
