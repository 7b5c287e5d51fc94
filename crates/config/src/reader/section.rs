//! One table, read key by key: types, bounds, and whom to blame.
//!
//! A [`Section`] is opened on a value that must be a table of known keys; its getters return checked values or the
//! error to print. They know nothing of what the keys mean beyond the schema's words; rules that join several keys
//! are the caller's.

use std::ops::RangeInclusive;
use std::path::Path;

use toml::{Table, Value};

use super::keys::Keys;
use crate::error::InputError;

/// Strings longer than this are cut where a message quotes them.
const QUOTED_CHARS_MAX: usize = 40;

/// Beyond 2^53 not every whole number is a float, so a float no longer says which one is meant.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What is read: where it came from and what it may hold.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    /// The file, or what stands for it in messages.
    pub file: &'a Path,
    /// Every table that the format has.
    pub tables: &'static [&'static Keys],
    /// What was replaced in the file before it is read; later ones win.
    pub overrides: &'a [Override],
}

/// A value that somebody else than the file gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The key that it replaces, as messages write it: `system.tier[1].threads`.
    pub key: String,
    /// As it was given: `--set system.tier.1.threads=0`.
    pub said: String,
}

impl Document<'_> {
    /// An error at `key`, blamed on the last override of it or of one of the `others` that it disagrees with.
    pub fn error(&self, key: &str, others: &[&str], what: String, remedy: String) -> InputError {
        let gave = |by: &&Override| {
            related(&by.key, key) || others.iter().any(|other| related(&by.key, other))
        };
        let place = match self.overrides.iter().rfind(gave) {
            Some(by) if by.key == key => by.said.clone(),
            Some(by) => format!("{}: {key}", by.said),
            None => format!("{}: {key}", self.file.display()),
        };
        InputError::Wrong {
            place,
            what,
            remedy,
        }
    }

    /// The `number` at `key`, if it lies within limits; `means` says what it is.
    pub fn bounded(
        &self,
        key: &str,
        number: f64,
        (means, limits): (&str, &Limits),
    ) -> Result<f64, InputError> {
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
        Err(self.error(key, &[], what, format!("give {means}, {bound}")))
    }
}

/// Whether one key is the other or lies within it.
fn related(one: &str, other: &str) -> bool {
    let (outer, inner) = if one.len() <= other.len() {
        (one, other)
    } else {
        (other, one)
    };
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The values that a number may have. Limits far out keep the model's arithmetic finite.
pub struct Limits {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The bound that people meet, completing "give the rate in MB/s, ...".
    pub said: &'static str,
}

/// One table.
pub struct Section<'a> {
    document: Document<'a>,
    path: String,
    keys: &'static Keys,
    table: &'a Table,
}

impl<'a> Section<'a> {
    /// The table `value`, which has only keys that it may have.
    pub fn open(
        document: Document<'a>,
        path: &str,
        keys: &'static Keys,
        value: &'a Value,
    ) -> Result<Self, InputError> {
        let Value::Table(table) = value else {
            let what = format!("found {}, wanted a table", kind_of(value));
            return Err(document.error(path, &[], what, format!("its keys are {}", keys.names())));
        };
        Self::of_table(document, path, keys, table)
    }

    /// This table, which has only keys that it may have.
    pub fn of_table(
        document: Document<'a>,
        path: &str,
        keys: &'static Keys,
        table: &'a Table,
    ) -> Result<Self, InputError> {
        let section = Self {
            document,
            path: path.to_owned(),
            keys,
            table,
        };
        match table.keys().find(|key| !keys.knows(key)) {
            Some(wrong) => {
                let remedy = keys.advise(wrong, document.tables, |right| section.path_to(right));
                Err(section.error(wrong, "unknown key", remedy))
            }
            None => Ok(section),
        }
    }

    /// The table under `key`, which has only keys that it may have.
    pub fn section(&self, key: &str, keys: &'static Keys) -> Result<Section<'a>, InputError> {
        Section::open(self.document, &self.path_to(key), keys, self.need(key)?)
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key)
    }

    /// What this is a table of.
    pub fn document(&self) -> Document<'a> {
        self.document
    }

    /// The full name of `key`.
    pub fn path_to(&self, key: &str) -> String {
        let key = named(key);
        if self.path.is_empty() {
            key
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// An error at `key`.
    pub fn error(
        &self,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> InputError {
        self.document
            .error(&self.path_to(key), &[], what.into(), remedy.into())
    }

    /// A string with something in it.
    pub fn text(&self, key: &str) -> Result<&'a str, InputError> {
        match self.need(key)? {
            Value::String(text) if text.trim().is_empty() => Err(self.error(
                key,
                "is empty",
                format!("give {}", self.keys.get(key).means),
            )),
            Value::String(text) => Ok(text),
            other => Err(self.mistyped(key, other, "a string")),
        }
    }

    /// True or false; false where the key is absent.
    pub fn flag(&self, key: &str) -> Result<bool, InputError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(*flag),
            Some(other) => Err(self.mistyped(key, other, "a boolean")),
        }
    }

    /// One of several words; the first where the key is absent.
    pub fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(words[0].1);
        };
        let Value::String(text) = value else {
            return Err(self.mistyped(key, value, "a string"));
        };
        if let Some((_, choice)) = words.iter().find(|(word, _)| word == text) {
            return Ok(*choice);
        }
        let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let remedy = format!(
            "give {} as one of {}",
            self.keys.get(key).means,
            known.join(", ")
        );
        Err(self.error(key, format!("{} is not known", quoted(text)), remedy))
    }

    /// A whole number.
    pub fn whole(&self, key: &str, within: RangeInclusive<u64>) -> Result<u64, InputError> {
        let value = self.need(key)?;
        let wrong = |what: String| {
            let (min, max) = within.clone().into_inner();
            let remedy = format!(
                "give {}, a whole number from {min} to {max}",
                self.keys.get(key).means
            );
            Err(self.error(key, what, remedy))
        };
        let number = match *value {
            Value::Integer(number) => i128::from(number),
            Value::Float(number) if !number.is_finite() => {
                return wrong(format!("{} is not finite", shown(number)));
            }
            Value::Float(number) if number < 0.0 => {
                return wrong(format!("{} is negative", shown(number)));
            }
            Value::Float(number) if number > EXACT_MAX => {
                return wrong(format!("{} is too big", shown(number)));
            }
            Value::Float(number) if number.fract() != 0.0 => {
                return wrong(format!("{} is not whole", shown(number)));
            }
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
    pub fn number(&self, key: &str, limits: &Limits) -> Result<f64, InputError> {
        let value = self.need(key)?;
        let Some(number) = as_number(value) else {
            return Err(self.mistyped(key, value, "a number"));
        };
        self.document.bounded(
            &self.path_to(key),
            number,
            (self.keys.get(key).means, limits),
        )
    }

    /// The value of a key that must be there.
    pub fn need(&self, key: &str) -> Result<&'a Value, InputError> {
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
    pub fn mistyped(&self, key: &str, found: &Value, wanted: &str) -> InputError {
        let what = format!("found {}, wanted {wanted}", kind_of(found));
        self.error(
            key,
            what,
            format!("write it as in {}", self.keys.get(key).written()),
        )
    }
}

/// A number, whole or not.
pub fn as_number(value: &Value) -> Option<f64> {
    match *value {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

/// A number, short even where it is far out.
pub fn shown(number: f64) -> String {
    if number.is_nan() {
        "nan".to_owned()
    } else if number == 0.0 || !number.is_finite() || (1e-6..1e9).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

/// A key as TOML writes it: in quotes where it holds dots or the like, which must not look like a path.
pub fn named(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) {
        key.to_owned()
    } else {
        quoted(key)
    }
}

/// A string in quotes, cut where it is long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// What a value is, with the value where it is short.
pub fn kind_of(value: &Value) -> String {
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
