//! Quantities with their unit: bytes, seconds of model time and rates.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

/// Bytes in a megabyte of the model (10^6, as in the papers).
pub const BYTES_PER_MB: f64 = 1e6;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Whole bytes nearest to `mb` megabytes; nothing below zero.
    pub fn from_mb(mb: f64) -> Self {
        Self((mb * BYTES_PER_MB).round().max(0.0) as u64)
    }

    /// In megabytes.
    pub fn mb(self) -> f64 {
        self.0 as f64 / BYTES_PER_MB
    }

    /// What is left after `other` is taken, or zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        Self(parts.map(|part| part.0).sum())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

/// A span or a point of model time.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// No time at all; the start of the job.
    pub const ZERO: Self = Self(0.0);
    /// Later than everything.
    pub const NEVER: Self = Self(f64::INFINITY);

    /// The later (longer) of two.
    #[must_use]
    #[inline]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl Add for Seconds {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Seconds {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Seconds {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Div<f64> for Seconds {
    type Output = Self;
    #[inline]
    fn div(self, by: f64) -> Self {
        Self(self.0 / by)
    }
}

/// A throughput in megabytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// The slower of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The share of one of `parts` equal users.
    #[must_use]
    pub fn shared_by(self, parts: u32) -> Self {
        Self(self.0 / f64::from(parts.max(1)))
    }

    /// How long one byte takes.
    pub fn pace(self) -> Pace {
        Pace(1.0 / (self.0 * BYTES_PER_MB))
    }
}

/// The inverse of a rate: seconds a byte. Costs are multiplications in the hot path.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Pace(pub f64);

impl Pace {
    /// The slower (larger) of two.
    #[must_use]
    #[inline]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl Add for Pace {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Div<f64> for Pace {
    type Output = Self;
    #[inline]
    fn div(self, by: f64) -> Self {
        Self(self.0 / by)
    }
}

impl Mul<Bytes> for Pace {
    type Output = Seconds;
    #[inline]
    fn mul(self, bytes: Bytes) -> Seconds {
        Seconds(self.0 * bytes.0 as f64)
    }
}
