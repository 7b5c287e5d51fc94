//! The digest of a plan: ranks that show the same one will make the same plan, and read, keep and hand over alike.
//!
//! It covers what a plan is made from, not the plan itself, which each rank makes for itself: version, shuffle and
//! seed, sizes, ranks and hosts, dealing, epochs, tiers, policy and assignment. Numbers go in with a fixed width and
//! texts with their length, each part behind its name, so that no two inputs run into the same bytes.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::catalog::Catalog;
use crate::model::{Hosts, Scope, Tier};
use crate::policy::Assignment;
use crate::stream::{Deal, LayoutSpec, Shuffle, Tail};
use crate::units::Rate;

/// Plans of different versions may differ.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a plan is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// How each epoch is ordered, with its seed.
    pub shuffle: &'a Shuffle,
    /// The samples' sizes.
    pub catalog: &'a Catalog,
    /// Which rank lives where.
    pub hosts: Hosts,
    /// How positions are dealt.
    pub layout: LayoutSpec,
    /// How many epochs there are.
    pub epochs: u32,
    /// The tiers; of each its capacity, its scope and how fast it is read count.
    pub tiers: &'a [Tier],
    /// Between two ranks: together with the tiers' rates it decides what is kept on another rank.
    pub network: Rate,
    /// The policy's name.
    pub policy: &'a str,
    /// Who trains on which sample of a global batch.
    pub assignment: Assignment,
}

/// The first 16 bytes of a SHA-256; shown in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 16]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Digest {
    /// The digest of what a plan is made from.
    pub fn of(inputs: &Inputs<'_>) -> Self {
        Self::by_version(VERSION, inputs)
    }

    fn by_version(version: &str, inputs: &Inputs<'_>) -> Self {
        let mut hash = Hash(Sha256::new());
        hash.text("version", version);
        hash.shuffle(inputs.shuffle);
        hash.number("samples", u64::from(inputs.catalog.len()));
        for sample in inputs.catalog.samples() {
            hash.0.update(inputs.catalog.size(sample).0.to_le_bytes());
        }
        hash.number("ranks", u64::from(inputs.hosts.ranks()));
        hash.number("ranks_per_host", u64::from(inputs.hosts.ranks_per_host()));
        hash.layout(&inputs.layout);
        hash.number("epochs", u64::from(inputs.epochs));
        hash.number("tiers", inputs.tiers.len() as u64);
        for tier in inputs.tiers {
            hash.number("capacity_bytes", tier.capacity.0);
            hash.text("scope", scope_name(tier.scope));
            hash.number("threads", u64::from(tier.threads));
            hash.number("read_mb_per_s", tier.read.at(tier.threads).0.to_bits());
        }
        hash.number("network_mb_per_s", inputs.network.0.to_bits());
        hash.text("policy", inputs.policy);
        hash.text("assignment", assignment_name(inputs.assignment));
        let whole: [u8; 32] = hash.0.finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&whole[..16]);
        Self(first)
    }
}

/// A hash that is fed named parts.
struct Hash(Sha256);

impl Hash {
    fn text(&mut self, name: &str, text: &str) {
        self.bytes(name);
        self.bytes(text);
    }

    fn number(&mut self, name: &str, number: u64) {
        self.bytes(name);
        self.0.update(number.to_le_bytes());
    }

    fn bytes(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }

    fn shuffle(&mut self, shuffle: &Shuffle) {
        match shuffle {
            Shuffle::Torch { seed } => self.number("torch", *seed),
            Shuffle::Feistel { seed } => self.number("feistel", *seed),
            Shuffle::Sequential => self.text("shuffle", "sequential"),
            Shuffle::Explicit(lists) => {
                self.number("explicit", lists.len() as u64);
                for list in lists.iter() {
                    self.number("list", list.len() as u64);
                    for sample in list {
                        self.0.update(sample.0.to_le_bytes());
                    }
                }
            }
        }
    }

    fn layout(&mut self, layout: &LayoutSpec) {
        self.number("positions", layout.positions);
        self.number("world", u64::from(layout.world));
        self.number("global_batch", u64::from(layout.global_batch));
        self.text("deal", deal_name(layout.deal));
        self.text("tail", tail_name(layout.tail));
        self.number("drop_last", u64::from(layout.drop_last));
    }
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Rank => "rank",
        Scope::Host => "host",
        Scope::Global => "global",
    }
}

fn deal_name(deal: Deal) -> &'static str {
    match deal {
        Deal::Strided => "strided",
        Deal::Blocked => "blocked",
    }
}

fn tail_name(tail: Tail) -> &'static str {
    match tail {
        Tail::Pad => "pad",
        Tail::Drop => "drop",
        Tail::Exact => "exact",
    }
}

fn assignment_name(assignment: Assignment) -> &'static str {
    match assignment {
        Assignment::Order => "order",
        Assignment::Local => "local",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SampleId;
    use crate::model::{Beyond, Curve};
    use crate::units::Bytes;

    fn tier(capacity: u64, scope: Scope) -> Tier {
        let rate = Curve::new(vec![(1, 100.0)], Beyond::Clamp).unwrap();
        Tier {
            name: "t".into(),
            capacity: Bytes(capacity),
            scope,
            threads: 1,
            read: rate.clone(),
            write: rate,
        }
    }

    const LAYOUT: LayoutSpec = LayoutSpec {
        positions: 3,
        world: 2,
        global_batch: 2,
        deal: Deal::Blocked,
        tail: Tail::Exact,
        drop_last: false,
    };

    /// A small job.
    fn small<'a>(catalog: &'a Catalog, tiers: &'a [Tier]) -> Inputs<'a> {
        Inputs {
            shuffle: &Shuffle::Feistel { seed: 7 },
            catalog,
            hosts: Hosts::new(2, 1),
            layout: LAYOUT,
            epochs: 5,
            tiers,
            network: Rate(1000.0),
            policy: "foresee",
            assignment: Assignment::Order,
        }
    }

    /// Its digest after one change.
    fn digest<'a>(mut inputs: Inputs<'a>, change: impl FnOnce(&mut Inputs<'a>)) -> String {
        change(&mut inputs);
        Digest::by_version("1.2.3", &inputs).to_string()
    }

    #[test]
    fn stays_what_it_was() {
        let catalog = Catalog::new(vec![10, 20, 30]);
        let tiers = [tier(64, Scope::Rank), tier(1000, Scope::Rank)];
        assert_eq!(
            digest(small(&catalog, &tiers), |_| {}),
            "96367d330ce3ca5e593885cfb92aff9e"
        );
    }

    #[test]
    fn changes_with_every_input() {
        let lists = |lists: &[&[u32]]| {
            let list = |list: &&[u32]| list.iter().copied().map(SampleId).collect();
            Shuffle::Explicit(lists.iter().map(list).collect())
        };
        let (one, two) = (lists(&[&[0, 1, 2]]), lists(&[&[0], &[1, 2]]));
        let (more, fewer) = (
            Catalog::new(vec![10, 20, 30, 0]),
            Catalog::new(vec![10, 30, 20]),
        );
        let tiers = |capacities: [u64; 2], scope| {
            [tier(capacities[0], Scope::Rank), tier(capacities[1], scope)]
        };
        let (staging, cache) = (
            tiers([65, 1000], Scope::Rank),
            tiers([64, 1001], Scope::Rank),
        );
        let (host, global) = (
            tiers([64, 1000], Scope::Host),
            tiers([64, 1000], Scope::Global),
        );
        let (catalog, own) = (
            Catalog::new(vec![10, 20, 30]),
            tiers([64, 1000], Scope::Rank),
        );
        let small = small(&catalog, &own);
        let mut digests = vec![
            digest(small, |_| {}),
            digest(small, |inputs| {
                inputs.shuffle = &Shuffle::Feistel { seed: 8 }
            }),
            digest(small, |inputs| inputs.shuffle = &Shuffle::Torch { seed: 7 }),
            digest(small, |inputs| inputs.shuffle = &Shuffle::Sequential),
            digest(small, |inputs| inputs.shuffle = &one),
            digest(small, |inputs| inputs.shuffle = &two),
            digest(small, |inputs| inputs.catalog = &more),
            digest(small, |inputs| inputs.catalog = &fewer),
            digest(small, |inputs| inputs.hosts = Hosts::new(4, 1)),
            digest(small, |inputs| inputs.network = Rate(999.0)),
            digest(small, |inputs| inputs.hosts = Hosts::new(2, 2)),
            digest(small, |inputs| inputs.layout.positions = 4),
            digest(small, |inputs| inputs.layout.world = 3),
            digest(small, |inputs| inputs.layout.global_batch = 3),
            digest(small, |inputs| inputs.layout.deal = Deal::Strided),
            digest(small, |inputs| inputs.layout.tail = Tail::Pad),
            digest(small, |inputs| inputs.layout.tail = Tail::Drop),
            digest(small, |inputs| inputs.layout.drop_last = true),
            digest(small, |inputs| inputs.epochs = 6),
            digest(small, |inputs| inputs.tiers = &staging),
            digest(small, |inputs| inputs.tiers = &cache),
            digest(small, |inputs| inputs.tiers = &host),
            digest(small, |inputs| inputs.tiers = &global),
            digest(small, |inputs| inputs.tiers = &cache[..1]),
            digest(small, |inputs| inputs.policy = "nopfs"),
            digest(small, |inputs| inputs.assignment = Assignment::Local),
        ];
        let all = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all);
    }

    #[test]
    fn changes_with_the_version() {
        let (catalog, tiers) = (Catalog::new(vec![10]), [tier(64, Scope::Rank)]);
        let inputs = small(&catalog, &tiers);
        assert_ne!(
            Digest::by_version("1.2.3", &inputs),
            Digest::by_version("1.2.4", &inputs)
        );
        assert_eq!(Digest::by_version(VERSION, &inputs), Digest::of(&inputs));
    }
}
