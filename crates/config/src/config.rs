//! What `foresee.toml` says, as whoever trains writes it: keys, defaults and rules. Read with the same care as a
//! scenario: an unknown key is an error, and every error is one line with place, key and remedy. Rules that need the
//! machine (is there so much memory?) are the loader's.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::balance::{BALANCE, Balance};
use crate::environment::Environment;
use crate::error::InputError;
use crate::peers::{PEERS, Peers};
use crate::reader::{self, Document, Keys, Override, Section, key, quoted};
use crate::tier::{TIER, Tier, tiers};

/// Every table of the file.
const TABLES: &[&Keys] = &[
    &TOP, &STAGING, &TIER, &SOURCE, &CATALOG, &TRACE, &PEERS, &BALANCE,
];

const TOP: Keys = Keys {
    place: "at the top",
    all: &[
        key("staging", "[staging]", "the staging buffer"),
        key("tier", "[[tier]]", "the tiers"),
        key("source", "[source]", "the source"),
        key("catalog", "[catalog]", "the saved catalogs"),
        key("trace", "[trace]", "the trace"),
        key("peers", "[peers]", "the other ranks"),
        key("balance", "[balance]", "how ranks of a host share threads"),
    ],
};

pub(crate) const STAGING: Keys = Keys {
    place: "in [staging]",
    all: &[
        key("capacity", r#""512 MiB""#, "the capacity"),
        key(
            "threads",
            r#""auto""#,
            r#""auto" or the number of threads of one rank"#,
        ),
    ],
};

pub(crate) const SOURCE: Keys = Keys {
    place: "in [source]",
    all: &[key(
        "immutable",
        "true",
        "whether files of the dataset never change",
    )],
};

pub(crate) const CATALOG: Keys = Keys {
    place: "in [catalog]",
    all: &[
        key(
            "path",
            r#""/var/cache/foresee""#,
            "the folder of saved catalogs",
        ),
        key(
            "trust_folder",
            "true",
            "whether others may own the folder or write to it",
        ),
    ],
};

pub(crate) const TRACE: Keys = Keys {
    place: "in [trace]",
    all: &[key("path", r#""trace.jsonl""#, "the file of the trace")],
};

/// Sizes end with one of these.
const UNITS: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// As much as a scenario's tiers may hold.
const CAPACITY_BYTES_MAX: f64 = 1.8e19;

/// Beyond it threads only cost memory: no storage is read faster by more, and a process may rarely start so many.
pub const THREADS_MAX: u32 = 1024;
pub(crate) const THREADS: RangeInclusive<u64> = 1..=THREADS_MAX as u64;
const STAGING_BYTES: u64 = 512 << 20;
/// What a rank has to load with. The default is a staging buffer and no tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The staging buffer.
    pub staging: Staging,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// What is known of the source.
    pub source: Source,
    /// Where catalogs are saved.
    pub catalog: CatalogFolder,
    /// Whether others may own the folder of catalogs or write to it.
    pub trust_catalogs: bool,
    /// The file that a trace goes to, if there is one.
    pub trace: Option<PathBuf>,
    /// How ranks serve each other.
    pub peers: Peers,
    /// How those of a host share threads.
    pub balance: Balance,
}

/// The staging buffer of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// What it holds, more than nothing.
    pub capacity_bytes: u64,
    /// Loader threads that fill it.
    pub threads: Threads,
}

/// A number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// As many as model and machine suggest.
    Auto,
    /// So many, at least one.
    Number(u32),
    /// So many for all ranks of a host together: they go where they are needed.
    OfHost(u32),
}

/// What is known of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Whether its files never change: then nobody looks whether they did.
    pub immutable: bool,
}

/// Where catalogs are saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CatalogFolder {
    /// In the user's cache.
    #[default]
    UserCache,
    /// Here.
    At(PathBuf),
    /// Nowhere.
    Off,
}

impl Default for Staging {
    fn default() -> Self {
        Self {
            capacity_bytes: STAGING_BYTES,
            threads: Threads::Auto,
        }
    }
}

impl CatalogFolder {
    /// The folder, if catalogs are to be saved and the user has a cache.
    pub fn folder(&self, environment: &Environment) -> Option<PathBuf> {
        match self {
            Self::UserCache => Some(environment.user_cache()?.join("foresee").join("catalogs")),
            Self::At(folder) => Some(folder.clone()),
            Self::Off => None,
        }
    }
}

impl Config {
    /// The configuration in this file, as if no variable were set.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        Self::parse(path, &reader::read_text(path, "configuration")?)
    }

    /// Of a text that stands for the file `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InputError> {
        Self::read(
            path,
            &reader::parse(path, text)?,
            &[],
            &Environment::default(),
        )
    }

    /// Of a table that messages call `name`.
    pub fn from_table(table: &Table, name: &str) -> Result<Self, InputError> {
        Self::read(Path::new(name), table, &[], &Environment::default())
    }

    /// Of the table in `file`, after `overrides` were written into it; paths may name variables of `environment`.
    pub(crate) fn read(
        file: &Path,
        root: &Table,
        overrides: &[Override],
        environment: &Environment,
    ) -> Result<Self, InputError> {
        let document = Document {
            file,
            tables: TABLES,
            overrides,
        };
        let top = Section::of_table(document, "", &TOP, root)?;
        let catalogs = optional(&top, "catalog", &CATALOG)?;
        let catalog = match catalogs.as_ref().map(path).transpose()?.flatten() {
            None => CatalogFolder::UserCache,
            Some("") => CatalogFolder::Off,
            Some(folder) => CatalogFolder::At(folder.into()),
        };
        let trace = optional(&top, "trace", &TRACE)?
            .map(|section| path(&section))
            .transpose()?
            .flatten();
        Ok(Self {
            staging: optional(&top, "staging", &STAGING)?
                .map(|section| staging(&section))
                .transpose()?
                .unwrap_or_default(),
            tiers: tiers(document, &top, environment)?,
            source: optional(&top, "source", &SOURCE)?
                .map(|section| {
                    section
                        .flag("immutable")
                        .map(|immutable| Source { immutable })
                })
                .transpose()?
                .unwrap_or_default(),
            catalog,
            trust_catalogs: catalogs.map_or(Ok(false), |section| section.flag("trust_folder"))?,
            trace: trace.filter(|path| !path.is_empty()).map(PathBuf::from),
            peers: optional(&top, "peers", &PEERS)?
                .map(|section| Peers::read(&section))
                .transpose()?
                .unwrap_or_default(),
            balance: optional(&top, "balance", &BALANCE)?
                .map(|section| Balance::read(&section))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

fn optional<'a>(
    top: &Section<'a>,
    key: &str,
    keys: &'static Keys,
) -> Result<Option<Section<'a>>, InputError> {
    if top.has(key) {
        top.section(key, keys).map(Some)
    } else {
        Ok(None)
    }
}

/// A path that may be empty, which means none.
fn path<'a>(section: &Section<'a>) -> Result<Option<&'a str>, InputError> {
    match section.get("path") {
        None => Ok(None),
        Some(Value::String(path)) => Ok(Some(path)),
        Some(other) => Err(section.mistyped("path", other, "a string")),
    }
}

fn staging(section: &Section<'_>) -> Result<Staging, InputError> {
    let capacity_bytes = if section.has("capacity") {
        size(section, "capacity")?
    } else {
        STAGING_BYTES
    };
    if capacity_bytes == 0 {
        return Err(section.error(
            "capacity",
            "the staging buffer needs room",
            "give more than 0 B",
        ));
    }
    let threads = match section.get("threads") {
        None => Threads::Auto,
        Some(Value::String(word)) if word == "auto" => Threads::Auto,
        Some(Value::String(word)) => {
            let unknown = || {
                let what = format!("{} is not known", quoted(word));
                let remedy = r#"give "auto", a whole number or, for all ranks of a host together, one as in "16 a host""#;
                section.error("threads", what, remedy)
            };
            Threads::OfHost(of_host(word).ok_or_else(unknown)?)
        }
        Some(_) => Threads::Number(section.whole("threads", THREADS)? as u32),
    };
    Ok(Staging {
        capacity_bytes,
        threads,
    })
}

/// `16 a host`.
fn of_host(word: &str) -> Option<u32> {
    let threads: u64 = word.strip_suffix(" a host")?.parse().ok()?;
    THREADS.contains(&threads).then_some(threads as u32)
}

/// A size in bytes: a string with a unit, or a whole number of bytes.
pub(crate) fn size(section: &Section<'_>, key: &str) -> Result<u64, InputError> {
    let remedy =
        r#"write a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in "4 GiB""#;
    match section.need(key)? {
        Value::String(text) => size_bytes(text)
            .ok_or_else(|| section.error(key, format!("{} is not a size", quoted(text)), remedy)),
        Value::Integer(number) => u64::try_from(*number)
            .map_err(|_| section.error(key, format!("{number} is negative"), remedy)),
        other => Err(section.mistyped(key, other, "a size")),
    }
}

/// The bytes of a size with its unit, as in `4 GiB`; `None` where it is none.
pub fn size_bytes(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, *unit)))?;
    let number = number.trim();
    if !number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    (bytes <= CAPACITY_BYTES_MAX).then_some(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::{Scope, TierKind};

    fn parsed(text: &str) -> Result<Config, String> {
        Config::parse("foresee.toml".as_ref(), text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
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
            scope = "host"
            threads = 3
            free_space_floor = 7
            trust_folder = true
            [source]
            immutable = true
            [catalog]
            path = "catalogs"
            trust_folder = true
            [trace]
            path = "trace.jsonl"
        "#;
        let memory = Tier::memory(3 << 29);
        let kind = TierKind::Disk {
            path: "/nvme".into(),
            free_space_floor_bytes: 7,
            trust_folder: true,
        };
        let disk = Tier {
            kind,
            capacity_bytes: 2_000_000_000_000,
            scope: Scope::Host,
            threads: 3,
        };
        let expected = Config {
            staging: Staging {
                capacity_bytes: 64 << 20,
                threads: Threads::Number(8),
            },
            tiers: vec![memory, disk],
            source: Source { immutable: true },
            catalog: CatalogFolder::At("catalogs".into()),
            trust_catalogs: true,
            trace: Some("trace.jsonl".into()),
            peers: Peers::default(),
            balance: Balance::default(),
        };
        assert_eq!(parsed(text), Ok(expected));
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let none = parsed("").unwrap();
        assert_eq!(none, Config::default());
        assert_eq!(
            none.staging,
            Staging {
                capacity_bytes: 536_870_912,
                threads: Threads::Auto
            }
        );
        assert_eq!(
            (none.tiers.len(), none.catalog, none.trace),
            (0, CatalogFolder::UserCache, None)
        );
        let empty = "[staging]\nthreads = \"auto\"\n[catalog]\n[trace]\npath = \"\"";
        assert_eq!(parsed(empty), Ok(Config::default()));
        let disk = parsed("[[tier]]\nkind = \"disk\"\ncapacity = 0\npath = \"x\"")
            .unwrap()
            .tiers
            .remove(0);
        let kind = TierKind::Disk {
            path: "x".into(),
            free_space_floor_bytes: 1_073_741_824,
            trust_folder: false,
        };
        assert_eq!(
            disk,
            Tier {
                kind,
                capacity_bytes: 0,
                scope: Scope::Rank,
                threads: 2
            }
        );
    }

    #[test]
    fn a_whole_number_is_a_size_in_bytes() {
        assert_eq!(
            parsed("[staging]\ncapacity = 1048576"),
            parsed("[staging]\ncapacity = \"1 MiB\"")
        );
    }

    #[test]
    fn an_empty_path_turns_saved_catalogs_off() {
        let home = Environment::from_iter([("HOME", "/home/ada")]);
        let folder = |text: &str, environment: &Environment| {
            parsed(text).unwrap().catalog.folder(environment)
        };
        assert_eq!(
            folder("", &home),
            Some("/home/ada/.cache/foresee/catalogs".into())
        );
        assert_eq!(folder("", &Environment::default()), None);
        assert_eq!(
            folder("", &Environment::from_iter([("XDG_CACHE_HOME", "/c")])),
            Some("/c/foresee/catalogs".into())
        );
        assert_eq!(folder("[catalog]\npath = \"x\"", &home), Some("x".into()));
        assert_eq!(folder("[catalog]\npath = \"\"", &home), None);
    }

    #[test]
    fn a_table_is_read_like_a_file_under_its_own_name() {
        let table: Table = "[staging]\ncapcity = 1".parse().unwrap();
        let said = Config::from_table(&table, "config")
            .unwrap_err()
            .to_string();
        assert_eq!(
            said,
            "config: staging.capcity: unknown key; did you mean staging.capacity?"
        );
        assert_eq!(
            Config::from_table(&Table::new(), "config"),
            Ok(Config::default())
        );
    }

    #[test]
    fn more_tiers_than_can_be_numbered_are_refused() {
        let tier = |number: usize| {
            format!("[[tier]]\nkind = \"disk\"\ncapacity = 1\npath = \"{number}\"\n")
        };
        let tiers = |count| parsed(&(0..count).map(tier).collect::<String>());
        assert_eq!(tiers(255).unwrap().tiers.len(), 255);
        let said = tiers(256).unwrap_err();
        assert_eq!(
            said,
            "foresee.toml: tier: 256 tiers are too many; give at most 255 tiers"
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let said = |text: &str| parsed(text).unwrap_err();
        let sizes =
            r#"write a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in "4 GiB""#;
        let cases = [
            ("[staging]\ncapacity = \"4 gigs\"", format!(r#"staging.capacity: "4 gigs" is not a size; {sizes}"#)),
            ("[staging]\ncapacity = \"-4 B\"", format!(r#"staging.capacity: "-4 B" is not a size; {sizes}"#)),
            (
                "[staging]\ncapacity = \"0 B\"",
                "staging.capacity: the staging buffer needs room; give more than 0 B".into(),
            ),
            (
                "[staging]\nthreads = \"many\"",
                r#"staging.threads: "many" is not known; give "auto", a whole number or, for all ranks of a host together, one as in "16 a host""#.into(),
            ),
            (
                "[staging]\nthreads = \"0 a host\"",
                r#"staging.threads: "0 a host" is not known; give "auto", a whole number or, for all ranks of a host together, one as in "16 a host""#.into(),
            ),
            ("[staging]\nthread = 1", "staging.thread: unknown key; did you mean staging.threads?".into()),
            ("ranks = 1", "ranks: unknown key; the keys here are staging, tier, source, catalog, trace, peers, balance".into()),
            ("[[tier]]\ncapacity = \"1 B\"", "tier[0].kind: missing; add kind = \"memory\" in [[tier]]".into()),
            (
                "[[tier]]\nkind = \"disk\"\ncapacity = \"1 B\"",
                "tier[0].path: missing; add path = \"/nvme/foresee\" in [[tier]]".into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = \"1 B\"\npath = \"/x\"",
                "tier[0].path: a tier of memory has no path; remove it, or give kind = \"disk\"".into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = \"1 B\"\nfree_space_floor = 1",
                "tier[0].free_space_floor: a tier of memory has no disk; remove it, or give kind = \"disk\"".into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = \"1 B\"\ntrust_folder = true",
                "tier[0].trust_folder: a tier of memory has no folder; remove it, or give kind = \"disk\"".into(),
            ),
            (
                "[[tier]]\nkind = \"disk\"\ncapacity = 1\npath = \"/a/b\"\n\
                 [[tier]]\nkind = \"disk\"\ncapacity = 1\npath = \"/a//b/\"",
                "tier[1].path: tier 0 has this folder too; give each tier its own folder".into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = 1\n[[tier]]\nkind = \"memory\"\ncapacity = 2",
                "tier[1].kind: tier 0 is of memory too; add this one's capacity to tier[0].capacity and remove it".into(),
            ),
            (
                "[staging]\nthreads = 1025",
                "staging.threads: 1025 is too big; give \"auto\" or the number of threads of one rank, a whole number \
                 from 1 to 1024"
                    .into(),
            ),
            (
                "[[tier]]\nkind = \"memory\"\ncapacity = 1\nthreads = 65536",
                "tier[0].threads: 65536 is too big; give the number of threads of one rank, a whole number from 1 to 1024"
                    .into(),
            ),
            ("[staging]\ncapacity = -1", format!("staging.capacity: -1 is negative; {sizes}")),
            (
                "[staging]\ncapacity = 1.5",
                "staging.capacity: found a number (1.5), wanted a size; write it as in capacity = \"512 MiB\"".into(),
            ),
            (
                "[trace]\npath = true",
                "trace.path: found a boolean (true), wanted a string; write it as in path = \"trace.jsonl\"".into(),
            ),
            ("[catalog]\nfolder = \"x\"", "catalog.folder: unknown key; the keys here are path, trust_folder".into()),
        ];
        for (text, expected) in cases {
            assert_eq!(said(text), format!("foresee.toml: {expected}"));
        }
    }
}
