//! Which configuration holds: what the caller gave, else the file that `FORESEE_CONFIG` names, else `foresee.toml` in the
//! current folder, else the defaults; over all of these the environment, key by key.

use std::path::Path;

use toml::Table;

use crate::config::Config;
use crate::environment::{Environment, said};
use crate::error::InputError;
use crate::reader;

/// Looked for in the current folder.
const FILE: &str = "foresee.toml";
const FILE_VARIABLE: &str = "FORESEE_CONFIG";
/// What messages call a table that came from no file.
const TABLE: &str = "config";

/// What the caller gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Given<'a> {
    /// Nothing: the environment and the current folder are asked for a file.
    #[default]
    Nothing,
    /// This file.
    File(&'a Path),
    /// A table instead of a file; messages call it `config`.
    Table(Table),
}

/// A configuration and who had a say in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// The file (`config` for a table), then the variables as `NAME=VALUE`; nothing where all are defaults.
    pub given_by: Vec<String>,
}

impl Config {
    /// The configuration that holds. Only files and the argument are looked at, never the process's environment.
    pub fn resolve(given: Given<'_>, environment: &Environment) -> Result<Resolved, InputError> {
        let (name, mut root) = match given {
            Given::Table(table) => (Some(TABLE.to_owned()), table),
            Given::File(path) => (Some(path.display().to_string()), read(path)?),
            Given::Nothing => found(environment)?,
        };
        let overrides = environment.apply(&mut root)?;
        let config = Self::read(
            Path::new(name.as_deref().unwrap_or(TABLE)),
            &root,
            &overrides,
            environment,
        )?;
        let given_by = name
            .into_iter()
            .chain(overrides.into_iter().map(|by| by.said))
            .collect();
        Ok(Resolved { config, given_by })
    }
}

/// The file that nobody gave, if there is one.
fn found(environment: &Environment) -> Result<(Option<String>, Table), InputError> {
    let Some(named) = environment.get(FILE_VARIABLE) else {
        let path = Path::new(FILE);
        return if path.exists() {
            Ok((Some(FILE.to_owned()), read(path)?))
        } else {
            Ok((None, Table::new()))
        };
    };
    if named.is_empty() {
        return Ok((None, Table::new()));
    }
    let path = Path::new(named);
    let table = read(path).map_err(|error| match error {
        InputError::Unreadable { file, what, remedy } => InputError::Wrong {
            place: said(FILE_VARIABLE, &file.to_string_lossy()),
            what,
            remedy,
        },
        inside => inside,
    })?;
    Ok((Some(path.display().to_string()), table))
}

fn read(path: &Path) -> Result<Table, InputError> {
    reader::parse(path, &reader::read_text(path, "configuration")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CatalogFolder, Source, Staging, Threads};
    use crate::tier::{Scope, Tier, TierKind};
    use crate::{Balance, Peers};

    const FILE_TEXT: &str = r#"
        [staging]
        capacity = "64 MiB"
        threads = 8
        [[tier]]
        kind = "memory"
        capacity = "1 GiB"
        [[tier]]
        kind = "disk"
        capacity = "2 GiB"
        path = "/nvme"
        [trace]
        path = "trace.jsonl"
    "#;

    fn resolved(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let table = text.parse().unwrap();
        let environment = variables.iter().copied().collect();
        let resolved = Config::resolve(Given::Table(table), &environment)
            .map_err(|error| error.to_string())?;
        assert_eq!(resolved.given_by.len(), 1 + variables.len());
        Ok(resolved.config)
    }

    #[test]
    fn variables_win_over_what_is_given() {
        let config = resolved(
            FILE_TEXT,
            &[
                ("FORESEE_STAGING_CAPACITY", "1 MiB"),
                ("FORESEE_STAGING_THREADS", "auto"),
                ("FORESEE_TIER_0_CAPACITY", "4096"),
                ("FORESEE_TIER_0_THREADS", "5"),
                ("FORESEE_TIER_1_PATH", "/ssd"),
                ("FORESEE_TIER_1_SCOPE", "host"),
                ("FORESEE_TIER_1_FREE_SPACE_FLOOR", "0 B"),
                ("FORESEE_TIER_1_TRUST_FOLDER", "true"),
                ("FORESEE_CATALOG_PATH", "7"),
                ("FORESEE_CATALOG_TRUST_FOLDER", "true"),
                ("FORESEE_TRACE_PATH", ""),
            ],
        );
        let kind = TierKind::Disk {
            path: "/ssd".into(),
            free_space_floor_bytes: 0,
            trust_folder: true,
        };
        let expected = Config {
            staging: Staging {
                capacity_bytes: 1 << 20,
                threads: Threads::Auto,
            },
            tiers: vec![
                Tier {
                    kind: TierKind::Memory,
                    capacity_bytes: 4096,
                    scope: Scope::Rank,
                    threads: 5,
                },
                Tier {
                    kind,
                    capacity_bytes: 2 << 30,
                    scope: Scope::Host,
                    threads: 2,
                },
            ],
            source: Source::default(),
            catalog: CatalogFolder::At("7".into()),
            trust_catalogs: true,
            trace: None,
            peers: Peers::default(),
            balance: Balance::default(),
        };
        assert_eq!(config, Ok(expected));
    }

    #[test]
    fn the_path_of_a_tier_names_variables_in_the_file_and_in_a_variable() {
        let path = |variables: &[(&str, &str)]| {
            let environment = variables.iter().copied().collect();
            let table = "[[tier]]\nkind = 'disk'\ncapacity = 1\npath = '${node-local}/cache'";
            let resolved = Config::resolve(Given::Table(table.parse().unwrap()), &environment);
            let config = resolved.map_err(|error| error.to_string())?.config;
            Ok(config.tiers[0].kind.path().unwrap().to_owned())
        };
        let site = ("SLURM_TMPDIR", "/local/7");
        assert_eq!(path(&[site]), Ok("/local/7/cache".into()));
        assert_eq!(
            path(&[site, ("FORESEE_TIER_0_PATH", "$SLURM_TMPDIR/x")]),
            Ok("/local/7/x".into())
        );
        assert_eq!(
            path(&[]),
            Err::<std::path::PathBuf, _>(
                "config: tier[0].path: none of SLURM_TMPDIR, LOCAL_SCRATCH, PBS_JOBFS, TMPDIR is set; set it, or say \
                 what holds without it, as in ${node-local|/tmp}"
                    .to_owned()
            )
        );
        assert_eq!(
            path(&[("FORESEE_TIER_0_PATH", "$NVME")]),
            Err(
                "FORESEE_TIER_0_PATH=$NVME: NVME is not set; set it, or say what holds without it, as in ${NVME|/tmp}"
                    .to_owned()
            )
        );
    }

    #[test]
    fn tiers_are_added_one_after_another() {
        let kind = |number| (format!("FORESEE_TIER_{number}_KIND"), "disk".to_owned());
        let path = |number| (format!("FORESEE_TIER_{number}_PATH"), format!("/{number}"));
        let capacity = |number| {
            (
                format!("FORESEE_TIER_{number}_CAPACITY"),
                format!("{number} B"),
            )
        };
        let environment = (0..12)
            .flat_map(|number| [kind(number), path(number), capacity(number)])
            .collect();
        let tiers = Config::resolve(Given::Table(Table::new()), &environment)
            .unwrap()
            .config
            .tiers;
        assert!(tiers.iter().map(|tier| tier.capacity_bytes).eq(0..12));
    }

    #[test]
    fn what_is_wrong_with_a_variable_is_said_in_one_line_that_names_it() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (
                &[("FORESEE_STAGING_CAPACITY", "lots")],
                "FORESEE_STAGING_CAPACITY=lots: \"lots\" is not a size; write a number and one of B, kB, MB, GB, TB, \
                 KiB, MiB, GiB, TiB, as in \"4 GiB\"",
            ),
            (
                &[("FORESEE_STAGING_CAPACITY", "0")],
                "FORESEE_STAGING_CAPACITY=0: the staging buffer needs room; give more than 0 B",
            ),
            (
                &[("FORESEE_STAGING_THREADS", "m\nany")],
                "FORESEE_STAGING_THREADS=m\\nany: \"m\\nany\" is not known; give \"auto\", a whole number or, for all ranks \
                 of a host together, one as in \"16 a host\"",
            ),
            (
                &[("FORESEE_STAGING_THREADS", "65536")],
                "FORESEE_STAGING_THREADS=65536: 65536 is too big; give \"auto\" or the number of threads of one rank, a \
                 whole number from 1 to 1024",
            ),
            (
                &[
                    ("FORESEE_TIER_2_KIND", "memory"),
                    ("FORESEE_TIER_2_CAPACITY", "1 B"),
                ],
                "FORESEE_TIER_2_KIND=memory: tier 0 is of memory too; add this one's capacity to tier[0].capacity and \
                 remove it",
            ),
            (
                &[("FORESEE_STAGING_CAPCITY", "1")],
                "FORESEE_STAGING_CAPCITY: unknown variable; did you mean FORESEE_STAGING_CAPACITY?",
            ),
            (
                &[("FORESEE_STAGING_SPEED", "1")],
                "FORESEE_STAGING_SPEED: unknown variable; known are FORESEE_STAGING_CAPACITY, FORESEE_STAGING_THREADS",
            ),
            (
                &[("FORESEE_TIER_1_PAHT", "/x")],
                "FORESEE_TIER_1_PAHT: unknown variable; did you mean FORESEE_TIER_1_PATH?",
            ),
            (
                &[("FORESEE_TIER_PATH", "/x")],
                "FORESEE_TIER_PATH: has no number of a tier; count tiers from 0, as in FORESEE_TIER_0_CAPACITY",
            ),
            (
                &[("FORESEE_TIER_1", "/x")],
                "FORESEE_TIER_1: unknown variable; did you mean FORESEE_TIER_1_CAPACITY?",
            ),
            (
                &[("FORESEE_TIER_3_KIND", "memory")],
                "FORESEE_TIER_3_KIND=memory: there is no tier 3; the next one to add is FORESEE_TIER_2_KIND",
            ),
            (
                &[("FORESEE_TIER_2_KIND", "memory")],
                "FORESEE_TIER_2_KIND=memory: adds a tier without its capacity; set FORESEE_TIER_2_CAPACITY too",
            ),
            (
                &[
                    ("FORESEE_TIER_2_KIND", "disk"),
                    ("FORESEE_TIER_2_CAPACITY", "1 B"),
                ],
                "FORESEE_TIER_2_CAPACITY=1 B: adds a tier without its path; set FORESEE_TIER_2_PATH too",
            ),
            (
                &[("FORESEE_TIER_0_PATH", "/x")],
                "FORESEE_TIER_0_PATH=/x: a tier of memory has no path; remove it, or give kind = \"disk\"",
            ),
            (
                &[("FORESEE_TIER_1_KIND", "memory")],
                "FORESEE_TIER_1_KIND=memory: tier[1].path: a tier of memory has no path; remove it, or give kind = \
                 \"disk\"",
            ),
        ];
        for (variables, expected) in cases {
            assert_eq!(resolved(FILE_TEXT, variables).unwrap_err(), *expected);
        }
    }

    #[test]
    fn a_mistake_of_the_table_is_not_blamed_on_a_variable() {
        let said = |text: &str, variable| resolved(text, &[variable]).unwrap_err();
        assert_eq!(
            said("staging = 1", ("FORESEE_STAGING_THREADS", "2")),
            "config: staging: found a whole number (1), wanted a table; its keys are capacity, threads"
        );
        assert_eq!(
            said("tier = 1", ("FORESEE_TIER_0_THREADS", "2")),
            "config: tier: found a whole number (1), wanted a list of tables; write it as in [[tier]]"
        );
    }

    #[test]
    fn other_variables_are_not_looked_at() {
        let environment = [
            ("FORESEE_LOG", "debug"),
            ("PATH", "/bin"),
            ("STAGING_CAPACITY", "x"),
        ]
        .into_iter()
        .collect();
        let given_by = Config::resolve(Given::Table(Table::new()), &environment)
            .unwrap()
            .given_by;
        assert_eq!(given_by, ["config"]);
    }

    #[test]
    fn a_file_is_named_by_the_caller_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one.toml");
        let other = folder.path().join("other.toml");
        std::fs::write(&one, "[staging]\nthreads = 1").unwrap();
        std::fs::write(&other, "[staging]\nthreads = 2").unwrap();
        let environment = Environment::from_iter([("FORESEE_CONFIG", &other)]);
        let threads = |given: Given<'_>| {
            Config::resolve(given, &environment)
                .unwrap()
                .config
                .staging
                .threads
        };
        assert_eq!(threads(Given::File(&one)), Threads::Number(1));
        assert_eq!(threads(Given::Table(Table::new())), Threads::Auto);
        assert_eq!(threads(Given::Nothing), Threads::Number(2));
    }

    #[test]
    fn a_named_file_must_be_there_and_an_empty_name_is_no_file() {
        let nothing = |name: &str| {
            let environment = Environment::from_iter([("FORESEE_CONFIG", name)]);
            Config::resolve(Given::Nothing, &environment).map_err(|error| error.to_string())
        };
        assert_eq!(
            nothing("nowhere.toml").unwrap_err(),
            "FORESEE_CONFIG=nowhere.toml: no such file; check the path"
        );
        assert_eq!(
            nothing(""),
            Ok(Resolved {
                config: Config::default(),
                given_by: Vec::new()
            })
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_not_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let value = std::ffi::OsString::from_vec(vec![b'/', 0xff]);
        let environment = Environment::from_iter([("FORESEE_TRACE_PATH", value)]);
        let said = Config::resolve(Given::Nothing, &environment)
            .unwrap_err()
            .to_string();
        assert_eq!(said, "FORESEE_TRACE_PATH: is not UTF-8; give it in UTF-8");
    }
}
