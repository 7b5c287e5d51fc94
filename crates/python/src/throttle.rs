//! An emulated slow storage, for datasets of ours and for other loaders.

use std::path::PathBuf;
use std::sync::Arc;

use foresee_core::model::{Beyond, Curve};
use foresee_core::units::{Bytes, Seconds};
use foresee_runtime::source;
use pyo3::prelude::*;

use crate::PATIENCE;
use crate::errors::{self, Kind};

/// A storage that all processes share which give it this name.
#[pyclass(frozen, module = "foresee")]
pub(crate) struct Throttle {
    inner: Arc<source::Throttle>,
    #[pyo3(get)]
    name: String,
    points: Vec<(u32, f64)>,
    #[pyo3(get)]
    latency_ms: f64,
}

impl Throttle {
    pub(crate) fn inner(&self) -> Arc<source::Throttle> {
        Arc::clone(&self.inner)
    }

    /// Blocks while the storage serves so many bytes, and meanwhile does the real work.
    fn serve<T: Send>(
        &self,
        py: Python<'_>,
        bytes: u64,
        work: impl FnOnce() -> T + Send,
    ) -> PyResult<T> {
        let begin = || -> Result<_, source::ThrottleError> {
            let turn = self.inner.begin(Bytes(bytes))?;
            Ok((work(), turn))
        };
        let (done, turn) = py
            .detach(begin)
            .map_err(|wrong| errors::throttle(py, &wrong))?;
        while !py.detach(|| turn.wait_for(PATIENCE)) {
            py.check_signals()?;
        }
        Ok(done)
    }
}

#[pymethods]
impl Throttle {
    #[new]
    fn new(
        py: Python<'_>,
        name: String,
        points: Vec<(u32, f64)>,
        latency_ms: f64,
    ) -> PyResult<Self> {
        let curve = Curve::new(points.clone(), Beyond::Clamp)
            .map_err(|wrong| errors::error(py, Kind::Config, format!("mb_per_s: {wrong}")))?;
        let inner = source::Throttle::open(&name, curve, Seconds(latency_ms / 1e3))
            .map_err(|wrong| errors::throttle(py, &wrong))?;
        Ok(Self {
            inner: Arc::new(inner),
            name,
            points,
            latency_ms,
        })
    }

    /// Throughput in MB/s by the number of reads under way.
    #[getter]
    fn mb_per_s(&self) -> std::collections::BTreeMap<u32, f64> {
        self.points.iter().copied().collect()
    }

    /// Reads a file, and takes as long as the storage would.
    #[expect(clippy::needless_pass_by_value, reason = "made for the call")]
    fn read(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<u8>> {
        let failed = |cause: std::io::Error| errors::file(py, &cause, &path);
        let size_bytes = py
            .detach(|| std::fs::metadata(&path))
            .map_err(failed)?
            .len();
        self.serve(py, size_bytes, || std::fs::read(&path))?
            .map_err(failed)
    }

    /// Takes as long as the storage would for a read of so many bytes.
    fn charge(&self, py: Python<'_>, n_bytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let Ok(bytes) = n_bytes.extract::<u64>() else {
            let said = format!(
                "n_bytes={}: give a number of bytes, 0 or more",
                n_bytes.repr()?
            );
            return Err(errors::error(py, Kind::Config, said));
        };
        self.serve(py, bytes, || ())
    }

    fn __repr__(&self) -> String {
        let points: Vec<String> = self
            .points
            .iter()
            .map(|(readers, rate)| format!("{readers}: {rate}"))
            .collect();
        format!(
            "emulate({:?}, mb_per_s={{{}}}, latency_ms={})",
            self.name,
            points.join(", "),
            self.latency_ms
        )
    }

    /// What it was made from.
    fn __getnewargs__(&self) -> (&str, Vec<(u32, f64)>, f64) {
        (&self.name, self.points.clone(), self.latency_ms)
    }
}
