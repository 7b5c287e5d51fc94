//! An emulated slow storage as the command line gives it: `NAME:MB_PER_S[:LATENCY_MS]`, where the throughput is a number
//! or a curve over the number of readers, `1=20,4=50`.

use std::collections::BTreeMap;
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
    mb_per_s: Throughput,
    latency_ms: f64,
}

/// What a storage gives all its readers together.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Throughput {
    /// The same for any number of them.
    Flat(f64),
    /// By their number; beyond the points as at the nearest.
    Curve(BTreeMap<u32, f64>),
}

impl Slowness {
    /// The storage.
    pub(super) fn open(&self) -> Result<Throttle> {
        let points = match &self.mb_per_s {
            Throughput::Flat(rate) => vec![(1, *rate)],
            Throughput::Curve(points) => points
                .iter()
                .map(|(readers, rate)| (*readers, *rate))
                .collect(),
        };
        let curve = Curve::new(points, Beyond::Clamp)?;
        Ok(Throttle::open(
            &self.name,
            curve,
            Seconds(self.latency_ms / 1e3),
        )?)
    }
}

impl FromStr for Slowness {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let (Some(name), Some(rate), latency, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("give NAME:MB_PER_S or NAME:MB_PER_S:LATENCY_MS, as in slow:50:2");
        };
        let mb_per_s = Throughput::of(rate)
            .ok_or("give a rate in MB/s, more than 0, after the name, or 1=20,4=50")?;
        let latency_ms = latency.map_or(Some(0.0), |latency| number(latency, &LATENCY_MS));
        let latency_ms = latency_ms.ok_or("give a latency in ms, 0 to 60000, after the rate")?;
        Ok(Self {
            name: name.to_owned(),
            mb_per_s,
            latency_ms,
        })
    }
}

impl Throughput {
    fn of(text: &str) -> Option<Self> {
        if !text.contains('=') {
            return number(text, &MB_PER_S).map(Self::Flat);
        }
        let mut points = BTreeMap::new();
        for point in text.split(',') {
            let (readers, rate) = point.split_once('=')?;
            let readers = readers.parse().ok().filter(|readers| *readers > 0)?;
            if points.insert(readers, number(rate, &MB_PER_S)?).is_some() {
                return None;
            }
        }
        Some(Self::Curve(points))
    }
}

fn number(text: &str, range: &RangeInclusive<f64>) -> Option<f64> {
    text.parse().ok().filter(|number| range.contains(number))
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} MB/s, {} ms)",
            self.name, self.mb_per_s, self.latency_ms
        )
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat(rate) => write!(f, "{rate}"),
            Self::Curve(points) => {
                let points: Vec<String> = points
                    .iter()
                    .map(|(readers, rate)| format!("{readers}={rate}"))
                    .collect();
                f.write_str(&points.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_a_name_a_rate_and_perhaps_a_latency() {
        let slow = |mb_per_s, latency_ms| {
            Ok(Slowness {
                name: "slow".to_owned(),
                mb_per_s,
                latency_ms,
            })
        };
        assert_eq!("slow:50".parse(), slow(Throughput::Flat(50.0), 0.0));
        assert_eq!("slow:0.5:2".parse(), slow(Throughput::Flat(0.5), 2.0));
    }

    #[test]
    fn a_rate_may_depend_on_the_number_of_readers() {
        let slow: Slowness = "slow:4=50,1=20:2".parse().unwrap();
        assert_eq!(
            slow.mb_per_s,
            Throughput::Curve(BTreeMap::from([(1, 20.0), (4, 50.0)]))
        );
        assert_eq!(slow.to_string(), "slow (1=20,4=50 MB/s, 2 ms)");
        assert_eq!(
            serde_json::to_value(&slow.mb_per_s).unwrap(),
            serde_json::json!({"1": 20.0, "4": 50.0})
        );
    }

    #[test]
    fn what_is_wrong_with_a_throttle_is_said() {
        let said = |text: &str| text.parse::<Slowness>().unwrap_err();
        assert!(
            ["slow", "", "a:1:2:3"]
                .iter()
                .all(|text| said(text).starts_with("give NAME:MB_PER_S or"))
        );
        assert!(
            [
                "a:",
                "a:0",
                "a:nan",
                "a:fast",
                "a:0=1",
                "a:1=0",
                "a:1=2,1=3",
                "a:1=2,"
            ]
            .iter()
            .all(|text| said(text).contains("rate"))
        );
        assert!(
            ["a:1:", "a:1:-1", "a:1:nan"]
                .iter()
                .all(|text| said(text).contains("latency"))
        );
    }
}
