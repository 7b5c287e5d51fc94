//! A decoded batch, or one image of it, as an array of several dimensions. It lies where the loader threads put it, and
//! holds the leases of all its samples; a copy only where they do not lie side by side.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use foresee_image::{Dtype, Layout, Output};
use foresee_runtime::job::{self, Lease};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{array_interface, position};
use crate::dlpack::{self, Asked, DataType, Given};
use crate::view::{self, Memory, Viewed};

/// What keeps the numbers in their place.
#[derive(Clone)]
enum Keep {
    Leases(#[expect(dead_code, reason = "held, not looked at")] Arc<[Lease]>),
    Copied(#[expect(dead_code, reason = "held, not looked at")] Arc<[u64]>),
}

/// A read-only array of decoded images.
#[pyclass(frozen, module = "foresee")]
pub(crate) struct Tensor {
    keep: Keep,
    dtype: Dtype,
    memory: Memory,
}

impl Tensor {
    /// All images of a batch.
    pub(crate) fn of_batch(batch: job::Batch, output: Output) -> Self {
        let shape: Vec<usize> = std::iter::once(batch.samples.len())
            .chain(dimensions(output))
            .collect();
        let item_bytes = output.dtype.bytes();
        let whole = batch.tensor().map(|bytes| bytes.as_ptr() as usize);
        let (address, keep) = match whole.filter(|address| address % item_bytes == 0) {
            Some(address) => (
                address,
                Keep::Leases(
                    batch
                        .samples
                        .into_iter()
                        .map(|sample| sample.lease)
                        .collect(),
                ),
            ),
            None => gathered(&batch, output.bytes),
        };
        Self {
            keep,
            dtype: output.dtype,
            memory: Memory::shaped(address, &shape, item_bytes, format(output.dtype)),
        }
    }

    /// One image.
    pub(crate) fn of_sample(batch: job::Batch, output: Output) -> Self {
        Self::of_batch(batch, output).image(0)
    }

    fn image(&self, index: usize) -> Self {
        let shape: Vec<usize> = self.memory.shape().skip(1).collect();
        let image_bytes = shape.iter().product::<usize>() * self.dtype.bytes();
        let address = self.memory.address() + index * image_bytes;
        let memory = Memory::shaped(address, &shape, self.dtype.bytes(), format(self.dtype));
        Self {
            keep: self.keep.clone(),
            dtype: self.dtype,
            memory,
        }
    }
}

/// Samples that do not lie side by side, one after the other.
fn gathered(batch: &job::Batch, sample_bytes: usize) -> (usize, Keep) {
    let bytes: Vec<u8> = batch
        .samples
        .iter()
        .flat_map(|sample| sample.lease.bytes())
        .copied()
        .collect();
    debug_assert_eq!(bytes.len(), batch.samples.len() * sample_bytes);
    // Words, so that numbers of any type are aligned.
    let mut words = bytes.chunks(size_of::<u64>()).map(|chunk| {
        let mut word = [0; size_of::<u64>()];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    let copy: Arc<[u64]> = words.by_ref().collect();
    (copy.as_ptr() as usize, Keep::Copied(copy))
}

fn dimensions(output: Output) -> [usize; 3] {
    let height = output.size.height as usize;
    let width = output.size.width as usize;
    match output.layout {
        Layout::Chw => [output.channels, height, width],
        Layout::Hwc => [height, width, output.channels],
    }
}

/// As Python's `struct` writes it.
fn format(dtype: Dtype) -> &'static CStr {
    match dtype {
        Dtype::Float32 => c"f",
        Dtype::Float16 => c"e",
        Dtype::Uint8 => c"B",
    }
}

impl Viewed for Tensor {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

#[pymethods]
impl Tensor {
    /// Items of the first dimension.
    fn __len__(&self) -> usize {
        self.memory.shape().next().unwrap_or(0)
    }

    /// One image of a batch.
    fn __getitem__(&self, index: isize) -> PyResult<Self> {
        if self.memory.shape().count() < 4 {
            return Err(PyTypeError::new_err(
                "an image has no items: look at it with NumPy, torch or a memoryview",
            ));
        }
        Ok(self.image(position(index, self.__len__())?))
    }

    /// Items by dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.memory.shape())
    }

    /// The type of the numbers: `float32`, `float16` or `uint8`.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.dtype {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Uint8 => "uint8",
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Tensor(shape={}, dtype={})",
            self.shape(py)?.into_bound_py_any(py)?.repr()?,
            self.dtype()
        ))
    }

    #[expect(clippy::unused_self, reason = "a method in Python")]
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a tensor lies in the loader's memory and cannot be pickled: copy it, as with NumPy",
        ))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.dtype {
            Dtype::Float32 => "<f4",
            Dtype::Float16 => "<f2",
            Dtype::Uint8 => "|u1",
        };
        array_interface(py, &self.memory, kind)
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
        let dtype = match self.dtype {
            Dtype::Float32 => DataType::FLOAT32,
            Dtype::Float16 => DataType::FLOAT16,
            Dtype::Uint8 => DataType::UINT8,
        };
        let given = Given {
            memory: &self.memory,
            dtype,
            shared: false,
            keep: Box::new(self.keep.clone()),
        };
        dlpack::capsule(
            py,
            given,
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
        // SAFETY: the interpreter's view; the object holds the leases, and with them the images in their place.
        unsafe { view::fill(slf, view, flags) }
    }
}
