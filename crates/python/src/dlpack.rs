//! `DLPack`: memory given to other libraries, without a copy where nobody else has it: takers may write, whatever the flag
//! says (torch ignores it, and does not tell who asks). They hold a capsule and call its deleter from whichever
//! thread lets go last, with or without the interpreter; what is behind it is ours and needs none.
#![allow(unsafe_code, reason = "DLPack is made of pointers")]

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyAny as PyObjectAny;

use crate::view::Memory;

const CPU: i32 = 1;
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;
/// What we speak; consumers of any 1.x understand it.
const VERSION: Version = Version { major: 1, minor: 0 };

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The type of an item: code, bits and lanes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    pub(crate) const INT64: Self = Self {
        code: 0,
        bits: 64,
        lanes: 1,
    };
    pub(crate) const UINT8: Self = Self {
        code: 1,
        bits: 8,
        lanes: 1,
    };
    pub(crate) const FLOAT16: Self = Self {
        code: 2,
        bits: 16,
        lanes: 1,
    };
    pub(crate) const FLOAT32: Self = Self {
        code: 2,
        bits: 32,
        lanes: 1,
    };
    pub(crate) const BOOL: Self = Self {
        code: 6,
        bits: 8,
        lanes: 1,
    };

    fn item_bytes(self) -> usize {
        usize::from(self.bits) / 8
    }
}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a tensor points to, and what keeps that alive.
struct Held<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _keep: Box<dyn Any + Send>,
}

/// Memory to give away.
pub(crate) struct Given<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) dtype: DataType,
    /// Whether others look at it, too.
    pub(crate) shared: bool,
    /// Keeps the memory alive.
    pub(crate) keep: Box<dyn Any + Send>,
}

/// What a consumer asks for.
pub(crate) struct Asked<'py> {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) dl_device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
    pub(crate) stream: Option<Bound<'py, PyObjectAny>>,
}

/// Kind and number of the device that all memory of ours is on.
pub(crate) const fn device() -> (i32, i32) {
    (CPU, 0)
}

/// A capsule with the memory.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    given: Given<'_>,
    asked: &Asked<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    if asked.dl_device.is_some_and(|device| device != (CPU, 0)) {
        return Err(PyBufferError::new_err(
            "samples are in memory: ask for the CPU, and move them from there",
        ));
    }
    if asked.stream.is_some() {
        return Err(PyBufferError::new_err(
            "samples are in memory: ask without a stream",
        ));
    }
    if given.shared && asked.copy == Some(false) {
        let said = "the sample is kept in memory for later epochs: DLPack gives a copy of it, NumPy a view (numpy.asarray)";
        return Err(PyBufferError::new_err(said));
    }
    let copies = given.shared || asked.copy == Some(true);
    let given = if copies {
        copied(&given)
    } else {
        Placed::of(given)
    };
    let flags = if copies { COPIED } else { READ_ONLY };
    if asked.max_version.is_some_and(|(major, _)| major >= 1) {
        let managed = |tensor| {
            let context = ptr::null_mut();
            let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
            ManagedVersioned {
                version: VERSION,
                context,
                deleter,
                flags,
                tensor,
            }
        };
        let held = hold(given, managed, |managed| &mut managed.tensor);
        // SAFETY: the capsule gets the only pointer to `held`; whoever takes it renames the capsule first.
        unsafe {
            (*held).managed.context = held.cast();
            wrap(
                py,
                ptr::from_mut(&mut (*held).managed).cast(),
                VERSIONED,
                drop_versioned,
            )
        }
    } else {
        let managed = |tensor| Managed {
            tensor,
            context: ptr::null_mut(),
            deleter: Some(delete_plain),
        };
        let held = hold(given, managed, |managed| &mut managed.tensor);
        // SAFETY: as above.
        unsafe {
            (*held).managed.context = held.cast();
            wrap(
                py,
                ptr::from_mut(&mut (*held).managed).cast(),
                PLAIN,
                drop_plain,
            )
        }
    }
}

/// Memory as a tensor describes it.
struct Placed {
    address: usize,
    shape: Box<[i64]>,
    dtype: DataType,
    keep: Box<dyn Any + Send>,
}

impl Placed {
    fn of(given: Given<'_>) -> Self {
        let shape = given
            .memory
            .shape()
            .map(|items| items.cast_signed() as i64)
            .collect();
        Self {
            address: given.memory.address(),
            shape,
            dtype: given.dtype,
            keep: given.keep,
        }
    }
}

fn copied(given: &Given<'_>) -> Placed {
    let len = given.memory.items() * given.dtype.item_bytes();
    let words = len.div_ceil(size_of::<u64>());
    // Whole words, so that items of any type are aligned.
    let mut copy: Vec<u64> = Vec::with_capacity(words);
    if let Some(last) = copy.spare_capacity_mut()[..words].last_mut() {
        last.write(0);
    }
    // SAFETY: `given` keeps so many readable bytes alive, and nobody writes to them; the copy has room for them. With its
    // last word, of which a part may lie behind the items, all of its words have been written.
    unsafe {
        ptr::copy_nonoverlapping(
            given.memory.address() as *const u8,
            copy.as_mut_ptr().cast(),
            len,
        );
        copy.set_len(words);
    }
    let shape = given
        .memory
        .shape()
        .map(|items| items.cast_signed() as i64)
        .collect();
    Placed {
        address: copy.as_ptr() as usize,
        shape,
        dtype: given.dtype,
        keep: Box::new(copy),
    }
}

/// Moves all to where it stays, and points the tensor to its own shape.
fn hold<M>(
    given: Placed,
    managed: impl FnOnce(Tensor) -> M,
    tensor: impl Fn(&mut M) -> &mut Tensor,
) -> *mut Held<M> {
    let bare = Tensor {
        data: given.address as *mut c_void,
        device: Device { kind: CPU, id: 0 },
        ndim: i32::try_from(given.shape.len()).unwrap_or(i32::MAX),
        dtype: given.dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let mut strides = vec![1; given.shape.len()].into_boxed_slice();
    for dimension in (1..strides.len()).rev() {
        strides[dimension - 1] = strides[dimension] * given.shape[dimension];
    }
    let held = Box::new(Held {
        managed: managed(bare),
        shape: given.shape,
        strides,
        _keep: given.keep,
    });
    let held = Box::into_raw(held);
    // SAFETY: just made, and nobody else has it yet.
    unsafe {
        let shape = (*held).shape.as_mut_ptr();
        let strides = (*held).strides.as_mut_ptr();
        let tensor = tensor(&mut (*held).managed);
        tensor.shape = shape;
        tensor.strides = strides;
    }
    held
}

/// # Safety
///
/// `managed` is of the kind that `name` says and `destructor` frees, and nobody else frees it.
unsafe fn wrap<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name lives for ever, the pointer is not null; a failure leaves an exception and a null pointer.
    unsafe {
        Bound::from_owned_ptr_or_err(
            py,
            ffi::PyCapsule_New(managed, name.as_ptr(), Some(destructor)),
        )
    }
}

unsafe extern "C" fn delete_plain(managed: *mut Managed) {
    // SAFETY: consumers pass what they got, once; its context is the box that it lies in.
    unsafe { drop(Box::from_raw((*managed).context.cast::<Held<Managed>>())) };
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    unsafe {
        drop(Box::from_raw(
            (*managed).context.cast::<Held<ManagedVersioned>>(),
        ));
    };
}

unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with our capsule. With its first name nobody took what is in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
