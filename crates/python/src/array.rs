//! A few numbers for Python without `NumPy`: labels, indices, masks. Read-only; `NumPy`, torch and memoryviews see
//! them in place.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyTuple};

use crate::dlpack::{self, Asked, DataType, Given};
use crate::view::{self, Memory, Viewed};

/// The numbers.
#[derive(Clone)]
enum Items {
    Int64(Arc<[i64]>),
    Bool(Arc<[bool]>),
}

/// A read-only array of whole numbers or truth values.
#[pyclass(frozen, sequence, module = "foresee")]
pub(crate) struct Array {
    items: Items,
    memory: Memory,
}

impl Viewed for Array {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Array {
    pub(crate) fn of_numbers(numbers: Vec<i64>) -> Self {
        let numbers: Arc<[i64]> = numbers.into();
        let memory = Memory::new(
            numbers.as_ptr() as usize,
            numbers.len(),
            size_of::<i64>(),
            c"q",
        );
        Self {
            items: Items::Int64(numbers),
            memory,
        }
    }

    pub(crate) fn of_flags(flags: Vec<bool>) -> Self {
        let flags: Arc<[bool]> = flags.into();
        let memory = Memory::new(
            flags.as_ptr() as usize,
            flags.len(),
            size_of::<bool>(),
            c"?",
        );
        Self {
            items: Items::Bool(flags),
            memory,
        }
    }

    /// How many there are.
    pub(crate) fn items(&self) -> usize {
        self.memory.items()
    }

    fn item<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        match &self.items {
            Items::Int64(numbers) => numbers[index].into_bound_py_any(py),
            Items::Bool(flags) => flags[index].into_bound_py_any(py),
        }
    }
}

/// Where an index of Python lies in a sequence, if it does.
pub(crate) fn position(index: isize, len: usize) -> PyResult<usize> {
    let from_start = if index < 0 {
        index.checked_add_unsigned(len)
    } else {
        Some(index)
    };
    let position = from_start
        .and_then(|index| usize::try_from(index).ok())
        .filter(|&index| index < len);
    position.ok_or_else(|| PyIndexError::new_err(format!("{index}: there are {len} items")))
}

/// The positions that a slice means.
pub(crate) fn positions(slice: &Bound<'_, PySlice>, len: usize) -> PyResult<Vec<usize>> {
    let range = slice.indices(len.cast_signed())?;
    let steps = (0..range.slicelength).map(|step| range.start + range.step * step.cast_signed());
    Ok(steps.map(isize::cast_unsigned).collect())
}

#[pymethods]
impl Array {
    fn __len__(&self) -> usize {
        self.memory.items()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let positions = positions(slice, self.memory.items())?.into_iter();
            let part = match &self.items {
                Items::Int64(numbers) => {
                    Self::of_numbers(positions.map(|position| numbers[position]).collect())
                }
                Items::Bool(flags) => {
                    Self::of_flags(positions.map(|position| flags[position]).collect())
                }
            };
            return part.into_bound_py_any(py);
        }
        let index: isize = index
            .extract()
            .map_err(|_| PyTypeError::new_err("an index is a whole number or a slice"))?;
        self.item(py, position(index, self.memory.items())?)
    }

    /// As lists compare; what is no list (an array of `NumPy`) compares in its own way.
    fn __eq__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let own = self.tolist(other.py())?;
        match other.cast::<Self>() {
            Ok(other) => own.rich_compare(other.get().tolist(other.py())?, CompareOp::Eq),
            Err(_) => own.rich_compare(other, CompareOp::Eq),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Array({})", self.tolist(py)?.repr()?))
    }

    /// The items as a list.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.items {
            Items::Int64(numbers) => numbers.to_vec().into_bound_py_any(py),
            Items::Bool(flags) => flags.to_vec().into_bound_py_any(py),
        }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyAny>,))> {
        let maker = match self.items {
            Items::Int64(_) => "_numbers",
            Items::Bool(_) => "_flags",
        };
        Ok((py.get_type::<Self>().getattr(maker)?, (self.tolist(py)?,)))
    }

    #[staticmethod]
    fn _numbers(numbers: Vec<i64>) -> Self {
        Self::of_numbers(numbers)
    }

    #[staticmethod]
    fn _flags(flags: Vec<bool>) -> Self {
        Self::of_flags(flags)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.items {
            Items::Int64(_) => "<i8",
            Items::Bool(_) => "|b1",
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
        let dtype = match self.items {
            Items::Int64(_) => DataType::INT64,
            Items::Bool(_) => DataType::BOOL,
        };
        let keep = Box::new(self.items.clone());
        dlpack::capsule(
            py,
            Given {
                memory: &self.memory,
                dtype,
                shared: false,
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
        // SAFETY: the interpreter's view; the items never change and live as long as the object.
        unsafe { view::fill(slf, view, flags) }
    }
}

/// `NumPy`'s older way to see memory in place.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    memory: &Memory,
    kind: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", kind)?;
    interface.set_item("shape", PyTuple::new(py, memory.shape())?)?;
    interface.set_item("data", (memory.address(), true))?;
    Ok(interface)
}
