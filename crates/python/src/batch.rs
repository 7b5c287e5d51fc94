//! A batch as Python sees it. Samples stay where the loader put them: each Python object made from one holds the lease,
//! and its place is free again when the last of them and the batch are gone. Objects are made when they are looked at.

use std::ffi::c_int;
use std::sync::Arc;

use foresee_image::Output;
use foresee_runtime::dataset::Dataset;
use foresee_runtime::job::{self, Lease};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};

use crate::array::{Array, array_interface, position, positions};
use crate::dlpack::{self, Asked, DataType, Given};
use crate::tensor::Tensor;
use crate::view::{self, Memory, Viewed};

/// What samples are handed over as.
enum Data {
    /// As they are in the dataset.
    Encoded(Arc<[Arc<Lease>]>),
    /// As one array.
    Decoded(Py<Tensor>),
}

/// The samples of one rank in one step.
#[pyclass(frozen, module = "foresee")]
pub(crate) struct Batch {
    data: Data,
    #[pyo3(get)]
    epoch: u32,
    #[pyo3(get)]
    step: u32,
    #[pyo3(get)]
    indices: Py<Array>,
    #[pyo3(get)]
    labels: Py<Array>,
    #[pyo3(get)]
    mask: Py<Array>,
}

impl Batch {
    pub(crate) fn new(
        py: Python<'_>,
        batch: job::Batch,
        dataset: &Dataset,
        output: Option<Output>,
    ) -> PyResult<Self> {
        let samples = &batch.samples;
        let indices = samples
            .iter()
            .map(|sample| i64::from(sample.id.0))
            .collect();
        let labels = samples
            .iter()
            .map(|sample| dataset.label(sample.id))
            .collect();
        let mask = samples.iter().map(|sample| !sample.padded).collect();
        Ok(Self {
            epoch: batch.epoch,
            step: batch.step,
            indices: Py::new(py, Array::of_numbers(indices))?,
            labels: Py::new(py, Array::of_numbers(labels))?,
            mask: Py::new(py, Array::of_flags(mask))?,
            data: match output {
                None => Data::Encoded(
                    batch
                        .samples
                        .into_iter()
                        .map(|sample| Arc::new(sample.lease))
                        .collect(),
                ),
                Some(output) => Data::Decoded(Py::new(py, Tensor::of_batch(batch, output))?),
            },
        })
    }
}

#[pymethods]
impl Batch {
    /// The samples' bytes, one object a sample; one array where images are decoded.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.data {
            Data::Encoded(leases) => Samples(Arc::clone(leases)).into_bound_py_any(py),
            Data::Decoded(tensor) => Ok(tensor.bind(py).clone().into_any()),
        }
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.indices.bind(py).get().items()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Batch(epoch={}, step={}, samples={})",
            self.epoch,
            self.step,
            self.__len__(py)
        )
    }

    #[expect(clippy::unused_self, reason = "a method in Python")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a batch lies in the loader's memory and cannot be pickled: send bytes(sample) instead",
        ))
    }
}

/// The samples of a batch.
#[pyclass(frozen, sequence, module = "foresee")]
pub(crate) struct Samples(Arc<[Arc<Lease>]>);

#[pymethods]
impl Samples {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let positions = positions(slice, self.0.len())?;
            return Self(
                positions
                    .into_iter()
                    .map(|position| Arc::clone(&self.0[position]))
                    .collect(),
            )
            .into_bound_py_any(py);
        }
        let index: isize = index
            .extract()
            .map_err(|_| PyTypeError::new_err("an index is a whole number or a slice"))?;
        Sample::new(Arc::clone(&self.0[position(index, self.0.len())?])).into_bound_py_any(py)
    }

    fn __repr__(&self) -> String {
        format!("Samples({})", self.0.len())
    }
}

/// One sample's bytes, in place: a memoryview and `NumPy` see them without a copy, and so does `DLPack` where no tier keeps
/// them.
#[pyclass(frozen, module = "foresee")]
pub(crate) struct Sample {
    lease: Arc<Lease>,
    memory: Memory,
}

impl Sample {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        let bytes = lease.bytes();
        let memory = Memory::new(bytes.as_ptr() as usize, bytes.len(), 1, c"B");
        Self { lease, memory }
    }
}

impl Viewed for Sample {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

#[pymethods]
impl Sample {
    fn __len__(&self) -> usize {
        self.memory.items()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.lease.bytes())
    }

    fn __repr__(&self) -> String {
        format!("Sample({} bytes)", self.memory.items())
    }

    #[expect(clippy::unused_self, reason = "a method in Python")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a sample lies in the loader's memory and cannot be pickled: send bytes(sample) instead",
        ))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, &self.memory, "|u1")
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keep = Box::new(Arc::clone(&self.lease));
        dlpack::capsule(
            py,
            Given {
                memory: &self.memory,
                dtype: DataType::UINT8,
                shared: self.lease.is_shared(),
                keep,
            },
            &Asked {
                max_version,
                dl_device,
                copy,
                stream,
            },
        )
    }

    #[expect(clippy::unused_self, reason = "a method in Python")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device()
    }

    #[expect(unsafe_code, reason = "the buffer protocol")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter's view; the object holds the lease, and with it the sample in its place.
        unsafe { view::fill(slf, view, flags) }
    }
}
