//! One rank of a benchmark that mpirun started: which rank it is, how it reaches the others, and the numbers of all, which
//! rank 0 prints. Ranks meet in MPI where the configuration says so, else over TCP on this machine.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use foresee_config::{Environment, Peers, Transport};
use foresee_core::ids::Rank;
use foresee_runtime::job::OnHost;
use foresee_runtime::transport::mpi::{Access, Seeking};
use foresee_runtime::transport::tcp::{Meeting, Mesh};
use foresee_runtime::transport::{self, Given, JobKey};
use serde_json::Value;

use super::rank;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Names what is gathered beside the job.
const KEY: JobKey = JobKey(*b"foresee bench   ");

/// Where launchers name no port: these are free on most hosts.
const PORTS_FROM: u64 = 20_000;
const PORTS: u64 = 10_000;

/// Rank, number of ranks, and the same on the host, by launcher: Open MPI; MPICH and Intel MPI.
const VARIABLES: [[&str; 4]; 2] = [
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
];

/// What all ranks of one launch have in common.
const LAUNCHES: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];

/// This process among those that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) on_host: Option<OnHost>,
    name: Option<String>,
}

impl Launch {
    /// What the launcher left in the environment; none where nobody started several ranks.
    pub(super) fn of_process() -> Option<Self> {
        Self::told(|name| std::env::var(name).ok())
    }

    fn told(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| get(name)?.parse::<u32>().ok();
        let both = |rank, world| Some((number(rank)?, number(world)?));
        let found = VARIABLES.into_iter().find_map(|[rank, world, place, all]| {
            let on_host = both(place, all).filter(|(place, all)| place < all);
            Some((both(rank, world)?, on_host))
        });
        let ((rank, world), on_host) = found?;
        let name = LAUNCHES.into_iter().find_map(&get);
        (rank < world && world > 1).then_some(Self {
            rank,
            world,
            on_host: on_host.map(|(rank, ranks)| OnHost { rank, ranks }),
            name,
        })
    }

    /// Begins to meet the other ranks. The way to them lives as long as what is returned.
    pub(super) fn reach(
        &self,
        peers: &Peers,
        environment: &Environment,
    ) -> Result<Option<Arc<Mesh>>> {
        let secret = rank::secret(peers, environment)?;
        match peers.transport {
            Transport::None => Ok(None),
            Transport::Mpi | Transport::MpiOnly => self.by_mpi(peers, secret).map(Some),
            Transport::Auto | Transport::Tcp | Transport::Shared => {
                self.by_tcp(peers, secret).map(Some)
            }
        }
    }

    fn by_mpi(&self, peers: &Peers, secret: Option<Vec<u8>>) -> Result<Arc<Mesh>> {
        let access = Access {
            may_initialise: true,
            library: peers.mpi_library.clone(),
        };
        let mut seeking = Seeking::begin(&access, Rank(self.rank), self.world)?;
        if !seeking.await_all(peers.patience)? {
            bail!("peers: not all ranks of MPI came; see what became of the others");
        }
        if !seeking.carries()? || peers.encrypt {
            bail!(
                "peers: {} cannot carry what is sent here (calls from any thread, encrypted frames); use TCP (FORESEE_PEERS_TRANSPORT=tcp)",
                seeking.library()
            );
        }
        let told = if self.rank == 0 {
            let drawn = super::ranks::secret()?.into_bytes();
            Some(secret.unwrap_or(drawn))
        } else {
            None
        };
        let secret = seeking.share(told, peers.patience)?;
        let meeting = self.meeting(peers, secret, 0);
        Ok(seeking.mesh(&meeting)?)
    }

    fn by_tcp(&self, peers: &Peers, secret: Option<Vec<u8>>) -> Result<Arc<Mesh>> {
        let is_one_host = self.on_host.is_some_and(|host| host.ranks == self.world);
        let port = peers.port.or_else(|| self.name.as_deref().map(port_of));
        match port {
            Some(port) if is_one_host => Ok(Mesh::start(self.meeting(peers, secret, port))?),
            _ => bail!(
                "nothing says where the {} ranks meet; let them meet in MPI (FORESEE_PEERS_TRANSPORT=mpi), or on one host at a port (FORESEE_PEERS_PORT)",
                self.world
            ),
        }
    }

    fn meeting(&self, peers: &Peers, secret: Option<Vec<u8>>, port: u16) -> Meeting {
        Meeting {
            rank: Rank(self.rank),
            world: self.world,
            first: (HERE.to_string(), port),
            bind: HERE,
            secret,
            launch: format!("foresee bench {}", self.name.as_deref().unwrap_or_default()),
            encrypt: peers.encrypt,
            // Samples come with the job.
            sample_bytes_max: 0,
        }
    }
}

/// The same for all ranks of a launch, and mostly another one for others.
fn port_of(launch: &str) -> u16 {
    let mut hasher = DefaultHasher::new();
    launch.hash(&mut hasher);
    (PORTS_FROM + hasher.finish() % PORTS) as u16
}

/// What the ranks have between them beside their jobs.
pub(super) struct Company {
    transport: Arc<dyn transport::Transport>,
    patience: Duration,
}

impl Company {
    pub(super) fn of(mesh: &Arc<Mesh>, patience: Duration) -> Self {
        Self {
            transport: mesh.transport(KEY),
            patience,
        }
    }

    /// Waits until all ranks are here.
    pub(super) fn step(&self) -> Result<()> {
        self.gather(Vec::new()).map(drop)
    }

    /// The numbers of all ranks, in their order.
    pub(super) fn numbers(&self, own: &str) -> Result<Vec<Value>> {
        let all = self.gather(own.as_bytes().to_vec())?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
        let all: Result<Vec<Value>, _> = all.iter().map(read).collect();
        all.context("a rank's numbers cannot be read")
    }

    fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let gathered = self.transport.gather(Given::to_all(bytes), self.patience);
        gathered.map_err(|absent| match absent.0.len() {
            0 => anyhow!("some ranks are gone; their own messages are above"),
            1 => anyhow!("{absent} is gone; its own message is above"),
            _ => anyhow!("{absent} are gone; their own messages are above"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(set: &[(&str, &str)]) -> Option<Launch> {
        let get = |name: &str| set.iter().find(|(key, _)| *key == name);
        Launch::told(|name| get(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn launchers_say_which_rank_this_is() {
        let of_open_mpi = told(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "7"),
        ]);
        let expected = Launch {
            rank: 3,
            world: 4,
            on_host: Some(OnHost { rank: 1, ranks: 2 }),
            name: Some("7".to_owned()),
        };
        assert_eq!(of_open_mpi, Some(expected));
        let of_mpich = told(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((of_mpich.rank, of_mpich.world), (0, 2));
        assert_eq!(of_mpich.on_host, None);
        assert_eq!(told(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(told(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]), None);
        assert_eq!(told(&[]), None);
    }
}
