//! The two ways in which MPI libraries are called, as tables of the few functions that are used. Nothing in here calls one.
//!
//! MPI fixes names and meanings, not how handles and statuses lie in memory. Open MPI's handles are addresses of objects in
//! the library; those of MPICH and all that keep to its ABI (Intel MPI, MVAPICH, Cray MPICH and others) are numbers. A library
//! is Open MPI's if it has one of those objects. All else is the same, so there is one table, with the kind as its parameter.

#![expect(
    unsafe_code,
    reason = "functions of a library that is found at run time"
)]

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("it has no {0}")]
pub(super) struct Missing(pub(super) &'static str);

/// How one kind of MPI has things in memory.
pub(super) trait Abi: Copy + Send + Sync + 'static {
    /// A communicator, a request, a type: whatever is named.
    type Handle: Copy + PartialEq + Send + Sync + 'static;
    type Status: Copy + Send + 'static;

    /// Whom a message is from does not matter.
    const ANY_SOURCE: c_int;

    /// A status that nothing was written to.
    const BLANK: Self::Status;

    fn constants(library: &Library) -> Result<Constants<Self>, Missing>;

    /// Whom a message came from.
    fn source(status: &Self::Status) -> c_int;

    /// What went wrong with one of several.
    fn error(status: &Self::Status) -> c_int;
}

/// Handles that are there from the beginning.
#[derive(Clone, Copy)]
pub(super) struct Constants<A: Abi> {
    pub(super) world: A::Handle,
    pub(super) own: A::Handle,
    pub(super) byte: A::Handle,
    pub(super) no_request: A::Handle,
    pub(super) errors_return: A::Handle,
    pub(super) no_message: A::Handle,
}

/// Open MPI, from version 1.7 on.
#[derive(Clone, Copy)]
pub(super) struct OpenMpi;

/// As in its `mpi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct OpenMpiStatus {
    source: c_int,
    tag: c_int,
    error: c_int,
    cancelled: c_int,
    count: usize,
}

impl Abi for OpenMpi {
    /// The address of an object, which is never looked at here.
    type Handle = usize;
    type Status = OpenMpiStatus;

    const ANY_SOURCE: c_int = -1;

    const BLANK: OpenMpiStatus = OpenMpiStatus {
        source: 0,
        tag: 0,
        error: 0,
        cancelled: 0,
        count: 0,
    };

    fn constants(library: &Library) -> Result<Constants<Self>, Missing> {
        Ok(Constants {
            world: address(library, OPEN_MPI_WORLD)?,
            own: address(library, "ompi_mpi_comm_self")?,
            byte: address(library, "ompi_mpi_byte")?,
            no_request: address(library, "ompi_request_null")?,
            errors_return: address(library, "ompi_mpi_errors_return")?,
            no_message: address(library, "ompi_message_null")?,
        })
    }

    fn source(status: &OpenMpiStatus) -> c_int {
        status.source
    }

    fn error(status: &OpenMpiStatus) -> c_int {
        status.error
    }
}

/// The object that tells Open MPI from others.
const OPEN_MPI_WORLD: &str = "ompi_mpi_comm_world";

/// Whether a library is Open MPI's.
pub(super) fn is_open_mpi(library: &Library) -> bool {
    address(library, OPEN_MPI_WORLD).is_ok()
}

/// Where something is in a library.
pub(super) fn address(library: &Library, name: &'static str) -> Result<usize, Missing> {
    // SAFETY: the address is not followed.
    let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    let found = found.map_err(|_| Missing(name))?;
    Ok(found.as_raw_ptr() as usize)
}

/// MPICH and its family, from version 3.1 on, when they agreed on one ABI.
#[derive(Clone, Copy)]
pub(super) struct Mpich;

/// As in its `mpi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MpichStatus {
    count_low: c_int,
    count_high_and_cancelled: c_int,
    source: c_int,
    tag: c_int,
    error: c_int,
}

impl Abi for Mpich {
    type Handle = c_int;
    type Status = MpichStatus;

    const ANY_SOURCE: c_int = -2;

    const BLANK: MpichStatus = MpichStatus {
        count_low: 0,
        count_high_and_cancelled: 0,
        source: 0,
        tag: 0,
        error: 0,
    };

    fn constants(_: &Library) -> Result<Constants<Self>, Missing> {
        Ok(Constants {
            world: 0x4400_0000,
            own: 0x4400_0001,
            byte: 0x4c00_010d,
            no_request: 0x2c00_0000,
            errors_return: 0x5400_0001,
            no_message: 0x2c00_0000,
        })
    }

    fn source(status: &MpichStatus) -> c_int {
        status.source
    }

    fn error(status: &MpichStatus) -> c_int {
        status.error
    }
}

/// Copies what is attached to a communicator when that is duplicated: `*flag = 0` copies nothing.
pub(super) type CopyFn<H> = unsafe extern "C" fn(
    comm: H,
    keyval: c_int,
    extra: *mut c_void,
    value: *mut c_void,
    copy: *mut c_void,
    flag: *mut c_int,
) -> c_int;

/// Is called before what is attached to a communicator goes with it.
pub(super) type DeleteFn<H> =
    unsafe extern "C" fn(comm: H, keyval: c_int, value: *mut c_void, extra: *mut c_void) -> c_int;

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that are used. Each returns 0 where all is well.
        pub(super) struct Functions<A: Abi> {
            pub(super) constants: Constants<A>,
            $($(#[$doc])* pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<A: Abi> Functions<A> {
            /// All of them, or which one is not there.
            pub(super) fn load(library: &Library) -> Result<Self, Missing> {
                Ok(Self {
                    constants: A::constants(library)?,
                    $($name: {
                        // SAFETY: MPI gives a function of this name these arguments, with handles and statuses as its
                        // kind has them; the library is never unloaded (`library`), so what is copied here stays good.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.map_err(|_| Missing($symbol))?
                    },)*
                })
            }
        }
    };
}

table! {
    init_thread = "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    initialized = "MPI_Initialized" (*mut c_int);
    finalize = "MPI_Finalize" ();
    finalized = "MPI_Finalized" (*mut c_int);
    query_thread = "MPI_Query_thread" (*mut c_int);
    is_thread_main = "MPI_Is_thread_main" (*mut c_int);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    comm_rank = "MPI_Comm_rank" (A::Handle, *mut c_int);
    comm_size = "MPI_Comm_size" (A::Handle, *mut c_int);
    comm_idup = "MPI_Comm_idup" (A::Handle, *mut A::Handle, *mut A::Handle);
    comm_set_errhandler = "MPI_Comm_set_errhandler" (A::Handle, A::Handle);
    comm_create_keyval = "MPI_Comm_create_keyval" (CopyFn<A::Handle>, DeleteFn<A::Handle>, *mut c_int, *mut c_void);
    comm_set_attr = "MPI_Comm_set_attr" (A::Handle, c_int, *mut c_void);
    isend = "MPI_Isend" (*const c_void, c_int, A::Handle, c_int, c_int, A::Handle, *mut A::Handle);
    /// Complete only when the other end has begun to receive.
    issend = "MPI_Issend" (*const c_void, c_int, A::Handle, c_int, c_int, A::Handle, *mut A::Handle);
    irecv = "MPI_Irecv" (*mut c_void, c_int, A::Handle, c_int, c_int, A::Handle, *mut A::Handle);
    improbe = "MPI_Improbe" (c_int, c_int, A::Handle, *mut c_int, *mut A::Handle, *mut A::Status);
    imrecv = "MPI_Imrecv" (*mut c_void, c_int, A::Handle, *mut A::Handle, *mut A::Handle);
    test = "MPI_Test" (*mut A::Handle, *mut c_int, *mut A::Status);
    testsome = "MPI_Testsome" (c_int, *mut A::Handle, *mut c_int, *mut c_int, *mut A::Status);
    get_count = "MPI_Get_count" (*const A::Status, A::Handle, *mut c_int);
}
