//! One rank of a prediction: its engine, what its threads and its trainer are doing, and what is staged.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use foresee_core::causes::Causes;
use foresee_core::engine::lanes::Lanes;
use foresee_core::engine::{Awaited, Engine};
use foresee_core::ids::TierId;
use foresee_core::model::Origin;
use foresee_core::policy::Part;
use foresee_core::steps::Uses;
use foresee_core::tally::Tally;
use foresee_core::units::{Bytes, Seconds};

use crate::job::Job;

/// How a sample came to be staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) origin: Origin,
    pub(super) fetched: Seconds,
}

/// What the trainer of a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trainer {
    /// At a sample; what was staged of it is then free.
    Training { staged: Option<Bytes> },
    /// It reads a sample itself.
    Reading,
    /// It waits for its next sample.
    Waiting { since: Seconds },
    /// Its step is done.
    AtBarrier { since: Seconds },
}

/// An awaited sample that may be there, by its place: what the trainer needs first is read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Woken {
    pub(super) place: u64,
    pub(super) awaited: Awaited,
}

impl Ord for Woken {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

impl PartialOrd for Woken {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) struct RankState {
    pub(super) engine: Engine,
    pub(super) lanes: Lanes,
    pub(super) woken: BinaryHeap<Reverse<Woken>>,
    /// Reads under way from each of its own tiers.
    pub(super) reading: Vec<u32>,
    /// The samples on their way to the trainer, in order; none for one that is not there yet.
    pub(super) ready: VecDeque<Option<Staged>>,
    /// The place of the first of them.
    pub(super) first_place: u64,
    /// Samples that the trainer still needs in this step.
    pub(super) left: u32,
    pub(super) trainer: Trainer,
    /// How long it trained in this step.
    pub(super) computed: Seconds,
    pub(super) tally: Tally,
    pub(super) uses: Uses,
    pub(super) causes: Causes,
}

impl RankState {
    pub(super) fn new(job: &Job, part: Part) -> Self {
        let system = &job.brief.system;
        let tiers = system.tiers.len();
        let engine = Engine::new(&job.brief, part, Arc::clone(&job.model));
        let lanes = Lanes::new(engine.threads(), system.threads());
        Self {
            engine,
            lanes,
            woken: BinaryHeap::new(),
            reading: vec![0; tiers],
            ready: VecDeque::new(),
            first_place: 0,
            left: 0,
            trainer: Trainer::AtBarrier {
                since: Seconds::ZERO,
            },
            computed: Seconds::ZERO,
            tally: Tally::new(tiers),
            uses: Uses::default(),
            causes: Causes::new(tiers),
        }
    }

    /// Gives the next sample its place in the order; returns which it is, counted from the start of the job.
    pub(super) fn take_place(&mut self) -> u64 {
        let place = self.first_place + self.ready.len() as u64;
        self.ready.push_back(None);
        place
    }

    /// A sample is where the trainer takes it.
    pub(super) fn staged(&mut self, place: u64, staged: Staged) {
        let index = (place - self.first_place) as usize;
        self.ready[index] = Some(staged);
    }

    /// A read from a tier begins; returns how many are under way.
    pub(super) fn begin_reading(&mut self, tier: TierId) -> u32 {
        let reading = &mut self.reading[tier.index()];
        *reading += 1;
        *reading
    }

    /// A read from a tier has its bytes.
    pub(super) fn end_reading(&mut self, tier: TierId) {
        self.reading[tier.index()] -= 1;
    }
}
