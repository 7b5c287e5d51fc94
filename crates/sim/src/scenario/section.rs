//! One table of a scenario, read key by key: types, bounds, and whom to blame.
//!
//! A [`Section`] is opened on a value that must be a table of known keys; its getters return checked values or the
//! error to print. They know nothing of what the keys mean beyond the schema's words; rules that join several keys
//! are the caller's.

use std::ops::RangeInclusive;
use std::path::Path;

use toml::{Table, Value};

use super::Points;
use super::error::ScenarioError;
use super::schema::Keys;
use super::set::Set;

/// Strings longer than this are cut where a message quotes them.
const QUOTED_CHARS_MAX: usize = 40;

/// Beyond 2^53 not every whole number is a float, so a float no longer says which one is meant.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Where values came from.
#[derive(Clone, Copy)]
pub(super) struct Blame<'a> {
    pub(super) file: &'a Path,
    pub(super) sets: &'a [Set],
}

impl Blame<'_> {
    /// An error at `key`, blamed on the last override of it or of one of the `others` that it disagrees with.
    pub(super) fn error(&self, key: &str, others: &[&str], what: String, remedy: String) -> ScenarioError {
        let gave = |set: &&Set| related(set.key(), key) || others.iter().any(|other| related(set.key(), other));
        let place = match self.sets.iter().rfind(gave) {
            Some(set) if set.key() == key => format!("--set {set}"),
            Some(set) => format!("--set {set}: {key}"),
            None => format!("{}: {key}", self.file.display()),
        };
        ScenarioError::Key { place, key: key.to_owned(), what, remedy }
    }
}

/// Whether one key is the other or lies within it.
fn related(one: &str, other: &str) -> bool {
    let (outer, inner) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The values that a number may have. Limits far out keep the model's arithmetic finite.
pub(super) struct Limits {
    pub(super) min: f64,
    pub(super) max: f64,
    /// The bound that people meet, completing "give the rate in MB/s, ...".
    pub(super) said: &'static str,
}

/// Rates: one byte a second to far beyond any machine.
pub(super) const RATE: Limits = Limits { min: 1e-6, max: 1e12, said: "more than 0" };

/// A curve, as messages speak of it.
pub(super) struct Curve {
    /// What its points count.
    pub(super) count: &'static str,
    pub(super) example: &'static str,
    /// What to give at a point, completing "give ...".
    pub(super) means: &'static str,
}

/// By the number of readers of the source.
pub(super) const BY_READERS: Curve =
    Curve { count: "readers", example: "{ 1 = 66, 4 = 146 }", means: "the rate of all readers together in MB/s" };

/// By the number of threads of a rank.
pub(super) const BY_THREADS: Curve =
    Curve { count: "threads", example: "{ 1 = 200, 4 = 700 }", means: "the rate of all threads together in MB/s" };

/// One table.
pub(super) struct Section<'a> {
    blame: Blame<'a>,
    path: String,
    keys: &'static Keys,
    table: &'a Table,
}

impl<'a> Section<'a> {
    /// The table `value`, which has only keys that it may have.
    pub(super) fn open(
        blame: Blame<'a>,
        path: &str,
        keys: &'static Keys,
        value: &'a Value,
    ) -> Result<Self, ScenarioError> {
        let Value::Table(table) = value else {
            let what = format!("found {}, wanted a table", kind_of(value));
            return Err(blame.error(path, &[], what, format!("its keys are {}", keys.names())));
        };
        let section = Self { blame, path: path.to_owned(), keys, table };
        match table.keys().find(|key| !keys.knows(key)) {
            Some(wrong) => {
                let remedy = keys.advise(wrong, |right| section.path_to(right));
                Err(section.error(wrong, "unknown key", remedy))
            }
            None => Ok(section),
        }
    }

    /// The table under `key`, which has only keys that it may have.
    pub(super) fn section(&self, key: &str, keys: &'static Keys) -> Result<Section<'a>, ScenarioError> {
        Section::open(self.blame, &self.path_to(key), keys, self.need(key)?)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key)
    }

    /// The full name of `key`.
    pub(super) fn path_to(&self, key: &str) -> String {
        let key = named(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// An error at `key`.
    pub(super) fn error(&self, key: &str, what: impl Into<String>, remedy: impl Into<String>) -> ScenarioError {
        self.blame.error(&self.path_to(key), &[], what.into(), remedy.into())
    }

    /// A string with something in it.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, ScenarioError> {
        match self.need(key)? {
            Value::String(text) if text.trim().is_empty() => {
                Err(self.error(key, "is empty", format!("give {}", self.keys.get(key).means)))
            }
            Value::String(text) => Ok(text),
            other => Err(self.mistyped(key, other, "a string")),
        }
    }

    /// True or false; false where the key is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ScenarioError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(*flag),
            Some(other) => Err(self.mistyped(key, other, "a boolean")),
        }
    }

    /// One of several words; the first where the key is absent.
    pub(super) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, ScenarioError> {
        let Some(value) = self.get(key) else { return Ok(words[0].1) };
        let Value::String(text) = value else { return Err(self.mistyped(key, value, "a string")) };
        if let Some((_, choice)) = words.iter().find(|(word, _)| word == text) {
            return Ok(*choice);
        }
        let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let remedy = format!("give {} as one of {}", self.keys.get(key).means, known.join(", "));
        Err(self.error(key, format!("{} is not known", quoted(text)), remedy))
    }

    /// A whole number.
    pub(super) fn whole(&self, key: &str, within: RangeInclusive<u64>) -> Result<u64, ScenarioError> {
        let value = self.need(key)?;
        let wrong = |what: String| {
            let (min, max) = within.clone().into_inner();
            let remedy = format!("give {}, a whole number from {min} to {max}", self.keys.get(key).means);
            Err(self.error(key, what, remedy))
        };
        let number = match *value {
            Value::Integer(number) => i128::from(number),
            Value::Float(number) if !number.is_finite() => return wrong(format!("{} is not finite", shown(number))),
            Value::Float(number) if number < 0.0 => return wrong(format!("{} is negative", shown(number))),
            Value::Float(number) if number > EXACT_MAX => return wrong(format!("{} is too big", shown(number))),
            Value::Float(number) if number.fract() != 0.0 => return wrong(format!("{} is not whole", shown(number))),
            Value::Float(number) => number as i128,
            _ => return Err(self.mistyped(key, value, "a whole number")),
        };
        match u64::try_from(number) {
            Err(_) => wrong(format!("{number} is negative")),
            Ok(number) if number < *within.start() => wrong(format!("{number} is too small")),
            Ok(number) if number > *within.end() => wrong(format!("{number} is too big")),
            Ok(number) => Ok(number),
        }
    }

    /// A number, whole or not.
    pub(super) fn number(&self, key: &str, limits: &Limits) -> Result<f64, ScenarioError> {
        let value = self.need(key)?;
        let Some(number) = as_number(value) else { return Err(self.mistyped(key, value, "a number")) };
        self.bounded(&self.path_to(key), number, (self.keys.get(key).means, limits))
    }

    /// The points of a curve, at least one.
    pub(super) fn curve(&self, key: &str, curve: &Curve) -> Result<Points, ScenarioError> {
        let value = self.need(key)?;
        let Value::Table(table) = value else { return Err(self.mistyped(key, value, "a table of points")) };
        if table.is_empty() {
            let remedy = format!("give at least one point, such as {}", curve.example);
            return Err(self.error(key, "the curve has no points", remedy));
        }
        let mut points = table
            .iter()
            .map(|(point, value)| self.point(&self.path_to(key), (point, value), curve))
            .collect::<Result<Points, ScenarioError>>()?;
        points.sort_unstable_by_key(|&(at, _)| at);
        Ok(points)
    }

    fn point(&self, path: &str, point: (&str, &Value), curve: &Curve) -> Result<(u32, f64), ScenarioError> {
        let Curve { count, example, means } = curve;
        let (at, value) = point;
        let path = format!("{path}.{}", named(at));
        let wrong = |what: String, remedy: String| Err(self.blame.error(&path, &[], what, remedy));
        // Only the plain way to write a number, so that no two keys are the same point.
        let at = match at.parse::<u32>() {
            Ok(0) => return wrong("there is no point 0".to_owned(), format!("count {count} from 1 as in {example}")),
            Ok(number) if number.to_string() == at => number,
            _ => {
                let what = format!("{} is not a number of {count}", quoted(at));
                return wrong(what, format!("give whole numbers from 1 as in {example}"));
            }
        };
        let Some(rate) = as_number(value) else {
            let what = format!("found {}, wanted a number", kind_of(value));
            return wrong(what, format!("write the points as in {example}"));
        };
        Ok((at, self.bounded(&path, rate, (means, &RATE))?))
    }

    /// `number`, if it lies within limits.
    fn bounded(&self, path: &str, number: f64, (means, limits): (&str, &Limits)) -> Result<f64, ScenarioError> {
        let (what, bound) = if !number.is_finite() {
            ("is not finite", limits.said.to_owned())
        } else if number < 0.0 {
            ("is negative", limits.said.to_owned())
        } else if number == 0.0 && limits.min > 0.0 {
            ("is too small", limits.said.to_owned())
        } else if number < limits.min {
            ("is too small", format!("at least {}", limits.min))
        } else if number > limits.max {
            ("is too big", format!("at most {:e}", limits.max))
        } else {
            return Ok(number);
        };
        let what = format!("{} {what}", shown(number));
        Err(self.blame.error(path, &[], what, format!("give {means}, {bound}")))
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &str) -> Result<&'a Value, ScenarioError> {
        self.get(key).ok_or_else(|| {
            let key = self.keys.get(key);
            let remedy = if key.is_section() {
                format!("add a section {}", key.written())
            } else {
                format!("add {} {}", key.written(), self.keys.place)
            };
            self.error(key.name, "missing", remedy)
        })
    }

    /// The error for a value of the wrong type.
    pub(super) fn mistyped(&self, key: &str, found: &Value, wanted: &str) -> ScenarioError {
        let what = format!("found {}, wanted {wanted}", kind_of(found));
        self.error(key, what, format!("write it as in {}", self.keys.get(key).written()))
    }
}

fn as_number(value: &Value) -> Option<f64> {
    match *value {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

/// A number, short even where it is far out.
pub(super) fn shown(number: f64) -> String {
    if number.is_nan() {
        "nan".to_owned()
    } else if number == 0.0 || !number.is_finite() || (1e-6..1e9).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

/// A key as TOML writes it: in quotes where it holds dots or the like, which must not look like a path.
fn named(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { quoted(key) }
}

/// A string in quotes, cut where it is long.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// What a value is, with the value where it is short.
pub(super) fn kind_of(value: &Value) -> String {
    match value {
        Value::String(text) => format!("a string ({})", quoted(text)),
        Value::Integer(number) => format!("a whole number ({number})"),
        Value::Float(number) => format!("a number ({})", shown(*number)),
        Value::Boolean(flag) => format!("a boolean ({flag})"),
        Value::Datetime(date) => format!("a date ({date})"),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}
