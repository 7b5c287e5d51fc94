//! BMP of Windows and of OS/2 1: palettes, fields of bits, run lengths, from the bottom up or from the top down. Alpha is
//! dropped. Which runs and skips are errors is as in PIL.

use super::fields::Fields;
use super::{Encoding, Palette, room};
use crate::error::ImageError;
use crate::geometry::Size;
use crate::resample::{Bitmap, Pixel};

const BMP: Encoding = Encoding::Bmp;

/// Of the file, before the header of the image.
const FILE_HEADER_BYTES: u64 = 14;
/// The oldest header, whose numbers have 16 bits and whose colours have three bytes.
const CORE_HEADER_BYTES: u32 = 12;

/// How pixels are stored.
enum Storage {
    /// So many bits an index.
    Indices(u32),
    /// So many bits an index at most, in runs; four bits in a byte's halves where told.
    Runs { halves: bool },
    /// Five bits each, but for green where told.
    Bits16 { is_green_wide: bool },
    /// So many bytes a pixel, and where in them red, green and blue are.
    Bytes { count: usize, places: [usize; 3] },
}

/// An image whose header has been read.
pub(crate) struct Opened<'a> {
    size: Size,
    is_top_down: bool,
    storage: Storage,
    palette: Palette,
    encoded: &'a [u8],
    /// Where pixels begin in it.
    start: usize,
    bytes: &'a mut Vec<u8>,
}

/// What all headers have.
struct Header {
    bytes: u32,
    width: u32,
    height: u32,
    is_top_down: bool,
    bits: u32,
    compression: u32,
    colours: u32,
}

impl Header {
    fn read(fields: Fields<'_>) -> Option<Self> {
        let at = |offset: u64| FILE_HEADER_BYTES + offset;
        let bytes = fields.u32(at(0))?;
        if bytes == CORE_HEADER_BYTES {
            let [width, height, bits] =
                [fields.u16(at(4))?, fields.u16(at(6))?, fields.u16(at(10))?].map(u32::from);
            return Some(Self {
                bytes,
                width,
                height,
                is_top_down: false,
                bits,
                compression: 0,
                colours: 0,
            });
        }
        let height = fields.u32(at(8))?.cast_signed();
        // Heights from the top down are negative, and small.
        let is_top_down = height < 0 && height.to_be_bytes()[0] == 0xff;
        Some(Self {
            bytes,
            width: fields.u32(at(4))?,
            height: if is_top_down {
                height.unsigned_abs()
            } else {
                height.cast_unsigned()
            },
            is_top_down,
            bits: fields.u16(at(14))?.into(),
            compression: fields.u32(at(16))?,
            colours: fields.u32(at(32))?,
        })
    }
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8], bytes: &'a mut Vec<u8>) -> Result<Self, ImageError> {
        let fields = Fields::new(encoded, false);
        let cut = || BMP.truncated("the header is cut short");
        let header = Header::read(fields).ok_or_else(cut)?;
        if ![CORE_HEADER_BYTES, 40, 52, 56, 64, 108, 124].contains(&header.bytes) {
            return Err(BMP.unsupported(format!("a header of {} bytes", header.bytes)));
        }
        let size = Size::new(header.height, header.width);
        if size.area() == 0 {
            return Err(BMP.corrupt("no pixels"));
        }
        let mut behind = FILE_HEADER_BYTES + u64::from(header.bytes);
        let storage = storage_of(&header, fields)?;
        if header.compression == 3 && header.bytes == 40 {
            // Masks are no part of this header.
            behind += 12;
        }
        let is_indexed = matches!(storage, Storage::Indices(_) | Storage::Runs { .. });
        let (palette, colours_end) = palette_of(&header, fields, behind, is_indexed)?;
        let told = u64::from(fields.u32(10).ok_or_else(cut)?);
        let is_behind_header = told == FILE_HEADER_BYTES + u64::from(header.bytes) && is_indexed;
        let start = if told == 0 || is_behind_header {
            colours_end
        } else {
            told
        };
        let start = usize::try_from(start).map_err(|_| cut())?;
        Ok(Self {
            size,
            is_top_down: header.is_top_down,
            storage,
            palette,
            encoded,
            start,
            bytes,
        })
    }

    pub(super) const fn size(&self) -> Size {
        self.size
    }

    pub(super) fn read(self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let width = self.size.width as usize;
        let body = self.encoded.get(self.start..).unwrap_or_default();
        let (line_bits, bytes) = match self.storage {
            Storage::Runs { halves } => {
                unroll(body, self.start, self.size, halves, self.bytes)?;
                // A byte an index, without any padding.
                (0, self.bytes.as_slice())
            }
            Storage::Indices(bits) => (width * bits as usize, body),
            Storage::Bits16 { .. } => (width * 16, body),
            Storage::Bytes { count, .. } => (width * count * 8, body),
        };
        let used = if line_bits == 0 {
            width
        } else {
            line_bits.div_ceil(8)
        };
        let stride = if line_bits == 0 {
            width
        } else {
            line_bits.div_ceil(32) * 4
        };
        let needed = stride * (self.size.height as usize - 1) + used;
        if bytes.len() < needed {
            return Err(BMP.truncated(format!("{} of {needed} bytes", bytes.len())));
        }
        let pixels = room(pixels, self.size.area() as usize);
        for (number, line) in pixels.chunks_exact_mut(width).enumerate() {
            let from = if self.is_top_down {
                number
            } else {
                self.size.height as usize - 1 - number
            };
            fill(
                &self.storage,
                &self.palette,
                &bytes[from * stride..][..used],
                line,
            );
        }
        Ok(Bitmap {
            pixels,
            stride: width,
            x: 0,
            y: 0,
        })
    }
}

fn storage_of(header: &Header, fields: Fields<'_>) -> Result<Storage, ImageError> {
    let Header {
        bits, compression, ..
    } = *header;
    match (compression, bits) {
        (0, 1 | 4 | 8) => Ok(Storage::Indices(bits)),
        (0, 16) => Ok(Storage::Bits16 {
            is_green_wide: false,
        }),
        (0, 24) => Ok(Storage::Bytes {
            count: 3,
            places: [2, 1, 0],
        }),
        (0, 32) => Ok(Storage::Bytes {
            count: 4,
            places: [2, 1, 0],
        }),
        (1 | 2, 1 | 4 | 8) => Ok(Storage::Runs {
            halves: compression == 2,
        }),
        (3, 16 | 24 | 32) => masked(header, fields),
        (0, _) => Err(BMP.unsupported(format!("{bits} bits a pixel"))),
        _ => Err(BMP.unsupported(format!(
            "compression {compression} with {bits} bits a pixel"
        ))),
    }
}

/// Fields of bits: those that PIL knows, and any whole bytes.
fn masked(header: &Header, fields: Fields<'_>) -> Result<Storage, ImageError> {
    // Wherever they are, they follow the 40 bytes that all these headers begin with.
    let mask = |number: u64| fields.u32(FILE_HEADER_BYTES + 40 + 4 * number);
    let masks = [mask(0), mask(1), mask(2)].map(|mask| mask.unwrap_or(0));
    let byte_of = |mask: u32| (0..4).find(|byte| mask == 0xff << (8 * byte));
    match (header.bits, masks) {
        (16, [0xf800, 0x7e0, 0x1f]) => Ok(Storage::Bits16 {
            is_green_wide: true,
        }),
        (16, [0x7c00, 0x3e0, 0x1f]) => Ok(Storage::Bits16 {
            is_green_wide: false,
        }),
        (32, [0, 0, 0]) => Ok(Storage::Bytes {
            count: 4,
            places: [2, 1, 0],
        }),
        (24 | 32, [red, green, blue]) => {
            let count = header.bits as usize / 8;
            let places =
                [red, green, blue].map(|mask| byte_of(mask).filter(|place| *place < count));
            match places {
                [Some(red), Some(green), Some(blue)] => Ok(Storage::Bytes {
                    count,
                    places: [red, green, blue],
                }),
                _ => Err(BMP.unsupported(format!("fields {red:#x}, {green:#x} and {blue:#x}"))),
            }
        }
        (bits, masks) => Err(BMP.unsupported(format!("fields {masks:#x?} of {bits} bits"))),
    }
}

/// The colours, and where they end.
fn palette_of(
    header: &Header,
    fields: Fields<'_>,
    behind: u64,
    is_indexed: bool,
) -> Result<(Palette, u64), ImageError> {
    if !is_indexed {
        return Ok((Palette::new([]), behind));
    }
    let count = if header.colours == 0 {
        1 << header.bits
    } else {
        u64::from(header.colours)
    };
    if count > 0x1_0000 {
        return Err(BMP.corrupt(format!("a palette of {count} colours")));
    }
    let step = if header.bytes == CORE_HEADER_BYTES {
        3
    } else {
        4
    };
    let bytes = fields
        .slice(behind, count * step)
        .ok_or_else(|| BMP.truncated("the palette is cut short"))?;
    let colours = bytes
        .chunks_exact(step as usize)
        .map(|colour| [colour[2], colour[1], colour[0]]);
    Ok((Palette::new(colours), behind + count * step))
}

/// Makes a line of pixels.
fn fill(storage: &Storage, palette: &Palette, bytes: &[u8], line: &mut [Pixel]) {
    match *storage {
        Storage::Runs { .. } => {
            for (pixel, index) in line.iter_mut().zip(bytes) {
                *pixel = palette.colour(*index);
            }
        }
        Storage::Indices(bits) => {
            let per_byte = 8 / bits as usize;
            for (at, pixel) in line.iter_mut().enumerate() {
                let shift = 8 - bits as usize * (at % per_byte + 1);
                let index = bytes[at / per_byte] >> shift & (0xff >> (8 - bits));
                *pixel = palette.colour(index);
            }
        }
        Storage::Bits16 { is_green_wide } => {
            let green_bits = if is_green_wide { 6 } else { 5 };
            for (pixel, pair) in line.iter_mut().zip(bytes.chunks_exact(2)) {
                let word = u32::from(u16::from_le_bytes([pair[0], pair[1]]));
                let part = |shift: u32, bits: u32| {
                    let most = (1 << bits) - 1;
                    ((word >> shift & most) * 255 / most) as u8
                };
                *pixel = [part(5 + green_bits, 5), part(5, green_bits), part(0, 5), 0];
            }
        }
        Storage::Bytes {
            count,
            places: [red, green, blue],
        } => {
            for (pixel, bytes) in line.iter_mut().zip(bytes.chunks_exact(count)) {
                *pixel = [bytes[red], bytes[green], bytes[blue], 0];
            }
        }
    }
}

/// Makes indices of runs, as many as there are pixels. `start` is the place of `body` in the file: absolute pixels are
/// padded to even places.
fn unroll(
    body: &[u8],
    start: usize,
    size: Size,
    halves: bool,
    indices: &mut Vec<u8>,
) -> Result<(), ImageError> {
    let width = size.width as usize;
    let needed = size.area() as usize;
    let mut at = 0;
    let mut x = 0;
    indices.clear();
    while indices.len() < needed {
        let Some(&[count, value]) = body.get(at..at + 2) else {
            break;
        };
        at += 2;
        let left = needed - indices.len();
        match (count, value) {
            // The end of a line; one that has just ended does not end again.
            (0, 0) => {
                indices.resize(indices.len().next_multiple_of(width), 0);
                x = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let Some(&[right, up]) = body.get(at..at + 2) else {
                    break;
                };
                at += 2;
                let skipped = usize::from(right) + usize::from(up) * width;
                indices.resize(indices.len() + skipped.min(left), 0);
                x = indices.len() % width;
            }
            (0, count) => {
                let count = usize::from(count);
                let taken = count.min(left);
                let len = if halves { taken.div_ceil(2) } else { taken };
                let Some(bytes) = body.get(at..at + len) else {
                    break;
                };
                at += len;
                let index = |place: usize| {
                    if halves {
                        half(bytes[place / 2], place)
                    } else {
                        bytes[place]
                    }
                };
                indices.extend((0..taken).map(index));
                x += count;
                at += (start + at) % 2;
            }
            (count, value) => {
                let count = usize::from(count).min(width.saturating_sub(x));
                // What runs over the last line is cut off there, too.
                let taken = count.min(left);
                indices.extend(
                    (0..taken).map(|place| if halves { half(value, place) } else { value }),
                );
                x += count;
            }
        }
    }
    if indices.len() == needed {
        return Ok(());
    }
    Err(BMP.truncated(format!("{} of {needed} pixels", indices.len())))
}

/// The first or the second four bits.
fn half(byte: u8, place: usize) -> u8 {
    if place.is_multiple_of(2) {
        byte >> 4
    } else {
        byte & 0xf
    }
}
