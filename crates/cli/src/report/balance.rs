//! Ranks of a host that share threads: who was late and why, how long steps took, and who had how many threads when. Nothing of
//! it is on the page of runs that share none.

use minijinja::Value;
use serde::Serialize;

use super::charts::{self, Changes, Columns, Part, Row, Stacked, Staircase};
use super::format::{Unit, count, percent};
use super::measured::{Group, PanelView, cause_name, keys};
use super::page::{self, EM_SPACE, Figure, drawn};
use super::tables::{self, Column, Kind, Table};
use crate::runs::{Balance, Run, Runs};

/// More small charts than anybody looks at.
const PANELS_MAX: usize = 64;

/// The latest of the imbalanced steps that are listed.
const LISTED: usize = 16;

/// What the template is filled with.
#[derive(Serialize)]
pub(super) struct View {
    /// Who was late; nothing where nobody was.
    late: Option<Figure>,
    groups: Vec<Group>,
    /// A sentence for each host.
    notes: Vec<String>,
}

/// The ranks of one host in one run.
struct Host<'a> {
    name: String,
    balance: &'a Balance,
}

impl Host<'_> {
    fn rank(&self, place: usize) -> String {
        format!("{}, {}", self.name, self.balance.rank_name(place))
    }
}

/// Hosts of all runs whose ranks share threads. Every rank of a host tells the same; who saw most is asked.
fn hosts(runs: &Runs) -> Vec<Host<'_>> {
    runs.runs.iter().flat_map(of_run).collect()
}

fn of_run(run: &Run) -> Vec<Host<'_>> {
    let of_ranks = run
        .ranks
        .iter()
        .filter_map(|rank| rank.stats.balance.as_ref());
    let mut told: Vec<&Balance> = run.stats.balance.iter().chain(of_ranks).collect();
    told.sort_by_key(|balance| (balance.members.first(), std::cmp::Reverse(balance.steps)));
    told.dedup_by_key(|balance| balance.members.first());
    let number = told.len();
    let name = |at: usize| {
        if number == 1 {
            run.name().to_owned()
        } else {
            format!("{}, host {at}", run.name())
        }
    };
    let hosts = told.into_iter().enumerate();
    hosts
        .map(|(at, balance)| Host {
            name: name(at),
            balance,
        })
        .collect()
}

/// All of it.
pub(super) fn view(runs: &Runs) -> Option<View> {
    let hosts = hosts(runs);
    if hosts.is_empty() {
        return None;
    }
    let groups = [threads(&hosts), times(&hosts)];
    let has_panels = |group: &Group| !group.panels.is_empty();
    Some(View {
        late: late(&hosts),
        groups: groups.into_iter().filter(has_panels).collect(),
        notes: hosts.iter().map(in_words).collect(),
    })
}

fn in_words(host: &Host<'_>) -> String {
    let Balance {
        steps,
        imbalanced_steps,
        utilisation,
        ..
    } = host.balance;
    let imbalanced = imbalanced_steps.map_or_else(
        || "no step was counted".to_owned(),
        |part| {
            format!(
                "{} of {} steps were imbalanced",
                percent(part),
                count(*steps)
            )
        },
    );
    let used = utilisation.map_or_else(String::new, |part| {
        format!(
            "; trainers had what they needed for {} of their time",
            percent(part)
        )
    });
    format!("{}: {imbalanced}{used}.", host.name)
}

fn late(hosts: &[Host<'_>]) -> Option<Figure> {
    let counted = hosts.iter().flat_map(|host| &host.balance.late_by);
    let causes = counted.flat_map(|causes| causes.keys().cloned());
    let causes = tables::in_order(causes);
    if causes.is_empty() {
        return None;
    }
    let rows = hosts.iter().flat_map(|host| {
        let places = host.balance.late_by.iter().enumerate();
        places.map(|(place, _)| late_row(host, place, &causes))
    });
    let chart = Stacked {
        label: "Steps in which a rank was late while another was not, by what it waited for"
            .to_owned(),
        axis_title: "steps".to_owned(),
        unit: Unit::WHOLE,
        rows: rows.collect(),
        mark: None,
        breaks_at: f64::INFINITY,
    };
    Some(Figure {
        title: "Who was late".to_owned(),
        legend: keys(&causes, cause_name),
        charts: drawn(&chart),
        notes: vec![
            "Imbalanced steps: one rank waits for its data for over a tenth of a step of training, and another does not. \
             Coloured by where the data came from that the late rank waited for."
                .to_owned(),
        ],
    })
}

fn late_row(host: &Host<'_>, place: usize, causes: &[String]) -> Row {
    let name = host.rank(place);
    let counts = &host.balance.late_by[place];
    let part = |cause: &String| {
        let times = counts.get(cause).copied().unwrap_or(0);
        Part {
            paint: page::paint(cause),
            value: times as f64,
            tip: format!("{name}, {}: {}", cause_name(cause), count(times)),
        }
    };
    let times: u64 = counts.values().sum();
    let steps = host.balance.steps.max(1);
    let share = percent(times as f64 / steps as f64);
    Row {
        parts: causes.iter().map(part).collect(),
        shown: format!("{}{EM_SPACE}{share}", count(times)),
        name,
    }
}

/// Threads over time, a small chart for each rank.
fn threads(hosts: &[Host<'_>]) -> Group {
    let panels = hosts.iter().flat_map(threads_of_host);
    Group {
        id: "threads",
        title: "Threads, rank by rank",
        notes: vec![
            "Loader threads that each rank was to have, from step to step. Grey: the other ranks of its host."
                .to_owned(),
        ],
        panels: panels.take(PANELS_MAX).collect(),
    }
}

fn threads_of_host(host: &Host<'_>) -> Vec<PanelView> {
    let balance = host.balance;
    let told = &balance.threads_over_time;
    let ranks = told.first().map_or(0, |(_, threads)| threads.len());
    let of_place = |place: usize| -> Changes {
        told.iter()
            .map(|(step, threads)| (*step as f64, f64::from(threads[place])))
            .collect()
    };
    let all: Vec<Changes> = (0..ranks).map(of_place).collect();
    let last = told.last().map_or(0, |(step, _)| *step);
    let most = all.iter().flatten().map(|change| change.1);
    let most = most.fold(0.0, f64::max);
    let panel = |place: usize| {
        let others = all.iter().enumerate().filter(|(at, _)| *at != place);
        let others: Vec<Changes> = others.map(|(_, changes)| changes.clone()).collect();
        let name = host.rank(place);
        let chart = Staircase {
            label: format!("{name}: threads by step"),
            x_title: "step",
            y_title: "threads",
            changes: &all[place],
            others: &others,
            end: last.max(balance.steps) as f64,
            most,
        };
        PanelView {
            name,
            chart: Value::from_safe_string(chart.draw(charts::SMALL)),
        }
    };
    (0..ranks).map(panel).collect()
}

/// How long steps took, a small chart for each host.
fn times(hosts: &[Host<'_>]) -> Group {
    let told = hosts.iter().flat_map(|host| &host.balance.steps_histogram);
    let unit = Unit::of_seconds(told.map(|bar| bar.0).fold(0.0, f64::max));
    let panel = |host: &Host<'_>| {
        let bars = host.balance.steps_histogram.iter();
        let bars: Vec<(String, f64)> = bars
            .map(|(up_to_s, steps)| (unit.bare(*up_to_s), *steps as f64))
            .collect();
        let chart = Columns {
            label: format!("{}: how many steps took how long", host.name),
            x_title: &unit.title("a step took up to"),
            y_title: "steps",
            unit: Unit::WHOLE,
            bars: &bars,
        };
        (!bars.is_empty()).then(|| PanelView {
            name: host.name.clone(),
            chart: Value::from_safe_string(chart.draw(charts::SMALL)),
        })
    };
    Group {
        id: "step-times",
        title: "How long steps took",
        notes: vec!["Training at the quickest rank, and waiting at the latest.".to_owned()],
        panels: hosts.iter().filter_map(panel).take(PANELS_MAX).collect(),
    }
}

/// The same in numbers.
pub(super) fn tables(runs: &Runs) -> Vec<Table> {
    let hosts = hosts(runs);
    if hosts.is_empty() {
        return Vec::new();
    }
    let mut tables = vec![of_hosts(&hosts), of_ranks(&hosts)];
    tables.extend(latest(&hosts));
    tables
}

fn of_hosts(hosts: &[Host<'_>]) -> Table {
    let column = |title: &str, kind: Kind, of: &dyn Fn(&Balance) -> Option<f64>| Column {
        title: title.to_owned(),
        values: hosts.iter().map(|host| of(host.balance)).collect(),
        kind,
    };
    let mut columns = vec![
        column("steps", Kind::Count, &|it| Some(it.steps as f64)),
        column("imbalanced", Kind::Share, &|it| it.imbalanced_steps),
        column("trainers busy", Kind::Share, &|it| it.utilisation),
    ];
    for part in ["p50", "p95", "p99", "max"] {
        let title = format!("step, {part}");
        columns.push(column(&title, Kind::Seconds, &|it| {
            it.steps_s.get(part).copied()
        }));
    }
    let names = hosts.iter().map(|host| (host.name.clone(), true));
    Table::new("Balance", "host", names.collect(), &columns)
}

fn of_ranks(hosts: &[Host<'_>]) -> Table {
    let ranks = || {
        hosts.iter().flat_map(|host| {
            let places = 0..host.balance.ranks_told();
            places.map(move |place| (host, place))
        })
    };
    let column = |title: &str, kind: Kind, of: &dyn Fn(&Balance, usize) -> Option<f64>| Column {
        title: title.to_owned(),
        values: ranks()
            .map(|(host, place)| of(host.balance, place))
            .collect(),
        kind,
    };
    let columns = [
        column("late steps", Kind::Count, &|it, place| {
            let causes = it.late_by.get(place)?;
            Some(causes.values().sum::<u64>() as f64)
        }),
        column("waited", Kind::Seconds, &|it, place| {
            it.waited_s.get(place).copied()
        }),
        column("threads at last", Kind::Count, &|it, place| {
            let (_, threads) = it.threads_over_time.last()?;
            threads.get(place).map(|threads| f64::from(*threads))
        }),
    ];
    let names = ranks().map(|(host, place)| (host.rank(place), true));
    Table::new("Balance, rank by rank", "rank", names.collect(), &columns)
}

/// The latest steps in which somebody was late, one by one.
fn latest(hosts: &[Host<'_>]) -> Option<Table> {
    let mut names = Vec::new();
    let mut values = Vec::new();
    for host in hosts {
        let steps = host.balance.late_steps.iter().rev().take(LISTED);
        for step in steps {
            for late in &step.late {
                let cause = cause_name(&late.cause);
                let who = format!("step {}: rank {}, {cause}", count(step.step), late.rank);
                names.push((format!("{}, {who}", host.name), true));
                values.push(Some(late.waited_s));
            }
        }
    }
    let columns = [Column {
        title: "waited".to_owned(),
        values,
        kind: Kind::Seconds,
    }];
    (!names.is_empty()).then(|| Table::new("Latest imbalanced steps", "step", names, &columns))
}
