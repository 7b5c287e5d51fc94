//! Which pixels of an image end up where.
//!
//! A [`Stage`] is one resampling: a part of a source is resized, and a window of the result, perhaps larger than it, is
//! kept and perhaps flipped. Crops and flips fold into the stage at hand, and so does a first resize; only a resize of
//! what has been resized already starts another stage. Nothing here touches a pixel.

use std::fmt;

/// Longest edge of a result.
pub(crate) const SIDE_MAX: u32 = 65_535;

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size {
    /// Lines.
    pub height: u32,
    /// Pixels of a line.
    pub width: u32,
}

impl Size {
    /// Height first, as in torchvision.
    pub const fn new(height: u32, width: u32) -> Self {
        Self { height, width }
    }

    /// Both edges the same.
    pub const fn square(edge: u32) -> Self {
        Self {
            height: edge,
            width: edge,
        }
    }

    /// In pixels.
    pub const fn area(self) -> u64 {
        self.height as u64 * self.width as u64
    }

    /// Neither empty nor larger in any direction.
    pub(crate) fn is_within(self, whole: Self) -> bool {
        (1..=whole.height).contains(&self.height) && (1..=whole.width).contains(&self.width)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.height, self.width)
    }
}

/// A part of an image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rect {
    /// First column.
    pub x: u32,
    /// First line.
    pub y: u32,
    /// How much.
    pub size: Size,
}

/// One direction of a stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Span {
    /// The part of the source that is resized ...
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// ... to this length ...
    pub(crate) target: u32,
    /// ... of which this window is kept; zeros where it reaches outside.
    pub(crate) window_start: i64,
    pub(crate) window_len: u32,
    /// Whether the window's end comes first.
    pub(crate) flip: bool,
}

impl Span {
    fn whole(len: u32) -> Self {
        Self {
            start: 0,
            len,
            target: len,
            window_start: 0,
            window_len: len,
            flip: false,
        }
    }

    fn crop(&mut self, start: i64, len: u32) {
        let from_left = if self.flip {
            i64::from(self.window_len) - start - i64::from(len)
        } else {
            start
        };
        self.window_start += from_left;
        self.window_len = len;
    }

    /// Whether the window is a part of the source as it is.
    fn is_plain(&self) -> bool {
        let end = self.window_start + i64::from(self.window_len);
        self.target == self.len && self.window_start >= 0 && end <= i64::from(self.target)
    }

    /// Takes the window as the part to resize. Only for a plain one.
    fn resize(&mut self, target: u32) {
        // A plain window starts inside the source, whose length has 32 bits.
        self.start += self.window_start as u32;
        self.len = self.window_len;
        self.target = target;
        self.window_start = 0;
        self.window_len = target;
    }

    /// The rest of this span in a stage after it: a flip can wait, since the filter is symmetric.
    fn resize_again(&mut self, target: u32) -> Self {
        let next = Self {
            target,
            window_len: target,
            flip: self.flip,
            ..Self::whole(self.window_len)
        };
        self.flip = false;
        next
    }
}

/// One resampling.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stage {
    pub(crate) x: Span,
    pub(crate) y: Span,
}

impl Stage {
    fn whole(image: Size) -> Self {
        Self {
            x: Span::whole(image.width),
            y: Span::whole(image.height),
        }
    }

    /// Of what comes out.
    pub(crate) fn size(&self) -> Size {
        Size::new(self.y.window_len, self.x.window_len)
    }
}

/// What the transforms so far make of an image: stages in a list that is used again from image to image.
pub(crate) struct View<'a> {
    stages: &'a mut Vec<Stage>,
    last: Stage,
}

impl<'a> View<'a> {
    /// The image as it is.
    pub(crate) fn new(image: Size, stages: &'a mut Vec<Stage>) -> Self {
        stages.clear();
        Self {
            stages,
            last: Stage::whole(image),
        }
    }

    pub(crate) fn size(&self) -> Size {
        self.last.size()
    }

    /// A part of what is there, or more than it.
    pub(crate) fn crop(&mut self, x: i64, y: i64, size: Size) {
        self.last.x.crop(x, size.width);
        self.last.y.crop(y, size.height);
    }

    pub(crate) fn resize(&mut self, target: Size) {
        if target == self.size() {
            return;
        }
        if self.last.x.is_plain() && self.last.y.is_plain() {
            self.last.x.resize(target.width);
            self.last.y.resize(target.height);
        } else {
            let x = self.last.x.resize_again(target.width);
            let y = self.last.y.resize_again(target.height);
            self.stages.push(self.last);
            self.last = Stage { x, y };
        }
    }

    pub(crate) fn flip_horizontal(&mut self) {
        self.last.x.flip ^= true;
    }

    pub(crate) fn flip_vertical(&mut self) {
        self.last.y.flip ^= true;
    }

    /// Adds the last stage to the list, which is never empty then.
    pub(crate) fn finish(self) {
        self.stages.push(self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(image: Size, change: impl Fn(&mut View<'_>)) -> Vec<Stage> {
        let mut stages = Vec::new();
        let mut view = View::new(image, &mut stages);
        change(&mut view);
        view.finish();
        stages
    }

    #[test]
    fn crop_resize_flip_and_crop_are_one_stage() {
        let stages = stages(Size::new(100, 200), |view| {
            view.crop(10, 20, Size::new(50, 80));
            view.resize(Size::new(25, 40));
            view.flip_horizontal();
            view.crop(1, 2, Size::new(20, 30));
        });
        // From the right, since what is cropped has been flipped.
        let x = Span {
            start: 10,
            len: 80,
            target: 40,
            window_start: 9,
            window_len: 30,
            flip: true,
        };
        let y = Span {
            start: 20,
            len: 50,
            target: 25,
            window_start: 2,
            window_len: 20,
            flip: false,
        };
        assert_eq!(stages, [Stage { x, y }]);
    }

    #[test]
    fn a_second_resize_is_a_second_stage_and_takes_the_flip_along() {
        let stages = stages(Size::square(100), |view| {
            view.resize(Size::square(50));
            view.flip_vertical();
            view.resize(Size::square(20));
        });
        assert_eq!(stages.len(), 2);
        assert_eq!(
            (stages[0].size(), stages[1].size()),
            (Size::square(50), Size::square(20))
        );
        assert_eq!((stages[0].y.flip, stages[1].y.flip), (false, true));
    }

    #[test]
    fn padding_is_resized_in_a_second_stage() {
        let stages = stages(Size::square(10), |view| {
            view.crop(-5, -5, Size::square(20));
            view.resize(Size::square(40));
        });
        assert_eq!(stages.len(), 2);
        assert_eq!((stages[0].x.window_start, stages[0].x.window_len), (-5, 20));
    }

    #[test]
    fn a_resize_to_the_same_size_is_nothing() {
        let stages = stages(Size::square(10), |view| view.resize(Size::square(10)));
        assert_eq!(stages, [Stage::whole(Size::square(10))]);
    }

    #[test]
    fn two_flips_are_none() {
        let stages = stages(Size::square(10), |view| {
            view.flip_horizontal();
            view.flip_horizontal();
        });
        assert_eq!(stages, [Stage::whole(Size::square(10))]);
    }
}
