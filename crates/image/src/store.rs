//! From pixels to the numbers and the layout of a tensor.
//!
//! A channel has 256 values, so scaling, normalising and rounding to half precision are done once for each of them and
//! looked up: the numbers are those of torchvision to the last bit, at the price of a copy.

#![allow(
    clippy::inline_always,
    reason = "as in `resample`, whose loop this is a part of"
)]

use half::f16;

use crate::resample::Wide;

/// Red, green and blue.
pub(crate) const CHANNELS: usize = 3;

/// A factor, as in torchvision's v2: a division by 255 would round differently now and then.
const TO_UNIT: f32 = 1.0 / 255.0;

/// The type of a tensor's numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dtype {
    /// 0 to 1, or normalised.
    Float32,
    /// 0 to 1, or normalised; rounded once, from single precision.
    Float16,
    /// 0 to 255.
    Uint8,
}

impl Dtype {
    /// Of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
            Self::Uint8 => 1,
        }
    }
}

/// The order of a tensor's dimensions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layout {
    /// A plane for each channel.
    Chw,
    /// A triple for each pixel.
    Hwc,
}

/// What a channel's 256 values become, as bytes of the machine's order.
type Table<const BYTES: usize> = [[[u8; BYTES]; 256]; CHANNELS];

enum Tables {
    Float32(Box<Table<4>>),
    Float16(Box<Table<2>>),
    Uint8,
}

/// Writes lines of pixels to a tensor.
pub(crate) struct Store {
    tables: Tables,
    layout: Layout,
}

/// Mean and standard deviation of each channel.
pub(crate) type Statistics = ([f32; CHANNELS], [f32; CHANNELS]);

impl Store {
    pub(crate) fn new(dtype: Dtype, layout: Layout, statistics: Option<Statistics>) -> Self {
        let (mean, std) = statistics.unwrap_or(([0.0; CHANNELS], [1.0; CHANNELS]));
        let number =
            |channel: usize, value: usize| (value as f32 * TO_UNIT - mean[channel]) / std[channel];
        let tables = match dtype {
            Dtype::Float32 => Tables::Float32(Box::new(table(|c, v| number(c, v).to_ne_bytes()))),
            Dtype::Float16 => Tables::Float16(Box::new(table(|c, v| {
                f16::from_f32(number(c, v)).to_ne_bytes()
            }))),
            Dtype::Uint8 => Tables::Uint8,
        };
        Self { tables, layout }
    }

    /// Writes line `y` of an image of this height.
    #[inline(always)]
    pub(crate) fn put(&self, (y, height): (usize, u32), line: &[Wide], into: &mut [u8]) {
        let place = Place {
            layout: self.layout,
            height: height as usize,
            y,
        };
        match &self.tables {
            Tables::Float32(table) => {
                place.put(line, into, |channel, value| table[channel][value as usize]);
            }
            Tables::Float16(table) => {
                place.put(line, into, |channel, value| table[channel][value as usize]);
            }
            Tables::Uint8 => place.put(line, into, |_, value| [value]),
        }
    }
}

fn table<const BYTES: usize>(of: impl Fn(usize, usize) -> [u8; BYTES]) -> Table<BYTES> {
    std::array::from_fn(|channel| std::array::from_fn(|value| of(channel, value)))
}

/// Where a line goes.
struct Place {
    layout: Layout,
    height: usize,
    y: usize,
}

impl Place {
    /// Writes what each channel's value becomes.
    #[inline(always)]
    fn put<const BYTES: usize>(
        &self,
        line: &[Wide],
        into: &mut [u8],
        number: impl Fn(usize, u8) -> [u8; BYTES],
    ) {
        let (into, _) = into.as_chunks_mut::<BYTES>();
        match self.layout {
            Layout::Chw => self.put_planes(line, into, number),
            Layout::Hwc => self.put_triples(line, into, number),
        }
    }

    #[inline(always)]
    fn put_planes<N>(&self, line: &[Wide], into: &mut [N], number: impl Fn(usize, u8) -> N) {
        let planes = into.chunks_exact_mut(self.height * line.len());
        for (channel, plane) in planes.enumerate() {
            let numbers = &mut plane[self.y * line.len()..][..line.len()];
            for (into, pixel) in numbers.iter_mut().zip(line) {
                *into = number(channel, pixel[channel] as u8);
            }
        }
    }

    #[inline(always)]
    fn put_triples<N>(&self, line: &[Wide], into: &mut [N], number: impl Fn(usize, u8) -> N) {
        let (triples, _) = into.as_chunks_mut::<CHANNELS>();
        let triples = &mut triples[self.y * line.len()..][..line.len()];
        for (into, pixel) in triples.iter_mut().zip(line) {
            *into = std::array::from_fn(|channel| number(channel, pixel[channel] as u8));
        }
    }
}
