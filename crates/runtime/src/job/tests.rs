//! The state of a job without threads: its transitions are called in an order that threads would rarely find.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::{Config, Threads, TierKind};
use foresee_core::catalog::Catalog;
use foresee_core::engine::Lane;
use foresee_core::ids::{SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::policy::Assignment;
use foresee_core::stream::{Mark, Shuffle, Tail};
use foresee_core::threads::crew::{Choice, Crew};
use foresee_core::threads::window::Window;
use foresee_image::{Dtype, Layout, Pipeline, Size, Transform};

use super::consumer::Consumer;
use super::course::Course;
use super::gathering::Gathering;
use super::outcome::{Done, Outcome};
use super::polling::Polled;
use super::state::State;
use super::stores::Stores;
use super::task::{Doer, Fetch, Raw, Ticket, Way};
use super::wake::Wake;
use super::{Asked, Images, Job, JobSpec, OnError};
use crate::arena::Piece;
use crate::pool::Pool;
use crate::source::{ReadError, Source};
use crate::stamp::Stamp;
use crate::tier::{Arrived, Secured, Stay, check_may_write};

pub(super) const SAMPLE: u64 = 100;
pub(super) const SAMPLES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Samples that are full of their number.
struct Numbered;

impl Source for Numbered {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        into.fill(sample.0 as u8);
        Ok(None)
    }

    fn name(&self, sample: SampleId) -> String {
        format!("number {sample}")
    }
}

/// One pass over samples in their order, two of them in a batch; all fit into the memory tier.
pub(super) fn spec() -> JobSpec {
    let mut config = Config::default();
    config.staging.capacity_bytes = 10 * SAMPLE;
    config.staging.threads = Threads::Number(1);
    config.tiers = vec![foresee_config::Tier {
        kind: TierKind::Memory,
        capacity_bytes: u64::from(SAMPLES) * SAMPLE,
        scope: foresee_config::Scope::Rank,
        threads: 1,
    }];
    JobSpec {
        source: Arc::new(Numbered),
        catalog: Arc::new(Catalog::new(vec![SAMPLE; SAMPLES as usize])),
        dataset: [0; 16],
        shuffle: Shuffle::Sequential,
        own_order: false,
        batch_size: 2,
        epochs: 1,
        drop_last: false,
        tail: Tail::Pad,
        policy: "foresee".into(),
        assignment: Assignment::Order,
        on_error: OnError::Raise,
        images: None,
        config,
        rank: 0,
        world: 1,
        on_host: None,
        consumer: 0,
        record: false,
    }
}

/// The state of a job that no thread works for, and what it needs to be started anew.
struct Idle {
    job: Job,
    state: State,
    stores: Stores,
}

impl Idle {
    /// With so many threads of the staging buffer and of the tier.
    fn new(staging: u32, tier: u32) -> Self {
        Self::of(spec(), staging, tier)
    }

    fn of(spec: JobSpec, staging: u32, tier: u32) -> Self {
        let job = Job::new(spec).unwrap();
        let (stores, _) = job.open_stores(&Pool::of_process()).unwrap();
        let course = Course::new(desk(&job, &stores), None);
        let crew = Crew::new(course.desk.threads(), [staging, tier], 2, Choice::Fixed);
        let window = Window::new(10 * SAMPLE, 10 * SAMPLE);
        let state = State::new(course, crew, 2, window);
        Self { job, state, stores }
    }

    /// The next read of the memory tier's own threads.
    fn take_for_tier(&mut self) -> Fetch {
        let lane = Lane::Tier(TierId(1));
        let fetch = self
            .state
            .take_tier_task(lane, &self.stores, &mut Wake::default());
        fetch.expect("there is something to bring in")
    }

    fn advance(&mut self) -> Polled {
        self.state.advance(&self.stores).0
    }

    /// A read has been carried out, whatever it was.
    fn comes(&mut self, fetch: Fetch) {
        let outcome = come(fetch, &self.stores);
        let _ = self.state.settle(outcome, &self.stores);
    }

    fn fails(&mut self, ticket: Ticket) {
        let outcome = Outcome::Failed {
            ticket,
            done: Done::at_once(Instant::now(), Origin::Source),
            cause: ReadError::Empty,
            part: None,
            instead: None,
        };
        let _ = self.state.settle(outcome, &self.stores);
    }

    /// The samples that the trainer gets of the next `wanted`, by what is in them.
    fn gathers(&mut self, wanted: usize) -> Vec<u8> {
        let mut gathered = Vec::new();
        let (gathering, _) = self
            .state
            .gather(&mut gathered, wanted, || true, &self.stores);
        assert!(matches!(gathering, Gathering::Whole | Gathering::Late));
        gathered.iter().map(|one| one.piece.bytes()[0]).collect()
    }

    fn begin_next(&mut self) -> Option<Fetch> {
        self.state.take_task(&self.stores, &mut Wake::default())
    }

    /// What all threads that find something to do have begun.
    fn begin_all(&mut self) -> Vec<Fetch> {
        std::iter::from_fn(|| self.begin_next()).collect()
    }
}

fn desk(job: &Job, stores: &Stores) -> crate::desk::Desk {
    let layout = job.consumer().layout.clone();
    let consumer = Consumer::new(layout, 1, Mark::START, 0);
    job.desk(&consumer, stores, &[]).unwrap()
}

pub(super) fn come(fetch: Fetch, stores: &Stores) -> Outcome {
    let Raw::Fill(mut filling) = fetch.raw else {
        unreachable!("nothing is decoded")
    };
    let read = fetch.ticket.read;
    filling.bytes_mut().fill(read.sample.0 as u8);
    let block = filling.share();
    let secured = read.keep.map(|tier| {
        stores
            .tier(tier)
            .secure(Arrived::Block(&block), Stay::of(&read))
    });
    let to_keep = match secured {
        Some(Secured::Block(block)) => Some(block),
        Some(Secured::Nothing | Secured::Sum(_)) | None => None,
    };
    Outcome::Came {
        ticket: fetch.ticket,
        done: Done::at_once(Instant::now(), Origin::Source),
        piece: Some(Piece::whole(block)),
        to_keep,
    }
}

#[test]
fn those_behind_awaited_samples_are_staged_meanwhile_and_all_come_in_order() {
    let mut idle = Idle::new(1, 2);
    let first = idle.take_for_tier();
    let second = idle.take_for_tier();
    while idle.advance() == Polled::More {}
    assert!(idle.state.course.slots.len() > 2, "two of them are awaited");
    let third = idle.begin_next().expect("it is staged meanwhile");
    assert_eq!(third.ticket.slot, Some(2));
    idle.comes(third);
    idle.comes(second);
    assert_eq!(idle.gathers(3), [0; 0], "the first is still on its way");
    idle.comes(first);
    assert_eq!(idle.gathers(3), [0, 1, 2]);
    assert_eq!(idle.state.ledger.counts.lost, 0);
}

#[test]
fn an_awaited_sample_that_does_not_come_is_read_from_the_source_before_all_others() {
    let mut idle = Idle::new(1, 1);
    let first = idle.take_for_tier();
    while idle.advance() == Polled::More {}
    idle.fails(first.ticket);
    let again = idle.begin_next().expect("it is read again");
    assert_eq!(again.ticket.slot, Some(0));
    assert_eq!(again.way, Way::Source);
    idle.comes(again);
    assert_eq!(idle.gathers(1), [0]);
}

#[test]
fn an_awaited_sample_without_room_gets_memory_of_its_own_when_the_trainer_stands_at_it() {
    let mut idle = Idle::new(8, 1);
    let first = idle.take_for_tier();
    while idle.advance() == Polled::More {}
    // All of the memory is taken.
    let arena = Arc::clone(&idle.stores.arena);
    let staged: Vec<_> = std::iter::from_fn(|| arena.stage(1)).collect();
    let kept: Vec<_> = std::iter::from_fn(|| arena.keep(1, Stay::Lasting)).collect();
    idle.fails(first.ticket);
    let next = idle.begin_next().expect("others were located before");
    assert_eq!(next.ticket.slot, Some(1));
    assert!(idle.state.course.lacks_room_at_head());
    assert_eq!(idle.gathers(1), [0; 0], "it has to be read");
    let own = idle.begin_next().expect("it has memory now");
    assert_eq!(own.ticket.slot, Some(0));
    idle.comes(own);
    assert_eq!(idle.gathers(1), [0]);
    drop((first, staged, kept));
}

/// How many of these reads are for the staging buffer, and how many for a tier alone.
fn staged_and_filled(begun: &[Fetch]) -> (usize, usize) {
    let staged = begun.iter().filter(|fetch| fetch.ticket.slot.is_some());
    let staged = staged.count();
    (staged, begun.len() - staged)
}

#[test]
fn threads_of_a_tier_stage_once_homes_are_filled() {
    let mut spec = spec();
    spec.config.tiers[0].capacity_bytes = 4 * SAMPLE;
    let mut idle = Idle::of(spec, 1, 3);
    let first = idle.begin_all();
    for fetch in first {
        idle.comes(fetch);
    }
    assert_eq!(idle.stores.held().len(), 4, "there is nothing to bring in");
    let then = idle.begin_all();
    assert_eq!(staged_and_filled(&then), (4, 0));
    assert_eq!(idle.gathers(4), [0, 1, 2, 3]);
}

#[test]
fn threads_that_find_the_staging_buffer_full_fill_a_tier_as_many_as_it_takes() {
    let mut idle = Idle::new(12, 2);
    let mut begun = idle.begin_all();
    assert_eq!(staged_and_filled(&begun), (10, 2));
    assert!(idle.begin_next().is_none(), "two threads are idle");
    let filled = begun.pop().expect("the last two fill the tier");
    idle.comes(filled);
    let next = idle.begin_next().expect("the tier takes another thread");
    assert_eq!(next.ticket.doer, Doer::Thread(Lane::Tier(TierId(1))));
    assert!(idle.begin_next().is_none());
}

#[test]
fn each_lane_has_its_own_threads_under_a_policy_of_the_papers() {
    let spec = JobSpec {
        policy: "nopfs".into(),
        epochs: 2,
        ..spec()
    };
    let mut idle = Idle::of(spec, 1, 3);
    let begun = idle.begin_all();
    assert_eq!(staged_and_filled(&begun), (1, 3));
    for fetch in begun {
        idle.comes(fetch);
    }
    // Until the tier is full: from then on its threads have nothing to do.
    while idle.stores.held().len() < SAMPLES as usize {
        let begun = idle.begin_all();
        let (staged, filled) = staged_and_filled(&begun);
        assert!(staged <= 1 && filled <= 3, "{staged} and {filled}");
        for fetch in begun {
            idle.comes(fetch);
        }
    }
}

#[test]
fn what_was_begun_before_a_move_is_dropped_when_it_comes() {
    let mut idle = Idle::new(1, 0);
    let old = idle.begin_next().expect("there is something to read");
    let _ = idle.state.stop();
    assert!(idle.begin_next().is_none(), "nothing is read in between");
    let desk = desk(&idle.job, &idle.stores);
    let course = idle.state.course.followed_by(desk, None);
    let _ = idle.state.go_on_with(course, &idle.stores);
    let new = idle.begin_next();
    assert!(new.is_none(), "the only thread of its lane is still busy");
    idle.comes(old);
    assert_eq!(idle.gathers(1), [0; 0]);
    assert_eq!(idle.stores.held(), [], "nor is it kept");
    let new = idle.begin_next().expect("the thread is free again");
    idle.comes(new);
    assert_eq!(idle.gathers(1), [0]);
    assert!(!idle.state.crew.is_busy());
}

#[test]
#[cfg(debug_assertions)]
fn who_has_the_lock_of_a_job_cannot_write_files() {
    let job = Job::new(spec()).unwrap();
    let running = job.running(&job.consumer(), Instant::now());
    let shared = running.unwrap().expect("it has nobody to meet");
    let locked = std::panic::AssertUnwindSafe(|| {
        shared.change(|_| {
            check_may_write();
            ((), super::wake::Wake::NOBODY)
        });
    });
    assert!(std::panic::catch_unwind(locked).is_err());
    check_may_write();
}

#[test]
fn the_samples_of_a_decoded_batch_are_one_loan() {
    let image: Vec<u8> = b"P6 2 2 255\n".iter().copied().chain([7; 12]).collect();
    let sizes = vec![image.len() as u64; 6];
    let pipeline = Pipeline::new(
        &[Transform::CenterCrop(Size::square(2))],
        Dtype::Uint8,
        Layout::Chw,
    )
    .unwrap();
    let job = Job::new(JobSpec {
        source: Arc::new(Same(image)),
        catalog: Arc::new(Catalog::new(sizes)),
        batch_size: 3,
        images: Some(Images {
            pipeline: Arc::new(pipeline),
            seed: 0,
        }),
        ..spec()
    })
    .unwrap();
    let Asked::Batch(mut batch) = job.next_batch(MINUTE).unwrap() else {
        panic!("a minute is enough")
    };
    let shared = job.lock_running().clone().unwrap();
    let lent = || shared.look(|state| state.loans.len());
    assert_eq!(lent(), 3);
    batch.samples.truncate(1);
    assert_eq!(lent(), 3, "the tensor is still held");
    drop(batch);
    assert_eq!(lent(), 0);
}

/// The same bytes for every sample.
struct Same(Vec<u8>);

impl Source for Same {
    fn read(&self, _: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        into.copy_from_slice(&self.0);
        Ok(None)
    }

    fn name(&self, sample: SampleId) -> String {
        format!("number {sample}")
    }
}
