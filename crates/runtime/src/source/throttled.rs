//! A source made as slow as an emulated storage. Samples are really read, while the read's turn at the storage comes and
//! passes; the result is handed over when the storage would have.

use std::io;
use std::sync::Arc;

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::{ReadError, Source, Speed, Throttle};
use crate::dataset::Dataset;
use crate::stamp::Stamp;

/// A source behind a throttle.
#[derive(Debug)]
pub struct Throttled<S> {
    inner: S,
    throttle: Arc<Throttle>,
}

impl<S: Source> Throttled<S> {
    /// `inner` behind `throttle`.
    pub fn new(inner: S, throttle: Arc<Throttle>) -> Self {
        Self { inner, throttle }
    }
}

impl<S: Source> Source for Throttled<S> {
    /// A read that fails says so at once, but its turn at the storage is taken.
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
        let turn = self
            .throttle
            .begin(Bytes(into.len() as u64))
            .map_err(io::Error::other)?;
        let stamp = self.inner.read(sample, into)?;
        turn.wait();
        Ok(stamp)
    }

    fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
        self.inner.look(sample)
    }

    fn name(&self, sample: SampleId) -> String {
        self.inner.name(sample)
    }

    fn speed(&self) -> Option<Speed> {
        Some(self.throttle.speed())
    }

    fn dataset(&self) -> Option<&Dataset> {
        self.inner.dataset()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use foresee_core::model::{Beyond, Curve};
    use foresee_core::units::Seconds;

    use super::*;
    use crate::source::conformance;
    use crate::source::conformance::tests::InMemory;

    fn throttled(folder: &tempfile::TempDir, mb_per_s: f64) -> Throttled<InMemory> {
        let curve = Curve::new(vec![(1, mb_per_s)], Beyond::Clamp).unwrap();
        let throttle = Throttle::open_in(folder.path(), "test", curve, Seconds(0.0)).unwrap();
        Throttled::new(InMemory::some(), Arc::new(throttle))
    }

    #[test]
    fn conforms() {
        let folder = tempfile::tempdir().unwrap();
        conformance::check(&throttled(&folder, 1000.0), &InMemory::some().expected());
    }

    #[test]
    fn takes_as_long_as_the_storage_and_tells_its_speed() {
        let folder = tempfile::tempdir().unwrap();
        let source = throttled(&folder, 0.01);
        let started = Instant::now();
        source.read(SampleId(19), &mut [0; 361]).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(36));
        assert_eq!(source.speed().unwrap().curve.points(), [(1, 0.01)]);
    }
}
