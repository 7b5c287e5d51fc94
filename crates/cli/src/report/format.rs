//! Numbers as people read them: thousands separators, and one unit for all numbers that are compared with each other.

const DASH: &str = "\u{2013}";

/// The unit that a column, an axis or a chart is labelled in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    /// What one of it is, in the base unit: seconds, bytes, one.
    size: f64,
    /// What follows a number; empty where numbers are plain counts.
    pub name: &'static str,
    /// Digits after the point for numbers below 10; fewer for larger ones.
    decimals: usize,
}

impl Unit {
    /// Plain numbers.
    pub(crate) const COUNT: Self = Self {
        size: 1.0,
        name: "",
        decimals: 3,
    };

    /// Things that are counted.
    pub(crate) const WHOLE: Self = Self {
        size: 1.0,
        name: "",
        decimals: 0,
    };

    /// For times of about this many seconds: seconds below an hour, hours above, as the terminal's table has it.
    pub(crate) fn of_seconds(about: f64) -> Self {
        if about >= 3600.0 {
            Self {
                size: 3600.0,
                name: "h",
                decimals: 3,
            }
        } else if about >= 0.1 || about <= 0.0 {
            Self {
                size: 1.0,
                name: "s",
                decimals: 2,
            }
        } else {
            Self {
                size: 1e-3,
                name: "ms",
                decimals: 2,
            }
        }
    }

    /// For about this many bytes. Units are decimal, as everywhere in a scenario.
    pub(crate) fn of_bytes(about: f64) -> Self {
        let known = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
        let fitting = known.into_iter().find(|(size, _)| about >= *size);
        fitting.map_or(
            Self {
                size: 1.0,
                name: "B",
                decimals: 0,
            },
            |(size, name)| Self {
                size,
                name,
                decimals: 2,
            },
        )
    }

    /// A value of the base unit, in this unit.
    pub(crate) fn scaled(self, value: f64) -> f64 {
        value / self.size
    }

    /// The other way round.
    pub(crate) fn unscaled(self, value: f64) -> f64 {
        value * self.size
    }

    /// The number alone.
    pub(crate) fn bare(self, value: f64) -> String {
        let scaled = self.scaled(value);
        let fewer = match scaled.abs() {
            size if size >= 1000.0 => 3,
            size if size >= 100.0 => 2,
            size if size >= 10.0 => usize::from(self.decimals > 2),
            _ => 0,
        };
        // Three digits that count, also of what is below 1.
        let more = usize::from(scaled.abs() < 0.995 && self.decimals == 2);
        let text = number(scaled, self.decimals.saturating_sub(fewer) + more);
        let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        if is_zero { "0".to_owned() } else { text }
    }

    /// The number and its unit, kept on one line.
    pub(crate) fn show(self, value: f64) -> String {
        self.with_name(&self.bare(value))
    }

    fn with_name(self, number: &str) -> String {
        if self.name.is_empty() {
            number.to_owned()
        } else {
            format!("{number}\u{a0}{}", self.name)
        }
    }

    /// A title for an axis or a column: `time (s)`.
    pub(crate) fn title(self, what: &str) -> String {
        if self.name.is_empty() {
            what.to_owned()
        } else {
            format!("{what} ({})", self.name)
        }
    }
}

/// With this many digits after the point and commas between thousands.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return DASH.to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let sign = if value < 0.0 && !is_zero {
        "\u{2212}"
    } else {
        ""
    };
    format!("{sign}{}{rest}", thousands(whole))
}

/// A whole number.
pub(crate) fn count(value: u64) -> String {
    thousands(&value.to_string())
}

/// Commas between groups of three digits.
fn thousands(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A value that somebody typed: a whole number gets separators, all else stays as it is.
pub(crate) fn typed(value: &str) -> String {
    let plain = value.replace('_', "");
    let is_whole = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_digit());
    if is_whole {
        thousands(&plain)
    } else {
        value.to_owned()
    }
}

/// How many times the reference; nothing where there is no reference.
pub(crate) fn times(value: f64, reference: f64) -> Option<String> {
    (reference > 0.0).then(|| {
        let ratio = value / reference;
        format!("{}\u{d7}", number(ratio, if ratio < 1.995 { 3 } else { 1 }))
    })
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{}\u{a0}%", number(share * 100.0, 1))
}

/// A number with as many digits as it needs: what a scenario's value looked like.
pub(crate) fn plain(value: f64) -> String {
    let decimals = format!("{value}")
        .split_once('.')
        .map_or(0, |(_, rest)| rest.len());
    number(value, decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated_and_zero_has_no_sign() {
        assert_eq!(number(1_234_567.891, 2), "1,234,567.89");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(-0.001, 1), "0.0");
        assert_eq!(number(-1500.0, 0), "\u{2212}1,500");
        assert_eq!(number(f64::NAN, 2), "\u{2013}");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn times_change_from_milliseconds_to_seconds_to_hours() {
        assert_eq!(Unit::of_seconds(0.004).show(0.004), "4.00\u{a0}ms");
        assert_eq!(Unit::of_seconds(7.25).show(7.25), "7.25\u{a0}s");
        assert_eq!(Unit::of_seconds(27.7).show(27.7), "27.70\u{a0}s");
        assert_eq!(Unit::of_seconds(3599.0).show(1234.5), "1,234\u{a0}s");
        assert_eq!(Unit::of_seconds(7653.4).show(7653.4), "2.126\u{a0}h");
        assert_eq!(Unit::of_seconds(7653.4).show(0.0), "0\u{a0}h");
    }

    #[test]
    fn bytes_are_decimal() {
        assert_eq!(Unit::of_bytes(2.7e8).show(2.7e8), "270\u{a0}MB");
        assert_eq!(Unit::of_bytes(1.43e12).show(1.43e12), "1.43\u{a0}TB");
        assert_eq!(Unit::of_bytes(12.0).show(12.0), "12\u{a0}B");
        assert_eq!(Unit::of_bytes(5e9).title("read"), "read (GB)");
    }

    #[test]
    fn what_somebody_typed_stays_what_it_was() {
        assert_eq!(typed("20480"), "20,480");
        assert_eq!(typed("20_480"), "20,480");
        assert_eq!(typed("0.5"), "0.5");
        assert_eq!(typed("torch"), "torch");
        assert_eq!(typed(""), "");
        assert_eq!(plain(0.027), "0.027");
        assert_eq!(plain(21_164.0), "21,164");
    }

    #[test]
    fn ratios_are_finer_near_one() {
        assert_eq!(times(7.58, 7.25).as_deref(), Some("1.046\u{d7}"));
        assert_eq!(times(30.0, 7.5).as_deref(), Some("4.0\u{d7}"));
        assert_eq!(times(1.0, 0.0), None);
    }
}
