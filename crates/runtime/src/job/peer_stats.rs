//! What happened between ranks, in numbers: what was asked and served, how long that took, what went wrong with whom; and
//! what the ranks of a job did together, as far as they told each other.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::stats::{Reads, Stats};
use crate::transport::Troubles;

/// Samples that went from one rank to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// How many.
    pub samples: u64,
    /// How much.
    pub bytes: u64,
}

/// What went wrong with a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// How often it let a deadline pass without a word.
    pub mute: u64,
    /// How often it could not be reached any more.
    pub lost: u64,
    /// How often it was heard, but did not bring in time what it was to read.
    pub slow: u64,
    /// Answers of it that were no samples.
    pub garbled: u64,
}

impl Faults {
    fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Of each doubling of time so many parts are told apart: quantiles are right within a fifth.
const PARTS: usize = 4;

/// From a microsecond to beyond an hour.
const BUCKETS: usize = 32 * PARTS;

/// How long samples took to come from peers.
#[derive(Clone, Debug)]
pub(super) struct FetchTimes {
    count: u64,
    total: Duration,
    longest: Duration,
    buckets: Box<[u64; BUCKETS]>,
}

impl Default for FetchTimes {
    fn default() -> Self {
        Self {
            count: 0,
            total: Duration::ZERO,
            longest: Duration::ZERO,
            buckets: Box::new([0; BUCKETS]),
        }
    }
}

impl FetchTimes {
    pub(super) fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
        self.longest = self.longest.max(took);
        let doublings = (took.as_secs_f64() * 1e6).max(1.0).log2();
        let bucket = (doublings * PARTS as f64) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// What this part of all took at most, within a bucket.
    fn quantile_s(&self, part: f64) -> f64 {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                let end_us = ((bucket + 1) as f64 / PARTS as f64).exp2();
                return (end_us / 1e6).min(self.longest.as_secs_f64());
            }
        }
        0.0
    }

    pub(super) fn summed(&self) -> FetchStats {
        FetchStats {
            count: self.count,
            total_s: self.total.as_secs_f64(),
            p50_s: self.quantile_s(0.5),
            p99_s: self.quantile_s(0.99),
            longest_s: self.longest.as_secs_f64(),
        }
    }
}

/// How long samples took to come from peers, from asking to having them. Those that were asked for before they could be there
/// took long for that reason, and made nobody wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FetchStats {
    /// How many came.
    pub count: u64,
    /// All added up.
    pub total_s: f64,
    /// Half of them took no longer, within a fifth.
    pub p50_s: f64,
    /// All but a hundredth of them took no longer, within a fifth.
    pub p99_s: f64,
    /// None took longer.
    pub longest_s: f64,
}

/// What happened between this rank and others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PeerStats {
    /// Requests sent.
    pub asked: u64,
    /// Requests that were answered with their sample.
    pub came: u64,
    /// Requests that were answered without it.
    pub refused: u64,
    /// Requests given up because their rank was silent, slow or gone.
    pub expired: u64,
    /// Requests that were not wanted any more: the sample came by another way, or the job moved.
    pub withdrawn: u64,
    /// Answers that came when nobody waited for them.
    pub late: u64,
    /// Bytes of all answers, used or not.
    pub traffic_bytes: u64,
    /// How long samples took to come.
    pub fetch: FetchStats,
    /// Requests of others that had to wait here for their sample.
    pub parked: u64,
    /// Requests of others that were refused here.
    pub refused_here: u64,
    /// What others got from here.
    pub served: Moved,
    /// What this rank read and handed to the ranks that keep it.
    pub handed_over: Moved,
    /// Samples that it could not hand over: too many were on their way, or it took too long.
    pub not_handed_over: u64,
    /// What others read and handed to this rank.
    pub received: Moved,
    /// What went wrong, by rank; only ranks with which something did.
    pub faults: BTreeMap<u32, Faults>,
    /// What went wrong on the ways to them.
    pub ways: Vec<WayStats>,
}

/// What went wrong on the ways to a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WayStats {
    /// Which rank; none for those who did not prove who they are.
    pub rank: Option<u32>,
    /// Connections that broke.
    pub lost: u64,
    /// Frames that were not as they had been sent.
    pub garbled: u64,
    /// Handshakes that were refused.
    pub refused: u64,
    /// Attempts to connect after one that failed.
    pub retries: u64,
}

impl From<Troubles> for WayStats {
    fn from(troubles: Troubles) -> Self {
        Self {
            rank: troubles.peer.map(|peer| peer.0),
            lost: troubles.lost,
            garbled: troubles.garbled,
            refused: troubles.refused,
            retries: troubles.retries,
        }
    }
}

/// What happened how often, without what did not.
fn listed(counts: &[(&str, u64)]) -> String {
    let some = counts.iter().filter(|(_, times)| *times > 0);
    let said: Vec<String> = some
        .map(|(what, times)| format!("{what} {times}x"))
        .collect();
    said.join(", ")
}

impl PeerStats {
    /// Notes what went wrong with a rank, if anything did.
    pub(super) fn blame(&mut self, rank: u32, faults: Faults) {
        if !faults.is_nothing() {
            self.faults.insert(rank, faults);
        }
    }
}

impl fmt::Display for PeerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |moved: Moved| moved.bytes as f64 / 1e6;
        let ms = |seconds: f64| seconds * 1e3;
        write!(
            f,
            "peers       asked {}, came {}, refused {}, given up {}",
            self.asked, self.came, self.refused, self.expired
        )?;
        let FetchStats { p50_s, p99_s, .. } = self.fetch;
        if self.fetch.count > 0 {
            write!(
                f,
                "; half within {:.1} ms, 99 % within {:.1} ms",
                ms(p50_s),
                ms(p99_s)
            )?;
        }
        write!(
            f,
            "\nfor peers   served {} samples, {:.1} MB, {} of them late; refused {}; handed over {}, {:.1} MB; got {}, {:.1} MB",
            self.served.samples,
            mb(self.served),
            self.parked,
            self.refused_here,
            self.handed_over.samples,
            mb(self.handed_over),
            self.received.samples,
            mb(self.received),
        )?;
        if self.not_handed_over > 0 {
            write!(
                f,
                "\nnot sent    {} samples that others keep",
                self.not_handed_over
            )?;
        }
        for (rank, faults) in &self.faults {
            let Faults {
                mute,
                lost,
                slow,
                garbled,
            } = *faults;
            let said = listed(&[
                ("mute", mute),
                ("lost", lost),
                ("slow", slow),
                ("garbled", garbled),
            ]);
            write!(f, "\nrank {rank:<7}{said}")?;
        }
        for way in &self.ways {
            let said = listed(&[
                ("broken", way.lost),
                ("garbled", way.garbled),
                ("refused", way.refused),
                ("tried again", way.retries),
            ]);
            match way.rank {
                Some(rank) => write!(f, "\nway to {rank:<5}{said}")?,
                None => write!(f, "\nstrangers   {said}")?,
            }
        }
        Ok(())
    }
}

/// What a rank did, as it tells the others at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which rank.
    pub rank: u32,
    /// Samples handed to its trainer.
    pub samples: u64,
    /// Bytes handed to its trainer.
    pub bytes: u64,
    /// Since its job was made.
    pub elapsed_s: f64,
    /// How long its trainer waited.
    pub stall_s: f64,
    /// Bytes read from the source.
    pub source_bytes: u64,
    /// Reads by origin.
    pub origins: BTreeMap<String, Reads>,
    /// Samples asked of peers, and how many of these requests were refused.
    pub asked: u64,
    /// As above.
    pub refused: u64,
}

impl Report {
    pub(super) fn of(stats: &Stats) -> Self {
        let asked = stats.peers.as_ref();
        Self {
            rank: stats.rank,
            samples: stats.samples,
            bytes: stats.bytes,
            elapsed_s: stats.elapsed_s,
            stall_s: stats.stall_s,
            source_bytes: stats.source_bytes,
            origins: stats.origins.clone(),
            asked: asked.map_or(0, |peers| peers.asked),
            refused: asked.map_or(0, |peers| peers.refused),
        }
    }
}

/// What the ranks of a job did together: this one so far, the others as they said at their end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobStats {
    /// How many ranks there are.
    pub ranks: u32,
    /// What each did that is done, and this one.
    pub reports: Vec<Report>,
    /// Samples of all of them.
    pub samples: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes that they read from the source.
    pub source_bytes: u64,
    /// The fewest that all ranks together can read from the source.
    pub source_minimum_bytes: Option<u64>,
    /// Reads of all of them by origin.
    pub origins: BTreeMap<String, Reads>,
}

impl JobStats {
    /// Of these reports.
    pub(super) fn of(ranks: u32, mut reports: Vec<Report>) -> Self {
        reports.sort_by_key(|report| report.rank);
        let mut stats = Self {
            ranks,
            ..Self::default()
        };
        for report in &reports {
            stats.samples += report.samples;
            stats.bytes += report.bytes;
            stats.source_bytes += report.source_bytes;
            for (origin, reads) in &report.origins {
                let all = stats.origins.entry(origin.clone()).or_default();
                all.samples += reads.samples;
                all.bytes += reads.bytes;
                all.thread_s += reads.thread_s;
            }
        }
        Self { reports, ..stats }
    }

    /// Whether all ranks have said what they did.
    pub fn is_whole(&self) -> bool {
        self.reports.len() == self.ranks as usize
    }
}

impl fmt::Display for JobStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let minimum = self.source_minimum_bytes.map_or_else(
            || "its minimum is not known".into(),
            |minimum| format!("its minimum is {:.1} MB", mb(minimum)),
        );
        write!(
            f,
            "job         {} of {} ranks told: {} samples, {:.1} MB; {:.1} MB of the source, {minimum}",
            self.reports.len(),
            self.ranks,
            self.samples,
            mb(self.bytes),
            mb(self.source_bytes)
        )?;
        for report in &self.reports {
            let origins = report.origins.iter().filter(|(_, reads)| reads.samples > 0);
            let origins =
                origins.map(|(origin, reads)| format!("{origin} {:.1} MB", mb(reads.bytes)));
            let origins: Vec<String> = origins.collect();
            write!(
                f,
                "\nrank {:<7}{} samples in {:.2} s, stalled {:.2} s; {}",
                report.rank,
                report.samples,
                report.elapsed_s,
                report.stall_s,
                origins.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_fifth() {
        let mut times = FetchTimes::default();
        for micros in 1..=1000 {
            times.add(Duration::from_micros(micros));
        }
        let FetchStats {
            count,
            p50_s,
            p99_s,
            total_s,
            longest_s,
        } = times.summed();
        assert_eq!(count, 1000);
        assert!((total_s - 0.5005).abs() < 1e-6);
        assert!((0.000_5..0.000_6).contains(&p50_s), "{p50_s}");
        assert!((0.000_99..=0.001).contains(&p99_s), "{p99_s}");
        assert!((longest_s - 0.001).abs() < 1e-9);
    }

    #[test]
    fn reports_are_added_up_and_shown_by_rank() {
        let report = |rank| Report {
            rank,
            samples: 10,
            bytes: 1_000_000,
            source_bytes: 400_000,
            origins: [(
                "source".to_owned(),
                Reads {
                    samples: 4,
                    bytes: 400_000,
                    thread_s: 0.5,
                },
            )]
            .into(),
            ..Report::default()
        };
        let job = JobStats::of(3, vec![report(2), report(0)]);
        assert_eq!((job.samples, job.source_bytes), (20, 800_000));
        assert_eq!(job.origins["source"].samples, 8);
        assert!(!job.is_whole());
        let shown = job.to_string();
        assert!(
            shown.starts_with("job         2 of 3 ranks told: 20 samples"),
            "{shown}"
        );
        assert!(shown.contains("\nrank 2      10 samples"), "{shown}");
    }
}
