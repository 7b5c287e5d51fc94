//! A sweep as charts: for two keys a heat map for each policy, for one key a small line or bar chart for each.

use anyhow::{Result, bail};
use minijinja::Value;
use serde::Serialize;

use super::charts::{self, Cell, Clip, Form, Heat, Panel, Shades};
use super::format::{Unit, typed};
use super::page::TIME_BREAKS_AT;
use super::{Sweep, SweepPoint};

/// What the template shows of a sweep.
#[derive(Serialize)]
pub(super) struct SweepView {
    keys: Vec<String>,
    /// The colours of heat maps; nothing else needs one.
    legend: Option<Value>,
    panels: Vec<PanelView>,
    notes: Vec<String>,
}

/// One policy.
#[derive(Serialize)]
struct PanelView {
    policy: String,
    chart: Value,
}

/// Brings a sweep into the form of the page.
pub(super) fn view(sweep: &Sweep) -> Result<SweepView> {
    if let Some(point) = sweep
        .points
        .iter()
        .find(|point| point.values.len() != sweep.keys.len())
    {
        bail!(
            "a sweep of {} keys has a point with {} values",
            sweep.keys.len(),
            point.values.len()
        );
    }
    match sweep.keys.as_slice() {
        [key] => Ok(one_key(sweep, key)),
        [rows, columns] => Ok(two_keys(sweep, rows, columns)),
        keys => bail!("a sweep has one or two keys, not {}", keys.len()),
    }
}

/// All policies of a sweep, in order.
fn policies(sweep: &Sweep) -> Vec<String> {
    distinct(
        sweep
            .points
            .iter()
            .flat_map(|point| &point.results)
            .map(|outcome| &outcome.policy),
    )
}

/// The values of one key, in order.
fn values(sweep: &Sweep, key: usize) -> Vec<String> {
    distinct(sweep.points.iter().map(|point| &point.values[key]))
}

fn distinct<'a>(all: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut once: Vec<String> = Vec::new();
    for one in all {
        if !once.contains(one) {
            once.push(one.clone());
        }
    }
    once
}

fn totals(sweep: &Sweep) -> Vec<f64> {
    sweep
        .points
        .iter()
        .flat_map(|point| &point.results)
        .filter_map(|outcome| outcome.total_s)
        .collect()
}

fn unit_of(totals: &[f64]) -> Unit {
    let mut sorted = totals.to_vec();
    sorted.sort_by(f64::total_cmp);
    Unit::of_seconds(sorted.get(sorted.len() / 2).copied().unwrap_or(0.0))
}

fn one_key(sweep: &Sweep, key: &str) -> SweepView {
    let all_s = totals(sweep);
    let unit = unit_of(&all_s);
    let clip = Clip::of(all_s.iter().copied(), TIME_BREAKS_AT);
    let names: Vec<String> = sweep
        .points
        .iter()
        .map(|point| typed(&point.values[0]))
        .collect();
    let is_ordered = sweep
        .points
        .iter()
        .all(|point| point.values[0].replace('_', "").parse::<f64>().is_ok());
    let form = if is_ordered { Form::Line } else { Form::Bars };
    let policies = policies(sweep);
    let series: Vec<Vec<Option<f64>>> = policies
        .iter()
        .map(|policy| times_of(sweep, policy))
        .collect();
    let panel = |(at, policy): (usize, &String)| {
        let others: Vec<_> = series
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, s)| s.clone())
            .collect();
        let panel = Panel {
            label: format!("{policy}: time by {key}"),
            x_title: key,
            y_title: "time",
            unit,
            names: &names,
            values: &series[at],
            others: &others,
            clip,
            form,
        };
        PanelView {
            policy: policy.clone(),
            chart: Value::from_safe_string(panel.draw(charts::SMALL)),
        }
    };
    let mut notes = Vec::new();
    if form == Form::Line {
        notes.push("Grey: the other policies. The values stand at equal distances.".to_owned());
    }
    if clip.clips {
        notes.push("A number with an arrow is above the end of the axis.".to_owned());
    }
    let panels = policies.iter().enumerate().map(panel).collect();
    SweepView {
        keys: sweep.keys.clone(),
        legend: None,
        panels,
        notes,
    }
}

fn times_of(sweep: &Sweep, policy: &str) -> Vec<Option<f64>> {
    sweep
        .points
        .iter()
        .map(|point| outcome_of(point, policy).and_then(|outcome| outcome.total_s))
        .collect()
}

fn outcome_of<'a>(
    point: &'a SweepPoint,
    policy: &str,
) -> Option<&'a foresee_sim::outcome::Outcome> {
    point
        .results
        .iter()
        .find(|outcome| outcome.policy == policy)
}

fn two_keys(sweep: &Sweep, row_key: &str, column_key: &str) -> SweepView {
    let all_s = totals(sweep);
    let clip = Clip::of(all_s.iter().copied(), TIME_BREAKS_AT);
    let unit = unit_of(&all_s);
    let shades = Shades::of(all_s.iter().copied(), clip);
    let rows = values(sweep, 0);
    let columns = values(sweep, 1);
    let cell = |policy: &str, row: &String, column: &String| {
        let point = sweep
            .points
            .iter()
            .find(|point| point.values[0] == *row && point.values[1] == *column);
        let outcome = point.and_then(|point| outcome_of(point, policy));
        let value = outcome.and_then(|outcome| outcome.total_s);
        let said = match (value, outcome.and_then(|outcome| outcome.reason.as_ref())) {
            (Some(total_s), _) => unit.show(total_s),
            (None, Some(reason)) => format!("not supported: {reason}"),
            (None, None) => "not simulated".to_owned(),
        };
        let tip = format!(
            "{policy}, {row_key} {}, {column_key} {}: {said}",
            typed(row),
            typed(column)
        );
        Cell {
            value,
            shown: value.map_or_else(|| "\u{2013}".to_owned(), |total_s| unit.bare(total_s)),
            tip,
        }
    };
    let panel = |policy: &String| {
        let heat = Heat {
            label: format!("{policy}: time by {row_key} and {column_key}"),
            x_title: column_key.to_owned(),
            y_title: row_key.to_owned(),
            columns: columns.iter().map(|value| typed(value)).collect(),
            rows: rows.iter().map(|value| typed(value)).collect(),
            cells: rows
                .iter()
                .map(|row| {
                    columns
                        .iter()
                        .map(|column| cell(policy, row, column))
                        .collect()
                })
                .collect(),
        };
        PanelView {
            policy: policy.clone(),
            chart: Value::from_safe_string(heat.draw(charts::SMALL, shades)),
        }
    };
    let steps = if shades.is_log() {
        "time, darker is slower (steps of equal ratio)"
    } else {
        "time, darker is slower"
    };
    let legend = Value::from_safe_string(shades.draw_legend(charts::SMALL, steps, unit));
    let notes = vec![format!(
        "Cells are times in {}. A dash: the policy cannot run that job.",
        unit.name
    )];
    SweepView {
        keys: sweep.keys.clone(),
        legend: Some(legend),
        panels: policies(sweep).iter().map(panel).collect(),
        notes,
    }
}
