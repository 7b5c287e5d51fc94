//! The source as a fluid: reads under way share t(gamma) equally, and those of one rank share its link. Reads that wait for
//! their first byte are under way, so they count in gamma, but take nothing yet: the others share all of t(gamma), as in
//! a storage that serves one request while the next is on its way.
//!
//! What a rank's reads get all together goes to them one after another, first come first served, as in the loader's
//! throttle. Were it divided among them, equal reads that began together would end together, and all threads of a rank
//! would decode, and then read, at the same time for ever: no storage keeps threads in step like that.

use std::collections::VecDeque;
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
    /// What each is of and its task, in the order in which they get bytes.
    queue: VecDeque<(Bytes, usize)>,
    /// Bytes that the first has.
    served: f64,
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
        let own = self.ranks[rank.index()].queue.len() as u32 + 1;
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
        reads.queue.push_back((bytes, task));
        self.served += 1;
        self.share();
    }

    /// The next read to end, and when.
    pub(super) fn next_end(&self) -> Option<(Seconds, Rank)> {
        let end = |(rank, reads): (usize, &Reads)| {
            let (bytes, _) = reads.queue.front()?;
            let left = (bytes.0 as f64 - reads.served).max(0.0) * reads.pace;
            Some((self.at + Seconds(left), Rank(rank as u32)))
        };
        let ends = self.ranks.iter().enumerate().filter_map(end);
        ends.min_by(|a, b| a.0.0.total_cmp(&b.0.0))
    }

    /// The next read of `rank` ends now; returns its task.
    pub(super) fn end(&mut self, now: Seconds, rank: Rank) -> Option<usize> {
        self.advance(now);
        let reads = &mut self.ranks[rank.index()];
        let (_, task) = reads.queue.pop_front()?;
        reads.served = 0.0;
        self.served -= 1;
        self.under_way -= 1;
        self.share();
        Some(task)
    }

    fn advance(&mut self, now: Seconds) {
        let passed = (now - self.at).0.max(0.0);
        for reads in &mut self.ranks {
            if reads.queue.is_empty() {
                continue;
            }
            reads.served += passed / reads.pace;
        }
        self.at = now;
    }

    /// Gives each rank as many parts of t(gamma) as it has reads that get bytes.
    fn share(&mut self) {
        for reads in &mut self.ranks {
            let own = reads.queue.len() as u32;
            if own == 0 {
                continue;
            }
            let load = SourceLoad {
                readers: self.under_way,
                own,
            };
            let part = self.model.source_among(load, self.served);
            reads.pace = part.0 / f64::from(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_core::model::{Beyond, Contention, Curve, Decoded, Scope, System, Tier, Trainer};
    use foresee_core::units::Rate;

    use super::*;

    /// A source of so many MB/s for all.
    fn source(mb_per_s: f64, ranks: u32) -> Source {
        let curve = |rate| Curve::new(vec![(1, rate)], Beyond::Clamp).expect("a curve");
        let staging = Tier {
            name: "staging".into(),
            capacity: Bytes::from_mb(100.0),
            scope: Scope::Rank,
            threads: 4,
            read: curve(1e6),
            write: curve(1e6),
        };
        let system = System {
            network: Rate(1e6),
            source_link: Rate(1e6),
            source: curve(mb_per_s),
            source_latency: Seconds::ZERO,
            contention: Contention::Reads,
            tiers: vec![staging],
            cores_per_host: None,
        };
        let trainer = Trainer {
            compute: Rate(1e6),
            preprocess: Rate(1e6),
            decoded: Decoded::AsIs,
        };
        Source::new(Arc::new(Model::new(&system, &trainer, ranks)), ranks)
    }

    /// Reads of 10 MB begin at once, one for each rank given; returns when each ends, in milliseconds, and its task.
    fn ends(source: &mut Source, ranks: &[u32]) -> Vec<(u32, usize)> {
        for (task, rank) in ranks.iter().enumerate() {
            source.ask(Seconds::ZERO);
            source.begin(Seconds::ZERO, Rank(*rank), task, Bytes::from_mb(10.0));
        }
        std::iter::from_fn(|| {
            let (at, rank) = source.next_end()?;
            let task = source.end(at, rank)?;
            Some(((at.0 * 1e3).round() as u32, task))
        })
        .collect()
    }

    #[test]
    fn reads_of_a_rank_end_one_after_another() {
        let ends = ends(&mut source(100.0, 1), &[0, 0, 0]);
        assert_eq!(ends, [(100, 0), (200, 1), (300, 2)]);
    }

    #[test]
    fn ranks_share_by_how_many_reads_they_have() {
        // 10 MB at 100/3 MB/s for rank 1, 20 MB at twice that for rank 0: all end together.
        let ends = ends(&mut source(100.0, 2), &[0, 0, 1]);
        assert_eq!(ends[0], (150, 0));
        assert_eq!(ends[2].0, 300);
    }
}
