//! How long a rank will load: Lobster's equation 1. What it needs is local, on peers or at the source, and each costs a
//! thread something a byte; all threads of the rank work on all of it, so what they need is divided by their number. How
//! much a thread gets of the source depends on how many threads there are in all, not on this rank's alone.

use super::Decoding;
use super::decoding::class_number;
use crate::ids::{Rank, TierId};
use crate::model::{Model, Origin, SourceLoad};
use crate::tally::Count;
use crate::units::{Bytes, Pace, Seconds};

/// What a rank needs in the steps that are looked at, by where it comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Need {
    /// In tiers of the rank or its host, by tier.
    local: Vec<Bytes>,
    /// In tiers of ranks of other hosts, by tier.
    peers: Vec<Bytes>,
    source: Count,
    /// How many samples each of these is.
    local_samples: u32,
    peer_samples: u32,
    /// All of it by size: those of up to 2, 4, 8 bytes and so on.
    sizes: Vec<Count>,
}

/// How long a thread is busy with a sample, by where it comes from: measured, the latest count most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    local: Mean,
    peers: Mean,
    source: Mean,
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    mean: f64,
    number: u32,
}

/// What was noted longer ago than so many times hardly counts.
const REMEMBERED: u32 = 32;

impl Mean {
    /// Another one.
    #[inline]
    pub fn note(&mut self, value: f64) {
        self.number = (self.number + 1).min(REMEMBERED);
        self.mean += (value - self.mean) / f64::from(self.number);
    }

    /// None before the first.
    pub fn get(&self) -> Option<f64> {
        (self.number > 0).then_some(self.mean)
    }
}

impl Costs {
    /// A thread was busy with a sample for so long.
    #[inline]
    pub fn note(&mut self, origin: Origin, took: Seconds) {
        match origin {
            Origin::Tier(_) | Origin::HostPeer { .. } => self.local.note(took.0),
            Origin::Peer { .. } => self.peers.note(took.0),
            Origin::Source => self.source.note(took.0),
        }
    }
}

/// Who else loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// Threads of all ranks that may read the source at a time.
    pub all: u32,
    /// Those of one rank, which share its link.
    pub own: u32,
}

impl Need {
    /// Another sample, and where it comes from.
    pub fn add(&mut self, origin: Origin, bytes: Bytes) {
        let class = class_number(bytes) as usize;
        if self.sizes.len() <= class {
            self.sizes.resize(class + 1, Count::default());
        }
        self.sizes[class].reads += 1;
        self.sizes[class].bytes += bytes;
        match origin {
            Origin::Tier(tier) | Origin::HostPeer { tier, .. } => {
                self.local_samples += 1;
                add_to(&mut self.local, tier, bytes);
            }
            Origin::Peer { tier, .. } => {
                self.peer_samples += 1;
                add_to(&mut self.peers, tier, bytes);
            }
            Origin::Source => {
                self.source.reads += 1;
                self.source.bytes += bytes;
            }
        }
    }

    /// How many samples it is.
    pub fn samples(&self) -> u32 {
        self.local_samples + self.peer_samples + self.source.reads as u32
    }

    /// How many of them are at the source.
    pub fn from_source(&self) -> Count {
        self.source
    }

    /// How long one thread loads it, what it has to wait for included. So many threads take that part of it each.
    pub fn loading(&self, model: &Model, crowd: Crowd) -> Seconds {
        let local = cached(&self.local, model, Origin::Tier);
        let peers = cached(&self.peers, model, |tier| Origin::Peer {
            rank: Rank(0),
            tier,
        });
        let load = SourceLoad {
            readers: crowd.all,
            own: crowd.own,
        };
        let latency = model.fetch(Origin::Source, Pace(0.0), Bytes(0));
        let waits = Seconds(latency.0 * self.source.reads as f64);
        local + peers + waits + model.source(load) * self.source.bytes
    }

    /// How long one thread is busy with it, by what such samples cost so far; nothing for what was never measured.
    pub fn measured(&self, costs: &Costs) -> Seconds {
        let part = |mean: &Mean, samples: f64| mean.get().unwrap_or_default() * samples;
        let local = part(&costs.local, f64::from(self.local_samples));
        let peers = part(&costs.peers, f64::from(self.peer_samples));
        Seconds(local + peers + part(&costs.source, self.source.reads as f64))
    }

    /// Whether such samples were ever measured, wherever they come from; also where there are none.
    pub fn is_measured(&self, costs: &Costs) -> bool {
        let parts = [
            (self.local_samples > 0, costs.local),
            (self.peer_samples > 0, costs.peers),
            (self.source.reads > 0, costs.source),
        ];
        parts
            .iter()
            .all(|(has_some, mean)| !has_some || mean.get().is_some())
    }

    /// How long one thread decodes it while so many are at work on the host.
    pub fn decoding(&self, decoding: &Decoding, threads: u32) -> Seconds {
        let there = self.sizes.iter().filter(|size| size.reads > 0);
        there.fold(Seconds::ZERO, |sum, size| {
            let mean = Bytes(size.bytes.0 / size.reads);
            sum + decoding.pace(mean, threads, threads) * size.bytes
        })
    }

    /// How long one thread stages it, decoding included, once it is loaded.
    pub fn staging(&self, model: &Model) -> Seconds {
        let cached: Bytes = self.local.iter().chain(&self.peers).copied().sum();
        model.stage_write() * (cached + self.source.bytes)
    }
}

fn add_to(by_tier: &mut Vec<Bytes>, tier: TierId, bytes: Bytes) {
    if by_tier.len() <= tier.index() {
        by_tier.resize(tier.index() + 1, Bytes(0));
    }
    by_tier[tier.index()] += bytes;
}

fn cached(by_tier: &[Bytes], model: &Model, origin: impl Fn(TierId) -> Origin) -> Seconds {
    let tiers = (0..).map(TierId).zip(by_tier);
    tiers.fold(Seconds::ZERO, |sum, (tier, bytes)| {
        let pace = model.cached(origin(tier)).unwrap_or_default();
        sum + pace * *bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Beyond, Contention, Curve, Decoded, Scope, System, Tier, Trainer};
    use crate::threads::decoding::Decodes;
    use crate::units::Rate;

    /// A tier gives a thread 100 MB/s, the network 50, the source 90 to one and 500 to eight, 10 ms after it is asked.
    fn model() -> Model {
        let tier = |threads: u32| {
            let together = 100.0 * f64::from(threads);
            let curve = Curve::new(vec![(threads, together)], Beyond::Clamp).unwrap();
            Tier {
                name: "tier".into(),
                capacity: Bytes::from_mb(100.0),
                scope: Scope::Rank,
                threads,
                read: curve.clone(),
                write: curve,
            }
        };
        let system = System {
            network: Rate(50.0),
            source_link: Rate(1000.0),
            source: Curve::new(vec![(1, 90.0), (8, 500.0)], Beyond::Clamp).unwrap(),
            source_latency: Seconds(0.01),
            contention: Contention::Reads,
            tiers: vec![tier(4), tier(4)],
            cores_per_host: None,
        };
        let trainer = Trainer {
            compute: Rate(100.0),
            preprocess: Rate(200.0),
            decoded: Decoded::AsIs,
        };
        Model::new(&system, &trainer, 2)
    }

    #[test]
    fn each_origin_counts_by_what_it_gives_a_thread_and_the_source_by_all_who_read() {
        let model = model();
        let (rank, tier) = (Rank(1), TierId(1));
        let mut need = Need::default();
        need.add(Origin::Tier(tier), Bytes::from_mb(10.0));
        need.add(Origin::HostPeer { rank, tier }, Bytes::from_mb(20.0));
        need.add(Origin::Peer { rank, tier }, Bytes::from_mb(10.0));
        let crowd = |all| Crowd { all, own: 2 };
        let near =
            |time: Seconds, expected: f64| assert!((time.0 - expected).abs() < 1e-9, "{time:?}");
        near(need.loading(&model, crowd(8)), 0.3 + 0.2);
        need.add(Origin::Source, Bytes::from_mb(25.0));
        near(need.loading(&model, crowd(1)), 0.5 + 0.01 + 25.0 / 90.0);
        near(need.loading(&model, crowd(8)), 0.5 + 0.01 + 25.0 / 62.5);
        assert_eq!(need.samples(), 4);
        assert_eq!(need.from_source().reads, 1);
        near(need.staging(&model), 65.0 / 100.0);
    }

    #[test]
    fn decoding_counts_by_the_sizes_of_samples_and_by_who_else_is_at_work() {
        let mut decodes = Decodes::default();
        // Two threads decode twice as much as one, four no more than two; large samples take three times as long a byte.
        for (threads, slower) in [(1, 1.0), (2, 1.0), (4, 2.0)] {
            decodes.note(Bytes(1000), threads, Seconds(0.001 * slower));
            decodes.note(Bytes(100_000), threads, Seconds(0.3 * slower));
        }
        let decoding = decodes.fit().unwrap();
        let mut need = Need::default();
        need.add(Origin::Source, Bytes(1000));
        need.add(Origin::Tier(TierId(1)), Bytes(1000));
        let near =
            |time: Seconds, expected: f64| assert!((time.0 - expected).abs() < 1e-9, "{time:?}");
        near(need.decoding(&decoding, 2), 0.002);
        near(need.decoding(&decoding, 4), 0.004);
        need.add(Origin::Source, Bytes(100_000));
        near(need.decoding(&decoding, 1), 0.302);
    }

    #[test]
    fn what_was_measured_tells_how_long_a_thread_is_busy() {
        let mut need = Need::default();
        let tier = TierId(1);
        let near =
            |time: Seconds, expected: f64| assert!((time.0 - expected).abs() < 1e-9, "{time:?}");
        let mut costs = Costs::default();
        need.add(Origin::Source, Bytes(1));
        near(need.measured(&costs), 0.0);
        assert!(!need.is_measured(&costs) && Need::default().is_measured(&costs));
        costs.note(Origin::Source, Seconds(0.02));
        assert!(need.is_measured(&costs));
        costs.note(Origin::Source, Seconds(0.04));
        need.add(Origin::Tier(tier), Bytes(1));
        assert!(!need.is_measured(&costs), "one origin is not enough");
        costs.note(Origin::Tier(tier), Seconds(0.001));
        assert!(need.is_measured(&costs));
        need.add(Origin::Tier(tier), Bytes(1));
        near(need.measured(&costs), 0.032);
        for _ in 0..500 {
            costs.note(Origin::Source, Seconds(0.1));
        }
        assert!(
            (need.measured(&costs).0 - 0.102).abs() < 1e-4,
            "what was long ago is forgotten"
        );
    }
}
