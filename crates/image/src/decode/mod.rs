//! Decoders: which format bytes are, how large the image is, and the pixels of a window of it.
//!
//! Opening reads the header only, so that the window can depend on the size. Reading may give more than the window, as
//! much as the decoder likes; the [`Bitmap`] says where it lies.

mod jpeg;
mod png;
mod webp;

use std::fmt;

use crate::error::{ImageError, PIXELS_MAX};
use crate::geometry::{Rect, Size};
use crate::resample::{Bitmap, Pixel};

/// A format of image files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    /// By libjpeg-turbo, the window only.
    Jpeg,
    /// Whole.
    Png,
    /// Whole; of an animation the first frame.
    WebP,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}

/// What decoders keep from image to image.
#[derive(Default)]
pub(crate) struct Decoders {
    jpeg: Option<jpeg::Jpeg>,
    /// As the decoder gave them, before they are pixels.
    bytes: Vec<u8>,
}

/// An image whose header has been read.
pub(crate) enum Opened<'a> {
    Jpeg(jpeg::Opened<'a>),
    Png(Box<png::Opened<'a>>),
    WebP(Box<webp::Opened<'a>>),
}

/// Reads the header.
pub(crate) fn open<'a>(encoded: &'a [u8], decoders: &'a mut Decoders) -> Result<Opened<'a>, ImageError> {
    let encoding = sniff(encoded)?;
    let opened = match encoding {
        Encoding::Jpeg => {
            let jpeg = decoders.jpeg.get_or_insert_with(jpeg::Jpeg::new);
            Opened::Jpeg(jpeg.open(encoded)?)
        }
        Encoding::Png => Opened::Png(Box::new(png::Opened::new(encoded, &mut decoders.bytes)?)),
        Encoding::WebP => Opened::WebP(Box::new(webp::Opened::new(encoded, &mut decoders.bytes)?)),
    };
    let size = opened.size();
    if size.area() > PIXELS_MAX { Err(ImageError::TooLarge { encoding, size }) } else { Ok(opened) }
}

impl Opened<'_> {
    /// Of the whole image.
    pub(crate) fn size(&self) -> Size {
        match self {
            Self::Jpeg(opened) => opened.size(),
            Self::Png(opened) => opened.size(),
            Self::WebP(opened) => opened.size(),
        }
    }

    /// Decodes at least this window, which lies inside the image.
    pub(crate) fn read(self, window: Rect, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        match self {
            Self::Jpeg(opened) => opened.read(window, pixels),
            Self::Png(opened) => opened.read(pixels),
            Self::WebP(opened) => opened.read(pixels),
        }
    }
}

fn sniff(encoded: &[u8]) -> Result<Encoding, ImageError> {
    if encoded.starts_with(&[0xff, 0xd8, 0xff]) {
        Ok(Encoding::Jpeg)
    } else if encoded.starts_with(b"\x89PNG\r\n\x1a\n") {
        Ok(Encoding::Png)
    } else if encoded.starts_with(b"RIFF") && encoded.get(8..12) == Some(b"WEBP") {
        Ok(Encoding::WebP)
    } else {
        let start = encoded[..encoded.len().min(8)].to_vec();
        Err(ImageError::Unknown { start })
    }
}

/// At least this many pixels to write to. The buffer only grows, so that zeros are written once.
fn room(pixels: &mut Vec<Pixel>, count: usize) -> &mut [Pixel] {
    if pixels.len() < count {
        pixels.resize(count, [0; 4]);
    }
    &mut pixels[..count]
}

/// The first three of each `step` values, or one value three times where there are fewer.
fn to_pixels(values: &[u8], step: usize, pixels: &mut [Pixel]) {
    for (pixel, values) in pixels.iter_mut().zip(values.chunks_exact(step)) {
        *pixel = match values {
            [red, green, blue, ..] => [*red, *green, *blue, 0],
            [grey, ..] => [*grey, *grey, *grey, 0],
            [] => [0; 4],
        };
    }
}
