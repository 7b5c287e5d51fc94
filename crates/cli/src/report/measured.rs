//! The page of real runs: what was measured, with what was predicted beside it, in the charts of simulated ones.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Serialize;

use super::charts::{self, Clip, Form, Mark, Paint, Panel, Part, Row, Stacked};
use super::format::{Unit, count, number, percent, times};
use super::page::{
    self, EM_SPACE, Figure, Key, SOURCE_BREAKS_AT, TIME_BREAKS_AT, Tile, break_note, drawn,
};
use super::tables::{self, Column, Kind, Table};
use super::{balance, ranks};
use crate::runs::{Prediction, Reads, Run, Runs};

const SOURCE: &str = "source";

/// What the template is filled with.
#[derive(Serialize)]
pub(super) struct Page {
    kicker: &'static str,
    title: String,
    job: String,
    version: &'static str,
    tiles: Vec<Tile>,
    time: Figure,
    /// Nothing where no trainer waited.
    stall: Option<Figure>,
    source: Figure,
    bytes: Figure,
    /// Nothing where no run has several ranks.
    ranks: Option<Figure>,
    /// Nothing where no run has ranks that share threads.
    balance: Option<balance::View>,
    epochs: Vec<Group>,
    inputs: Vec<Vec<(String, String)>>,
    tables: Vec<Table>,
    tables_note: &'static str,
}

/// Small charts, side by side.
#[derive(Serialize)]
pub(super) struct Group {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) notes: Vec<String>,
    pub(super) panels: Vec<PanelView>,
}

#[derive(Serialize)]
pub(super) struct PanelView {
    pub(super) name: String,
    pub(super) chart: Value,
}

impl Page {
    pub(super) fn new(runs: &Runs) -> Self {
        let inputs: Vec<_> = runs
            .inputs
            .iter()
            .map(|(key, value)| (key.clone(), value.0.clone()))
            .collect();
        Self {
            kicker: "foresee report",
            title: runs.name.clone(),
            job: job(runs),
            version: env!("CARGO_PKG_VERSION"),
            tiles: tiles(runs),
            time: time_figure(runs),
            stall: stall_figure(runs),
            source: source_figure(runs),
            bytes: bytes_figure(runs),
            ranks: ranks::figure(runs),
            balance: balance::view(runs),
            epochs: epochs(runs),
            inputs: page::grouped(&inputs),
            tables: tables_of(runs),
            tables_note: "Measured, but for what is called predicted. Stall is how long the trainer waited for data, \
                          the first batch included. Reads that fill tiers count too.",
        }
    }
}

fn job(runs: &Runs) -> String {
    let plural = |number: usize| if number == 1 { "" } else { "s" };
    let number = runs.runs.len();
    let epochs = epochs_max(runs);
    format!(
        "{} real run{}, {} epoch{}",
        count(number as u64),
        plural(number),
        count(epochs as u64),
        if number == 1 || epochs == 1 {
            plural(epochs)
        } else {
            "s each"
        }
    )
}

fn epochs_max(runs: &Runs) -> usize {
    runs.runs
        .iter()
        .map(|run| run.epochs.len())
        .max()
        .unwrap_or(0)
}

/// The fewest that any of the runs could have read, where it is known; with the same tiers it is the same for all.
fn source_minimum(runs: &Runs) -> Option<f64> {
    let known = runs
        .runs
        .iter()
        .filter_map(|run| run.stats.source_minimum_bytes);
    known.min().map(|bytes| bytes as f64)
}

fn tiles(runs: &Runs) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let by_time = |one: &&Run, other: &&Run| one.total_s().total_cmp(&other.total_s());
    if let (Some(first), Some(best)) = (runs.runs.first(), runs.runs.iter().min_by(by_time)) {
        let faster = times(first.total_s(), best.total_s()).filter(|_| first.name() != best.name());
        let faster = faster.map_or_else(String::new, |times| {
            format!(", {times} the speed of {}", first.name())
        });
        tiles.push(Tile {
            name: "Fastest run",
            value: best.name().to_owned(),
            note: format!("{}{faster}", time_unit(runs).show(best.total_s())),
        });
    }
    tiles.extend(source_minimum(runs).map(|minimum| Tile {
        name: "Source minimum",
        value: source_unit(runs).show(minimum),
        note: "No policy that uses every sample reads less from the source.".to_owned(),
    }));
    let differences = runs.runs.iter().filter_map(difference).map(f64::abs);
    if let Some(most) = differences.reduce(f64::max) {
        tiles.push(Tile {
            name: "Prediction",
            value: format!("within {}", percent(most)),
            note: "How far the simulator's times were from the measured ones, at most.".to_owned(),
        });
    }
    tiles
}

/// How much longer the run took than predicted, as a share of the prediction.
fn difference(run: &Run) -> Option<f64> {
    let predicted_s = run.prediction.as_ref()?.total_s;
    (predicted_s > 0.0).then(|| run.total_s() / predicted_s - 1.0)
}

fn time_unit(runs: &Runs) -> Unit {
    let mut totals: Vec<f64> = runs.runs.iter().map(Run::total_s).collect();
    totals.sort_by(f64::total_cmp);
    Unit::of_seconds(totals.get(totals.len() / 2).copied().unwrap_or(0.0))
}

/// A row of what was measured, and one below it of what was predicted.
fn pairs(
    runs: &Runs,
    measured: impl Fn(&Run) -> Row,
    predicted: impl Fn(String, &Prediction) -> Row,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for run in &runs.runs {
        rows.push(measured(run));
        rows.extend(
            run.prediction
                .as_ref()
                .map(|it| predicted(format!("{}, predicted", run.name()), it)),
        );
    }
    rows
}

fn time_figure(runs: &Runs) -> Figure {
    let unit = time_unit(runs);
    let row = |name: String, total_s: f64, waited_s: f64, shown: String| {
        let waited_s = waited_s.min(total_s);
        let part = |paint: Paint, what: &str, value: f64| Part {
            paint,
            value,
            tip: format!("{name}, {what}: {}", unit.show(value)),
        };
        let parts = vec![
            part(Paint::Plain, "computing", total_s - waited_s),
            part(Paint::StartUp, "waiting for data", waited_s),
        ];
        Row {
            name: name.clone(),
            shown,
            parts,
        }
    };
    let first_s = runs.runs.first().map_or(0.0, Run::total_s);
    let measured = |run: &Run| {
        let is_first = runs
            .runs
            .first()
            .is_some_and(|first| first.name() == run.name());
        let faster = times(first_s, run.total_s()).filter(|_| !is_first);
        let faster = faster.map_or_else(String::new, |times| format!("{EM_SPACE}{times} as fast"));
        row(
            run.name().to_owned(),
            run.total_s(),
            run.stall_s(),
            format!("{}{faster}", unit.show(run.total_s())),
        )
    };
    let predicted = |name, it: &Prediction| {
        row(
            name,
            it.total_s,
            it.stall_s + it.startup_s,
            unit.show(it.total_s),
        )
    };
    let bound = |bound_s: f64| Mark {
        label: format!("lower bound {}", unit.show(bound_s)),
        value: bound_s,
    };
    let chart = Stacked {
        label: "Time per run, measured and predicted".to_owned(),
        axis_title: "time".to_owned(),
        unit,
        rows: pairs(runs, measured, predicted),
        mark: runs.lower_bound_s.map(bound),
        breaks_at: TIME_BREAKS_AT,
    };
    let key = |name: &str, paint: Paint| Key {
        name: name.to_owned(),
        class: paint.class(),
    };
    let mut notes = Vec::new();
    if let (Some(first), true) = (runs.runs.first(), runs.runs.len() > 1) {
        notes.push(format!(
            "How many times as fast is against {}.",
            first.name()
        ));
    }
    if runs.lower_bound_s.is_some() {
        notes.push("At the lower bound the trainer never waits.".to_owned());
    }
    notes.extend(break_note(&chart));
    Figure {
        title: "Time per run".to_owned(),
        legend: vec![
            key("computing", Paint::Plain),
            key("waiting for data", Paint::StartUp),
        ],
        charts: drawn(&chart),
        notes: joined(&notes),
    }
}

/// Short sentences in one paragraph.
fn joined(notes: &[String]) -> Vec<String> {
    Some(notes.join(" "))
        .filter(|note| !note.is_empty())
        .into_iter()
        .collect()
}

/// A cause of waiting as people call it.
pub(super) fn cause_name(cause: &str) -> String {
    match cause {
        "preprocess" => "preparing".to_owned(),
        other => tables::origin_name(other),
    }
}

fn stall_figure(runs: &Runs) -> Option<Figure> {
    let waits = runs
        .runs
        .iter()
        .flat_map(|run| &run.stats.stall_by_s)
        .filter(|(_, stall_s)| **stall_s > 0.0);
    let causes = tables::in_order(waits.map(|(cause, _)| cause.clone()));
    if causes.is_empty() {
        return None;
    }
    let total_s = |run: &Run| run.stats.stall_by_s.values().sum::<f64>();
    let unit = Unit::of_seconds(runs.runs.iter().map(total_s).fold(0.0, f64::max));
    let row = |run: &Run| {
        let share = if run.total_s() > 0.0 {
            total_s(run) / run.total_s()
        } else {
            0.0
        };
        let part = |cause: &String| {
            let value = run.stats.stall_by_s.get(cause).copied().unwrap_or(0.0);
            let tip = format!(
                "{}, {}: {}",
                run.name(),
                cause_name(cause),
                unit.show(value)
            );
            Part {
                paint: page::paint(cause),
                value,
                tip,
            }
        };
        Row {
            name: run.name().to_owned(),
            shown: format!("{}{EM_SPACE}{}", unit.show(total_s(run)), percent(share)),
            parts: causes.iter().map(part).collect(),
        }
    };
    let chart = Stacked {
        label: "Stall per run by what the trainer waited for".to_owned(),
        axis_title: "stall".to_owned(),
        unit,
        rows: runs.runs.iter().map(row).collect(),
        mark: None,
        breaks_at: f64::INFINITY,
    };
    Some(Figure {
        title: "Stall by cause".to_owned(),
        legend: keys(&causes, cause_name),
        charts: drawn(&chart),
        notes: vec!["How long the trainer waited, by where the sample came from that it waited for; a sample on its way into a tier \
             comes from that tier.".to_owned()],
    })
}

pub(super) fn keys(names: &[String], shown: impl Fn(&str) -> String) -> Vec<Key> {
    names
        .iter()
        .map(|name| Key {
            name: shown(name),
            class: page::paint(name).class(),
        })
        .collect()
}

fn source_unit(runs: &Runs) -> Unit {
    let read = runs.runs.iter().map(|run| run.stats.source_bytes as f64);
    Unit::of_bytes(read.fold(source_minimum(runs).unwrap_or(0.0), f64::max))
}

fn source_figure(runs: &Runs) -> Figure {
    let unit = source_unit(runs);
    let minimum = source_minimum(runs);
    let row = |name: String, bytes: f64| {
        let ratio = minimum.and_then(|minimum| times(bytes, minimum));
        let ratio = ratio.map_or_else(String::new, |times| format!("{EM_SPACE}{times}"));
        let tip = format!("{name}, from the source: {}", unit.show(bytes));
        let parts = vec![Part {
            paint: Paint::Source,
            value: bytes,
            tip,
        }];
        Row {
            name,
            shown: format!("{}{ratio}", unit.show(bytes)),
            parts,
        }
    };
    let mark = minimum.map(|value| Mark {
        label: format!("source minimum {}", unit.show(value)),
        value,
    });
    let marked = mark
        .as_ref()
        .map_or_else(String::new, |mark| format!("; {}", mark.label));
    let chart = Stacked {
        label: format!("Bytes read from the source per run{marked}"),
        axis_title: "read from the source".to_owned(),
        unit,
        rows: pairs(
            runs,
            |run| row(run.name().to_owned(), run.stats.source_bytes as f64),
            |name, it| row(name, it.bytes.get(SOURCE).copied().unwrap_or(0) as f64),
        ),
        mark,
        breaks_at: SOURCE_BREAKS_AT,
    };
    let mut notes = vec!["The whole run, filling of tiers included.".to_owned()];
    notes.extend(break_note(&chart));
    Figure {
        title: "Bytes read from the source".to_owned(),
        legend: Vec::new(),
        charts: drawn(&chart),
        notes: joined(&notes),
    }
}

/// Bytes of a run by origin, as measured.
fn measured_bytes(run: &Run) -> BTreeMap<String, u64> {
    bytes_of(&run.stats.origins)
}

pub(super) fn bytes_of(origins: &BTreeMap<String, Reads>) -> BTreeMap<String, u64> {
    let bytes = |(origin, reads): (&String, &Reads)| (origin.clone(), reads.bytes);
    origins.iter().map(bytes).collect()
}

fn origins(runs: &Runs) -> Vec<String> {
    let predicted = runs
        .runs
        .iter()
        .filter_map(|run| run.prediction.as_ref())
        .map(|it| it.bytes.clone());
    let all = runs
        .runs
        .iter()
        .map(measured_bytes)
        .chain(predicted)
        .flatten();
    tables::in_order(
        all.filter(|(_, bytes)| *bytes > 0)
            .map(|(origin, _)| origin),
    )
}

pub(super) fn total(bytes: &BTreeMap<String, u64>) -> f64 {
    bytes.values().map(|bytes| *bytes as f64).sum()
}

/// Bytes by origin, one beside the other.
pub(super) fn origin_row(
    name: &str,
    bytes: &BTreeMap<String, u64>,
    origins: &[String],
    unit: Unit,
) -> Row {
    let part = |origin: &String| {
        let value = bytes.get(origin).copied().unwrap_or(0) as f64;
        let origin_name = tables::origin_name(origin);
        Part {
            paint: page::paint(origin),
            value,
            tip: format!("{name}, {origin_name}: {}", unit.show(value)),
        }
    };
    let parts = origins.iter().map(part).collect();
    Row {
        name: name.to_owned(),
        shown: unit.show(total(bytes)),
        parts,
    }
}

fn bytes_figure(runs: &Runs) -> Figure {
    let origins = origins(runs);
    let largest = runs.runs.iter().map(|run| total(&measured_bytes(run)));
    let unit = Unit::of_bytes(largest.fold(0.0, f64::max));
    let row = |name: &str, bytes: &BTreeMap<String, u64>| origin_row(name, bytes, &origins, unit);
    let chart = Stacked {
        label: "Bytes read per run by origin, measured and predicted".to_owned(),
        axis_title: "read".to_owned(),
        unit,
        rows: pairs(
            runs,
            |run| row(run.name(), &measured_bytes(run)),
            |name, it| row(&name, &it.bytes),
        ),
        mark: None,
        breaks_at: SOURCE_BREAKS_AT,
    };
    Figure {
        title: "Bytes by origin".to_owned(),
        legend: keys(&origins, tables::origin_name),
        charts: drawn(&chart),
        notes: vec![
            "A sample that is brought into a tier ahead of its use counts twice: from the source, and again when it goes \
             from the tier to the trainer."
                .to_owned(),
        ],
    }
}

fn epochs(runs: &Runs) -> Vec<Group> {
    let names: Vec<String> = (1..=epochs_max(runs))
        .map(|epoch| count(epoch as u64))
        .collect();
    let series = |of: &dyn Fn(&crate::runs::Epoch) -> f64| -> Vec<Vec<Option<f64>>> {
        let one = |run: &Run| {
            (0..names.len())
                .map(|at| run.epochs.get(at).map(of))
                .collect()
        };
        runs.runs.iter().map(one).collect()
    };
    let times = series(&|epoch| epoch.total_s);
    let bytes = series(&|epoch| epoch.read_bytes.get(SOURCE).copied().unwrap_or(0) as f64);
    let most = |series: &[Vec<Option<f64>>]| {
        series
            .iter()
            .flatten()
            .flatten()
            .copied()
            .fold(0.0, f64::max)
    };
    let group = |id, title, y_title: &str, unit: Unit, series: &[Vec<Option<f64>>]| {
        let clip = Clip::of(series.iter().flatten().flatten().copied(), SOURCE_BREAKS_AT);
        let panel = |(at, run): (usize, &Run)| {
            let others: Vec<_> = series
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, line)| line.clone())
                .collect();
            let panel = Panel {
                label: format!("{}: {y_title} by epoch", run.name()),
                x_title: "epoch",
                y_title,
                unit,
                names: &names,
                values: &series[at],
                others: &others,
                clip,
                form: if names.len() > 1 {
                    Form::Line
                } else {
                    Form::Bars
                },
            };
            PanelView {
                name: run.name().to_owned(),
                chart: Value::from_safe_string(panel.draw(charts::SMALL)),
            }
        };
        let panels = runs.runs.iter().enumerate().map(panel).collect();
        Group {
            id,
            title,
            notes: Vec::new(),
            panels,
        }
    };
    let mut groups = vec![
        group(
            "epoch-times",
            "Time, epoch by epoch",
            "time",
            Unit::of_seconds(most(&times)),
            &times,
        ),
        group(
            "epoch-source",
            "From the source, epoch by epoch",
            "bytes",
            Unit::of_bytes(most(&bytes)),
            &bytes,
        ),
    ];
    groups[0]
        .notes
        .push("Grey: the other runs. Start-up counts in the first epoch.".to_owned());
    groups[1].notes.push(
        "Read while the epoch was trained on. Loader threads read ahead, so some of it is for the epochs after it."
            .to_owned(),
    );
    groups
}

fn tables_of(runs: &Runs) -> Vec<Table> {
    let names = || {
        runs.runs
            .iter()
            .map(|run| (run.name().to_owned(), true))
            .collect::<Vec<_>>()
    };
    let column = |title: &str, kind: Kind, of: &dyn Fn(&Run) -> Option<f64>| Column {
        title: title.to_owned(),
        values: runs.runs.iter().map(of).collect(),
        kind,
    };
    let first_s = runs.runs.first().map_or(0.0, Run::total_s);
    let share = |of: f64, all: f64| (all > 0.0).then(|| of / all);
    let times = [
        column("time", Kind::Seconds, &|run| Some(run.total_s())),
        column("predicted", Kind::Seconds, &|run| {
            Some(run.prediction.as_ref()?.total_s)
        }),
        column("difference", Kind::Share, &difference),
        column("speed-up", Kind::Ratio, &|run| {
            share(first_s, run.total_s())
        }),
        column("stall", Kind::Seconds, &|run| Some(run.stall_s())),
        column("stall share", Kind::Share, &|run| {
            share(run.stall_s(), run.total_s())
        }),
        column("first batch", Kind::Seconds, &|run| run.stats.first_batch_s),
    ];
    let by_origin = |origin: &String| {
        column(&tables::origin_name(origin), Kind::Bytes, &|run| {
            Some(run.stats.origins.get(origin).map_or(0, |reads| reads.bytes) as f64)
        })
    };
    let mut bytes: Vec<Column> = origins(runs).iter().map(by_origin).collect();
    bytes.push(column("source minimum", Kind::Bytes, &|run| {
        run.stats.source_minimum_bytes.map(|bytes| bytes as f64)
    }));
    let by_epoch = |at: usize| {
        let title = format!("epoch {}", number((at + 1) as f64, 0));
        column(&title, Kind::Seconds, &|run| {
            Some(run.epochs.get(at)?.total_s)
        })
    };
    let epochs: Vec<Column> = (0..epochs_max(runs)).map(by_epoch).collect();
    let mut tables = vec![
        Table::new("Times", "run", names(), &times),
        Table::new("Bytes by origin", "run", names(), &bytes),
        Table::new("Time by epoch", "run", names(), &epochs),
    ];
    tables.extend(ranks::table(runs));
    tables.extend(balance::tables(runs));
    tables
}
