//! The transforms: parameters, what they draw, and what they do to a [`View`]. Names, defaults and arithmetic are those
//! of torchvision's v2 transforms, including its rounding to even.

use crate::draw::Draws;
use crate::error::{PIXELS_MAX, PipelineError};
use crate::geometry::{Rect, SIDE_MAX, Size, View};

/// One step from an image to a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transform {
    /// A random part of the image, resized.
    RandomResizedCrop(RandomResizedCrop),
    /// The whole image, resized.
    Resize(Resize),
    /// The middle, with zeros around an image that is smaller.
    CenterCrop(Size),
    /// Left and right change places with this probability.
    RandomHorizontalFlip(f64),
    /// Top and bottom change places with this probability.
    RandomVerticalFlip(f64),
    /// `(value - mean) / std` by channel, after scaling to `[0, 1]`.
    Normalize {
        /// Subtracted.
        mean: [f32; 3],
        /// Divided by.
        std: [f32; 3],
    },
}

/// A crop of random area and aspect ratio, resized to a fixed size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// Of the result.
    pub size: Size,
    /// Least and greatest share of the image's area.
    pub scale: (f64, f64),
    /// Least and greatest width over height.
    pub ratio: (f64, f64),
}

/// How to resize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    /// To exactly this size.
    Exact(Size),
    /// To this shorter edge, keeping the aspect ratio.
    ShorterEdge {
        /// Length of the shorter edge.
        edge: u32,
        /// The longer edge gets no longer; the shorter one becomes shorter if it has to.
        longer_max: Option<u32>,
    },
}

/// What a transform drew for one sample.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drawn {
    /// It draws nothing.
    Nothing,
    /// The part of the image, as it is at this place of the list.
    Crop(Rect),
    /// Whether it flips.
    Flip(bool),
}

/// torchvision's number of tries before it takes the middle.
const CROP_TRIES: u32 = 10;

impl RandomResizedCrop {
    /// With torchvision's defaults: 8 to 100 % of the area, 3:4 to 4:3.
    pub const fn new(size: Size) -> Self {
        Self {
            size,
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
        }
    }

    fn draw(&self, image: Size, draws: &mut Draws) -> Rect {
        // Of the crate `libm`, since those of systems differ in the last bit.
        let log_low = libm::log(self.ratio.0);
        let log_high = libm::log(self.ratio.1);
        for _ in 0..CROP_TRIES {
            let area = image.area() as f64 * draws.between(self.scale.0, self.scale.1);
            let ratio = libm::exp(draws.between(log_low, log_high));
            let size = Size::new(
                rounded((area / ratio).sqrt()),
                rounded((area * ratio).sqrt()),
            );
            if size.is_within(image) {
                let y = draws.below(image.height - size.height + 1);
                let x = draws.below(image.width - size.width + 1);
                return Rect { x, y, size };
            }
        }
        self.middle(image)
    }

    /// The largest crop in the middle whose ratio is allowed.
    fn middle(&self, image: Size) -> Rect {
        let ratio = f64::from(image.width) / f64::from(image.height);
        let size = if ratio < self.ratio.0 {
            Size::new(rounded(f64::from(image.width) / self.ratio.0), image.width)
        } else if ratio > self.ratio.1 {
            Size::new(
                image.height,
                rounded(f64::from(image.height) * self.ratio.1),
            )
        } else {
            image
        };
        // At least a pixel: a line of 1 x 5000 has no crop of an allowed ratio.
        let size = Size::new(
            size.height.clamp(1, image.height),
            size.width.clamp(1, image.width),
        );
        Rect {
            x: (image.width - size.width) / 2,
            y: (image.height - size.height) / 2,
            size,
        }
    }
}

impl Resize {
    /// What becomes of this size; an edge may vanish.
    fn target(self, image: Size) -> Size {
        let (edge, longer_max) = match self {
            Self::Exact(size) => return size,
            Self::ShorterEdge { edge, longer_max } => (edge, longer_max),
        };
        let short = image.height.min(image.width);
        let long = image.height.max(image.width);
        let mut new_short = edge;
        let mut new_long = share(edge, long, short);
        if let Some(longer_max) = longer_max.filter(|max| new_long > *max) {
            new_short = share(longer_max, new_short, new_long);
            new_long = longer_max;
        }
        if image.width <= image.height {
            Size::new(new_long, new_short)
        } else {
            Size::new(new_short, new_long)
        }
    }
}

impl Transform {
    /// Its name in torchvision.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RandomResizedCrop(_) => "RandomResizedCrop",
            Self::Resize(_) => "Resize",
            Self::CenterCrop(_) => "CenterCrop",
            Self::RandomHorizontalFlip(_) => "RandomHorizontalFlip",
            Self::RandomVerticalFlip(_) => "RandomVerticalFlip",
            Self::Normalize { .. } => "Normalize",
        }
    }

    /// What it draws for an image that has this size when its turn comes.
    pub(crate) fn draw(&self, image: Size, draws: &mut Draws) -> Drawn {
        match self {
            Self::RandomResizedCrop(crop) => Drawn::Crop(crop.draw(image, draws)),
            Self::RandomHorizontalFlip(p) | Self::RandomVerticalFlip(p) => {
                Drawn::Flip(draws.chance(*p))
            }
            Self::Resize(_) | Self::CenterCrop(_) | Self::Normalize { .. } => Drawn::Nothing,
        }
    }

    /// Changes the view as the transform changes the image. A size is an error: nobody wants an image of it.
    pub(crate) fn apply(&self, drawn: Drawn, view: &mut View<'_>) -> Result<(), Size> {
        match (self, drawn) {
            (Self::RandomResizedCrop(crop), Drawn::Crop(rect)) => {
                view.crop(i64::from(rect.x), i64::from(rect.y), rect.size);
                view.resize(crop.size);
            }
            (Self::RandomHorizontalFlip(_), Drawn::Flip(true)) => view.flip_horizontal(),
            (Self::RandomVerticalFlip(_), Drawn::Flip(true)) => view.flip_vertical(),
            (Self::Resize(resize), _) => {
                let target = resize.target(view.size());
                if !(1..=PIXELS_MAX).contains(&target.area()) {
                    return Err(target);
                }
                view.resize(target);
            }
            (Self::CenterCrop(size), _) => {
                let image = view.size();
                view.crop(
                    centred(image.width, size.width),
                    centred(image.height, size.height),
                    *size,
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// The size of what comes out, if it is the same for all images; `before` is that of what goes in.
    pub(crate) fn fixed_size(&self, before: Option<Size>) -> Option<Size> {
        match self {
            Self::RandomResizedCrop(crop) => Some(crop.size),
            Self::CenterCrop(size) | Self::Resize(Resize::Exact(size)) => Some(*size),
            Self::Resize(resize) => before.map(|size| resize.target(size)),
            _ => before,
        }
    }

    /// Checks the parameters.
    pub(crate) fn check(&self, place: usize) -> Result<(), PipelineError> {
        let checked = match self {
            Self::RandomResizedCrop(crop) => check_size(crop.size)
                .and_then(|()| check_range("scale", crop.scale))
                .and_then(|()| check_range("ratio", crop.ratio)),
            Self::Resize(Resize::ShorterEdge { edge, longer_max }) => {
                check_edges(*edge, *longer_max)
            }
            Self::CenterCrop(size) | Self::Resize(Resize::Exact(size)) => check_size(*size),
            Self::RandomHorizontalFlip(p) | Self::RandomVerticalFlip(p) => check_probability(*p),
            Self::Normalize { mean, std } => check_statistics(*mean, *std),
        };
        checked.map_err(|what| PipelineError::Parameter {
            place,
            name: self.name(),
            what,
        })
    }
}

/// Python's `round`: halves go to the even neighbour.
fn rounded(value: f64) -> u32 {
    value.round_ties_even() as u32
}

/// `whole * part / of`, cut to an integer, by way of a floating-point quotient as in Python.
fn share(whole: u32, part: u32, of: u32) -> u32 {
    ((u64::from(whole) * u64::from(part)) as f64 / f64::from(of)) as u32
}

/// Where a centred part starts; negative when it is larger than the whole, by padding before it.
fn centred(whole: u32, part: u32) -> i64 {
    let spare = i64::from(whole) - i64::from(part);
    if spare < 0 {
        -(-spare / 2)
    } else {
        i64::from(rounded(spare as f64 / 2.0))
    }
}

fn check_size(size: Size) -> Result<(), String> {
    let fine = |edge: u32| (1..=SIDE_MAX).contains(&edge);
    if fine(size.height) && fine(size.width) {
        Ok(())
    } else {
        Err(format!("size {size} is not in 1 to {SIDE_MAX}"))
    }
}

fn check_edges(edge: u32, longer_max: Option<u32>) -> Result<(), String> {
    check_size(Size::new(edge, edge))?;
    match longer_max {
        Some(longest) if longest <= edge => {
            Err(format!("max_size {longest} is not above size {edge}"))
        }
        Some(longest) => check_size(Size::new(longest, longest)),
        None => Ok(()),
    }
}

fn check_range(name: &str, (low, high): (f64, f64)) -> Result<(), String> {
    let fine = low > 0.0 && low <= high && high.is_finite();
    if fine {
        Ok(())
    } else {
        Err(format!(
            "{name} ({low}, {high}) is not 0 < least <= greatest"
        ))
    }
}

fn check_probability(p: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(format!("probability {p} is not in 0 to 1"))
    }
}

fn check_statistics(mean: [f32; 3], std: [f32; 3]) -> Result<(), String> {
    if !mean.iter().all(|value| value.is_finite()) {
        return Err(format!("mean {mean:?} is not finite"));
    }
    let fine = std.iter().all(|value| value.is_finite() && *value != 0.0);
    if fine {
        Ok(())
    } else {
        Err(format!("std {std:?} has a zero or is not finite"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draw::Key;

    fn draws(sample: u64) -> Draws {
        Draws::new(
            Key {
                seed: 5,
                epoch: 1,
                sample,
            },
            0,
        )
    }

    proptest! {
        #[test]
        fn a_crop_lies_inside_the_image(height in 1..2000_u32, width in 1..2000_u32, sample: u64) {
            let rect = RandomResizedCrop::new(Size::square(8)).draw(Size::new(height, width), &mut draws(sample));
            prop_assert!(rect.size.area() > 0);
            prop_assert!(rect.y + rect.size.height <= height && rect.x + rect.size.width <= width);
        }
    }

    #[test]
    fn crops_have_the_mean_area_that_they_should() {
        let crop = RandomResizedCrop::new(Size::square(224));
        let area = |sample| {
            crop.draw(Size::square(1000), &mut draws(sample))
                .size
                .area() as f64
                / 1e6
        };
        let mean = (0..20_000).map(area).sum::<f64>() / 20_000.0;
        // By integration over shares of 0.08 to 1 and ratios of 3:4 to 4:3, without the crops that stick out.
        assert!((mean - 0.478).abs() < 0.008, "{mean}");
    }

    #[test]
    fn an_image_too_flat_for_any_ratio_gives_its_middle() {
        let rect = RandomResizedCrop::new(Size::square(8)).draw(Size::new(10, 1000), &mut draws(3));
        assert_eq!(
            rect,
            Rect {
                x: 493,
                y: 0,
                size: Size::new(10, 13)
            }
        );
    }

    #[test]
    fn the_shorter_edge_is_kept_in_proportion_and_under_the_longest() {
        let shorter = |edge, longer_max| Resize::ShorterEdge { edge, longer_max };
        assert_eq!(
            shorter(256, None).target(Size::new(375, 500)),
            Size::new(256, 341)
        );
        assert_eq!(
            shorter(256, None).target(Size::new(500, 375)),
            Size::new(341, 256)
        );
        assert_eq!(
            shorter(256, Some(300)).target(Size::new(375, 500)),
            Size::new(225, 300)
        );
        assert_eq!(
            shorter(10, Some(11)).target(Size::new(1, 500)),
            Size::new(0, 11)
        );
    }

    #[test]
    fn the_middle_is_rounded_to_even_and_padding_is_less_before_than_after() {
        assert_eq!([centred(10, 7), centred(10, 5), centred(9, 4)], [2, 2, 2]);
        assert_eq!([centred(4, 7), centred(4, 8), centred(5, 5)], [-1, -2, 0]);
    }
}
