//! Whose a sub-folder is. Each dataset has one for each slot of a host: the place of a rank among those of its host, which
//! another numbering of ranks does not change, and another number of them hardly. This file gives them names, opens the one
//! of a rank, and says which nobody uses any more:
//!
//! - A slot that another process has is left to it: the next one behind those of the ranks is taken.
//! - Slots behind those of the ranks are orphans, left by more ranks. The host's first rank adopts what they hold.
//! - Earlier versions named folders by rank. A rank gives its own the name of its slot; others are orphans.

use std::sync::Arc;

use foresee_config::{OneLine, shown};
use foresee_core::digest::Digest;

use super::folder;
use super::{DiskError, DiskSpec, DiskTier, DiskView, OpenDisks};

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

impl HostSlot {
    /// Whether a sub-folder of the same dataset belongs to no rank any more; `names` are all that there are.
    fn is_orphan(self, owner: Owner, dataset: &str, names: &[String]) -> bool {
        match owner {
            Owner::Slot(slot) => slot >= self.slots,
            // A rank of this host may be about to rename it.
            Owner::Rank(rank) => {
                let first = self.rank.saturating_sub(self.slot);
                let place = rank.checked_sub(first);
                let heir = place.filter(|place| *place < self.slots);
                heir.is_none_or(|slot| names.contains(&slot_name(dataset, slot)))
            }
        }
    }

    /// The sub-folders whose samples this rank is to adopt.
    fn orphans(self, dataset: &str, names: &[String]) -> Vec<String> {
        if self.slot > 0 {
            return Vec::new();
        }
        let is_orphan = |name: &&String| {
            owner(name)
                .is_some_and(|(of, owner)| of == dataset && self.is_orphan(owner, dataset, names))
        };
        names.iter().filter(is_orphan).cloned().collect()
    }

    /// Whether a sub-folder that nobody uses may be removed by this rank when space is needed.
    fn may_remove(self, name: &str, dataset: &str, names: &[String]) -> bool {
        let Some((of, owner)) = owner(name) else {
            return false;
        };
        let is_first = self.slot == 0;
        if of == dataset {
            return is_first && self.is_orphan(owner, dataset, names);
        }
        match owner {
            Owner::Slot(slot) => slot == self.slot || (is_first && slot >= self.slots),
            Owner::Rank(rank) => rank == self.rank || is_first,
        }
    }
}

/// The name of a dataset's sub-folder for a slot.
fn slot_name(dataset: &str, slot: u32) -> String {
    format!("{dataset}-slot{slot}")
}

/// Which dataset and whose a sub-folder is, by its name.
fn owner(name: &str) -> Option<(&str, Owner)> {
    let (dataset, owner) = name.rsplit_once('-')?;
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let slot = owner.strip_prefix("slot").and_then(number).map(Owner::Slot);
    let rank = || owner.strip_prefix("rank").and_then(number).map(Owner::Rank);
    Some((dataset, slot.or_else(rank)?))
}

impl OpenDisks {
    /// Opens a dataset's tier of a slot, with what orphans hold if it is the first one; `spec` says all but the
    /// sub-folder. Where another process has the slot, the next free one behind those of the ranks is taken. Sub-folders
    /// that nobody uses make way if there is not enough space.
    pub fn open_slot(
        self: &Arc<Self>,
        spec: &DiskSpec,
        host: HostSlot,
    ) -> Result<DiskView, DiskError> {
        let dataset = Digest(spec.dataset).to_string();
        let folder = spec.folder();
        let own = slot_name(&dataset, host.slot);
        folder::rename(&folder, &format!("{dataset}-rank{}", host.rank), &own);
        let names = folder::names(&folder);
        let spec = DiskSpec {
            name: own,
            orphans: host.orphans(&dataset, &names),
            ..spec.clone()
        };
        let view = match self.open(&spec) {
            Err(refused @ DiskError::InUse { .. }) => {
                let view = self.open_spare(&spec, host.slots, &dataset);
                view?.ok_or(refused)?
            }
            opened => opened?,
        };
        make_space(&spec, host, &dataset, &view);
        Ok(view)
    }

    /// Opens the first slot behind those of the ranks that no other process has, if there is one.
    fn open_spare(
        self: &Arc<Self>,
        spec: &DiskSpec,
        slots: u32,
        dataset: &str,
    ) -> Result<Option<DiskView>, DiskError> {
        for slot in (slots..).take(TRIES_MAX as usize) {
            let spare = DiskSpec {
                name: slot_name(dataset, slot),
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

/// Removes what nobody uses, where there is less space than the tier may need: it stays as long as there is enough for all.
fn make_space(spec: &DiskSpec, host: HostSlot, dataset: &str, view: &DiskView) {
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
    match folder::remove_stale(&folder, |name| host.may_remove(name, dataset, &names)) {
        Ok(removed) => {
            for old in removed {
                let folder = shown(&spec.folder);
                tracing::warn!("{folder}: removed {}, which nobody used", OneLine(old));
            }
        }
        Err(error) => tracing::warn!("{error}"),
    }
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

    #[test]
    fn names_tell_whose_a_folder_is() {
        assert_eq!(owner("ab-slot3"), Some(("ab", Owner::Slot(3))));
        assert_eq!(owner("ab-rank12"), Some(("ab", Owner::Rank(12))));
        assert_eq!(owner(&slot_name("ab", 7)), Some(("ab", Owner::Slot(7))));
        for other in [
            "ab",
            "ab-slot",
            "ab-slot-1",
            "ab-slot+1",
            "ab-3",
            ".foresee",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn the_first_rank_adopts_the_slots_behind_those_of_the_ranks() {
        let all = names(&[
            "ab-slot0", "ab-slot1", "ab-slot2", "ab-slot3", "cd-slot3", "mine",
        ]);
        assert_eq!(host(0, 2, 0).orphans("ab", &all), ["ab-slot2", "ab-slot3"]);
        assert!(host(0, 4, 8).orphans("ab", &all).is_empty());
        assert!(host(1, 2, 1).orphans("ab", &all).is_empty());
    }

    #[test]
    fn folders_of_ranks_that_will_rename_them_are_no_orphans() {
        let all = names(&["ab-rank4", "ab-rank5", "ab-rank6", "ab-slot0"]);
        assert_eq!(
            host(0, 2, 4).orphans("ab", &all),
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
            let may = |name: &&String| host.may_remove(name, "ab", &all);
            all.iter().filter(may).collect()
        };
        assert_eq!(
            removable(host(0, 2, 0)),
            ["ab-slot2", "cd-slot0", "cd-slot2", "cd-rank1"]
        );
        assert_eq!(removable(host(1, 2, 1)), ["cd-slot1", "cd-rank1"]);
    }
}
