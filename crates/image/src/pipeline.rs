//! Puts the parts together: what the transforms ask for, the window's pixels, resampling, storing.

use crate::decode::{Decoders, open};
use crate::draw::{Draws, Key};
use crate::error::{ImageError, PipelineError};
use crate::geometry::{Rect, Size, Stage, View};
use crate::resample::{Bitmap, Pixel, Resampler};
use crate::store::{CHANNELS, Dtype, Layout, Statistics, Store};
use crate::transform::{Drawn, Transform};

/// What a pipeline makes of each image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Output {
    /// Height and width.
    pub size: Size,
    /// Always 3.
    pub channels: usize,
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Order of the dimensions.
    pub layout: Layout,
    /// Length of the slice that [`Pipeline::run`] fills.
    pub bytes: usize,
}

/// The buffers of one thread, used again from image to image.
#[derive(Default)]
pub struct Scratch {
    decoders: Decoders,
    stages: Vec<Stage>,
    resampler: Resampler,
    /// Of the decoded window.
    pixels: Vec<Pixel>,
    /// Of the stage before the one at hand, and of that one.
    between: [Vec<Pixel>; 2],
}

/// A list of transforms, checked and ready to run on any number of threads.
pub struct Pipeline {
    transforms: Vec<Transform>,
    output: Output,
    store: Store,
}

impl Pipeline {
    /// Checks the list.
    pub fn new(
        transforms: &[Transform],
        dtype: Dtype,
        layout: Layout,
    ) -> Result<Self, PipelineError> {
        let statistics = check(transforms)?;
        if statistics.is_some() && dtype == Dtype::Uint8 {
            return Err(PipelineError::IntegerNormalize);
        }
        let size = transforms
            .iter()
            .fold(None, |size, transform| transform.fixed_size(size));
        let size = size.ok_or(PipelineError::OpenSize)?;
        let bytes = size.area() as usize * CHANNELS * dtype.bytes();
        let output = Output {
            size,
            channels: CHANNELS,
            dtype,
            layout,
            bytes,
        };
        Ok(Self {
            transforms: transforms.to_vec(),
            output,
            store: Store::new(dtype, layout, statistics),
        })
    }

    /// What comes out, the same for all images.
    pub const fn output(&self) -> Output {
        self.output
    }

    /// What the transforms draw for a sample whose image has this size, one entry each.
    pub fn params(&self, image: Size, key: Key) -> Result<Vec<Drawn>, ImageError> {
        let mut drawn = Vec::with_capacity(self.transforms.len());
        self.plan(image, key, &mut Vec::new(), |draw| drawn.push(draw))?;
        Ok(drawn)
    }

    /// Decodes an image, transforms it and fills the slice.
    ///
    /// # Panics
    ///
    /// When the slice is not as long as [`Output::bytes`] says.
    pub fn run(
        &self,
        encoded: &[u8],
        key: Key,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        assert_eq!(
            into.len(),
            self.output.bytes,
            "the slice has to be as long as the result"
        );
        let Scratch {
            decoders,
            stages,
            resampler,
            pixels,
            between,
        } = scratch;
        let opened = open(encoded, decoders)?;
        self.plan(opened.size(), key, stages, |_| ())?;
        let (last, before) = stages.split_last().expect("a plan has at least one stage");
        let window = resampler.prepare(before.first().unwrap_or(last));
        let mut source = opened.read(window, pixels)?;
        let [front, back] = between;
        for (stage, next) in before.iter().zip(&stages[1..]) {
            resample(resampler, source, stage.size(), front);
            std::mem::swap(front, back);
            source = Bitmap {
                pixels: back,
                stride: stage.size().width as usize,
                x: 0,
                y: 0,
            };
            resampler.prepare(next);
        }
        resampler.run(source, |y, line| {
            self.store.put((y, self.output.size.height), line, into);
        });
        Ok(())
    }

    /// Lists the stages for an image of this size.
    fn plan(
        &self,
        image: Size,
        key: Key,
        stages: &mut Vec<Stage>,
        mut on_draw: impl FnMut(Drawn),
    ) -> Result<(), ImageError> {
        let mut view = View::new(image, stages);
        for (place, transform) in self.transforms.iter().enumerate() {
            let from = view.size();
            let drawn = transform.draw(from, &mut Draws::new(key, place));
            on_draw(drawn);
            transform
                .apply(drawn, &mut view)
                .map_err(|size| ImageError::Resized { place, from, size })?;
        }
        view.finish();
        Ok(())
    }
}

/// The size of an image, from its header.
pub fn probe(encoded: &[u8], scratch: &mut Scratch) -> Result<Size, ImageError> {
    Ok(open(encoded, &mut scratch.decoders)?.size())
}

/// Decodes a whole image to red, green and blue bytes, pixel by pixel.
pub fn decode(
    encoded: &[u8],
    scratch: &mut Scratch,
    into: &mut Vec<u8>,
) -> Result<Size, ImageError> {
    let opened = open(encoded, &mut scratch.decoders)?;
    let size = opened.size();
    let whole = opened.read(Rect { x: 0, y: 0, size }, &mut scratch.pixels)?;
    into.clear();
    into.reserve(size.area() as usize * CHANNELS);
    for line in whole.pixels.chunks(whole.stride).take(size.height as usize) {
        into.extend(
            line[..size.width as usize]
                .iter()
                .flat_map(|[red, green, blue, _]| [red, green, blue]),
        );
    }
    Ok(size)
}

fn resample(resampler: &mut Resampler, source: Bitmap<'_>, size: Size, into: &mut Vec<Pixel>) {
    into.clear();
    into.reserve(size.area() as usize);
    resampler.run(source, |_, line| {
        into.extend(line.iter().map(|wide| wide.map(|word| word as u8)));
    });
}

/// Checks parameters and order; gives what Normalize does, all of them in a row if there are several.
fn check(transforms: &[Transform]) -> Result<Option<Statistics>, PipelineError> {
    let mut statistics = None;
    for (place, transform) in transforms.iter().enumerate() {
        transform.check(place)?;
        let name = transform.name();
        match transform {
            Transform::RandomHorizontalFlip(_) | Transform::RandomVerticalFlip(_) => {}
            _ if statistics.is_some() => return Err(PipelineError::AfterNormalize { place, name }),
            Transform::Normalize { mean, std } => statistics = Some((*mean, *std)),
            _ => {}
        }
    }
    Ok(statistics)
}
