//! Nodes of a machine: groups of processors, each with memory of its own that the others reach more slowly. A thread that goes
//! from one to another leaves its memory behind, so a loader thread stays on one.
//!
//! Ranks of a host are spread over its nodes in their order, as launchers bind them: the first ones on the first node. A rank
//! that has several nodes spreads its threads over them. Processors that this process may not run on are left out; where that
//! leaves one node, nothing is done.

use super::cpus;

/// Where a rank is among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    pub(crate) slots: u32,
}

impl Default for Place {
    /// Alone.
    fn default() -> Self {
        Self { slot: 0, slots: 1 }
    }
}

/// Processors by node, those that may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(Vec<Vec<u32>>);

impl Nodes {
    /// Of the kernel's lists of processors, by node in their order, and the list of those that may be used.
    pub(super) fn of<'a>(lists: impl IntoIterator<Item = &'a str>, allowed: &str) -> Self {
        let allowed = cpus::list(allowed).unwrap_or_default();
        let usable = |list: &str| -> Vec<u32> {
            let all = cpus::list(list).unwrap_or_default();
            all.into_iter()
                .filter(|cpu| allowed.contains(cpu))
                .collect()
        };
        let nodes = lists.into_iter().map(usable);
        Self(nodes.filter(|cpus| !cpus.is_empty()).collect())
    }

    /// The processors that a rank's thread of this number stays on; none where there is nothing to choose.
    pub(crate) fn of_thread(&self, place: Place, thread: usize) -> Option<&[u32]> {
        let nodes = self.0.len();
        if nodes < 2 {
            return None;
        }
        let slots = place.slots.max(1) as usize;
        let slot = (place.slot as usize).min(slots - 1);
        let first = slot * nodes / slots;
        let own = ((slot + 1) * nodes / slots - first).max(1);
        self.0.get(first + thread % own).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(nodes: &Nodes, slot: u32, slots: u32) -> Vec<u32> {
        let place = Place { slot, slots };
        let of_thread = |thread| nodes.of_thread(place, thread).expect("several nodes")[0];
        (0..4).map(of_thread).collect()
    }

    #[test]
    fn ranks_are_spread_over_nodes_and_threads_of_a_rank_over_its_own() {
        let nodes = Nodes::of(["0-3,16-19", "4-7,20-23"], "0-31");
        assert_eq!(chosen(&nodes, 0, 1), [0, 4, 0, 4]);
        assert_eq!(chosen(&nodes, 0, 2), [0; 4]);
        assert_eq!(chosen(&nodes, 1, 2), [4; 4]);
        let by_rank = [0, 1, 2, 3].map(|slot| chosen(&nodes, slot, 4)[0]);
        assert_eq!(by_rank, [0, 0, 4, 4]);
        let whole = nodes.of_thread(Place { slot: 1, slots: 2 }, 0);
        assert_eq!(whole, Some(&[4, 5, 6, 7, 20, 21, 22, 23][..]));
        let four = Nodes::of(["0", "1", "2", "3"], "0-3");
        assert_eq!(chosen(&four, 1, 2), [2, 3, 2, 3]);
        assert_eq!(chosen(&four, 2, 3), [2, 3, 2, 3]);
        assert_eq!(chosen(&four, 9, 3), [2, 3, 2, 3], "a place that is none");
    }

    #[test]
    fn nothing_is_chosen_on_one_node_nor_for_a_process_that_is_bound_to_one() {
        let place = Place::default();
        assert_eq!(Nodes::of(["0-7"], "0-7").of_thread(place, 0), None);
        assert_eq!(Nodes::of(["0-3", "4-7"], "4-5").of_thread(place, 0), None);
        assert_eq!(Nodes::default().of_thread(place, 0), None);
        let memory_only = Nodes::of(["0-3", "\n"], "0-3");
        assert_eq!(
            memory_only.of_thread(place, 0),
            None,
            "a node without processors"
        );
        assert_eq!(Nodes::of(["0-3", "4-7"], "?").of_thread(place, 0), None);
    }
}
