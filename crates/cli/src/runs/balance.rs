//! What `stats()` of a job says of ranks that share threads, as far as a page shows it.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::check_seconds;

/// As many ranks as share threads.
const RANKS_MAX: usize = 64;
/// More than a loader tells.
const CHANGES_MAX: usize = 16_384;
const BARS_MAX: usize = 256;

/// Ranks of a host that share threads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Balance {
    /// Ranks of the job, by place on the host.
    pub members: Vec<u32>,
    pub steps: u64,
    pub imbalanced_steps: Option<f64>,
    /// By place: imbalanced steps in which the rank was late, by what it waited for.
    pub late_by: Vec<BTreeMap<String, u64>>,
    pub late_steps: Vec<LateStep>,
    /// By place.
    pub waited_s: Vec<f64>,
    pub utilisation: Option<f64>,
    pub steps_s: BTreeMap<String, f64>,
    /// How many took up to so long.
    pub steps_histogram: Vec<(f64, u64)>,
    /// Threads by place, from a step on.
    pub threads_over_time: Vec<(u64, Vec<u32>)>,
}

/// A step in which some rank was late.
#[derive(Debug, Deserialize)]
pub(crate) struct LateStep {
    pub step: u64,
    pub late: Vec<LateRank>,
}

/// Which one, and why.
#[derive(Debug, Deserialize)]
pub(crate) struct LateRank {
    pub rank: u32,
    pub waited_s: f64,
    pub cause: String,
}

impl Balance {
    /// What the rank at a place is called.
    pub(crate) fn rank_name(&self, place: usize) -> String {
        let rank = self.members.get(place).copied();
        format!("rank {}", rank.unwrap_or(place as u32))
    }

    /// Ranks that something is told of.
    pub(crate) fn ranks_told(&self) -> usize {
        let threads = self.threads_over_time.first();
        let threads = threads.map_or(0, |(_, threads)| threads.len());
        threads.max(self.late_by.len()).max(self.waited_s.len())
    }

    pub(super) fn check(&self) -> Result<()> {
        let ranks = self.ranks_told();
        ensure!(
            ranks.max(self.members.len()) <= RANKS_MAX,
            "{ranks} ranks are too many; give {RANKS_MAX} at most"
        );
        let changes = self.threads_over_time.len();
        ensure!(
            changes <= CHANGES_MAX,
            "threads_over_time: {changes} changes are too many; give {CHANGES_MAX} at most"
        );
        let rises = self.threads_over_time.is_sorted_by_key(|change| change.0);
        let mut numbers = self.threads_over_time.iter();
        let alike = numbers.all(|(_, threads)| threads.len() == ranks);
        ensure!(
            rises && alike,
            "threads_over_time: give steps that rise, each with the threads of all {ranks} ranks"
        );
        ensure!(
            self.steps_histogram.len() <= BARS_MAX,
            "steps_histogram: {} bars are too many; give {BARS_MAX} at most",
            self.steps_histogram.len()
        );
        for (name, part) in [
            ("imbalanced_steps", self.imbalanced_steps),
            ("utilisation", self.utilisation),
        ] {
            let is_part = part.is_none_or(|part| (0.0..=1.0).contains(&part));
            ensure!(is_part, "{name}: give a part, from 0 to 1");
        }
        check_seconds("waited_s", self.waited_s.iter().copied())?;
        check_seconds("steps_s", self.steps_s.values().copied())?;
        let bars = self.steps_histogram.iter().map(|bar| bar.0);
        check_seconds("steps_histogram", bars)?;
        let late = self.late_steps.iter().flat_map(|step| &step.late);
        check_seconds("late_steps", late.map(|late| late.waited_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: &str) -> String {
        let balance: Balance = serde_json::from_str(json).unwrap();
        balance
            .check()
            .map_or_else(|wrong| wrong.to_string(), |()| "good".into())
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        assert_eq!(said("{}"), "good");
        assert_eq!(
            said(r#"{"threads_over_time": [[0, [1, 2]], [8, [2, 1]]], "utilisation": 0.5}"#),
            "good"
        );
        for (json, what) in [
            (
                r#"{"threads_over_time": [[0, [1, 2]], [8, [2]]]}"#,
                "threads_over_time: give steps that rise",
            ),
            (
                r#"{"threads_over_time": [[9, [1]], [8, [2]]]}"#,
                "threads_over_time: give steps that rise",
            ),
            (r#"{"utilisation": 1.5}"#, "utilisation: give a part"),
            (r#"{"waited_s": [-1.0]}"#, "waited_s: -1; give seconds"),
            (
                r#"{"steps_histogram": [[-1.0, 3]]}"#,
                "steps_histogram: -1; give seconds",
            ),
        ] {
            assert!(said(json).starts_with(what), "{json}: {}", said(json));
        }
    }

    #[test]
    fn ranks_have_their_numbers_in_the_job() {
        let balance: Balance = serde_json::from_str(r#"{"members": [8, 9]}"#).unwrap();
        assert_eq!(balance.rank_name(1), "rank 9");
        assert_eq!(Balance::default().rank_name(1), "rank 1");
    }
}
