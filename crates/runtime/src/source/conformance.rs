//! What every source must do, as a function that any implementation can be run against in its tests.

use std::thread;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::{ReadError, Source};

/// Threads that read at once, each all samples.
const READERS: usize = 4;

/// Reads every expected sample and checks that
///
/// - its bytes are the expected ones, at first and again, and from several threads at once,
/// - a sample without bytes is [`ReadError::Empty`],
/// - one that is longer than asked for is [`ReadError::Grew`], one that is shorter [`ReadError::Shrank`], with the
///   right lengths,
/// - samples have names, and no two the same,
/// - a speed, if there is one, is possible.
///
/// # Panics
///
/// With a sentence that says what `source` does wrong.
pub fn check(source: &dyn Source, expected: &[(SampleId, Vec<u8>)]) {
    for (sample, bytes) in expected {
        check_sample(source, *sample, bytes);
        check_lengths(source, *sample, bytes);
    }
    thread::scope(|scope| {
        for reader in 0..READERS {
            scope.spawn(move || {
                let (late, early) = expected.split_at(expected.len() * reader / READERS);
                early
                    .iter()
                    .chain(late)
                    .for_each(|(sample, bytes)| check_sample(source, *sample, bytes));
            });
        }
    });
    check_names(source, expected);
    check_speed(source);
}

fn check_sample(source: &dyn Source, sample: SampleId, bytes: &[u8]) {
    // Not zeros, so that bytes which are not written show.
    let mut into = vec![0xA5; bytes.len()];
    match source.read(sample, &mut into) {
        Ok(_) => {
            assert!(
                !bytes.is_empty(),
                "sample {sample} has no bytes, but was read without an error"
            );
            assert!(
                into == bytes,
                "sample {sample} was read, but its bytes are not the expected ones"
            );
        }
        Err(ReadError::Empty) => assert!(
            bytes.is_empty(),
            "sample {sample} is called empty, but is not"
        ),
        Err(error) => panic!("sample {sample} must be readable, but: {error}"),
    }
}

fn check_lengths(source: &dyn Source, sample: SampleId, bytes: &[u8]) {
    if bytes.len() < 2 {
        return;
    }
    let length = Bytes(bytes.len() as u64);
    let short = Bytes(length.0 - 1);
    match source.read(sample, &mut vec![0; bytes.len() - 1]) {
        Err(ReadError::Grew { expected }) => {
            assert_eq!(
                expected, short,
                "sample {sample} grew, but the expected length is not the buffer's"
            );
        }
        other => {
            panic!("sample {sample} is longer than the buffer, which must be `Grew`, not {other:?}")
        }
    }
    let long = Bytes(length.0 + 1);
    match source.read(sample, &mut vec![0; bytes.len() + 1]) {
        Err(ReadError::Shrank { expected, found }) => {
            assert_eq!(
                (expected, found),
                (long, length),
                "sample {sample} shrank, but the lengths are not right"
            );
        }
        other => panic!(
            "sample {sample} is shorter than the buffer, which must be `Shrank`, not {other:?}"
        ),
    }
}

fn check_names(source: &dyn Source, expected: &[(SampleId, Vec<u8>)]) {
    let mut names = expected
        .iter()
        .map(|(sample, _)| source.name(*sample))
        .collect::<Vec<_>>();
    assert!(
        names.iter().all(|name| !name.is_empty()),
        "every sample must have a name"
    );
    names.sort_unstable();
    let twins = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(
        twins.is_none(),
        "two samples must not have the same name, {twins:?}"
    );
}

fn check_speed(source: &dyn Source) {
    if let Some(speed) = source.speed() {
        let latency = speed.latency.0;
        assert!(
            latency.is_finite() && latency >= 0.0,
            "a latency of {latency} s is not possible"
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::source::Speed;
    use crate::stamp::Stamp;

    /// Samples in memory.
    #[derive(Clone)]
    pub(in crate::source) struct InMemory(pub(in crate::source) Vec<Vec<u8>>);

    impl InMemory {
        /// A few, one of them empty.
        pub(in crate::source) fn some() -> Self {
            Self(
                (0..20_usize)
                    .map(|index| vec![index as u8 + 1; index * index])
                    .collect(),
            )
        }

        pub(in crate::source) fn expected(&self) -> Vec<(SampleId, Vec<u8>)> {
            (0..).map(SampleId).zip(self.0.iter().cloned()).collect()
        }
    }

    impl Source for InMemory {
        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
            let bytes = &self.0[sample.index()];
            let expected = Bytes(into.len() as u64);
            let found = Bytes(bytes.len() as u64);
            match found.cmp(&expected) {
                _ if bytes.is_empty() => Err(ReadError::Empty),
                std::cmp::Ordering::Less => Err(ReadError::Shrank { expected, found }),
                std::cmp::Ordering::Greater => Err(ReadError::Grew { expected }),
                std::cmp::Ordering::Equal => {
                    into.copy_from_slice(bytes);
                    Ok(None)
                }
            }
        }

        fn name(&self, sample: SampleId) -> String {
            format!("sample {sample}")
        }
    }

    /// Wrong in one way.
    struct Wrong<F>(InMemory, F);

    impl<F: Fn(&InMemory, SampleId, &mut [u8]) -> Result<Option<Stamp>, ReadError> + Send + Sync>
        Source for Wrong<F>
    {
        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
            (self.1)(&self.0, sample, into)
        }

        fn name(&self, sample: SampleId) -> String {
            self.0.name(sample)
        }

        fn speed(&self) -> Option<Speed> {
            None
        }
    }

    fn check_wrong(
        wrong: impl Fn(&InMemory, SampleId, &mut [u8]) -> Result<Option<Stamp>, ReadError> + Send + Sync,
    ) {
        let samples = InMemory::some();
        check(&Wrong(samples.clone(), wrong), &samples.expected());
    }

    #[test]
    fn samples_in_memory_conform() {
        let samples = InMemory::some();
        check(&samples, &samples.expected());
    }

    #[test]
    #[should_panic(expected = "its bytes are not the expected ones")]
    fn a_source_that_reads_nothing_does_not_conform() {
        check_wrong(|source, sample, into| source.read(sample, &mut vec![0; into.len()]));
    }

    #[test]
    #[should_panic(expected = "which must be `Grew`")]
    fn a_source_that_cuts_samples_off_does_not_conform() {
        check_wrong(|source, sample, into| match source.read(sample, into) {
            Err(ReadError::Grew { .. }) => Ok(None),
            other => other,
        });
    }

    #[test]
    #[should_panic(expected = "read without an error")]
    fn a_source_that_reads_empty_samples_does_not_conform() {
        check_wrong(|source, sample, into| {
            if into.is_empty() {
                Ok(None)
            } else {
                source.read(sample, into)
            }
        });
    }
}
