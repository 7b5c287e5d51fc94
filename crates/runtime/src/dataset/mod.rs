//! The dataset: which samples there are, in which order, how large, with which labels. A dataset is class folders, a
//! list of files, or a manifest that lists them.
//!
//! Listing millions of files takes minutes on far storage, so what was listed is saved and reused while the folders are
//! what they were (see `saved`, `stamps`). A file that changes in place does not change its folder: sources compare sizes
//! when they read, and one that is not what was listed makes the saved catalog void ([`Dataset::forget`]); before a job's
//! first batch all are measured again ([`Dataset::measure_again`]). Each sample takes 32 bytes besides its name, each folder
//! its path once.
//!
//! A dataset is where it is, the names below and the sizes: its digest is made of resolved paths and sizes. Not of device
//! numbers, which change, nor of times: a file that is changed in place is the same sample with other bytes, which is for
//! those to notice who keep them.

mod catalogs;
mod error;
mod files;
mod manifest;
mod names;
mod order;
mod parallel;
mod saved;
mod sharing;
mod sizes;
mod stamps;
mod walk;

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use foresee_config::OneLine;
use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use sha2::{Digest as _, Sha256};

use self::catalogs::Catalogs;
pub use self::error::{DatasetError, FileProblem};
use self::files::Files;
use self::names::Names;
use self::parallel::{Next, in_chunks};
use self::saved::{Key, Saved};
use self::sharing::saved_or_listed;
use self::sizes::{Measure, Measures, Misfit, measure};
use self::stamps::Stamps;
use crate::stamp::Times;
use crate::transport::tcp::Mesh;

/// How the names of samples in class folders end, in any case: torchvision's `IMG_EXTENSIONS`.
const EXTENSIONS: [&str; 9] = [
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
];

/// So many files are looked at by each rank: that takes no longer than to ask rank 0, and ranks may have lists of their own.
pub const FILES_ALONE_MAX: usize = 1024;

/// So long a manifest lists about as many.
pub const MANIFEST_ALONE_BYTES_MAX: u64 = 64 << 10;

/// Rank 0 may take so long to begin with a dataset that others wait for: programs start within seconds of each other, and
/// one that makes a dataset on some ranks only must not hang for long.
pub const PATIENCE_MAX: Duration = Duration::from_secs(30);

/// Files looked at at once: far storage takes a millisecond for each, however many others are under way.
const THREADS: usize = 16;

/// How to list a dataset.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    /// The folder of saved catalogs; nothing is saved or reused without one.
    pub cache: Option<&'a Path>,
    /// Whether others may own that folder or write to it.
    pub trusted: bool,
    /// How many files are looked at at once.
    pub threads: usize,
    /// Told, from any thread, how many samples have been looked at so far.
    pub progress: Option<&'a (dyn Fn(u64) + Sync)>,
    /// The way to the other ranks: rank 0 lists, the others get its catalog; without one each lists for itself.
    pub mesh: Option<&'a Arc<Mesh>>,
    /// How long rank 0 may take to begin with it.
    pub patience: Duration,
}

impl Default for Listing<'_> {
    /// Saves to `$XDG_CACHE_HOME/foresee/catalogs`, or to `~/.cache/foresee/catalogs`.
    fn default() -> Self {
        static CACHE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let cache = CACHE.get_or_init(|| cache_folder(|name| env::var_os(name).map(PathBuf::from)));
        Self {
            cache: cache.as_deref(),
            trusted: false,
            threads: THREADS,
            progress: None,
            mesh: None,
            patience: PATIENCE_MAX,
        }
    }
}

impl Listing<'_> {
    /// The same for something that each rank lists for itself.
    fn alone(&self) -> Self {
        Self {
            mesh: None,
            ..*self
        }
    }

    /// Something was looked at: other ranks may wait for all of it.
    fn stir(&self) {
        if let Some(mesh) = self.mesh {
            mesh.stir();
        }
    }

    fn catalogs(&self) -> Option<Catalogs> {
        Some(Catalogs {
            folder: self.cache?.to_owned(),
            trusted: self.trusted,
        })
    }
}

/// The XDG base directory specification: a relative path counts as none.
fn cache_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let given = |name| variable(name).filter(|path| path.is_absolute());
    let caches =
        given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("foresee/catalogs"))
}

/// All samples of a dataset: names, labels and sizes.
pub struct Dataset {
    described: String,
    files: Files,
    classes: Vec<OsString>,
    /// Files may have other sizes than when they were listed.
    measured: RwLock<Measured>,
    /// Where it is or could be saved.
    saved: Option<Saved>,
    /// Of where it is, or what it was listed from.
    place: u128,
}

/// What measuring all files gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The samples' sizes.
    pub catalog: Arc<Catalog>,
    /// Differs between datasets: covers where they are, the names of their samples and the sizes.
    pub digest: [u8; 16],
    /// What each file's times of change came to, if all had rested when they were measured: a file of which they come to
    /// the same was not changed since. Not whether they are later: clocks are set, and storages have their own.
    pub times: Option<Arc<[Times]>>,
}

impl Dataset {
    fn new(described: String, files: Files, classes: Vec<OsString>, measured: Measured) -> Self {
        Self {
            described,
            files,
            classes,
            measured: RwLock::new(measured),
            saved: None,
            place: 0,
        }
    }

    /// The images in class folders: the classes, the order and the labels of `torchvision.datasets.ImageFolder(root)`.
    pub fn image_folder(root: &Path, listing: &Listing<'_>) -> Result<Self, DatasetError> {
        let root = absolute(root).map_err(|cause| DatasetError::Unreadable {
            path: root.into(),
            cause,
        })?;
        let resolved = fs::canonicalize(&root);
        // What is not here is no matter for others.
        let listing = &match &resolved {
            Ok(_) => *listing,
            Err(_) => listing.alone(),
        };
        let key = image_folder_key(&root, &resolved.unwrap_or_default());
        let called = root.display().to_string();
        saved_or_listed(listing, &key, &called, || {
            let walk::Found {
                files,
                classes,
                stamps,
            } = walk::walk(&root, listing)?;
            let measures = measure(&files, listing).map_err(|misfit| file_error(&files, misfit))?;
            let draft = Draft {
                described: root.display().to_string(),
                files,
                classes,
            };
            Ok((draft.finish(&measures, listing.threads)?, Some(stamps)))
        })
    }

    /// A list of files: sample k is `paths[k]`, with the label `labels[k]` where there are any.
    pub fn files(
        paths: Vec<PathBuf>,
        labels: Option<Vec<i64>>,
        listing: &Listing<'_>,
    ) -> Result<Self, DatasetError> {
        if paths.is_empty() {
            return Err(DatasetError::NoFiles);
        }
        if let Some(labels) = labels.as_ref().filter(|labels| labels.len() != paths.len()) {
            return Err(DatasetError::Labels {
                paths: paths.len(),
                labels: labels.len(),
            });
        }
        let paths = paths
            .into_iter()
            .map(absolute_file)
            .collect::<Result<Vec<_>, _>>()?;
        let key = files_key(&paths, labels.as_deref());
        let listing = &if paths.len() <= FILES_ALONE_MAX {
            listing.alone()
        } else {
            *listing
        };
        let described = format!("{} files", paths.len());
        saved_or_listed(listing, &key, &described.clone(), || {
            let files = Files::from_paths(&paths, labels);
            let stamps = Stamps::take(folders(&files), listing.threads);
            let measures = measure(&files, listing).map_err(|misfit| file_error(&files, misfit))?;
            let draft = Draft {
                described,
                files,
                classes: Vec::new(),
            };
            Ok((draft.finish(&measures, listing.threads)?, stamps))
        })
    }

    /// The files that a text file lists, one a line: `path<TAB>label`, `path,label` (split at the last comma) or `path`.
    /// Relative paths begin at the manifest's folder; blank lines and lines that begin with `#` are skipped.
    pub fn manifest(path: &Path, listing: &Listing<'_>) -> Result<Self, DatasetError> {
        let unreadable = |cause: io::Error| DatasetError::Manifest {
            path: path.into(),
            cause,
        };
        let path = absolute(path).map_err(unreadable)?;
        let key = Key::new("manifest").with(path.as_os_str().as_bytes());
        let is_long = |found: fs::Metadata| found.len() > MANIFEST_ALONE_BYTES_MAX;
        let listing = &if fs::metadata(&path).is_ok_and(is_long) {
            *listing
        } else {
            listing.alone()
        };
        let called = path.display().to_string();
        saved_or_listed(listing, &key, &called, || {
            let manifest: Names = [path.as_os_str().as_bytes()].into_iter().collect();
            let stamp = Stamps::take(manifest, 1);
            let text = manifest::read(&path)?;
            let (dataset, folders) = list_manifest(&path, &text, listing)?;
            Ok((
                dataset,
                stamp
                    .zip(folders)
                    .map(|(manifest, folders)| manifest.and(&folders)),
            ))
        })
    }

    /// Some of its samples, in this order, as a dataset. Nothing is listed again, and nothing is saved: what is saved of the
    /// whole is enough.
    pub fn part(&self, samples: &[SampleId]) -> Result<Self, DatasetError> {
        if samples.is_empty() {
            return Err(DatasetError::NoFiles);
        }
        let whole = self.measured();
        let files = Files {
            folders: self.files.folders.clone(),
            folder_of: samples
                .iter()
                .map(|sample| self.files.folder_of[sample.index()])
                .collect(),
            names: samples
                .iter()
                .map(|sample| self.files.names.get(sample.index()))
                .collect(),
            labels: Some(samples.iter().map(|&sample| self.label(sample)).collect()),
        };
        let sizes = samples
            .iter()
            .map(|&sample| whole.catalog.size(sample).0)
            .collect();
        let measured = Measured {
            catalog: Arc::new(Catalog::new(sizes)),
            digest: part_digest(whole.digest, samples),
            times: whole
                .times
                .map(|times| samples.iter().map(|sample| times[sample.index()]).collect()),
        };
        let described = format!("{} files", samples.len());
        let part = Self::new(described, files, Vec::new(), measured);
        let place = part_digest(self.place(), samples);
        Ok(Self {
            saved: self.saved.clone(),
            place: u128::from_le_bytes(place),
            ..part
        })
    }

    /// How many samples there are: at least one.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a dataset without samples is an error when it is listed"
    )]
    pub fn len(&self) -> u32 {
        self.files.len() as u32
    }

    /// The samples' sizes.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.measured().catalog
    }

    /// A sample's label; 0 where there are none.
    pub fn label(&self, sample: SampleId) -> i64 {
        self.files
            .labels
            .as_ref()
            .map_or(0, |labels| labels[sample.index()])
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

    /// The path of the folder that all files are below, without a slash at the end; empty where there is none but the root.
    pub(crate) fn folder_of_all(&self) -> &[u8] {
        self.files.folder_of_all()
    }

    /// The classes' names by label; none where files were listed.
    pub fn classes(&self) -> &[OsString] {
        &self.classes
    }

    /// Differs between datasets: covers where they are, the names of their samples and the sizes.
    pub fn digest(&self) -> [u8; 16] {
        self.measured().digest
    }

    /// Tells where it is, or which files were listed, from all else; unlike its digest it knows no sizes, so it is the same
    /// for ranks that found other files in one folder.
    pub fn place(&self) -> [u8; 16] {
        self.place.to_le_bytes()
    }

    /// What its files were when they were measured last.
    pub fn measured(&self) -> Measured {
        self.measured
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Measures all files again: one has another size than when they were listed. What is saved is void.
    pub fn measure_again(&self) -> Result<Measured, DatasetError> {
        self.forget();
        let listing = Listing {
            cache: None,
            ..Listing::default()
        };
        let measures =
            measure(&self.files, &listing).map_err(|misfit| file_error(&self.files, misfit))?;
        let now = Measured::of(&self.files, &measures, THREADS)?;
        *self
            .measured
            .write()
            .unwrap_or_else(PoisonError::into_inner) = now.clone();
        Ok(now)
    }

    /// The dataset is not any more what is saved of it: the next start lists it again.
    pub fn forget(&self) {
        if let Some(saved) = &self.saved {
            saved.remove();
        }
    }

    /// What people call it: its folder, its manifest, or how many files it has.
    pub fn describe(&self) -> String {
        self.described.clone()
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let times = self
            .measured()
            .times
            .map_or(0, |times| size_of_val(&*times));
        self.files.memory_bytes() + self.files.len() * size_of::<u64>() + times
    }

    /// Saves a catalog of `root` and its class folders as if each held `files_per_class` files, for measurements.
    #[doc(hidden)]
    pub fn pretend_image_folder(
        root: &Path,
        files_per_class: u32,
        listing: &Listing<'_>,
    ) -> io::Result<()> {
        pretend(root, files_per_class, listing)
    }
}

impl PartialEq for Dataset {
    fn eq(&self, other: &Self) -> bool {
        let parts = |dataset: &Self| {
            (
                dataset.described.clone(),
                dataset.classes.clone(),
                dataset.measured(),
            )
        };
        parts(self) == parts(other) && self.files == other.files
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Dataset({}, {} samples)",
            OneLine(&self.described),
            self.len()
        )
    }
}

/// The path as it was given, which names of samples begin with, and where that leads.
fn image_folder_key(root: &Path, resolved: &Path) -> Key {
    Key::new("image folder")
        .with(root.as_os_str().as_bytes())
        .with(resolved.as_os_str().as_bytes())
}

fn list_manifest(
    path: &Path,
    text: &[u8],
    listing: &Listing<'_>,
) -> Result<(Dataset, Option<Stamps>), DatasetError> {
    let base = path.parent().unwrap_or(Path::new("/"));
    let line_error = |line, problem| DatasetError::Line {
        path: path.into(),
        line,
        problem,
    };
    let listed = manifest::parse(text, base).map_err(|bad| line_error(bad.line, bad.problem))?;
    if listed.paths.is_empty() {
        return Err(DatasetError::EmptyManifest(path.into()));
    }
    let files = Files::from_paths(&listed.paths, listed.labels);
    let stamps = Stamps::take(folders(&files), listing.threads);
    let measures = measure(&files, listing).map_err(|misfit| {
        line_error(
            listed.lines[misfit.index],
            file_error(&files, misfit).to_string(),
        )
    })?;
    let draft = Draft {
        described: path.display().to_string(),
        files,
        classes: Vec::new(),
    };
    Ok((draft.finish(&measures, listing.threads)?, stamps))
}

fn file_error(files: &Files, misfit: Misfit) -> DatasetError {
    DatasetError::File {
        path: files.path(misfit.index),
        problem: misfit.problem,
    }
}

fn absolute_file(path: PathBuf) -> Result<PathBuf, DatasetError> {
    absolute(&path).map_err(|cause| DatasetError::File {
        path,
        problem: FileProblem::Io(cause),
    })
}

/// The folders' paths as the system takes them.
fn folders(files: &Files) -> Names {
    files
        .folders
        .iter()
        .map(|folder| if folder.is_empty() { b"/" } else { folder })
        .collect()
}

fn files_key(paths: &[PathBuf], labels: Option<&[i64]>) -> Key {
    let key = Key::new(if labels.is_some() {
        "labelled files"
    } else {
        "files"
    });
    let key = paths
        .iter()
        .fold(key, |key, path| key.with(path.as_os_str().as_bytes()));
    labels
        .unwrap_or_default()
        .iter()
        .fold(key, |key, label| key.with(&label.to_le_bytes()))
}

/// A dataset before it is measured.
struct Draft {
    described: String,
    files: Files,
    classes: Vec<OsString>,
}

impl Draft {
    fn finish(self, measures: &Measures, threads: usize) -> Result<Dataset, DatasetError> {
        let samples = measures.files.len();
        // One number stays free.
        if samples >= u32::MAX as usize {
            return Err(DatasetError::TooMany {
                name: self.described,
                samples,
            });
        }
        let found = Measured::of(&self.files, measures, threads)?;
        Ok(Dataset::new(
            self.described,
            self.files,
            self.classes,
            found,
        ))
    }
}

impl Measured {
    fn of(files: &Files, measures: &Measures, threads: usize) -> Result<Self, DatasetError> {
        let digest = digest(files, &resolved(files, threads)?, &measures.files);
        let sizes = measures
            .files
            .iter()
            .map(|measure| measure.size_bytes)
            .collect();
        Ok(Self {
            catalog: Arc::new(Catalog::new(sizes)),
            digest,
            times: measures
                .had_rested
                .then(|| measures.files.iter().map(|measure| measure.times).collect()),
        })
    }
}

/// Where the folders are, links followed.
fn resolved(files: &Files, threads: usize) -> Result<Vec<PathBuf>, DatasetError> {
    let given = folders(files);
    let mut found: Vec<io::Result<PathBuf>> = Vec::new();
    found.resize_with(given.len(), || Ok(PathBuf::new()));
    in_chunks(&mut found, threads, |first, chunk| {
        for (offset, place) in chunk.iter_mut().enumerate() {
            *place = fs::canonicalize(OsStr::from_bytes(given.get(first + offset)));
        }
        Next::Go
    });
    let unreadable = |(index, found): (usize, io::Result<PathBuf>)| {
        let path = || OsStr::from_bytes(given.get(index)).into();
        found.map_err(|cause| DatasetError::Unreadable {
            path: path(),
            cause,
        })
    };
    found.into_iter().enumerate().map(unreadable).collect()
}

/// The first 16 bytes of a SHA-256; numbers with a fixed width, texts behind their length.
fn digest(files: &Files, folders: &[PathBuf], measures: &[Measure]) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update((folders.len() as u64).to_le_bytes());
    for folder in folders {
        let name = folder.as_os_str().as_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
    }
    let mut record = Vec::new();
    for (index, measure) in measures.iter().enumerate() {
        let name = files.names.get(index);
        record.clear();
        record.extend(files.folder_of[index].to_le_bytes());
        record.extend((name.len() as u64).to_le_bytes());
        record.extend(name);
        record.extend(measure.size_bytes.to_le_bytes());
        record.extend(measure.link.to_le_bytes());
        hash.update(&record);
    }
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|index| whole[index])
}

/// Of a part: which samples of which dataset.
fn part_digest(whole: [u8; 16], samples: &[SampleId]) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"part");
    hash.update(whole);
    for sample in samples {
        hash.update(sample.0.to_le_bytes());
    }
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|index| whole[index])
}

fn pretend(root: &Path, files_per_class: u32, listing: &Listing<'_>) -> io::Result<()> {
    let root = absolute(root)?;
    let mut folders = fs::read_dir(&root)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    folders.sort_unstable();
    let mut files = Files::default();
    let mut labels = Vec::new();
    let mut classes = Vec::new();
    for (class, folder) in (0_u32..).zip(&folders) {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        files.folders.push(files::folder_bytes(folder));
        for file in 0..files_per_class {
            files.names.push(format!("{name}_{file}.JPEG").as_bytes());
            files.folder_of.push(class);
            labels.push(i64::from(class));
        }
        classes.push(folder.file_name().unwrap_or_default().to_owned());
    }
    let file = Measure {
        size_bytes: 110_000,
        ..Measure::default()
    };
    let measures = Measures {
        files: vec![file; files.len()],
        had_rested: false,
    };
    files.shrink();
    files.labels = Some(labels);
    folders.push(root.clone());
    let stamped = folders
        .iter()
        .map(|folder| folder.as_os_str().as_bytes())
        .collect();
    let stamps = Stamps::take(stamped, listing.threads).ok_or(io::ErrorKind::NotFound)?;
    let draft = Draft {
        described: root.display().to_string(),
        files,
        classes,
    };
    let dataset = draft
        .finish(&measures, listing.threads)
        .map_err(io::Error::other)?;
    if let Some(catalogs) = listing.catalogs() {
        let key = image_folder_key(&root, &fs::canonicalize(&root)?);
        let saved = Saved::new(catalogs, &key);
        saved.store(&saved::encode(&dataset, &stamps, key.value()));
    }
    Ok(())
}
