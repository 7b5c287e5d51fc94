//! How often samples are used: by whom each is used most ([`Foresight::favourites`]), and how often one rank or host
//! uses each ([`Foresight::frequency`]).
//!
//! Favourites are found block by block: epoch after epoch the users of a block's samples are written into its rows,
//! one row a sample, then every row is counted with one counter a rank. That is one look per sample and epoch and a
//! scratch that stays in the cache, whatever the number of ranks.

use std::ops::Range;

use super::{By, Foresight};
use crate::ids::{Epoch, Rank, SampleId};

/// What the rows of a block take: well within a core's own cache, and wide enough that going through the epochs once a
/// block does not show (bench `favourites`).
const BLOCK_BYTES: u64 = 128 << 10;

/// The same for each sample of the catalog where not all tables are kept: every block makes them all anew, so blocks
/// are as large as memory in proportion to the samples allows.
const BLOCK_BYTES_PER_SAMPLE: u64 = 8;

/// A job of more epochs is one whose end nobody knows: nobody trains for so many.
const EPOCHS_KNOWN_MAX: u32 = 1 << 16;

/// Epochs of such a job that are looked at. Over many epochs all ranks use a sample about as often, so that who uses it
/// most in the first of them is as good a home as any.
const EPOCHS_LOOKED_AT: u32 = 128;

/// Accesses that are drawn before they are counted: the counts lie all over memory, and looks at them overlap.
const DRAWN_AHEAD: usize = 256;

/// Who uses a sample most often over the job, and how often. A sample that nobody uses has rank 0 with no uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Favourite {
    /// The rank; of several with as many uses the one that uses the sample first.
    pub rank: Rank,
    /// Its uses.
    pub uses: u32,
}

impl Foresight {
    /// For each sample of a range: who uses it most often over the job, or over its first epochs where its end is not
    /// known. Ranges are independent of each other, so ranks or threads can share the work.
    ///
    /// # Panics
    ///
    /// When the catalog ends before the range.
    pub fn favourites(&self, samples: Range<u32>) -> Vec<Favourite> {
        let known = self.job.epochs.orders().samples();
        assert!(
            samples.end <= known,
            "samples {samples:?} of a catalog of {known}"
        );
        let epochs = self.looked_at() as usize;
        let world = self.job.layout.world();
        let mut favourites = Vec::with_capacity(samples.len());
        if epochs == 0 {
            favourites.resize(
                samples.len(),
                Favourite {
                    rank: Rank(0),
                    uses: 0,
                },
            );
            return favourites;
        }
        let block_len = self.block_len().min(samples.len() as u64) as u32;
        let mut users = vec![Rank(0); block_len as usize * epochs];
        let mut counts = vec![0; world as usize + 1];
        for from in samples.clone().step_by(block_len.max(1) as usize) {
            let block = from..samples.end.min(from.saturating_add(block_len));
            let rows = &mut users[..block.len() * epochs];
            self.note_users(block, rows);
            favourites.extend(
                rows.chunks_exact(epochs)
                    .map(|row| most_frequent(row, &mut counts)),
            );
        }
        favourites
    }

    /// How often each sample of the catalog is used by a rank, by a host or by all over the whole job: one pass over
    /// their accesses. Every access counts, those that repeat a sample within an epoch (padding, lists) as well.
    pub fn frequency(&self, by: By) -> Vec<u32> {
        let job = &*self.job;
        let samples = job.epochs.orders().samples() as usize;
        if by == By::Anyone && job.epochs.orders().hold_each_once() && job.layout.deals_each_once()
        {
            return vec![job.epochs.count(); samples];
        }
        let mut frequency = vec![0; samples];
        let mut drawn = Vec::with_capacity(DRAWN_AHEAD);
        for epoch in (0..job.epochs.count()).map(Epoch) {
            job.epochs.with(epoch, |order| {
                for rank in self.ranks(by).iter() {
                    job.layout.each_dealt(rank, |dealt| {
                        drawn.push(order.sample(dealt.position));
                        if drawn.len() == DRAWN_AHEAD {
                            count(&mut drawn, &mut frequency);
                        }
                    });
                }
            });
        }
        count(&mut drawn, &mut frequency);
        frequency
    }

    /// What one call of [`Foresight::favourites`] for all samples takes beside its answer.
    pub(super) fn scratch_bytes(&self) -> u64 {
        let samples = u64::from(self.job.epochs.orders().samples());
        let users = self.block_len().min(samples) * u64::from(self.looked_at());
        (users + u64::from(self.job.layout.world()) + 1) * size_of::<u32>() as u64
    }

    /// Epochs that favourites are found by.
    fn looked_at(&self) -> u32 {
        match self.job.epochs.count() {
            known @ ..=EPOCHS_KNOWN_MAX => known,
            _ => EPOCHS_LOOKED_AT,
        }
    }

    /// Samples of a block: one at least, however many epochs there are.
    fn block_len(&self) -> u64 {
        let epochs = &self.job.epochs;
        let row_bytes = u64::from(self.looked_at().max(1)) * size_of::<Rank>() as u64;
        let large = BLOCK_BYTES_PER_SAMPLE * u64::from(epochs.orders().samples());
        let makes_tables_anew =
            epochs.orders().window_epochs().is_some() && epochs.kept() < self.looked_at();
        let block_bytes = if makes_tables_anew {
            BLOCK_BYTES.max(large)
        } else {
            BLOCK_BYTES
        };
        (block_bytes / row_bytes).max(1)
    }

    /// Writes a row for each sample: its user in each epoch, or the number of ranks where it has none.
    fn note_users(&self, samples: Range<u32>, rows: &mut [Rank]) {
        let epochs = &self.job.epochs;
        let layout = &self.job.layout;
        let nobody = Rank(layout.world());
        let looked_at = self.looked_at();
        for epoch in (0..looked_at).map(Epoch) {
            let mut cells = rows[epoch.index()..].iter_mut().step_by(looked_at as usize);
            epochs.with(epoch, |order| {
                order.each_position(samples.clone().map(SampleId), |position| {
                    let slot = position.and_then(|position| layout.slot(position));
                    if let Some(cell) = cells.next() {
                        *cell = slot.map_or(nobody, |slot| slot.rank);
                    }
                });
            });
        }
    }
}

/// The rank that comes most often in a row; of several the first. `counts` has one counter a rank and a last one for
/// nobody; all are zero before and after.
fn most_frequent(row: &[Rank], counts: &mut [u32]) -> Favourite {
    for user in row {
        counts[user.index()] += 1;
    }
    if let Some(unused) = counts.last_mut() {
        *unused = 0;
    }
    let mut favourite = Favourite {
        rank: Rank(0),
        uses: 0,
    };
    for &rank in row {
        // A counter is taken when its rank comes first; by its later uses it is zero and cannot win again.
        let uses = std::mem::take(&mut counts[rank.index()]);
        if uses > favourite.uses {
            favourite = Favourite { rank, uses };
        }
    }
    favourite
}

/// Counts what was drawn, and forgets it.
fn count(drawn: &mut Vec<SampleId>, frequency: &mut [u32]) {
    for sample in drawn.drain(..) {
        frequency[sample.index()] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Hosts;
    use crate::stream::{Deal, Layout, LayoutSpec, Orders, Shuffle, Tail};

    #[test]
    fn a_job_without_a_known_end_is_judged_by_its_first_epochs() {
        let favourites = |epochs| {
            let orders = Orders::new(Shuffle::Feistel { seed: 1 }, 40, epochs).unwrap();
            let layout = Layout::new(LayoutSpec {
                positions: 40,
                world: 4,
                global_batch: 8,
                deal: Deal::Blocked,
                tail: Tail::Pad,
                drop_last: false,
            });
            Foresight::new(orders, layout.unwrap(), Hosts::new(4, 1)).favourites(0..40)
        };
        assert_eq!(favourites(1 << 31), favourites(EPOCHS_LOOKED_AT));
    }

    #[test]
    fn of_equally_frequent_ranks_the_first_wins_and_counters_are_left_clean() {
        let mut counts = vec![0; 5];
        let mut favourite = |row: &[u32]| {
            let row: Vec<Rank> = row.iter().map(|&rank| Rank(rank)).collect();
            let Favourite { rank, uses } = most_frequent(&row, &mut counts);
            assert!(counts.iter().all(|&count| count == 0));
            (rank.0, uses)
        };
        assert_eq!(favourite(&[3, 1, 1, 3, 2]), (3, 2));
        assert_eq!(favourite(&[2, 1, 1, 3, 3]), (1, 2));
        assert_eq!(favourite(&[4, 4, 4, 0]), (0, 1), "4 is nobody");
        assert_eq!(favourite(&[4, 4]), (0, 0));
        assert_eq!(size_of::<Favourite>(), 8);
    }
}
