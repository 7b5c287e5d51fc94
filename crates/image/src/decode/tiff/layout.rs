//! How the pixels of a TIFF file are stored: types of samples, what they mean, strips and tiles.

use std::ops::Range;

use crate::decode::{Palette, from_cmyk};
use crate::geometry::Size;
use crate::resample::Pixel;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Compression {
    None,
    PackBits,
    Lzw,
    Deflate,
    Jpeg {
        /// Whether colours are stored as luma and chroma.
        has_chroma: bool,
    },
}

/// The type of samples.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Numbers {
    /// 1, 2 or 4.
    Bits(u32),
    Bytes,
    Words,
    SignedWords,
    Integers,
    Floats,
}

impl Numbers {
    pub(super) const fn bits(self) -> usize {
        match self {
            Self::Bits(bits) => bits as usize,
            Self::Bytes => 8,
            Self::Words | Self::SignedWords => 16,
            Self::Integers | Self::Floats => 32,
        }
    }
}

/// What samples mean. Covered colours have been multiplied by the alpha that follows them.
pub(super) enum Kind {
    Grey { is_inverted: bool, is_covered: bool },
    Rgb { is_covered: bool },
    Palette(Box<Palette>),
    Cmyk,
}

impl Kind {
    pub(super) const fn colours(&self) -> usize {
        match self {
            Self::Grey { .. } | Self::Palette(_) => 1,
            Self::Rgb { .. } => 3,
            Self::Cmyk => 4,
        }
    }

    /// The colour of a pixel's first four samples.
    pub(super) fn colour(&self, [first, second, third, fourth]: Pixel) -> Pixel {
        match self {
            Self::Grey {
                is_inverted,
                is_covered,
            } => {
                let grey = if *is_covered && second > 0 {
                    uncovered(first, second)
                } else {
                    first
                };
                let grey = if *is_inverted { 255 - grey } else { grey };
                [grey, grey, grey, 0]
            }
            Self::Rgb { is_covered: true } => [
                uncovered(first, fourth),
                uncovered(second, fourth),
                uncovered(third, fourth),
                0,
            ],
            Self::Rgb { is_covered: false } => [first, second, third, 0],
            Self::Palette(palette) => palette.colour(first),
            Self::Cmyk => from_cmyk([first, second, third, fourth]),
        }
    }
}

/// What a colour was before it was multiplied by alpha.
fn uncovered(colour: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        alpha => (u32::from(colour) * 255 / u32::from(alpha)).min(255) as u8,
    }
}

/// How the image is turned before it is shown: columns and lines exchanged, then both directions from their ends.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) is_exchanged: bool,
    is_right_to_left: bool,
    is_bottom_up: bool,
}

impl Turn {
    /// By the number of the tag; one that is unknown turns nothing.
    pub(super) fn of(orientation: u64) -> Self {
        Self {
            is_exchanged: (5..=8).contains(&orientation),
            is_right_to_left: matches!(orientation, 2 | 3 | 6 | 7),
            is_bottom_up: matches!(orientation, 3 | 4 | 7 | 8),
        }
    }

    /// The size as shown.
    pub(super) const fn size(self, stored: Size) -> Size {
        if self.is_exchanged {
            Size::new(stored.width, stored.height)
        } else {
            stored
        }
    }

    /// Where a stored pixel is, among all that are shown.
    pub(super) fn place(self, x: usize, y: usize, stored: Size) -> usize {
        let shown = self.size(stored);
        let height = shown.height as usize;
        let width = shown.width as usize;
        let (x, y) = if self.is_exchanged { (y, x) } else { (x, y) };
        let x = if self.is_right_to_left {
            width - 1 - x
        } else {
            x
        };
        let y = if self.is_bottom_up { height - 1 - y } else { y };
        y * width + x
    }
}

/// How an image is divided. The last strip ends with the image, tiles are whole.
#[derive(Clone, Copy)]
pub(super) enum Parts {
    Strips,
    Tiles,
}

pub(super) struct Layout {
    /// As stored.
    pub(super) size: Size,
    pub(super) turn: Turn,
    /// Of a pixel, with those that are no colours.
    pub(super) samples: usize,
    pub(super) numbers: Numbers,
    pub(super) kind: Kind,
    /// Whether each sample has strips or tiles of its own.
    pub(super) is_planar: bool,
    pub(super) compression: Compression,
    pub(super) is_predicted: bool,
    /// Whether the first pixel of a byte is in its lowest bits.
    pub(super) is_bit_reversed: bool,
    /// The size of a strip or tile.
    pub(super) chunk: Size,
    pub(super) parts: Parts,
}

/// One strip or tile.
pub(super) struct Chunk {
    /// Where it is in the file.
    pub(super) bytes: Range<u64>,
    /// Its lines, with those of a tile that are below the image.
    pub(super) lines: u32,
    /// Its first pixel in the image.
    pub(super) x: u32,
    pub(super) y: u32,
    /// The first of its samples.
    pub(super) sample: usize,
}

impl Layout {
    /// How many samples a strip or tile has of each pixel.
    pub(super) const fn chunk_samples(&self) -> usize {
        if self.is_planar { 1 } else { self.samples }
    }

    /// Of a line of a strip or tile.
    pub(super) const fn line_bytes(&self) -> usize {
        (self.chunk.width as usize * self.chunk_samples() * self.numbers.bits()).div_ceil(8)
    }

    /// How many strips or tiles there are.
    pub(super) fn chunks(&self) -> u64 {
        let planes = if self.is_planar {
            self.samples as u64
        } else {
            1
        };
        self.across() * self.down() * planes
    }

    fn across(&self) -> u64 {
        u64::from(self.size.width.div_ceil(self.chunk.width))
    }

    fn down(&self) -> u64 {
        u64::from(self.size.height.div_ceil(self.chunk.height))
    }

    /// A strip or tile by its number, before it is known where it is.
    pub(super) fn chunk(&self, number: u64) -> Chunk {
        let plane = self.across() * self.down();
        let y = (number % plane / self.across()) as u32 * self.chunk.height;
        let lines = match self.parts {
            Parts::Strips => self.chunk.height.min(self.size.height - y),
            Parts::Tiles => self.chunk.height,
        };
        Chunk {
            bytes: 0..0,
            lines,
            x: (number % self.across()) as u32 * self.chunk.width,
            y,
            sample: (number / plane) as usize,
        }
    }
}
