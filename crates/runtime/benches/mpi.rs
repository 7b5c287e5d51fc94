//! Samples of 100 KB that one rank fetches of another one, 8 at a time, on one host: over the transport and over bare MPI, which
//! looks without a pause and computes no checksums, in alternating rounds. A round is many short bursts, and the quickest of all
//! rounds are compared, too: they hardly depend on what else the machine does. Then what a fetch takes, with idle cores and with
//! busy ones, and what the transport's thread takes when nothing happens. Held to: at least 0.67 of bare MPI, at most 5 ms for
//! 99 % of the fetches with all cores busy, at most 2 % of a core.
//!
//! With each MPI that there is: this program starts itself by its mpirun.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foresee_core::ids::{Rank, SampleId};
use foresee_runtime::transport::mpi::Seeking;
use foresee_runtime::transport::{
    Answer, Ask, Content, Given, Message, Payload, Receive, Sent, Ticket, Transport,
};

#[path = "../tests/mpi/ranks.rs"]
mod ranks;

use ranks::{KEY, PATIENCE, mesh, seeking, told};

const SAMPLE_BYTES: usize = 100_000;
const IN_FLIGHT: u64 = 8;
const REQUESTS: u64 = 250;
const BURSTS: usize = 40;
const ROUNDS: usize = 5;

/// Fetches of which the time is taken, one after the other.
const TIMED: u64 = 2000;

/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(3);

fn main() {
    if let Some((rank, world)) = told() {
        run(rank, world);
        return;
    }
    ranks::with_each(&[2], &[], |name, _, command| {
        println!("{name}");
        let status = command.status().expect("mpirun");
        assert!(status.success(), "{name}: {status}");
    });
}

fn run(rank: u32, world: u32) {
    assert_eq!(world, 2, "start two ranks");
    let mut bare = seeking(rank, world);
    let mesh = mesh(seeking(rank, world), rank, world);
    let transport = mesh.transport(KEY);
    if rank == 1 {
        hold(&transport, &mut bare);
        return;
    }
    let asker = Arc::new(Asker::new(Arc::clone(&transport)));
    let receiver = Arc::<Asker>::clone(&asker);
    let serving = transport.serve(receiver).expect("serving");
    let mut ratios = Vec::new();
    let mut quickest = [Duration::MAX; 2];
    for round in 0..ROUNDS {
        wait_for_both(&transport);
        let [plain, ours] = [
            round_of(&mut quickest[0], || fetch_barely(&mut bare)),
            round_of(&mut quickest[1], || asker.fetch(REQUESTS, IN_FLIGHT)),
        ];
        ratios.push(ours / plain);
        println!(
            "mpi/round {round}: {ours:.0} MB/s, bare MPI {plain:.0} MB/s, ratio {:.2}",
            ours / plain
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("mpi: ratio {:.2} (median)", ratios[ROUNDS / 2]);
    let [plain, ours] = quickest.map(rate);
    println!(
        "mpi/quickest bursts: {ours:.0} MB/s, bare MPI {plain:.0} MB/s, ratio {:.2}",
        ours / plain
    );
    say_times("idle cores", &asker);
    let hogs = Hogs::start();
    say_times("busy cores", &asker);
    drop(hogs);
    let before = cpu_of_thread();
    thread::sleep(IDLE);
    let share = (cpu_of_thread() - before) / IDLE.as_secs_f64();
    println!("mpi/idle: {:.2} % of a core", share * 100.0);
    wait_for_both(&transport);
    drop(serving);
}

/// Both ranks are at the same place.
fn wait_for_both(transport: &Arc<dyn Transport>) {
    let gathered = transport.gather(Given::to_all(Vec::new()), PATIENCE);
    assert!(gathered.is_ok(), "the other rank must come");
}

/// How fast a round's bursts are all together; `quickest` is the quickest of them and of those before.
fn round_of(quickest: &mut Duration, mut burst: impl FnMut() -> Duration) -> f64 {
    let bursts: Vec<Duration> = (0..BURSTS).map(|_| burst()).collect();
    *quickest = bursts.iter().copied().fold(*quickest, Duration::min);
    let all: Duration = bursts.iter().sum();
    rate(all / BURSTS as u32)
}

fn rate(elapsed: Duration) -> f64 {
    (REQUESTS as usize * SAMPLE_BYTES) as f64 / 1e6 / elapsed.as_secs_f64()
}

fn say_times(what: &str, asker: &Arc<Asker>) {
    let mut times: Vec<f64> = (0..TIMED)
        .map(|_| asker.fetch(1, 1).as_secs_f64() * 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[(part * (TIMED - 1) as f64) as usize];
    println!(
        "mpi/fetch, {what}: median {:.3} ms, 99 % {:.3} ms, most {:.3} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Answers each request with the same sample.
struct Holder {
    transport: Arc<dyn Transport>,
    sample: Payload,
}

impl Receive for Holder {
    fn receive(&self, from: Rank, message: Message) {
        if let Message::Ask(Ask { ticket, .. }) = message {
            let content = Content::Sample(self.sample.clone());
            let answer = Message::Answer(Answer { ticket, content });
            assert_eq!(self.transport.send(from, answer), Sent::Taken);
        }
    }

    fn lost(&self, _: Rank) {}
}

fn fetch_barely(bare: &mut Seeking) -> Duration {
    let took = bare.bare(REQUESTS, SAMPLE_BYTES, IN_FLIGHT);
    took.expect("bare MPI")
}

fn hold(transport: &Arc<dyn Transport>, bare: &mut Seeking) {
    let holder = Holder {
        transport: Arc::clone(transport),
        sample: Payload::new(vec![7; SAMPLE_BYTES]),
    };
    let serving = transport.serve(Arc::new(holder)).expect("serving");
    for _ in 0..ROUNDS {
        // Bare MPI looks without a pause: not while the other way is measured.
        wait_for_both(transport);
        for _ in 0..BURSTS {
            fetch_barely(bare);
        }
    }
    wait_for_both(transport);
    drop(serving);
}

/// How far fetching is.
#[derive(Default)]
struct Progress {
    asked: u64,
    came: u64,
    wanted: u64,
}

/// Asks for the next sample when one has come.
struct Asker {
    transport: Arc<dyn Transport>,
    progress: Mutex<Progress>,
    all: Condvar,
}

impl Asker {
    fn new(transport: Arc<dyn Transport>) -> Self {
        Self {
            transport,
            progress: Mutex::default(),
            all: Condvar::new(),
        }
    }

    fn ask(&self, number: u64) {
        let ask = Ask {
            ticket: Ticket(number),
            sample: SampleId(0),
        };
        assert_eq!(self.transport.send(Rank(1), Message::Ask(ask)), Sent::Taken);
    }

    /// Fetches so many, so many at a time; how long that took.
    fn fetch(&self, number: u64, in_flight: u64) -> Duration {
        let started = Instant::now();
        let mut progress = self.progress.lock().expect("nobody panicked");
        *progress = Progress {
            asked: in_flight,
            came: 0,
            wanted: number,
        };
        drop(progress);
        for ticket in 0..in_flight {
            self.ask(ticket);
        }
        let progress = self.progress.lock().expect("nobody panicked");
        let short = |progress: &mut Progress| progress.came < progress.wanted;
        drop(self.all.wait_while(progress, short));
        started.elapsed()
    }
}

impl Receive for Asker {
    fn receive(&self, _: Rank, message: Message) {
        let Message::Answer(answer) = message else {
            return;
        };
        assert_eq!(answer.content.len(), SAMPLE_BYTES);
        let mut progress = self.progress.lock().expect("nobody panicked");
        progress.came += 1;
        if progress.came == progress.wanted {
            self.all.notify_all();
        }
        let next = (progress.asked < progress.wanted).then_some(progress.asked);
        progress.asked += u64::from(next.is_some());
        drop(progress);
        if let Some(next) = next {
            self.ask(next);
        }
    }

    fn lost(&self, _: Rank) {}
}

/// Keeps all cores busy.
struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Hogs {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let hog = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let threads = (0..cores).map(hog).collect();
        Self { stop, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("nobody panicked");
        }
    }
}

/// Seconds of a core that the transport's thread has taken so far.
fn cpu_of_thread() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let of_ours = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let schedule = std::fs::read_to_string(path.join("schedstat")).ok()?;
        let spent_ns: f64 = schedule.split(' ').next()?.parse().ok()?;
        (name.trim() == "foresee-mpi").then_some(spent_ns / 1e9)
    });
    of_ours.sum()
}
