//! A source that fails on purpose: which read fails, and how, follows from the seed, the sample and how often it was read
//! before, so that a run with faults can be repeated.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use twox_hash::XxHash3_64;

use super::{ReadError, Source, Speed};
use crate::dataset::Dataset;
use crate::stamp::Stamp;

/// What goes wrong, and how often: rates are between 0 (never) and 1 (in every read).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Another one makes other reads fail.
    pub seed: u64,
    /// Rate of errors that another try may not meet.
    pub transient: f64,
    /// Rate of samples found shorter than the catalog says.
    pub shrank: f64,
    /// Rate of samples found longer than the catalog says.
    pub grew: f64,
    /// Rate of late reads; they succeed unless something else is wrong.
    pub delayed: f64,
    /// How late they are.
    pub delay: Duration,
    /// Samples that can never be read.
    pub broken: BTreeSet<SampleId>,
}

/// Kinds of faults, each drawn on its own.
#[derive(Clone, Copy)]
enum Kind {
    Transient = 1,
    Shrank = 2,
    Grew = 3,
    Delayed = 4,
}

impl Faults {
    /// Whether this try of the sample meets this fault.
    fn meets(&self, kind: Kind, rate: f64, sample: SampleId, attempt: u32) -> bool {
        let mut drawn = [0; 12];
        drawn[..4].copy_from_slice(&sample.0.to_le_bytes());
        drawn[4..8].copy_from_slice(&attempt.to_le_bytes());
        drawn[8..].copy_from_slice(&(kind as u32).to_le_bytes());
        // The upper 53 bits: all that a number below 1 has room for.
        let uniform =
            (XxHash3_64::oneshot_with_seed(self.seed, &drawn) >> 11) as f64 / (1_u64 << 53) as f64;
        uniform < rate
    }

    /// The error that this try meets, if any.
    fn error(&self, sample: SampleId, attempt: u32, expected: Bytes) -> Option<ReadError> {
        if self.broken.contains(&sample) {
            let text = "injected fault: this sample cannot be read";
            return Some(ReadError::Io(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        if self.meets(Kind::Transient, self.transient, sample, attempt) {
            let text = format!("injected fault: try {attempt} failed");
            return Some(ReadError::Io(io::Error::other(text)));
        }
        if self.meets(Kind::Shrank, self.shrank, sample, attempt) {
            return Some(ReadError::Shrank {
                expected,
                found: Bytes(expected.0 / 2),
            });
        }
        self.meets(Kind::Grew, self.grew, sample, attempt)
            .then_some(ReadError::Grew { expected })
    }
}

/// A source with faults.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
    /// How often each sample was tried.
    tries: Mutex<HashMap<SampleId, u32>>,
    injected: AtomicU64,
}

impl<S: Source> Faulty<S> {
    /// `inner` with faults.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            tries: Mutex::default(),
            injected: AtomicU64::new(0),
        }
    }

    /// How many reads failed on purpose so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// The number of this try, from 0.
    fn attempt(&self, sample: SampleId) -> u32 {
        let mut tries = self.tries.lock().expect("no holder panics");
        let next = tries.entry(sample).or_default();
        *next += 1;
        *next - 1
    }
}

impl<S: Source> Source for Faulty<S> {
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        let attempt = self.attempt(sample);
        if self
            .faults
            .meets(Kind::Delayed, self.faults.delayed, sample, attempt)
        {
            thread::sleep(self.faults.delay);
        }
        if let Some(error) = self.faults.error(sample, attempt, Bytes(into.len() as u64)) {
            self.injected.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        self.inner.read(sample, into)
    }

    fn name(&self, sample: SampleId) -> String {
        self.inner.name(sample)
    }

    fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
        self.inner.look(sample)
    }

    fn speed(&self) -> Option<Speed> {
        self.inner.speed()
    }

    fn dataset(&self) -> Option<&Dataset> {
        self.inner.dataset()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::conformance;
    use crate::source::conformance::tests::InMemory;

    /// A caller that tries again.
    struct Retrying<S>(S);

    impl<S: Source> Source for Retrying<S> {
        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
            loop {
                match self.0.read(sample, into) {
                    Err(error) if error.is_transient() => {}
                    result => return result,
                }
            }
        }

        fn name(&self, sample: SampleId) -> String {
            self.0.name(sample)
        }
    }

    fn outcomes(faults: &Faults, samples: u32, tries: u32) -> Vec<String> {
        let source = Faulty::new(
            InMemory(vec![b"12345678".to_vec(); samples as usize]),
            faults.clone(),
        );
        let read = |sample| {
            source
                .read(SampleId(sample), &mut [0; 8])
                .map_or_else(|error| error.to_string(), |_| "read".into())
        };
        (0..tries)
            .flat_map(|_| (0..samples).map(read).collect::<Vec<_>>())
            .collect()
    }

    fn share(outcomes: &[String], of: &str) -> f64 {
        outcomes
            .iter()
            .filter(|outcome| outcome.contains(of))
            .count() as f64
            / outcomes.len() as f64
    }

    #[test]
    fn conforms_without_faults() {
        let samples = InMemory::some();
        conformance::check(
            &Faulty::new(samples.clone(), Faults::default()),
            &samples.expected(),
        );
    }

    #[test]
    fn conforms_under_transient_faults_for_a_caller_that_tries_again() {
        let samples = InMemory::some();
        let faults = Faults {
            transient: 0.7,
            delayed: 0.1,
            delay: Duration::from_micros(10),
            ..Faults::default()
        };
        let source = Retrying(Faulty::new(samples.clone(), faults));
        conformance::check(&source, &samples.expected());
        assert!(source.0.injected() > 0);
    }

    #[test]
    fn fails_at_the_given_rates() {
        let faults = Faults {
            seed: 3,
            transient: 0.2,
            shrank: 0.1,
            grew: 0.05,
            ..Faults::default()
        };
        let outcomes = outcomes(&faults, 1000, 20);
        assert!((share(&outcomes, "injected") - 0.2).abs() < 0.02);
        assert!((share(&outcomes, "shrank") - 0.8 * 0.1).abs() < 0.02);
        assert!((share(&outcomes, "grew") - 0.8 * 0.9 * 0.05).abs() < 0.02);
    }

    #[test]
    fn repeats_itself_for_a_seed_and_only_for_it() {
        let faults = Faults {
            seed: 1,
            transient: 0.5,
            ..Faults::default()
        };
        assert_eq!(outcomes(&faults, 100, 3), outcomes(&faults, 100, 3));
        assert_ne!(
            outcomes(&faults, 100, 3),
            outcomes(&Faults { seed: 2, ..faults }, 100, 3)
        );
    }

    #[test]
    fn a_broken_sample_stays_broken_and_says_so() {
        let faults = Faults {
            broken: BTreeSet::from([SampleId(1)]),
            ..Faults::default()
        };
        let source = Faulty::new(InMemory(vec![b"1".to_vec(); 2]), faults);
        source.read(SampleId(0), &mut [0]).unwrap();
        for _ in 0..10 {
            assert!(
                !source
                    .read(SampleId(1), &mut [0])
                    .unwrap_err()
                    .is_transient()
            );
        }
    }

    #[test]
    fn delayed_reads_succeed_late() {
        let faults = Faults {
            delayed: 1.0,
            delay: Duration::from_millis(5),
            ..Faults::default()
        };
        let source = Faulty::new(InMemory(vec![b"1".to_vec()]), faults);
        let started = std::time::Instant::now();
        source.read(SampleId(0), &mut [0]).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(5));
    }
}
