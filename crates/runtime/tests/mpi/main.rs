//! The transport over MPI: the conformance suite with ranks that mpirun starts, and what is longer than a rank takes; with Open
//! MPI and with MPICH, as far as they are there. This program starts itself as those ranks.

#![allow(clippy::print_stdout, reason = "says what it did")]

mod ranks;
mod remote;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use foresee_runtime::transport::conformance::Recorder;
use foresee_runtime::transport::{
    Content, Given, HandOver, JobKey, Mesh, Message, Payload, Sent, Transport,
};

use ranks::{PATIENCE, mesh, seeking, told};

/// What ranks are started with.
const AS_RANK: &str = "as-rank";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let ([first, folder], Some((rank, world))) = (arguments.as_slice(), told()) {
        assert_eq!(first, AS_RANK);
        let mesh = mesh(seeking(rank, world), rank, world);
        remote::check(&mesh, Path::new(folder));
        what_is_too_long_is_refused_and_the_next_one_comes(&mesh);
        return;
    }
    // As other tests do where only some are wanted.
    let mut wanted = arguments.iter().filter(|word| !word.starts_with('-'));
    let is_wanted = wanted.clone().next().is_none() || wanted.any(|word| "mpi".contains(word));
    if !is_wanted || arguments.iter().any(|word| word == "--list") {
        return;
    }
    conforms();
}

fn conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |of: &str| folder.path().join(of);
    std::fs::create_dir(path("sockets")).expect("a folder");
    let sockets = path("sockets");
    let arguments = [AS_RANK.as_ref(), sockets.as_os_str()];
    ranks::with_each(&[2, 4], &arguments, |name, number, command| {
        let done = command.output().expect("mpirun");
        let said = String::from_utf8_lossy(&done.stdout);
        let complaints = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{name}: {said}\n{complaints}");
        assert!(said.contains("conforms"), "{name}: {said}\n{complaints}");
        println!("test mpi::conforms ({name}, {number} ranks) ... ok");
        for entry in std::fs::read_dir(&sockets).expect("a folder").flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    });
}

/// MPI has no way to refuse a message: it is received and dropped, and what comes behind it is not lost.
fn what_is_too_long_is_refused_and_the_next_one_comes(mesh: &Arc<Mesh>) {
    let transport = mesh.transport(JobKey([2; 16]));
    let rank = mesh.rank();
    if rank == Rank(0) {
        // Only this rank allows it.
        mesh.allow(32 << 20);
    }
    let recorder = Arc::<Recorder>::default();
    let serving = transport.serve(Arc::<Recorder>::clone(&recorder));
    let serving = serving.expect("serving");
    gather(&*transport);
    if rank == Rank(0) {
        for (sample, len) in [(0, 16 << 20), (1, 100_000)] {
            let content = Content::Sample(Payload::new(vec![sample as u8; len]));
            let message = Message::HandOver(HandOver::unstamped(SampleId(sample), content));
            assert_eq!(transport.send(Rank(1), message), Sent::Taken);
        }
    }
    if rank == Rank(1) {
        let by = Instant::now() + PATIENCE;
        while recorder.messages().len() < 2 && Instant::now() < by {
            thread::sleep(Duration::from_millis(1));
        }
        let came: Vec<Option<usize>> = recorder
            .messages()
            .into_iter()
            .map(|(_, message)| match message {
                Message::HandOver(HandOver {
                    content: Content::Sample(payload),
                    ..
                }) => Some(payload.bytes().len()),
                _ => None,
            })
            .collect();
        assert_eq!(came, [None, Some(100_000)], "too long, then as it was sent");
    }
    gather(&*transport);
    drop(serving);
}

fn gather(transport: &dyn Transport) {
    let gathered = transport.gather(Given::to_all(Vec::new()), PATIENCE);
    assert!(gathered.is_ok(), "all ranks are there");
}
