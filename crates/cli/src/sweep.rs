//! `--sweep KEY=V1,V2,...`: the scenario once for every value, or for every pair of values of two keys.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use foresee_config::InputError;
use foresee_core::policy::Policy;
use foresee_sim::job::Job;
use foresee_sim::outcome::Outcome;
use foresee_sim::scenario::{Scenario, Set, Template};
use serde::Serialize;
use serde_json::{Map, Value};

/// One key and the values it takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// As it was typed.
    pub(crate) key: String,
    /// As they were typed.
    pub(crate) values: Vec<String>,
}

impl Axis {
    /// Parses `KEY=V1,V2,...`; commas within brackets, braces or quotes belong to a value.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let Some((key, list)) = text.split_once('=') else {
            bail!("--sweep {text}: no '='; write KEY=V1,V2,..., such as --sweep job.ranks=4,8,16");
        };
        let values = split(list);
        if values.iter().any(String::is_empty) {
            bail!(
                "--sweep {text}: a value is missing; write KEY=V1,V2,..., such as --sweep job.ranks=4,8,16"
            );
        }
        Ok(Self {
            key: key.trim().to_owned(),
            values,
        })
    }
}

fn split(list: &str) -> Vec<String> {
    let mut values = vec![String::new()];
    let mut depth = 0i32;
    let mut quoted = false;
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        if letter == ',' && depth == 0 && !quoted {
            values.push(String::new());
        } else if let Some(last) = values.last_mut() {
            last.push(letter);
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

/// The scenario with some values.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    /// Key and value, as typed; numbers as numbers.
    pub(crate) set: Map<String, Value>,
    /// Policy by policy.
    pub(crate) results: Vec<Outcome>,
    /// The values as typed, in the order of the axes.
    #[serde(skip)]
    pub(crate) values: Vec<String>,
    /// The bound of this point.
    #[serde(skip)]
    pub(crate) lower_bound_s: f64,
}

/// All points of a sweep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sweep {
    /// The first axis varies slowest.
    pub(crate) sweep: Vec<Point>,
    #[serde(skip)]
    pub(crate) axes: Vec<Axis>,
}

/// Every combination of the axes' values, with the scenario it gives; all are checked before anything runs.
pub(crate) fn points(
    template: &Template,
    sets: &[Set],
    axes: &[Axis],
) -> Result<Vec<(Vec<String>, Scenario)>> {
    let mut combinations: Vec<Vec<String>> = vec![Vec::new()];
    for axis in axes {
        let with = |values: &Vec<String>| {
            axis.values
                .iter()
                .map(|value| [values.clone(), vec![value.clone()]].concat())
                .collect::<Vec<_>>()
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    let scenario = |values: Vec<String>| {
        let mut sets = sets.to_vec();
        for (axis, value) in axes.iter().zip(&values) {
            sets.push(
                format!("{}={value}", axis.key)
                    .parse()
                    .map_err(|error| blamed_on_sweep(&error))?,
            );
        }
        let scenario = template
            .with(&sets)
            .map_err(|error| blamed_on_sweep(&error))?;
        Ok((values, scenario))
    };
    combinations.into_iter().map(scenario).collect()
}

/// A sweep sets values as `--set` does; what is wrong was typed as `--sweep`. The scenario as it stands has been read
/// before, so no other override is to blame.
fn blamed_on_sweep(error: &InputError) -> anyhow::Error {
    anyhow!("{}", error.to_string().replacen("--set ", "--sweep ", 1))
}

/// Runs policies at every point. Sizes are drawn again only where a point changes them.
pub(crate) fn run(
    points: Vec<(Vec<String>, Scenario)>,
    axes: Vec<Axis>,
    policies: &[&dyn Policy],
    mut progress: impl FnMut(&str, u64),
) -> Result<Sweep> {
    let mut drawn: Option<(Scenario, Arc<foresee_core::catalog::Catalog>)> = None;
    let mut sweep = Vec::new();
    for (values, scenario) in points {
        let same = |other: &Scenario| {
            other.dataset == scenario.dataset && other.job.seed == scenario.job.seed
        };
        let catalog = match &drawn {
            Some((other, catalog)) if same(other) => Arc::clone(catalog),
            _ => Arc::new(scenario.sizes()?),
        };
        let job = Job::with_catalog(&scenario, Arc::clone(&catalog))?;
        drawn = Some((scenario, catalog));
        let label = |policy: &str| format!("{} {policy}", values.join(" "));
        let comparison = foresee_sim::compare(&job, policies, |policy, done| {
            progress(&label(policy), done);
        });
        let set = axes
            .iter()
            .zip(&values)
            .map(|(axis, value)| (axis.key.clone(), json(value)))
            .collect();
        let lower_bound_s = comparison.lower_bound_s;
        sweep.push(Point {
            set,
            results: comparison.results,
            values,
            lower_bound_s,
        });
    }
    Ok(Sweep { sweep, axes })
}

/// A number as a number, everything else as text.
fn json(value: &str) -> Value {
    let number = value.parse::<i64>().map(Value::from).ok();
    number
        .or_else(|| value.parse::<f64>().ok().map(Value::from))
        .unwrap_or_else(|| Value::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_inside_a_value_do_not_split_it() {
        assert_eq!(split("1, 2,3"), ["1", "2", "3"]);
        assert_eq!(
            split("{ 1 = 66, 4 = 146 },{ 1 = 100 }"),
            ["{ 1 = 66, 4 = 146 }", "{ 1 = 100 }"]
        );
        assert_eq!(split(r#""a,b",c"#), [r#""a,b""#, "c"]);
    }

    #[test]
    fn a_sweep_without_values_is_refused_in_one_line() {
        for text in ["job.ranks", "job.ranks=", "job.ranks=4,,8"] {
            let said = Axis::parse(text).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("--sweep {text}: ")) && !said.contains('\n'),
                "{said}"
            );
        }
    }

    #[test]
    fn numbers_are_numbers_in_json() {
        assert_eq!(json("10240"), Value::from(10240));
        assert_eq!(json("0.5"), Value::from(0.5));
        assert_eq!(json("torch"), Value::from("torch"));
    }
}
