//! How ranks meet by MPI, step by step, each made by who calls and none of them waiting in MPI: others may never come.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::abi::Abi;
use super::calls::{Duplicating, Level, MESSAGE_BYTES_MAX, Memory, Mpi, Pending, Taken, World};
use super::courier::Courier;
use super::ending::{self, Gate};
use super::process::{self, Process};
use super::{Access, MpiError};
use crate::transport::tcp::{Meeting, Mesh, MeshError};

/// What rank 0 tells the others.
const WORD: c_int = 3;

/// It is no longer.
const WORD_BYTES_MAX: usize = 64 << 10;

/// Between two looks, at first and at most.
const LOOK: Duration = Duration::from_micros(50);
const LOOK_MAX: Duration = Duration::from_millis(10);

/// A rank that looks for the others by MPI.
pub struct Seeking(Box<dyn Way>);

impl Seeking {
    /// Begins to meet the others; returns at once. All ranks of MPI's world are to call it, in the same order among all
    /// that they do with all ranks of that world. This process must be the same rank to MPI as to the job.
    pub fn begin(access: &Access, rank: Rank, world: u32) -> Result<Self, MpiError> {
        let process = process::attach(access)?;
        let own = (rank, world);
        Ok(Self(match process {
            Process::OpenMpi(mpi) => Box::new(Stage::begin(mpi, own)?),
            Process::Mpich(mpi) => Box::new(Stage::begin(mpi, own)?),
        }))
    }

    /// Whether all ranks have come, within so long.
    pub fn await_all(&mut self, patience: Duration) -> Result<bool, MpiError> {
        look_until(patience, || Ok(self.0.is_met()?.then_some(()))).map(|met| met.is_some())
    }

    /// Rank 0 tells the others something, once all have come; what it told, if that came within so long. The others call it
    /// again until it has; rank 0 has its own at once.
    pub fn share(
        &mut self,
        told: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Option<Vec<u8>>, MpiError> {
        if let Some(told) = told {
            self.0.tell(&told)?;
            return Ok(Some(told));
        }
        look_until(patience, || self.0.told())
    }

    /// Whether samples can go by MPI as well: it lets a thread of ours call it while others do.
    pub fn carries(&self) -> Result<bool, MpiError> {
        self.0.carries()
    }

    /// The library, as it is called.
    pub fn library(&self) -> &str {
        self.0.library()
    }

    /// Rank 0 fetches so many samples of rank 1 over bare MPI, so many at a time; how long that took.
    #[cfg(any(test, feature = "testing"))]
    pub fn bare(
        &mut self,
        number: u64,
        sample_bytes: usize,
        in_flight: u64,
    ) -> Result<Duration, MpiError> {
        self.0.bare(number, sample_bytes, in_flight)
    }

    /// The mesh that MPI carries. Where they meet is not looked at: they have. Samples of 2 GiB and more are not sent.
    pub fn mesh(self, meeting: &Meeting) -> Result<Arc<Mesh>, MeshError> {
        self.0.mesh(meeting)
    }
}

/// Looks again and again, with pauses that grow.
fn look_until<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>, MpiError>,
) -> Result<Option<T>, MpiError> {
    let by = Instant::now() + patience;
    let mut pause = LOOK;
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let left = by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
        pause = (2 * pause).min(LOOK_MAX);
    }
}

/// The same for both kinds of MPI.
trait Way: Send {
    fn is_met(&mut self) -> Result<bool, MpiError>;
    fn tell(&mut self, told: &[u8]) -> Result<(), MpiError>;
    fn told(&mut self) -> Result<Option<Vec<u8>>, MpiError>;
    fn carries(&self) -> Result<bool, MpiError>;
    fn library(&self) -> &str;
    fn mesh(self: Box<Self>, meeting: &Meeting) -> Result<Arc<Mesh>, MeshError>;
    #[cfg(any(test, feature = "testing"))]
    fn bare(&mut self, number: u64, bytes: usize, in_flight: u64) -> Result<Duration, MpiError>;
}

/// How far meeting is.
struct Stage<A: Abi> {
    mpi: &'static Mpi<A>,
    duplicating: Duplicating<A>,
    met: Option<Met<A>>,
}

struct Met<A: Abi> {
    world: World<A>,
    pending: Pending<A, ()>,
    /// Whether what rank 0 tells has begun to arrive.
    is_coming: bool,
}

impl<A: Abi> Stage<A> {
    fn begin(mpi: &'static Mpi<A>, (own, world): (Rank, u32)) -> Result<Self, MpiError> {
        if mpi.level()? == Level::Main && !mpi.is_main()? {
            return Err(MpiError::OtherThread);
        }
        let (rank, size) = mpi.rank()?;
        if (rank, size) != (own.0, world) {
            let own = own.0;
            return Err(MpiError::World {
                rank,
                size,
                own,
                world,
            });
        }
        Ok(Self {
            mpi,
            duplicating: mpi.duplicate()?,
            met: None,
        })
    }

    fn met(&mut self) -> Result<&mut Met<A>, MpiError> {
        let early = || MpiError::Call {
            what: "MPI_Comm_idup",
            said: "not all ranks have come".to_owned(),
        };
        self.met.as_mut().ok_or_else(early)
    }
}

impl<A: Abi> Way for Stage<A> {
    fn is_met(&mut self) -> Result<bool, MpiError> {
        if self.met.is_none()
            && let Some(world) = self.duplicating.look()?
        {
            self.met = Some(Met {
                pending: Pending::new(world.clone()),
                world,
                is_coming: false,
            });
        }
        Ok(self.met.is_some())
    }

    fn tell(&mut self, told: &[u8]) -> Result<(), MpiError> {
        let met = self.met()?;
        for rank in (1..met.world.size).map(Rank) {
            let memory = Memory::Own(told.to_vec());
            met.pending.send((rank, WORD), memory, false, ())?;
        }
        // Short as they are they leave at once, or while the others' are looked for.
        met.pending.look()?;
        Ok(())
    }

    fn told(&mut self) -> Result<Option<Vec<u8>>, MpiError> {
        let met = self.met()?;
        if !met.is_coming {
            let taken = met.pending.take_any(WORD, WORD_BYTES_MAX, |_| ())?;
            met.is_coming = matches!(taken, Taken::One);
        }
        let done = met.pending.look()?;
        Ok(done.into_iter().find_map(|done| done.received))
    }

    #[cfg(any(test, feature = "testing"))]
    fn bare(&mut self, number: u64, bytes: usize, in_flight: u64) -> Result<Duration, MpiError> {
        super::trial::fetch(&self.met()?.world, number, bytes, in_flight)
    }

    fn carries(&self) -> Result<bool, MpiError> {
        Ok(self.mpi.level()? == Level::Any)
    }

    fn library(&self) -> &str {
        &self.mpi.name
    }

    fn mesh(self: Box<Self>, meeting: &Meeting) -> Result<Arc<Mesh>, MeshError> {
        let Some(met) = self.met else {
            return Err(MeshError::System(std::io::ErrorKind::NotConnected.into()));
        };
        ending::watch(self.mpi).map_err(std::io::Error::other)?;
        let gate = Arc::new(Gate::default());
        let own = Arc::clone(&gate);
        let Met { world, pending, .. } = met;
        // What rank 0 told may still be on its way.
        let carry = move |carrier| Courier::new(world, pending, carrier, own).run();
        let (mesh, stopper) = Mesh::carried(meeting, MESSAGE_BYTES_MAX, "foresee-mpi", carry)?;
        ending::enlist(stopper, gate);
        Ok(mesh)
    }
}
