//! One rank of a benchmark with several: a process that the command started, and that talks with it by lines on its standard
//! input and output (`ranks` is the other end).
//!
//! | line | from | means |
//! |---|---|---|
//! | `port N` | rank 0 | others meet it there; 0: there are no peers |
//! | `step` | rank | it has trained a step, and waits (`--lockstep`) |
//! | `go` | command | all have |
//! | `end JSON` | rank | its numbers |
//!
//! A command that is gone ends its ranks: nobody else would.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use foresee_config::{Environment, Peers, Transport};
use foresee_core::ids::Rank;
use foresee_runtime::job::Job;
use foresee_runtime::transport::tcp::{Meeting, Mesh};

use super::interrupt::Interrupt;

/// All ranks are on this machine.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How long Ctrl-C may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// A rank's line to the command that started it.
pub(super) struct Line {
    go: Receiver<()>,
}

impl Line {
    /// Listens to the command from now on.
    pub(super) fn open() -> Result<Self> {
        let (told, go) = channel();
        thread::Builder::new()
            .name("foresee-line".to_owned())
            .spawn(move || listen(&told))
            .context("cannot start a thread")?;
        Ok(Self { go })
    }

    /// Says something.
    #[expect(
        clippy::unused_self,
        reason = "only who has the line may say anything on it"
    )]
    pub(super) fn say(&self, what: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{what}")
            .and_then(|()| out.flush())
            .context("the command that started this rank is gone")
    }

    /// Waits until all ranks have trained a step.
    pub(super) fn step(&self, interrupt: &Interrupt) -> Result<()> {
        self.say("step")?;
        while !interrupt.is_raised() && self.go.recv_timeout(PATIENCE).is_err() {}
        Ok(())
    }
}

fn listen(told: &Sender<()>) {
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("go") => {
                if told.send(()).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    std::process::exit(i32::from(crate::FAILED));
}

/// Begins to meet the other ranks. The way to them lives as long as what is returned.
pub(super) fn reach(
    peers: &Peers,
    (rank, world): (u32, u32),
    environment: &Environment,
) -> Result<Option<Arc<Mesh>>> {
    if peers.transport == Transport::None {
        return Ok(None);
    }
    let meeting = Meeting {
        rank: Rank(rank),
        world,
        first: (HERE.to_string(), peers.port.unwrap_or(0)),
        bind: HERE,
        secret: secret(peers, environment)?,
        launch: "foresee bench".to_owned(),
        encrypt: peers.encrypt,
        // Samples come with the job.
        sample_bytes_max: 0,
    };
    Ok(Some(Mesh::start(meeting)?))
}

/// Tells the command where rank 0 is: from now on the others can get its catalog.
pub(super) fn tell(mesh: Option<&Arc<Mesh>>, line: &Line) -> Result<()> {
    let port = mesh.map_or(0, |mesh| mesh.port());
    line.say(&format!("port {port}"))
}

/// Lets a job meet those of the other ranks.
pub(super) fn meet(job: &Job, mesh: &Arc<Mesh>) {
    let spec = job.spec();
    if spec.keeps() {
        mesh.allow(spec.catalog.largest().0);
        let mesh = Arc::clone(mesh);
        let patience = spec.config.peers.patience;
        job.meet(Arc::new(move |job| mesh.transport(job)), patience);
    }
}

/// What only the ranks know, as it was given.
pub(super) fn secret(peers: &Peers, environment: &Environment) -> Result<Option<Vec<u8>>> {
    let secret = peers.secret(environment)?;
    Ok(secret.map(|secret| secret.bytes().to_vec()))
}

/// Serves the others until they are done, or for as long as is configured.
pub(super) fn linger(job: &Job, interrupt: &Interrupt) {
    let deadline = Instant::now() + job.spec().config.peers.linger;
    while Instant::now() < deadline && !interrupt.is_raised() && !job.linger(PATIENCE) {}
}
