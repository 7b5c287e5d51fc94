//! The buffer protocol: read-only views of memory that a Python object keeps alive, items without gaps, the last
//! dimension the closest.
#![allow(unsafe_code, reason = "the buffer protocol is made of pointers")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::{PyClass, ffi};

/// Memory that is only read, with its shape where views can point to it. Lives in the Python object that owns the memory.
pub(crate) struct Memory {
    address: usize,
    item_bytes: isize,
    dimensions: usize,
    /// Items by dimension.
    shape: [isize; DIMENSIONS_MAX],
    /// Bytes from one item to the next, by dimension.
    strides: [isize; DIMENSIONS_MAX],
    format: &'static CStr,
}

/// A batch of images has as many.
const DIMENSIONS_MAX: usize = 4;

impl Memory {
    /// So many items of so many bytes each, from `address` on. A view has the type that `format` (see Python's `struct`)
    /// says.
    pub(crate) fn new(
        address: usize,
        items: usize,
        item_bytes: usize,
        format: &'static CStr,
    ) -> Self {
        Self::shaped(address, &[items], item_bytes, format)
    }

    /// The same in several dimensions.
    pub(crate) fn shaped(
        address: usize,
        given: &[usize],
        item_bytes: usize,
        format: &'static CStr,
    ) -> Self {
        assert!(
            given.len() <= DIMENSIONS_MAX,
            "images and batches of them have no more dimensions"
        );
        let dimensions = given.len();
        let item_bytes = item_bytes.cast_signed();
        let mut shape = [0; DIMENSIONS_MAX];
        let mut strides = [item_bytes; DIMENSIONS_MAX];
        for dimension in (0..dimensions).rev() {
            shape[dimension] = given[dimension].cast_signed();
            if dimension > 0 {
                strides[dimension - 1] = strides[dimension] * shape[dimension];
            }
        }
        Self {
            address,
            item_bytes,
            dimensions,
            shape,
            strides,
            format,
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Items of all dimensions.
    pub(crate) fn items(&self) -> usize {
        self.shape().product()
    }

    /// Items by dimension.
    pub(crate) fn shape(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.shape[..self.dimensions]
            .iter()
            .map(|items| items.cast_unsigned())
    }
}

/// An object that gives views of its memory.
pub(crate) trait Viewed {
    fn memory(&self) -> &Memory;
}

/// Fills `view` for `owner`.
///
/// # Safety
///
/// `view` is what the interpreter passed to `__getbuffer__`. The memory of `owner` is readable, stays where it is and
/// holds items of its format until `owner` is freed.
pub(crate) unsafe fn fill<
    T: PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Viewed + Sync,
>(
    owner: Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
        // SAFETY: not null, and the caller says whose it is.
        unsafe { (*view).obj = ptr::null_mut() };
        return Err(PyBufferError::new_err(
            "samples are read-only: copy them to change them",
        ));
    }
    let memory: *const Memory = owner.get().memory();
    let asked = |flag: c_int| flags & flag == flag;
    if asked(ffi::PyBUF_F_CONTIGUOUS) && owner.get().memory().dimensions > 1 {
        // SAFETY: as above.
        unsafe { (*view).obj = ptr::null_mut() };
        return Err(PyBufferError::new_err(
            "the last dimension is the closest: ask for C order",
        ));
    }
    // SAFETY: `memory` lies in the object that `obj` keeps alive, and the object is frozen, so that pointers to
    // what is in it (`shape`, `strides`) stay good as long as the view. The view is the caller's to write to.
    unsafe {
        let memory = &*memory;
        *view = ffi::Py_buffer {
            buf: memory.address as *mut c_void,
            obj: owner.into_ptr(),
            len: memory.items().cast_signed() * memory.item_bytes,
            itemsize: memory.item_bytes,
            readonly: 1,
            // Who asks for no shape sees bytes in a row.
            ndim: if asked(ffi::PyBUF_ND) {
                c_int::try_from(memory.dimensions).unwrap_or(c_int::MAX)
            } else {
                1
            },
            format: if asked(ffi::PyBUF_FORMAT) {
                memory.format.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            shape: if asked(ffi::PyBUF_ND) {
                memory.shape.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            strides: if asked(ffi::PyBUF_STRIDES) {
                memory.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        };
    }
    Ok(())
}
