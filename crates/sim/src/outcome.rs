//! What a simulated run comes to, in the form in which it is printed.

use std::collections::BTreeMap;

use foresee_core::steps::{Steps, Uses};
use foresee_core::tally::{Count, Tally};
use serde::Serialize;

/// One policy on one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// Whether the policy can run the job.
    pub supported: bool,
    /// Why not.
    pub reason: Option<String>,
    /// From the start of the job to the end of the last step.
    pub total_s: Option<f64>,
    /// Of that, filling tiers before the first step.
    pub startup_s: Option<f64>,
    /// What data cost, start-up aside: how much longer steps took than the slowest rank trained; mean over ranks. A
    /// rank that waits for another, which waits for data, counts. Start-up, training and stall make up the total.
    pub stall_s: Option<f64>,
    /// Until every rank had its first batch, start-up included.
    pub first_batch_s: Option<f64>,
    /// How long each epoch took, from the end of the one before; start-up counts in the first. None if it did not run.
    pub epochs_s: Vec<f64>,
    /// The part of the samples used that were in some tier by then, kept from before or brought in ahead of the staging buffer.
    pub hit_ratio: Option<f64>,
    /// The part of the steps in which one rank waited for its data for over a tenth of a step of training, and another did not.
    pub imbalanced_steps: Option<f64>,
    /// How long steps took: half of them at most `p50`, and so on.
    pub steps_s: BTreeMap<String, f64>,
    /// Reads by origin, those that fill tiers included.
    pub reads: BTreeMap<String, u64>,
    /// Their bytes.
    pub bytes: BTreeMap<String, u64>,
    /// How long threads fetched them, added up over threads and ranks; for charts.
    #[serde(skip)]
    pub fetch_s: BTreeMap<String, f64>,
}

/// The times of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// See [`Outcome::total_s`].
    pub total_s: f64,
    /// See [`Outcome::startup_s`].
    pub startup_s: f64,
    /// See [`Outcome::first_batch_s`].
    pub first_batch_s: f64,
    /// When each epoch ended; the last one with the run.
    pub epoch_ends_s: Vec<f64>,
}

/// A run, all ranks together.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// How many ranks.
    pub ranks: u32,
    /// How long it took.
    pub times: &'a Times,
    /// What was read.
    pub tally: &'a Tally,
    /// How steps went.
    pub steps: &'a Steps,
    /// What was there when it was used.
    pub uses: Uses,
}

impl Outcome {
    /// A policy that ran.
    pub fn ran(policy: &str, ran: &Ran<'_>) -> Self {
        let Ran {
            ranks,
            times,
            tally,
            steps,
            uses,
        } = *ran;
        let counts = by_origin(tally);
        Self {
            policy: policy.to_owned(),
            supported: true,
            reason: None,
            total_s: Some(times.total_s),
            startup_s: Some(times.startup_s),
            // Rounding may leave a hair below nothing.
            stall_s: Some((tally.stall.0 / f64::from(ranks)).max(0.0)),
            first_batch_s: Some(times.first_batch_s),
            epochs_s: differences(&times.epoch_ends_s),
            hit_ratio: uses.hit_ratio(),
            imbalanced_steps: steps.imbalanced(),
            steps_s: steps.quantiles(),
            reads: counts
                .iter()
                .map(|(origin, count)| (origin.clone(), count.reads))
                .collect(),
            bytes: counts
                .iter()
                .map(|(origin, count)| (origin.clone(), count.bytes.0))
                .collect(),
            fetch_s: counts
                .iter()
                .map(|(origin, count)| (origin.clone(), count.took.0))
                .collect(),
        }
    }

    /// A policy that cannot run the job.
    pub fn unsupported(policy: &str, reason: String, tiers: usize) -> Self {
        let none: BTreeMap<String, u64> = by_origin(&Tally::new(tiers))
            .into_iter()
            .map(|(key, _)| (key, 0))
            .collect();
        Self {
            policy: policy.to_owned(),
            supported: false,
            reason: Some(reason),
            total_s: None,
            startup_s: None,
            stall_s: None,
            first_batch_s: None,
            epochs_s: Vec::new(),
            hit_ratio: None,
            imbalanced_steps: None,
            steps_s: BTreeMap::new(),
            reads: none.clone(),
            bytes: none,
            fetch_s: BTreeMap::new(),
        }
    }
}

/// From each to the next, from 0 on.
fn differences(ends: &[f64]) -> Vec<f64> {
    std::iter::once(&0.0)
        .chain(ends)
        .zip(ends)
        .map(|(from, to)| to - from)
        .collect()
}

/// All origins that the system has, each with its count.
pub(crate) fn by_origin(tally: &Tally) -> Vec<(String, Count)> {
    let fixed = [
        ("source", tally.source),
        ("peer", tally.peer),
        ("host_peer", tally.host_peer),
    ];
    let tiers = tally
        .tiers
        .iter()
        .enumerate()
        .skip(1)
        .map(|(tier, &count)| (format!("tier{tier}"), count));
    fixed
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .chain(tiers)
        .collect()
}

/// All policies on one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    /// The time that no policy can beat with the order as given: the trainer never waits. Policies that train on other
    /// samples, or deal batches otherwise, have steps of other sizes and can come out a little below.
    pub lower_bound_s: f64,
    /// The bytes that no policy which uses every sample can avoid to read from the source.
    pub source_minimum_bytes: u64,
    /// Policy by policy.
    pub results: Vec<Outcome>,
}
