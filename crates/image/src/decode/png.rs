//! PNG, as PIL converts it to RGB: palettes without their transparency, no alpha, and of 16 bits the upper eight, except
//! for grey without alpha, which PIL cuts off at 255.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use super::{Encoding, room, to_pixels};
use crate::error::{ImageError, PIXELS_MAX};
use crate::geometry::Size;
use crate::resample::{Bitmap, Pixel};

/// What a frame may take: eight bytes for each pixel of the largest image. Most are held to it by their size before.
const BYTES_MAX: usize = PIXELS_MAX as usize * 8;

/// An image whose header has been read.
pub(crate) struct Opened<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    bytes: &'a mut Vec<u8>,
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8], bytes: &'a mut Vec<u8>) -> Result<Self, ImageError> {
        let mut decoder =
            Decoder::new_with_limits(Cursor::new(encoded), Limits { bytes: BYTES_MAX });
        decoder.set_transformations(Transformations::EXPAND);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        Ok(Self {
            reader: decoder.read_info().map_err(error)?,
            bytes,
        })
    }

    pub(super) fn size(&self) -> Size {
        Size::new(self.reader.info().height, self.reader.info().width)
    }

    pub(super) fn read(mut self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let size = self.size();
        let len = self
            .reader
            .output_buffer_size()
            .ok_or_else(|| corrupt("too large for memory"))?;
        self.bytes.resize(len, 0);
        self.reader.next_frame(self.bytes).map_err(error)?;
        let (_, depth) = self.reader.output_color_type();
        let samples = self.reader.output_color_type().0.samples();
        let pixels = room(pixels, size.area() as usize);
        if depth != BitDepth::Sixteen {
            to_pixels(self.bytes, samples, pixels);
        } else if self.reader.info().color_type == ColorType::Grayscale {
            self.fold_wide(|high, low| if high > 0 { 255 } else { low });
            to_pixels(self.bytes, samples, pixels);
        } else {
            self.fold_wide(|high, _| high);
            to_pixels(self.bytes, samples, pixels);
        }
        Ok(Bitmap {
            pixels,
            stride: size.width as usize,
            x: 0,
            y: 0,
        })
    }

    /// Makes each pair of bytes one, in place.
    fn fold_wide(&mut self, fold: impl Fn(u8, u8) -> u8) {
        for at in 0..self.bytes.len() / 2 {
            self.bytes[at] = fold(self.bytes[2 * at], self.bytes[2 * at + 1]);
        }
        self.bytes.truncate(self.bytes.len() / 2);
    }
}

fn error(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ImageError::Truncated {
                encoding: Encoding::Png,
                reason: error.to_string(),
            }
        }
        other => corrupt(&other.to_string()),
    }
}

fn corrupt(reason: &str) -> ImageError {
    ImageError::Corrupt {
        encoding: Encoding::Png,
        reason: reason.to_owned(),
    }
}
