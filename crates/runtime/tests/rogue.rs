//! A rank that knows the secret and behaves badly, as a buggy version may: it asks for samples without end, and reads none of
//! the answers. The other one is a process of its own, whose memory can be looked at. It goes on, takes no more memory than
//! its bounds, and delivers all of its stream.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foresee_config::TierKind;
use foresee_core::ids::{Rank, SampleId};
use foresee_core::stream::Shuffle;
use foresee_runtime::job::{Asked, Job, JobSpec};
use foresee_runtime::transport::tcp::{Meeting, Mesh};
use foresee_runtime::transport::{Ask, Message, Receive, Sent, Ticket, Transport};

use self::common::{Made, job_spec, tier};

const PORT: &str = "FORESEE_TEST_PORT";
const FOLDER: &str = "FORESEE_TEST_FOLDER";
const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Many times what may wait for one rank, were it kept for each request.
const SAMPLES: u32 = 128;
const SAMPLE: u64 = 256 << 10;
const EPOCHS: u32 = 12;

/// How long the flood lasts.
const FLOOD: Duration = Duration::from_secs(4);

fn source() -> Made {
    Made::sized(SAMPLES, 3, SAMPLE)
}

/// A rank of two, which keeps half of the samples in files: an answer of it is memory of its own.
fn spec(source: &Made, rank: u32, folder: &Path) -> JobSpec {
    let mut spec = job_spec(source);
    spec.rank = rank;
    spec.world = 2;
    spec.epochs = EPOCHS;
    spec.batch_size = 8;
    spec.shuffle = Shuffle::Torch { seed: 4 };
    spec.config.staging.capacity_bytes = 8 * MIB + u64::from(rank);
    let kind = TierKind::Disk {
        path: folder.join(rank.to_string()),
        free_space_floor_bytes: 0,
        trust_folder: false,
    };
    let half = u64::from(SAMPLES) * SAMPLE / 2 + 4 * MIB;
    spec.config.tiers = vec![tier(kind, half)];
    spec.config.peers.deadline = Duration::from_secs(1);
    spec.config.peers.linger = Duration::from_secs(1);
    spec
}

fn mesh(rank: u32, port: u16) -> Arc<Mesh> {
    let meeting = Meeting {
        rank: Rank(rank),
        world: 2,
        first: ("127.0.0.1".to_owned(), port),
        bind: "127.0.0.1".parse().unwrap(),
        secret: Some(b"a secret of both ranks".to_vec()),
        launch: "rogue".to_owned(),
        encrypt: false,
        sample_bytes_max: SAMPLE,
    };
    Mesh::start(meeting).unwrap()
}

/// No test: the process whose memory is looked at by the one below.
#[test]
#[ignore = "run by another test"]
fn good_rank() {
    let (Ok(port), Ok(folder)) = (std::env::var(PORT), std::env::var(FOLDER)) else {
        return;
    };
    let source = source();
    let mesh = mesh(1, port.parse().unwrap());
    let job = Job::new(spec(&source, 1, Path::new(&folder))).unwrap();
    job.meet(Arc::new(move |key| mesh.transport(key)), MINUTE);
    let mut samples = 0;
    loop {
        let began = Instant::now();
        let batch = match job.next_batch(MINUTE).unwrap() {
            Asked::Batch(batch) => batch,
            Asked::NotYet => panic!("a minute is enough"),
            Asked::End => break,
        };
        let waited = began.elapsed();
        assert!(
            samples == 0 || waited < Duration::from_secs(4),
            "{waited:?}"
        );
        for sample in &batch.samples {
            assert_eq!(sample.lease.bytes(), source.content(sample.id));
        }
        samples += batch.samples.len();
        // All of it takes longer than the flood.
        thread::sleep(2 * FLOOD / (EPOCHS * SAMPLES / 2 / 8));
    }
    assert_eq!(samples, (EPOCHS * SAMPLES / 2) as usize);
    job.close();
}

/// Takes nothing in, and so reads nothing more.
#[derive(Default)]
struct Deaf {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Receive for Deaf {
    fn receive(&self, _: Rank, _: Message) {
        let ended = self.ended.lock().unwrap();
        drop(self.changed.wait_while(ended, |ended| !*ended).unwrap());
    }

    fn lost(&self, _: Rank) {}
}

/// Bytes of a process that are in memory and no file's.
fn memory_bytes(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let text = line.unwrap_or("RssAnon: 0 kB").to_owned();
    text.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

#[test]
fn a_rank_that_asks_without_end_and_reads_no_answer_costs_bounded_memory_and_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = mesh(0, 0);
    let mut good = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "good_rank", "--nocapture"])
        .env(PORT, mesh.port().to_string())
        .env(FOLDER, folder.path())
        .spawn()
        .unwrap();
    let source = source();
    let job = Job::new(spec(&source, 0, folder.path())).unwrap();
    let way: Arc<Mutex<Option<Arc<dyn Transport>>>> = Arc::default();
    let opened = Arc::clone(&way);
    let open = move |key| {
        let transport = mesh.transport(key);
        *opened.lock().unwrap() = Some(Arc::clone(&transport));
        transport
    };
    job.meet(Arc::new(open), MINUTE);
    // As a good rank until the other one has its files.
    for _ in 0..SAMPLES / 2 / 8 {
        assert!(matches!(job.next_batch(MINUTE), Ok(Asked::Batch(_))));
    }
    let way = way.lock().unwrap().clone().unwrap();
    let deaf = Arc::new(Deaf::default());
    let serving = way.serve(Arc::<Deaf>::clone(&deaf)).unwrap();
    let before = memory_bytes(&good);
    let began = Instant::now();
    let mut most = 0;
    let mut taken = 0_u64;
    for number in 0_u64.. {
        let sample = SampleId(number as u32 % SAMPLES);
        // Tickets that the job does not use.
        let ticket = Ticket(1 << 40 | number);
        if way.send(Rank(1), Message::Ask(Ask { ticket, sample })) == Sent::Taken {
            taken += 1;
        } else {
            thread::sleep(Duration::from_millis(1));
        }
        if number % 1000 == 0 {
            most = most.max(memory_bytes(&good));
            if began.elapsed() > FLOOD {
                break;
            }
        }
    }
    let grown = most.saturating_sub(before) / MIB;
    // What is read for one rank, what waits to be sent to it, and what a request itself takes.
    assert!(grown < 64 + 64 + 72, "{grown} MiB for {taken} requests");
    assert!(taken > 50_000, "{taken} requests were taken");
    let ended = good.wait().unwrap();
    *deaf.ended.lock().unwrap() = true;
    deaf.changed.notify_all();
    drop(serving);
    assert!(ended.success(), "the good rank delivers all");
    job.close();
}
