//! The papers' figures: how many samples are used how often (HDMLP), and how many steps pass until a sample is used
//! again on its host (Lobster).

use super::{By, Foresight, When};
use crate::ids::{Epoch, Host, SampleId};

/// Looks for one sample in one epoch that a histogram of reuse may take: a quarter of a second or so (bench
/// `reuse_histogram`). Jobs with fewer are counted whole.
const LOOKS_MAX: u64 = 1 << 23;

/// Steps to the next use, in bins of equal width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Width of a bin: bin k counts distances from `k * bin_steps` on, to the next bin.
    pub bin_steps: u64,
    /// Uses by distance to the next one.
    pub counts: Vec<u64>,
    /// Uses without a next one.
    pub never: u64,
}

impl Histogram {
    fn new(bins: usize) -> Self {
        Self {
            bin_steps: 1,
            counts: vec![0; bins],
            never: 0,
        }
    }

    /// Counts a distance; bins that are too narrow for it are doubled, so what comes out does not depend on the order.
    fn add(&mut self, distance: u64) {
        while distance / self.bin_steps >= self.counts.len() as u64 {
            self.bin_steps *= 2;
            for bin in 0..self.counts.len() {
                let pair = self.counts.iter().skip(2 * bin).take(2);
                self.counts[bin] = pair.sum();
            }
        }
        self.counts[(distance / self.bin_steps) as usize] += 1;
    }
}

impl Foresight {
    /// How many samples are used how often over the job by a rank, a host or all: pairs of uses and samples, fewest
    /// uses first, without those that no sample has.
    pub fn frequency_histogram(&self, by: By) -> Vec<(u32, u64)> {
        let frequency = self.frequency(by);
        let most = frequency.iter().max().map_or(0, |&most| most as usize + 1);
        let mut samples = vec![0; most];
        for uses in frequency {
            samples[uses as usize] += 1;
        }
        (0..)
            .zip(samples)
            .filter(|&(_, samples)| samples > 0)
            .collect()
    }

    /// Steps from each use on a host to the next one there. All uses of samples spread evenly over the catalog are
    /// counted, as many samples as bound the work; small jobs are counted whole. The bins are the narrowest of
    /// 1, 2, 4 ... steps that cover what occurs.
    ///
    /// # Panics
    ///
    /// When there is no bin.
    pub fn reuse_histogram(&self, host: Host, bins: usize) -> Histogram {
        assert!(bins > 0, "a histogram without bins");
        let epochs = &self.job.epochs;
        let ranks = self.ranks(By::Host(host));
        let samples = u64::from(epochs.orders().samples());
        let taken = (LOOKS_MAX / u64::from(epochs.count().max(1))).clamp(1, samples);
        let mut last_used: Vec<Option<u64>> = vec![None; taken as usize];
        let mut histogram = Histogram::new(bins);
        for epoch in (0..epochs.count()).map(Epoch) {
            let spread = (0..taken).map(|index| SampleId((index * samples / taken) as u32));
            let mut lasts = last_used.iter_mut();
            epochs.with(epoch, |order| {
                order.each_position(spread, |position| {
                    let last = lasts.next();
                    let slot = position.and_then(|position| self.job.layout.slot(position));
                    let (Some(slot), Some(last)) =
                        (slot.filter(|slot| ranks.contains(slot.rank)), last)
                    else {
                        return;
                    };
                    let now = self.job_step(When {
                        epoch,
                        step: slot.step,
                    });
                    if let Some(before) = last.replace(now) {
                        histogram.add(now - before);
                    }
                });
            });
        }
        histogram.never = last_used.iter().flatten().count() as u64;
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double_until_they_cover_whatever_the_order() {
        let distances = [0, 1, 2, 3, 5, 8, 13, 21, 34];
        for bins in 1..8 {
            let mut forth = Histogram::new(bins);
            let mut back = Histogram::new(bins);
            for (&distance, &from_end) in distances.iter().zip(distances.iter().rev()) {
                forth.add(distance);
                back.add(from_end);
            }
            assert_eq!(forth, back);
            assert_eq!(forth.counts.len(), bins);
            assert_eq!(forth.counts.iter().sum::<u64>(), 9);
            assert!(bins as u64 * forth.bin_steps > 34 && bins as u64 * forth.bin_steps / 2 <= 34);
            let from_second_bin = distances
                .iter()
                .filter(|&&distance| distance >= forth.bin_steps)
                .count() as u64;
            assert_eq!(forth.counts[1..].iter().sum::<u64>(), from_second_bin);
        }
    }
}
