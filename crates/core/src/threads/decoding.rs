//! How fast samples are decoded by how many threads: measured, then looked up. Decoding is bound by memory beyond some
//! number of threads, so more of them are of no use and may even cost something; those are free to load.
//!
//! One curve for each class of sizes, linear between the numbers of threads that were measured and flat beyond them; a
//! sample is taken for one of the nearest class. Kept as text, a line a class:
//!
//! ```text
//! 110000 bytes: 1 = 95.5, 2 = 188, 6 = 420, 8 = 410
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::TextError;
use super::loading::Mean;
use crate::model::{Beyond, Curve};
use crate::units::{BYTES_PER_MB, Bytes, Pace, Rate, Seconds};

/// A number of threads that comes so close to the best is as good: measurements are no better than that.
const AT_PEAK: f64 = 0.99;

/// Samples of about this size were decoded by so many threads at such a rate, all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Mean size of the samples, as they are read.
    pub bytes: Bytes,
    /// How many threads decoded them.
    pub threads: u32,
    /// What all of them decoded.
    pub rate: Rate,
}

/// Numbers of threads beyond this are not told apart.
const THREADS_TOLD: u32 = 64;

/// Samples that were decoded while so many threads were at work, the latest count most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Latest {
    bytes: Mean,
    took_s: Mean,
}

/// What was measured so far, sample by sample, in as little as a model needs: by class of sizes and number of threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decodes(BTreeMap<(u32, u32), Latest>);

impl Decodes {
    /// A sample of this size was decoded in so long, while so many threads of the host were at work.
    pub fn note(&mut self, bytes: Bytes, threads: u32, took: Seconds) {
        let threads = threads.clamp(1, THREADS_TOLD);
        let latest = self.0.entry((class_number(bytes), threads)).or_default();
        latest.bytes.note(bytes.0 as f64);
        latest.took_s.note(took.0);
    }

    /// The model that this is enough for; none before anything was decoded.
    pub fn fit(&self) -> Option<Decoding> {
        let measured = self.0.iter().filter_map(|(&(class, threads), latest)| {
            let bytes = latest.bytes.get()?;
            let rate = f64::from(threads) * bytes / latest.took_s.get()?;
            let mean = bytes.round() as u64;
            Some(Measured {
                bytes: Bytes(mean.clamp(1 << class, (2 << class) - 1)),
                threads,
                rate: Rate(rate / BYTES_PER_MB),
            })
        });
        Decoding::fit(&measured.collect::<Vec<_>>())
    }
}

/// Sizes within a factor of two are a class.
pub(super) fn class_number(bytes: Bytes) -> u32 {
    bytes.0.max(1).ilog2()
}

/// Samples of similar sizes.
#[derive(Clone, Debug, PartialEq)]
struct Class {
    bytes: Bytes,
    rate: Curve,
}

/// What threads decode, by the size of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// By size, smallest first; never empty.
    classes: Vec<Class>,
}

impl Decoding {
    /// Puts measurements together: sizes within a factor of two are a class, and what was measured more than once for the
    /// same number of threads counts by its mean. None where nothing was measured, or nothing that can be.
    pub fn fit(measured: &[Measured]) -> Option<Self> {
        let is_real =
            |one: &&Measured| one.threads > 0 && one.rate.0 > 0.0 && one.rate.0.is_finite();
        let mut all: Vec<Measured> = measured.iter().filter(is_real).copied().collect();
        all.sort_by_key(|one| (class_number(one.bytes), one.threads));
        let same_class =
            |a: &Measured, b: &Measured| class_number(a.bytes) == class_number(b.bytes);
        let classes: Option<Vec<Class>> = all.chunk_by(same_class).map(class_of).collect();
        classes
            .filter(|classes| !classes.is_empty())
            .map(|classes| Self { classes })
    }

    /// The same for samples of every size: each thread decodes this much, as many as there are cores.
    ///
    /// # Panics
    /// If the rate is not a positive number.
    pub fn per_thread(rate: Rate, cores: u32) -> Self {
        let cores = cores.max(1);
        let mut points = vec![(1, rate.0)];
        if cores > 1 {
            points.push((cores, rate.0 * f64::from(cores)));
        }
        let rate = Curve::new(points, Beyond::Clamp).expect("a thread decodes something");
        let bytes = Bytes(0);
        Self {
            classes: vec![Class { bytes, rate }],
        }
    }

    /// What so many threads decode of samples of this size.
    pub fn rate(&self, bytes: Bytes, threads: u32) -> Rate {
        self.class(bytes).rate.at(threads.max(1))
    }

    /// A byte of such a sample, for one of so many ranks that share so many threads evenly.
    pub fn pace(&self, bytes: Bytes, threads: u32, ranks: u32) -> Pace {
        self.rate(bytes, threads).shared_by(ranks).pace()
    }

    /// The fewest threads that decode samples of this size as fast as any number does.
    pub fn peak_threads(&self, bytes: Bytes) -> u32 {
        let rate = &self.class(bytes).rate;
        let rates = rate.points().iter().map(|&(_, rate)| rate);
        let peak = rates.fold(0.0, f64::max);
        // The peak is at a point, as the curve is linear between them.
        let last = rate.points().last().map_or(1, |&(threads, _)| threads);
        let reaches = |threads: &u32| rate.at(*threads).0 >= AT_PEAK * peak;
        (1..=last).find(reaches).unwrap_or(last)
    }

    fn class(&self, bytes: Bytes) -> &Class {
        let above = self.classes.partition_point(|class| class.bytes < bytes);
        let last = self.classes.len() - 1;
        let upper = &self.classes[above.min(last)];
        let lower = &self.classes[above.saturating_sub(1)];
        if bytes.0.abs_diff(lower.bytes.0) <= upper.bytes.0.abs_diff(bytes.0) {
            lower
        } else {
            upper
        }
    }
}

/// One class, by threads; none if a rate is no rate.
fn class_of(measured: &[Measured]) -> Option<Class> {
    let same_threads = |a: &Measured, b: &Measured| a.threads == b.threads;
    let points = measured.chunk_by(same_threads).map(|same| {
        let sum: f64 = same.iter().map(|one| one.rate.0).sum();
        (same[0].threads, sum / same.len() as f64)
    });
    let sum: u64 = measured.iter().map(|one| one.bytes.0).sum();
    Some(Class {
        bytes: Bytes(sum / measured.len() as u64),
        rate: Curve::new(points.collect(), Beyond::Clamp).ok()?,
    })
}

impl fmt::Display for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Class { bytes, rate } in &self.classes {
            let points = rate.points().iter();
            let points: Vec<String> = points.map(|(n, rate)| format!("{n} = {rate}")).collect();
            writeln!(f, "{} bytes: {}", bytes.0, points.join(", "))?;
        }
        Ok(())
    }
}

impl FromStr for Decoding {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = |line| TextError {
            line,
            expected: "`SIZE bytes: THREADS = MB/s, ...`, sizes and threads rising",
        };
        let mut classes: Vec<Class> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let class = read_class(line).ok_or_else(|| wrong(number))?;
            let rises = classes.last().is_none_or(|last| last.bytes < class.bytes);
            if !rises {
                return Err(wrong(number));
            }
            classes.push(class);
        }
        if classes.is_empty() {
            return Err(wrong(1));
        }
        Ok(Self { classes })
    }
}

fn read_class(line: &str) -> Option<Class> {
    let (bytes, points) = line.split_once(" bytes: ")?;
    let point = |point: &str| {
        let (threads, rate) = point.split_once(" = ")?;
        let threads: u32 = threads.parse().ok().filter(|threads| *threads > 0)?;
        Some((threads, rate.parse().ok()?))
    };
    let points: Option<Vec<(u32, f64)>> = points.split(", ").map(point).collect();
    Some(Class {
        bytes: Bytes(bytes.parse().ok()?),
        rate: Curve::new(points?, Beyond::Clamp).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(bytes: u64, threads: u32, rate: f64) -> Measured {
        Measured {
            bytes: Bytes(bytes),
            threads,
            rate: Rate(rate),
        }
    }

    /// Small samples peak at 6 threads, large ones at 2.
    fn decoding() -> Decoding {
        let all = [
            measured(100_000, 8, 410.0),
            measured(100_000, 1, 90.0),
            measured(120_000, 1, 110.0),
            measured(100_000, 6, 420.0),
            measured(3_000_000, 1, 200.0),
            measured(3_000_000, 2, 300.0),
            measured(3_000_000, 4, 301.0),
            measured(3_000_000, 0, 1.0),
            measured(3_000_000, 3, f64::NAN),
        ];
        Decoding::fit(&all).unwrap()
    }

    #[test]
    fn measurements_of_a_class_are_put_together_and_the_nearest_class_is_used() {
        let decoding = decoding();
        assert_eq!(decoding.rate(Bytes(1), 1), Rate(100.0));
        assert_eq!(decoding.rate(Bytes(100_000), 6), Rate(420.0));
        assert_eq!(decoding.rate(Bytes(2_900_000), 2), Rate(300.0));
        assert_eq!(decoding.rate(Bytes(1 << 40), 100), Rate(301.0));
        let half = decoding.pace(Bytes(2_900_000), 2, 2);
        assert!((half.0 - Rate(150.0).pace().0).abs() < 1e-18);
    }

    #[test]
    fn the_fewest_threads_at_the_peak_are_found() {
        let decoding = decoding();
        assert_eq!(decoding.peak_threads(Bytes(100_000)), 6);
        assert_eq!(decoding.peak_threads(Bytes(3_000_000)), 2);
        let even = Decoding::per_thread(Rate(50.0), 4);
        assert_eq!(even.peak_threads(Bytes(7)), 4);
        assert_eq!(even.rate(Bytes(7), 9), Rate(200.0));
    }

    #[test]
    fn what_was_measured_is_kept_as_text() {
        let decoding = decoding();
        let text = decoding.to_string();
        assert_eq!(text.parse(), Ok(decoding));
        assert!(text.starts_with("105000 bytes: 1 = 100, 6 = 420, 8 = 410\n"));
        let changed = format!("{text}5 bytes: 1 = 3\n");
        let error = changed.parse::<Decoding>().unwrap_err();
        assert_eq!(error.line, 3, "classes rise");
        for broken in [
            "",
            "5 bytes:",
            "5 bytes: 1 = -1",
            "5 bytes: 0 = 1",
            "5 bytes: 2 = 1, 1 = 2",
        ] {
            assert!(broken.parse::<Decoding>().is_err(), "{broken}");
        }
    }

    #[test]
    fn samples_come_to_a_model_one_by_one_and_the_latest_count_most() {
        let mut decodes = Decodes::default();
        assert_eq!(decodes.fit(), None);
        for _ in 0..10 {
            decodes.note(Bytes(1 << 20), 1, Seconds(0.02));
            decodes.note(Bytes((1 << 20) + 200), 4, Seconds(0.04));
        }
        let decoding = decodes.fit().unwrap();
        assert_eq!(decoding.classes.len(), 1);
        let rate = |decoding: &Decoding, threads| decoding.rate(Bytes(1 << 20), threads).0;
        assert!((rate(&decoding, 1) - 52.4).abs() < 0.1);
        assert!((rate(&decoding, 4) - 104.9).abs() < 0.1);
        for _ in 0..500 {
            decodes.note(Bytes(1 << 20), 1, Seconds(0.01));
        }
        let later = decodes.fit().unwrap();
        assert!((rate(&later, 1) - 104.9).abs() < 0.1);
        decodes.note(Bytes(0), u32::MAX, Seconds(1.0));
        assert!(decodes.fit().is_some(), "an empty sample has no rate");
    }

    #[test]
    fn nothing_measured_is_no_model() {
        assert_eq!(Decoding::fit(&[]), None);
        assert_eq!(Decoding::fit(&[measured(5, 0, 1.0)]), None);
    }
}
