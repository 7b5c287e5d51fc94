//! Where a held sample lies, and what its bytes add up to.

use crate::extents::Extent;

/// A held sample. Nearly all lie in one range; where free space is fragmented, one may lie in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The ranges, in the order of the sample's bytes; never none.
    pub(super) parts: Parts,
    /// Checksum of the sample's bytes.
    pub(super) sum: u64,
}

/// One range without an allocation, or several with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    One(Extent),
    Several(Box<[Extent]>),
}

impl Entry {
    /// A sample that lies in these ranges.
    ///
    /// # Panics
    /// If there is no range.
    pub(super) fn new(parts: Vec<Extent>, sum: u64) -> Self {
        assert!(
            !parts.is_empty(),
            "a held sample lies somewhere, even if it is empty"
        );
        let parts = if let [part] = parts[..] {
            Parts::One(part)
        } else {
            Parts::Several(parts.into())
        };
        Self { parts, sum }
    }

    /// The ranges.
    pub(super) fn parts(&self) -> &[Extent] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Several(parts) => parts,
        }
    }

    /// How many bytes the sample has.
    pub(super) fn len(&self) -> u64 {
        self.parts().iter().map(|part| part.len).sum()
    }
}
