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
    /// For each sample of a range: who uses it most often over the job. Ranges are independent of each other, so ranks
    /// or threads can share the work.
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
        let (epochs, world) = (self.job.epochs.count() as usize, self.job.layout.world());
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
        let users = self.block_len().min(samples) * u64::from(self.job.epochs.count());
        (users + u64::from(self.job.layout.world()) + 1) * size_of::<u32>() as u64
    }

    /// Samples of a block: one at least, however many epochs there are.
    fn block_len(&self) -> u64 {
        let epochs = &self.job.epochs;
        let row_bytes = u64::from(epochs.count().max(1)) * size_of::<Rank>() as u64;
        let large = BLOCK_BYTES_PER_SAMPLE * u64::from(epochs.orders().samples());
        let makes_tables_anew =
            epochs.orders().window_epochs().is_some() && epochs.kept() < epochs.count();
        let block_bytes = if makes_tables_anew {
            BLOCK_BYTES.max(large)
        } else {
            BLOCK_BYTES
        };
        (block_bytes / row_bytes).max(1)
    }

    /// Writes a row for each sample: its user in each epoch, or the number of ranks where it has none.
    fn note_users(&self, samples: Range<u32>, rows: &mut [Rank]) {
        let (epochs, layout) = (&self.job.epochs, &self.job.layout);
        let nobody = Rank(layout.world());
        for epoch in (0..epochs.count()).map(Epoch) {
            let mut cells = rows[epoch.index()..]
                .iter_mut()
                .step_by(epochs.count() as usize);
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
