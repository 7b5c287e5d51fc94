//! A benchmark as people read it in a terminal: what ran, epoch by epoch, and the loader's own summary.

use std::collections::BTreeSet;
use std::fmt::Write;

use foresee_config::OneLine;
use serde_json::Value;

use super::Printed;
use super::merged::{Merged, Share};
use super::trainer::Lap;
use crate::table::{columns, counted, size, time};

/// All of it.
pub(super) fn bench(printed: &Printed<'_>) -> String {
    let mut parts = vec![head(printed)];
    if !printed.epochs.is_empty() {
        parts.push(epochs(printed.epochs));
    }
    parts.push(printed.stats.to_string());
    if printed.interrupted {
        parts.push("interrupted: these are the numbers so far".to_owned());
    }
    parts.join("\n\n")
}

/// All ranks of a job as one.
pub(super) fn ranks(merged: &Merged) -> String {
    let dataset = &merged.dataset;
    let job = &merged.job;
    let name = dataset["name"].as_str().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let lockstep = if job["lockstep"] == true {
        ", in lockstep"
    } else {
        ""
    };
    let policy = merged.ranks.first().map(|first| &first.stats["policy"]);
    let head = format!(
        "{}: {}, {}\n{} of {}, batches of {} each{lockstep}, policy {}",
        OneLine(name),
        counted(number(&dataset["samples"]), "sample"),
        size(number(&dataset["bytes"])),
        counted(number(&job["epochs"]), "epoch"),
        counted(merged.ranks.len() as u64, "rank"),
        number(&job["batch"]),
        policy.and_then(Value::as_str).unwrap_or_default(),
    );
    let mut parts = vec![head];
    if !merged.epochs.is_empty() {
        parts.push(epochs(&merged.epochs));
    }
    parts.push(shares(&merged.ranks));
    parts.push(source(merged));
    if merged.interrupted {
        parts.push("interrupted: these are the numbers so far".to_owned());
    }
    parts.join("\n\n")
}

/// A line for each rank.
fn shares(ranks: &[Share]) -> String {
    let head = [
        "rank",
        "time",
        "samples",
        "stall",
        "own tiers",
        "peers",
        "source",
    ];
    let row = |share: &Share| {
        vec![
            share.rank.to_string(),
            time(share.total_s),
            share.samples.to_string(),
            time(share.stall_s),
            size(share.own_bytes),
            size(share.peer_bytes),
            size(share.source_bytes),
        ]
    };
    columns(head.map(str::to_owned).to_vec(), ranks.iter().map(row))
}

fn source(merged: &Merged) -> String {
    let read = size(merged.source_bytes);
    let whose = if merged.met {
        "the job's minimum"
    } else {
        "the minimum of ranks that are alone"
    };
    match merged.source_minimum_bytes {
        Some(minimum) if minimum > 0 => format!(
            "source      {read} read by all ranks, {:.3} x {whose}, {}",
            merged.source_bytes as f64 / minimum as f64,
            size(minimum)
        ),
        _ => format!("source      {read} read by all ranks; {whose} is not known"),
    }
}

fn head(printed: &Printed<'_>) -> String {
    let dataset = &printed.dataset;
    let job = &printed.job;
    let mut text = format!(
        "{}: {}, {}, opened in {}\n{} of batches of {}, shuffle {}, seed {}",
        OneLine(&dataset.name),
        counted(u64::from(dataset.samples), "sample"),
        size(dataset.bytes),
        time(dataset.opened_s),
        counted(u64::from(job.epochs), "epoch"),
        job.batch,
        job.shuffle,
        job.seed,
    );
    if job.compute_ms > 0.0 {
        let _ = write!(text, ", {} ms of compute a batch", job.compute_ms);
    }
    if let Some(throttle) = &job.throttle {
        let _ = write!(text, ", source as slow as {throttle}");
    }
    text
}

fn epochs(laps: &[Lap]) -> String {
    let used: BTreeSet<&String> = laps
        .iter()
        .flat_map(|lap| &lap.read_bytes)
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(origin, _)| origin)
        .collect();
    let mut head = ["epoch", "time", "samples/s", "MB/s", "stall"]
        .map(str::to_owned)
        .to_vec();
    head.extend(used.iter().map(|origin| format!("from {origin}")));
    let row = |lap: &Lap| {
        let mut cells = vec![
            lap.epoch.to_string(),
            time(lap.total_s),
            format!("{:.0}", lap.samples_per_s),
            format!("{:.1}", lap.mb_per_s),
            time(lap.stall_s),
        ];
        cells.extend(
            used.iter()
                .map(|origin| size(lap.read_bytes.get(*origin).copied().unwrap_or(0))),
        );
        cells
    };
    columns(head, laps.iter().map(row))
}
