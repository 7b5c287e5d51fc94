//! A small chart of one series over a few values, one of many side by side. The others' series stand behind it in
//! grey, so that each panel shows where it is among them. All panels share the vertical axis.
//!
//! Values stand at equal distances in the given order: they were chosen to be compared, not measured along a scale.

use super::Paint;
use super::canvas::{Anchor, Area, Canvas, LINE_HEIGHT, text_width, widest};
use super::scale::{Clip, round_end, ticks};
use crate::report::format::Unit;

const PLOT_HEIGHT: f64 = 150.0;
const TICKS: usize = 3;
const GAP: f64 = 8.0;
/// Of the distance from value to value, what a bar takes.
const BAR_SHARE: f64 = 0.6;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Values have an order: a line.
    Line,
    /// They are just names: bars.
    Bars,
}

/// The chart.
pub(crate) struct Panel<'a> {
    /// What a screen reader says.
    pub label: String,
    pub x_title: &'a str,
    pub y_title: &'a str,
    pub unit: Unit,
    pub names: &'a [String],
    /// One for each name, where there is one.
    pub values: &'a [Option<f64>],
    /// The other panels' series.
    pub others: &'a [Vec<Option<f64>>],
    /// Of all panels.
    pub clip: Clip,
    pub form: Form,
}

impl Panel<'_> {
    /// As SVG, for this width.
    pub(crate) fn draw(&self, width: f64) -> String {
        let end = round_end(self.clip.most, TICKS, self.unit);
        let ticks = ticks(end, TICKS, self.unit);
        let left = widest(ticks.iter().map(|tick| tick.label.as_str())) + GAP;
        let plot = Area {
            x: left,
            y: 2.0 * LINE_HEIGHT + 8.0,
            width: width - left - 2.0,
            height: PLOT_HEIGHT,
        };
        let mut canvas = Canvas::new(width);
        let y_title = self.unit.title(self.y_title);
        canvas.text("muted", (0.0, LINE_HEIGHT - 5.0), Anchor::Start, &y_title);
        for tick in &ticks {
            let y = plot.bottom() - tick.value / end * plot.height;
            let class = if tick.value == 0.0 { "axis" } else { "grid" };
            canvas.line(class, (plot.x, y), (plot.right(), y));
            canvas.text("muted", (plot.x - GAP, y + 4.5), Anchor::End, &tick.label);
        }
        if self.form == Form::Line {
            for other in self.others {
                self.draw_line(&mut canvas, "other", plot, end, other);
            }
            self.draw_line(&mut canvas, "series", plot, end, self.values);
        }
        self.draw_values(&mut canvas, plot, end);
        let below = (plot.x + plot.width / 2.0, plot.bottom() + 2.0 * LINE_HEIGHT);
        let down = canvas.title_lines(below, Anchor::Middle, self.x_title);
        canvas.finish(below.1 + down + 8.0, &self.label)
    }

    fn pitch(&self, plot: Area) -> f64 {
        plot.width / self.names.len().max(1) as f64
    }

    fn point(&self, plot: Area, end: f64, at: usize, value: f64) -> (f64, f64) {
        let x = plot.x + (at as f64 + 0.5) * self.pitch(plot);
        (x, plot.bottom() - (value / end).min(1.0) * plot.height)
    }

    /// A line through neighbours that have values; a gap where one has none.
    fn draw_line(
        &self,
        canvas: &mut Canvas,
        class: &str,
        plot: Area,
        end: f64,
        values: &[Option<f64>],
    ) {
        let points: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(at, value)| value.map(|value| self.point(plot, end, at, value)))
            .collect();
        for run in points.split(Option::is_none).filter(|run| run.len() > 1) {
            canvas.path(class, &run.iter().copied().flatten().collect::<Vec<_>>());
        }
    }

    /// What stands at a point: with an arrow where it is above the end of the axis.
    fn shown(&self, value: Option<f64>, end: f64) -> String {
        let Some(value) = value else {
            return "\u{2013}".to_owned();
        };
        format!(
            "{}{}",
            if value > end { "\u{2191} " } else { "" },
            self.unit.bare(value)
        )
    }

    fn draw_values(&self, canvas: &mut Canvas, plot: Area, end: f64) {
        let pitch = self.pitch(plot);
        let shown: Vec<String> = self
            .values
            .iter()
            .map(|value| self.shown(*value, end))
            .collect();
        let stride = |texts: &[String]| {
            ((widest(texts.iter().map(String::as_str)) + GAP) / pitch)
                .ceil()
                .max(1.0) as usize
        };
        let name_stride = stride(self.names);
        let value_stride = stride(&shown);
        for (at, (name, value)) in self.names.iter().zip(self.values).enumerate() {
            let (x, y) = self.point(plot, end, at, value.unwrap_or(0.0));
            let tip = format!(
                "{name}: {}",
                value.map_or_else(|| "not supported".into(), |value| self.unit.show(value))
            );
            let is_broken = value.is_some_and(|value| value > end);
            match (self.form, value) {
                (_, None) => {}
                (Form::Line, Some(_)) => canvas.dot(
                    if is_broken { "point broken" } else { "point" },
                    (x, y),
                    &tip,
                ),
                (Form::Bars, Some(_)) => {
                    let width = pitch * BAR_SHARE;
                    let bar = Area {
                        x: x - width / 2.0,
                        y,
                        width,
                        height: plot.bottom() - y,
                    };
                    canvas.rect(&Paint::Plain.class(), bar, &tip);
                }
            }
            if at % value_stride == 0 {
                canvas.text("halo", (x, y - 9.0), Anchor::Middle, &shown[at]);
            }
            if at % name_stride == 0 {
                let half = text_width(name) / 2.0;
                let x = x.min(canvas.width() - half).max(half);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(values: &[Option<f64>], form: Form) -> String {
        let names: Vec<String> = (0..values.len()).map(|at| at.to_string()).collect();
        let clip = Clip::of(values.iter().copied().flatten(), 4.0);
        let panel = Panel {
            label: "l".into(),
            x_title: "x",
            y_title: "time",
            unit: Unit::of_seconds(1.0),
            names: &names,
            values,
            others: &[],
            clip,
            form,
        };
        panel.draw(344.0)
    }

    #[test]
    fn a_line_has_a_gap_where_there_is_no_value() {
        let svg = draw(
            &[Some(1.0), Some(2.0), None, Some(3.0), Some(2.0)],
            Form::Line,
        );
        assert_eq!(svg.matches("class=\"series\"").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn a_value_that_would_flatten_the_others_is_marked() {
        let svg = draw(&[Some(1.0), Some(1.0), Some(1.1), Some(50.0)], Form::Line);
        assert_eq!(svg.matches("point broken").count(), 1);
        assert!(svg.contains("\u{2191} 50.00"));
    }

    #[test]
    fn names_without_order_are_drawn_as_bars() {
        let svg = draw(&[Some(1.0), Some(2.0)], Form::Bars);
        assert_eq!(svg.matches("p-plain").count(), 2);
        assert!(!svg.contains("class=\"series\""));
    }
}
