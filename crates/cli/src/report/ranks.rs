//! Runs of several ranks, rank by rank: who got how much from where. Nothing of it is on the page of runs of one rank.

use std::collections::BTreeMap;

use super::charts::Stacked;
use super::format::Unit;
use super::measured::{bytes_of, keys, origin_row, total};
use super::page::{Figure, SOURCE_BREAKS_AT, drawn};
use super::tables::{self, Column, Kind, Table};
use crate::runs::{OfRank, Runs};

/// One rank of one run.
struct Row<'a> {
    name: String,
    rank: &'a OfRank,
    bytes: BTreeMap<String, u64>,
}

fn rows(runs: &Runs) -> Vec<Row<'_>> {
    let of_run = |run: &'_ crate::runs::Run| run.name().to_owned();
    runs.runs
        .iter()
        .flat_map(|run| run.ranks.iter().map(move |rank| (of_run(run), rank)))
        .map(|(run, rank)| Row {
            name: format!("{run}, rank {}", rank.rank),
            rank,
            bytes: bytes_of(&rank.stats.origins),
        })
        .collect()
}

/// The origins that some rank read from.
fn origins(rows: &[Row<'_>]) -> Vec<String> {
    let used = rows.iter().flat_map(|row| &row.bytes);
    let used = used.filter(|(_, bytes)| **bytes > 0);
    tables::in_order(used.map(|(origin, _)| origin.clone()))
}

/// Bytes by origin for each rank.
pub(super) fn figure(runs: &Runs) -> Option<Figure> {
    let rows = rows(runs);
    if rows.is_empty() {
        return None;
    }
    let origins = origins(&rows);
    let largest = rows.iter().map(|row| total(&row.bytes));
    let unit = Unit::of_bytes(largest.fold(0.0, f64::max));
    let drawn_row = |row: &Row<'_>| origin_row(&row.name, &row.bytes, &origins, unit);
    let chart = Stacked {
        label: "Bytes read by each rank, by origin".to_owned(),
        axis_title: "read".to_owned(),
        unit,
        rows: rows.iter().map(drawn_row).collect(),
        mark: None,
        breaks_at: SOURCE_BREAKS_AT,
    };
    Some(Figure {
        title: "Rank by rank".to_owned(),
        legend: keys(&origins, tables::origin_name),
        charts: drawn(&chart),
        notes: vec![
            "What each rank got from its own tiers, from the memory of other ranks and from the source."
                .to_owned(),
        ],
    })
}

/// The same in numbers.
pub(super) fn table(runs: &Runs) -> Option<Table> {
    let rows = rows(runs);
    if rows.is_empty() {
        return None;
    }
    let column = |title: &str, kind: Kind, of: &dyn Fn(&Row<'_>) -> f64| Column {
        title: title.to_owned(),
        values: rows.iter().map(|row| Some(of(row))).collect(),
        kind,
    };
    let mut columns = vec![
        column("samples", Kind::Count, &|row| row.rank.samples as f64),
        column("stall", Kind::Seconds, &|row| row.rank.stall_s),
    ];
    for origin in origins(&rows) {
        let title = tables::origin_name(&origin);
        let bytes = |row: &Row<'_>| row.bytes.get(&origin).copied().unwrap_or(0) as f64;
        columns.push(column(&title, Kind::Bytes, &bytes));
    }
    let names = rows.iter().map(|row| (row.name.clone(), true)).collect();
    Some(Table::new("Rank by rank", "rank", names, &columns))
}
