//! `--config FILE` of `foresee run`: what is cached and where, written down once for all runs of a site. The command line wins,
//! key by key; the caches of a file are taken together, or not at all.

use std::path::{Path, PathBuf};

use foresee_config::InputError;
use foresee_config::reader::{Document, Keys, Section, key, parse, read_text};
use toml::Value;

const TABLES: &[&Keys] = &[&TOP, &CACHE];

const TOP: Keys = Keys {
    place: "at the top",
    all: &[
        key(
            "source",
            r#"["/data/imagenet"]"#,
            "the folders whose files are cached",
        ),
        key(
            "cache",
            "[[cache]]",
            "the folders for copies, fastest first",
        ),
        key(
            "free_floor",
            r#""5%""#,
            "what stays free of the file systems of caches",
        ),
        key(
            "validate",
            r#""always""#,
            "when a copy is trusted without a look",
        ),
        key(
            "copy_threads",
            "2",
            "how many large files are copied at once",
        ),
    ],
};

const CACHE: Keys = Keys {
    place: "in [[cache]]",
    all: &[
        key("path", r#""/nvme/foresee""#, "the folder"),
        key("quota", r#""100 GiB""#, "how much copies may take there"),
    ],
};

/// What a file says; nothing where there is none. Sizes and times are text, as on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(super) source: Vec<PathBuf>,
    /// Folders with their quotas.
    pub(super) caches: Vec<(PathBuf, String)>,
    pub(super) free_floor: Option<String>,
    pub(super) validate: Option<String>,
    pub(super) copy_threads: Option<u8>,
}

impl Said {
    pub(super) fn read(file: &Path) -> Result<Self, InputError> {
        Self::parse(file, &read_text(file, "configuration")?)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, InputError> {
        let table = parse(file, text)?;
        let document = Document {
            file,
            tables: TABLES,
            overrides: &[],
        };
        let top = Section::of_table(document, "", &TOP, &table)?;
        let text = |key| {
            let given = top.has(key).then(|| top.text(key).map(str::to_owned));
            given.transpose()
        };
        let threads = top
            .has("copy_threads")
            .then(|| top.whole("copy_threads", 1..=64));
        Ok(Self {
            source: sources(&top)?,
            caches: caches(&top)?,
            free_floor: text("free_floor")?,
            validate: text("validate")?,
            copy_threads: threads.transpose()?.map(|threads| threads as u8),
        })
    }
}

/// One folder, or a list of them.
fn sources(top: &Section<'_>) -> Result<Vec<PathBuf>, InputError> {
    match top.get("source") {
        None => Ok(Vec::new()),
        Some(Value::String(_)) => Ok(vec![top.text("source")?.into()]),
        Some(Value::Array(all)) => all
            .iter()
            .map(|each| match each {
                Value::String(path) if !path.trim().is_empty() => Ok(path.into()),
                other => Err(top.mistyped("source", other, "the path of a folder")),
            })
            .collect(),
        Some(other) => Err(top.mistyped("source", other, "a list of folders")),
    }
}

fn caches(top: &Section<'_>) -> Result<Vec<(PathBuf, String)>, InputError> {
    let all = match top.get("cache") {
        None => return Ok(Vec::new()),
        Some(Value::Array(all)) => all,
        Some(other) => return Err(top.mistyped("cache", other, "a list of tables")),
    };
    let one = |(index, value): (usize, &Value)| {
        let section = Section::open(top.document(), &format!("cache[{index}]"), &CACHE, value)?;
        let path = section.text("path")?.into();
        Ok((path, section.text("quota")?.to_owned()))
    };
    all.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Said, String> {
        Said::parse("run.toml".as_ref(), text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            source = ["/data", "/more"]
            free_floor = "1 GiB"
            validate = "10s"
            copy_threads = 4
            [[cache]]
            path = "/dev/shm/c"
            quota = "1 GiB"
            [[cache]]
            path = "/nvme/c"
            quota = "100 GiB"
        "#;
        let cache = |path: &str, quota: &str| (path.into(), quota.to_owned());
        let said = Said {
            source: vec!["/data".into(), "/more".into()],
            caches: vec![cache("/dev/shm/c", "1 GiB"), cache("/nvme/c", "100 GiB")],
            free_floor: Some("1 GiB".to_owned()),
            validate: Some("10s".to_owned()),
            copy_threads: Some(4),
        };
        assert_eq!(parsed(text), Ok(said));
        assert_eq!(parsed(""), Ok(Said::default()));
        assert_eq!(parsed("source = '/x'").unwrap().source, [Path::new("/x")]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_remedy() {
        for (text, said) in [
            (
                "sources = 1",
                "run.toml: sources: unknown key; did you mean source?",
            ),
            (
                "[[cache]]\npath = '/x'",
                "run.toml: cache[0].quota: missing; add quota = \"100 GiB\" in [[cache]]",
            ),
            ("copy_threads = 65", "run.toml: copy_threads: 65 is too big"),
            (
                "source = [1]",
                "run.toml: source: found a whole number (1), wanted the path of a folder",
            ),
            (
                "cache = 1",
                "run.toml: cache: found a whole number (1), wanted a list of tables",
            ),
        ] {
            let found = parsed(text).unwrap_err();
            assert!(found.starts_with(said), "{found}");
        }
    }
}
