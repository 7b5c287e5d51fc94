//! What a run did, for people and for programs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use foresee_cache::counters::{By, Count, Origin, REASONS, Sums};
use serde_json::{Map, Value, json};

use super::{Arguments, Started, say};

/// All that is counted by where it came from.
const BY: [(By, &str); 7] = [
    (By::Opens, "opens"),
    (By::Reads, "reads"),
    (By::Bytes, "bytes"),
    (By::Maps, "maps"),
    (By::MappedBytes, "mapped_bytes"),
    (By::Copies, "copies"),
    (By::CopiedBytes, "copied_bytes"),
];

const COUNTS: [(Count, &str); 8] = [
    (Count::Looks, "metadata_calls"),
    (Count::Awaited, "awaited"),
    (Count::Moved, "moved"),
    (Count::Asked, "asked"),
    (Count::Removed, "removed"),
    (Count::Processes, "processes"),
    (Count::Ahead, "ahead"),
    (Count::OffOrder, "off_order"),
];

/// Says what was counted where that was asked for.
pub(crate) fn tell(arguments: &Arguments, started: &Started, took: Duration) -> anyhow::Result<()> {
    let sums = started.run.sums();
    let tiers = started.run.settings().tiers.len();
    let first = started.first_read();
    if arguments.stats {
        for line in lines(&sums, tiers, first) {
            say(&line);
        }
    }
    if let Some(path) = &arguments.stats_json {
        write(path, &whole(&sums, tiers, first, took))?;
    }
    Ok(())
}

impl Started {
    /// How long it took from the start of the program to the first byte that it read.
    fn first_read(&self) -> Option<Duration> {
        let first_ns = self.run.first_read_ns()?;
        let now_ns = foresee_cache::run::monotonic_ns();
        let since_first = Duration::from_nanos(now_ns.saturating_sub(first_ns));
        Some(self.began.elapsed().saturating_sub(since_first))
    }
}

fn origins(tiers: usize) -> impl Iterator<Item = (Origin, String)> {
    let tiers = (0..tiers).map(|tier| (Origin::Tier(tier), format!("tier {}", tier + 1)));
    std::iter::once((Origin::Source, "source".to_owned())).chain(tiers)
}

fn lines(sums: &Sums, tiers: usize, first: Option<Duration>) -> Vec<String> {
    let mut lines = Vec::new();
    for (origin, name) in origins(tiers) {
        let by = |what| sums.by(what, origin);
        let copied = match origin {
            Origin::Source => String::new(),
            Origin::Tier(_) => format!(
                ", {} files copied ({:.1} MB)",
                by(By::Copies),
                by(By::CopiedBytes) as f64 / 1e6
            ),
        };
        lines.push(format!(
            "{name}: {} opens, {} reads of {:.1} MB, {} maps of {:.1} MB{copied}",
            by(By::Opens),
            by(By::Reads),
            by(By::Bytes) as f64 / 1e6,
            by(By::Maps),
            by(By::MappedBytes) as f64 / 1e6,
        ));
    }
    let skips: Vec<String> = REASONS
        .iter()
        .filter(|(why, _)| sums.skips(*why) > 0)
        .map(|(why, name)| format!("{} {name}", sums.skips(*why)))
        .collect();
    let skipped = if skips.is_empty() {
        "none".to_owned()
    } else {
        skips.join(", ")
    };
    lines.push(format!(
        "{} metadata calls at the source, {} descriptors moved, not copied: {skipped}",
        sums.count(Count::Looks),
        sums.count(Count::Moved),
    ));
    if let Some(first) = first {
        lines.push(format!("first read after {:.3} s", first.as_secs_f64()));
    }
    lines
}

fn whole(sums: &Sums, tiers: usize, first: Option<Duration>, took: Duration) -> Value {
    let by_origin = |(origin, name): (Origin, String)| {
        let counted = BY.map(|(what, key)| (key.to_owned(), json!(sums.by(what, origin))));
        let mut table: Map<String, Value> = counted.into_iter().collect();
        table.insert("name".to_owned(), json!(name));
        Value::Object(table)
    };
    let counts = COUNTS.map(|(what, key)| (key.to_owned(), json!(sums.count(what))));
    let mut table: Map<String, Value> = counts.into_iter().collect();
    let skips = REASONS.map(|(why, name)| (name.to_owned(), json!(sums.skips(why))));
    table.insert(
        "origins".to_owned(),
        origins(tiers).map(by_origin).collect(),
    );
    table.insert(
        "skips".to_owned(),
        Value::Object(skips.into_iter().collect()),
    );
    table.insert(
        "first_read_s".to_owned(),
        json!(first.map(|first| first.as_secs_f64())),
    );
    table.insert("took_s".to_owned(), json!(took.as_secs_f64()));
    Value::Object(table)
}

fn write(path: &Path, value: &Value) -> anyhow::Result<()> {
    std::fs::write(path, format!("{value:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}
