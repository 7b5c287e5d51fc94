//! The way of this process to the other ranks, as Python starts it: where they meet was found there. In a forked child it is
//! left behind, never dropped: its threads are not there.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::Arc;

use foresee_core::ids::Rank;
use foresee_runtime::fork;
use foresee_runtime::job::Open;
use foresee_runtime::transport::tcp::{self, Meeting};
use pyo3::prelude::*;

use crate::errors::{Kind, error};
use crate::log;

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
    /// What opens a way for a job; none in a forked child.
    pub(crate) fn open(&self) -> Option<Open> {
        if self.generation != fork::generation() {
            return None;
        }
        let mesh = Arc::clone(&self.mesh);
        Some(Arc::new(move |job| mesh.transport(job)))
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
