//! Re-deals a global batch so that ranks train on what they already hold (Yang & Cong). The set of samples of the
//! batch stays; only who trains on which changes. A rank first takes what it holds, up to its share; what nobody holds
//! fills the deficits; the surplus that is left moves by [`balance`], their Algorithm 1.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::homes::Homes;
use crate::ids::{Epoch, Position, Rank, SampleId, Step};
use crate::stream::{EpochOrder, Layout, Orders};

/// Samples that one rank passes to another so that all have their share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The rank with a surplus.
    pub from: Rank,
    /// The rank with a deficit.
    pub to: Rank,
    /// How many samples.
    pub count: u32,
}

/// Evens out `surplus` (negative: deficit; rank by rank) greedily, largest with largest: at most p - 1 transfers and
/// at most twice the fewest possible. What one side has more than the other stays where it is.
pub fn balance(surplus: &[i64]) -> Vec<Transfer> {
    let side = |sign: i64| -> BinaryHeap<(i64, Reverse<u32>)> {
        let ranks = surplus
            .iter()
            .enumerate()
            .filter(|&(_, &amount)| amount * sign > 0);
        ranks
            .map(|(rank, &amount)| (amount * sign, Reverse(rank as u32)))
            .collect()
    };
    let mut givers = side(1);
    let mut takers = side(-1);
    let mut transfers = Vec::with_capacity(surplus.len().saturating_sub(1));
    while let (Some((have, from)), Some((want, to))) = (givers.pop(), takers.pop()) {
        let count = have.min(want);
        transfers.push(Transfer {
            from: Rank(from.0),
            to: Rank(to.0),
            count: count as u32,
        });
        if have > count {
            givers.push((have - count, from));
        }
        if want > count {
            takers.push((want - count, to));
        }
    }
    transfers
}

/// Re-deals batches of one world; keeps its work space between calls.
#[derive(Debug)]
pub struct Redealer {
    held: Vec<Vec<SampleId>>,
    unheld: Vec<SampleId>,
    surplus: Vec<i64>,
}

impl Redealer {
    /// For a world of `ranks` ranks.
    pub fn new(ranks: u32) -> Self {
        let ranks = ranks as usize;
        Self {
            held: vec![Vec::new(); ranks],
            unheld: Vec::new(),
            surplus: vec![0; ranks],
        }
    }

    /// Reorders `batch` so that its first `shares[0]` samples are rank 0's, the next `shares[1]` rank 1's and so on,
    /// and returns how many samples go to a rank that does not hold them though another does.
    ///
    /// # Panics
    /// If the shares do not add up to the batch.
    pub fn redeal(
        &mut self,
        batch: &mut [SampleId],
        shares: &[u32],
        holder: impl Fn(SampleId) -> Option<Rank>,
    ) -> u32 {
        assert_eq!(
            shares.iter().map(|&share| share as usize).sum::<usize>(),
            batch.len(),
            "shares make up the batch"
        );
        self.sort_by_holder(batch, holder);
        self.place_unheld(shares);
        let mut moved = 0;
        for (rank, held) in self.held.iter().enumerate() {
            self.surplus[rank] = i64::from(held.len() as u32) - i64::from(shares[rank]);
        }
        for transfer in balance(&self.surplus) {
            moved += transfer.count;
            let from = &mut self.held[transfer.from.index()];
            let passed = from.split_off(from.len() - transfer.count as usize);
            self.held[transfer.to.index()].extend(passed);
        }
        let mut place = batch.iter_mut();
        for sample in self.held.iter().flatten() {
            if let Some(slot) = place.next() {
                *slot = *sample;
            }
        }
        moved
    }

    fn sort_by_holder(&mut self, batch: &[SampleId], holder: impl Fn(SampleId) -> Option<Rank>) {
        self.held.iter_mut().for_each(Vec::clear);
        self.unheld.clear();
        for &sample in batch {
            match holder(sample) {
                Some(rank) => self.held[rank.index()].push(sample),
                None => self.unheld.push(sample),
            }
        }
    }

    /// Gives what nobody holds to ranks below their share.
    fn place_unheld(&mut self, shares: &[u32]) {
        for (held, &share) in self.held.iter_mut().zip(shares) {
            let room = (share as usize)
                .saturating_sub(held.len())
                .min(self.unheld.len());
            held.extend(self.unheld.drain(self.unheld.len() - room..));
        }
        debug_assert!(
            self.unheld.is_empty(),
            "deficits are at least as many as samples that nobody holds"
        );
    }
}

/// The orders with every global batch re-dealt by holder. Padding repeats samples of other batches and stays as it
/// is dealt.
pub fn local(orders: &Orders, layout: &Layout, homes: &Arc<Homes>) -> Orders {
    let layout = layout.clone();
    let homes = Arc::clone(homes);
    let samples = orders.samples();
    orders.rewritten(move |_: Epoch, order: &EpochOrder| {
        let mut forward: Vec<SampleId> = (0..order.len())
            .map(|position| order.sample(Position(position)))
            .collect();
        let mut redealer = Redealer::new(layout.world());
        let mut batch = Vec::new();
        let mut slots = Vec::new();
        let mut shares = Vec::new();
        for step in (0..layout.steps()).map(Step) {
            batch.clear();
            slots.clear();
            shares.clear();
            for rank in (0..layout.world()).map(Rank) {
                let dealt =
                    (0..layout.local_len(rank, step)).map(|index| layout.dealt(rank, step, index));
                let before = slots.len();
                slots.extend(
                    dealt
                        .filter(|dealt| !dealt.padded)
                        .map(|dealt| dealt.position.0 as usize),
                );
                shares.push((slots.len() - before) as u32);
            }
            batch.extend(slots.iter().map(|&slot| forward[slot]));
            redealer.redeal(&mut batch, &shares, |sample| {
                homes.get(sample).map(|home| home.rank)
            });
            for (&slot, &sample) in slots.iter().zip(&batch) {
                forward[slot] = sample;
            }
        }
        EpochOrder::from_samples(forward, samples)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The fewest transfers that even out `surplus`, by trying all: p minus the largest number of disjoint subsets
    /// that add up to zero, found over all subsets.
    fn fewest_transfers(surplus: &[i64]) -> usize {
        let uneven: Vec<i64> = surplus.iter().copied().filter(|&s| s != 0).collect();
        let sets = 1usize << uneven.len();
        let mut groups = vec![0usize; sets];
        for set in 1..sets {
            let sum: i64 = (0..uneven.len())
                .filter(|bit| set >> bit & 1 == 1)
                .map(|bit| uneven[bit])
                .sum();
            let best = (0..uneven.len())
                .filter(|bit| set >> bit & 1 == 1)
                .map(|bit| groups[set & !(1 << bit)])
                .max();
            groups[set] = best.unwrap_or(0) + usize::from(sum == 0);
        }
        uneven.len() - groups[sets - 1]
    }

    fn even_surplus() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(-6i64..=6, 1..9).prop_map(|mut surplus| {
            let sum: i64 = surplus.iter().sum();
            surplus.push(-sum);
            surplus
        })
    }

    proptest! {
        #[test]
        fn balance_evens_out_with_few_messages(surplus in even_surplus()) {
            let transfers = balance(&surplus);
            let mut after = surplus.clone();
            for transfer in &transfers {
                after[transfer.from.index()] -= i64::from(transfer.count);
                after[transfer.to.index()] += i64::from(transfer.count);
            }
            prop_assert!(after.iter().all(|&left| left == 0));
            prop_assert!(transfers.len() < surplus.len(), "{} transfers", transfers.len());
            prop_assert!(transfers.len() <= 2 * fewest_transfers(&surplus));
            let moved: i64 = transfers.iter().map(|t| i64::from(t.count)).sum();
            prop_assert_eq!(moved, surplus.iter().filter(|&&s| s > 0).sum::<i64>());
        }

        #[test]
        fn redealing_keeps_the_set_and_the_shares(
            holders in prop::collection::vec(prop::option::of(0u32..5), 1..80),
        ) {
            let mut batch: Vec<SampleId> = (0..holders.len() as u32).map(SampleId).collect();
            let shares: Vec<u32> = (0..5).map(|r| (holders.len() as u32 * (r + 1)) / 5 - (holders.len() as u32 * r) / 5).collect();
            let holder = |s: SampleId| holders[s.index()].map(Rank);
            let moved = Redealer::new(5).redeal(&mut batch, &shares, holder);
            let mut sorted = batch.clone();
            sorted.sort();
            prop_assert_eq!(sorted, (0..holders.len() as u32).map(SampleId).collect::<Vec<_>>());
            let mut at = 0;
            let mut elsewhere = 0;
            for (rank, &share) in shares.iter().enumerate() {
                let mine = &batch[at..at + share as usize];
                elsewhere += mine.iter().filter(|&&s| holder(s).is_some_and(|h| h.index() != rank)).count();
                at += share as usize;
            }
            prop_assert_eq!(elsewhere as u32, moved);
            let held = |rank: usize| holders.iter().filter(|h| **h == Some(rank as u32)).count();
            let surplus: usize = shares.iter().enumerate().map(|(r, &share)| held(r).saturating_sub(share as usize)).sum();
            prop_assert_eq!(elsewhere, surplus, "only a surplus moves");
        }
    }

    #[test]
    fn the_papers_example_moves_two_of_twelve() {
        // Red holds 2, Green 6, Blue 4 of 12 samples: Green passes two to Red.
        assert_eq!(
            balance(&[-2, 2, 0]),
            [Transfer {
                from: Rank(1),
                to: Rank(0),
                count: 2
            }]
        );
    }
}
