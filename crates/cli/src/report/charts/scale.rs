//! The maths of axes: where ticks go, what a value is in pixels, and which values are too long to be drawn to scale.

use crate::report::format::{Unit, number};

/// A tick: its value in the base unit, and its label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub value: f64,
    pub label: String,
}

/// Ticks from 0 up to `end`, about `wanted` of them, at round numbers of the unit.
pub(super) fn ticks(end: f64, wanted: usize, unit: Unit) -> Vec<Tick> {
    let end = unit.scaled(end);
    if !end.is_finite() || end <= 0.0 {
        return vec![Tick {
            value: 0.0,
            label: "0".to_owned(),
        }];
    }
    let step = round_step(end / wanted.max(1) as f64);
    let decimals = (0..9)
        .find(|&digits| is_whole(step * 10_f64.powi(digits)))
        .unwrap_or(9) as usize;
    // A last tick that is missed by a rounding error is a tick.
    let last = (end / step + 1e-9).floor() as usize;
    let label = |value: f64| {
        if value == 0.0 {
            "0".to_owned()
        } else {
            number(value, decimals)
        }
    };
    (0..=last)
        .map(|at| at as f64 * step)
        .map(|value| Tick {
            value: unit.unscaled(value),
            label: label(value),
        })
        .collect()
}

/// The end of an axis whose last tick covers `most`.
pub(super) fn round_end(most: f64, wanted: usize, unit: Unit) -> f64 {
    if !most.is_finite() || most <= 0.0 {
        return unit.unscaled(1.0);
    }
    let step = round_step(unit.scaled(most) / wanted.max(1) as f64);
    unit.unscaled((unit.scaled(most) / step - 1e-9).ceil() * step)
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below this.
fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .find(|round| round * power >= rough * (1.0 - 1e-9));
    round.unwrap_or(10.0) * power
}

fn is_whole(value: f64) -> bool {
    (value - value.round()).abs() < 1e-6
}

/// Which values are drawn to scale, and how long the axis is for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clip {
    /// The largest value that is drawn to scale.
    pub most: f64,
    /// Whether some value is larger.
    pub clips: bool,
}

impl Clip {
    /// For these values: those beyond so many times their median are not drawn to scale.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>, medians: f64) -> Self {
        let mut sorted: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let largest = sorted.last().copied().unwrap_or(0.0);
        let limit = medians * median(&sorted);
        // A median of 0 says nothing about what is long.
        if limit <= 0.0 || largest <= limit {
            return Self {
                most: largest,
                clips: false,
            };
        }
        let fitting = sorted.iter().rev().find(|&&value| value <= limit);
        Self {
            most: fitting.copied().unwrap_or(largest),
            clips: true,
        }
    }

    /// The same, but with room for a line at `value`, which is always drawn to scale.
    pub(crate) fn with_line(self, value: f64) -> Self {
        Self {
            most: self.most.max(value),
            ..self
        }
    }

    /// Whether this value is too long.
    pub(crate) fn breaks(self, value: f64) -> bool {
        self.clips && value > self.most
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(end: f64, wanted: usize, unit: Unit) -> Vec<String> {
        ticks(end, wanted, unit)
            .into_iter()
            .map(|tick| tick.label)
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers_of_the_unit() {
        assert_eq!(
            labels(27.7, 6, Unit::of_seconds(27.7)),
            ["0", "5", "10", "15", "20", "25"]
        );
        assert_eq!(labels(0.9, 4, Unit::COUNT), ["0", "0.25", "0.50", "0.75"]);
        assert_eq!(
            labels(3.0 * 3600.0, 3, Unit::of_seconds(3.0 * 3600.0)),
            ["0", "1", "2", "3"]
        );
        assert_eq!(labels(12_000.0, 3, Unit::COUNT), ["0", "5,000", "10,000"]);
        assert_eq!(labels(0.0, 5, Unit::COUNT), ["0"]);
        assert_eq!(labels(f64::NAN, 5, Unit::COUNT), ["0"]);
    }

    #[test]
    fn there_are_never_more_ticks_than_wanted_plus_zero_nor_fewer_than_a_third() {
        for exponent in -30..30 {
            for digit in 1..100 {
                let end = f64::from(digit) * 10_f64.powi(exponent) / 7.0;
                let ticks = ticks(end, 6, Unit::COUNT);
                assert!((3..=7).contains(&ticks.len()), "{end}: {}", ticks.len());
                assert!(ticks.iter().all(|tick| tick.value <= end * (1.0 + 1e-6)));
            }
        }
    }

    #[test]
    fn the_end_of_an_axis_is_a_tick_that_covers_the_largest() {
        assert!((round_end(27.7, 5, Unit::COUNT) - 30.0).abs() < 1e-9);
        assert!((round_end(30.0, 3, Unit::COUNT) - 30.0).abs() < 1e-9);
        assert!((round_end(0.0, 3, Unit::COUNT) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn only_what_is_beyond_so_many_medians_breaks() {
        let clip = Clip::of([8.0, 9.0, 10.0, 39.0], 4.0);
        assert_eq!(
            clip,
            Clip {
                most: 10.0,
                clips: true
            }
        );
        assert!(clip.breaks(39.0) && !clip.breaks(10.0));
        assert_eq!(
            Clip::of([8.0, 9.0, 10.0, 36.0], 4.0),
            Clip {
                most: 36.0,
                clips: false
            }
        );
        assert_eq!(
            Clip::of([0.0, 0.0, 0.0, 5.0], 4.0),
            Clip {
                most: 5.0,
                clips: false
            }
        );
        assert_eq!(
            Clip::of([], 4.0),
            Clip {
                most: 0.0,
                clips: false
            }
        );
        assert_eq!(
            Clip::of([7.0], 4.0),
            Clip {
                most: 7.0,
                clips: false
            }
        );
    }

    #[test]
    fn a_line_is_always_to_scale() {
        let clip = Clip::of([1.0, 1.0, 1.0, 100.0], 4.0).with_line(3.0);
        assert!((clip.most - 3.0).abs() < 1e-12);
        assert!(clip.breaks(100.0));
    }
}
