//! PBM, PGM and PPM, in words (P1 to P3) and in bytes (P4 to P6), as PIL scales them: what is largest becomes 255, but
//! for grey of more than eight bits, which becomes one of 16 bits and is cut off at 255.

use super::{Encoding, room, to_pixels};
use crate::error::ImageError;
use crate::geometry::Size;
use crate::resample::{Bitmap, Pixel};

const PNM: Encoding = Encoding::Pnm;

/// PIL's limit for a number in words.
const DIGITS_MAX: u32 = 10;

/// What a pixel is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// One is black.
    Bits,
    Grey,
    Colour,
}

/// An image whose header has been read.
pub(crate) struct Opened<'a> {
    kind: Kind,
    /// Whether numbers are written in words.
    is_plain: bool,
    size: Size,
    /// The number that is white.
    most: u32,
    body: Words<'a>,
}

/// Whether bytes are an image of this format.
pub(super) fn begins(encoded: &[u8]) -> bool {
    matches!(encoded, [b'P', b'1'..=b'6', white, ..] if is_white(*white))
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8]) -> Result<Self, ImageError> {
        let digit = encoded[1] - b'0';
        let kind = [Kind::Bits, Kind::Grey, Kind::Colour][usize::from(digit - 1) % 3];
        let mut body = Words {
            rest: &encoded[3..],
        };
        let mut number = |name: &str| {
            let number = body
                .number()?
                .ok_or_else(|| PNM.truncated(format!("no {name}")))?;
            if number == 0 {
                Err(PNM.corrupt(format!("a {name} of 0")))
            } else {
                Ok(number)
            }
        };
        let width = number("width")?;
        let height = number("height")?;
        let most = if kind == Kind::Bits {
            1
        } else {
            number("largest value")?
        };
        if most > 0xffff {
            return Err(PNM.corrupt(format!("a largest value of {most}, not up to 65535")));
        }
        Ok(Self {
            kind,
            is_plain: digit <= 3,
            size: Size::new(height, width),
            most,
            body,
        })
    }

    pub(super) const fn size(&self) -> Size {
        self.size
    }

    pub(super) fn read(mut self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let line_values = self.size.width as usize * if self.kind == Kind::Colour { 3 } else { 1 };
        let line_bytes = match self.kind {
            // In words a digit is a pixel, in bytes a bit.
            Kind::Bits if !self.is_plain => line_values.div_ceil(8),
            Kind::Grey | Kind::Colour if !self.is_plain && self.most > 0xff => line_values * 2,
            _ => line_values,
        };
        let bytes = line_bytes * self.size.height as usize;
        // Words take as many bytes, or more.
        if self.body.rest.len() < bytes {
            return Err(PNM.truncated(format!("{} of {bytes} bytes", self.body.rest.len())));
        }
        let pixels = room(pixels, self.size.area() as usize);
        let scale = self.scale();
        let mut line = vec![0; line_values];
        for pixels in pixels.chunks_exact_mut(self.size.width as usize) {
            self.read_line(line_bytes, &scale, &mut line)?;
            to_pixels(&line, if self.kind == Kind::Colour { 3 } else { 1 }, pixels);
        }
        Ok(Bitmap {
            pixels,
            stride: self.size.width as usize,
            x: 0,
            y: 0,
        })
    }

    /// What each number is in eight bits. Bytes may hold more than the largest.
    fn scale(&self) -> Vec<u8> {
        if self.kind == Kind::Bits {
            return vec![255, 0];
        }
        let white = if self.kind == Kind::Grey && self.most > 0xff {
            65535.0
        } else {
            255.0
        };
        let scaled = |number: u32| {
            let value = f64::from(number) / f64::from(self.most) * white;
            value.round_ties_even().min(255.0) as u8
        };
        (0..=if self.most > 0xff { 0xffff } else { 0xff })
            .map(scaled)
            .collect()
    }

    fn read_line(
        &mut self,
        line_bytes: usize,
        scale: &[u8],
        line: &mut [u8],
    ) -> Result<(), ImageError> {
        if self.is_plain {
            for value in line {
                let number = if self.kind == Kind::Bits {
                    self.body.digit()
                } else {
                    self.body.number()
                };
                let number = number?.ok_or_else(|| PNM.truncated("too few numbers"))?;
                if number > self.most {
                    return Err(PNM.corrupt(format!("{number} is more than {}", self.most)));
                }
                *value = scale[number as usize];
            }
            return Ok(());
        }
        let (bytes, rest) = self.body.rest.split_at(line_bytes);
        self.body.rest = rest;
        for (at, value) in line.iter_mut().enumerate() {
            *value = match self.kind {
                Kind::Bits => scale[usize::from(bytes[at / 8] >> (7 - at % 8) & 1)],
                _ if self.most > 0xff => {
                    scale[usize::from(u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]]))]
                }
                _ => scale[usize::from(bytes[at])],
            };
        }
        Ok(())
    }
}

/// Numbers in words. A comment goes from `#` to the end of its line and does not even end a word.
struct Words<'a> {
    rest: &'a [u8],
}

impl Words<'_> {
    /// The next number, with the white space behind it.
    fn number(&mut self) -> Result<Option<u32>, ImageError> {
        let mut number = 0_u64;
        let mut digits = 0;
        while let Some(byte) = self.next() {
            if is_white(byte) {
                if digits == 0 {
                    continue;
                }
                break;
            }
            number = number * 10 + u64::from(digit_of(byte)?);
            digits += 1;
            if digits > DIGITS_MAX {
                return Err(PNM.corrupt(format!("a number of more than {DIGITS_MAX} digits")));
            }
        }
        let number =
            u32::try_from(number).map_err(|_| PNM.corrupt(format!("{number} is too large")))?;
        Ok((digits > 0).then_some(number))
    }

    /// The next digit.
    fn digit(&mut self) -> Result<Option<u32>, ImageError> {
        while let Some(byte) = self.next() {
            if !is_white(byte) {
                return digit_of(byte).map(Some);
            }
        }
        Ok(None)
    }

    /// The next byte that is not in a comment.
    fn next(&mut self) -> Option<u8> {
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            if byte != b'#' {
                return Some(byte);
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            self.rest = end.map_or(&[], |end| &rest[end + 1..]);
        }
    }
}

fn digit_of(byte: u8) -> Result<u32, ImageError> {
    let digit = (byte as char).to_digit(10);
    digit.ok_or_else(|| PNM.corrupt(format!("{:?} where a number should be", byte as char)))
}

fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0d)
}
