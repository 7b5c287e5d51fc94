//! Which MPI this process has, or may have. Never two: whatever of MPI is loaded is taken, and where nothing is, the library of
//! the launcher that started the process, by the names that its kinds go by. What is loaded stays.

#![expect(
    unsafe_code,
    reason = "a library that is found at run time runs code when it is loaded"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use super::MpiError;
use super::abi;

/// Loads nothing, finds what is there.
const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;

/// Every MPI has it, once.
const ENTRY: &str = "MPI_Init_thread";

/// Names of Open MPI's library by its versions, the newest first; and of MPICH's and of those with its ABI.
const OPEN_MPI: [&str; 3] = ["libmpi.so.40", "libmpi.so.20", "libmpi.so"];
const MPICH: [&str; 4] = [
    "libmpi.so.12",
    "libmpich.so.12",
    "libmpi_cray.so.12",
    "libmpi.so",
];

/// Who starts processes that are ranks of an MPI job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    OpenMpi,
    /// MPICH's own, Intel's, and others that speak the same to their processes.
    Mpich,
    /// Whatever speaks `PMIx`: srun, say. Libraries of both kinds may.
    Pmix,
}

impl Launcher {
    /// Who started this process, by what it left in the environment.
    pub(super) fn of_process() -> Option<Self> {
        Self::told(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    }

    fn told(has: impl Fn(&str) -> bool) -> Option<Self> {
        if has("OMPI_COMM_WORLD_SIZE") {
            Some(Self::OpenMpi)
        } else if has("PMI_RANK") || has("PMI_FD") || has("PMI_ID") {
            Some(Self::Mpich)
        } else {
            has("PMIX_RANK").then_some(Self::Pmix)
        }
    }

    fn names(self) -> Vec<&'static str> {
        match self {
            Self::OpenMpi => OPEN_MPI.to_vec(),
            Self::Mpich => MPICH.to_vec(),
            Self::Pmix => [&OPEN_MPI[..], &MPICH].concat(),
        }
    }

    fn takes(self, library: &Library) -> bool {
        match self {
            Self::OpenMpi => abi::is_open_mpi(library),
            Self::Mpich => !abi::is_open_mpi(library),
            Self::Pmix => true,
        }
    }
}

/// An MPI, and what it is called.
pub(super) struct Found {
    pub(super) library: Library,
    pub(super) name: String,
}

/// The MPI that this process has loaded already.
pub(super) fn present() -> Result<Option<Found>, MpiError> {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    // Several files of one MPI lead to the same function; those of two do not.
    let mut entries: BTreeMap<usize, Found> = BTreeMap::new();
    for path in mapped(&maps) {
        let flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD;
        let Some(library) = open(path.as_os_str(), flags) else {
            continue;
        };
        let Ok(entry) = abi::address(&library, ENTRY) else {
            continue;
        };
        let name = path.display().to_string();
        // The shortest name is that of the library itself.
        let is_better = |old: &Found| name.len() < old.name.len();
        if entries.get(&entry).is_none_or(is_better) {
            entries.insert(entry, Found { library, name });
        }
    }
    let mut found: Vec<Found> = entries.into_values().collect();
    let one = found.pop();
    match (one, found.pop()) {
        (Some(one), Some(other)) => Err(MpiError::Two {
            one: other.name,
            other: one.name,
        }),
        (one, _) => Ok(one),
    }
}

/// Files of MPI libraries that are in this process's memory.
fn mapped(maps: &[u8]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = maps
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'/')?;
            let path = Path::new(OsStr::from_bytes(&line[at..]));
            let name = path.file_name()?.as_bytes();
            let is_named = name.starts_with(b"libmpi");
            let is_library = name.windows(3).any(|three| three == b".so");
            (is_named && is_library).then(|| path.to_owned())
        })
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Loads an MPI into a process that has none: the one that is named, else that of the launcher.
pub(super) fn load(chosen: Option<&Path>) -> Result<Found, MpiError> {
    let launcher = Launcher::of_process().ok_or(MpiError::NoLauncher)?;
    let names: Vec<String> = match chosen {
        Some(path) => vec![path.display().to_string()],
        None => launcher.names().into_iter().map(str::to_owned).collect(),
    };
    for name in &names {
        // Components that an older Open MPI loads look for its functions among those that all see.
        let Some(library) = open(OsStr::new(name), RTLD_NOW | RTLD_GLOBAL) else {
            continue;
        };
        if abi::address(&library, ENTRY).is_err() {
            continue;
        }
        if launcher.takes(&library) {
            let name = name.clone();
            return Ok(Found { library, name });
        }
    }
    Err(MpiError::NoLibrary {
        names: names.join(", "),
        launcher,
    })
}

fn open(name: &OsStr, flags: i32) -> Option<Library> {
    // SAFETY: an MPI library's initialisers are meant to be run by any program; what is there already runs nothing.
    unsafe { Library::open(Some(name), flags) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_apart() {
        let told = |set: &[&str]| Launcher::told(|name| set.contains(&name));
        let of_open_mpi = ["PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK"];
        assert_eq!(told(&of_open_mpi), Some(Launcher::OpenMpi));
        assert_eq!(told(&["PMI_RANK", "PMI_SIZE"]), Some(Launcher::Mpich));
        assert_eq!(told(&["PMIX_RANK", "SLURM_PROCID"]), Some(Launcher::Pmix));
        assert_eq!(told(&["SLURM_PROCID", "RANK"]), None);
    }

    #[test]
    fn libraries_are_found_among_what_is_mapped() {
        let maps = b"55d0-55d1 r--p 00000000 fe:00 12 /usr/bin/python3\n\
            7f00-7f01 r--p 00000000 fe:00 13                         /usr/lib/x86/libmpi.so.40.30.4\n\
            7f01-7f02 r-xp 00000000 fe:00 13                         /usr/lib/x86/libmpi.so.40.30.4\n\
            7f02-7f03 r-xp 00000000 fe:00 14                         /opt/a b/libmpich.so.12\n\
            7f03-7f04 r-xp 00000000 fe:00 15                         /usr/lib/libmpx.so\n\
            7f04-7f05 rw-p 00000000 00:00 0                          [heap]\n";
        let expected = ["/opt/a b/libmpich.so.12", "/usr/lib/x86/libmpi.so.40.30.4"];
        assert_eq!(mapped(maps), expected.map(PathBuf::from));
    }
}
