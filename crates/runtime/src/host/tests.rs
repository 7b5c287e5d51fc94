//! Real processes that share their memory: what a reader has stays as it is, whatever its holder does; who is killed costs
//! nothing but its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use twox_hash::XxHash3_64;

use super::{Card, Listener, Offer, exchange};
use crate::arena::{Arena, Block, Keeps};
use crate::tier::{Kept, MemoryTier, Stay, Tier};
use crate::transport::tcp::{Meeting, Mesh};
use crate::transport::{Given, JobKey, Transport};

const PATIENCE: Duration = Duration::from_secs(60);
const SAMPLES: u32 = 400;
/// Room for about a quarter of all.
const KEPT_BYTES: u64 = 200_000;
const LARGEST: u64 = 4000;
const FETCHES: u64 = 1_000_000;
const SUM_BYTES: usize = 8;

fn meeting(rank: u32, world: u32, port: u16, secret: &[u8]) -> Meeting {
    Meeting {
        rank: Rank(rank),
        world,
        first: ("127.0.0.1".to_owned(), port),
        bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
        secret: Some(secret.to_vec()),
        launch: "a test of hosts".to_owned(),
        encrypt: false,
        sample_bytes_max: LARGEST,
    }
}

/// A rank that shares its memory.
struct Member {
    mesh: Arc<Mesh>,
    transport: Arc<dyn Transport>,
    arena: Arc<Arena>,
    tier: MemoryTier,
}

impl Member {
    fn new(rank: u32, world: u32, port: u16) -> Self {
        let mesh = Mesh::start(meeting(rank, world, port, b"a secret of a test")).unwrap();
        let transport = mesh.transport(JobKey([7; 16]));
        let keeps = Keeps {
            bytes: KEPT_BYTES,
            samples: u64::from(SAMPLES),
            largest: LARGEST,
        };
        let arena = Arena::new(1 << 16, keeps).unwrap();
        let tier = MemoryTier::new(Arc::clone(&arena), KEPT_BYTES);
        Self {
            mesh,
            transport,
            arena,
            tier,
        }
    }

    /// Exchanges memory with all others.
    fn share(&self) {
        let listener = Listener::new().unwrap();
        let given = Given::to_all(listener.card().encode());
        let all = self.transport.gather(given, PATIENCE).unwrap();
        let cards: Vec<Option<Card>> = all.iter().map(|bytes| Card::decode(bytes)).collect();
        let memory = self.arena.offer(1 << 20, LARGEST).unwrap();
        let samples = SAMPLES;
        let offer = Offer { samples, memory };
        let deadline = Instant::now() + PATIENCE;
        let exchanged = exchange(&*self.transport, &listener, &cards, &offer, deadline).unwrap();
        assert!(exchanged.failed.is_empty(), "{:?}", exchanged.failed);
        self.arena.share(exchanged);
    }

    fn near(&self, rank: u32, sample: SampleId) -> Option<Arc<Block>> {
        self.arena.near(Rank(rank), sample, len(sample))
    }

    fn keep(&self, sample: SampleId, version: u64) -> bool {
        let kept = self.tier.keep(sample, &content(sample, version), None);
        kept.unwrap() == Kept::Yes
    }
}

fn len(sample: SampleId) -> usize {
    SUM_BYTES + 16 + (sample.index() * 97) % 3900
}

/// A sample's bytes, of which there are as many as there are versions; with their checksum.
fn content(sample: SampleId, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; len(sample)];
    let mut word = (u64::from(sample.0) << 40) ^ version;
    for part in bytes[SUM_BYTES..].chunks_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    let sum = sum_of(sample, &bytes);
    bytes[..SUM_BYTES].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn sum_of(sample: SampleId, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(sample.0.into(), &bytes[SUM_BYTES..])
}

/// Whether bytes are one version of a sample, whole.
fn is_whole(sample: SampleId, bytes: &[u8]) -> bool {
    bytes[..SUM_BYTES] == sum_of(sample, bytes).to_le_bytes()
}

/// A number that is drawn.
fn drawn(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn a_sample(state: &mut u64) -> SampleId {
    SampleId((drawn(state) % u64::from(SAMPLES)) as u32)
}

/// Another process of this test, which says when it is ready, and ends with its standard input.
struct Other {
    child: Child,
    _input: ChildStdin,
}

impl Other {
    fn start(what: &str, rank: u32, world: u32, port: u16) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg(format!("host::tests::{what}"))
            .env("FORESEE_TEST_HOST", format!("{rank} {world} {port}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        Self {
            child,
            _input: input,
        }
    }

    /// Waits until it says something.
    fn says(&mut self, what: &str) {
        let lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(
            lines.any(|line| line.contains(what)),
            "it never said {what}"
        );
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rank that this process is to be, as [`Other`] started it.
fn as_told() -> Option<Member> {
    let told = std::env::var("FORESEE_TEST_HOST").ok()?;
    let numbers: Vec<u32> = told.split(' ').map(|one| one.parse().unwrap()).collect();
    let [rank, world, port] = numbers[..] else {
        return None;
    };
    Some(Member::new(rank, world, port as u16))
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").unwrap();
    out.flush().unwrap();
}

/// Ends with who started this process.
fn end_with_the_test() {
    thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(1);
    });
}

/// No test: a holder that evicts and refills as fast as it can.
#[test]
#[ignore = "run by another test"]
fn restless_holder() {
    let Some(member) = as_told() else { return };
    end_with_the_test();
    member.share();
    say("ready");
    let member = &member;
    thread::scope(|scope| {
        for seed in 1..3 {
            scope.spawn(move || {
                let mut state = seed;
                for version in 0.. {
                    member.tier.evict(a_sample(&mut state));
                    member.keep(a_sample(&mut state), seed << 32 | version);
                }
            });
        }
    });
}

/// No test: a reader that has all it can get.
#[test]
#[ignore = "run by another test"]
fn greedy_reader() {
    let Some(member) = as_told() else { return };
    end_with_the_test();
    member.share();
    let started = Instant::now();
    let mut had = Vec::new();
    while had.is_empty() && started.elapsed() < PATIENCE {
        let all = (0..SAMPLES).map(SampleId);
        had.extend(all.filter_map(|sample| member.near(0, sample)));
    }
    say("has them");
    thread::sleep(PATIENCE);
}

/// Fetches samples, looks at each twice, and keeps some for a while. How many were there.
fn fetch(member: &Member, holder: u32, fetches: u64, seed: u64) -> u64 {
    let mut state = seed;
    let mut there = 0;
    let mut held: Vec<Option<(SampleId, Arc<Block>)>> = vec![None; 8];
    for number in 0..fetches as usize {
        let sample = a_sample(&mut state);
        let Some(block) = member.near(holder, sample) else {
            continue;
        };
        there += 1;
        assert!(is_whole(sample, block.bytes()), "sample {sample} is torn");
        let place = number % held.len();
        let old = held[place].replace((sample, block));
        if let Some((sample, block)) = old {
            let is_same = is_whole(sample, block.bytes());
            assert!(
                is_same,
                "sample {sample} was written to while it was in use"
            );
        }
    }
    there
}

#[test]
fn a_million_fetches_from_a_restless_holder_are_whole_and_its_end_harms_nobody() {
    let member = Member::new(0, 2, 0);
    let mut holder = Other::start("restless_holder", 1, 2, member.mesh.port());
    member.share();
    holder.says("ready");
    let there = AtomicU64::new(0);
    let fetch_all = |fetches: u64, seed: u64| {
        thread::scope(|scope| {
            for thread in 0..2 {
                let (member, there) = (&member, &there);
                scope.spawn(move || {
                    let came = fetch(member, 1, fetches / 2, seed + thread);
                    there.fetch_add(came, Ordering::Relaxed);
                });
            }
        });
    };
    fetch_all(FETCHES / 2, 11);
    // It is killed in the middle.
    thread::scope(|scope| {
        scope.spawn(|| fetch_all(FETCHES / 2, 21));
        thread::sleep(Duration::from_millis(100));
        holder.kill();
    });
    let there = there.into_inner();
    let refused = FETCHES - there;
    println!("{FETCHES} fetches: {there} came, {refused} were refused");
    assert!(there > FETCHES / 100 && refused > FETCHES / 100);
    let had: Vec<_> = (0..SAMPLES)
        .map(SampleId)
        .filter_map(|sample| Some((sample, member.near(1, sample)?)))
        .collect();
    assert!(!had.is_empty(), "what it had shown is still there");
    // Once it cannot be reached its memory is let go of, but for what is in use.
    let neighbours = member.arena.neighbours().unwrap();
    neighbours.lost(Rank(1));
    assert_eq!(neighbours.len(), 0);
    assert!((0..SAMPLES).all(|sample| member.near(1, SampleId(sample)).is_none()));
    let is_whole = |(sample, block): &(SampleId, Arc<Block>)| is_whole(*sample, block.bytes());
    assert!(had.iter().all(is_whole));
    let before = mappings();
    drop(had);
    assert!(mappings() < before, "the memory of the dead is let go of");
}

/// Mappings of memory without a name.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:foresee"))
        .count()
}

#[test]
fn what_a_reader_has_is_not_used_again_until_its_process_is_gone() {
    let member = Member::new(0, 2, 0);
    let mut reader = Other::start("greedy_reader", 1, 2, member.mesh.port());
    member.share();
    let sample = SampleId(3);
    assert!(member.keep(sample, 1));
    reader.says("has them");
    member.tier.evict(sample);
    let room = || {
        let all: Vec<_> = std::iter::from_fn(|| member.arena.keep(64, Stay::Lasting)).collect();
        all.len()
    };
    let without = room();
    reader.kill();
    let started = Instant::now();
    while room() == without {
        assert!(started.elapsed() < PATIENCE, "its pins hold for ever");
        thread::sleep(Duration::from_millis(1));
    }
    let places = len(sample).div_ceil(64);
    assert_eq!(room(), without + places);
}

#[test]
fn who_has_another_secret_is_not_let_near() {
    let meshes = [(0, b"one secret of a test"), (1, b"2nd secret of a test")]
        .map(|(rank, secret)| Mesh::start(meeting(rank, 2, 0, secret)).unwrap());
    let ends = meshes
        .each_ref()
        .map(|mesh| mesh.transport(JobKey([1; 16])));
    let (one, other) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let greeted = ends[0].greet(&one, true);
            drop(one);
            greeted
        });
        let second = ends[1].greet(&other, false);
        drop(other);
        assert!(second.is_err());
        assert!(first.join().unwrap().is_err());
    });
}

#[test]
#[allow(unsafe_code, reason = "forks")]
fn a_child_sees_what_its_parent_had_of_a_neighbour_whatever_that_keeps_since() {
    use std::os::fd::AsRawFd;

    let holder = Member::new(0, 2, 0);
    let reader = Member::new(1, 2, holder.mesh.port());
    thread::scope(|scope| {
        scope.spawn(|| holder.share());
        reader.share();
    });
    let sample = SampleId(5);
    assert!(holder.keep(sample, 1));
    let lent_after = crate::fork::forks();
    let block = reader.near(0, sample).unwrap();
    let (read, write) = std::io::pipe().unwrap();
    // SAFETY: the child only waits, looks and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; both descriptors are open, and the buffer is there.
        unsafe {
            libc::close(write.as_raw_fd());
            libc::read(read.as_raw_fd(), [0u8].as_mut_ptr().cast(), 1);
            libc::_exit(i32::from(!is_whole(sample, block.bytes())));
        }
    }
    // Handed back in the parent, and evicted by its holder, which then fills all that it has.
    block.returned(lent_after);
    drop(block);
    holder.tier.evict(sample);
    for version in 2..4 {
        for other in (0..SAMPLES).map(SampleId).filter(|other| *other != sample) {
            holder.keep(other, version);
            holder.tier.evict(other);
        }
        let all: Vec<_> =
            std::iter::from_fn(|| holder.arena.keep_copy(&[9; 64], Stay::Lasting)).collect();
        assert!(!all.is_empty());
    }
    drop(write);
    let mut status = -1;
    // SAFETY: a child of ours, and nobody else waits for it.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "it saw what was not there");
}
