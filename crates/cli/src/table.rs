//! Results as people read them in a terminal.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use comfy_table::{Cell, CellAlignment, Table, presets};
use foresee_sim::outcome::{Comparison, Outcome};

use crate::sweep::Sweep;

/// The comparison of policies as a table with a head and foot.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let origins = shown_origins(comparison);
    let mut head = [
        "policy",
        "time",
        "x bound",
        "start-up",
        "stall",
        "first batch",
    ]
    .iter()
    .map(ToString::to_string)
    .collect::<Vec<_>>();
    head.extend(origins.iter().map(|origin| format!("{origin} GB")));
    table.set_header(head);
    for outcome in &comparison.results {
        table.add_row(row(outcome, comparison.lower_bound_s, &origins));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "{}: lower bound {}, source minimum {:.1} GB\n{table}",
        comparison.scenario,
        time(comparison.lower_bound_s),
        gigabytes(comparison.source_minimum_bytes),
    );
    let refused = comparison
        .results
        .iter()
        .filter_map(|outcome| Some((&outcome.policy, outcome.reason.as_ref()?)));
    text.extend(refused.map(|(policy, reason)| format!("\n{policy}: not supported: {reason}")));
    text
}

/// A sweep: a row for each setting, a column for each policy's time.
pub(crate) fn sweep(sweep: &Sweep) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let policies = sweep.sweep.first().map_or(&[][..], |point| &point.results);
    let keys = sweep.axes.iter().map(|axis| axis.key.clone());
    let bound = ["lower bound".to_owned()];
    table.set_header(
        keys.chain(bound)
            .chain(policies.iter().map(|outcome| outcome.policy.clone())),
    );
    for point in &sweep.sweep {
        let times = point
            .results
            .iter()
            .map(|outcome| outcome.total_s.map_or("not supported".to_owned(), time));
        table.add_row(
            point
                .values
                .iter()
                .cloned()
                .chain([time(point.lower_bound_s)])
                .chain(times),
        );
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Origins that some policy used, the source first.
fn shown_origins(comparison: &Comparison) -> Vec<String> {
    let Some(first) = comparison.results.first() else {
        return Vec::new();
    };
    let used = |origin: &&String| {
        comparison
            .results
            .iter()
            .any(|outcome| outcome.bytes[*origin] > 0)
    };
    let mut origins: Vec<String> = first.bytes.keys().filter(used).cloned().collect();
    origins.sort_by_key(|origin| origin != "source");
    origins
}

fn row(outcome: &Outcome, lower_bound_s: f64, origins: &[String]) -> Vec<Cell> {
    let Some(total_s) = outcome.total_s else {
        return vec![Cell::new(&outcome.policy), Cell::new("not supported")];
    };
    let seconds = |value: Option<f64>| value.map_or(String::new(), time);
    let mut cells = vec![
        outcome.policy.clone(),
        time(total_s),
        format!("{:.3}", total_s / lower_bound_s),
        seconds(outcome.startup_s),
        seconds(outcome.stall_s),
        seconds(outcome.first_batch_s),
    ];
    cells.extend(
        origins
            .iter()
            .map(|origin| format!("{:.1}", gigabytes(outcome.bytes[origin]))),
    );
    cells.into_iter().map(Cell::new).collect()
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// Seconds below an hour, hours above.
pub(crate) fn time(seconds: f64) -> String {
    if seconds < 3600.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{:.3} h", seconds / 3600.0)
    }
}

/// A table without lines, numbers to the right.
pub(crate) fn columns(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let last_is_text = head.last().is_some_and(String::is_empty);
    let columns = head.len();
    table.set_header(head);
    rows.for_each(|row| {
        table.add_row(row);
    });
    let numbers = if last_is_text { columns - 1 } else { columns };
    for column in table.column_iter_mut().take(numbers).skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
        .to_string()
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Bytes in the unit that leaves few digits.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, unit)| bytes as f64 >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit),
        None => format!("{bytes} B"),
    }
}

/// A number of things.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(count))
}

/// A whole number with commas.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Prints to standard output; a reader that has gone away is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")
        .or_else(forgive_broken_pipe)
        .context("standard output")
}

/// A reader that has gone away is no error.
pub(crate) fn forgive_broken_pipe(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::BrokenPipe {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_or_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [12, 1_500, 147_300_000_000].map(size),
            ["12 B", "1.5 kB", "147.3 GB"]
        );
        assert_eq!(
            [counted(1, "rank"), counted(2, "rank")],
            ["1 rank", "2 ranks"]
        );
    }
}
