//! Strips and tiles: what their bytes are once compression and prediction are undone.

use flate2::{Decompress, FlushDecompress};
use weezl::{BitOrder, LzwStatus};

use super::TIFF;
use super::layout::{Compression, Numbers};
use crate::error::ImageError;

/// No compression here makes more of a byte: LZW up to 3,839 of a code of 12 bits, the others less.
pub(super) const RATIO_MAX: u64 = 4096;

/// Fills `decoded`; fewer bytes are an error.
pub(super) fn decompress(
    compression: Compression,
    encoded: &[u8],
    decoded: &mut [u8],
) -> Result<(), ImageError> {
    let needed = decoded.len();
    let len = match compression {
        Compression::None | Compression::Jpeg { .. } => {
            let len = encoded.len().min(needed);
            decoded[..len].copy_from_slice(&encoded[..len]);
            len
        }
        Compression::PackBits => unpack_bits(encoded, decoded),
        Compression::Lzw => lzw(encoded, decoded)?,
        Compression::Deflate => {
            let mut inflate = Decompress::new(true);
            let status = inflate.decompress(encoded, decoded, FlushDecompress::Finish);
            status.map_err(|error| TIFF.corrupt(error.to_string()))?;
            inflate.total_out() as usize
        }
    };
    if len == needed {
        Ok(())
    } else {
        Err(TIFF.truncated(format!("{len} of {needed} bytes of a strip or tile")))
    }
}

/// Runs and literal bytes; gives how many came out.
fn unpack_bits(mut encoded: &[u8], decoded: &mut [u8]) -> usize {
    let mut len = 0;
    while let (Some((&head, rest)), true) = (encoded.split_first(), len < decoded.len()) {
        let head = head.cast_signed();
        let left = decoded.len() - len;
        encoded = rest;
        if head >= 0 {
            let count = (head as usize + 1).min(rest.len());
            let taken = count.min(left);
            decoded[len..len + taken].copy_from_slice(&rest[..taken]);
            encoded = &rest[count..];
            len += taken;
        } else if head > i8::MIN {
            let Some((&byte, rest)) = rest.split_first() else {
                break;
            };
            let count = (usize::from(head.unsigned_abs()) + 1).min(left);
            decoded[len..len + count].fill(byte);
            encoded = rest;
            len += count;
        }
    }
    len
}

fn lzw(encoded: &[u8], decoded: &mut [u8]) -> Result<usize, ImageError> {
    let mut tables = weezl::decode::Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    let mut read = 0;
    let mut written = 0;
    loop {
        let result = tables.decode_bytes(&encoded[read..], &mut decoded[written..]);
        read += result.consumed_in;
        written += result.consumed_out;
        match result.status {
            Ok(LzwStatus::Ok) if written < decoded.len() => {}
            Ok(_) => return Ok(written),
            Err(error) => return Err(TIFF.corrupt(error.to_string())),
        }
    }
}

/// Adds to each sample of a line the same sample of the pixel before.
pub(super) fn undo_prediction(
    line: &mut [u8],
    numbers: Numbers,
    samples: usize,
    is_big_endian: bool,
) {
    match numbers {
        Numbers::Bits(_) | Numbers::Bytes => add::<1>(line, samples, is_big_endian),
        Numbers::Words | Numbers::SignedWords => add::<2>(line, samples, is_big_endian),
        Numbers::Integers | Numbers::Floats => add::<4>(line, samples, is_big_endian),
    }
}

fn add<const BYTES: usize>(line: &mut [u8], samples: usize, is_big_endian: bool) {
    for at in samples..line.len() / BYTES {
        let (before, rest) = line.split_at_mut(at * BYTES);
        let before = &before[(at - samples) * BYTES..][..BYTES];
        let mut carry = 0;
        for place in 0..BYTES {
            // The lowest byte first.
            let place = if is_big_endian {
                BYTES - 1 - place
            } else {
                place
            };
            let sum = u16::from(rest[place]) + u16::from(before[place]) + carry;
            rest[place] = sum as u8;
            carry = sum >> 8;
        }
    }
}
