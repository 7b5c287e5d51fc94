//! Whose a sub-folder is. Each dataset has one for each slot of a host: the place of a rank among those of its host, which
//! another numbering of ranks does not change, and another number of them hardly. This file gives them names, opens the one
//! of a rank, and says which nobody uses any more:
//!
//! - A slot that another process has is left to it: the next one behind those of the ranks is taken.
//! - Slots behind those of the ranks are orphans, left by more ranks. They are dealt to the ranks in turn, each of which has
//!   those beside its own: what they hold stays held.
//! - Earlier versions named folders by rank. A rank gives its own the name of its slot; others are orphans, which
//!   the host's first rank has.
//! - Where a file system is one that several hosts share, the host's name is in that of the folder: whether a process of
//!   another host uses a folder cannot be told there, since locks may not reach that far. Each host has its own, and leaves
//!   the others alone.
//! - What was left of other datasets counts against the capacity: what was used longest ago makes way.

use std::sync::Arc;

use foresee_config::{OneLine, shown};
use foresee_core::digest::Digest;

use super::folder::{self, Folder};
use super::{DiskError, DiskSpec, DiskTier, DiskView, OpenDisks, reach};

/// As many processes at a time may want a slot that others have.
const TRIES_MAX: u32 = 256;

/// A rank's place among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSlot {
    /// Which slot is its own, from 0.
    pub slot: u32,
    /// How many belong to ranks.
    pub slots: u32,
    /// Its number in the world, by which earlier versions named its folder.
    pub rank: u32,
}

/// What the name of a sub-folder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Slot(u32),
    /// Of an earlier version.
    Rank(u32),
}

/// What all sub-folders of a dataset have in common that this host may touch.
#[derive(Clone, Debug)]
struct Family {
    dataset: String,
    /// Where several hosts share the file system.
    host: Option<String>,
}

impl Family {
    fn of(spec: &DiskSpec) -> Self {
        Self {
            dataset: Digest(spec.dataset).to_string(),
            host: reach::host_in_names(&spec.folder),
        }
    }

    /// The name of the sub-folder for a slot.
    fn slot(&self, slot: u32) -> String {
        let Self { dataset, host } = self;
        match host {
            Some(host) => format!("{dataset}-slot{slot}@{host}"),
            None => format!("{dataset}-slot{slot}"),
        }
    }

    /// Which dataset and whose a sub-folder is, by its name; none where it is another host's, or none of ours.
    fn owner<'a>(&self, name: &'a str) -> Option<(&'a str, Owner)> {
        let (dataset, owner, host) = parsed(name)?;
        (host == self.host.as_deref()).then_some((dataset, owner))
    }
}

impl HostSlot {
    /// Whether a sub-folder of the same dataset belongs to no rank any more; `names` are all that there are.
    fn is_orphan(self, owner: Owner, family: &Family, names: &[String]) -> bool {
        match owner {
            Owner::Slot(slot) => slot >= self.slots,
            // A rank of this host may be about to rename it.
            Owner::Rank(rank) => {
                let first = self.rank.saturating_sub(self.slot);
                let place = rank.checked_sub(first);
                let heir = place.filter(|place| *place < self.slots);
                heir.is_none_or(|slot| names.contains(&family.slot(slot)))
            }
        }
    }

    /// Whether an orphan falls to this rank.
    fn is_heir_of(self, owner: Owner) -> bool {
        match owner {
            Owner::Slot(slot) => slot % self.slots.max(1) == self.slot,
            Owner::Rank(_) => self.slot == 0,
        }
    }

    /// The sub-folders that this rank is to have beside its own.
    fn orphans(self, family: &Family, names: &[String]) -> Vec<String> {
        let is_orphan = |name: &&String| {
            family.owner(name).is_some_and(|(of, owner)| {
                of == family.dataset
                    && self.is_orphan(owner, family, names)
                    && self.is_heir_of(owner)
            })
        };
        names.iter().filter(is_orphan).cloned().collect()
    }

    /// Whether a sub-folder that nobody uses may be removed by this rank when space is needed.
    fn may_remove(self, name: &str, family: &Family, names: &[String]) -> bool {
        let Some((of, owner)) = family.owner(name) else {
            return false;
        };
        if of == family.dataset {
            return self.is_orphan(owner, family, names) && self.is_heir_of(owner);
        }
        let is_first = self.slot == 0;
        match owner {
            Owner::Slot(slot) => slot == self.slot || (is_first && slot >= self.slots),
            Owner::Rank(rank) => rank == self.rank || is_first,
        }
    }
}

/// Dataset, owner and host of a sub-folder, by its name.
fn parsed(name: &str) -> Option<(&str, Owner, Option<&str>)> {
    let (name, host) = match name.split_once('@') {
        Some((name, host)) => (name, Some(host)),
        None => (name, None),
    };
    let (dataset, owner) = name.rsplit_once('-')?;
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let slot = owner.strip_prefix("slot").and_then(number).map(Owner::Slot);
    let rank = || owner.strip_prefix("rank").and_then(number).map(Owner::Rank);
    Some((dataset, slot.or_else(rank)?, host))
}

/// The dataset that a sub-folder is of; none where tiers do not give such names.
pub(super) fn dataset_of(name: &str) -> Option<&str> {
    parsed(name).map(|(dataset, ..)| dataset)
}

/// The host that a sub-folder of a file system is of, where that is not this one.
pub(super) fn other_host<'a>(folder: &Folder, name: &'a str) -> Option<&'a str> {
    let (.., host) = parsed(name)?;
    host.filter(|host| reach::host_in_names(&folder.path).as_deref() != Some(*host))
}

impl OpenDisks {
    /// Opens a dataset's tier of a slot, with the orphans that fall to it; `spec` says all but the sub-folders. Where another process has the slot, the next free one behind those of the ranks is taken. Sub-folders
    /// that nobody uses make way if there is not enough space.
    pub fn open_slot(
        self: &Arc<Self>,
        spec: &DiskSpec,
        host: HostSlot,
    ) -> Result<DiskView, DiskError> {
        let family = Family::of(spec);
        let folder = spec.folder();
        let own = family.slot(host.slot);
        if family.host.is_none() {
            let old = format!("{}-rank{}", family.dataset, host.rank);
            folder::rename(&folder, &old, &own);
        }
        let orphans = host.orphans(&family, &folder::names(&folder));
        let spec = DiskSpec {
            name: own,
            orphans,
            ..spec.clone()
        };
        let view = match self.open(&spec) {
            Err(refused @ DiskError::InUse { .. }) => {
                let view = self.open_spare(&spec, host.slots, &family);
                view?.ok_or(refused)?
            }
            opened => opened?,
        };
        bound_leftovers(&spec, host, &family);
        make_space(&spec, host, &family, &view);
        Ok(view)
    }

    /// Opens the first slot behind those of the ranks that no other process has, if there is one.
    fn open_spare(
        self: &Arc<Self>,
        spec: &DiskSpec,
        slots: u32,
        family: &Family,
    ) -> Result<Option<DiskView>, DiskError> {
        for slot in (slots..).take(TRIES_MAX as usize) {
            let spare = DiskSpec {
                name: family.slot(slot),
                orphans: Vec::new(),
                ..spec.clone()
            };
            match self.open(&spare) {
                Err(DiskError::InUse { .. }) => {}
                Err(error) => return Err(error),
                Ok(view) => {
                    let folder = shown(&spec.folder);
                    let wanted = &spec.name;
                    let got = &spare.name;
                    tracing::warn!("{folder}: another process uses {wanted}: {got} is taken");
                    return Ok(Some(view));
                }
            }
        }
        Ok(None)
    }
}

/// What was left of other datasets counts against the capacity: of what this one leaves of it, what was used last stays.
fn bound_leftovers(spec: &DiskSpec, host: HostSlot, family: &Family) {
    let folder = spec.folder();
    let names = folder::names(&folder);
    let is_of_others = |name: &&String| {
        let of = family.owner(name).map(|(dataset, _)| dataset);
        of.is_some_and(|of| of != family.dataset) && host.may_remove(name, family, &names)
    };
    let mut left: Vec<_> = names
        .iter()
        .filter(is_of_others)
        .filter_map(|name| Some((folder::last_use(&folder, name)?, name)))
        .collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    let mut room = spec.capacity.0.saturating_sub(spec.sizes.total().0);
    for (_, name) in left {
        let bytes = folder::disk_bytes(&folder.path.join(name));
        if bytes <= room {
            room -= bytes;
        } else if folder::remove(&folder, name).is_ok() {
            say_removed(spec, name, "which nobody used, for want of room");
        }
    }
}

/// Removes what nobody uses, where there is less space than the tier may need: it stays as long as there is enough for all.
fn make_space(spec: &DiskSpec, host: HostSlot, family: &Family, view: &DiskView) {
    let wanted = spec
        .capacity
        .0
        .saturating_sub(view.held_bytes().0)
        .saturating_add(spec.floor.0);
    let free = DiskTier::free_space(&spec.folder);
    if free.is_none_or(|free| free.0 >= wanted) {
        return;
    }
    let folder = spec.folder();
    let names = folder::names(&folder);
    match folder::remove_stale(&folder, |name| host.may_remove(name, family, &names)) {
        Ok(removed) => {
            for old in removed {
                say_removed(spec, &old, "which nobody used");
            }
        }
        Err(error) => tracing::warn!("{error}"),
    }
}

fn say_removed(spec: &DiskSpec, name: &str, why: &str) {
    let folder = shown(&spec.folder);
    tracing::warn!("{folder}: removed {}, {why}", OneLine(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(slot: u32, slots: u32, rank: u32) -> HostSlot {
        HostSlot { slot, slots, rank }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn ab(host: Option<&str>) -> Family {
        Family {
            dataset: "ab".to_owned(),
            host: host.map(str::to_owned),
        }
    }

    #[test]
    fn names_tell_whose_a_folder_is() {
        assert_eq!(parsed("ab-slot3"), Some(("ab", Owner::Slot(3), None)));
        assert_eq!(parsed("ab-rank12"), Some(("ab", Owner::Rank(12), None)));
        for host in [None, Some("node-1.cluster")] {
            let name = ab(host).slot(7);
            assert_eq!(parsed(&name), Some(("ab", Owner::Slot(7), host)));
        }
        for other in [
            "ab",
            "ab-slot",
            "ab-slot-1",
            "ab-slot+1",
            "ab-3",
            ".foresee",
        ] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_of_another_host_is_neither_adopted_nor_removed() {
        let all = names(&["ab-slot2", "ab-slot2@one", "ab-slot2@two", "cd-slot0@two"]);
        let first = host(0, 2, 0);
        let touched = |family: &Family| -> Vec<&String> {
            let may = |name: &&String| first.may_remove(name, family, &all);
            all.iter().filter(may).collect()
        };
        let one = ab(Some("one"));
        assert_eq!(first.orphans(&one, &all), ["ab-slot2@one"]);
        assert_eq!(touched(&one), ["ab-slot2@one"]);
        assert_eq!(first.orphans(&ab(None), &all), ["ab-slot2"]);
        assert_eq!(touched(&ab(None)), ["ab-slot2"]);
    }

    #[test]
    fn slots_behind_those_of_the_ranks_are_dealt_to_them() {
        let all = names(&[
            "ab-slot0", "ab-slot1", "ab-slot2", "ab-slot3", "cd-slot3", "mine",
        ]);
        let ab = ab(None);
        assert_eq!(host(0, 2, 0).orphans(&ab, &all), ["ab-slot2"]);
        assert_eq!(host(1, 2, 1).orphans(&ab, &all), ["ab-slot3"]);
        assert_eq!(host(0, 3, 0).orphans(&ab, &all), ["ab-slot3"]);
        assert!(host(1, 3, 1).orphans(&ab, &all).is_empty());
        assert!(host(0, 4, 8).orphans(&ab, &all).is_empty());
    }

    #[test]
    fn folders_of_ranks_that_will_rename_them_are_no_orphans() {
        let all = names(&["ab-rank4", "ab-rank5", "ab-rank6", "ab-slot0"]);
        assert_eq!(
            host(0, 2, 4).orphans(&ab(None), &all),
            ["ab-rank4", "ab-rank6"],
            "slot 0 is there, and rank 6 is on another host now"
        );
    }

    #[test]
    fn what_may_be_removed_is_of_the_same_slot_or_of_nobody() {
        let all = names(&[
            "ab-slot0", "ab-slot2", "cd-slot0", "cd-slot1", "cd-slot2", "cd-rank1",
        ]);
        let removable = |host: HostSlot| -> Vec<&String> {
            let may = |name: &&String| host.may_remove(name, &ab(None), &all);
            all.iter().filter(may).collect()
        };
        assert_eq!(
            removable(host(0, 2, 0)),
            ["ab-slot2", "cd-slot0", "cd-slot2", "cd-rank1"]
        );
        assert_eq!(removable(host(1, 2, 1)), ["cd-slot1", "cd-rank1"]);
    }
}
