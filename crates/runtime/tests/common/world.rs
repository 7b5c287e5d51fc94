//! Several jobs of one process that serve each other over an in-memory transport.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use foresee_config::{Threads, TierKind};
use foresee_core::ids::{Rank, SampleId};
use foresee_core::policy::Assignment;
use foresee_core::stream::{Shuffle, Tail};
use foresee_runtime::job::{Job, JobSpec, OnHost};
use foresee_runtime::transport::faulty::{Faults, Faulty};
use foresee_runtime::transport::memory::{End, Network};
use foresee_runtime::transport::{
    Absent, Gather, Given, Message, Receive, Sent, Serving, Transport,
};

use super::{Made, batches, job_spec, tier};

/// Far more than any of these needs, even where each rank gives up each other rank once.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// What a world is made of.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) ranks: u32,
    /// Samples of each rank in an epoch.
    pub(crate) each: u32,
    pub(crate) epochs: u32,
    pub(crate) batch: u32,
    pub(crate) shuffle: Shuffle,
    /// What the tiers of all ranks hold together, in percent of the dataset.
    pub(crate) kept_percent: u64,
    /// Whether all ranks take their steps together, as training does.
    pub(crate) in_step: bool,
    pub(crate) faults: Faults,
    /// Messages that may wait at a rank.
    pub(crate) inbox: usize,
    /// Samples that the staging buffer has room for.
    pub(crate) staged: u64,
    pub(crate) sample_bytes: u64,
    pub(crate) deadline: Duration,
    pub(crate) policy: &'static str,
    pub(crate) assignment: Assignment,
    /// Whether all that engines are told is written down.
    pub(crate) record: bool,
    /// Whether ranks share their memory.
    pub(crate) shares: bool,
}

impl Case {
    pub(crate) fn new(ranks: u32) -> Self {
        Self {
            ranks,
            each: 40,
            epochs: 3,
            batch: 1,
            shuffle: Shuffle::Torch { seed: 7 },
            kept_percent: 102,
            in_step: true,
            faults: Faults::default(),
            inbox: 1 << 16,
            staged: 20,
            sample_bytes: 100,
            deadline: Duration::from_secs(2),
            policy: "foresee",
            assignment: Assignment::Order,
            record: false,
            shares: false,
        }
    }

    pub(crate) fn samples(&self) -> u32 {
        self.ranks * self.each
    }

    pub(crate) fn source(&self) -> Made {
        Made::sized(self.samples(), 1, self.sample_bytes)
    }

    /// What one rank keeps.
    pub(crate) fn kept_bytes(&self, source: &Made) -> u64 {
        source.total() * self.kept_percent / 100 / u64::from(self.ranks)
    }

    /// The fewest bytes that all ranks together can read from the source: tiers hold whole samples.
    pub(crate) fn minimum(&self, source: &Made) -> u64 {
        let sample = source.largest();
        let held = self.kept_bytes(source) / sample * sample * u64::from(self.ranks);
        let again = source.total().saturating_sub(held);
        source.total() + u64::from(self.epochs - 1) * again
    }
}

/// Jobs so far.
static JOBS: AtomicU64 = AtomicU64::new(0);

/// One rank's job. Each has a budget of its own, as processes have: jobs of one configuration would share it.
pub(crate) fn spec(case: &Case, source: &Made, rank: u32) -> JobSpec {
    let mut spec = job_spec(source);
    spec.shuffle = case.shuffle.clone();
    spec.batch_size = case.batch;
    spec.epochs = case.epochs;
    spec.tail = Tail::Exact;
    spec.rank = rank;
    spec.world = case.ranks;
    let unlike_others = JOBS.fetch_add(1, Ordering::Relaxed);
    spec.config.staging.capacity_bytes = case.staged * source.largest() + unlike_others;
    spec.config.peers.deadline = case.deadline;
    spec.policy = case.policy.into();
    spec.assignment = case.assignment;
    spec.record = case.record;
    spec.config.staging.threads = Threads::Number(2);
    spec.config.tiers = vec![tier(TierKind::Memory, case.kept_bytes(source))];
    spec
}

/// The same on a host of its own, with a tier in this folder.
pub(crate) fn spec_on_disk(case: &Case, source: &Made, rank: u32, folder: &Path) -> JobSpec {
    let kind = TierKind::Disk {
        path: folder.to_owned(),
        free_space_floor_bytes: 0,
        trust_folder: true,
    };
    let mut spec = spec(case, source, rank);
    spec.config.tiers = vec![tier(kind, case.kept_bytes(source))];
    spec.on_host = Some(OnHost { rank: 0, ranks: 1 });
    spec
}

/// A way to other ranks on which what is sent goes through `send` first.
pub(crate) struct Through<T, F> {
    way: Arc<T>,
    send: F,
}

impl<T, F> Through<T, F>
where
    T: Transport,
    F: Fn(&T, Rank, Message) -> Sent + Send + Sync,
{
    pub(crate) fn new(way: Arc<T>, send: F) -> Arc<Self> {
        Arc::new(Self { way, send })
    }
}

impl<T: Transport, F: Send + Sync> Gather for Through<T, F> {
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
        self.way.gather(given, patience)
    }
}

impl<T, F> Transport for Through<T, F>
where
    T: Transport,
    F: Fn(&T, Rank, Message) -> Sent + Send + Sync,
{
    fn rank(&self) -> Rank {
        self.way.rank()
    }

    fn send(&self, to: Rank, message: Message) -> Sent {
        (self.send)(&self.way, to, message)
    }

    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
        self.way.serve(receiver)
    }

    fn greets(&self) -> bool {
        self.way.greets()
    }

    fn greet(&self, line: &UnixStream, is_first: bool) -> io::Result<Rank> {
        self.way.greet(line, is_first)
    }
}

/// Lets all jobs train in step, and close together.
pub(crate) fn train_in_step(jobs: &[Job], source: &Made) {
    let in_step = Barrier::new(jobs.len());
    thread::scope(|scope| {
        for job in jobs {
            let in_step = &in_step;
            scope.spawn(move || {
                for batch in batches(job) {
                    for sample in &batch.samples {
                        assert_eq!(sample.lease.bytes(), source.content(sample.id));
                    }
                    in_step.wait();
                }
            });
        }
    });
}

/// The jobs of all ranks.
pub(crate) struct World {
    pub(crate) case: Case,
    pub(crate) network: Arc<Network>,
    pub(crate) ends: Vec<Arc<Faulty<End>>>,
    pub(crate) source: Made,
    pub(crate) jobs: Vec<Job>,
}

impl World {
    pub(crate) fn new(case: &Case) -> Self {
        Self::over(case, |end| end)
    }

    /// The same, where each rank's way is wrapped once more.
    pub(crate) fn over<T: Transport + 'static>(
        case: &Case,
        wrapped: impl Fn(Arc<Faulty<End>>) -> Arc<T>,
    ) -> Self {
        let source = case.source();
        let network = if case.shares {
            Network::of_a_host(case.ranks, case.inbox)
        } else {
            Network::with_bound(case.ranks, case.inbox)
        };
        let faulty = |end| Arc::new(Faulty::new(end, case.faults));
        let ends: Vec<Arc<Faulty<End>>> = network.ends().into_iter().map(faulty).collect();
        let job = |(rank, end): (u32, &Arc<Faulty<End>>)| {
            let transport = wrapped(Arc::clone(end));
            Job::among(spec(case, &source, rank), transport).unwrap()
        };
        let jobs = (0..).zip(&ends).map(job).collect();
        Self {
            case: case.clone(),
            network,
            ends,
            source,
            jobs,
        }
    }

    /// Lets each rank train until `stop` says that it has had enough of its batches; what each got, in order.
    pub(crate) fn train(&self, stop: impl Fn(Rank, usize) -> bool + Sync) -> Vec<Vec<SampleId>> {
        let began = Instant::now();
        let in_step = Barrier::new(self.jobs.len());
        let train = |rank: Rank| {
            let mut got = Vec::new();
            for (number, batch) in batches(&self.jobs[rank.index()]).enumerate() {
                for sample in &batch.samples {
                    assert_eq!(sample.lease.bytes(), self.source.content(sample.id));
                    got.push(sample.id);
                }
                if stop(rank, number) {
                    break;
                }
                if self.case.in_step {
                    in_step.wait();
                }
            }
            got
        };
        let got = thread::scope(|scope| {
            let train = &train;
            let ranks = (0..self.case.ranks).map(Rank);
            let trainers: Vec<_> = ranks.map(|rank| scope.spawn(move || train(rank))).collect();
            let joined = trainers.into_iter().map(|trainer| trainer.join().unwrap());
            joined.collect::<Vec<_>>()
        });
        assert!(began.elapsed() < BOUND, "took {:?}", began.elapsed());
        got
    }

    pub(crate) fn train_to_the_end(&self) -> Vec<Vec<SampleId>> {
        self.train(|_, _| false)
    }

    /// What a rank's stream is without peers.
    pub(crate) fn alone(&self, rank: u32) -> Vec<SampleId> {
        let spec = spec(&self.case, &self.case.source(), rank);
        let job = Job::new(spec).unwrap();
        let samples = batches(&job).flat_map(|batch| batch.samples);
        samples.map(|sample| sample.id).collect()
    }

    /// Asserts that a rank got its stream.
    pub(crate) fn check_stream(&self, rank: u32, got: &[SampleId]) {
        assert_eq!(got, self.alone(rank), "rank {rank} of {:?}", self.case);
    }
}

/// Asserts that the ranks together got each sample once an epoch.
pub(crate) fn check_epochs(case: &Case, got: &[Vec<SampleId>]) {
    for epoch in 0..case.epochs as usize {
        let each = case.each as usize;
        let of_epoch = |all: &Vec<SampleId>| all[epoch * each..(epoch + 1) * each].to_vec();
        let mut samples: Vec<SampleId> = got.iter().flat_map(of_epoch).collect();
        samples.sort_unstable();
        let expected: Vec<SampleId> = (0..case.samples()).map(SampleId).collect();
        assert_eq!(samples, expected, "epoch {epoch} of {case:?}");
    }
}
