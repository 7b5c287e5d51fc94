//! A small chart of a number that stays what it is until it changes, along a scale: threads over steps. One of many side by
//! side; the others' stand behind it in grey, and all share both axes.

use super::canvas::{Anchor, Area, Canvas, LINE_HEIGHT, text_width, widest};
use super::scale::{round_end, ticks};
use crate::report::format::Unit;

const PLOT_HEIGHT: f64 = 110.0;
const TICKS: usize = 3;
const GAP: f64 = 8.0;

/// Where it changes, rising, and to what.
pub(crate) type Changes = Vec<(f64, f64)>;

/// The chart.
pub(crate) struct Staircase<'a> {
    /// What a screen reader says.
    pub label: String,
    pub x_title: &'a str,
    pub y_title: &'a str,
    pub changes: &'a Changes,
    /// The other charts'.
    pub others: &'a [Changes],
    /// Up to where all of them go.
    pub end: f64,
    /// The largest value of all of them.
    pub most: f64,
}

/// Where things are.
struct Frame {
    plot: Area,
    x_end: f64,
    y_end: f64,
}

impl Frame {
    fn point(&self, x: f64, y: f64) -> (f64, f64) {
        let right = (x / self.x_end).clamp(0.0, 1.0) * self.plot.width;
        let up = (y / self.y_end).clamp(0.0, 1.0) * self.plot.height;
        (self.plot.x + right, self.plot.bottom() - up)
    }
}

impl Staircase<'_> {
    /// As SVG, for this width.
    pub(crate) fn draw(&self, width: f64) -> String {
        let y_end = round_end(self.most, TICKS, Unit::WHOLE);
        // Nobody has half a thread.
        let is_whole = |tick: &super::scale::Tick| tick.value.fract() == 0.0;
        let levels: Vec<_> = ticks(y_end, TICKS, Unit::WHOLE)
            .into_iter()
            .filter(is_whole)
            .collect();
        let left = widest(levels.iter().map(|tick| tick.label.as_str())) + GAP;
        let frame = Frame {
            plot: Area {
                x: left,
                y: LINE_HEIGHT + 8.0,
                width: width - left - 2.0,
                height: PLOT_HEIGHT,
            },
            x_end: self.end.max(1.0),
            y_end,
        };
        let mut canvas = Canvas::new(width);
        let title = (0.0, LINE_HEIGHT - 5.0);
        canvas.text("muted", title, Anchor::Start, self.y_title);
        for tick in &levels {
            let (x, y) = frame.point(0.0, tick.value);
            let class = if tick.value == 0.0 { "axis" } else { "grid" };
            canvas.line(class, (x, y), (frame.plot.right(), y));
            canvas.text("muted", (x - GAP, y + 4.5), Anchor::End, &tick.label);
        }
        for other in self.others {
            canvas.path("other", &self.corners(&frame, other));
        }
        self.draw_own(&mut canvas, &frame);
        self.draw_ends(&mut canvas, &frame);
        let below = (
            frame.plot.x + frame.plot.width / 2.0,
            frame.plot.bottom() + LINE_HEIGHT - 3.0,
        );
        canvas.text("muted", below, Anchor::Middle, self.x_title);
        canvas.finish(below.1 + 8.0, &self.label)
    }

    fn draw_own(&self, canvas: &mut Canvas, frame: &Frame) {
        let last = self.changes.last().map_or(0.0, |change| change.1);
        canvas.group("staircase", &[("last", &last.to_string())]);
        canvas.title(&self.label);
        canvas.path("series", &self.corners(frame, self.changes));
        canvas.end_group();
    }

    /// Level up to the next change, then up or down.
    fn corners(&self, frame: &Frame, changes: &Changes) -> Vec<(f64, f64)> {
        let ends = changes.iter().skip(1).map(|change| change.0);
        let ends = ends.chain([self.end]);
        let steps = changes.iter().zip(ends);
        steps
            .flat_map(|(&(from, value), to)| [frame.point(from, value), frame.point(to, value)])
            .collect()
    }

    fn draw_ends(&self, canvas: &mut Canvas, frame: &Frame) {
        let y = frame.plot.bottom() + LINE_HEIGHT - 3.0;
        let end = Unit::WHOLE.bare(self.end);
        canvas.text("muted", (frame.plot.x, y), Anchor::Start, "0");
        let right = frame.plot.right().max(text_width(&end));
        canvas.text("muted", (right, y), Anchor::End, &end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(changes: &Changes, others: &[Changes]) -> String {
        let chart = Staircase {
            label: "rank 0".into(),
            x_title: "step",
            y_title: "threads",
            changes,
            others,
            end: 100.0,
            most: 8.0,
        };
        chart.draw(344.0)
    }

    #[test]
    fn a_level_goes_on_until_it_changes_and_the_last_to_the_end() {
        let svg = draw(&vec![(0.0, 4.0), (50.0, 8.0)], &[]);
        let from = svg.find("class=\"series\" d=\"").expect("a line");
        let way = &svg[from..];
        let way = &way[..way.find("/>").expect("an end")];
        assert_eq!(way.matches(['M', 'L']).count(), 4, "{way}");
        assert!(svg.contains("data-last=\"8\""), "{svg}");
    }

    #[test]
    fn others_stand_behind_it_and_nothing_at_all_is_drawn_without_changes() {
        let svg = draw(&vec![(0.0, 4.0)], &[vec![(0.0, 1.0)], vec![(10.0, 2.0)]]);
        assert_eq!(svg.matches("class=\"other\"").count(), 2);
        assert!(svg.find("class=\"other\"") < svg.find("class=\"series\""));
        assert!(draw(&Vec::new(), &[]).contains("d=\"\""));
    }
}
