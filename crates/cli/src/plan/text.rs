//! Forecasts as people read them in a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use foresee_config::OneLine;
use foresee_sim::forecast::show::{Home, LocalBatch, Uses};
use foresee_sim::forecast::{Epochs, Forecast, Part};

use super::Shown;
use crate::table::{columns, counted, grouped, size, time};

/// A smaller stall needs no cause.
const SHOWN_SHARE: f64 = 5e-4;

/// Smaller differences between two predictions, as a share of the whole, mean nothing.
const NOISE: f64 = 1e-4;

/// The forecast as a block: what is expected, then what is read, then what more hardware would bring.
pub(super) fn forecast(forecast: &Forecast, assumed: &BTreeMap<&'static str, f64>) -> String {
    let mut text = head(forecast);
    text.push_str("\n\n");
    text.push_str(&summary(forecast));
    text.push_str("\n\n");
    text.push_str(&epochs(forecast));
    text.push_str("\n\n");
    text.push_str(&savings(forecast));
    if let Some(note) = part(forecast) {
        text.push_str("\n\n");
        text.push_str(&note);
    }
    if !assumed.is_empty() {
        let all: Vec<_> = assumed
            .iter()
            .map(|(name, value)| format!("{name} = {}", grouped(*value as u64)))
            .collect();
        text.push_str("\n\nassumed: ");
        text.push_str(&all.join(", "));
    }
    text
}

fn head(forecast: &Forecast) -> String {
    let job = &forecast.job;
    format!(
        "{}, policy {}: {}, {} ({}), {} of {}",
        OneLine(&forecast.scenario),
        forecast.policy,
        counted(u64::from(job.ranks), "rank"),
        counted(u64::from(job.samples), "sample"),
        size(job.dataset_bytes),
        counted(u64::from(job.epochs), "epoch"),
        counted(u64::from(job.steps_per_epoch), "step"),
    )
}

fn summary(forecast: &Forecast) -> String {
    let over = forecast.total_s / forecast.lower_bound_s;
    let cause = forecast
        .stall_cause
        .as_deref()
        .filter(|_| forecast.stall_share >= SHOWN_SHARE);
    let cause = cause.map_or(String::new(), |cause| {
        format!(", most of it for {}", waits(cause))
    });
    let source = forecast.bytes.get("source").copied().unwrap_or(0);
    let cache = match forecast.smallest_useful_cache_bytes {
        0 => "none: a cache does not help".to_owned(),
        bytes => format!("{} a rank, in memory", size(bytes)),
    };
    let lines = [
        (
            "time",
            format!(
                "{}, {over:.3} x the lower bound of {}",
                time(forecast.total_s),
                time(forecast.lower_bound_s)
            ),
        ),
        (
            "stall",
            format!(
                "{} a rank, {:.1} % of the time{cause}",
                time(forecast.stall_s),
                100.0 * forecast.stall_share
            ),
        ),
        (
            "first batch",
            format!("after {}", time(forecast.first_batch_s)),
        ),
        (
            "source",
            format!(
                "{} read, source minimum {}",
                size(source),
                size(forecast.source_minimum_bytes)
            ),
        ),
        ("smallest useful cache", cache),
        (
            "foresight needs",
            format!("{} a rank", size(forecast.foresight_bytes)),
        ),
        ("digest", forecast.digest.clone()),
    ];
    let lines = lines.map(|(name, value)| format!("{name:22} {value}"));
    lines.join("\n")
}

/// The cause of a stall in words.
fn waits(cause: &str) -> String {
    match cause {
        "source" => "reads from the source".to_owned(),
        "peer" => "reads from peers".to_owned(),
        "host_peer" => "reads from peers on the same host".to_owned(),
        "preprocess" => "preprocessing".to_owned(),
        tier => format!("reads from {tier}"),
    }
}

fn epochs(forecast: &Forecast) -> String {
    let used = |origin: &&String| forecast.bytes[*origin] > 0;
    let mut origins: Vec<&String> = forecast.bytes.keys().filter(used).collect();
    origins.sort_by_key(|origin| *origin != "source");
    let mut head = vec!["read in epoch".to_owned()];
    head.extend(origins.iter().map(ToString::to_string));
    let row = |epochs: &Epochs| {
        let Epochs { first, last, bytes } = epochs;
        let name = if first == last {
            first.to_string()
        } else {
            format!("{first}..{last}, each")
        };
        std::iter::once(name)
            .chain(origins.iter().map(|origin| size(bytes[*origin])))
            .collect()
    };
    columns(head, forecast.epochs.iter().map(row))
}

fn savings(forecast: &Forecast) -> String {
    let head = ["one more GiB a rank of", "saves time", "saves source"]
        .map(str::to_owned)
        .to_vec();
    // What is below the noise of the prediction is not shown as a number.
    let seconds = |saved: f64| {
        if saved.abs() < forecast.total_s * NOISE {
            "0".to_owned()
        } else {
            signed_time(saved)
        }
    };
    let source = forecast.bytes.get("source").copied().unwrap_or(0);
    let bytes = |saved: i64| {
        if (saved.unsigned_abs() as f64) < source as f64 * NOISE {
            return "0".to_owned();
        }
        let sign = if saved < 0 { "-" } else { "" };
        format!("{sign}{}", size(saved.unsigned_abs()))
    };
    let rows = forecast.one_more_gib.iter().map(|saving| {
        vec![
            format!("tier {} ({})", saving.tier, OneLine(&saving.name)),
            seconds(saving.saves_s),
            bytes(saving.saves_source_bytes),
        ]
    });
    columns(head, rows)
}

fn signed_time(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    format!("{sign}{}", time(seconds.abs()))
}

/// On how much of the job the prediction ran, where it is not all.
fn part(forecast: &Forecast) -> Option<String> {
    let Part { one_in, epochs, .. } = forecast.predicted_on;
    let shorter = epochs < forecast.job.epochs;
    match (one_in > 1, shorter) {
        (false, false) => None,
        (true, false) => Some(format!("predicted on 1/{one_in} of the samples")),
        (true, true) => Some(format!(
            "predicted on 1/{one_in} of the samples and the first {epochs} epochs"
        )),
        (false, true) => Some(format!("predicted on the first {epochs} epochs")),
    }
}

/// What was asked to be shown.
pub(super) fn shown(shown: &Shown) -> String {
    let path = |sample: u32| shown.paths.get(&sample).map_or("", String::as_str);
    let batch = shown.step.as_ref().map(|batch| local_batch(batch, path));
    let uses = shown
        .sample
        .as_ref()
        .map(|sample| uses(sample, path(sample.sample.sample)));
    batch
        .into_iter()
        .chain(uses)
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn local_batch<'a>(batch: &LocalBatch, path: impl Fn(u32) -> &'a str) -> String {
    let LocalBatch {
        epoch,
        step,
        rank,
        samples,
    } = batch;
    let count = counted(samples.len() as u64, "sample");
    let head = ["sample", "size", "home", ""].map(str::to_owned).to_vec();
    let rows = samples.iter().map(|sample| {
        let id = sample.sample;
        let bytes = sample.bytes;
        vec![
            id.to_string(),
            format!("{} B", grouped(bytes)),
            home(sample.home),
            OneLine(path(id)).to_string(),
        ]
    });
    format!(
        "epoch {epoch}, step {step}, rank {rank}: {count}\n{}",
        columns(head, rows)
    )
}

fn uses(uses: &Uses, path: &str) -> String {
    let sample = &uses.sample;
    let mut text = format!("sample {}: {} B", sample.sample, grouped(sample.bytes));
    if !path.is_empty() {
        let _ = write!(text, ", {}", OneLine(path));
    }
    let first = uses
        .first_reader
        .map_or("nobody".to_owned(), |rank| format!("rank {rank}"));
    let epochs = counted(u64::from(uses.epochs_used), "epoch");
    let _ = write!(
        text,
        "\nhome: {}; first read by {first}; used in {epochs}\n",
        home(sample.home)
    );
    let head = ["epoch", "step", "rank"].map(str::to_owned).to_vec();
    let rows = uses.uses.iter().map(|found| {
        [found.epoch, found.step, found.rank]
            .map(|id| id.to_string())
            .to_vec()
    });
    text.push_str(&columns(head, rows));
    let more = uses.epochs_used as usize - uses.uses.len();
    if more > 0 {
        let _ = write!(text, "\nand {more} more");
    }
    text
}

fn home(home: Option<Home>) -> String {
    home.map_or("none".to_owned(), |home| {
        format!("rank {} tier {}", home.rank, home.tier)
    })
}
