//! The MPI of this process, once it is known: one for as long as the process lives.

use std::sync::{Mutex, PoisonError};

use super::abi::{self, Functions, Mpich, OpenMpi};
use super::calls::Mpi;
use super::library::{self, Found};
use super::{Access, MpiError, ending};

/// One of the kinds.
#[derive(Clone, Copy)]
pub(super) enum Process {
    OpenMpi(&'static Mpi<OpenMpi>),
    Mpich(&'static Mpi<Mpich>),
}

/// What was found, and is never let go of.
static FOUND: Mutex<Option<Process>> = Mutex::new(None);

/// An MPI that can be called.
pub(super) fn attach(access: &Access) -> Result<Process, MpiError> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = *found {
        return process.made_live(access).map(|()| process);
    }
    let process = match library::present()? {
        Some(present) => Process::of(present)?,
        None if access.may_initialise => Process::of(library::load(access.library.as_deref())?)?,
        None => return Err(MpiError::NotInitialised),
    };
    *found = Some(process);
    process.made_live(access)?;
    Ok(process)
}

impl Process {
    fn of(found: Found) -> Result<Self, MpiError> {
        let Found { library, name } = found;
        let unfit = |missing: abi::Missing| MpiError::Unfit {
            library: name.clone(),
            missing: missing.0,
        };
        let process = if abi::is_open_mpi(&library) {
            let functions = Functions::load(&library).map_err(unfit)?;
            Self::OpenMpi(Box::leak(Box::new(Mpi { functions, name })))
        } else {
            let functions = Functions::load(&library).map_err(unfit)?;
            Self::Mpich(Box::leak(Box::new(Mpi { functions, name })))
        };
        // What it has is called as long as the process lives.
        std::mem::forget(library);
        Ok(process)
    }

    fn made_live(self, access: &Access) -> Result<(), MpiError> {
        match self {
            Self::OpenMpi(mpi) => made_live(mpi, access),
            Self::Mpich(mpi) => made_live(mpi, access),
        }
    }
}

fn made_live<A: abi::Abi>(mpi: &'static Mpi<A>, access: &Access) -> Result<(), MpiError> {
    if mpi.is_over()? {
        return Err(MpiError::Over);
    }
    if mpi.is_live()? {
        return Ok(());
    }
    if !access.may_initialise {
        return Err(MpiError::NotInitialised);
    }
    library::Launcher::of_process().ok_or(MpiError::NoLauncher)?;
    mpi.initialise()?;
    ending::finalise_at_exit(mpi);
    tracing::debug!("peers: initialised {}", mpi.name);
    Ok(())
}
