//! Processes that mpirun starts as ranks, each with its end of a mesh that MPI carries.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use foresee_core::ids::Rank;
use foresee_runtime::transport::mpi::{Access, Seeking};
use foresee_runtime::transport::{JobKey, Meeting, Mesh};

/// Ranks of mpirun start within seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const KEY: JobKey = JobKey([1; 16]);

const WORD: &[u8] = b"told by rank 0";

/// How ranks of each MPI are started: also as root, and more of them than cores.
const LAUNCHERS: [(&str, &[&str]); 2] = [
    (
        "mpirun.openmpi",
        &[
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
        ],
    ),
    ("mpirun.mpich", &[]),
];

/// Which rank this process is, of how many; none where mpirun did not start it.
pub(crate) fn told() -> Option<(u32, u32)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let both = |(rank, size)| Some((number(rank)?, number(size)?));
    let names = [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ];
    names.into_iter().find_map(both)
}

/// Starts this program as ranks, with each MPI that there is; says which there is not.
pub(crate) fn with_each(
    ranks: &[u32],
    arguments: &[&OsStr],
    check: impl Fn(&str, u32, &mut Command),
) {
    for (program, options) in LAUNCHERS {
        let is_there = Command::new(program).arg("--version").output().is_ok();
        if !is_there {
            println!("SKIPPED: no {program}: install Open MPI and MPICH");
            continue;
        }
        for ranks in ranks {
            let own = std::env::current_exe().expect("a program");
            let mut command = Command::new(program);
            command.args(options).args(["-n", &ranks.to_string()]);
            command.arg(own).args(arguments);
            check(program, *ranks, &mut command);
        }
    }
}

/// This rank among all, who have come.
pub(crate) fn seeking(rank: u32, world: u32) -> Seeking {
    let access = Access {
        may_initialise: true,
        library: None,
    };
    let mut seeking = Seeking::begin(&access, Rank(rank), world).expect("an MPI");
    let is_met = seeking.await_all(PATIENCE).expect("ranks that meet");
    assert!(is_met, "all ranks must come");
    let told = (rank == 0).then(|| WORD.to_vec());
    let told = seeking.share(told, PATIENCE).expect("what rank 0 tells");
    assert_eq!(told.as_deref(), Some(WORD));
    seeking
}

/// This rank's mesh.
pub(crate) fn mesh(seeking: Seeking, rank: u32, world: u32) -> Arc<Mesh> {
    let meeting = Meeting {
        rank: Rank(rank),
        world,
        first: (String::new(), 0),
        bind: [127, 0, 0, 1].into(),
        secret: Some(WORD.to_vec()),
        launch: String::new(),
        encrypt: false,
        sample_bytes_max: 8 << 20,
    };
    seeking.mesh(&meeting).expect("a mesh")
}
