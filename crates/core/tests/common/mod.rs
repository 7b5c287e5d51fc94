//! What the tests of policies and engines run on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use foresee_core::model::{Beyond, Contention, Curve, Scope, System, Tier};
use foresee_core::units::{Bytes, Rate, Seconds};

/// A slow source, and for each rank a staging buffer of one byte and a tier of so many.
pub(crate) fn system(capacity: u64) -> System {
    let tier = |name: &str, capacity: u64| Tier {
        name: name.to_owned(),
        capacity: Bytes(capacity),
        scope: Scope::Rank,
        threads: 1,
        read: Curve::new(vec![(1, 1e6)], Beyond::Clamp).unwrap(),
        write: Curve::new(vec![(1, 1e6)], Beyond::Clamp).unwrap(),
    };
    System {
        network: Rate(1e3),
        source_link: Rate(1.0),
        source: Curve::new(vec![(1, 1.0)], Beyond::Clamp).unwrap(),
        source_latency: Seconds::ZERO,
        contention: Contention::Reads,
        tiers: vec![tier("staging", 1), tier("memory", capacity)],
        cores_per_host: None,
    }
}
