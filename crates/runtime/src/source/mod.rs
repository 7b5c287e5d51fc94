//! Where the dataset lives: read-only, shared by all ranks, and slow. A source hands out whole samples; it knows nothing
//! of streams, tiers or threads.

pub mod conformance;
mod faulty;
mod local;
mod throttle;
mod throttled;

use std::io;

use foresee_core::ids::SampleId;
use foresee_core::model::Curve;
use foresee_core::units::{Bytes, Seconds};
use foresee_image::ImageError;

pub use self::faulty::{Faults, Faulty};
pub use self::local::LocalFiles;
pub use self::throttle::{Throttle, ThrottleError, Turn};
pub use self::throttled::Throttled;
use crate::dataset::Dataset;
use crate::stamp::Stamp;

/// Something that holds all samples of a dataset.
pub trait Source: Send + Sync {
    /// Reads the whole sample; `into` is as long as the catalog says the sample is. Gives what the sample was when it was
    /// read, where that can be told.
    fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError>;

    /// What the sample is now, without reading it; none where that cannot be told, because it cannot change.
    fn look(&self, _: SampleId) -> Result<Option<Stamp>, ReadError> {
        Ok(None)
    }

    /// What people call the sample: its path.
    fn name(&self, sample: SampleId) -> String;

    /// How fast it is, where that is known.
    fn speed(&self) -> Option<Speed> {
        None
    }

    /// The listed dataset that it reads, whose sizes may not be true any more.
    fn dataset(&self) -> Option<&Dataset> {
        None
    }
}

/// How fast a source is.
#[derive(Clone, Debug)]
pub struct Speed {
    /// Throughput of all readers together, by the number of reads under way.
    pub curve: Curve,
    /// How long a read takes before its first byte.
    pub latency: Seconds,
}

/// Why a sample could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It has no bytes.
    #[error("the file is empty")]
    Empty,
    /// It has fewer bytes than the catalog says.
    #[error("the file shrank: {found} of {expected}; start again, then the dataset is listed anew")]
    Shrank {
        /// What the catalog says.
        expected: Bytes,
        /// What was there.
        found: Bytes,
    },
    /// It has more bytes than the catalog says.
    #[error("the file grew beyond {expected}; start again, then the dataset is listed anew")]
    Grew {
        /// What the catalog says.
        expected: Bytes,
    },
    /// It was written to while it was read.
    #[error(
        "the file changed while it was read; let its writer finish, or replace files by renaming new ones"
    )]
    Torn,
    /// The storage refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Its bytes are no image.
    #[error("{0}")]
    Image(#[from] ImageError),
}

impl ReadError {
    /// Whether another try may succeed.
    pub fn is_transient(&self) -> bool {
        // What says that the sample is not there, or not for us, will say so again.
        let lasting = [
            io::ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::IsADirectory,
        ];
        match self {
            Self::Io(error) => !lasting.contains(&error.kind()),
            Self::Torn => true,
            Self::Empty | Self::Shrank { .. } | Self::Grew { .. } | Self::Image(_) => false,
        }
    }

    /// Whether the sample has another size than the catalog says: then the catalog is void.
    pub fn is_other_size(&self) -> bool {
        matches!(self, Self::Shrank { .. } | Self::Grew { .. })
    }
}
