//! JPEG by libjpeg-turbo, through the shim in `native/jpeg_window.c`.
//!
//! Columns outside the window are not transformed back to pixels, lines above it only pass the entropy decoder, and
//! lines below it are not looked at, except for the end marker: a file without one is truncated, as for PIL. Pixels of
//! the window are those of a decode of the whole image, byte for byte.

#![allow(unsafe_code, reason = "libjpeg is C; this file is all that knows it")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::marker::PhantomData;
use std::ptr::NonNull;

// For its build of libjpeg-turbo, which the shim calls.
use turbojpeg_sys as _;

use super::{Encoding, from_cmyk, room};
use crate::error::ImageError;
use crate::geometry::{Rect, Size};
use crate::resample::{Bitmap, Pixel};

/// The shim's decoder, never seen from inside.
#[repr(C)]
struct Raw {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Default)]
struct Header {
    width: c_uint,
    height: c_uint,
    components: c_uint,
}

#[repr(C)]
struct Window {
    x: c_uint,
    y: c_uint,
    width: c_uint,
    height: c_uint,
}

/// The shim's results.
const OK: c_int = 0;
const TRUNCATED: c_int = 1;

unsafe extern "C" {
    fn foresee_jpeg_new() -> *mut Raw;
    fn foresee_jpeg_free(jpeg: *mut Raw);
    fn foresee_jpeg_message(jpeg: *const Raw) -> *const c_char;
    fn foresee_jpeg_close(jpeg: *mut Raw);
    fn foresee_jpeg_open(
        jpeg: *mut Raw,
        bytes: *const u8,
        len: usize,
        header: *mut Header,
    ) -> c_int;
    fn foresee_jpeg_plan(
        jpeg: *mut Raw,
        window: *const Window,
        line_pixels: *mut c_uint,
        left: *mut c_uint,
    ) -> c_int;
    fn foresee_jpeg_read(jpeg: *mut Raw, height: c_uint, pixels: *mut u8) -> c_int;
}

/// A decoder, used again from image to image.
pub(crate) struct Jpeg {
    raw: NonNull<Raw>,
}

// SAFETY: the shim's decoder has no global or thread-local state, and nothing else holds the pointer.
unsafe impl Send for Jpeg {}

impl Jpeg {
    /// # Panics
    ///
    /// When there is no memory for it, as any allocation.
    pub(super) fn new() -> Self {
        // SAFETY: takes nothing; null means no memory.
        let raw = NonNull::new(unsafe { foresee_jpeg_new() });
        Self {
            raw: raw.expect("no memory for a JPEG decoder"),
        }
    }

    /// Reads a header.
    pub(super) fn open<'a>(&'a mut self, encoded: &'a [u8]) -> Result<Opened<'a>, ImageError> {
        // The guard comes first: it ends the image on errors, too.
        let mut opened = Opened {
            jpeg: self,
            header: Header::default(),
            encoded: PhantomData,
        };
        let raw = opened.jpeg.raw.as_ptr();
        // SAFETY: the decoder is alive and has no image, since `Opened` closes it when it goes. The bytes outlive
        // `opened`, after which the decoder no longer refers to them. The header is a field that lives here.
        let code = unsafe {
            foresee_jpeg_open(raw, encoded.as_ptr(), encoded.len(), &raw mut opened.header)
        };
        opened.jpeg.check(code)?;
        match opened.header.components {
            1 | 3 | 4 => Ok(opened),
            count => Err(corrupt(format!("{count} components, not 1, 3 or 4"))),
        }
    }

    fn check(&self, code: c_int) -> Result<(), ImageError> {
        if code == OK {
            return Ok(());
        }
        // SAFETY: the decoder is alive, and its message ends with a zero byte inside the decoder.
        let message = unsafe { CStr::from_ptr(foresee_jpeg_message(self.raw.as_ptr())) };
        let reason = message.to_string_lossy().into_owned();
        Err(if code == TRUNCATED {
            ImageError::Truncated {
                encoding: Encoding::Jpeg,
                reason,
            }
        } else {
            corrupt(reason)
        })
    }
}

impl Drop for Jpeg {
    fn drop(&mut self) {
        // SAFETY: made by `foresee_jpeg_new` and not used after this.
        unsafe { foresee_jpeg_free(self.raw.as_ptr()) }
    }
}

/// An image whose header has been read.
pub(crate) struct Opened<'a> {
    jpeg: &'a mut Jpeg,
    header: Header,
    /// The decoder holds a pointer to them.
    encoded: PhantomData<&'a [u8]>,
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        Size::new(self.header.height, self.header.width)
    }

    pub(super) fn read(
        self,
        window: Rect,
        pixels: &mut Vec<Pixel>,
    ) -> Result<Bitmap<'_>, ImageError> {
        let has_inks = self.components() == 4;
        self.read_as(window, has_inks, pixels)
    }

    /// How many components each pixel has: 1, 3 or 4.
    pub(super) const fn components(&self) -> u32 {
        self.header.components
    }

    /// Reads pixels whose fourth component is what it is, no ink.
    pub(super) fn read_components(
        self,
        window: Rect,
        pixels: &mut Vec<Pixel>,
    ) -> Result<Bitmap<'_>, ImageError> {
        self.read_as(window, false, pixels)
    }

    fn read_as(
        self,
        window: Rect,
        has_inks: bool,
        pixels: &mut Vec<Pixel>,
    ) -> Result<Bitmap<'_>, ImageError> {
        let Rect {
            x,
            y,
            size: Size { height, width },
        } = window;
        let inside = |start: u32, len: u32, whole: u32| {
            len > 0 && start.checked_add(len).is_some_and(|end| end <= whole)
        };
        assert!(
            inside(x, width, self.header.width) && inside(y, height, self.header.height),
            "a window inside the image"
        );
        let (stride, left) = self.plan(&Window {
            x,
            y,
            width,
            height,
        })?;
        let pixels = room(pixels, stride * height as usize);
        // SAFETY: the decoder is alive, has planned its window, and its bytes are borrowed by `self`. `pixels` has
        // `height` lines of `stride` pixels of four bytes, the length of a line that the shim has told.
        let code = unsafe {
            foresee_jpeg_read(
                self.jpeg.raw.as_ptr(),
                height,
                pixels.as_flattened_mut().as_mut_ptr(),
            )
        };
        self.jpeg.check(code)?;
        if has_inks {
            for pixel in pixels.iter_mut() {
                *pixel = from_inverted_cmyk(*pixel);
            }
        }
        Ok(Bitmap {
            pixels,
            stride,
            x: x - left,
            y,
        })
    }

    /// Gives the pixels of a line and how many of them are left of the window.
    fn plan(&self, window: &Window) -> Result<(usize, u32), ImageError> {
        let mut line_pixels = 0;
        let mut left = 0;
        // SAFETY: the decoder is alive and has a header, its bytes are borrowed by `self`, the window lies inside the
        // image and the other pointers are variables that live here.
        let code = unsafe {
            foresee_jpeg_plan(
                self.jpeg.raw.as_ptr(),
                window,
                &raw mut line_pixels,
                &raw mut left,
            )
        };
        self.jpeg.check(code)?;
        assert!(
            left + window.width <= line_pixels,
            "a line holds the window"
        );
        Ok((line_pixels as usize, left))
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: the decoder is alive; closing is allowed in any state.
        unsafe { foresee_jpeg_close(self.jpeg.raw.as_ptr()) }
    }
}

fn corrupt(reason: String) -> ImageError {
    ImageError::Corrupt {
        encoding: Encoding::Jpeg,
        reason,
    }
}

/// PIL takes every file of four components as one of Adobe's, which hold inverted inks.
fn from_inverted_cmyk(inks: Pixel) -> Pixel {
    from_cmyk(inks.map(|ink| 255 - ink))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every way in which chroma is stored, and every way of coding.
    const IMAGES: [&[u8]; 10] = [
        include_bytes!("../../tests/data/jpg_420.jpg"),
        include_bytes!("../../tests/data/jpg_422.jpg"),
        include_bytes!("../../tests/data/jpg_440.jpg"),
        include_bytes!("../../tests/data/jpg_444.jpg"),
        include_bytes!("../../tests/data/jpg_progressive.jpg"),
        include_bytes!("../../tests/data/jpg_restarts.jpg"),
        include_bytes!("../../tests/data/jpg_optimized.jpg"),
        include_bytes!("../../tests/data/jpg_rgb.jpg"),
        include_bytes!("../../tests/data/jpg_grey.jpg"),
        include_bytes!("../../tests/data/jpg_ycck.jpg"),
    ];

    fn read(encoded: &[u8], window: Option<Rect>) -> Result<Vec<Pixel>, ImageError> {
        let mut jpeg = Jpeg::new();
        let opened = jpeg.open(encoded)?;
        let window = window.unwrap_or(Rect {
            x: 0,
            y: 0,
            size: opened.size(),
        });
        let mut pixels = Vec::new();
        let bitmap = opened.read(window, &mut pixels)?;
        let left = (window.x - bitmap.x) as usize;
        let lines = bitmap
            .pixels
            .chunks(bitmap.stride)
            .take(window.size.height as usize);
        Ok(lines
            .flat_map(|line| &line[left..left + window.size.width as usize])
            .copied()
            .collect())
    }

    fn window_of(image: Size, shares: [f64; 4]) -> Rect {
        let part = |share: f64, most: u32| (share * f64::from(most)) as u32;
        let x = part(shares[0], image.width);
        let y = part(shares[1], image.height);
        let size = Size::new(
            1 + part(shares[2], image.height - y),
            1 + part(shares[3], image.width - x),
        );
        Rect {
            x,
            y,
            size: Size::new(
                size.height.min(image.height - y),
                size.width.min(image.width - x),
            ),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn a_window_has_the_bytes_of_the_whole_image(
            image in 0..IMAGES.len(),
            shares in prop::array::uniform4(0.0..1.0_f64),
        ) {
            let mut jpeg = Jpeg::new();
            let size = jpeg.open(IMAGES[image]).unwrap().size();
            let window = window_of(size, shares);
            let whole = read(IMAGES[image], None).unwrap();
            let lines = whole.chunks(size.width as usize).skip(window.y as usize).take(window.size.height as usize);
            let columns = window.x as usize..(window.x + window.size.width) as usize;
            let expected: Vec<Pixel> = lines.flat_map(|line| &line[columns.clone()]).copied().collect();
            prop_assert!(read(IMAGES[image], Some(window)).unwrap() == expected, "{window:?}");
        }

        #[test]
        fn a_file_cut_anywhere_is_truncated(image in 0..IMAGES.len(), share in 0.0..1.0_f64, window in 1..60_u32) {
            // Fewer than three bytes are no JPEG at all.
            let cut = 3 + (share * (IMAGES[image].len() - 3) as f64) as usize;
            let window = Rect { x: 0, y: 0, size: Size::square(window) };
            let result = read(&IMAGES[image][..cut], Some(window));
            prop_assert!(matches!(result, Err(ImageError::Truncated { .. })), "{cut}: {:?}", result.err());
        }
    }

    #[test]
    fn an_end_marker_inside_a_thumbnail_is_not_the_end() {
        let mut encoded = IMAGES[0][..2].to_vec();
        // An application's segment of four bytes that look like an end.
        encoded.extend([0xff, 0xe5, 0, 6, 0xff, 0xd9, 0xff, 0xd9]);
        encoded.extend(&IMAGES[0][2..IMAGES[0].len() - 2]);
        let window = Rect {
            x: 0,
            y: 0,
            size: Size::square(16),
        };
        assert!(matches!(
            read(&encoded, Some(window)),
            Err(ImageError::Truncated { .. })
        ));
    }

    #[test]
    fn inks_leave_of_white_what_pil_says() {
        assert_eq!(from_inverted_cmyk([255, 255, 255, 255]), [255, 255, 255, 0]);
        assert_eq!(from_inverted_cmyk([0, 255, 128, 255]), [0, 255, 128, 0]);
        assert_eq!(from_inverted_cmyk([255, 255, 255, 0]), [0, 0, 0, 0]);
    }
}
