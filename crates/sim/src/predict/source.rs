//! The source as a fluid: reads under way share t(gamma) equally, and those of one rank share its link. Reads that wait for
//! their first byte are under way, so they count in gamma, but take nothing yet: the others share all of t(gamma), as in
//! a storage that serves one request while the next is on its way. Within a rank all reads progress alike, so each rank
//! needs one counter of bytes served to each of its reads, and a heap of the counts at which reads end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use foresee_core::ids::Rank;
use foresee_core::model::{Model, SourceLoad};
use foresee_core::units::{Bytes, Pace, Seconds};

/// Orders floats that are never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ordered(pub(super) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The reads of one rank.
#[derive(Default)]
struct Reads {
    /// Bytes served so far to a read that were there from the start.
    served: f64,
    /// When each ends, in bytes served.
    ends: BinaryHeap<Reverse<(Ordered, usize)>>,
    /// Seconds a byte at present.
    pace: f64,
}

/// All reads from the source.
pub(super) struct Source {
    model: Arc<Model>,
    ranks: Vec<Reads>,
    /// Reads that have begun.
    under_way: u32,
    /// Those of them that get bytes.
    served: u32,
    at: Seconds,
}

impl Source {
    pub(super) fn new(model: Arc<Model>, ranks: u32) -> Self {
        Self {
            model,
            ranks: (0..ranks).map(|_| Reads::default()).collect(),
            under_way: 0,
            served: 0,
            at: Seconds::ZERO,
        }
    }

    /// What a byte would cost one more read of a rank.
    pub(super) fn pace_of_another(&self, rank: Rank) -> Pace {
        let own = self.ranks[rank.index()].ends.len() as u32 + 1;
        self.model.source(SourceLoad {
            readers: self.under_way + 1,
            own,
        })
    }

    /// A read begins, and waits for its first byte.
    pub(super) fn ask(&mut self, now: Seconds) {
        self.advance(now);
        self.under_way += 1;
        self.share();
    }

    /// The first byte of a read has come; `task` names it.
    pub(super) fn begin(&mut self, now: Seconds, rank: Rank, task: usize, bytes: Bytes) {
        self.advance(now);
        let reads = &mut self.ranks[rank.index()];
        reads
            .ends
            .push(Reverse((Ordered(reads.served + bytes.0 as f64), task)));
        self.served += 1;
        self.share();
    }

    /// The next read to end, and when.
    pub(super) fn next_end(&self) -> Option<(Seconds, Rank)> {
        let end = |(rank, reads): (usize, &Reads)| {
            let Reverse((Ordered(end), _)) = reads.ends.peek()?;
            let left = (end - reads.served).max(0.0) * reads.pace;
            Some((self.at + Seconds(left), Rank(rank as u32)))
        };
        let ends = self.ranks.iter().enumerate().filter_map(end);
        ends.min_by(|a, b| a.0.0.total_cmp(&b.0.0))
    }

    /// The next read of `rank` ends now; returns its task.
    pub(super) fn end(&mut self, now: Seconds, rank: Rank) -> Option<usize> {
        self.advance(now);
        let reads = &mut self.ranks[rank.index()];
        let Reverse((Ordered(end), task)) = reads.ends.pop()?;
        reads.served = reads.served.max(end);
        if reads.ends.is_empty() {
            reads.served = 0.0;
        }
        self.served -= 1;
        self.under_way -= 1;
        self.share();
        Some(task)
    }

    fn advance(&mut self, now: Seconds) {
        let passed = (now - self.at).0.max(0.0);
        for reads in self.ranks.iter_mut().filter(|reads| !reads.ends.is_empty()) {
            reads.served += passed / reads.pace;
        }
        self.at = now;
    }

    fn share(&mut self) {
        for reads in self.ranks.iter_mut().filter(|reads| !reads.ends.is_empty()) {
            let load = SourceLoad {
                readers: self.under_way,
                own: reads.ends.len() as u32,
            };
            reads.pace = self.model.source_among(load, self.served).0;
        }
    }
}
