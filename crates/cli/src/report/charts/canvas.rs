//! Writes SVG elements; everything that comes from outside is escaped here.

use std::fmt::{self, Write};

/// The size of all text in charts, in CSS pixels; the style sheet has the same.
pub(super) const TEXT_PX: f64 = 13.0;

/// A chart may be shown smaller than drawn until its text has this size; then it scrolls in its box.
const TEXT_PX_MIN: f64 = 12.0;

/// How far below its middle a line of text has its baseline.
pub(super) const TEXT_DROP: f64 = 4.5;

/// From line to line.
pub(super) const LINE_HEIGHT: f64 = 20.0;

/// The width of a character in relation to its height. That of `DejaVu Sans`, the widest of the usual system fonts.
const CHARACTER_WIDTH: f64 = 0.63;

/// As wide as high, or nearly so; they are frequent in numbers with units.
const WIDE_CHARACTERS: [char; 4] = ['\u{2003}', '\u{d7}', '%', 'M'];

/// Where a text has its anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A box in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub(super) fn right(self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(self) -> f64 {
        self.y + self.height
    }
}

/// A drawing under way.
pub(super) struct Canvas {
    width: f64,
    body: String,
}

impl Canvas {
    pub(super) fn new(width: f64) -> Self {
        Self {
            width,
            body: String::new(),
        }
    }

    pub(super) fn width(&self) -> f64 {
        self.width
    }

    /// Opens a group with attributes that tests and tools can find it by.
    pub(super) fn group(&mut self, class: &str, data: &[(&str, &str)]) {
        self.push(format_args!("<g class=\"{class}\""));
        for (key, value) in data {
            self.push(format_args!(" data-{key}=\"{}\"", escape(value)));
        }
        self.body.push('>');
    }

    pub(super) fn end_group(&mut self) {
        self.body.push_str("</g>");
    }

    /// A title in a group: what a pointer that rests on it is told.
    pub(super) fn title(&mut self, text: &str) {
        self.push(format_args!("<title>{}</title>", escape(text)));
    }

    pub(super) fn rect(&mut self, class: &str, area: Area, tip: &str) {
        self.open_rect(class, area);
        self.close_rect(tip);
    }

    /// With a colour of its own.
    pub(super) fn filled_rect(&mut self, class: &str, fill: &str, area: Area, tip: &str) {
        self.open_rect(class, area);
        self.push(format_args!(" fill=\"{fill}\""));
        self.close_rect(tip);
    }

    fn open_rect(&mut self, class: &str, area: Area) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        let x = Px(x);
        let y = Px(y);
        let width = Px(width.max(0.0));
        let height = Px(height.max(0.0));
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""
        ));
    }

    fn close_rect(&mut self, tip: &str) {
        if tip.is_empty() {
            self.body.push_str("/>");
        } else {
            self.push(format_args!("><title>{}</title></rect>", escape(tip)));
        }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let x1 = Px(from.0);
        let y1 = Px(from.1);
        let x2 = Px(to.0);
        let y2 = Px(to.1);
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        ));
    }

    /// Straight lines from point to point.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut way = String::new();
        for (at, &(x, y)) in points.iter().enumerate() {
            let _ = write!(
                way,
                "{}{} {}",
                if at == 0 { 'M' } else { 'L' },
                Px(x),
                Px(y)
            );
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{way}\"/>"));
    }

    pub(super) fn dot(&mut self, class: &str, at: (f64, f64), tip: &str) {
        let x = Px(at.0);
        let y = Px(at.1);
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"><title>{}</title></circle>",
            escape(tip)
        ));
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>",
            Px(at.0),
            Px(at.1),
            anchor.name(),
            escape(text)
        ));
    }

    /// A title of several lines at most, the first at `at`; returns how far down the last one is from it.
    pub(super) fn title_lines(&mut self, at: (f64, f64), anchor: Anchor, text: &str) -> f64 {
        let mut down = 0.0;
        for (line, part) in wrapped(text, self.width).iter().enumerate() {
            down = line as f64 * LINE_HEIGHT;
            let half = text_width(part) / 2.0;
            let x = if anchor == Anchor::Middle {
                at.0.min(self.width - half).max(half)
            } else {
                at.0
            };
            self.text("muted", (x, at.1 + down), anchor, part);
        }
        down
    }

    /// A text in a colour of its own.
    pub(super) fn filled_text(&mut self, fill: &str, at: (f64, f64), text: &str) {
        let x = Px(at.0);
        let y = Px(at.1);
        let text = escape(text);
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" style=\"fill:{fill}\">{text}</text>"
        ));
    }

    /// The whole drawing. `label` is what a screen reader says instead of it.
    pub(super) fn finish(self, height: f64, label: &str) -> String {
        let width = Px(self.width);
        let height = Px(height);
        let least = Px(self.width * TEXT_PX_MIN / TEXT_PX);
        format!(
            "<svg role=\"img\" aria-label=\"{}\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" style=\"min-width:{least}px\">{}</svg>",
            escape(label),
            self.body
        )
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(text);
    }
}

/// A coordinate: hundredths of a pixel, no more digits than needed.
struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.0.is_finite(), "a coordinate must be a number");
        // Adding zero turns -0 into 0.
        write!(f, "{}", (self.0 * 100.0).round() / 100.0 + 0.0)
    }
}

/// About how wide a text will be; rather more than less.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|symbol| {
            if WIDE_CHARACTERS.contains(&symbol) {
                1.0
            } else {
                CHARACTER_WIDTH
            }
        })
        .sum::<f64>()
        * TEXT_PX
}

/// The widest of some texts.
pub(super) fn widest<'a>(texts: impl IntoIterator<Item = &'a str>) -> f64 {
    texts.into_iter().map(text_width).fold(0.0, f64::max)
}

/// The text in lines of at most this width, broken at spaces; a word that is too wide is cut.
pub(super) fn wrapped(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let word = shortened(word, width);
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(" ") + text_width(&word) <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// The text, or as much of its beginning as fits.
pub(super) fn shortened(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let room = (width / (TEXT_PX * CHARACTER_WIDTH)) as usize;
    text.chars()
        .take(room.saturating_sub(1))
        .chain(['\u{2026}'])
        .collect()
}

/// Text made safe for an element or for an attribute in double quotes. Characters that XML has no place for are
/// replaced.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            symbol if symbol.is_control() => safe.push('\u{fffd}'),
            symbol => safe.push(symbol),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_texts_is_escaped() {
        let mut canvas = Canvas::new(10.0);
        canvas.group("row", &[("label", "\"><script>")]);
        canvas.text("t", (0.0, 0.0), Anchor::Start, "a < b & c");
        canvas.end_group();
        let svg = canvas.finish(5.0, "it's \"quoted\"\u{0}");
        assert!(!svg.contains("<script"), "{svg}");
        assert!(
            svg.contains("data-label=\"&quot;&gt;&lt;script&gt;\""),
            "{svg}"
        );
        assert!(svg.contains(">a &lt; b &amp; c</text>"), "{svg}");
        assert!(
            svg.contains("aria-label=\"it&#39;s &quot;quoted&quot;\u{fffd}\""),
            "{svg}"
        );
    }

    #[test]
    fn coordinates_are_short_and_never_minus_zero() {
        assert_eq!(Px(1.0 / 3.0).to_string(), "0.33");
        assert_eq!(Px(-0.001).to_string(), "0");
        assert_eq!(Px(12.0).to_string(), "12");
    }

    #[test]
    fn a_title_is_broken_at_spaces() {
        assert_eq!(wrapped("uses of a sample", 80.0), ["uses of a", "sample"]);
        assert_eq!(wrapped("time", 80.0), ["time"]);
        assert_eq!(wrapped("system.tier.1.capacity_mb", 80.0).len(), 1);
    }

    #[test]
    fn a_long_text_is_cut_to_the_width() {
        let cut = shortened("a-policy-with-a-very-long-name", 100.0);
        assert!(
            cut.ends_with('\u{2026}') && text_width(&cut) <= 100.0,
            "{cut}"
        );
        assert_eq!(shortened("nopfs", 100.0), "nopfs");
    }
}
