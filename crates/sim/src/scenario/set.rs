//! `--set KEY=VALUE`: one value of a scenario replaced from the command line.
//!
//! An override is written into the TOML table before the reader sees it, so that the reader's checks hold for it as
//! for the file; the reader then blames a bad value on the override that gave it.

use std::fmt;
use std::str::FromStr;

use foresee_config::InputError;
use foresee_config::reader::{Override, kind_of};
use toml::{Table, Value};

/// The deepest key is `system.tier.1.read_mb_per_s.2`; more parts only nest tables without end.
const PARTS_MAX: usize = 8;

/// A longer override is quoted by its key alone.
const TEXT_SHOWN_MAX: usize = 60;

/// One override. Parsed from `KEY=VALUE`: the key is dotted, tiers and curve points go by number
/// (`system.tier.1.capacity_mb=0`, also `system.tier[1].capacity_mb=0`; `system.source_read_mb_per_s.4=200`); the
/// value is TOML or, failing that, a bare string (`job.shuffle=torch`).
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    text: String,
    parts: Vec<String>,
    path: String,
    value: Value,
}

impl Set {
    /// The key as messages write it: `system.tier[1].threads`.
    pub fn key(&self) -> &str {
        &self.path
    }

    /// The value that the key is given.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Whom the reader blames for the value.
    pub(super) fn blamed(&self) -> Override {
        Override {
            key: self.path.clone(),
            said: format!("--set {self}"),
        }
    }

    /// Writes the value into the scenario's `root`; what is absent on the way is made, for the reader to judge.
    pub(super) fn apply(&self, root: &mut Value) -> Result<(), InputError> {
        let mut here = root;
        for (depth, part) in self.parts.iter().enumerate() {
            let parent = path_of(&self.parts[..depth]);
            let kind = kind_of(here);
            here = match here {
                Value::Table(table) => {
                    let is_tiers = path_of(&self.parts[..=depth]) == "system.tier";
                    let absent = if is_tiers {
                        Value::Array(Vec::new())
                    } else {
                        Value::Table(Table::new())
                    };
                    table.entry(part.as_str()).or_insert(absent)
                }
                Value::Array(tiers) if parent == "system.tier" => self.tier(tiers, part)?,
                _ => {
                    let what = format!("{parent} is {kind} and has no keys");
                    return Err(self.error(what, format!("set {parent} itself")));
                }
            };
        }
        here.clone_from(&self.value);
        Ok(())
    }

    fn tier<'a>(&self, tiers: &'a mut [Value], part: &str) -> Result<&'a mut Value, InputError> {
        let count = tiers.len();
        if let Some(tier) = part
            .parse::<usize>()
            .ok()
            .and_then(|index| tiers.get_mut(index))
        {
            return Ok(tier);
        }
        let remedy = match count {
            0 => "add a [[system.tier]] to the file".to_owned(),
            1 => "the only one is 0, the staging buffer".to_owned(),
            _ => format!("give 0 (the staging buffer) to {}", count - 1),
        };
        Err(self.error(format!("there is no tier {part}"), remedy))
    }

    fn error(&self, what: String, remedy: String) -> InputError {
        InputError::Wrong {
            place: format!("--set {self}"),
            what,
            remedy,
        }
    }
}

impl FromStr for Set {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        let error = |what: &str, remedy: &str| InputError::Wrong {
            place: format!("--set {}", cut(text)),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        };
        let Some((key, value)) = text.split_once('=') else {
            return Err(error(
                "no '='",
                "write KEY=VALUE, such as --set job.ranks=4",
            ));
        };
        let parts = parts_of(key.trim());
        if parts.iter().any(String::is_empty) {
            return Err(error(
                "the key has an empty part",
                "write KEY=VALUE, such as --set job.ranks=4",
            ));
        }
        if parts.len() > PARTS_MAX {
            return Err(error(
                "the key has too many parts",
                "the longest are like system.tier.1.read_mb_per_s.2",
            ));
        }
        let path = path_of(&parts);
        Ok(Self {
            text: text.trim().to_owned(),
            parts,
            path,
            value: value_of(value.trim()),
        })
    }
}

impl fmt::Display for Set {
    /// As given; a long value is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.text.len() <= TEXT_SHOWN_MAX {
            &self.text
        } else {
            &self.path
        })
    }
}

/// The start of a text, enough to recognise it.
fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The parts of a dotted key; an index in brackets, as messages write it, is a part too.
fn parts_of(key: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in key.split('.') {
        match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((list, index)) => parts.extend([list.trim().to_owned(), index.trim().to_owned()]),
            None => parts.push(part.trim().to_owned()),
        }
    }
    parts
}

/// The key as the reader names it: dotted, but the tier's index in brackets.
fn path_of(parts: &[String]) -> String {
    match parts {
        [system, tier, index, rest @ ..] if system == "system" && tier == "tier" => {
            let rest: String = rest.iter().flat_map(|part| [".", part]).collect();
            format!("system.tier[{index}]{rest}")
        }
        _ => parts.join("."),
    }
}

fn value_of(text: &str) -> Value {
    if let Ok(value) = text.parse() {
        return value;
    }
    // An integer that TOML cannot hold: a number still, so that it is too big and not of the wrong type.
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    match text.parse() {
        Ok(number) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Value::Float(number),
        _ => Value::String(text.to_owned()),
    }
}
