//! What happened so far, in numbers, and as a summary for people.

use crate::sync::atomic::Ordering;
use crate::sync::whole;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;

use foresee_core::bound::{job_minimum, lone_minimum};
use foresee_core::tally::{Count, Tally};
use serde::{Deserialize, Serialize};

use super::Job;
use super::balance_stats::BalanceStats;
use super::ledger::Counts;
use super::peer_stats::{JobStats, PeerStats, Report, WayStats};
use super::post::Post;
use super::shared::Shared;
use super::state::State;

/// Every epoch is looked at for the source minimum: nobody trains for more, or waits for so many.
const EPOCHS_COUNTED: u32 = 10_000;

/// Reads from one origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// How many.
    pub samples: u64,
    /// How much.
    pub bytes: u64,
    /// How long threads took for them, all added up.
    pub thread_s: f64,
}

/// What happened so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The policy.
    pub policy: String,
    /// Which rank.
    pub rank: u32,
    /// Of how many.
    pub world_size: u32,
    /// Epoch of the next batch.
    pub epoch: u32,
    /// Step of the next batch.
    pub step: u32,
    /// Since the job was made.
    pub elapsed_s: f64,
    /// From making the job to its first batch.
    pub first_batch_s: Option<f64>,
    /// Batches handed over.
    pub batches: u64,
    /// Samples handed over.
    pub samples: u64,
    /// Bytes handed over.
    pub bytes: u64,
    /// How long the trainer waited.
    pub stall_s: f64,
    /// What it waited for.
    pub stall_by_s: BTreeMap<String, f64>,
    /// Reads by origin: `source` and `tier1`, `tier2` ... as configured.
    pub origins: BTreeMap<String, Reads>,
    /// Bytes that did not come from the source, of all that were read.
    pub hit_ratio: f64,
    /// Bytes read from the source.
    pub source_bytes: u64,
    /// The fewest that this whole job can read from the source with its tiers; with peers no rank has one of its own
    /// ([`JobStats`]).
    pub source_minimum_bytes: Option<u64>,
    /// Loader threads of the staging buffer at present, and of each tier.
    pub threads: Vec<u32>,
    /// Reads that were tried again.
    pub retries: u64,
    /// Samples that could not be read and that others took the place of.
    pub skipped: u64,
    /// Samples that a tier should have had and had not, or damaged.
    pub lost: u64,
    /// Samples that a tier on disk held and that changed in the source since, or may have: they were read anew.
    pub stale: u64,
    /// Samples that a tier should have kept and could not.
    pub not_kept: u64,
    /// Samples that were given memory outside of the staging buffer, because all of it was in the trainer's hands.
    pub outside: u64,
    /// Threads that go to the rank of a host that needs them, and how steps of its ranks went; none where they do not.
    pub balance: Option<BalanceStats>,
    /// What happened between this rank and others; none without peers.
    pub peers: Option<PeerStats>,
    /// What all ranks did, as far as they said; none without peers.
    pub job: Option<JobStats>,
}

impl Stats {
    pub(super) fn of(job: &Job, shared: Option<&Shared>) -> Self {
        let (epoch, step) = job.place();
        let spec = job.spec();
        let first_batch_ns = job.first_batch_ns.load(Ordering::Relaxed);
        let mut stats = Self {
            policy: spec.policy.clone(),
            rank: spec.rank,
            world_size: spec.world,
            epoch,
            step,
            elapsed_s: job.made.elapsed().as_secs_f64(),
            first_batch_s: (first_batch_ns > 0).then_some(first_batch_ns as f64 / 1e9),
            ..Self::nothing()
        };
        if let Some(shared) = shared {
            shared.look(|now| {
                stats.count(&now.ledger.tally, now.ledger.counts);
                let by_cause = now.ledger.causes.by_name().into_iter();
                let stalls = by_cause.filter(|(_, stall_s)| *stall_s > 0.0);
                stats.stall_by_s = stalls.collect();
                stats.threads = now.crew.by_lane();
            });
            stats.balance = shared.balancing.as_ref().map(|balancing| {
                let decoding = shared.look(State::decoding_model);
                balancing.stats(decoding)
            });
            stats.count_peers(shared);
        }
        stats
    }

    /// What happened between this rank and others, and what they said of themselves.
    fn count_peers(&mut self, shared: &Shared) {
        let own = Report::of(self);
        let counted = shared.look(|now| {
            let dealings = now.dealings.as_ref()?;
            let reports = dealings.reports(&own);
            Some((dealings.stats(), reports))
        });
        let Some((mut peers, reports)) = counted else {
            return;
        };
        let troubles = shared.post.as_ref().map(Post::troubles);
        let troubles = troubles.unwrap_or_default().into_iter();
        peers.ways = troubles.map(WayStats::from).collect();
        peers.served = shared.served.so_far();
        peers.handed_over = shared.outbox.sent();
        peers.not_handed_over = shared.outbox.dropped();
        self.job = Some(JobStats::of(self.world_size, reports));
        self.peers = Some(peers);
    }

    fn nothing() -> Self {
        Self {
            policy: String::new(),
            rank: 0,
            world_size: 1,
            epoch: 0,
            step: 0,
            elapsed_s: 0.0,
            first_batch_s: None,
            batches: 0,
            samples: 0,
            bytes: 0,
            stall_s: 0.0,
            stall_by_s: BTreeMap::new(),
            origins: BTreeMap::new(),
            hit_ratio: 0.0,
            source_bytes: 0,
            source_minimum_bytes: None,
            threads: Vec::new(),
            retries: 0,
            skipped: 0,
            lost: 0,
            stale: 0,
            not_kept: 0,
            outside: 0,
            balance: None,
            peers: None,
            job: None,
        }
    }

    fn count(&mut self, tally: &Tally, counts: Counts) {
        let Counts {
            batches,
            samples,
            bytes,
            retries,
            skipped,
            lost,
            stale,
            not_kept,
            outside,
        } = counts;
        self.batches = batches;
        self.samples = samples;
        self.bytes = bytes;
        self.retries = retries;
        self.skipped = skipped;
        self.lost = lost;
        self.stale = stale;
        self.not_kept = not_kept;
        self.outside = outside;
        self.stall_s = tally.stall.0;
        self.source_bytes = tally.source.bytes.0;
        let reads = |count: &Count| Reads {
            samples: count.reads,
            bytes: count.bytes.0,
            thread_s: count.took.0,
        };
        self.origins.insert("source".into(), reads(&tally.source));
        for (index, count) in tally.tiers.iter().enumerate().skip(1) {
            self.origins.insert(format!("tier{index}"), reads(count));
        }
        for (name, count) in [("peer", &tally.peer), ("host_peer", &tally.host_peer)] {
            if count.reads > 0 {
                self.origins.insert(name.into(), reads(count));
            }
        }
        let all: u64 = self.origins.values().map(|reads| reads.bytes).sum();
        self.hit_ratio = if all == 0 {
            0.0
        } else {
            1.0 - self.source_bytes as f64 / all as f64
        };
    }
}

impl Job {
    /// What is used is not what it was when the run began: nobody knows any more how little could have been read.
    pub(super) fn leave_course(&self) {
        whole(self.began.lock()).minimum_bytes = OnceCell::from(None);
    }

    /// The fewest bytes that this job can read from the source, from where this run began; none where its epochs have no
    /// end, or orders that are not known yet, or too many to look at, or where it did not go on from there.
    /// `kept_bytes`: what the tiers of a job that runs or ran can hold. With peers it is what all ranks read together.
    pub(super) fn source_minimum(&self, kept_bytes: Option<Vec<u64>>) -> Option<u64> {
        let (orders, spec) = (self.orders(), self.spec());
        if orders.epochs() > EPOCHS_COUNTED || orders.epochs() != spec.epochs {
            return None;
        }
        let began = whole(self.began.lock());
        let minimum = |kept: &[u64]| {
            let (layout, _) = whole(self.course.read()).clone();
            let brief = spec.brief(orders, (layout, began.mark), kept, &[]).ok()?;
            if let Some(agreed) = self.peers().and_then(|peers| peers.agreed()) {
                return job_minimum(&agreed.complete(brief)).map(|bytes| bytes.0);
            }
            lone_minimum(&brief, spec.rank(), &began.held).map(|bytes| bytes.0)
        };
        match kept_bytes {
            Some(kept) => *began.minimum_bytes.get_or_init(|| minimum(&kept)),
            None => minimum(
                &spec
                    .config
                    .tiers
                    .iter()
                    .map(|tier| spec.part_bytes(tier))
                    .collect::<Vec<_>>(),
            ),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let rate = self.samples as f64 / self.elapsed_s.max(1e-9);
        writeln!(
            f,
            "policy      {} (rank {} of {})",
            self.policy, self.rank, self.world_size
        )?;
        writeln!(
            f,
            "delivered   {} samples, {:.1} MB in {} batches, {:.2} s, {rate:.0} samples/s",
            self.samples,
            mb(self.bytes),
            self.batches,
            self.elapsed_s
        )?;
        let first = self
            .first_batch_s
            .map_or_else(|| "none yet".into(), |seconds| format!("{seconds:.3} s"));
        writeln!(f, "first batch {first}")?;
        let causes: Vec<String> = self
            .stall_by_s
            .iter()
            .map(|(cause, stall_s)| format!("{cause} {stall_s:.2} s"))
            .collect();
        let part = 100.0 * self.stall_s / self.elapsed_s.max(1e-9);
        let causes = if causes.is_empty() {
            String::new()
        } else {
            format!(": {}", causes.join(", "))
        };
        writeln!(f, "stalled     {:.2} s ({part:.0} %){causes}", self.stall_s)?;
        for (origin, reads) in self.origins.iter().filter(|(_, reads)| reads.samples > 0) {
            writeln!(
                f,
                "from {origin:<7}{} samples, {:.1} MB",
                reads.samples,
                mb(reads.bytes)
            )?;
        }
        writeln!(f, "hit ratio   {:.3}", self.hit_ratio)?;
        let minimum = match (&self.job, self.source_minimum_bytes) {
            (Some(_), _) => String::new(),
            (None, None) => ", its minimum is not known".into(),
            (None, Some(minimum)) => {
                format!(", the whole job's minimum is {:.1} MB", mb(minimum))
            }
        };
        writeln!(
            f,
            "source      {:.1} MB read{minimum}",
            mb(self.source_bytes)
        )?;
        let threads: Vec<String> = self.threads.iter().map(u32::to_string).collect();
        write!(f, "threads     {}", threads.join(" + "))?;
        let troubles = [
            ("retries", self.retries),
            ("skipped", self.skipped),
            ("lost", self.lost),
            ("stale", self.stale),
            ("not kept", self.not_kept),
            ("outside", self.outside),
        ];
        for (what, count) in troubles.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "\n{what:<12}{count}")?;
        }
        if let Some(balance) = &self.balance {
            write!(f, "\n{balance}")?;
        }
        if let Some(peers) = &self.peers {
            write!(f, "\n{peers}")?;
        }
        if let Some(job) = &self.job {
            write!(f, "\n{job}")?;
        }
        Ok(())
    }
}
