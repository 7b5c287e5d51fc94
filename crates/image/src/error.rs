//! What can be wrong with an image, and with a list of transforms.

use crate::decode::Encoding;
use crate::geometry::Size;

/// Why an image gave no tensor.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// None of the formats that are read here.
    #[error(
        "none of JPEG, PNG, WebP, GIF, BMP, PPM, PGM and TIFF: it starts with {start:02x?}; convert the file to PNG or \
         take it out of the dataset"
    )]
    Unknown {
        /// The first bytes, at most eight.
        start: Vec<u8>,
    },
    /// The file ends before its image does.
    #[error("{encoding}: truncated: {reason}")]
    Truncated {
        /// What the file is.
        encoding: Encoding,
        /// In the decoder's words.
        reason: String,
    },
    /// The decoder cannot make sense of the file.
    #[error("{encoding}: {reason}")]
    Corrupt {
        /// What the file is.
        encoding: Encoding,
        /// In the decoder's words.
        reason: String,
    },
    /// A format that is read here, in a variant that is not.
    #[error("{encoding}: {what} is not supported; convert the file to PNG")]
    Unsupported {
        /// What the file is.
        encoding: Encoding,
        /// What it has.
        what: String,
    },
    /// More pixels than PIL opens.
    #[error(
        "{encoding}: {size} has more than {PIXELS_MAX} pixels, a decompression bomb for PIL too"
    )]
    TooLarge {
        /// What the file is.
        encoding: Encoding,
        /// What its header says.
        size: Size,
    },
    /// A resize would leave nothing, or too much.
    #[error("transform {place} would make an image of {size} from one of {from}")]
    Resized {
        /// The place in the list, from 0.
        place: usize,
        /// What goes in.
        from: Size,
        /// What would come out.
        size: Size,
    },
}

/// PIL's limit: twice its `MAX_IMAGE_PIXELS`.
pub(crate) const PIXELS_MAX: u64 = 178_956_970;

/// Why a list of transforms is no pipeline.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// A parameter is out of its range.
    #[error("transform {place} ({name}): {what}")]
    Parameter {
        /// The place in the list, from 0.
        place: usize,
        /// The transform's name.
        name: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// Images of different sizes do not fit one tensor.
    #[error(
        "the size of the result depends on the image; end with CenterCrop, RandomResizedCrop or Resize to (height, width)"
    )]
    OpenSize,
    /// Resizing and cropping work on pixels, not on what Normalize makes of them.
    #[error("transform {place} ({name}) comes after Normalize; only flips may")]
    AfterNormalize {
        /// The place in the list, from 0.
        place: usize,
        /// The transform's name.
        name: &'static str,
    },
    /// Normalize gives fractions.
    #[error("Normalize needs a floating-point result, not uint8")]
    IntegerNormalize,
}
