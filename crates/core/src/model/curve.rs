//! Throughput as a function of how many readers or threads there are: linear between the given points, and outside
//! of them either a linear regression over all points (as HDMLP does) or the nearest point.

use crate::units::Rate;

/// What holds outside the given points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// The least-squares line through all points. A falling line stops at 1 % of the slowest given rate, so that no
    /// number of readers brings the throughput to nothing or below.
    Regression,
    /// The nearest given point.
    Clamp,
}

/// Why points make no curve.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// No point at all.
    #[error("a curve needs at least one point")]
    Empty,
    /// The numbers of readers do not increase strictly.
    #[error(
        "the points of a curve must have strictly increasing numbers of readers, {0} comes out of order"
    )]
    Order(u32),
    /// A rate that no device has.
    #[error("a rate must be a positive number, {0} is not")]
    Rate(f64),
}

/// Aggregate throughput at some numbers of readers.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(u32, f64)>,
    beyond: Beyond,
    slope: f64,
    intercept: f64,
    floor: f64,
}

impl Curve {
    /// A curve through `points` (readers, MB/s), sorted by readers.
    pub fn new(points: Vec<(u32, f64)>, beyond: Beyond) -> Result<Self, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(CurveError::Order(pair[1].0));
        }
        if let Some(&(_, rate)) = points
            .iter()
            .find(|(_, rate)| !rate.is_finite() || *rate <= 0.0)
        {
            return Err(CurveError::Rate(rate));
        }
        let (slope, intercept) = regression(&points);
        let floor = points
            .iter()
            .map(|&(_, rate)| rate)
            .fold(f64::INFINITY, f64::min)
            / 100.0;
        Ok(Self {
            points,
            beyond,
            slope,
            intercept,
            floor,
        })
    }

    /// The points it goes through (readers, MB/s).
    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// What holds outside the points.
    pub fn beyond(&self) -> Beyond {
        self.beyond
    }

    /// The aggregate throughput of `readers` readers.
    pub fn at(&self, readers: u32) -> Rate {
        let first = self.points[0];
        let last = self.points[self.points.len() - 1];
        if readers < first.0 || readers > last.0 {
            return Rate(match self.beyond {
                Beyond::Clamp if readers < first.0 => first.1,
                Beyond::Clamp => last.1,
                Beyond::Regression => {
                    (self.intercept + self.slope * f64::from(readers)).max(self.floor)
                }
            });
        }
        let upper = self.points.partition_point(|&(x, _)| x < readers);
        let (x1, y1) = self.points[upper];
        if x1 == readers {
            return Rate(y1);
        }
        let (x0, y0) = self.points[upper - 1];
        let share = f64::from(readers - x0) / f64::from(x1 - x0);
        Rate(y0 + share * (y1 - y0))
    }
}

/// Slope and intercept of the least-squares line; a single point is a constant.
fn regression(points: &[(u32, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|&(x, _)| f64::from(x)).sum::<f64>() / n;
    let mean_y = points.iter().map(|&(_, y)| y).sum::<f64>() / n;
    let spread: f64 = points
        .iter()
        .map(|&(x, _)| (f64::from(x) - mean_x).powi(2))
        .sum();
    if spread == 0.0 {
        return (0.0, mean_y);
    }
    let together: f64 = points
        .iter()
        .map(|&(x, y)| (f64::from(x) - mean_x) * (y - mean_y))
        .sum();
    let slope = together / spread;
    (slope, mean_y - slope * mean_x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<const N: usize>(curve: &Curve, readers: [u32; N]) -> [Rate; N] {
        readers.map(|readers| curve.at(readers))
    }

    fn ault(beyond: Beyond) -> Curve {
        Curve::new(vec![(1, 66.0), (2, 86.0), (3, 129.0), (4, 146.0)], beyond).unwrap()
    }

    #[test]
    fn gives_the_points_and_the_line_between_them() {
        let curve = Curve::new(vec![(2, 10.0), (6, 30.0)], Beyond::Clamp).unwrap();
        assert_eq!(at(&curve, [2, 3, 4, 6]), [10.0, 15.0, 20.0, 30.0].map(Rate));
    }

    #[test]
    fn extrapolates_by_regression_over_all_points() {
        // Least squares by hand: slope 28.3, intercept 36.
        assert!((ault(Beyond::Regression).at(8).0 - 262.4).abs() < 1e-9);
    }

    #[test]
    fn clamps_to_the_nearest_point_when_asked() {
        let curve = Curve::new(vec![(2, 10.0), (6, 30.0)], Beyond::Clamp).unwrap();
        assert_eq!(at(&curve, [1, 100]), [10.0, 30.0].map(Rate));
    }

    #[test]
    fn a_single_point_is_a_constant() {
        let curve = Curve::new(vec![(2, 86.0)], Beyond::Regression).unwrap();
        assert_eq!(at(&curve, [1, 2, 16]), [Rate(86.0); 3]);
    }

    #[test]
    fn a_falling_line_never_reaches_zero() {
        let curve = Curve::new(vec![(1, 100.0), (2, 50.0)], Beyond::Regression).unwrap();
        assert_eq!(curve.at(1000), Rate(0.5));
    }

    #[test]
    fn refuses_what_is_no_curve() {
        assert_eq!(Curve::new(vec![], Beyond::Clamp), Err(CurveError::Empty));
        assert_eq!(
            Curve::new(vec![(2, 1.0), (2, 1.0)], Beyond::Clamp),
            Err(CurveError::Order(2))
        );
        assert!(matches!(
            Curve::new(vec![(1, f64::NAN)], Beyond::Clamp),
            Err(CurveError::Rate(_))
        ));
        assert_eq!(
            Curve::new(vec![(1, 0.0)], Beyond::Clamp),
            Err(CurveError::Rate(0.0))
        );
    }
}
