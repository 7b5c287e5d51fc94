//! The way of this process to the other ranks, as Python starts it: where they meet was found there. In a forked child it is
//! left behind, never dropped: its threads are not there.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::Arc;

use foresee_config::{Config, Environment};
use foresee_core::ids::Rank;
use foresee_runtime::fork;
use foresee_runtime::job::Open;
use foresee_runtime::transport::tcp::{self, Meeting};
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

#[pymethods]
impl Mesh {
    #[new]
    fn new(py: Python<'_>, arguments: Arguments) -> PyResult<Self> {
        let meeting = Meeting {
            rank: Rank(arguments.rank),
            world: arguments.world,
            first: (arguments.host, arguments.port),
            bind: arguments.bind,
            secret: arguments.secret,
            launch: arguments.launch,
            encrypt: arguments.encrypt,
            sample_bytes_max: arguments.sample_bytes_max,
        };
        let generation = fork::generation();
        let mesh = py
            .detach(|| tcp::Mesh::start(meeting))
            .map_err(|wrong| error(py, Kind::Foresee, wrong.to_string()))?;
        log::drain(py)?;
        Ok(Self {
            mesh: ManuallyDrop::new(mesh),
            generation,
        })
    }

    /// The port that it listens at.
    #[getter]
    fn port(&self) -> u16 {
        self.mesh.port()
    }
}
