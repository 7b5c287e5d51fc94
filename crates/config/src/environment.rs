//! Environment variables that override `foresee.toml`: `FORESEE_STAGING_CAPACITY`, `FORESEE_TIER_0_PATH` and the like.
//!
//! A variable is written into the table before the reader sees it, so that the reader's checks hold for it as for the
//! file; the reader then blames a bad value on the variable that gave it. Names follow from the keys of the format.
//! Everything comes from an [`Environment`]: nothing here looks at the process but [`Environment::of_process`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use toml::{Table, Value};

use crate::balance::BALANCE;
use crate::config::{CATALOG, SOURCE, STAGING, TRACE};
use crate::error::InputError;
use crate::peers::{PEERS, SECRET_VARIABLE};
use crate::reader::{Keys, Override};
use crate::tier::TIER;

const TIER_PREFIX: &str = "FORESEE_TIER_";
/// Sections that are one table, with the start of their variables.
const SECTIONS: [(&str, &str, &Keys); 6] = [
    ("FORESEE_STAGING_", "staging", &STAGING),
    ("FORESEE_SOURCE_", "source", &SOURCE),
    ("FORESEE_CATALOG_", "catalog", &CATALOG),
    ("FORESEE_TRACE_", "trace", &TRACE),
    ("FORESEE_PEERS_", "peers", &PEERS),
    ("FORESEE_BALANCE_", "balance", &BALANCE),
];

/// A longer value is left out where a message quotes its variable.
const SAID_BYTES_MAX: usize = 80;

/// The variables of a process. Which of them count is for whoever asks: the path of a tier may name any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The variables of this process, as they are now.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of a variable, also where it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The folder for what can be made again: `$XDG_CACHE_HOME`, else `~/.cache`, where the user has a home.
    pub(crate) fn user_cache(&self) -> Option<PathBuf> {
        // The XDG specification wants relative paths ignored.
        let absolute = |name| {
            self.get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
    }

    /// Writes all variables that stand for keys into `root`. What they replaced is returned, for the reader to blame.
    pub(crate) fn apply(&self, root: &mut Table) -> Result<Vec<Override>, InputError> {
        let mut tier_variables = Vec::new();
        let mut overrides = Vec::new();
        for (name, value) in &self.0 {
            let Some(name) = name.to_str() else { continue };
            if name == SECRET_VARIABLE {
                // No key stands for it: a table, or what had a say in it, may be printed.
                continue;
            }
            if let Some((prefix, section, keys)) = SECTIONS
                .iter()
                .find(|(prefix, ..)| name.starts_with(prefix))
            {
                let variable = Variable::new(name, value, (prefix, keys))?;
                let table = root
                    .entry(*section)
                    .or_insert_with(|| Value::Table(Table::new()));
                overrides.extend(variable.write(table, section));
            } else if name.starts_with(TIER_PREFIX) {
                tier_variables.push(tier_variable(name, value)?);
            }
        }
        // By number: "10" comes before "2" in the order of names.
        tier_variables.sort_by_key(|(index, _)| *index);
        let tiers = root
            .entry("tier")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(tiers) = tiers {
            apply_to_tiers(tiers, &tier_variables, &mut overrides)?;
        }
        Ok(overrides)
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let all = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self(all.collect())
    }
}

/// A variable that stands for a key.
struct Variable<'a> {
    name: &'a str,
    key: &'static str,
    value: &'a str,
}

impl<'a> Variable<'a> {
    /// The variable `name`, which begins with `prefix`, for one of `keys`.
    fn new(
        name: &'a str,
        value: &'a OsStr,
        (prefix, keys): (&str, &'static Keys),
    ) -> Result<Self, InputError> {
        let variable = |key: &str| format!("{prefix}{}", key.to_ascii_uppercase());
        let Some(key) = keys.all.iter().find(|key| variable(key.name) == name) else {
            let known = || {
                keys.all
                    .iter()
                    .map(|key| variable(key.name))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let near = keys.nearest(&name[prefix.len()..].to_ascii_lowercase());
            let remedy = near.map_or_else(
                || format!("known are {}", known()),
                |near| format!("did you mean {}?", variable(near)),
            );
            return Err(wrong(name, "unknown variable", remedy));
        };
        let Some(value) = value.to_str() else {
            return Err(wrong(name, "is not UTF-8", "give it in UTF-8".to_owned()));
        };
        Ok(Self {
            name,
            key: key.name,
            value,
        })
    }

    /// Writes it into the table at `path`; a value that is no table is left for the reader to refuse.
    fn write(&self, table: &mut Value, path: &str) -> Option<Override> {
        // Paths and words may look like numbers.
        let value = match (self.key, self.value.trim()) {
            ("path" | "kind" | "transport" | "bind" | "secret_file", _) => {
                Value::String(self.value.to_owned())
            }
            (_, "true") => Value::Boolean(true),
            (_, "false") => Value::Boolean(false),
            (_, value) => value
                .parse()
                .map_or_else(|_| Value::String(self.value.to_owned()), Value::Integer),
        };
        table.as_table_mut()?.insert(self.key.to_owned(), value);
        Some(Override {
            key: format!("{path}.{}", self.key),
            said: self.said(),
        })
    }

    fn said(&self) -> String {
        said(self.name, self.value)
    }
}

/// A variable as messages name it: with its value, where that is short.
pub(crate) fn said(name: &str, value: &str) -> String {
    if value.len() <= SAID_BYTES_MAX {
        format!("{name}={value}")
    } else {
        name.to_owned()
    }
}

fn tier_variable<'a>(name: &'a str, value: &'a OsStr) -> Result<(usize, Variable<'a>), InputError> {
    let rest = &name[TIER_PREFIX.len()..];
    let number = rest.split('_').next().unwrap_or_default();
    let index = number
        .parse::<usize>()
        .ok()
        .filter(|index| index.to_string() == number);
    let Some(index) = index else {
        let remedy = format!("count tiers from 0, as in {TIER_PREFIX}0_CAPACITY");
        return Err(wrong(name, "has no number of a tier", remedy));
    };
    // A name that ends after the number misses its key, and the last underscore with it.
    let prefix = format!("{TIER_PREFIX}{number}_");
    if !name.starts_with(&prefix) {
        return Err(wrong(
            name,
            "unknown variable",
            format!("did you mean {prefix}CAPACITY?"),
        ));
    }
    Ok((index, Variable::new(name, value, (&prefix, &TIER))?))
}

/// Changes tiers and adds new ones at the end; `variables` are in the order of tiers.
fn apply_to_tiers(
    tiers: &mut Vec<Value>,
    variables: &[(usize, Variable<'_>)],
    overrides: &mut Vec<Override>,
) -> Result<(), InputError> {
    let given = tiers.len();
    for (index, variable) in variables {
        if *index == tiers.len() {
            tiers.push(Value::Table(Table::new()));
        }
        let count = tiers.len();
        let Some(tier) = tiers.get_mut(*index) else {
            let remedy = format!(
                "the next one to add is {TIER_PREFIX}{count}_{}",
                variable.key.to_ascii_uppercase()
            );
            return Err(wrong(
                &variable.said(),
                &format!("there is no tier {index}"),
                remedy,
            ));
        };
        overrides.extend(variable.write(tier, &format!("tier[{index}]")));
    }
    for (index, tier) in tiers.iter().enumerate().skip(given) {
        let by = variables
            .iter()
            .find(|(of, _)| *of == index)
            .map(|(_, variable)| variable.said());
        if let (Some(missing), Some(by)) = (missing(tier), by) {
            let remedy = format!(
                "set {TIER_PREFIX}{index}_{} too",
                missing.to_ascii_uppercase()
            );
            return Err(wrong(
                &by,
                &format!("adds a tier without its {missing}"),
                remedy,
            ));
        }
    }
    Ok(())
}

/// A key that a tier needs and has not.
fn missing(tier: &Value) -> Option<&'static str> {
    let is_disk = tier.get("kind").and_then(Value::as_str) == Some("disk");
    let needed: &[_] = if is_disk {
        &["capacity", "path"]
    } else {
        &["kind", "capacity"]
    };
    needed.iter().find(|key| tier.get(key).is_none()).copied()
}

fn wrong(place: &str, what: &str, remedy: String) -> InputError {
    InputError::Wrong {
        place: place.to_owned(),
        what: what.to_owned(),
        remedy,
    }
}
