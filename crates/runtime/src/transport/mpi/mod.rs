//! Ranks over MPI: a mesh whose messages MPI carries, on whatever network the site's MPI is made for.
//!
//! MPI is found at run time, never linked: one program works with Open MPI, with MPICH and its family, and without any
//! (`library`, `abi`). It is used as it is where somebody has initialised it; else it is initialised only when that is asked
//! for, under the launcher that belongs to it. What this library initialised it finalises at exit (`ending`), nothing else.
//!
//! # How ranks meet
//!
//! All ranks of MPI's world want a communicator of their own ([`Seeking::begin`]); it comes about when all have, which is
//! looked at, never waited for in MPI. Rank 0 then tells the others what they need to know ([`Seeking::share`]). All this is
//! done by who calls; from then on one thread makes all calls (`courier`), if MPI lets any thread call it. Where it does not,
//! ranks can still meet by it, and are served over TCP.
//!
//! Only this folder knows MPI. What is sent is the same as over TCP, but for how frames become messages
//! (`tcp::carrier`, `tcp::parcel`). Ranks are who MPI says they are: its launcher lets nobody else in.

mod abi;
mod calls;
mod courier;
mod ending;
mod library;
mod process;
mod seeking;
#[cfg(any(test, feature = "testing"))]
mod trial;

use std::path::PathBuf;

use self::library::Launcher;

pub use self::seeking::Seeking;

/// How MPI is come by.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Whether it is initialised where nobody has.
    pub may_initialise: bool,
    /// The library to load then; none: that of the launcher.
    pub library: Option<PathBuf>,
}

/// Why ranks do not meet by MPI.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// Nobody has initialised it, nor may.
    #[error("MPI is not initialised in this process")]
    NotInitialised,
    /// It was finalised.
    #[error("MPI is finalised already; make jobs before MPI_Finalize")]
    Over,
    /// Which of them is the program's nobody knows.
    #[error(
        "two MPIs are loaded in this process ({one}, {other}); run it with one of them, as mpi4py was built for, or use TCP (peers.transport = \"tcp\")"
    )]
    Two {
        /// One library.
        one: String,
        /// The other.
        other: String,
    },
    /// Initialising it would end the program, or make a world of its own.
    #[error(
        "no launcher of MPI started this process; start it with mpirun or with srun --mpi=pmix, or use TCP (peers.transport = \"tcp\")"
    )]
    NoLauncher,
    /// None of the launcher's.
    #[error(
        "no MPI library of the launcher's kind ({launcher:?}) is found by the names {names}; install it, set LD_LIBRARY_PATH, or name its file (peers.mpi_library)"
    )]
    NoLibrary {
        /// What was tried.
        names: String,
        /// Who started this process.
        #[expect(private_interfaces, reason = "for the message")]
        launcher: Launcher,
    },
    /// Too old, or something else.
    #[error("{library} is no MPI that can be used: it has no {missing}; MPI 3 is needed")]
    Unfit {
        /// Which library.
        library: String,
        /// The function that it lacks.
        missing: &'static str,
    },
    /// Its world is another than the job's.
    #[error("this is rank {rank} of {size} to MPI, and {own} of {world} to the job")]
    World {
        /// MPI's.
        rank: u32,
        /// MPI's.
        size: u32,
        /// The job's.
        own: u32,
        /// The job's.
        world: u32,
    },
    /// It must not be called from here.
    #[error(
        "MPI was initialised for calls from its main thread only; make the first dataset or job there, or initialise it with MPI_THREAD_MULTIPLE"
    )]
    OtherThread,
    /// A call failed.
    #[error("{what}: {said}")]
    Call {
        /// Which function.
        what: &'static str,
        /// What MPI says.
        said: String,
    },
}
