//! A benchmark as people read it in a terminal: what ran, epoch by epoch, and the loader's own summary.

use std::collections::BTreeSet;
use std::fmt::Write;

use foresee_config::OneLine;

use super::Printed;
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
