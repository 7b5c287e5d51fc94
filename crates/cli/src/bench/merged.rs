//! The numbers of all ranks of a benchmark as those of one job: an epoch takes as long as its slowest rank, bytes are added
//! up, and what was read from the source is beside the least that it can be.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::trainer::Lap;

/// Numbers of one rank, as it prints them when it runs alone.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct OfRank {
    dataset: Value,
    job: Value,
    pub(super) epochs: Vec<Lap>,
    interrupted: bool,
    stats: Value,
}

/// All of them.
#[derive(Serialize)]
pub(super) struct Merged {
    pub(super) dataset: Value,
    pub(super) job: Value,
    pub(super) epochs: Vec<Lap>,
    pub(super) interrupted: bool,
    pub(super) source_bytes: u64,
    /// The fewest that all ranks together can read, as they are: serving each other or not. None where nobody knows.
    pub(super) source_minimum_bytes: Option<u64>,
    /// Whether they serve each other.
    pub(super) met: bool,
    /// What a page of runs shows of the job, in the form of one rank's.
    pub(super) stats: Value,
    pub(super) ranks: Vec<Share>,
}

/// What one rank did of the job.
#[derive(Serialize)]
pub(super) struct Share {
    pub(super) rank: usize,
    pub(super) total_s: f64,
    pub(super) samples: u64,
    pub(super) stall_s: f64,
    pub(super) own_bytes: u64,
    pub(super) peer_bytes: u64,
    pub(super) source_bytes: u64,
    pub(super) epochs: Vec<Lap>,
    pub(super) stats: Value,
}

impl Merged {
    /// Of the numbers of all ranks, in their order.
    pub(super) fn of(numbers: Vec<Value>) -> Result<Self> {
        let all = numbers
            .into_iter()
            .map(serde_json::from_value)
            .collect::<Result<Vec<OfRank>, _>>()
            .context("a rank's numbers cannot be read")?;
        let first = all.first().context("no rank has numbers")?;
        let dataset = first.dataset.clone();
        let job = first.job.clone();
        let epochs = laps(&all);
        let interrupted = all.iter().any(|one| one.interrupted);
        let met = all.iter().all(|one| !one.stats["peers"].is_null());
        // Ranks that met know the whole job's, those that are alone each their own.
        let source_minimum_bytes = if met {
            first.stats["job"]["source_minimum_bytes"].as_u64()
        } else {
            let minima = all
                .iter()
                .map(|one| one.stats["source_minimum_bytes"].as_u64());
            minima.sum()
        };
        let policy = first.stats["policy"].clone();
        let first_batch_s = slowest_first_batch(&all);
        let stall_by_s = stall_of_longest(&all);
        let origins = origins_of(&all);
        let ranks: Vec<Share> = all.into_iter().enumerate().map(Share::of).collect();
        let source_bytes = ranks.iter().map(|one| one.source_bytes).sum();
        Ok(Self {
            dataset,
            job,
            epochs,
            interrupted,
            source_bytes,
            source_minimum_bytes,
            met,
            stats: json!({
                "policy": policy,
                "first_batch_s": first_batch_s,
                "stall_by_s": stall_by_s,
                "origins": origins,
                "source_bytes": source_bytes,
                "source_minimum_bytes": source_minimum_bytes,
            }),
            ranks,
        })
    }
}

/// All ranks have begun when the last one has.
fn slowest_first_batch(all: &[OfRank]) -> Option<f64> {
    let first_batches = all.iter().map(|one| one.stats["first_batch_s"].as_f64());
    first_batches.flatten().reduce(f64::max)
}

/// What the trainer waited for that waited longest: in lockstep the others wait for it.
fn stall_of_longest(all: &[OfRank]) -> Value {
    let stall_s = |one: &OfRank| one.stats["stall_s"].as_f64().unwrap_or_default();
    let longest = all
        .iter()
        .max_by(|one, other| stall_s(one).total_cmp(&stall_s(other)));
    longest.map_or_else(|| json!({}), |one| one.stats["stall_by_s"].clone())
}

/// Bytes by origin, of all ranks together.
fn origins_of(all: &[OfRank]) -> Value {
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for origins in all
        .iter()
        .filter_map(|one| one.stats["origins"].as_object())
    {
        for (origin, reads) in origins {
            *bytes.entry(origin.clone()).or_default() +=
                reads["bytes"].as_u64().unwrap_or_default();
        }
    }
    let form = |(origin, bytes): (String, u64)| (origin, json!({"bytes": bytes}));
    Value::Object(bytes.into_iter().map(form).collect())
}

impl Share {
    fn of((rank, one): (usize, OfRank)) -> Self {
        let origin = |is_it: fn(&str) -> bool| {
            let origins = one.stats["origins"].as_object();
            let of_it = origins
                .into_iter()
                .flatten()
                .filter(|(name, _)| is_it(name));
            of_it
                .filter_map(|(_, reads)| reads["bytes"].as_u64())
                .sum::<u64>()
        };
        Self {
            rank,
            total_s: one.epochs.iter().map(|lap| lap.total_s).sum(),
            samples: one.epochs.iter().map(|lap| lap.samples).sum(),
            stall_s: one.stats["stall_s"].as_f64().unwrap_or_default(),
            own_bytes: origin(|name| name.starts_with("tier")),
            peer_bytes: origin(|name| name.ends_with("peer")),
            source_bytes: origin(|name| name == "source"),
            epochs: one.epochs,
            stats: one.stats,
        }
    }
}

/// Epochs of the job: those that all ranks have numbers of.
fn laps(all: &[OfRank]) -> Vec<Lap> {
    let every: BTreeSet<u32> = all
        .iter()
        .flat_map(|one| one.epochs.iter().map(|lap| lap.epoch))
        .collect();
    let of_epoch = |epoch: u32| {
        let laps: Vec<&Lap> = all
            .iter()
            .flat_map(|one| one.epochs.iter().filter(move |lap| lap.epoch == epoch))
            .collect();
        (laps.len() == all.len()).then(|| slowest(epoch, &laps))
    };
    every.into_iter().filter_map(of_epoch).collect()
}

/// An epoch of all ranks: it takes as long as with the slowest of them.
fn slowest(epoch: u32, laps: &[&Lap]) -> Lap {
    let most = |of: fn(&Lap) -> f64| laps.iter().map(|lap| of(lap)).fold(0.0, f64::max);
    let total_s = most(|lap| lap.total_s);
    let samples: u64 = laps.iter().map(|lap| lap.samples).sum();
    let bytes: u64 = laps.iter().map(|lap| lap.bytes).sum();
    let mut read_bytes = BTreeMap::new();
    for (origin, bytes) in laps.iter().flat_map(|lap| &lap.read_bytes) {
        *read_bytes.entry(origin.clone()).or_insert(0) += bytes;
    }
    Lap {
        epoch,
        total_s,
        samples,
        bytes,
        samples_per_s: samples as f64 / total_s,
        mb_per_s: bytes as f64 / 1e6 / total_s,
        stall_s: most(|lap| lap.stall_s),
        read_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(total_s: f64, source: u64, epochs: u32) -> Value {
        let lap = |epoch| {
            json!({
                "epoch": epoch, "total_s": total_s, "samples": 10, "bytes": 1000, "samples_per_s": 1.0, "mb_per_s": 1.0,
                "stall_s": total_s / 2.0, "read_bytes": {"source": source, "peer": 5}
            })
        };
        let laps: Vec<Value> = (0..epochs).map(lap).collect();
        json!({
            "dataset": {"name": "x"}, "job": {"batch": 1}, "epochs": laps, "interrupted": false,
            "stats": {
                "stall_s": 1.0, "source_minimum_bytes": 7, "peers": {}, "job": {"source_minimum_bytes": 8},
                "origins": {
                    "source": {"bytes": source}, "tier1": {"bytes": 3}, "tier2": {"bytes": 4}, "peer": {"bytes": 5},
                    "host_peer": {"bytes": 6}
                }
            }
        })
    }

    #[test]
    fn an_epoch_takes_as_long_as_its_slowest_rank() {
        let merged = Merged::of(vec![numbers(2.0, 100, 2), numbers(4.0, 50, 2)]).unwrap();
        assert_eq!(merged.epochs.len(), 2);
        let lap = &merged.epochs[1];
        assert_eq!(
            (lap.total_s, lap.stall_s, lap.samples, lap.samples_per_s),
            (4.0, 2.0, 20, 5.0)
        );
        assert_eq!(lap.read_bytes["source"], 150);
        assert_eq!(
            (merged.source_bytes, merged.source_minimum_bytes),
            (150, Some(8))
        );
        let second = &merged.ranks[1];
        assert_eq!(
            (second.own_bytes, second.peer_bytes, second.source_bytes),
            (7, 11, 50)
        );
    }

    #[test]
    fn ranks_that_are_alone_each_have_their_own_minimum() {
        let mut all = vec![numbers(2.0, 100, 2), numbers(4.0, 50, 2)];
        all[1]["stats"]["peers"] = Value::Null;
        let merged = Merged::of(all).unwrap();
        assert_eq!((merged.met, merged.source_minimum_bytes), (false, Some(14)));
    }

    #[test]
    fn an_epoch_that_not_all_ranks_finished_is_none_of_the_job() {
        let merged = Merged::of(vec![numbers(2.0, 100, 2), numbers(4.0, 50, 1)]).unwrap();
        assert_eq!(merged.epochs.len(), 1);
    }
}
