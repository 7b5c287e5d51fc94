//! TIFF, with places of 32 or 64 bits, of several pages the first, as PIL converts it to RGB: turned as it says, of 16 bits the upper eight,
//! except for grey, which PIL cuts off at 255, as all wider numbers. JPEG strips go to the decoder of JPEG files.

mod chunk;
mod directory;
mod layout;

use super::fields::Fields;
use super::jpeg::Jpeg;
use super::{Decoders, Encoding, room};
use crate::error::{ImageError, PIXELS_MAX};
use crate::geometry::{Rect, Size};
use crate::resample::{Bitmap, Pixel};
use directory::Directory;
use layout::{Chunk, Compression, Kind, Layout, Numbers};

const TIFF: Encoding = Encoding::Tiff;

/// Whether bytes are an image of this format.
pub(super) fn begins(encoded: &[u8]) -> bool {
    matches!(
        encoded,
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..]
    )
}

/// An image whose first directory has been read.
pub(crate) struct Opened<'a> {
    fields: Fields<'a>,
    directory: Directory<'a>,
    layout: Layout,
    decoders: &'a mut Decoders,
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8], decoders: &'a mut Decoders) -> Result<Self, ImageError> {
        let fields = Fields::new(encoded, encoded[0] == b'M');
        let directory = Directory::read(fields)?;
        let layout = directory.layout()?;
        Ok(Self {
            fields,
            directory,
            layout,
            decoders,
        })
    }

    pub(super) const fn size(&self) -> Size {
        self.layout.turn.size(self.layout.size)
    }

    pub(super) fn read(self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let size = self.size();
        let Self {
            fields,
            directory,
            layout,
            decoders,
        } = self;
        let chunks = directory.chunks(&layout)?;
        check_lengths(&layout, &chunks, fields)?;
        let pixels = room(pixels, size.area() as usize);
        let mut canvas = Canvas {
            layout: &layout,
            is_big_endian: fields.is_big_endian(),
            pixels,
        };
        match layout.compression {
            Compression::Jpeg { has_chroma } => {
                let jpeg = decoders.jpeg.get_or_insert_with(Jpeg::new);
                let head = jpeg_head(directory.jpeg_tables()?, has_chroma);
                let mut part = Vec::new();
                for chunk in &chunks {
                    canvas.put_jpeg(
                        chunk,
                        &joined(&head, encoded(chunk, fields)?),
                        jpeg,
                        &mut part,
                    )?;
                }
            }
            _ => {
                for chunk in &chunks {
                    canvas.put(chunk, encoded(chunk, fields)?, &mut decoders.bytes)?;
                }
            }
        }
        for pixel in pixels.iter_mut() {
            *pixel = layout.kind.colour(*pixel);
        }
        Ok(Bitmap {
            pixels,
            stride: size.width as usize,
            x: 0,
            y: 0,
        })
    }
}

fn encoded<'a>(chunk: &Chunk, fields: Fields<'a>) -> Result<&'a [u8], ImageError> {
    let bytes = fields.slice(chunk.bytes.start, chunk.bytes.end - chunk.bytes.start);
    bytes.ok_or_else(|| TIFF.truncated("a strip or tile lies behind the end of the file"))
}

/// Strips and tiles that cannot hold the image are known before memory is taken for it.
fn check_lengths(layout: &Layout, chunks: &[Chunk], fields: Fields<'_>) -> Result<(), ImageError> {
    for chunk in chunks {
        let len = encoded(chunk, fields)?.len() as u64;
        let needed = u64::from(chunk.lines) * layout.line_bytes() as u64;
        let is_jpeg = matches!(layout.compression, Compression::Jpeg { .. });
        if !is_jpeg && len.saturating_mul(chunk::RATIO_MAX) < needed {
            return Err(TIFF.truncated(format!("{len} bytes for a strip or tile of {needed}")));
        }
    }
    Ok(())
}

/// The start of a JPEG file of one strip or tile: how its colours are stored, which only the directory tells, and the
/// tables that all have in common, without their own start and end.
fn jpeg_head(tables: &[u8], has_chroma: bool) -> Vec<u8> {
    let mut head = vec![0xff, 0xd8, 0xff, 0xee, 0, 14];
    head.extend(b"Adobe\0\x64\0\0\0\0");
    head.push(u8::from(has_chroma));
    head.extend(
        tables
            .get(2..tables.len().saturating_sub(2))
            .unwrap_or_default(),
    );
    head
}

fn joined(head: &[u8], stream: &[u8]) -> Vec<u8> {
    [head, stream.get(2..).unwrap_or_default()].concat()
}

/// Pixels that hold their first four samples, in eight bits each, until all are there.
struct Canvas<'a> {
    layout: &'a Layout,
    is_big_endian: bool,
    pixels: &'a mut [Pixel],
}

impl Canvas<'_> {
    fn put(
        &mut self,
        chunk: &Chunk,
        encoded: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<(), ImageError> {
        let layout = self.layout;
        let line_bytes = layout.line_bytes();
        bytes.resize(line_bytes * chunk.lines as usize, 0);
        if layout.is_bit_reversed {
            let reversed: Vec<u8> = encoded.iter().map(|byte| byte.reverse_bits()).collect();
            chunk::decompress(layout.compression, &reversed, bytes)?;
        } else {
            chunk::decompress(layout.compression, encoded, bytes)?;
        }
        let samples = layout.chunk_samples();
        for (y, line) in
            (chunk.y as usize..layout.size.height as usize).zip(bytes.chunks_exact_mut(line_bytes))
        {
            if layout.is_predicted {
                chunk::undo_prediction(line, layout.numbers, samples, self.is_big_endian);
            }
            self.put_line(chunk, y, line);
        }
        Ok(())
    }

    fn put_line(&mut self, chunk: &Chunk, y: usize, line: &[u8]) {
        let samples = self.layout.chunk_samples();
        let columns = (self.layout.size.width - chunk.x).min(self.layout.chunk.width) as usize;
        for column in 0..columns {
            let place = self
                .layout
                .turn
                .place(chunk.x as usize + column, y, self.layout.size);
            let pixel = self.pixels[place]
                .iter_mut()
                .skip(chunk.sample)
                .take(samples);
            for (sample, value) in pixel.enumerate() {
                *value = value_at(
                    self.layout,
                    self.is_big_endian,
                    line,
                    column * samples + sample,
                );
            }
        }
    }

    fn put_jpeg(
        &mut self,
        chunk: &Chunk,
        stream: &[u8],
        jpeg: &mut Jpeg,
        part: &mut Vec<Pixel>,
    ) -> Result<(), ImageError> {
        let image = self.layout.size;
        let opened = jpeg.open(stream)?;
        let columns = (image.width - chunk.x).min(self.layout.chunk.width);
        let lines = (image.height - chunk.y).min(chunk.lines);
        let size = opened.size();
        if size.width < columns || size.height < lines || size.area() > PIXELS_MAX {
            return Err(TIFF.corrupt(format!(
                "a JPEG strip or tile of {size}, not {lines} x {columns}"
            )));
        }
        if opened.components() == 4
            && matches!(
                self.layout.compression,
                Compression::Jpeg { has_chroma: true }
            )
        {
            return Err(TIFF.unsupported("JPEG compression of four components with chroma"));
        }
        // A fourth component is no ink: the directory says what it is.
        let bitmap = opened.read_components(
            Rect {
                x: 0,
                y: 0,
                size: Size::new(lines, columns),
            },
            part,
        )?;
        for (y, line) in bitmap
            .pixels
            .chunks(bitmap.stride)
            .take(lines as usize)
            .enumerate()
        {
            for (x, colour) in line[..columns as usize].iter().enumerate() {
                let place =
                    self.layout
                        .turn
                        .place(chunk.x as usize + x, chunk.y as usize + y, image);
                if !self.layout.is_planar {
                    self.pixels[place] = *colour;
                } else if let Some(value) = self.pixels[place].get_mut(chunk.sample) {
                    *value = colour[0];
                }
            }
        }
        Ok(())
    }
}

/// A sample in eight bits.
fn value_at(layout: &Layout, is_big_endian: bool, line: &[u8], at: usize) -> u8 {
    let number = |bytes: usize| {
        let number = Fields::new(line, is_big_endian).number((at * bytes) as u64, bytes as u64);
        number.expect("a line holds its samples")
    };
    match layout.numbers {
        Numbers::Bits(bits) => {
            let bits = bits as usize;
            let most = 0xff_u8 >> (8 - bits);
            let value = line[at * bits / 8] >> (8 - bits - at * bits % 8) & most;
            if matches!(layout.kind, Kind::Palette(_)) {
                value
            } else {
                value * (255 / most)
            }
        }
        Numbers::Bytes => line[at],
        Numbers::Words if matches!(layout.kind, Kind::Grey { .. }) => number(2).min(255) as u8,
        Numbers::Words => (number(2) >> 8) as u8,
        Numbers::SignedWords => (number(2) as i16).clamp(0, 255) as u8,
        Numbers::Integers => (number(4) as i32).clamp(0, 255) as u8,
        // A cast to a smaller type stops at its ends, and what is no number becomes 0.
        Numbers::Floats => f32::from_bits(number(4) as u32) as u8,
    }
}
