//! A histogram: vertical bars side by side. Labels that would overlap are left out, at equal distances.

use super::Paint;
use super::canvas::{Anchor, Area, Canvas, LINE_HEIGHT, text_width, widest};
use super::scale::{round_end, ticks};
use crate::report::format::Unit;

const PLOT_HEIGHT: f64 = 190.0;
const TICKS: usize = 4;
const GAP: f64 = 8.0;
/// Of the distance from bar to bar, what the bar takes.
const BAR_SHARE: f64 = 0.82;
/// Below this distance bars touch, so that they do not flicker.
const TOUCH_BELOW: f64 = 5.0;

/// The chart.
pub(crate) struct Columns<'a> {
    /// What a screen reader says.
    pub label: String,
    pub x_title: &'a str,
    pub y_title: &'a str,
    /// Of heights.
    pub unit: Unit,
    /// Name and height.
    pub bars: &'a [(String, f64)],
}

impl Columns<'_> {
    /// As SVG, for this width.
    pub(crate) fn draw(&self, width: f64) -> String {
        let unit = self.unit;
        let most = self
            .bars
            .iter()
            .map(|(_, height)| *height)
            .filter(|height| height.is_finite())
            .fold(0.0, f64::max);
        let end = round_end(most, TICKS, unit);
        let ticks = ticks(end, TICKS, unit);
        let left = widest(ticks.iter().map(|tick| tick.label.as_str())) + GAP;
        let mut canvas = Canvas::new(width);
        let down = canvas.title_lines((0.0, LINE_HEIGHT - 5.0), Anchor::Start, self.y_title);
        let plot = Area {
            x: left,
            y: 2.0 * LINE_HEIGHT + down,
            width: width - left - 2.0,
            height: PLOT_HEIGHT,
        };
        for tick in &ticks {
            let y = plot.bottom() - tick.value / end * plot.height;
            let class = if tick.value == 0.0 { "axis" } else { "grid" };
            canvas.line(class, (plot.x, y), (plot.right(), y));
            canvas.text("muted", (plot.x - GAP, y + 4.5), Anchor::End, &tick.label);
        }
        self.draw_bars(&mut canvas, plot, end);
        let below = (plot.x + plot.width / 2.0, plot.bottom() + 2.0 * LINE_HEIGHT);
        let down = canvas.title_lines(below, Anchor::Middle, self.x_title);
        canvas.finish(below.1 + down + 8.0, &self.label)
    }

    fn draw_bars(&self, canvas: &mut Canvas, plot: Area, end: f64) {
        let pitch = plot.width / self.bars.len().max(1) as f64;
        let share = if pitch < TOUCH_BELOW { 1.0 } else { BAR_SHARE };
        let stride = label_stride(
            widest(self.bars.iter().map(|(name, _)| name.as_str())),
            pitch,
        );
        let shown: Vec<String> = self
            .bars
            .iter()
            .map(|(_, value)| self.unit.bare(*value))
            .collect();
        let has_room = widest(shown.iter().map(String::as_str)) + 4.0 <= pitch;
        for (at, ((name, value), shown)) in self.bars.iter().zip(&shown).enumerate() {
            let height = if value.is_finite() {
                value.max(0.0) / end * plot.height
            } else {
                0.0
            };
            let middle = plot.x + (at as f64 + 0.5) * pitch;
            let width = pitch * share;
            let bar = Area {
                x: middle - width / 2.0,
                y: plot.bottom() - height,
                width,
                height,
            };
            canvas.group("column", &[("name", name)]);
            canvas.rect(&Paint::Plain.class(), bar, &format!("{name}: {shown}"));
            canvas.end_group();
            if has_room {
                canvas.text("halo", (middle, bar.y - 5.0), Anchor::Middle, shown);
            }
            if at % stride == 0 {
                // The first and last label must not leave the chart.
                let half = text_width(name) / 2.0;
                let x = middle.min(canvas.width() - half).max(half);
                canvas.text(
                    "muted",
                    (x, plot.bottom() + LINE_HEIGHT - 3.0),
                    Anchor::Middle,
                    name,
                );
            }
        }
    }
}

/// Every how many bars there is room for a label of this width.
fn label_stride(label_width: f64, pitch: f64) -> usize {
    ((label_width + GAP) / pitch.max(1e-9)).ceil().max(1.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(count: usize) -> String {
        let bars: Vec<_> = (0..count).map(|at| (at.to_string(), at as f64)).collect();
        Columns {
            label: "l".into(),
            x_title: "x",
            y_title: "y",
            unit: Unit::COUNT,
            bars: &bars,
        }
        .draw(344.0)
    }

    #[test]
    fn labels_have_room() {
        assert_eq!(label_stride(20.0, 40.0), 1);
        assert_eq!(label_stride(40.0, 16.0), 3);
    }

    #[test]
    fn every_bar_is_drawn_however_many_there_are() {
        for count in [0, 1, 12, 90, 1000] {
            assert_eq!(draw(count).matches("class=\"column\"").count(), count);
        }
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let bars = [
            ("a".to_owned(), 50.0),
            ("b".to_owned(), 100.0),
            ("c".to_owned(), f64::NAN),
        ];
        let svg = Columns {
            label: "l".into(),
            x_title: "x",
            y_title: "y",
            unit: Unit::COUNT,
            bars: &bars,
        }
        .draw(344.0);
        assert!(
            svg.contains("height=\"95\"")
                && svg.contains("height=\"190\"")
                && svg.contains("height=\"0\""),
            "{svg}"
        );
    }
}
