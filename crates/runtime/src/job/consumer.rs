//! Where the trainer stands in the stream, and what has been gathered for what it is about to get.

use std::time::Instant;

use foresee_core::ids::{Epoch, Rank, SampleId, Step};
use foresee_core::model::Origin;
use foresee_core::stream::{Layout, Mark};

use super::handed::Ask;
use super::loans::Numbers;
use super::peers::Standing;
use super::slots::Staged;
use crate::arena::Piece;

/// Where the trainer stands.
pub(super) struct Consumer {
    pub(super) layout: Layout,
    /// The world that the job began with: its tail was padded or dropped for it.
    pub(super) began_with: u32,
    pub(super) mark: Mark,
    /// Samples of this step that were handed over one by one.
    pub(super) index: u32,
    pub(super) gathered: Vec<Gathered>,
    /// When the trainer began to wait for what it is about to get.
    pub(super) since: Option<Instant>,
    /// When it got what it had last.
    pub(super) handed: Option<Instant>,
    /// Samples to pass over after a start in the middle of a step.
    pub(super) skip: u32,
    /// The sample that is next has been reported as broken.
    pub(super) reported: bool,
    /// Where it waits for peers.
    pub(super) stand: Stand,
}

/// How the trainer waits for what is to come from peers. Its deadline runs only while it stands there.
#[derive(Debug, Default)]
pub(super) struct Stand {
    /// The slot, and since when.
    at: Option<(u64, Instant)>,
    /// How often nobody handed over what the trainer stood at.
    pub(super) forsaken: u32,
}

/// What is to be done about a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not for peers.
    NotForPeers,
    /// It goes on until then, at most.
    Until(Instant),
    /// It is over: the rank that is to blame is done without, if there is one.
    Expired(Option<Rank>),
}

impl Stand {
    /// What is to be done now, where the trainer stands at this.
    pub(super) fn judge(&mut self, standing: Option<Standing>, now: Instant) -> Verdict {
        let Some(standing) = standing else {
            self.at = None;
            return Verdict::NotForPeers;
        };
        let since = match self.at {
            Some((slot, since)) if slot == standing.slot => since,
            _ => now,
        };
        let end = since + standing.patience;
        if now < end {
            self.at = Some((standing.slot, since));
            return Verdict::Until(end);
        }
        self.at = None;
        self.forsaken += u32::from(standing.rank.is_none());
        Verdict::Expired(standing.rank)
    }
}

/// A sample that waits for the rest of its batch. Its loans are ended by the lease that is made of it, or with the course
/// that it is of.
pub(super) struct Gathered {
    pub(super) sample: SampleId,
    pub(super) piece: Piece,
    pub(super) course: u64,
    /// What the engine counts it by; none of a sample that was read on demand.
    pub(super) loans: Numbers,
    pub(super) origin: Origin,
    pub(super) fetched: Instant,
    pub(super) ready: Instant,
}

impl Gathered {
    pub(super) fn new(staged: Staged, course: u64, loans: Numbers) -> Self {
        Self {
            sample: staged.sample,
            piece: staged.piece,
            course,
            loans,
            origin: staged.origin,
            fetched: staged.fetched,
            ready: staged.ready,
        }
    }
}

impl Consumer {
    pub(super) fn new(layout: Layout, began_with: u32, mark: Mark, index: u32) -> Self {
        Self {
            layout,
            began_with,
            mark,
            index,
            gathered: Vec::new(),
            since: None,
            handed: None,
            skip: index,
            reported: false,
            stand: Stand::default(),
        }
    }

    /// How many samples are asked for.
    pub(super) fn wanted(&self, rank: Rank, ask: Ask) -> usize {
        let left = self.layout.local_len(rank, self.mark.step) - self.index;
        if ask.alone {
            left.min(1) as usize
        } else {
            left as usize
        }
    }

    /// Goes on elsewhere.
    pub(super) fn move_to(&mut self, mark: Mark) {
        *self = Self::new(self.layout.clone(), self.began_with, mark, 0);
    }

    /// Takes what was handed over of this step as it was, and all else of it anew.
    pub(super) fn begin_step_anew(&mut self) {
        self.gathered.clear();
        self.skip = self.index;
        self.reported = false;
    }

    /// So many samples of this step were handed over, of those that this rank has.
    pub(super) fn pass(&mut self, samples: u32, rank: Rank) {
        self.index += samples;
        if self.index < self.layout.local_len(rank, self.mark.step) {
            return;
        }
        self.index = 0;
        self.mark.step.0 += 1;
        if self.mark.step.0 >= self.layout.steps() {
            self.mark = Mark {
                epoch: Epoch(self.mark.epoch.0 + 1),
                step: Step(0),
            };
        }
    }
}
