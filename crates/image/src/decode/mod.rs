//! Decoders: which format bytes are, how large the image is, and the pixels of a window of it.
//!
//! Opening reads the header only, so that the window can depend on the size. Reading may give more than the window, as
//! much as the decoder likes; the [`Bitmap`] says where it lies.

mod bmp;
mod fields;
mod gif;
mod jpeg;
mod png;
mod pnm;
mod tiff;
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
    /// Whole; of an animation the first frame, on a screen of its background.
    Gif,
    /// Whole.
    Bmp,
    /// PBM, PGM and PPM, whole.
    Pnm,
    /// Whole; of several pages the first, turned as it says.
    Tiff,
}

impl Encoding {
    fn truncated(self, reason: impl Into<String>) -> ImageError {
        ImageError::Truncated {
            encoding: self,
            reason: reason.into(),
        }
    }

    fn corrupt(self, reason: impl Into<String>) -> ImageError {
        ImageError::Corrupt {
            encoding: self,
            reason: reason.into(),
        }
    }

    fn unsupported(self, what: impl Into<String>) -> ImageError {
        ImageError::Unsupported {
            encoding: self,
            what: what.into(),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Pnm => "PNM",
            Self::Tiff => "TIFF",
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
    Gif(Box<gif::Opened<'a>>),
    Bmp(Box<bmp::Opened<'a>>),
    Pnm(pnm::Opened<'a>),
    Tiff(Box<tiff::Opened<'a>>),
}

/// Reads the header.
pub(crate) fn open<'a>(
    encoded: &'a [u8],
    decoders: &'a mut Decoders,
) -> Result<Opened<'a>, ImageError> {
    let encoding = sniff(encoded)?;
    let opened = match encoding {
        Encoding::Jpeg => {
            let jpeg = decoders.jpeg.get_or_insert_with(jpeg::Jpeg::new);
            Opened::Jpeg(jpeg.open(encoded)?)
        }
        Encoding::Png => Opened::Png(Box::new(png::Opened::new(encoded, &mut decoders.bytes)?)),
        Encoding::WebP => Opened::WebP(Box::new(webp::Opened::new(encoded, &mut decoders.bytes)?)),
        Encoding::Gif => Opened::Gif(Box::new(gif::Opened::new(encoded, &mut decoders.bytes)?)),
        Encoding::Bmp => Opened::Bmp(Box::new(bmp::Opened::new(encoded, &mut decoders.bytes)?)),
        Encoding::Pnm => Opened::Pnm(pnm::Opened::new(encoded)?),
        Encoding::Tiff => Opened::Tiff(Box::new(tiff::Opened::new(encoded, decoders)?)),
    };
    let size = opened.size();
    if size.area() > PIXELS_MAX {
        Err(ImageError::TooLarge { encoding, size })
    } else {
        Ok(opened)
    }
}

impl Opened<'_> {
    /// Of the whole image.
    pub(crate) fn size(&self) -> Size {
        match self {
            Self::Jpeg(opened) => opened.size(),
            Self::Png(opened) => opened.size(),
            Self::WebP(opened) => opened.size(),
            Self::Gif(opened) => opened.size(),
            Self::Bmp(opened) => opened.size(),
            Self::Pnm(opened) => opened.size(),
            Self::Tiff(opened) => opened.size(),
        }
    }

    /// Decodes at least this window, which lies inside the image.
    pub(crate) fn read(
        self,
        window: Rect,
        pixels: &mut Vec<Pixel>,
    ) -> Result<Bitmap<'_>, ImageError> {
        match self {
            Self::Jpeg(opened) => opened.read(window, pixels),
            Self::Png(opened) => opened.read(pixels),
            Self::WebP(opened) => opened.read(pixels),
            Self::Gif(opened) => opened.read(pixels),
            Self::Bmp(opened) => opened.read(pixels),
            Self::Pnm(opened) => opened.read(pixels),
            Self::Tiff(opened) => opened.read(pixels),
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
    } else if encoded.starts_with(b"GIF87a") || encoded.starts_with(b"GIF89a") {
        Ok(Encoding::Gif)
    } else if encoded.starts_with(b"BM") {
        Ok(Encoding::Bmp)
    } else if pnm::begins(encoded) {
        Ok(Encoding::Pnm)
    } else if tiff::begins(encoded) {
        Ok(Encoding::Tiff)
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

/// Colours by index. What is behind the end of a palette is black, as for PIL.
struct Palette([Pixel; 256]);

impl Palette {
    /// From red, green and blue of each colour.
    fn new(colours: impl IntoIterator<Item = [u8; 3]>) -> Self {
        let mut palette = Self([[0; 4]; 256]);
        for (entry, [red, green, blue]) in palette.0.iter_mut().zip(colours) {
            *entry = [red, green, blue, 0];
        }
        palette
    }

    fn colour(&self, index: u8) -> Pixel {
        self.0[usize::from(index)]
    }
}

/// What inks and black leave of white, without any profile.
fn from_cmyk([cyan, magenta, yellow, black]: Pixel) -> Pixel {
    let left = 255 - black;
    let colour = |ink: u8| left.saturating_sub(scaled(ink, left));
    [colour(cyan), colour(magenta), colour(yellow), 0]
}

/// `a * b / 255`, rounded.
fn scaled(a: u8, b: u8) -> u8 {
    ((u32::from(a) * u32::from(b) + 127) / 255) as u8
}
