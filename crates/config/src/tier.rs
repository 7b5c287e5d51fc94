//! The tables `[[tier]]`: what a rank, or the ranks of a host together, keep samples in.

use std::path::{Path, PathBuf};

use toml::Value;

use crate::config::{THREADS, size};
use crate::environment::Environment;
use crate::error::InputError;
use crate::reader::{Document, Keys, Section, key};
use crate::variables::expanded;

pub(crate) const TIER: Keys = Keys {
    place: "in [[tier]]",
    all: &[
        key("kind", r#""memory""#, "the kind"),
        key("capacity", r#""4 GiB""#, "the capacity"),
        key("path", r#""/nvme/foresee""#, "the folder of the tier"),
        key(
            "scope",
            r#""rank""#,
            r#"whose it is: "rank", or "host" for all ranks of a host together"#,
        ),
        key("threads", "2", "the number of threads of one rank"),
        key(
            "free_space_floor",
            r#""1 GiB""#,
            "the space of the disk that stays free",
        ),
        key(
            "trust_folder",
            "true",
            "whether others may own the folder or write to it",
        ),
    ],
};

/// Tiers are numbered by u8, and one is the staging buffer.
const TIERS_MAX: usize = (1 << 8) - 1;

const TIER_THREADS: u32 = 2;
/// A disk that other programs use too should not be filled to the last byte.
const FREE_SPACE_FLOOR_BYTES: u64 = 1 << 30;

/// One tier of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// What it is made of.
    pub kind: TierKind,
    /// What it holds, for each rank or host by its scope; nothing switches it off.
    pub capacity_bytes: u64,
    /// Whose it is.
    pub scope: Scope,
    /// Loader threads of a rank that fill it.
    pub threads: u32,
}

/// Whose a tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each rank has one.
    #[default]
    Rank,
    /// The ranks of a host have one together: each keeps a part of what it holds, and no sample is in two of them.
    Host,
}

/// What a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierKind {
    /// Memory of the rank.
    Memory,
    /// Files.
    Disk {
        /// The folder they are in; no other tier has it.
        path: PathBuf,
        /// What stays free of the disk, whatever the capacity.
        free_space_floor_bytes: u64,
        /// Whether others may own the folder or write to it.
        trust_folder: bool,
    },
}

impl Tier {
    /// A tier of memory as the file has it where only its capacity is given.
    pub fn memory(capacity_bytes: u64) -> Self {
        Self {
            kind: TierKind::Memory,
            capacity_bytes,
            scope: Scope::Rank,
            threads: TIER_THREADS,
        }
    }

    /// What it holds for one of the ranks of a host: all of it, or an even part where they share it.
    pub fn part_bytes(&self, rank: u32, ranks: u32) -> u64 {
        match self.scope {
            Scope::Rank => self.capacity_bytes,
            Scope::Host => {
                let ranks = u128::from(ranks.max(1));
                let up_to = |rank: u128| u128::from(self.capacity_bytes) * rank.min(ranks) / ranks;
                (up_to(u128::from(rank) + 1) - up_to(u128::from(rank))) as u64
            }
        }
    }
}

impl TierKind {
    /// The folder of a tier on disk.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory => None,
            Self::Disk { path, .. } => Some(path),
        }
    }
}

/// The tiers of a file.
pub(crate) fn tiers(
    document: Document<'_>,
    top: &Section<'_>,
    environment: &Environment,
) -> Result<Vec<Tier>, InputError> {
    let values = match top.get("tier") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(top.mistyped("tier", other, "a list of tables")),
    };
    if values.len() > TIERS_MAX {
        return Err(top.error(
            "tier",
            format!("{} tiers are too many", values.len()),
            "give at most 255 tiers",
        ));
    }
    let mut tiers: Vec<Tier> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let section = Section::open(document, &format!("tier[{index}]"), &TIER, value)?;
        let tier = tier(&section, environment)?;
        let twin = tiers
            .iter()
            .position(|other| other.kind.path().is_some() && other.kind.path() == tier.kind.path());
        if let Some(twin) = twin {
            let key = format!("tier[{index}].path");
            let other = format!("tier[{twin}].path");
            let what = format!("tier {twin} has this folder too");
            return Err(document.error(
                &key,
                &[&other],
                what,
                "give each tier its own folder".to_owned(),
            ));
        }
        let is_memory = |tier: &Tier| tier.kind == TierKind::Memory;
        if let Some(twin) = tiers
            .iter()
            .position(is_memory)
            .filter(|_| is_memory(&tier))
        {
            let key = format!("tier[{index}].kind");
            let other = format!("tier[{twin}].kind");
            let what = format!("tier {twin} is of memory too");
            let remedy = format!("add this one's capacity to tier[{twin}].capacity and remove it");
            return Err(document.error(&key, &[&other], what, remedy));
        }
        tiers.push(tier);
    }
    Ok(tiers)
}

fn tier(section: &Section<'_>, environment: &Environment) -> Result<Tier, InputError> {
    section.need("kind")?;
    let is_disk = section.choice("kind", &[("memory", false), ("disk", true)])?;
    let capacity_bytes = size(section, "capacity")?;
    let threads = if section.has("threads") {
        section.whole("threads", THREADS)? as u32
    } else {
        TIER_THREADS
    };
    let kind = if is_disk {
        disk(section, environment)?
    } else {
        memory(section)?
    };
    let scope = section.choice("scope", &[("rank", Scope::Rank), ("host", Scope::Host)])?;
    Ok(Tier {
        kind,
        capacity_bytes,
        scope,
        threads,
    })
}

fn disk(section: &Section<'_>, environment: &Environment) -> Result<TierKind, InputError> {
    let path = expanded(section.text("path")?, environment)
        .map_err(|(what, remedy)| section.error("path", what, remedy))?;
    let floor = "free_space_floor";
    let free_space_floor_bytes = if section.has(floor) {
        size(section, floor)?
    } else {
        FREE_SPACE_FLOOR_BYTES
    };
    Ok(TierKind::Disk {
        path,
        free_space_floor_bytes,
        trust_folder: section.flag("trust_folder")?,
    })
}

fn memory(section: &Section<'_>) -> Result<TierKind, InputError> {
    let of_disk = [
        ("path", "path"),
        ("free_space_floor", "disk"),
        ("trust_folder", "folder"),
    ];
    match of_disk.into_iter().find(|(key, _)| section.has(key)) {
        None => Ok(TierKind::Memory),
        Some((key, what)) => {
            let key = section.path_to(key);
            let kind = section.path_to("kind");
            let what = format!("a tier of memory has no {what}");
            let remedy = r#"remove it, or give kind = "disk""#.to_owned();
            Err(section.document().error(&key, &[&kind], what, remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_tier_that_a_host_shares_add_up_to_it() {
        let tier = |scope| Tier {
            scope,
            ..Tier::memory(1001)
        };
        let parts = |scope, ranks| -> Vec<u64> {
            let all = 0..ranks;
            all.map(|rank| tier(scope).part_bytes(rank, ranks))
                .collect()
        };
        assert_eq!(parts(Scope::Rank, 2), [1001, 1001]);
        assert_eq!(parts(Scope::Host, 4), [250, 250, 250, 251]);
        assert_eq!(parts(Scope::Host, 1), [1001]);
        // Whoever knows nothing of its host has all of it.
        assert_eq!(tier(Scope::Host).part_bytes(0, 0), 1001);
    }
}
