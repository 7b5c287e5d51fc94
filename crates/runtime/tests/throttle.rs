//! The emulated storage between processes: this test starts itself as the readers.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use foresee_core::model::{Beyond, Curve};
use foresee_core::units::{Bytes, Seconds};
use foresee_runtime::source::Throttle;

/// Fast alone, slow together.
const ALONE_MB_PER_S: f64 = 50.0;
const TOGETHER_MB_PER_S: f64 = 25.0;
/// No busy machine takes so long; what is wrongly waited for takes 200 s.
const LONG_S: f64 = 60.0;

/// What a reader is to do: reads and bytes of each.
const WORK: &str = "FORESEE_TEST_THROTTLE_WORK";

/// A process that opens the storage, says so, and reads when told to.
struct Reader {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Reader {
    fn start(folder: &Path, reads: u32, bytes: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "reads_when_told_to", "--ignored", "--nocapture"])
            .env("XDG_RUNTIME_DIR", folder)
            .env(WORK, format!("{reads} {bytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut reader = Self {
            child,
            stdin,
            stdout,
        };
        reader.hears("open");
        reader
    }

    fn hears(&mut self, word: &str) {
        let mut line = String::new();
        while !line.ends_with(&format!("{word}\n")) {
            line.clear();
            assert_ne!(
                self.stdout.read_line(&mut line).expect("text"),
                0,
                "the reader ended before it said {word}"
            );
        }
    }

    fn go(&mut self) {
        self.stdin
            .write_all(b"go\n")
            .expect("a reader that listens");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn reads_when_told_to() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let (reads, bytes) = work.split_once(' ').unwrap();
    let curve = Curve::new(
        vec![(1, ALONE_MB_PER_S), (2, TOGETHER_MB_PER_S)],
        Beyond::Clamp,
    )
    .unwrap();
    let throttle = Throttle::open("between-processes", curve, Seconds(0.0)).unwrap();
    println!("open");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    println!("reading");
    for _ in 0..reads.parse().unwrap() {
        throttle.charge(Bytes(bytes.parse().unwrap())).unwrap();
    }
    println!("done");
}

fn private_folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn two_processes_share_the_throughput_of_two_readers() {
    let folder = private_folder();
    let mut readers = [0; 2].map(|_| Reader::start(folder.path(), 50, 100_000));
    let started = Instant::now();
    readers.iter_mut().for_each(Reader::go);
    for reader in &mut readers {
        reader.hears("done");
    }
    let took_s = started.elapsed().as_secs_f64();
    // 10 MB at 25 MB/s; the first read and the last begin alone.
    assert!((0.38..LONG_S).contains(&took_s), "{took_s} s");
}

#[test]
fn a_killed_process_is_forgotten_with_all_it_booked() {
    let folder = private_folder();
    let mut survivor = Reader::start(folder.path(), 100, 100_000);
    let mut victim = Reader::start(folder.path(), 1, 10_000_000_000);
    victim.go();
    victim.hears("reading");
    std::thread::sleep(std::time::Duration::from_millis(50));
    // Its read would take 200 s.
    drop(victim);
    let started = Instant::now();
    survivor.go();
    survivor.hears("done");
    let took_s = started.elapsed().as_secs_f64();
    // 10 MB at the 50 MB/s of one reader take 0.2 s.
    assert!((0.19..LONG_S).contains(&took_s), "{took_s} s");
}

#[test]
fn a_name_is_free_for_another_storage_once_its_processes_are_gone() {
    let folder = private_folder();
    let mut reader = Reader::start(folder.path(), 1, 10_000_000_000);
    reader.go();
    reader.hears("reading");
    drop(reader);
    let mut next = Reader::start(folder.path(), 10, 100_000);
    let started = Instant::now();
    next.go();
    next.hears("done");
    assert!(started.elapsed().as_secs_f64() < LONG_S);
}
