//! `foresee.toml`: the staging buffer and the tiers of a rank, as whoever trains writes them. Read with the same care as
//! a scenario: an unknown key is an error, and every error is one line with file, key and remedy.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::Value;

use crate::error::InputError;
use crate::reader::{self, Document, Keys, Section, key, quoted};

/// Every table of the file.
const TABLES: &[&Keys] = &[&TOP, &STAGING, &TIER];

const TOP: Keys = Keys {
    place: "at the top",
    all: &[key("staging", "[staging]", "the staging buffer"), key("tier", "[[tier]]", "the tiers")],
};

const STAGING: Keys = Keys {
    place: "in [staging]",
    all: &[
        key("capacity", r#""512 MiB""#, "the capacity"),
        key("threads", r#""auto""#, r#""auto" or the number of threads of one rank"#),
    ],
};

const TIER: Keys = Keys {
    place: "in [[tier]]",
    all: &[
        key("kind", r#""memory""#, "the kind"),
        key("capacity", r#""4 GiB""#, "the capacity"),
        key("path", r#""/nvme/foresee""#, "the folder of the tier"),
        key("threads", "2", "the number of threads of one rank"),
    ],
};

/// Sizes end with one of these.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// As much as a scenario's tiers may hold.
const CAPACITY_BYTES_MAX: f64 = 1.8e19;

const THREADS: RangeInclusive<u64> = 1..=1 << 16;
/// Tiers are numbered by u8, and one is the staging buffer.
const TIERS_MAX: usize = (1 << 8) - 1;

/// What `threads = "auto"` and a missing key mean for the staging buffer.
const STAGING_THREADS: u32 = 4;
const STAGING_BYTES: u64 = 512 << 20;
const TIER_THREADS: u32 = 2;

/// The staging buffer and the tiers of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the staging buffer holds.
    pub staging_bytes: u64,
    /// Loader threads that fill it.
    pub staging_threads: u32,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
}

/// One tier of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// What it is made of.
    pub kind: TierKind,
    /// What it holds, for each rank.
    pub capacity_bytes: u64,
    /// Loader threads of a rank that fill it.
    pub threads: u32,
}

/// What a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierKind {
    /// Memory of the rank.
    Memory,
    /// Files in this folder.
    Disk(PathBuf),
}

impl Default for Config {
    /// A staging buffer and no tier.
    fn default() -> Self {
        Self { staging_bytes: STAGING_BYTES, staging_threads: STAGING_THREADS, tiers: Vec::new() }
    }
}

impl Config {
    /// The configuration in this file.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        Self::parse(path, &reader::read_text(path, "configuration")?)
    }

    /// Of a text that stands for the file `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InputError> {
        let document = Document { file: path, tables: TABLES, overrides: &[] };
        let root = Value::Table(reader::parse(path, text)?);
        let top = Section::open(document, "", &TOP, &root)?;
        let mut config = Self::default();
        if top.has("staging") {
            let staging = top.section("staging", &STAGING)?;
            if staging.has("capacity") {
                config.staging_bytes = size(&staging, "capacity")?;
            }
            if config.staging_bytes == 0 {
                return Err(staging.error("capacity", "the staging buffer needs room", "give more than 0 B"));
            }
            config.staging_threads = staging_threads(&staging)?;
        }
        config.tiers = tiers(document, &top)?;
        Ok(config)
    }
}

fn staging_threads(staging: &Section<'_>) -> Result<u32, InputError> {
    match staging.get("threads") {
        None => Ok(STAGING_THREADS),
        Some(Value::String(word)) if word == "auto" => Ok(STAGING_THREADS),
        Some(Value::String(word)) => {
            let what = format!("{} is not known", quoted(word));
            Err(staging.error("threads", what, r#"give "auto" or a whole number"#))
        }
        Some(_) => Ok(staging.whole("threads", THREADS)? as u32),
    }
}

fn tiers(document: Document<'_>, top: &Section<'_>) -> Result<Vec<Tier>, InputError> {
    let values = match top.get("tier") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(top.mistyped("tier", other, "a list of tables")),
    };
    if values.len() > TIERS_MAX {
        return Err(top.error("tier", format!("{} tiers are too many", values.len()), "give at most 255 tiers"));
    }
    let tier = |(index, value)| tier(&Section::open(document, &format!("tier[{index}]"), &TIER, value)?);
    values.iter().enumerate().map(tier).collect()
}

fn tier(section: &Section<'_>) -> Result<Tier, InputError> {
    section.need("kind")?;
    let is_disk = section.choice("kind", &[("memory", false), ("disk", true)])?;
    let capacity_bytes = size(section, "capacity")?;
    let threads = if section.has("threads") { section.whole("threads", THREADS)? as u32 } else { TIER_THREADS };
    let kind = match (is_disk, section.has("path")) {
        (true, _) => TierKind::Disk(section.text("path")?.into()),
        (false, false) => TierKind::Memory,
        (false, true) => {
            let remedy = r#"remove it, or give kind = "disk""#;
            return Err(section.error("path", "a tier of memory has no path", remedy));
        }
    };
    Ok(Tier { kind, capacity_bytes, threads })
}

/// A size with its unit, in bytes.
fn size(section: &Section<'_>, key: &str) -> Result<u64, InputError> {
    let value = section.need(key)?;
    let Value::String(text) = value else { return Err(section.mistyped(key, value, "a string")) };
    bytes(text).ok_or_else(|| {
        let remedy = r#"write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, as in "4 GiB""#;
        section.error(key, format!("{} is not a size", quoted(text)), remedy)
    })
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, *unit)))?;
    let number = number.trim();
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    (bytes <= CAPACITY_BYTES_MAX).then_some(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config, String> {
        Config::parse("foresee.toml".as_ref(), text).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_staging_and_tiers() {
        let text = r#"
            [staging]
            capacity = "64MiB"
            threads = 8
            [[tier]]
            kind = "memory"
            capacity = "1.5 GiB"
            [[tier]]
            kind = "disk"
            capacity = "2 TB"
            path = "/nvme"
            threads = 3
        "#;
        let memory = Tier { kind: TierKind::Memory, capacity_bytes: 3 << 29, threads: 2 };
        let disk = Tier { kind: TierKind::Disk("/nvme".into()), capacity_bytes: 2_000_000_000_000, threads: 3 };
        let expected = Config { staging_bytes: 64 << 20, staging_threads: 8, tiers: vec![memory, disk] };
        assert_eq!(parsed(text), Ok(expected));
        assert_eq!(parsed(""), Ok(Config::default()));
        assert_eq!(parsed("[staging]\nthreads = \"auto\""), Ok(Config::default()));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let said = |text: &str| parsed(text).unwrap_err();
        let sizes = r#"write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, as in "4 GiB""#;
        let cases = [
            ("[staging]\ncapacity = \"4 gigs\"", format!(r#"staging.capacity: "4 gigs" is not a size; {sizes}"#)),
            ("[staging]\ncapacity = \"-4 B\"", format!(r#"staging.capacity: "-4 B" is not a size; {sizes}"#)),
            (
                "[staging]\ncapacity = \"0 B\"",
                "staging.capacity: the staging buffer needs room; give more than 0 B".into(),
            ),
            (
                "[staging]\nthreads = \"many\"",
                r#"staging.threads: "many" is not known; give "auto" or a whole number"#.into(),
            ),
            ("[staging]\nthread = 1", "staging.thread: unknown key; did you mean staging.threads?".into()),
            ("ranks = 1", "ranks: unknown key; the keys here are staging, tier".into()),
            ("[[tier]]\ncapacity = \"1 B\"", "tier[0].kind: missing; add kind = \"memory\" in [[tier]]".into()),
            (
                "[[tier]]\nkind = \"disk\"\ncapacity = \"1 B\"",
                "tier[0].path: missing; add path = \"/nvme/foresee\" in [[tier]]".into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = \"1 B\"\npath = \"/x\"",
                "tier[0].path: a tier of memory has no path; remove it, or give kind = \"disk\"".into(),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(said(text), format!("foresee.toml: {expected}"));
        }
    }
}
