//! A benchmark as people read it in a terminal: what ran, epoch by epoch, and the loader's own summary.

use std::collections::BTreeSet;
use std::fmt::Write;

use foresee_config::OneLine;
use serde::Deserialize;
use serde_json::Value;

use super::Printed;
use super::merged::{Merged, Share};
use super::trainer::Lap;
use crate::runs::Balance;
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
    parts.extend(balance(&merged.ranks));
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

/// Ranks of a host that share threads: how their steps went, and who was late.
fn balance(ranks: &[Share]) -> Option<String> {
    let told = ranks.iter().map(|share| &share.stats["balance"]);
    let told = told.filter_map(|balance| Balance::deserialize(balance).ok());
    let mut hosts: Vec<Balance> = Vec::new();
    for balance in told {
        match hosts
            .iter_mut()
            .find(|host| host.members == balance.members)
        {
            Some(host) if host.steps < balance.steps => *host = balance,
            Some(_) => {}
            None => hosts.push(balance),
        }
    }
    let lines: Vec<String> = hosts.iter().map(of_host).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn of_host(host: &Balance) -> String {
    let part = |part: Option<f64>| 100.0 * part.unwrap_or_default();
    let mut text = format!(
        "balance     {:.1} % of {} imbalanced, trainers busy {:.0} % of their time",
        part(host.imbalanced_steps),
        counted(host.steps, "step"),
        part(host.utilisation),
    );
    for (place, causes) in host.late_by.iter().enumerate() {
        let times: u64 = causes.values().sum();
        if times > 0 {
            let causes = causes
                .iter()
                .map(|(cause, times)| format!("{cause} {times}"));
            let causes = causes.collect::<Vec<_>>().join(", ");
            let who = host.rank_name(place);
            let _ = write!(
                text,
                "\nlate        {who} in {}: {causes}",
                counted(times, "step")
            );
        }
    }
    text
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
