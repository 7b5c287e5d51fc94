//! Horizontal bars, one a row, each of one or more parts, with a line across all of them to compare with.
//!
//! On a wide chart a row's name stands left of its bar and its number right of it; on a narrow one both stand above.
//! A row that would flatten the others is drawn to the edge, with a break mark: its parts then share the drawn length
//! as they share the value.

use super::Paint;
use super::canvas::{
    Anchor, Area, Canvas, LINE_HEIGHT, TEXT_DROP, TEXT_PX, shortened, text_width, widest,
};
use super::scale::{Clip, Tick, ticks};
use crate::report::format::Unit;

/// Below this width names stand above bars.
const NAMES_BESIDE_FROM: f64 = 600.0;
/// The width that names beside bars get at most.
const NAME_WIDTH_MAX: f64 = 240.0;
const BAR_HEIGHT: f64 = 20.0;
const ROW_GAP: f64 = 12.0;
const GAP: f64 = 8.0;
/// Bars to scale end here where some bar is broken, so that the broken one is visibly longer.
const BROKEN_SHARE: f64 = 0.86;
/// The break mark's middle, counted from the end of its bar.
const BREAK_FROM_END: f64 = 22.0;
/// Bold text in relation to plain text.
const BOLD_WIDTH: f64 = 1.12;
/// Half a tick's label sticks out at the right end of a narrow chart.
const NARROW_EDGE: f64 = 18.0;
/// Room for a tick's label and for the distance to the next.
const TICK_PITCH: f64 = 90.0;

/// The chart.
pub(crate) struct Stacked {
    /// What a screen reader says.
    pub label: String,
    /// Without the unit.
    pub axis_title: String,
    pub unit: Unit,
    pub rows: Vec<Row>,
    pub mark: Option<Mark>,
    /// Bars beyond so many times the median are broken.
    pub breaks_at: f64,
}

/// One bar.
pub(crate) struct Row {
    pub name: String,
    /// The number, as it is printed at the bar.
    pub shown: String,
    pub parts: Vec<Part>,
}

/// A part of a bar.
pub(crate) struct Part {
    pub paint: Paint,
    pub value: f64,
    /// What a pointer that rests on it is told.
    pub tip: String,
}

/// The line to compare with.
pub(crate) struct Mark {
    pub label: String,
    pub value: f64,
}

impl Row {
    /// The length of the bar.
    pub(crate) fn total(&self) -> f64 {
        self.parts.iter().map(|part| part.value).sum()
    }
}

/// Where things go.
struct Layout {
    is_wide: bool,
    rows: usize,
    plot: Area,
    row_height: f64,
    /// The pixels of bars to scale.
    scaled_width: f64,
    clip: Clip,
}

impl Layout {
    fn new(chart: &Stacked, width: f64) -> Self {
        let is_wide = width >= NAMES_BESIDE_FROM;
        let mut clip = chart.clip();
        if let Some(mark) = &chart.mark {
            clip = clip.with_line(mark.value);
        }
        let names = chart.rows.iter().map(|row| row.name.as_str());
        let numbers = chart.rows.iter().map(|row| row.shown.as_str());
        let (left, right) = if is_wide {
            (
                widest(names).min(NAME_WIDTH_MAX) + 1.5 * GAP,
                widest(numbers) + GAP,
            )
        } else {
            (1.0, NARROW_EDGE)
        };
        let row_height = BAR_HEIGHT
            + if is_wide {
                ROW_GAP
            } else {
                LINE_HEIGHT + ROW_GAP
            };
        let top = if chart.mark.is_some() {
            LINE_HEIGHT + 6.0
        } else {
            6.0
        };
        let plot = Area {
            x: left,
            y: top,
            width: width - left - right,
            height: row_height * chart.rows.len() as f64,
        };
        let scaled_width = plot.width * if clip.clips { BROKEN_SHARE } else { 1.0 };
        Self {
            is_wide,
            rows: chart.rows.len(),
            plot,
            row_height,
            scaled_width,
            clip,
        }
    }

    fn length(&self, value: f64) -> f64 {
        if self.clip.most > 0.0 {
            value / self.clip.most * self.scaled_width
        } else {
            0.0
        }
    }

    fn bar(&self, row: usize, total: f64) -> Area {
        let width = if self.clip.breaks(total) {
            self.plot.width
        } else {
            self.length(total)
        };
        let y = self.plot.y + (row + 1) as f64 * self.row_height - BAR_HEIGHT - ROW_GAP / 2.0;
        Area {
            x: self.plot.x,
            y,
            width,
            height: BAR_HEIGHT,
        }
    }

    fn ticks(&self, unit: Unit) -> Vec<Tick> {
        ticks(
            self.clip.most,
            (self.scaled_width / TICK_PITCH).clamp(3.0, 8.0) as usize,
            unit,
        )
    }
}

impl Stacked {
    /// Whether some bar has a break mark.
    pub(crate) fn breaks(&self) -> bool {
        self.clip().clips
    }

    fn clip(&self) -> Clip {
        Clip::of(self.rows.iter().map(Row::total), self.breaks_at)
    }

    /// As SVG, for this width.
    pub(crate) fn draw(&self, width: f64) -> String {
        let layout = Layout::new(self, width);
        let mut canvas = Canvas::new(width);
        self.draw_axis(&mut canvas, &layout);
        for (at, row) in self.rows.iter().enumerate() {
            draw_bar(&mut canvas, &layout, at, row);
        }
        if let Some(mark) = &self.mark {
            draw_mark(&mut canvas, &layout, mark);
        }
        // Over the line, which their halo interrupts.
        for (at, row) in self.rows.iter().enumerate() {
            draw_texts(&mut canvas, &layout, at, row);
        }
        canvas.finish(layout.plot.bottom() + 2.0 * LINE_HEIGHT + 8.0, &self.label)
    }

    fn draw_axis(&self, canvas: &mut Canvas, layout: &Layout) {
        let plot = layout.plot;
        let baseline = plot.bottom() + LINE_HEIGHT - 3.0;
        for tick in layout.ticks(self.unit) {
            let x = plot.x + layout.length(tick.value);
            let class = if tick.value == 0.0 { "axis" } else { "grid" };
            // Between narrow bars stand names, which the line would touch.
            if tick.value > 0.0 || layout.is_wide {
                canvas.line(class, (x, plot.y), (x, plot.bottom() + 3.0));
            }
            let anchor = if tick.value == 0.0 && !layout.is_wide {
                Anchor::Start
            } else {
                Anchor::Middle
            };
            canvas.text("muted", (x, baseline), anchor, &tick.label);
        }
        let title = self.unit.title(&self.axis_title);
        canvas.text(
            "muted",
            (
                plot.x + layout.scaled_width / 2.0,
                baseline + LINE_HEIGHT + 2.0,
            ),
            Anchor::Middle,
            &title,
        );
    }
}

fn draw_bar(canvas: &mut Canvas, layout: &Layout, at: usize, row: &Row) {
    let total = row.total();
    let is_broken = layout.clip.breaks(total);
    let bar = layout.bar(at, total);
    let value = total.to_string();
    let broken = is_broken.to_string();
    canvas.group(
        "bar",
        &[("name", &row.name), ("value", &value), ("broken", &broken)],
    );
    for (part, (x, width)) in row.parts.iter().zip(shares(&row.parts, bar)) {
        if width > 0.0 {
            canvas.rect(
                &format!("part {}", part.paint.class()),
                Area { x, width, ..bar },
                &part.tip,
            );
        }
    }
    canvas.end_group();
    if is_broken {
        draw_break(canvas, bar);
    }
}

fn draw_texts(canvas: &mut Canvas, layout: &Layout, at: usize, row: &Row) {
    let bar = layout.bar(at, row.total());
    let name_width = if layout.is_wide {
        NAME_WIDTH_MAX
    } else {
        canvas.width() - text_width(&row.shown) - GAP
    };
    let name = shortened(&row.name, name_width);
    if layout.is_wide {
        let baseline = bar.y + BAR_HEIGHT / 2.0 + TEXT_DROP;
        canvas.text("name", (bar.x - GAP, baseline), Anchor::End, &name);
        canvas.text(
            "halo",
            (bar.right() + GAP, baseline),
            Anchor::Start,
            &row.shown,
        );
    } else {
        let baseline = bar.y - 7.0;
        canvas.text("name halo", (0.0, baseline), Anchor::Start, &name);
        canvas.text("halo", (canvas.width(), baseline), Anchor::End, &row.shown);
    }
}

/// Where each part of a bar begins and how wide it is; together they are the bar.
fn shares(parts: &[Part], bar: Area) -> Vec<(f64, f64)> {
    let total: f64 = parts.iter().map(|part| part.value).sum();
    let mut x = bar.x;
    let mut share = |value: f64| {
        let width = if total > 0.0 {
            value / total * bar.width
        } else {
            0.0
        };
        x += width;
        (x - width, width)
    };
    parts.iter().map(|part| share(part.value)).collect()
}

/// Two slanted strokes with nothing between them.
fn draw_break(canvas: &mut Canvas, bar: Area) {
    let x = bar.right() - BREAK_FROM_END;
    let top = bar.y - 2.0;
    let bottom = bar.bottom() + 2.0;
    let stroke = |x: f64| [(x + 4.0, top), (x - 4.0, bottom)];
    let left = stroke(x - 3.0);
    let right = stroke(x + 3.0);
    canvas.path("break-gap", &[left[0], right[0], right[1], left[1]]);
    canvas.line("break", left[0], left[1]);
    canvas.line("break", right[0], right[1]);
}

fn draw_mark(canvas: &mut Canvas, layout: &Layout, mark: &Mark) {
    let x = layout.plot.x + layout.length(mark.value);
    let half = text_width(&mark.label) * BOLD_WIDTH / 2.0;
    let (label_x, anchor) = if x < half {
        (0.0, Anchor::Start)
    } else if x > canvas.width() - half {
        (canvas.width(), Anchor::End)
    } else {
        (x, Anchor::Middle)
    };
    let value = mark.value.to_string();
    canvas.group("mark", &[("value", &value)]);
    canvas.title(&mark.label);
    let whole = [(x, layout.plot.y - 4.0), (x, layout.plot.bottom())];
    if layout.is_wide {
        canvas.line("mark-ground", whole[0], whole[1]);
        canvas.line("mark-line", whole[0], whole[1]);
    } else {
        // Names stand between the bars: the line is strong only where it crosses bars.
        canvas.line("mark-thin", whole[0], whole[1]);
        for row in 0..layout.rows {
            let bar = layout.bar(row, 0.0);
            let from = (x, bar.y - 3.0);
            let to = (x, bar.bottom() + 3.0);
            canvas.line("mark-ground", from, to);
            canvas.line("mark-line", from, to);
        }
    }
    canvas.end_group();
    canvas.text(
        "mark-label",
        (label_x, layout.plot.y - 10.0),
        anchor,
        &mark.label,
    );
    debug_assert!(layout.plot.y >= TEXT_PX, "a mark's label needs its line");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(value: f64) -> Part {
        Part {
            paint: Paint::Source,
            value,
            tip: String::new(),
        }
    }

    fn chart(totals: &[f64]) -> Stacked {
        let row = |&total: &f64| Row {
            name: "nopfs".into(),
            shown: "1 s".into(),
            parts: vec![part(total)],
        };
        Stacked {
            label: "times".into(),
            axis_title: "time".into(),
            unit: Unit::COUNT,
            rows: totals.iter().map(row).collect(),
            mark: Some(Mark {
                label: "lower bound".into(),
                value: 7.0,
            }),
            breaks_at: 4.0,
        }
    }

    #[test]
    fn parts_add_up_to_the_bar() {
        let bar = Area {
            x: 10.0,
            y: 0.0,
            width: 300.0,
            height: 20.0,
        };
        let placed = shares(&[part(1.0), part(0.0), part(3.0)], bar);
        let near = |(x, width): (f64, f64), right: (f64, f64)| {
            (x - right.0).abs() < 1e-9 && (width - right.1).abs() < 1e-9
        };
        assert!(
            near(placed[0], (10.0, 75.0))
                && near(placed[1], (85.0, 0.0))
                && near(placed[2], (85.0, 225.0))
        );
        assert_eq!(shares(&[part(0.0)], bar), [(10.0, 0.0)]);
    }

    #[test]
    fn one_slow_row_gets_a_break_mark_and_leaves_the_others_their_length() {
        let layout = Layout::new(&chart(&[8.0, 9.0, 10.0, 400.0]), 1000.0);
        assert!(layout.clip.breaks(400.0));
        assert!((layout.length(10.0) - layout.plot.width * BROKEN_SHARE).abs() < 1e-9);
        let svg = chart(&[8.0, 9.0, 10.0, 400.0]).draw(1000.0);
        assert_eq!(svg.matches("class=\"break\"").count(), 2);
        assert!(
            !chart(&[8.0, 9.0, 10.0])
                .draw(1000.0)
                .contains("class=\"break\"")
        );
    }

    #[test]
    fn lengths_are_proportional_and_the_longest_fills_the_plot() {
        let layout = Layout::new(&chart(&[8.0, 20.0]), 1000.0);
        assert!((layout.length(20.0) - layout.plot.width).abs() < 1e-9);
        assert!((layout.length(8.0) / layout.length(20.0) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn draws_without_rows_and_with_zeros() {
        assert!(chart(&[]).draw(344.0).starts_with("<svg role=\"img\""));
        assert!(chart(&[0.0, 0.0]).draw(344.0).contains("data-value=\"0\""));
    }
}
