//! The first directory of a TIFF file: its tags, and what they say about the pixels. What is not read here is refused.

use std::collections::BTreeMap;

use super::TIFF;
use super::layout::{Chunk, Compression, Kind, Layout, Numbers, Parts, Turn};
use crate::decode::Palette;
use crate::decode::fields::Fields;
use crate::error::{ImageError, PIXELS_MAX};
use crate::geometry::Size;

/// PIL's limit.
const SAMPLES_MAX: u64 = 6;
/// What a strip or tile may take: eight bytes for each pixel of the largest image.
const CHUNK_BYTES_MAX: u64 = PIXELS_MAX * 8;

mod tag {
    pub(super) const WIDTH: u16 = 256;
    pub(super) const HEIGHT: u16 = 257;
    pub(super) const BITS: u16 = 258;
    pub(super) const COMPRESSION: u16 = 259;
    pub(super) const PHOTOMETRIC: u16 = 262;
    pub(super) const FILL_ORDER: u16 = 266;
    pub(super) const STRIPS: u16 = 273;
    pub(super) const ORIENTATION: u16 = 274;
    pub(super) const SAMPLES: u16 = 277;
    pub(super) const STRIP_LINES: u16 = 278;
    pub(super) const STRIP_BYTES: u16 = 279;
    pub(super) const PLANES: u16 = 284;
    pub(super) const PREDICTOR: u16 = 317;
    pub(super) const COLOURS: u16 = 320;
    pub(super) const TILE_WIDTH: u16 = 322;
    pub(super) const TILE_HEIGHT: u16 = 323;
    pub(super) const TILES: u16 = 324;
    pub(super) const TILE_BYTES: u16 = 325;
    pub(super) const EXTRA: u16 = 338;
    pub(super) const FORMAT: u16 = 339;
    pub(super) const JPEG_TABLES: u16 = 347;
}

/// Where the values of a tag are.
struct Entry {
    value_bytes: u64,
    count: u64,
    at: u64,
}

pub(super) struct Directory<'a> {
    fields: Fields<'a>,
    entries: BTreeMap<u16, Entry>,
}

impl<'a> Directory<'a> {
    pub(super) fn read(fields: Fields<'a>) -> Result<Self, ImageError> {
        let entries =
            entries(fields).ok_or_else(|| TIFF.truncated("the directory is cut short"))?;
        Ok(Self { fields, entries })
    }

    /// All numbers of a tag, if it is there.
    fn numbers(&self, tag: u16) -> Result<Option<Vec<u64>>, ImageError> {
        let Some(Entry {
            value_bytes,
            count,
            at,
        }) = self.entries.get(&tag)
        else {
            return Ok(None);
        };
        if !matches!(value_bytes, 1 | 2 | 4 | 8) {
            return Err(TIFF.corrupt(format!("tag {tag} holds no numbers")));
        }
        let cut = || TIFF.truncated(format!("the values of tag {tag} are cut short"));
        let len = count.checked_mul(*value_bytes).ok_or_else(cut)?;
        // All of them, before memory is taken for so many.
        self.fields.slice(*at, len).ok_or_else(cut)?;
        let number = |number: u64| self.fields.number(at + number * value_bytes, *value_bytes);
        let numbers: Option<Vec<u64>> = (0..*count).map(number).collect();
        numbers.ok_or_else(cut).map(Some)
    }

    /// The first number of a tag.
    fn number(&self, tag: u16) -> Result<Option<u64>, ImageError> {
        Ok(self
            .numbers(tag)?
            .and_then(|numbers| numbers.first().copied()))
    }

    fn number_or(&self, tag: u16, otherwise: u64) -> Result<u64, ImageError> {
        Ok(self.number(tag)?.unwrap_or(otherwise))
    }

    fn edge(&self, tag: u16) -> Result<u32, ImageError> {
        let edge = self.number_or(tag, 0)?;
        let edge = u32::try_from(edge).ok().filter(|edge| *edge > 0);
        edge.ok_or_else(|| TIFF.corrupt(format!("tag {tag} is no length")))
    }

    /// What the tags say, all in all.
    pub(super) fn layout(&self) -> Result<Layout, ImageError> {
        let size = Size::new(self.edge(tag::HEIGHT)?, self.edge(tag::WIDTH)?);
        let samples = self.number_or(tag::SAMPLES, 1)?;
        if !(1..=SAMPLES_MAX).contains(&samples) {
            return Err(TIFF.unsupported(format!("{samples} samples a pixel")));
        }
        let extra = self.numbers(tag::EXTRA)?.unwrap_or_default();
        let compression = self.compression()?;
        let photometric = self.number_or(tag::PHOTOMETRIC, 0)?;
        let numbers = self.samples_as(photometric, samples as usize)?;
        let kind = self.kind(photometric, numbers, compression, extra.first() == Some(&1))?;
        if (samples as usize) < kind.colours() {
            return Err(TIFF.corrupt(format!(
                "{samples} samples a pixel for {} colours",
                kind.colours()
            )));
        }
        let (parts, chunk) = self.chunk_size(size)?;
        let is_jpeg = matches!(compression, Compression::Jpeg { .. });
        let layout = Layout {
            size,
            turn: Turn::of(self.number_or(tag::ORIENTATION, 1)?),
            samples: samples as usize,
            numbers,
            kind,
            is_planar: self.number_or(tag::PLANES, 1)? == 2,
            compression,
            is_predicted: self.is_predicted(numbers, compression)?,
            is_bit_reversed: self.number_or(tag::FILL_ORDER, 1)? == 2 && !is_jpeg,
            chunk,
            parts,
        };
        let bytes = u64::from(chunk.height).saturating_mul(layout.line_bytes() as u64);
        // What is too large as a whole is said so by who opens images.
        if size.area() <= PIXELS_MAX && bytes > CHUNK_BYTES_MAX {
            return Err(TIFF.corrupt(format!("strips or tiles of {bytes} bytes")));
        }
        Ok(layout)
    }

    fn compression(&self) -> Result<Compression, ImageError> {
        match self.number_or(tag::COMPRESSION, 1)? {
            1 => Ok(Compression::None),
            5 => Ok(Compression::Lzw),
            7 => Ok(Compression::Jpeg {
                has_chroma: self.number_or(tag::PHOTOMETRIC, 0)? == 6,
            }),
            8 | 32946 => Ok(Compression::Deflate),
            32773 => Ok(Compression::PackBits),
            number => Err(TIFF.unsupported(match number {
                2..=4 => "fax compression".to_owned(),
                6 => "JPEG compression of the old style".to_owned(),
                _ => format!("compression {number}"),
            })),
        }
    }

    /// The type of samples.
    fn samples_as(&self, photometric: u64, samples: usize) -> Result<Numbers, ImageError> {
        let bits = self.numbers(tag::BITS)?.unwrap_or_else(|| vec![1]);
        let bits = &bits[..bits.len().min(samples)];
        let first = bits.first().copied().unwrap_or(1);
        if bits.iter().any(|bits| *bits != first) || (bits.len() != samples && bits.len() != 1) {
            return Err(TIFF.unsupported(format!("samples of {bits:?} bits")));
        }
        let is_grey = photometric <= 1;
        let format = self.number_or(tag::FORMAT, 1)?;
        match (first, format) {
            (1 | 2 | 4, 1) if is_grey || photometric == 3 => Ok(Numbers::Bits(first as u32)),
            (8, 1 | 4) => Ok(Numbers::Bytes),
            (8, 2) if is_grey => Ok(Numbers::Bytes),
            (16, 1) if photometric != 3 => Ok(Numbers::Words),
            (16, 2) if is_grey => Ok(Numbers::SignedWords),
            (32, 1 | 2) if is_grey => Ok(Numbers::Integers),
            (32, 3) if is_grey => Ok(Numbers::Floats),
            _ => Err(TIFF.unsupported(format!("samples of {first} bits and format {format}"))),
        }
    }

    fn kind(
        &self,
        photometric: u64,
        numbers: Numbers,
        compression: Compression,
        is_covered: bool,
    ) -> Result<Kind, ImageError> {
        let is_jpeg = matches!(compression, Compression::Jpeg { .. });
        if is_jpeg && numbers != Numbers::Bytes {
            return Err(TIFF.unsupported("JPEG compression of other than eight bits"));
        }
        match photometric {
            // PIL turns over what has eight bits or fewer.
            0 => Ok(Kind::Grey {
                is_inverted: matches!(numbers, Numbers::Bits(_) | Numbers::Bytes),
                is_covered,
            }),
            1 => Ok(Kind::Grey {
                is_inverted: false,
                is_covered,
            }),
            2 => Ok(Kind::Rgb { is_covered }),
            3 => self
                .palette(numbers)
                .map(|palette| Kind::Palette(Box::new(palette))),
            5 if !is_jpeg => Ok(Kind::Cmyk),
            6 if is_jpeg => Ok(Kind::Rgb { is_covered: false }),
            number => {
                let by_jpeg = if is_jpeg { " by JPEG" } else { "" };
                Err(TIFF.unsupported(format!("photometric interpretation {number}{by_jpeg}")))
            }
        }
    }

    /// All reds, then all greens, then all blues, of 16 bits.
    fn palette(&self, numbers: Numbers) -> Result<Palette, ImageError> {
        let count = 1_usize
            << if let Numbers::Bits(bits) = numbers {
                bits
            } else {
                8
            };
        let colours = self.numbers(tag::COLOURS)?.unwrap_or_default();
        if colours.len() != 3 * count {
            return Err(TIFF.corrupt(format!(
                "a palette of {} numbers, not {}",
                colours.len(),
                3 * count
            )));
        }
        let part = |at: usize| (colours[at] >> 8) as u8;
        Ok(Palette::new((0..count).map(|index| {
            [part(index), part(count + index), part(2 * count + index)]
        })))
    }

    fn is_predicted(&self, numbers: Numbers, compression: Compression) -> Result<bool, ImageError> {
        if !matches!(compression, Compression::Lzw | Compression::Deflate) {
            return Ok(false);
        }
        match (self.number_or(tag::PREDICTOR, 1)?, numbers) {
            (1, _) => Ok(false),
            (2, Numbers::Bytes | Numbers::Words | Numbers::SignedWords | Numbers::Integers) => {
                Ok(true)
            }
            (number, _) => Err(TIFF.unsupported(format!("predictor {number} with {numbers:?}"))),
        }
    }

    /// Whether there are strips or tiles, and their size.
    fn chunk_size(&self, image: Size) -> Result<(Parts, Size), ImageError> {
        if self.entries.contains_key(&tag::TILES) && !self.entries.contains_key(&tag::STRIPS) {
            return Ok((
                Parts::Tiles,
                Size::new(self.edge(tag::TILE_HEIGHT)?, self.edge(tag::TILE_WIDTH)?),
            ));
        }
        let lines = self.number_or(tag::STRIP_LINES, image.height.into())?;
        let lines = lines.clamp(1, image.height.into()) as u32;
        Ok((Parts::Strips, Size::new(lines, image.width)))
    }

    /// All strips or tiles, plane by plane.
    pub(super) fn chunks(&self, layout: &Layout) -> Result<Vec<Chunk>, ImageError> {
        let (places, lengths) = match layout.parts {
            Parts::Strips => (tag::STRIPS, tag::STRIP_BYTES),
            Parts::Tiles => (tag::TILES, tag::TILE_BYTES),
        };
        let places = self.numbers(places)?.unwrap_or_default();
        let lengths = self.numbers(lengths)?.unwrap_or_default();
        let needed = layout.chunks();
        if (places.len() as u64) < needed {
            return Err(TIFF.corrupt(format!("{} of {needed} strips or tiles", places.len())));
        }
        let line_bytes = layout.line_bytes() as u64;
        let located = |(number, start): (u64, &u64)| {
            let chunk = layout.chunk(number);
            let len = match layout.compression {
                // It is known, and told wrongly at times.
                Compression::None => u64::from(chunk.lines) * line_bytes,
                _ => *lengths
                    .get(number as usize)
                    .ok_or_else(|| TIFF.corrupt("a strip or tile without a length"))?,
            };
            Ok(Chunk {
                bytes: *start..start.saturating_add(len),
                ..chunk
            })
        };
        (0..needed).zip(&places).map(located).collect()
    }

    /// Of all JPEG strips or tiles.
    pub(super) fn jpeg_tables(&self) -> Result<&'a [u8], ImageError> {
        let Some(entry) = self.entries.get(&tag::JPEG_TABLES) else {
            return Ok(&[]);
        };
        let tables = self
            .fields
            .slice(entry.at, entry.count.saturating_mul(entry.value_bytes));
        tables.ok_or_else(|| TIFF.truncated("the JPEG tables are cut short"))
    }
}

/// Where values are, tag by tag; `None` where the file is cut short.
fn entries(fields: Fields<'_>) -> Option<BTreeMap<u16, Entry>> {
    let is_big = fields.u16(2)? == 43;
    // Of counts and places, of an entry, and of the number of entries.
    let (word, entry, count) = if is_big { (8, 20, 8) } else { (4, 12, 2) };
    let start = fields.number(if is_big { 8 } else { 4 }, word)?;
    let entries = fields.number(start, count)?;
    let start = start.checked_add(count)?;
    fields.slice(start, entries.checked_mul(entry)?)?;
    let mut known = BTreeMap::new();
    for at in (0..entries).map(|number| start + number * entry) {
        let tag = fields.u16(at)?;
        let value_bytes = value_bytes(fields.u16(at + 2)?);
        let count = fields.number(at + 4, word)?;
        // What fits is in the place of its place.
        let place = at + 4 + word;
        let fits = count
            .checked_mul(value_bytes)
            .is_some_and(|len| len <= word);
        let at = if fits {
            place
        } else {
            fields.number(place, word)?
        };
        known.entry(tag).or_insert(Entry {
            value_bytes,
            count,
            at,
        });
    }
    Some(known)
}

/// Of whole numbers without sign; 0 for all other types.
const fn value_bytes(kind: u16) -> u64 {
    match kind {
        1 | 7 => 1,
        3 => 2,
        4 | 13 => 4,
        16 => 8,
        _ => 0,
    }
}
