//! The page's content: results brought into the form of tiles and charts.

use anyhow::Result;
use foresee_core::policy;
use foresee_sim::outcome::{Comparison, Outcome};
use minijinja::Value;
use serde::Serialize;

use super::charts::{self, Columns, Mark, Paint, Part, Row, Stacked};
use super::format::{Unit, percent, times};
use super::sweep::{self, SweepView};
use super::tables::{self, Table};
use super::{Bars, Report};

/// A policy beyond so many times the median time would flatten the others.
pub(super) const TIME_BREAKS_AT: f64 = 4.0;

/// Bytes of the source differ by the number of epochs between policies that keep samples and those that do not; that
/// is the news of the chart, so only what is much further away is broken.
pub(super) const SOURCE_BREAKS_AT: f64 = 20.0;

/// Between a number and its ratio; SVG would collapse two spaces.
pub(super) const EM_SPACE: char = '\u{2003}';

/// What the template is filled with.
#[derive(Serialize)]
pub(super) struct Page {
    kicker: &'static str,
    title: String,
    /// The job in a line; may be empty.
    job: String,
    version: &'static str,
    tiles: Vec<Tile>,
    time: Figure,
    refused: Vec<(String, String)>,
    source: Figure,
    histograms: Vec<Figure>,
    sweep: Option<SweepView>,
    /// By what they describe.
    inputs: Vec<Vec<(String, String)>>,
    tables: Vec<Table>,
    tables_note: &'static str,
}

/// One number of the headline.
#[derive(Serialize)]
pub(super) struct Tile {
    pub name: &'static str,
    pub value: String,
    pub note: String,
}

/// A chart with what belongs to it.
#[derive(Serialize)]
pub(super) struct Figure {
    pub title: String,
    pub legend: Vec<Key>,
    /// Drawings, safe to put into the page.
    pub charts: Value,
    pub notes: Vec<String>,
}

/// One entry of a legend.
#[derive(Serialize)]
pub(super) struct Key {
    pub name: String,
    pub class: String,
}

impl Page {
    pub(super) fn new(report: &Report<'_>) -> Result<Self> {
        let comparison = report.comparison;
        let unit = time_unit(comparison);
        let source_unit = source_unit(comparison);
        Ok(Self {
            kicker: "foresee simulate",
            title: comparison.scenario.clone(),
            job: job(&report.inputs),
            version: env!("CARGO_PKG_VERSION"),
            tiles: tiles(comparison, unit, source_unit),
            time: time_figure(comparison, unit, &report.inputs),
            refused: refused(comparison),
            source: source_figure(comparison, source_unit),
            histograms: [&report.frequency, &report.reuse]
                .into_iter()
                .flatten()
                .map(histogram)
                .collect(),
            sweep: report.sweep.map(sweep::view).transpose()?,
            inputs: grouped(&report.inputs),
            tables: tables::all(comparison),
            tables_note: "Times are those of the whole job. Stall is what a rank waited for data after start-up, mean \
                          over ranks; first batch is when the last rank had its first batch. Reads that fill tiers \
                          count too.",
        })
    }
}

/// `4 ranks, 10 epochs, 10,000 samples`, as far as the inputs tell.
fn job(inputs: &[(String, String)]) -> String {
    let told = |(key, what): (&str, &str)| {
        let value = value_of(inputs, key)?;
        Some(format!(
            "{value} {what}{}",
            if value == "1" { "" } else { "s" }
        ))
    };
    let keys = [
        ("job.ranks", "rank"),
        ("job.epochs", "epoch"),
        ("dataset.samples", "sample"),
    ];
    keys.into_iter()
        .filter_map(told)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Neighbours whose keys have the same beginning, up to the last dot, stay together.
pub(super) fn grouped(inputs: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    let beginning = |key: &str| {
        key.rsplit_once('.')
            .map(|(beginning, _)| beginning.to_owned())
    };
    inputs
        .chunk_by(|one, next| beginning(&one.0) == beginning(&next.0))
        .map(<[_]>::to_vec)
        .collect()
}

/// One unit for all times: that of the median, so that one slow policy does not turn the others into fractions.
fn time_unit(comparison: &Comparison) -> Unit {
    let mut totals: Vec<f64> = comparison
        .results
        .iter()
        .filter_map(|outcome| outcome.total_s)
        .collect();
    totals.sort_by(f64::total_cmp);
    Unit::of_seconds(
        totals
            .get(totals.len() / 2)
            .copied()
            .unwrap_or(comparison.lower_bound_s),
    )
}

fn tiles(comparison: &Comparison, unit: Unit, source_unit: Unit) -> Vec<Tile> {
    let mut tiles = vec![
        Tile {
            name: "Lower bound",
            value: unit.show(comparison.lower_bound_s),
            note: "No policy is faster: the trainer never waits.".to_owned(),
        },
        Tile {
            name: "Source minimum",
            value: source_unit.show(comparison.source_minimum_bytes as f64),
            note: "No policy that uses every sample reads less from the source.".to_owned(),
        },
    ];
    if let Some((best, total_s)) = best(comparison) {
        let bound = times(total_s, comparison.lower_bound_s);
        let bound = bound.map_or_else(String::new, |times| format!(", {times} the lower bound"));
        tiles.push(Tile {
            name: "Best policy",
            value: best.policy.clone(),
            note: format!("{}{bound}", unit.show(total_s)),
        });
    }
    tiles
}

/// The fastest of the policies that a job can really run with, on all its samples; of those within half a per cent the
/// one that reads least from the source.
fn best(comparison: &Comparison) -> Option<(&Outcome, f64)> {
    let bound = policy::lower_bound().name();
    let is_real = |name: &str| {
        name != bound && policy::by_name(name).is_none_or(|policy| !policy.substitutes())
    };
    let timed = comparison
        .results
        .iter()
        .filter_map(|outcome| Some((outcome, outcome.total_s?)));
    let real: Vec<_> = timed
        .filter(|(outcome, _)| is_real(&outcome.policy))
        .collect();
    let fastest = real
        .iter()
        .map(|(_, total_s)| *total_s)
        .fold(f64::INFINITY, f64::min);
    let near = real
        .into_iter()
        .filter(|(_, total_s)| *total_s <= fastest * 1.005);
    near.min_by_key(|(outcome, _)| outcome.bytes.get("source").copied())
}

fn refused(comparison: &Comparison) -> Vec<(String, String)> {
    let refused = comparison
        .results
        .iter()
        .filter(|outcome| !outcome.supported);
    refused
        .map(|outcome| {
            (
                outcome.policy.clone(),
                outcome.reason.clone().unwrap_or_default(),
            )
        })
        .collect()
}

fn time_figure(comparison: &Comparison, unit: Unit, inputs: &[(String, String)]) -> Figure {
    let origins = tables::origins(comparison);
    let mut rows = Vec::new();
    for outcome in &comparison.results {
        let Some(total_s) = outcome.total_s else {
            continue;
        };
        let bound = times(total_s, comparison.lower_bound_s)
            .map_or_else(String::new, |times| format!("{EM_SPACE}{times}"));
        let shown = format!("{}{bound}", unit.show(total_s));
        rows.push(Row {
            name: outcome.policy.clone(),
            shown,
            parts: time_parts(outcome, total_s, &origins, unit),
        });
    }
    let mut paints: Vec<Paint> = vec![Paint::StartUp];
    paints.extend(origins.iter().map(|origin| paint(origin)));
    paints.push(Paint::Plain);
    let names = ["start-up".to_owned()]
        .into_iter()
        .chain(origins.iter().map(|origin| named(origin, inputs)))
        .chain(["no reads".to_owned()]);
    let is_drawn = |paint: Paint| {
        rows.iter()
            .flat_map(|row| &row.parts)
            .any(|part| part.paint == paint && part.value > 0.0)
    };
    let legend = names
        .zip(&paints)
        .filter(|(_, paint)| is_drawn(**paint))
        .map(|(name, paint)| Key {
            name,
            class: paint.class(),
        })
        .collect();
    let bound = unit.show(comparison.lower_bound_s);
    let chart = Stacked {
        label: format!("Time per policy by origin of the reads; lower bound {bound}"),
        axis_title: "time".to_owned(),
        unit,
        rows,
        mark: Some(Mark {
            label: format!("lower bound {bound}"),
            value: comparison.lower_bound_s,
        }),
        breaks_at: TIME_BREAKS_AT,
    };
    let mut notes = vec![
        "A bar is as long as the job takes. After start-up it is divided by origin, in proportion to the time that \
         loader threads spent fetching. Fetching overlaps with training, so a part is a \
         share of the reading, not of the waiting."
            .to_owned(),
    ];
    notes.extend(break_note(&chart));
    Figure {
        title: "Time per policy".to_owned(),
        legend,
        charts: drawn(&chart),
        notes,
    }
}

/// An origin; a tier with the name that the inputs give it.
fn named(origin: &str, inputs: &[(String, String)]) -> String {
    let name = tables::origin_name(origin);
    let given = tables::tier_of(origin)
        .and_then(|tier| value_of(inputs, &format!("system.tier.{tier}.name")));
    given.map_or(name.clone(), |given| format!("{name} ({given})"))
}

fn value_of<'a>(inputs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    inputs
        .iter()
        .find(|(known, _)| known == key)
        .map(|(_, value)| value.as_str())
}

/// Start-up, then the rest of the time divided as fetching divides by origin.
fn time_parts(outcome: &Outcome, total_s: f64, origins: &[String], unit: Unit) -> Vec<Part> {
    let name = &outcome.policy;
    let startup_s = outcome.startup_s.unwrap_or(0.0).clamp(0.0, total_s);
    let rest_s = total_s - startup_s;
    let mut parts = vec![Part {
        paint: Paint::StartUp,
        value: startup_s,
        tip: format!("{name}, start-up: {}", unit.show(startup_s)),
    }];
    let fetch = |origin: &String| outcome.fetch_s.get(origin).copied().unwrap_or(0.0).max(0.0);
    let all_s: f64 = origins.iter().map(fetch).sum();
    if all_s <= 0.0 {
        parts.push(Part {
            paint: Paint::Plain,
            value: rest_s,
            tip: format!("{name}, no reads: {}", unit.show(rest_s)),
        });
        return parts;
    }
    parts.extend(origins.iter().map(|origin| {
        let share = fetch(origin) / all_s;
        let tip = format!(
            "{name}, {}: {} of the fetch time",
            tables::origin_name(origin),
            percent(share)
        );
        Part {
            paint: paint(origin),
            value: rest_s * share,
            tip,
        }
    }));
    parts
}

pub(super) fn paint(origin: &str) -> Paint {
    match origin {
        "source" => Paint::Source,
        "peer" => Paint::Peer,
        "host_peer" => Paint::HostPeer,
        other => tables::tier_of(other).map_or(Paint::Plain, Paint::Tier),
    }
}

fn source_bytes(outcome: &Outcome) -> f64 {
    outcome.bytes.get("source").copied().unwrap_or(0) as f64
}

fn source_unit(comparison: &Comparison) -> Unit {
    let minimum = comparison.source_minimum_bytes as f64;
    Unit::of_bytes(
        comparison
            .results
            .iter()
            .map(source_bytes)
            .fold(minimum, f64::max),
    )
}

fn source_figure(comparison: &Comparison, unit: Unit) -> Figure {
    let minimum = comparison.source_minimum_bytes as f64;
    let row = |outcome: &Outcome| {
        let bytes = source_bytes(outcome);
        let ratio = times(bytes, minimum)
            .filter(|_| bytes > 0.0)
            .map_or_else(String::new, |times| format!("{EM_SPACE}{times}"));
        let shown = format!("{}{ratio}", unit.show(bytes));
        let tip = format!("{}, from the source: {}", outcome.policy, unit.show(bytes));
        Row {
            name: outcome.policy.clone(),
            shown,
            parts: vec![Part {
                paint: Paint::Source,
                value: bytes,
                tip,
            }],
        }
    };
    let label = format!("source minimum {}", unit.show(minimum));
    let chart = Stacked {
        label: format!("Bytes read from the source per policy; {label}"),
        axis_title: "read from the source".to_owned(),
        unit,
        rows: comparison
            .results
            .iter()
            .filter(|outcome| outcome.supported)
            .map(row)
            .collect(),
        mark: Some(Mark {
            label,
            value: minimum,
        }),
        breaks_at: SOURCE_BREAKS_AT,
    };
    let mut notes = vec![
        "All ranks and epochs together, filling of tiers included. A policy below the line does not use every sample \
         in every epoch, or does not read at all."
            .to_owned(),
    ];
    notes.extend(break_note(&chart));
    Figure {
        title: "Bytes read from the source".to_owned(),
        legend: Vec::new(),
        charts: drawn(&chart),
        notes,
    }
}

pub(super) fn break_note(chart: &Stacked) -> Option<String> {
    chart
        .breaks()
        .then(|| "A bar with a break is longer than drawn; its number is exact.".to_owned())
}

pub(super) fn drawn(chart: &Stacked) -> Value {
    Value::from_safe_string(charts::responsive(charts::WIDE, |width| chart.draw(width)))
}

fn histogram(bars: &Bars) -> Figure {
    let chart = Columns {
        label: format!("{}: {} by {}", bars.title, bars.y_title, bars.x_title),
        x_title: &bars.x_title,
        y_title: &bars.y_title,
        unit: Unit::COUNT,
        bars: &bars.bars,
    };
    Figure {
        title: bars.title.clone(),
        legend: Vec::new(),
        charts: Value::from_safe_string(charts::responsive(charts::HALF, |width| {
            chart.draw(width)
        })),
        notes: Some(bars.note.clone())
            .filter(|note| !note.is_empty())
            .into_iter()
            .collect(),
    }
}
