//! A dataset: listed once, held without a Python object for each sample. Listing runs on a thread of its own, so that
//! whoever waits can be interrupted and told how far it is.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_config::{CatalogFolder, Config, Environment};
use foresee_core::ids::SampleId;
use foresee_runtime::dataset::{self, DatasetError, Listing, PATIENCE_MAX};
use foresee_runtime::source::{LocalFiles, Source, Throttled};
use foresee_runtime::transport::tcp;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::array::{Array, position};
use crate::mesh::Mesh;
use crate::throttle::Throttle;
use crate::{PATIENCE, errors, job, log};

/// Listings that are over sooner are not worth a line.
const QUIET: Duration = Duration::from_secs(1);

/// All samples of a dataset.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Dataset {
    inner: Arc<dataset::Dataset>,
    throttle: Option<Py<Throttle>>,
    catalogs: Catalogs,
}

impl Dataset {
    /// Catalogs are saved when a dataset is listed: what a job's configuration says comes too late.
    pub(crate) fn refuse_other_catalogs(&self, py: Python<'_>, config: &Config) -> PyResult<()> {
        let asked = config.catalog.folder(&Environment::of_process());
        if config.catalog == CatalogFolder::UserCache || asked == self.catalogs.folder {
            return Ok(());
        }
        let quoted = |folder: &Option<PathBuf>| match folder {
            Some(folder) => format!("{:?}", folder.display().to_string()),
            None => "\"\"".to_owned(),
        };
        let wrong = format!(
            "config: catalog.path: {} comes too late, the dataset was listed with {}; give the dataset this config, too: \
             foresee.ImageFolder(..., config=...)",
            quoted(&asked),
            quoted(&self.catalogs.folder)
        );
        Err(errors::error(py, errors::Kind::Config, wrong))
    }

    pub(crate) fn inner(&self) -> &Arc<dataset::Dataset> {
        &self.inner
    }

    /// Where its samples are read from.
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        let files = LocalFiles::new(Arc::clone(&self.inner));
        match &self.throttle {
            None => Arc::new(files),
            Some(throttle) => Arc::new(Throttled::new(files, throttle.get().inner())),
        }
    }
}

/// Where a dataset's catalog is saved.
#[derive(Clone)]
struct Catalogs {
    folder: Option<PathBuf>,
    /// Whoever may write there.
    trusted: bool,
}

/// How a dataset is listed, as arguments of Python's say.
struct How<'a, 'py> {
    /// Where to say how far it is, a file of Python's.
    progress: Option<&'a Bound<'py, PyAny>>,
    catalogs: Catalogs,
    /// The way to the other ranks.
    mesh: Option<Arc<tcp::Mesh>>,
    /// How long rank 0 may take to begin.
    patience: Duration,
}

impl<'a, 'py> How<'a, 'py> {
    fn configured(
        py: Python<'py>,
        progress: Option<&'a Bound<'py, PyAny>>,
        config: Option<&Bound<'py, PyAny>>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let none = py.None().into_bound(py);
        let config = job::config(config.unwrap_or(&none))?;
        let catalogs = Catalogs {
            folder: config.catalog.folder(&Environment::of_process()),
            trusted: config.trust_catalogs,
        };
        Ok(Self {
            progress,
            catalogs,
            mesh: mesh.and_then(Mesh::shared),
            patience: config.peers.patience.min(PATIENCE_MAX),
        })
    }
}

type List = dyn FnOnce(&Listing<'_>) -> Result<dataset::Dataset, DatasetError> + Send;

/// Lists a dataset on another thread.
fn listed(py: Python<'_>, list: Box<List>, how: &How<'_, '_>) -> PyResult<dataset::Dataset> {
    let Catalogs {
        folder: cache,
        trusted,
    } = how.catalogs.clone();
    let mesh = how.mesh.clone();
    let patience = how.patience;
    let (sender, receiver) = channel();
    // A receiver is not shared, but this thread may wait for it where nobody has the interpreter.
    let receiver = Mutex::new(receiver);
    let looked_at = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&looked_at);
    let work = move || {
        let count = move |samples| counter.store(samples, Ordering::Relaxed);
        let listing = Listing {
            cache: cache.as_deref(),
            trusted,
            progress: Some(&count),
            mesh: mesh.as_ref(),
            patience,
            ..Listing::default()
        };
        // Nobody waits any more where it was interrupted.
        let _ = sender.send(list(&listing));
    };
    let spawned = std::thread::Builder::new()
        .name("foresee-list".to_owned())
        .spawn(work);
    spawned.map_err(|cause| errors::no_thread(py, &cause))?;
    let began = Instant::now();
    let mut said = false;
    let found = loop {
        let waited = py.detach(|| {
            receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv_timeout(PATIENCE)
        });
        match waited {
            Ok(found) => break found,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(errors::error(
                    py,
                    errors::Kind::Dataset,
                    "listing failed: please report this as a defect",
                ));
            }
        }
        if let Some(out) = how.progress.filter(|_| began.elapsed() > QUIET) {
            out.call_method1(
                "write",
                (format!(
                    "\rforesee: {} files listed",
                    looked_at.load(Ordering::Relaxed)
                ),),
            )?;
            out.call_method0("flush")?;
            said = true;
        }
    };
    if let Some(out) = how.progress.filter(|_| said) {
        out.call_method1("write", ("\n",))?;
    }
    log::drain(py)?;
    found.map_err(|wrong| errors::dataset(py, &wrong))
}

#[pymethods]
impl Dataset {
    /// The images in class folders.
    #[staticmethod]
    #[pyo3(signature = (root, throttle=None, progress=None, config=None, mesh=None))]
    fn image_folder(
        py: Python<'_>,
        root: PathBuf,
        throttle: Option<Py<Throttle>>,
        progress: Option<&Bound<'_, PyAny>>,
        config: Option<&Bound<'_, PyAny>>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let how = How::configured(py, progress, config, mesh)?;
        let list = move |listing: &Listing<'_>| dataset::Dataset::image_folder(&root, listing);
        Ok(Self {
            inner: Arc::new(listed(py, Box::new(list), &how)?),
            throttle,
            catalogs: how.catalogs,
        })
    }

    /// A list of files.
    #[staticmethod]
    #[pyo3(signature = (paths, labels=None, throttle=None, progress=None, config=None, mesh=None))]
    fn files(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        labels: Option<Vec<i64>>,
        throttle: Option<Py<Throttle>>,
        progress: Option<&Bound<'_, PyAny>>,
        config: Option<&Bound<'_, PyAny>>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let how = How::configured(py, progress, config, mesh)?;
        let list = move |listing: &Listing<'_>| dataset::Dataset::files(paths, labels, listing);
        Ok(Self {
            inner: Arc::new(listed(py, Box::new(list), &how)?),
            throttle,
            catalogs: how.catalogs,
        })
    }

    /// The files that a text file lists.
    #[staticmethod]
    #[pyo3(signature = (path, throttle=None, progress=None, config=None, mesh=None))]
    fn manifest(
        py: Python<'_>,
        path: PathBuf,
        throttle: Option<Py<Throttle>>,
        progress: Option<&Bound<'_, PyAny>>,
        config: Option<&Bound<'_, PyAny>>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let how = How::configured(py, progress, config, mesh)?;
        let list = move |listing: &Listing<'_>| dataset::Dataset::manifest(&path, listing);
        Ok(Self {
            inner: Arc::new(listed(py, Box::new(list), &how)?),
            throttle,
            catalogs: how.catalogs,
        })
    }

    /// Some of its samples.
    fn part(&self, py: Python<'_>, indices: Vec<isize>) -> PyResult<Self> {
        let samples = indices
            .into_iter()
            .map(|index| self.sample(index))
            .collect::<PyResult<Vec<_>>>()?;
        let part = self
            .inner
            .part(&samples)
            .map_err(|wrong| errors::dataset(py, &wrong))?;
        let throttle = self
            .throttle
            .as_ref()
            .map(|throttle| throttle.clone_ref(py));
        Ok(Self {
            inner: Arc::new(part),
            throttle,
            catalogs: self.catalogs.clone(),
        })
    }

    fn __len__(&self) -> usize {
        self.inner.len() as usize
    }

    /// The path of a sample's file.
    fn path<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyString>> {
        Ok(as_text(py, self.inner.path(self.sample(index)?)))
    }

    /// All of them.
    fn paths<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyString>> {
        (0..self.inner.len())
            .map(|sample| as_text(py, self.inner.path(SampleId(sample))))
            .collect()
    }

    /// All sizes.
    fn sizes(&self) -> Array {
        let catalog = self.inner.catalog();
        Array::of_numbers(
            catalog
                .samples()
                .map(|sample| catalog.size(sample).0.cast_signed())
                .collect(),
        )
    }

    /// All labels.
    fn labels(&self) -> Array {
        Array::of_numbers(
            (0..self.inner.len())
                .map(|sample| self.inner.label(SampleId(sample)))
                .collect(),
        )
    }

    #[getter]
    fn has_labels(&self) -> bool {
        self.inner.has_labels()
    }

    #[getter]
    fn classes(&self) -> Vec<OsString> {
        self.inner.classes().to_vec()
    }

    #[getter]
    fn described(&self) -> String {
        self.inner.describe()
    }

    #[getter]
    fn throttle(&self, py: Python<'_>) -> Option<Py<Throttle>> {
        self.throttle
            .as_ref()
            .map(|throttle| throttle.clone_ref(py))
    }
}

impl Dataset {
    fn sample(&self, index: isize) -> PyResult<SampleId> {
        let len = self.inner.len() as usize;
        let found = position(index, len)
            .map_err(|_| PyIndexError::new_err(format!("{index}: there are {len} samples")));
        Ok(SampleId(found? as u32))
    }
}

/// A path as `os.fsdecode` gives it.
fn as_text(py: Python<'_>, path: PathBuf) -> Bound<'_, PyString> {
    match path.into_os_string().into_pyobject(py) {
        Ok(text) => text,
        Err(never) => match never {},
    }
}
