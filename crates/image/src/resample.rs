//! Resampling with the antialiased bilinear filter: weights for each direction, then line by line.
//!
//! For each line of the result the source's lines are blended to one line of floats, which is then filtered along the
//! line and rounded: the blend runs over plain arrays and the filter over pixels of four floats, so both compile to
//! vector instructions. A flip is an order of weights, padding is a weight of zero, and a mere crop has one weight of
//! one, so there is one path for everything.
//!
//! Products and sums are rounded one by one (no fused multiply-add): all machines get the same bits.

#![allow(
    clippy::inline_always,
    reason = "code gets wider vectors only where it is inlined into `run_avx2`"
)]

use std::ops::Range;

use crate::geometry::{Rect, Size, Span, Stage};

/// Red, green, blue and something to fill a word.
pub(crate) type Pixel = [u8; 4];

/// A pixel of a result: each channel is the low byte of its word. What rounding leaves above it costs less to carry
/// along than to take away.
pub(crate) type Wide = [u32; 4];

/// Most lines blended in one go: more would not fit the registers.
const BLEND_MAX: usize = 4;

/// Adding this to a float below 2^22 leaves the nearest integer in the low bits.
const ROUNDING: f32 = 8_388_608.0;

/// Pixels in memory.
#[derive(Clone, Copy)]
pub(crate) struct Bitmap<'a> {
    pub(crate) pixels: &'a [Pixel],
    /// From a line to the next.
    pub(crate) stride: usize,
    /// Where the first pixel is in the whole image.
    pub(crate) x: u32,
    pub(crate) y: u32,
}

/// The weights of one direction: for each place of the result the same number of neighbours in the source.
#[derive(Default)]
struct Taps {
    /// Of each place: its first neighbour, counted from the start of the span.
    starts: Vec<u32>,
    /// Of each place: one weight for each neighbour.
    weights: Vec<f32>,
    per_place: usize,
    span_start: u32,
}

impl Taps {
    fn fill(&mut self, span: &Span) {
        let filter = Filter::new(span);
        self.span_start = span.start;
        self.per_place = filter.widest(span);
        self.starts.clear();
        self.weights.clear();
        self.weights
            .resize(self.per_place * span.window_len as usize, 0.0);
        for (place, weights) in
            (0..span.window_len).zip(self.weights.chunks_exact_mut(self.per_place))
        {
            let target = filter.target(span, place);
            self.starts
                .push(target.map_or(0, |target| filter.weigh(target, weights)));
        }
    }

    /// Which pixels of the source have a weight.
    fn range(&self) -> Range<u32> {
        let first = self.starts.iter().min().copied().unwrap_or(0);
        let last = self.starts.iter().max().copied().unwrap_or(0);
        self.span_start + first..self.span_start + last + self.per_place as u32
    }

    fn place(&self, place: usize) -> (u32, &[f32]) {
        (
            self.span_start + self.starts[place],
            &self.weights[place * self.per_place..][..self.per_place],
        )
    }
}

/// A triangle over the source around each place of the target: as wide as two of the target's pixels, or two of the
/// source's if these are larger.
struct Filter {
    scale: f64,
    /// Half the width, in pixels of the source.
    reach: f64,
    len: u32,
}

impl Filter {
    fn new(span: &Span) -> Self {
        let scale = f64::from(span.len) / f64::from(span.target);
        Self {
            scale,
            reach: scale.max(1.0),
            len: span.len,
        }
    }

    /// The place in the target of a place in the window; none where there is padding.
    fn target(&self, span: &Span, place: u32) -> Option<f64> {
        let from_left = if span.flip {
            span.window_len - 1 - place
        } else {
            place
        };
        let target = span.window_start + i64::from(from_left);
        let inside = (0..i64::from(span.target)).contains(&target);
        inside.then_some((target as f64 + 0.5) * self.scale)
    }

    /// The pixels of the source with a weight, around this centre.
    fn neighbours(&self, centre: f64) -> Range<u32> {
        let first = (centre - self.reach - 0.5).floor() + 1.0;
        let end = (centre + self.reach - 0.5).ceil();
        first.max(0.0) as u32..end.min(f64::from(self.len)) as u32
    }

    /// Most neighbours of any place.
    fn widest(&self, span: &Span) -> usize {
        let centres = (0..span.window_len).filter_map(|place| self.target(span, place));
        centres
            .map(|centre| self.neighbours(centre).len())
            .max()
            .unwrap_or(1)
    }

    /// Sets the weights of the neighbours, which are among the pixels from the returned one on. There is one weight for
    /// as many pixels as any place has neighbours, and they all lie inside the source.
    fn weigh(&self, centre: f64, weights: &mut [f32]) -> u32 {
        let neighbours = self.neighbours(centre);
        let start = neighbours.start.min(self.len - weights.len() as u32);
        let triangle = |x: u32| 1.0 - ((f64::from(x) + 0.5 - centre) / self.reach).abs();
        let total: f64 = neighbours.clone().map(triangle).sum();
        for x in neighbours {
            weights[(x - start) as usize] = (triangle(x) / total) as f32;
        }
        start
    }
}

/// The buffers and weights of a resampling, used again from image to image.
#[derive(Default)]
pub(crate) struct Resampler {
    x: Taps,
    y: Taps,
    blended: Vec<[f32; 4]>,
    line: Vec<Wide>,
}

impl Resampler {
    /// Prepares a stage and tells what it needs of its source.
    pub(crate) fn prepare(&mut self, stage: &Stage) -> Rect {
        self.x.fill(&stage.x);
        self.y.fill(&stage.y);
        let x = self.x.range();
        let y = self.y.range();
        Rect {
            x: x.start,
            y: y.start,
            size: Size::new(y.end - y.start, x.end - x.start),
        }
    }

    /// Does the prepared stage; `sink` gets the lines of the result in order.
    pub(crate) fn run(&mut self, source: Bitmap<'_>, sink: impl FnMut(usize, &[Wide])) {
        let columns = self.x.range();
        self.blended.resize(columns.len(), [0.0; 4]);
        self.line.resize(self.x.starts.len(), [0; 4]);
        vectors::run(self, source, sink);
    }

    #[inline(always)]
    fn run_lines(&mut self, source: Bitmap<'_>, mut sink: impl FnMut(usize, &[Wide])) {
        let columns = self.x.range();
        let left = (columns.start - source.x) as usize;
        for place in 0..self.y.starts.len() {
            let (first, weights) = self.y.place(place);
            let line = |k: usize| {
                let start = (first - source.y) as usize * source.stride + k * source.stride + left;
                source.pixels[start..start + columns.len()].as_flattened()
            };
            blend_all(line, weights, self.blended.as_flattened_mut());
            let origin = columns.start - self.x.span_start;
            filter(&self.x, origin, &self.blended, &mut self.line);
            sink(place, &self.line);
        }
    }
}

/// The same code for processors with wider vectors.
mod vectors {
    #![allow(
        unsafe_code,
        reason = "a function for a processor's feature is unsafe to call where it may be missing"
    )]

    use super::{Bitmap, Resampler, Wide};

    #[cfg(target_arch = "x86_64")]
    pub(super) fn run(
        resampler: &mut Resampler,
        source: Bitmap<'_>,
        sink: impl FnMut(usize, &[Wide]),
    ) {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, the only feature that `run_avx2` enables.
            unsafe { run_avx2(resampler, source, sink) }
        } else {
            resampler.run_lines(source, sink);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn run(
        resampler: &mut Resampler,
        source: Bitmap<'_>,
        sink: impl FnMut(usize, &[Wide]),
    ) {
        resampler.run_lines(source, sink);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn run_avx2(resampler: &mut Resampler, source: Bitmap<'_>, sink: impl FnMut(usize, &[Wide])) {
        resampler.run_lines(source, sink);
    }
}

/// The weighted sum of lines.
#[inline(always)]
fn blend_all<'a>(line: impl Fn(usize) -> &'a [u8], weights: &[f32], into: &mut [f32]) {
    // Places with fewer neighbours than others have zeros at either end.
    let first = weights
        .iter()
        .position(|weight| *weight != 0.0)
        .unwrap_or(0);
    let end = weights
        .iter()
        .rposition(|weight| *weight != 0.0)
        .map_or(first + 1, |last| last + 1);
    let mut at = first;
    while at < end {
        let count = (end - at).min(BLEND_MAX);
        let add = at > first;
        match count {
            1 => blend::<1>([line(at)], &weights[at..], into, add),
            2 => blend::<2>([line(at), line(at + 1)], &weights[at..], into, add),
            3 => blend::<3>(
                [line(at), line(at + 1), line(at + 2)],
                &weights[at..],
                into,
                add,
            ),
            _ => blend::<4>(
                [line(at), line(at + 1), line(at + 2), line(at + 3)],
                &weights[at..],
                into,
                add,
            ),
        }
        at += count;
    }
}

#[inline(always)]
fn blend<const N: usize>(lines: [&[u8]; N], weights: &[f32], into: &mut [f32], add: bool) {
    let lines = lines.map(|line| &line[..into.len()]);
    let weights: [f32; N] = std::array::from_fn(|k| weights[k]);
    for i in 0..into.len() {
        let mut sum = if add { into[i] } else { 0.0 };
        for k in 0..N {
            sum += weights[k] * f32::from(lines[k][i]);
        }
        into[i] = sum;
    }
}

/// Filters along a line whose first pixel is at `origin` of the span. Usual numbers of neighbours get loops without a
/// branch.
#[inline(always)]
fn filter(taps: &Taps, origin: u32, line: &[[f32; 4]], into: &mut [Wide]) {
    match taps.per_place {
        1 => filter_by::<1>(taps, origin, line, into),
        2 => filter_by::<2>(taps, origin, line, into),
        3 => filter_by::<3>(taps, origin, line, into),
        4 => filter_by::<4>(taps, origin, line, into),
        5 => filter_by::<5>(taps, origin, line, into),
        6 => filter_by::<6>(taps, origin, line, into),
        _ => filter_any(taps, origin, line, into),
    }
}

#[inline(always)]
fn filter_by<const N: usize>(taps: &Taps, origin: u32, line: &[[f32; 4]], into: &mut [Wide]) {
    let (weights, _) = taps.weights.as_chunks::<N>();
    for ((pixel, start), weights) in into.iter_mut().zip(&taps.starts).zip(weights) {
        let start = (start - origin) as usize;
        *pixel = weighted(&line[start..start + N], weights);
    }
}

#[inline(always)]
fn filter_any(taps: &Taps, origin: u32, line: &[[f32; 4]], into: &mut [Wide]) {
    let weights = taps.weights.chunks_exact(taps.per_place);
    for ((pixel, start), weights) in into.iter_mut().zip(&taps.starts).zip(weights) {
        let start = (start - origin) as usize;
        *pixel = weighted(&line[start..start + weights.len()], weights);
    }
}

#[inline(always)]
fn weighted(neighbours: &[[f32; 4]], weights: &[f32]) -> Wide {
    let mut sum = [0.0_f32; 4];
    for (neighbour, weight) in neighbours.iter().zip(weights) {
        for (sum, value) in sum.iter_mut().zip(neighbour) {
            *sum += weight * value;
        }
    }
    sum.map(|value| (value + ROUNDING).to_bits())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::View;

    /// The definition, pixel by pixel, without vectors or streams of lines.
    fn naive(source: &[Pixel], image: Size, stage: &Stage) -> Vec<[f64; 3]> {
        let columns = naive_weights(&stage.x);
        let lines = naive_weights(&stage.y);
        let sum = |line: &Vec<(u32, f64)>, column: &Vec<(u32, f64)>, channel: usize| {
            let pairs = line.iter().flat_map(|y| column.iter().map(move |x| (y, x)));
            let value = |y: u32, x: u32| f64::from(source[(y * image.width + x) as usize][channel]);
            pairs.map(|(y, x)| y.1 * x.1 * value(y.0, x.0)).sum()
        };
        let pairs = lines
            .iter()
            .flat_map(|line| columns.iter().map(move |column| (line, column)));
        pairs
            .map(|(line, column)| [0, 1, 2].map(|channel| sum(line, column, channel)))
            .collect()
    }

    fn naive_weights(span: &Span) -> Vec<Vec<(u32, f64)>> {
        let scale = f64::from(span.len) / f64::from(span.target);
        let of = |target: i64| {
            let centre = (target as f64 + 0.5) * scale;
            let weight =
                |x: u32| (1.0 - ((f64::from(x) + 0.5 - centre) / scale.max(1.0)).abs()).max(0.0);
            let total: f64 = (0..span.len).map(weight).sum();
            (0..span.len)
                .map(|x| (span.start + x, weight(x) / total))
                .collect()
        };
        let window = span.window_start..span.window_start + i64::from(span.window_len);
        let inside = 0..i64::from(span.target);
        let mut places: Vec<_> = window
            .map(|at| {
                if inside.contains(&at) {
                    of(at)
                } else {
                    Vec::new()
                }
            })
            .collect();
        if span.flip {
            places.reverse();
        }
        places
    }

    fn picture(size: Size) -> Vec<Pixel> {
        let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        (0..size.area())
            .map(|i| [byte(3 * i), byte(3 * i + 1), byte(3 * i + 2), 77])
            .collect()
    }

    fn sizes(max: u32) -> impl Strategy<Value = Size> {
        (1..max, 1..max).prop_map(|(height, width)| Size::new(height, width))
    }

    proptest! {
        #[test]
        fn a_stage_gives_what_its_definition_says(
            image in sizes(40),
            target in sizes(60),
            crop in (-5..20_i64, -5..20_i64, sizes(50)),
            flips in any::<(bool, bool)>(),
        ) {
            let mut stages = Vec::new();
            let mut view = View::new(image, &mut stages);
            view.resize(target);
            view.crop(crop.0, crop.1, crop.2);
            if flips.0 {
                view.flip_horizontal();
            }
            if flips.1 {
                view.flip_vertical();
            }
            view.finish();
            let pixels = picture(image);
            let mut resampler = Resampler::default();
            let window = resampler.prepare(&stages[0]);
            prop_assert!(window.x + window.size.width <= image.width && window.y + window.size.height <= image.height);
            let mut result = Vec::new();
            let source = Bitmap { pixels: &pixels, stride: image.width as usize, x: 0, y: 0 };
            resampler.run(source, |y, line| {
                assert_eq!(y * line.len(), result.len());
                result.extend_from_slice(line);
            });
            let expected = naive(&pixels, image, &stages[0]);
            prop_assert_eq!(result.len(), expected.len());
            for (found, exact) in result.iter().zip(&expected) {
                for channel in 0..3 {
                    let off = (f64::from(found[channel] as u8) - exact[channel]).abs();
                    prop_assert!(off <= 0.501, "{} is not {}", found[channel] as u8, exact[channel]);
                }
            }
        }
    }

    #[test]
    fn wide_vectors_give_the_bits_of_narrow_ones() {
        let image = Size::new(97, 131);
        let pixels = picture(image);
        let source = Bitmap {
            pixels: &pixels,
            stride: 131,
            x: 0,
            y: 0,
        };
        for target in [
            Size::new(224, 224),
            Size::new(50, 40),
            Size::new(9, 7),
            Size::new(97, 60),
        ] {
            let mut stages = Vec::new();
            let mut view = View::new(image, &mut stages);
            view.resize(target);
            view.finish();
            let mut resampler = Resampler::default();
            resampler.prepare(&stages[0]);
            let mut wide = Vec::new();
            let mut narrow = Vec::new();
            resampler.run(source, |_, line| wide.extend_from_slice(line));
            resampler.run_lines(source, |_, line| narrow.extend_from_slice(line));
            assert_eq!(wide, narrow, "{target}");
        }
    }

    #[test]
    fn an_image_of_its_own_size_keeps_every_pixel() {
        let image = Size::new(20, 30);
        let mut stages = Vec::new();
        View::new(image, &mut stages).finish();
        let mut resampler = Resampler::default();
        resampler.prepare(&stages[0]);
        let pixels = picture(image);
        let mut result: Vec<Pixel> = Vec::new();
        let source = Bitmap {
            pixels: &pixels,
            stride: 30,
            x: 0,
            y: 0,
        };
        resampler.run(source, |_, line| {
            result.extend(line.iter().map(|wide| wide.map(|word| word as u8)));
        });
        assert_eq!(result, pixels);
    }
}
