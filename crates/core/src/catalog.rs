//! What is known of the dataset's samples: here their sizes.

use crate::ids::SampleId;
use crate::units::Bytes;

/// The sizes of all samples; sample k is the k-th.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    sizes: Vec<u64>,
    total: Bytes,
}

impl Catalog {
    /// A catalog of samples of these sizes.
    pub fn new(sizes: Vec<u64>) -> Self {
        let total = Bytes(sizes.iter().sum());
        Self { sizes, total }
    }

    /// How many samples there are.
    pub fn len(&self) -> u32 {
        self.sizes.len() as u32
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// A sample's size.
    #[inline]
    pub fn size(&self, sample: SampleId) -> Bytes {
        Bytes(self.sizes[sample.index()])
    }

    /// All samples' sizes together.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// The size all samples have, where it is one.
    pub fn common_size(&self) -> Option<Bytes> {
        let first = *self.sizes.first()?;
        self.sizes
            .iter()
            .all(|&size| size == first)
            .then_some(Bytes(first))
    }

    /// The size of the largest sample; 0 where there is none.
    pub fn largest(&self) -> Bytes {
        Bytes(self.sizes.iter().copied().max().unwrap_or(0))
    }

    /// All samples, in order.
    pub fn samples(&self) -> impl Iterator<Item = SampleId> + use<> {
        (0..self.len()).map(SampleId)
    }
}
