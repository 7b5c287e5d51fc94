//! An emulated slow storage as the command line gives it: `NAME:MB_PER_S[:LATENCY_MS]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::Result;
use foresee_core::model::{Beyond, Curve};
use foresee_core::units::Seconds;
use foresee_runtime::source::Throttle;
use serde::Serialize;

/// A byte a second to more than anything has.
const MB_PER_S: RangeInclusive<f64> = 1e-6..=1e12;
/// Up to a minute: longer is a slip of the hand.
const LATENCY_MS: RangeInclusive<f64> = 0.0..=6e4;

/// How slow a storage is, and its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Slowness {
    name: String,
    mb_per_s: f64,
    latency_ms: f64,
}

impl Slowness {
    /// The storage, whose throughput is the same for any number of readers.
    pub(super) fn open(&self) -> Result<Throttle> {
        let curve = Curve::new(vec![(1, self.mb_per_s)], Beyond::Clamp)?;
        Ok(Throttle::open(&self.name, curve, Seconds(self.latency_ms / 1e3))?)
    }
}

impl FromStr for Slowness {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let (Some(name), Some(rate), latency, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err("give NAME:MB_PER_S or NAME:MB_PER_S:LATENCY_MS, as in slow:50:2");
        };
        let number =
            |text: &str, range: &RangeInclusive<f64>| text.parse().ok().filter(|number| range.contains(number));
        let mb_per_s = number(rate, &MB_PER_S).ok_or("give a rate in MB/s, more than 0, after the name")?;
        let latency_ms = latency.map_or(Some(0.0), |latency| number(latency, &LATENCY_MS));
        let latency_ms = latency_ms.ok_or("give a latency in ms, 0 to 60000, after the rate")?;
        Ok(Self { name: name.to_owned(), mb_per_s, latency_ms })
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} MB/s, {} ms)", self.name, self.mb_per_s, self.latency_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_a_name_a_rate_and_perhaps_a_latency() {
        let slow = |mb_per_s, latency_ms| Ok(Slowness { name: "slow".to_owned(), mb_per_s, latency_ms });
        assert_eq!("slow:50".parse(), slow(50.0, 0.0));
        assert_eq!("slow:0.5:2".parse(), slow(0.5, 2.0));
    }

    #[test]
    fn what_is_wrong_with_a_throttle_is_said() {
        let said = |text: &str| text.parse::<Slowness>().unwrap_err();
        assert!(["slow", "", "a:1:2:3"].iter().all(|text| said(text).starts_with("give NAME:MB_PER_S or")));
        assert!(["a:", "a:0", "a:nan", "a:-1", "a:fast"].iter().all(|text| said(text).contains("rate")));
        assert!(["a:1:", "a:1:-1", "a:1:nan"].iter().all(|text| said(text).contains("latency")));
    }
}
