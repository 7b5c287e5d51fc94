//! What is cached and where: the sources and cache folders of the command line and of a file, checked.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use foresee_cache::folder;
use foresee_cache::settings::{
    PATH_BYTES_MAX, PLACES_MAX, Root, Settings, TierSettings, Validation,
};
use foresee_config::{OneLine, size_bytes};
use rustix::fs::{statfs, statvfs};

use super::file::Said;

/// Kinds of file systems in memory, by the numbers that statfs gives them (statfs(2), linux/magic.h).
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
/// Kinds on disks of this machine: nobody but its kernel changes their files.
const DISKS: [u64; 5] = [
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
];

const FREE_FLOOR: &str = "5%";
const VALIDATE: &str = "always";

#[derive(Args)]
pub(crate) struct PlaceArguments {
    /// A folder whose files are cached; may be given several times
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    source: Vec<PathBuf>,
    /// A folder for copies, made if it is not there; several make a hierarchy, fastest first
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    cache: Vec<PathBuf>,
    /// How much copies may take in each cache folder, as in 100GiB
    #[arg(long, value_name = "SIZE", required_unless_present = "config")]
    quota: Vec<String>,
    /// How much of the file system of a cache folder stays free: a size, or a part of it [default: 5%]
    #[arg(long, value_name = "SIZE|PERCENT")]
    free_floor: Option<String>,
    /// How long a copy is trusted without a look at its file: `always` look, look `once` a run, or a time such as 10s
    /// [default: always]
    #[arg(long, value_name = "WHEN")]
    validate: Option<String>,
}

/// What is cached and where, as far as that can be said without touching anything.
pub(crate) struct Places {
    roots: Vec<Root>,
    tiers: Vec<(PathBuf, u64)>,
    floor: Floor,
    validation: Validation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Floor {
    Bytes(u64),
    Part(f64),
}

impl PlaceArguments {
    /// With what a file says of the same.
    pub(crate) fn read(&self, file: &Said) -> anyhow::Result<Places> {
        let given = self.caches()?;
        let caches = if given.is_empty() {
            &file.caches
        } else {
            &given
        };
        let sources = if self.source.is_empty() {
            &file.source
        } else {
            &self.source
        };
        if caches.is_empty() || sources.is_empty() {
            bail!(
                "neither the file nor the command line names both; give --source, --cache and --quota, or the same in the file"
            );
        }
        if caches.len() > PLACES_MAX || sources.len() > PLACES_MAX {
            bail!("more than {PLACES_MAX} caches or sources; name fewer");
        }
        let tiers = caches
            .iter()
            .map(|(path, text)| Ok((path.clone(), quota(text)?)));
        let roots = sources.iter().map(|path| root(path));
        let free_floor = self.free_floor.as_deref();
        let validate = self.validate.as_deref();
        Ok(Places {
            roots: roots.collect::<anyhow::Result<_>>()?,
            tiers: tiers.collect::<anyhow::Result<_>>()?,
            floor: floor(given_text(
                free_floor,
                file.free_floor.as_deref(),
                FREE_FLOOR,
            ))?,
            validation: validation(given_text(validate, file.validate.as_deref(), VALIDATE))?,
        })
    }

    /// The caches of the command line, each with its quota.
    fn caches(&self) -> anyhow::Result<Vec<(PathBuf, String)>> {
        if self.cache.len() != self.quota.len() {
            bail!(
                "{} times --cache and {} times --quota; give a --quota for each --cache",
                self.cache.len(),
                self.quota.len()
            );
        }
        let pairs = self.cache.iter().cloned().zip(self.quota.iter().cloned());
        Ok(pairs.collect())
    }
}

impl Places {
    /// Makes the cache folders.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let mut tiers = Vec::new();
        for (path, quota_bytes) in &self.tiers {
            let tier = self.tier(path, *quota_bytes)?;
            if tiers
                .iter()
                .any(|other: &TierSettings| other.path == tier.path)
            {
                bail!("cache folder {} is named twice", OneLine(path.display()));
            }
            tiers.push(tier);
        }
        Ok(Settings {
            roots: self.roots.clone(),
            tiers,
            validation: self.validation,
            tells_opens: false,
            are_looks_remembered: self.roots.iter().any(are_looks_remembered),
        })
    }

    fn tier(&self, path: &Path, quota_bytes: u64) -> anyhow::Result<TierSettings> {
        let real = folder::prepare(path)?;
        for root in &self.roots {
            let root = Path::new(std::ffi::OsStr::from_bytes(&root.real));
            if real.starts_with(root) {
                bail!(
                    "cache folder {} is in the source {}; name one elsewhere",
                    OneLine(path.display()),
                    OneLine(root.display())
                );
            }
        }
        let kind = statfs(&real).with_context(|| format!("cannot look at {}", real.display()))?;
        let space = statvfs(&real).with_context(|| format!("cannot look at {}", real.display()))?;
        let total_bytes = space.f_blocks.saturating_mul(space.f_frsize);
        Ok(TierSettings {
            path: real.as_os_str().as_bytes().to_vec(),
            quota_bytes,
            floor_bytes: match self.floor {
                Floor::Bytes(bytes) => bytes,
                Floor::Part(part) => (total_bytes as f64 * part) as u64,
            },
            in_memory: matches!(kind.f_type as u64, TMPFS | RAMFS),
        })
    }
}

/// Whether the kernel may remember of a source what is not so any more: unless only it can change it.
#[allow(
    clippy::cast_sign_loss,
    clippy::unnecessary_cast,
    reason = "types of fields differ between machines"
)]
fn are_looks_remembered(root: &Root) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(&root.real));
    let kind = statfs(path).map(|found| found.f_type as u64);
    !kind.is_ok_and(|kind| matches!(kind, TMPFS | RAMFS) || DISKS.contains(&kind))
}

/// What the command line says, else what a file says, else what holds without both.
fn given_text<'a>(given: Option<&'a str>, said: Option<&'a str>, or: &'a str) -> &'a str {
    given.or(said).unwrap_or(or)
}

fn quota(text: &str) -> anyhow::Result<u64> {
    size_bytes(text).with_context(|| {
        format!("--quota {text:?} is not a size; write a number and a unit, as in 100GiB")
    })
}

fn floor(text: &str) -> anyhow::Result<Floor> {
    let part = text
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|percent| (0.0..100.0).contains(percent));
    part.map(|percent| Floor::Part(percent / 100.0))
        .or_else(|| size_bytes(text).map(Floor::Bytes))
        .with_context(|| {
            format!("--free-floor {text:?} is neither a size nor a part; write 20GiB or 5%")
        })
}

fn validation(text: &str) -> anyhow::Result<Validation> {
    match text {
        "always" => return Ok(Validation::Always),
        "once" => return Ok(Validation::Once),
        _ => {}
    }
    let seconds = text
        .strip_suffix('s')
        .and_then(|number| number.parse::<f64>().ok())
        .filter(|seconds| (0.001..1e9).contains(seconds));
    seconds
        .map(|seconds| Validation::For {
            ns: (seconds * 1e9) as u64,
        })
        .with_context(|| {
            format!("--validate {text:?} is no time; write always, once, or seconds as in 10s")
        })
}

/// A source, as it is named and as it is. Not looked at any closer: it may be slow, or have more files than can be listed.
fn root(path: &Path) -> anyhow::Result<Root> {
    let shown = OneLine(path.display().to_string());
    let real = std::fs::canonicalize(path).with_context(|| format!("--source {shown}"))?;
    if !real.is_dir() {
        bail!("--source {shown} is not a folder; name the folder that the files are in");
    }
    if real == Path::new("/") {
        bail!("--source / is everything; name the folder that the files are in");
    }
    let named = lexical(path).with_context(|| format!("--source {shown}"))?;
    if named.as_os_str().len().max(real.as_os_str().len()) > PATH_BYTES_MAX {
        bail!("--source {shown} has a path of more than {PATH_BYTES_MAX} bytes");
    }
    Ok(Root {
        named: named.as_os_str().as_bytes().to_vec(),
        real: real.as_os_str().as_bytes().to_vec(),
    })
}

/// Absolute, without dots.
fn lexical(path: &Path) -> std::io::Result<PathBuf> {
    let mut whole = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            part => whole.push(part),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_sizes_or_parts() {
        assert_eq!(floor("5%").unwrap(), Floor::Part(0.05));
        assert_eq!(floor("20 GiB").unwrap(), Floor::Bytes(20 << 30));
        for wrong in ["", "5", "101%", "-1%", "x%"] {
            assert!(floor(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_of_trust_are_read() {
        assert_eq!(validation("always").unwrap(), Validation::Always);
        assert_eq!(validation("once").unwrap(), Validation::Once);
        assert_eq!(
            validation("1.5s").unwrap(),
            Validation::For { ns: 1_500_000_000 }
        );
        for wrong in ["never", "0s", "10", "-1s", "s"] {
            assert!(validation(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dots_of_a_source_are_taken_out() {
        assert_eq!(
            lexical(Path::new("/a/./b//../c/")).unwrap(),
            Path::new("/a/c")
        );
    }
}
