//! A heat map: one cell for each pair of values, with its number in it, and the colours' legend.
//!
//! Colours run from light (small) to dark (large) through hues that stay apart for all kinds of colour vision
//! (`ColorBrewer`'s `YlGnBu`). They do not follow the page's scheme, so a cell's ink is chosen for its colour.

use super::canvas::{Anchor, Area, Canvas, LINE_HEIGHT, TEXT_DROP, shortened, widest};
use super::scale::Clip;
use crate::report::format::Unit;

const STOPS: [[f64; 3]; 7] = [
    [237.0, 248.0, 177.0],
    [199.0, 233.0, 180.0],
    [127.0, 205.0, 187.0],
    [65.0, 182.0, 196.0],
    [29.0, 145.0, 192.0],
    [34.0, 94.0, 168.0],
    [37.0, 52.0, 148.0],
];
const LIGHT_INK: &str = "#ffffff";
const DARK_INK: &str = "#000000";
const CELL_HEIGHT: f64 = 36.0;
const GAP: f64 = 8.0;
const ROW_NAME_WIDTH_MAX: f64 = 110.0;
/// Shades follow the logarithm where the largest is more than this many times the smallest.
const LINEAR_UP_TO: f64 = 2.0;
/// Pieces of the legend's bar.
const LEGEND_PIECES: usize = 43;

/// From values to colours; shared by the heat maps that are to be compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shades {
    least: f64,
    /// What is larger has the same colour.
    most: f64,
    clips: bool,
    is_log: bool,
}

impl Shades {
    /// For these values, with shades for those that `clip` lets through.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>, clip: Clip) -> Self {
        let least = values
            .into_iter()
            .filter(|value| value.is_finite())
            .fold(clip.most, f64::min);
        let is_log = least > 0.0 && clip.most > LINEAR_UP_TO * least;
        Self {
            least,
            most: clip.most,
            clips: clip.clips,
            is_log,
        }
    }

    /// Whether equal ratios, not equal differences, are equal steps of colour.
    pub(crate) fn is_log(self) -> bool {
        self.is_log
    }

    /// 0 for the smallest, 1 for the largest.
    fn share(self, value: f64) -> f64 {
        let (value, least, most) = if self.is_log {
            (value.ln(), self.least.ln(), self.most.ln())
        } else {
            (value, self.least, self.most)
        };
        if most > least {
            ((value - least) / (most - least)).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    fn value_at(self, share: f64) -> f64 {
        if self.is_log {
            self.least * (self.most / self.least).powf(share)
        } else {
            self.least + share * (self.most - self.least)
        }
    }

    /// The legend as SVG: a bar of all shades with values below it.
    pub(crate) fn draw_legend(self, width: f64, what: &str, unit: Unit) -> String {
        let mut canvas = Canvas::new(width);
        canvas.text("muted", (0.0, LINE_HEIGHT - 5.0), Anchor::Start, what);
        let piece = width / LEGEND_PIECES as f64;
        for at in 0..LEGEND_PIECES {
            let share = at as f64 / (LEGEND_PIECES - 1) as f64;
            // Half a pixel over the next one: no hairline between them.
            let area = Area {
                x: at as f64 * piece,
                y: LINE_HEIGHT,
                width: piece + 0.5,
                height: 14.0,
            };
            canvas.filled_rect("shade", &hex(colour(share)), area, "");
        }
        let baseline = 2.0 * LINE_HEIGHT + 10.0;
        let or_more = if self.clips { "\u{2265}\u{a0}" } else { "" };
        for (share, anchor, before) in [
            (0.0, Anchor::Start, ""),
            (0.5, Anchor::Middle, ""),
            (1.0, Anchor::End, or_more),
        ] {
            let text = format!("{before}{}", unit.show(self.value_at(share)));
            canvas.text("muted", (share * width, baseline), anchor, &text);
        }
        let label = format!(
            "{what}: from {} to {or_more}{}",
            unit.show(self.least),
            unit.show(self.most)
        );
        canvas.finish(baseline + 8.0, &label)
    }
}

fn colour(share: f64) -> [f64; 3] {
    let at = share * (STOPS.len() - 1) as f64;
    let below = (at.floor() as usize).min(STOPS.len() - 2);
    let part = at - below as f64;
    std::array::from_fn(|channel| {
        STOPS[below][channel] + part * (STOPS[below + 1][channel] - STOPS[below][channel])
    })
}

fn hex(colour: [f64; 3]) -> String {
    let [red, green, blue] = colour.map(|channel| channel.round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Black or white, whichever contrasts more.
fn ink(colour: [f64; 3]) -> &'static str {
    let [red, green, blue] = colour.map(|channel| {
        let share = channel / 255.0;
        if share <= 0.04045 {
            share / 12.92
        } else {
            ((share + 0.055) / 1.055).powf(2.4)
        }
    });
    let luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    let on_white = 1.05 / (luminance + 0.05);
    let on_black = (luminance + 0.05) / 0.05;
    if on_white > on_black {
        LIGHT_INK
    } else {
        DARK_INK
    }
}

/// The chart.
pub(crate) struct Heat {
    /// What a screen reader says.
    pub label: String,
    /// What the columns are.
    pub x_title: String,
    /// What the rows are.
    pub y_title: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    /// By row, then column.
    pub cells: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Clone)]
pub(crate) struct Cell {
    /// Nothing where there is no value; the cell then has no colour.
    pub value: Option<f64>,
    /// What stands in it.
    pub shown: String,
    /// What a pointer that rests on it is told.
    pub tip: String,
}

impl Heat {
    /// As SVG, for this width; wider where the cells need it.
    pub(crate) fn draw(&self, width: f64, shades: Shades) -> String {
        let left = widest(self.rows.iter().map(String::as_str)).min(ROW_NAME_WIDTH_MAX) + GAP;
        let texts = self.cells.iter().flatten().map(|cell| cell.shown.as_str());
        let needed = widest(texts.chain(self.columns.iter().map(String::as_str))) + GAP;
        let count = self.columns.len().max(1) as f64;
        let cell_width = needed.max((width - left) / count);
        let width = left + cell_width * count;
        let top = LINE_HEIGHT + 4.0;
        let bottom = top + CELL_HEIGHT * self.rows.len() as f64;
        let mut canvas = Canvas::new(width);
        canvas.text(
            "muted",
            (0.0, LINE_HEIGHT - 5.0),
            Anchor::Start,
            &format!("\u{2193} {}", self.y_title),
        );
        for (at, (name, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let y = top + at as f64 * CELL_HEIGHT;
            let name = shortened(name, left - GAP);
            canvas.text(
                "muted",
                (left - GAP, y + CELL_HEIGHT / 2.0 + TEXT_DROP),
                Anchor::End,
                &name,
            );
            for (column, cell) in cells.iter().enumerate() {
                let x = left + column as f64 * cell_width;
                draw_cell(
                    &mut canvas,
                    Area {
                        x,
                        y,
                        width: cell_width,
                        height: CELL_HEIGHT,
                    },
                    cell,
                    shades,
                );
            }
        }
        for (at, name) in self.columns.iter().enumerate() {
            let middle = left + (at as f64 + 0.5) * cell_width;
            canvas.text(
                "muted",
                (middle, bottom + LINE_HEIGHT - 3.0),
                Anchor::Middle,
                name,
            );
        }
        let below = (left + cell_width * count / 2.0, bottom + 2.0 * LINE_HEIGHT);
        let down = canvas.title_lines(below, Anchor::Middle, &format!("{} \u{2192}", self.x_title));
        canvas.finish(below.1 + down + 8.0, &self.label)
    }
}

fn draw_cell(canvas: &mut Canvas, area: Area, cell: &Cell, shades: Shades) {
    let text_at = (
        area.x + area.width / 2.0,
        area.y + area.height / 2.0 + TEXT_DROP,
    );
    if let Some(value) = cell.value {
        let colour = colour(shades.share(value));
        canvas.filled_rect("cell", &hex(colour), area, &cell.tip);
        canvas.filled_text(ink(colour), text_at, &cell.shown);
    } else {
        canvas.rect("cell no-value", area, &cell.tip);
        canvas.text("muted", text_at, Anchor::Middle, &cell.shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shades(values: &[f64]) -> Shades {
        Shades::of(
            values.iter().copied(),
            Clip::of(values.iter().copied(), 100.0),
        )
    }

    #[test]
    fn what_would_take_all_shades_for_itself_is_clipped() {
        let values = [2.0, 2.1, 2.2, 27.0];
        let shades = Shades::of(values, Clip::of(values, 4.0));
        assert!((shades.share(2.1) - 0.5).abs() < 1e-9 && (shades.share(27.0) - 1.0).abs() < 1e-12);
        assert!(
            shades
                .draw_legend(344.0, "time", Unit::COUNT)
                .contains("\u{2265}\u{a0}2.200")
        );
    }

    #[test]
    fn the_smallest_is_lightest_and_the_largest_darkest() {
        let shades = shades(&[6.0, 12.0, 9.0]);
        assert!(!shades.is_log());
        assert_eq!(hex(colour(shades.share(6.0))), "#edf8b1");
        assert_eq!(hex(colour(shades.share(12.0))), "#253494");
        assert!((shades.share(9.0) - 0.5).abs() < 1e-12);
        assert!((shades.value_at(0.5) - 9.0).abs() < 1e-12);
    }

    #[test]
    fn far_apart_values_are_shaded_by_ratio() {
        let shades = shades(&[1.0, 10.0, 100.0]);
        assert!(shades.is_log());
        assert!((shades.share(10.0) - 0.5).abs() < 1e-12);
        assert!((shades.value_at(0.5) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn equal_values_and_no_values_have_a_shade() {
        assert!(shades(&[7.0, 7.0]).share(7.0).abs() < 1e-12);
        assert!(
            shades(&[])
                .draw_legend(344.0, "time", Unit::COUNT)
                .starts_with("<svg")
        );
    }

    #[test]
    fn ink_is_readable_on_every_shade() {
        for at in 0..=100 {
            let shade = colour(f64::from(at) / 100.0);
            let channel = |value: f64| ((value / 255.0 + 0.055) / 1.055).powf(2.4);
            let luminance = 0.2126 * channel(shade[0])
                + 0.7152 * channel(shade[1])
                + 0.0722 * channel(shade[2]);
            let contrast = if ink(shade) == LIGHT_INK {
                1.05 / (luminance + 0.05)
            } else {
                (luminance + 0.05) / 0.05
            };
            assert!(contrast >= 4.5, "{at}: {contrast}");
        }
    }
}
