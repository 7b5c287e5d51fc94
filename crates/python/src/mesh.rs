//! The way of this process to the other ranks, as Python starts it: where they meet was found there. In a forked child it is
//! left behind, never dropped: its threads are not there.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foresee_config::{Config, Environment};
use foresee_core::ids::Rank;
use foresee_runtime::fork;
use foresee_runtime::job::Open;
use foresee_runtime::transport::mpi::{Access, MpiError, Seeking};
use foresee_runtime::transport::tcp::{self, Meeting, MeshError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{self, Kind, error};
use crate::{job, log};

/// Where ranks meet; `python/foresee/_peers.py` has found it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Arguments {
    rank: u32,
    world: u32,
    host: String,
    port: u16,
    bind: IpAddr,
    secret: Option<Vec<u8>>,
    launch: String,
    encrypt: bool,
    sample_bytes_max: u64,
}

/// One process's end of the ways to all other ranks of its launch, whatever the number of its jobs.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Mesh {
    mesh: ManuallyDrop<Arc<tcp::Mesh>>,
    /// Forks before it was made.
    generation: u32,
}

impl Mesh {
    /// What opens a way for a job with samples of this size at most; none in a forked child.
    pub(crate) fn open(&self, sample_bytes_max: u64) -> Option<Open> {
        let mesh = self.shared()?;
        mesh.allow(sample_bytes_max);
        Some(Arc::new(move |job| mesh.transport(job)))
    }

    /// The mesh itself; none in a forked child.
    pub(crate) fn shared(&self) -> Option<Arc<tcp::Mesh>> {
        (self.generation == fork::generation()).then(|| Arc::clone(&self.mesh))
    }
}

impl Drop for Mesh {
    #[expect(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: taken here, once, and not touched again.
            drop(unsafe { ManuallyDrop::take(&mut self.mesh) });
        }
    }
}

/// What a configuration says of how ranks meet.
pub(crate) fn settings<'py>(py: Python<'py>, config: &Config) -> PyResult<Bound<'py, PyDict>> {
    let peers = &config.peers;
    let secret = peers
        .secret(&Environment::of_process())
        .map_err(|wrong| errors::config(py, &wrong))?;
    let secret = secret.map(|secret| PyBytes::new(py, secret.bytes()));
    let settings = PyDict::new(py);
    settings.set_item("transport", peers.transport.name())?;
    settings.set_item("wants_mpi", peers.transport.wants_mpi())?;
    settings.set_item("mpi_library", peers.mpi_library.as_deref())?;
    settings.set_item("port", peers.port)?;
    settings.set_item("bind", peers.bind.map(|bind| bind.to_string()))?;
    settings.set_item("secret", secret)?;
    settings.set_item("encrypt", peers.encrypt)?;
    settings.set_item("patience_s", peers.patience.as_secs_f64())?;
    settings.set_item("sample_bytes_max", config.staging.capacity_bytes)?;
    Ok(settings)
}

/// The same of an argument `config` of Python's.
#[pyfunction]
pub(crate) fn peer_settings<'py>(
    py: Python<'py>,
    config: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    settings(py, &job::config(config)?)
}

impl From<Arguments> for Meeting {
    fn from(arguments: Arguments) -> Self {
        Self {
            rank: Rank(arguments.rank),
            world: arguments.world,
            first: (arguments.host, arguments.port),
            bind: arguments.bind,
            secret: arguments.secret,
            launch: arguments.launch,
            encrypt: arguments.encrypt,
            sample_bytes_max: arguments.sample_bytes_max,
        }
    }
}

impl Mesh {
    fn made(
        py: Python<'_>,
        start: impl FnOnce() -> Result<Arc<tcp::Mesh>, MeshError> + Send,
    ) -> PyResult<Self> {
        let generation = fork::generation();
        let mesh = py
            .detach(start)
            .map_err(|wrong| error(py, Kind::Foresee, wrong.to_string()))?;
        log::drain(py)?;
        Ok(Self {
            mesh: ManuallyDrop::new(mesh),
            generation,
        })
    }
}

#[pymethods]
impl Mesh {
    #[new]
    fn new(py: Python<'_>, arguments: Arguments) -> PyResult<Self> {
        Self::made(py, || tcp::Mesh::start(arguments.into()))
    }

    /// The port that it listens at.
    #[getter]
    fn port(&self) -> u16 {
        self.mesh.port()
    }
}

/// This process among the ranks of MPI, on its way to meet them; `python/foresee/_peers.py` takes the steps. Each call is short:
/// between two of them Ctrl-C is heard.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Mpi {
    /// None once it has become a mesh.
    seeking: Mutex<Option<Seeking>>,
}

impl Mpi {
    /// Does something without Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        take_step: impl FnOnce(&mut Seeking) -> Result<T, MpiError> + Send,
    ) -> PyResult<T> {
        let taken = py.detach(|| {
            let mut seeking = self.seeking.lock().unwrap_or_else(PoisonError::into_inner);
            seeking.as_mut().map(take_step)
        });
        let step = taken.ok_or_else(|| gone(py))?;
        step.map_err(|wrong| error(py, Kind::Foresee, wrong.to_string()))
    }
}

fn gone(py: Python<'_>) -> PyErr {
    error(
        py,
        Kind::Foresee,
        "MPI: the ranks have met already".to_owned(),
    )
}

#[pymethods]
impl Mpi {
    /// Begins to meet the others. None where MPI may not be initialised, and the program has not, or for another world.
    #[staticmethod]
    fn begin(
        py: Python<'_>,
        rank: u32,
        world: u32,
        may_initialise: bool,
        library: Option<PathBuf>,
    ) -> PyResult<Option<Self>> {
        let access = Access {
            may_initialise,
            library,
        };
        match py.detach(|| Seeking::begin(&access, Rank(rank), world)) {
            Ok(seeking) => Ok(Some(Self {
                seeking: Mutex::new(Some(seeking)),
            })),
            Err(MpiError::NotInitialised | MpiError::World { .. } | MpiError::Over)
                if !may_initialise =>
            {
                Ok(None)
            }
            Err(wrong) => Err(error(py, Kind::Foresee, wrong.to_string())),
        }
    }

    /// Whether all ranks have come, within so long.
    fn await_all(&self, py: Python<'_>, patience_s: f64) -> PyResult<bool> {
        let patience = Duration::from_secs_f64(patience_s);
        self.with(py, |seeking| seeking.await_all(patience))
    }

    /// Rank 0 tells the others; they get it, or None where it has not come within so long.
    fn share<'py>(
        &self,
        py: Python<'py>,
        told: Option<Vec<u8>>,
        patience_s: f64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let patience = Duration::from_secs_f64(patience_s);
        let shared = self.with(py, |seeking| seeking.share(told, patience))?;
        Ok(shared.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Whether MPI lets a thread of ours call it, so that it can carry samples.
    #[getter]
    fn carries(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |seeking| seeking.carries())
    }

    /// The mesh that MPI carries.
    fn mesh(&self, py: Python<'_>, arguments: Arguments) -> PyResult<Mesh> {
        let mut seeking = self.seeking.lock().unwrap_or_else(PoisonError::into_inner);
        let seeking = seeking.take().ok_or_else(|| gone(py))?;
        let meeting = arguments.into();
        Mesh::made(py, move || seeking.mesh(&meeting))
    }
}
