//! WebP, lossy and lossless, without its alpha; of an animation the first frame.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::{Encoding, room, to_pixels};
use crate::error::ImageError;
use crate::geometry::Size;
use crate::resample::{Bitmap, Pixel};

/// An image whose header has been read.
pub(crate) struct Opened<'a> {
    decoder: WebPDecoder<Cursor<&'a [u8]>>,
    bytes: &'a mut Vec<u8>,
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8], bytes: &'a mut Vec<u8>) -> Result<Self, ImageError> {
        Ok(Self {
            decoder: WebPDecoder::new(Cursor::new(encoded)).map_err(error)?,
            bytes,
        })
    }

    pub(super) fn size(&self) -> Size {
        let (width, height) = self.decoder.dimensions();
        Size::new(height, width)
    }

    pub(super) fn read(mut self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let size = self.size();
        let len = self
            .decoder
            .output_buffer_size()
            .ok_or_else(|| corrupt("too large for memory".to_owned()))?;
        self.bytes.resize(len, 0);
        self.decoder.read_image(self.bytes).map_err(error)?;
        let pixels = room(pixels, size.area() as usize);
        to_pixels(
            self.bytes,
            if self.decoder.has_alpha() { 4 } else { 3 },
            pixels,
        );
        Ok(Bitmap {
            pixels,
            stride: size.width as usize,
            x: 0,
            y: 0,
        })
    }
}

fn error(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ImageError::Truncated {
                encoding: Encoding::WebP,
                reason: error.to_string(),
            }
        }
        other => corrupt(other.to_string()),
    }
}

fn corrupt(reason: String) -> ImageError {
    ImageError::Corrupt {
        encoding: Encoding::WebP,
        reason,
    }
}
