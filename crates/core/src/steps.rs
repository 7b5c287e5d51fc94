//! Steps of ranks that train together, counted the same way by the simulator and the loader: how long they took, in which of
//! them some rank was late while another was not, who that was, and which samples were there before they were used.
//!
//! A step is imbalanced if one rank waits for its data for more than a tenth of a step of training, and another does not: with
//! the same data in other hands, or other threads on it, it would have been shorter.

use std::collections::BTreeMap;

use crate::model::Origin;
use crate::units::Seconds;

/// Who waits for a larger part of a step of training than this is late.
const LATE: f64 = 0.1;

/// Steps as they went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    number: u64,
    imbalanced: u64,
    /// By rank: steps in which it was late while another was not.
    late: Vec<u64>,
    times: Spread,
    /// All of them added up: how long they took, and training alone.
    took: Seconds,
    trained: Seconds,
}

/// Whether a rank that waits for its data for so long is late, where training alone takes so long.
pub fn is_late(waited: Seconds, train: Seconds) -> bool {
    waited.0 > train.0 * LATE
}

impl Steps {
    /// A step that took so long. `train` is how long training alone takes, at the rank where that is shortest; `waited`
    /// how long each rank waited for its own data. True where the step was imbalanced.
    pub fn note(&mut self, took: Seconds, train: Seconds, waited: &[Seconds]) -> bool {
        self.number += 1;
        self.times.note(took);
        self.took += took;
        self.trained += train;
        let late = waited.iter().filter(|waited| is_late(**waited, train));
        let late = late.count();
        if late == 0 || late == waited.len() {
            return false;
        }
        self.imbalanced += 1;
        self.late.resize(waited.len().max(self.late.len()), 0);
        for (times, waited) in self.late.iter_mut().zip(waited) {
            *times += u64::from(is_late(*waited, train));
        }
        true
    }

    /// How many there were.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The part of them that was imbalanced; none where there were none.
    pub fn imbalanced(&self) -> Option<f64> {
        (self.number > 0).then(|| self.imbalanced as f64 / self.number as f64)
    }

    /// By rank: steps in which it was late while another was not; empty where there was none.
    pub fn late(&self) -> &[u64] {
        &self.late
    }

    /// The part of their time in which the trainers had what they needed; none where there were none.
    pub fn utilisation(&self) -> Option<f64> {
        (self.took.0 > 0.0).then(|| (self.trained.0 / self.took.0).min(1.0))
    }

    /// How many took how long, from the shortest to the longest: up to so long each, in so many groups at most.
    pub fn histogram(&self, groups: usize) -> Vec<(f64, u64)> {
        self.times.groups(groups)
    }

    /// How long they took: half of them at most `p50`, and so on up to `max`; nothing where there were none.
    pub fn quantiles(&self) -> BTreeMap<String, f64> {
        let parts = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)];
        let quantiles = parts.into_iter().filter_map(|(name, part)| {
            let time = self.times.quantile(part)?;
            Some((name.to_owned(), time.0))
        });
        quantiles.collect()
    }
}

/// Samples that were used, and how many of them were in some tier by then, brought in for this use or kept from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    all: u64,
    hits: u64,
}

impl Uses {
    /// A sample was used that came from here.
    #[inline]
    pub fn note(&mut self, origin: Origin) {
        self.all += 1;
        self.hits += u64::from(origin != Origin::Source);
    }

    /// Adds another rank's.
    pub fn merge(&mut self, other: Self) {
        self.all += other.all;
        self.hits += other.hits;
    }

    /// The part that was there; none where nothing was used.
    pub fn hit_ratio(self) -> Option<f64> {
        (self.all > 0).then(|| self.hits as f64 / self.all as f64)
    }
}

/// Neighbouring buckets of a [`Spread`] are apart by this factor: what it tells is off by a hundredth at most.
const BUCKET: f64 = 1.02;

/// What is shorter than this counts as this long.
const SHORTEST_S: f64 = 1e-7;

/// Longer than 10^9 s is as long as that.
const BUCKETS_MAX: usize = 1900;

/// How often times of which length occurred. Needs a few kilobytes, however many there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    buckets: Vec<u64>,
    number: u64,
    most: f64,
}

impl Spread {
    /// Another one.
    pub fn note(&mut self, time: Seconds) {
        let ratio = (time.0 / SHORTEST_S).max(1.0);
        let bucket = ((ratio.ln() / BUCKET.ln()).round() as usize).min(BUCKETS_MAX);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.number += 1;
        self.most = self.most.max(time.0);
    }

    /// Neighbouring times put together, in so many groups at most that are apart by the same factor: up to how long, and how
    /// many.
    pub fn groups(&self, most: usize) -> Vec<(f64, u64)> {
        let Some(first) = self.buckets.iter().position(|count| *count > 0) else {
            return Vec::new();
        };
        let there = &self.buckets[first..];
        let width = there.len().div_ceil(most.max(1));
        let groups = there.chunks(width).enumerate();
        let group = |(at, counts): (usize, &[u64])| {
            let last = first + at * width + counts.len() - 1;
            // Up to the middle between two buckets.
            let up_to = SHORTEST_S * BUCKET.powf(last as f64 + 0.5);
            (up_to.min(self.most), counts.iter().sum())
        };
        groups.map(group).collect()
    }

    /// How long at most this part of them took; none where there are none.
    pub fn quantile(&self, part: f64) -> Option<Seconds> {
        if part >= 1.0 && self.number > 0 {
            return Some(Seconds(self.most));
        }
        let rank = ((self.number as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let time = SHORTEST_S * BUCKET.powf(bucket as f64);
        Some(Seconds(time.min(self.most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TierId;

    fn waited<const N: usize>(times: [f64; N]) -> [Seconds; N] {
        times.map(Seconds)
    }

    #[test]
    fn a_step_is_imbalanced_if_one_rank_is_late_and_another_is_not() {
        let mut steps = Steps::default();
        assert_eq!(steps.imbalanced(), None);
        let train = Seconds(1.0);
        let balanced = [
            steps.note(Seconds(1.0), train, &waited([0.0, 0.1, 0.05])),
            steps.note(Seconds(2.0), train, &waited([0.2, 0.9, 0.3])),
        ];
        assert_eq!(balanced, [false; 2]);
        assert_eq!(
            steps.imbalanced(),
            Some(0.0),
            "nobody or everybody was late"
        );
        assert!(steps.note(Seconds(1.2), train, &waited([0.2, 0.0, 0.0])));
        assert!(steps.note(Seconds(1.2), train, &waited([0.2, 0.11, 0.0])));
        assert_eq!(steps.imbalanced(), Some(0.5));
        assert_eq!(steps.late(), [2, 1, 0]);
        assert_eq!(steps.number(), 4);
        let used = steps.utilisation().unwrap();
        assert!((used - 4.0 / 5.4).abs() < 1e-9, "{used}");
        let quantiles = steps.quantiles();
        assert!((quantiles["max"] - 2.0).abs() < 1e-9);
        assert!(
            (quantiles["p50"] / 1.2 - 1.0).abs() < 0.011,
            "{quantiles:?}"
        );
    }

    #[test]
    fn a_spread_tells_quantiles_within_a_hundredth() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantile(0.5), None);
        for thousandth in 1..=1000 {
            spread.note(Seconds(f64::from(thousandth) * 1e-3));
        }
        for part in [0.05, 0.5, 0.95, 0.99, 1.0] {
            let time = spread.quantile(part).unwrap().0;
            assert!((time / part - 1.0).abs() < 0.011, "{part}: {time}");
        }
        let groups = spread.groups(8);
        assert!(groups.len() <= 8 && groups.is_sorted_by_key(|group| group.0));
        assert_eq!(groups.iter().map(|group| group.1).sum::<u64>(), 1000);
        assert_eq!(groups.last().map(|group| group.0), Some(1.0));
        assert_eq!(Spread::default().groups(8), []);
        spread.note(Seconds(0.0));
        spread.note(Seconds(1e30));
        assert_eq!(spread.quantile(1.0), Some(Seconds(1e30)));
    }

    #[test]
    fn a_hit_is_whatever_was_not_at_the_source_any_more() {
        let mut uses = Uses::default();
        assert_eq!(uses.hit_ratio(), None);
        uses.note(Origin::Source);
        uses.note(Origin::Tier(TierId(1)));
        let mut all = uses;
        all.merge(uses);
        assert_eq!(all.hit_ratio(), Some(0.5));
    }
}
