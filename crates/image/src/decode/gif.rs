//! GIF: the first frame, as PIL shows it. The screen grows where the frame needs it; what the frame does not cover has
//! the transparent colour, or the first one.

use ::gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};

use super::{Encoding, Palette, room};
use crate::error::ImageError;
use crate::geometry::Size;
use crate::resample::{Bitmap, Pixel};

/// An image whose first frame is about to be read.
pub(crate) struct Opened<'a> {
    decoder: Decoder<&'a [u8]>,
    size: Size,
    frame: Frame,
    bytes: &'a mut Vec<u8>,
}

struct Frame {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    palette: Palette,
    /// The index of what it does not cover.
    around: u8,
}

impl<'a> Opened<'a> {
    pub(super) fn new(encoded: &'a [u8], bytes: &'a mut Vec<u8>) -> Result<Self, ImageError> {
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        // The buffer is ours, and the size of the screen is checked by who opens images.
        options.set_memory_limit(MemoryLimit::Unlimited);
        let mut decoder = options.read_info(encoded).map_err(error)?;
        let screen = Size::new(decoder.height().into(), decoder.width().into());
        let colours = decoder.global_palette().unwrap_or_default().to_vec();
        let frame = decoder.next_frame_info().map_err(error)?;
        let frame = frame.ok_or_else(|| Encoding::Gif.corrupt("no image"))?;
        let colours = frame.palette.as_ref().unwrap_or(&colours);
        let right = u32::from(frame.left) + u32::from(frame.width);
        let bottom = u32::from(frame.top) + u32::from(frame.height);
        let size = Size::new(screen.height.max(bottom), screen.width.max(right));
        if size.area() == 0 {
            return Err(Encoding::Gif.corrupt("no pixels"));
        }
        let frame = Frame {
            left: frame.left.into(),
            top: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
            palette: Palette::new(
                colours
                    .chunks_exact(3)
                    .map(|colour| [colour[0], colour[1], colour[2]]),
            ),
            around: frame.transparent.unwrap_or(0),
        };
        Ok(Self {
            decoder,
            size,
            frame,
            bytes,
        })
    }

    pub(super) const fn size(&self) -> Size {
        self.size
    }

    pub(super) fn read(mut self, pixels: &mut Vec<Pixel>) -> Result<Bitmap<'_>, ImageError> {
        let Frame {
            left,
            top,
            width,
            height,
            palette,
            around,
        } = &self.frame;
        let stride = self.size.width as usize;
        let pixels = room(pixels, self.size.area() as usize);
        pixels.fill(palette.colour(*around));
        if width * height > 0 {
            self.bytes.resize(width * height, 0);
            self.decoder.read_into_buffer(self.bytes).map_err(error)?;
            let lines = pixels.chunks_exact_mut(stride).skip(*top);
            for (line, indices) in lines.zip(self.bytes.chunks_exact(*width)) {
                for (pixel, index) in line[*left..].iter_mut().zip(indices) {
                    *pixel = palette.colour(*index);
                }
            }
        }
        Ok(Bitmap {
            pixels,
            stride,
            x: 0,
            y: 0,
        })
    }
}

fn error(error: DecodingError) -> ImageError {
    match error {
        DecodingError::UnexpectedEof => Encoding::Gif.truncated("unexpected end of file"),
        other => Encoding::Gif.corrupt(other.to_string()),
    }
}
