//! The numbers as tables, policy by policy. A column has one unit, named in its head.

use foresee_sim::outcome::{Comparison, Outcome};
use serde::Serialize;

use super::format::{Unit, number, percent};

/// Numbers, policy by policy or run by run.
#[derive(Serialize)]
pub(super) struct Table {
    title: &'static str,
    /// What rows are.
    first: &'static str,
    head: Vec<String>,
    rows: Vec<Line>,
}

/// One row's numbers.
#[derive(Serialize)]
struct Line {
    name: String,
    is_supported: bool,
    cells: Vec<String>,
}

/// A column: its title, its numbers row by row, and how they are shown.
pub(super) struct Column {
    pub title: String,
    pub values: Vec<Option<f64>>,
    pub kind: Kind,
}

/// What a column's numbers are.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Seconds,
    Bytes,
    Count,
    Ratio,
    Share,
}

/// All tables of a comparison.
pub(super) fn all(comparison: &Comparison) -> Vec<Table> {
    vec![
        times(comparison),
        by_origin(
            comparison,
            "Bytes by origin",
            Kind::Bytes,
            |outcome, origin| Some(*outcome.bytes.get(origin)? as f64),
        ),
        by_origin(
            comparison,
            "Reads by origin",
            Kind::Count,
            |outcome, origin| Some(*outcome.reads.get(origin)? as f64),
        ),
        by_origin(
            comparison,
            "Fetch time by origin, all loader threads together",
            Kind::Seconds,
            |outcome, origin| outcome.fetch_s.get(origin).copied(),
        ),
    ]
}

/// The origins that some policy used: source, peers, then tiers.
pub(super) fn origins(comparison: &Comparison) -> Vec<String> {
    let used = comparison
        .results
        .iter()
        .flat_map(|outcome| &outcome.bytes)
        .filter(|(_, bytes)| **bytes > 0);
    in_order(used.map(|(origin, _)| origin.clone()))
}

/// Each once: source, peers, then tiers, then all else.
pub(super) fn in_order(origins: impl Iterator<Item = String>) -> Vec<String> {
    let mut origins: Vec<String> = origins.collect();
    origins.sort_by_key(|origin| rank_of(origin));
    origins.dedup();
    origins
}

fn rank_of(origin: &str) -> (usize, String) {
    let rank = match origin {
        "source" => 0,
        "peer" => 1,
        "host_peer" => 2,
        other => tier_of(other).map_or(usize::MAX, |tier| 2 + tier),
    };
    (rank, origin.to_owned())
}

/// The number of a tier's origin.
pub(super) fn tier_of(origin: &str) -> Option<usize> {
    origin.strip_prefix("tier")?.parse().ok()
}

/// An origin as people call it.
pub(super) fn origin_name(origin: &str) -> String {
    match origin {
        "host_peer" => "same-host peer".to_owned(),
        other => tier_of(other).map_or_else(|| other.to_owned(), |tier| format!("tier {tier}")),
    }
}

fn times(comparison: &Comparison) -> Table {
    let column = |title: &str, kind: Kind, of: &dyn Fn(&Outcome) -> Option<f64>| Column {
        title: title.to_owned(),
        values: comparison.results.iter().map(of).collect(),
        kind,
    };
    let ratio = |outcome: &Outcome| Some(outcome.total_s? / comparison.lower_bound_s);
    let columns = [
        column("time", Kind::Seconds, &|outcome| outcome.total_s),
        column("\u{d7} lower bound", Kind::Ratio, &ratio),
        column("start-up", Kind::Seconds, &|outcome| outcome.startup_s),
        column("stall", Kind::Seconds, &|outcome| outcome.stall_s),
        column("first batch", Kind::Seconds, &|outcome| {
            outcome.first_batch_s
        }),
        column("hit ratio", Kind::Share, &|outcome| outcome.hit_ratio),
        column("imbalanced steps", Kind::Share, &|outcome| {
            outcome.imbalanced_steps
        }),
    ];
    table("Times", comparison, &columns)
}

fn by_origin(
    comparison: &Comparison,
    title: &'static str,
    kind: Kind,
    of: impl Fn(&Outcome, &str) -> Option<f64>,
) -> Table {
    let ran = |outcome: &Outcome, origin: &str| {
        if outcome.supported {
            of(outcome, origin)
        } else {
            None
        }
    };
    let column = |origin: String| Column {
        title: origin_name(&origin),
        values: comparison
            .results
            .iter()
            .map(|outcome| ran(outcome, &origin))
            .collect(),
        kind,
    };
    table(
        title,
        comparison,
        &origins(comparison)
            .into_iter()
            .map(column)
            .collect::<Vec<_>>(),
    )
}

fn table(title: &'static str, comparison: &Comparison, columns: &[Column]) -> Table {
    let rows = comparison
        .results
        .iter()
        .map(|outcome| (outcome.policy.clone(), outcome.supported))
        .collect();
    Table::new(title, "policy", rows, columns)
}

impl Table {
    /// `rows` are names, and whether there are numbers.
    pub(super) fn new(
        title: &'static str,
        first: &'static str,
        rows: Vec<(String, bool)>,
        columns: &[Column],
    ) -> Self {
        let units: Vec<Unit> = columns.iter().map(Column::unit).collect();
        let line = |(at, (name, is_supported)): (usize, (String, bool))| Line {
            name,
            is_supported,
            cells: columns
                .iter()
                .zip(&units)
                .map(|(column, unit)| column.cell(at, *unit))
                .collect(),
        };
        let head = columns
            .iter()
            .zip(&units)
            .map(|(column, unit)| unit.title(&column.title))
            .collect();
        Self {
            title,
            first,
            head,
            rows: rows.into_iter().enumerate().map(line).collect(),
        }
    }
}

impl Column {
    fn unit(&self) -> Unit {
        let most = self.values.iter().flatten().copied().fold(0.0, f64::max);
        match self.kind {
            Kind::Seconds => Unit::of_seconds(most),
            Kind::Bytes => Unit::of_bytes(most),
            Kind::Count | Kind::Ratio | Kind::Share => Unit::COUNT,
        }
    }

    fn cell(&self, at: usize, unit: Unit) -> String {
        let Some(value) = self.values[at] else {
            return "\u{2013}".to_owned();
        };
        match self.kind {
            Kind::Count => number(value, 0),
            Kind::Ratio => number(value, 3),
            Kind::Share => percent(value),
            Kind::Seconds | Kind::Bytes => unit.bare(value),
        }
    }
}
