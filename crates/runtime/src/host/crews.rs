//! What ranks of a host show each other of their threads: each has a few numbers of its own that the others can look at. It
//! writes them some twenty times a second, with the time; who has not for a while is taken to be gone, or stopped, and counts
//! for nothing until it is heard of again. What the numbers come to is core's to say (`threads::permits`).
//!
//! Here is also how long each rank waited in its latest steps, so that everyone can tell who kept the others waiting.

use std::fs::File;
use std::io;

use foresee_core::causes::Cause;
use foresee_core::ids::{Rank, TierId};
use foresee_core::threads::permits::{Plan, Shown};
use foresee_core::units::Seconds;

use super::cells::{Cells, View, acquire, barrier};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Hosts with more ranks do not share threads.
pub(crate) const RANKS_MAX: usize = 64;

/// Steps that are remembered: more than pass between two looks.
const STEPS: usize = 256;

/// Who has shown nothing for so long does not count, in nanoseconds.
const SILENT_MAX_NS: u64 = 400_000_000;

/// Where the numbers lie.
const BEAT: usize = 0;
const BROUGHT: usize = 1;
const QUEUED: usize = 2;
const WORK_NS: usize = 3;
const TRAIN_NS: usize = 4;
const FOLLOWS: usize = 5;
const GENERATION: usize = 6;
const DONE: usize = 7;
const BUSY: usize = 8;
const MEASURED: usize = 9;
const PLAN: usize = 10;
const FIRST_STEP: usize = PLAN + RANKS_MAX;
/// Of a step: its number from 1, how long the rank waited, for what, and how long it trained.
const STEP_CELLS: usize = 4;
const CELLS: usize = FIRST_STEP + STEP_CELLS * STEPS;

/// The number of the first tier among causes.
const FIRST_TIER: u64 = 5;

/// What a board takes.
pub(super) const BOARD_BYTES: u64 = (CELLS * size_of::<u64>()) as u64;

/// How a step of one rank went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stepped {
    /// How long it waited for its own data.
    pub(crate) waited: Seconds,
    /// What for; none where it did not wait.
    pub(crate) cause: Option<Cause>,
    /// How long its trainer took before, what it waited for others included.
    pub(crate) trained: Seconds,
}

/// What a rank shows.
pub(crate) struct CrewBoard(Cells<AtomicU64>);

/// What another rank shows.
pub(crate) struct CrewView(View<AtomicU64>);

/// The boards of all ranks of a host.
pub(crate) struct Crews {
    /// This rank's place among them.
    pub(crate) place: usize,
    /// All of them, by place.
    pub(crate) members: Vec<Rank>,
    own: CrewBoard,
    /// By place; none at this rank's own.
    others: Vec<Option<CrewView>>,
}

/// A cause as a number of a cell; 0 is none.
fn number_of(cause: Cause) -> u64 {
    match cause {
        Cause::Source => 1,
        Cause::Peer => 2,
        Cause::HostPeer => 3,
        Cause::Preprocess => 4,
        Cause::Tier(tier) => FIRST_TIER + u64::from(tier.0),
    }
}

fn cause_of(number: u64) -> Option<Cause> {
    match number {
        1 => Some(Cause::Source),
        2 => Some(Cause::Peer),
        3 => Some(Cause::HostPeer),
        4 => Some(Cause::Preprocess),
        other => {
            let tier = u8::try_from(other.checked_sub(FIRST_TIER)?).ok()?;
            Some(Cause::Tier(TierId(tier)))
        }
    }
}

fn nanoseconds(time: Seconds) -> u64 {
    (time.0.clamp(0.0, 1e9) * 1e9) as u64
}

fn seconds(nanoseconds: u64) -> Seconds {
    Seconds(nanoseconds as f64 / 1e9)
}

/// The same for all processes of a host.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl CrewBoard {
    pub(super) fn new() -> io::Result<Self> {
        Cells::new(CELLS).map(Self)
    }

    pub(super) fn shown(&self) -> io::Result<File> {
        self.0.shown()
    }

    fn set(&self, cell: usize, value: u64) {
        self.0.at(cell).store(value, Ordering::Relaxed);
    }

    fn show(&self, shown: &Shown) {
        self.set(BROUGHT, u64::from(shown.brought));
        self.set(QUEUED, u64::from(shown.queued));
        self.set(WORK_NS, nanoseconds(shown.work));
        self.set(TRAIN_NS, nanoseconds(shown.train));
        self.set(MEASURED, u64::from(shown.is_measured));
        self.set(BUSY, u64::from(shown.busy));
        self.set(FOLLOWS, shown.follows);
        self.set(BEAT, if shown.is_live { now_ns() } else { 0 });
    }

    /// Whoever looks meanwhile sees no plan.
    fn show_plan(&self, plan: &Plan) {
        self.set(GENERATION, 0);
        barrier();
        for (at, threads) in plan.threads.iter().take(RANKS_MAX).enumerate() {
            self.set(PLAN + at, u64::from(*threads));
        }
        barrier();
        self.set(GENERATION, plan.generation);
    }

    fn show_step(&self, number: u64, step: Stepped) {
        let first = FIRST_STEP + STEP_CELLS * (number as usize % STEPS);
        self.set(first, 0);
        barrier();
        self.set(first + 1, nanoseconds(step.waited));
        self.set(first + 2, nanoseconds(step.trained));
        self.set(first + 3, step.cause.map_or(0, number_of));
        barrier();
        self.set(first, number + 1);
        self.set(DONE, number + 1);
    }
}

/// Looks at numbers of a rank, its own or another's.
fn look(get: impl Fn(usize) -> u64, ranks: usize, now_ns: u64) -> Shown {
    let beat = get(BEAT);
    let generation = get(GENERATION);
    acquire();
    let threads = (0..ranks).map(|at| get(PLAN + at) as u32).collect();
    acquire();
    let is_whole = generation > 0 && get(GENERATION) == generation;
    let plan = is_whole.then_some(Plan {
        generation,
        threads,
    });
    Shown {
        is_live: beat > 0 && now_ns.saturating_sub(beat) < SILENT_MAX_NS,
        brought: get(BROUGHT) as u32,
        queued: get(QUEUED) as u32,
        work: seconds(get(WORK_NS)),
        train: seconds(get(TRAIN_NS)),
        is_measured: get(MEASURED) > 0,
        busy: get(BUSY) as u32,
        follows: get(FOLLOWS),
        plan: plan.unwrap_or_default(),
    }
}

fn look_at_step(get: impl Fn(usize) -> u64, number: u64) -> Option<Stepped> {
    let first = FIRST_STEP + STEP_CELLS * (number as usize % STEPS);
    if get(first) != number + 1 {
        return None;
    }
    acquire();
    let step = Stepped {
        waited: seconds(get(first + 1)),
        trained: seconds(get(first + 2)),
        cause: cause_of(get(first + 3)),
    };
    acquire();
    (get(first) == number + 1).then_some(step)
}

impl CrewView {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        View::new(file, CELLS).map(Self)
    }

    fn get(&self, cell: usize) -> u64 {
        self.0.at(cell).load(Ordering::Relaxed)
    }
}

impl Crews {
    /// Of a rank, with what the others of its host show, in their order.
    pub(super) fn new(rank: Rank, own: CrewBoard, seen: Vec<(Rank, CrewView)>) -> Self {
        let place = seen.partition_point(|(other, _)| *other < rank);
        let mut members: Vec<Rank> = seen.iter().map(|(other, _)| *other).collect();
        members.insert(place, rank);
        let views = seen.into_iter().map(|(_, view)| Some(view));
        let mut others: Vec<Option<CrewView>> = views.collect();
        others.insert(place, None);
        Self {
            place,
            members,
            own,
            others,
        }
    }

    /// Shows what this rank is about.
    pub(crate) fn show(&self, shown: &Shown) {
        self.own.show(shown);
    }

    /// Shows a plan that this rank made.
    pub(crate) fn show_plan(&self, plan: &Plan) {
        self.own.show_plan(plan);
    }

    /// Shows how a step of this rank went, counted from the start of the job.
    pub(crate) fn show_step(&self, number: u64, step: Stepped) {
        self.own.show_step(number, step);
    }

    /// What all show, by their places.
    pub(crate) fn look(&self) -> Vec<Shown> {
        let now_ns = now_ns();
        let ranks = self.others.len();
        let of_place = |other: &Option<CrewView>| match other {
            Some(other) => look(|cell| other.get(cell), ranks, now_ns),
            None => look(|cell| self.own_cell(cell), ranks, now_ns),
        };
        self.others.iter().map(of_place).collect()
    }

    /// How a step went, by place; none where not all have done it, or long ago.
    pub(crate) fn step(&self, number: u64) -> Option<Vec<Stepped>> {
        let of_place = |other: &Option<CrewView>| match other {
            Some(other) => look_at_step(|cell| other.get(cell), number),
            None => look_at_step(|cell| self.own_cell(cell), number),
        };
        self.others.iter().map(of_place).collect()
    }

    /// Steps that this rank has shown.
    pub(crate) fn own_steps(&self) -> u64 {
        self.own_cell(DONE)
    }

    fn own_cell(&self, cell: usize) -> u64 {
        self.own.0.at(cell).load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(feature = "shuttle", miri))))]
mod tests {
    use super::*;

    fn pair() -> [Crews; 2] {
        let board = || CrewBoard::new().expect("memory");
        let [one, other] = [board(), board()];
        let view = |of: &CrewBoard| {
            let shown = of.shown().expect("a descriptor");
            CrewView::new(&shown).expect("memory")
        };
        let [sees_one, sees_other] = [view(&one), view(&other)];
        [
            Crews::new(Rank(4), one, vec![(Rank(7), sees_other)]),
            Crews::new(Rank(7), other, vec![(Rank(4), sees_one)]),
        ]
    }

    #[test]
    fn ranks_see_what_the_others_show_and_who_shows_nothing_is_not_there() {
        let [one, other] = pair();
        let shown = Shown {
            is_live: true,
            brought: 4,
            queued: 7,
            work: Seconds(0.5),
            train: Seconds(0.25),
            is_measured: true,
            busy: 2,
            follows: 3,
            plan: Plan::default(),
        };
        assert_eq!(one.members, other.members);
        assert_eq!([one.place, other.place], [0, 1]);
        one.show(&shown);
        let plan = Plan {
            generation: 5,
            threads: vec![6, 2],
        };
        one.show_plan(&plan);
        let seen = other.look();
        assert_eq!(seen[0], Shown { plan, ..shown });
        assert!(!seen[1].is_live, "it has shown nothing yet");
        one.show(&Shown::default());
        assert!(!other.look()[0].is_live, "it has left");
    }

    #[test]
    fn every_cause_has_its_number() {
        let tiers = [0, 1, u8::MAX].map(|tier| Cause::Tier(TierId(tier)));
        let others = [
            Cause::Source,
            Cause::Peer,
            Cause::HostPeer,
            Cause::Preprocess,
        ];
        for cause in tiers.into_iter().chain(others) {
            assert_eq!(cause_of(number_of(cause)), Some(cause));
        }
        assert_eq!([0, 1000].map(cause_of), [None; 2]);
    }

    #[test]
    fn a_step_is_seen_once_all_have_done_it_and_until_it_is_long_ago() {
        let [one, other] = pair();
        let step = |waited| Stepped {
            waited: Seconds(waited),
            cause: (waited > 0.0).then_some(Cause::Tier(TierId(2))),
            trained: Seconds(1.0),
        };
        one.show_step(9, step(0.5));
        assert_eq!(other.step(9), None);
        other.show_step(9, step(0.0));
        assert_eq!(one.step(9), Some(vec![step(0.5), step(0.0)]));
        assert_eq!(one.step(9), other.step(9));
        one.show_step(9 + STEPS as u64, step(0.5));
        assert_eq!(other.step(9), None);
    }
}
