//! The digest of a plan: ranks that show the same one will make the same plan, and read, keep and hand over alike.
//!
//! It covers what a plan is made from, not the plan itself, of which each rank has its part: version, shuffle and seed,
//! sizes, hosts and their ranks, dealing, epochs and where they begin, tiers, what they can hold and what they hold by
//! rank, policy, assignment, and the paces it is made with. Numbers go in with a fixed width and texts with their length,
//! each part behind its name, so that no two inputs run into the same bytes.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::model::{Paces, Scope};
use crate::policy::{Assignment, Brief};
use crate::stream::{Deal, Layout, Shuffle};

/// Plans of different versions may differ.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first 16 bytes of a SHA-256; shown in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 16]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What all ranks must be given alike, part by part: whoever compares the digest of each part can name what differs. The
/// version comes first: another one may digest in another way.
pub const PARTS: [&str; 7] = [
    "version",
    "seed or shuffle",
    "catalog",
    "world, batch size or dealing",
    "number of epochs or place to begin at",
    "number or scope of tiers",
    "policy or assignment",
];

impl Digest {
    /// The digests of all [`PARTS`]; neither of what tiers can hold nor of what they hold, which each rank tells the others.
    pub(crate) fn of_parts(brief: &Brief, policy: &str) -> [Self; PARTS.len()] {
        let mut parts = PARTS.map(|name| {
            let mut hash = Hash(Sha256::new());
            hash.bytes(name);
            hash
        });
        let [version, shuffle, catalog, world, epochs, tiers, rules] = &mut parts;
        version.text("version", VERSION);
        shuffle.shuffle(brief.orders.shuffle());
        catalog.catalog(brief);
        world.hosts(brief);
        world.layout(&brief.layout);
        epochs.course(brief);
        tiers.number("tiers", brief.system.tiers.len() as u64);
        for (_, tier) in brief.system.cache_tiers() {
            tiers.text("scope", scope_name(tier.scope));
        }
        rules.number("peers", u64::from(brief.peers));
        rules.text("policy", policy);
        rules.text("assignment", assignment_name(brief.assignment));
        parts.map(Hash::end)
    }

    /// The digest of what a policy's plan is made from; without paces, of what is known before shares are gathered.
    pub(crate) fn of(brief: &Brief, policy: &str, paces: Option<&Paces>) -> Self {
        Self::by_version(VERSION, brief, policy, paces)
    }

    fn by_version(version: &str, brief: &Brief, policy: &str, paces: Option<&Paces>) -> Self {
        let mut hash = Hash(Sha256::new());
        hash.text("version", version);
        hash.shuffle(brief.orders.shuffle());
        hash.catalog(brief);
        hash.hosts(brief);
        hash.layout(&brief.layout);
        hash.course(brief);
        hash.tiers(brief);
        hash.number("peers", u64::from(brief.peers));
        hash.text("policy", policy);
        hash.text("assignment", assignment_name(brief.assignment));
        if let Some(paces) = paces {
            hash.paces(paces);
        }
        hash.end()
    }
}

/// A hash that is fed named parts.
struct Hash(Sha256);

impl Hash {
    fn end(self) -> Digest {
        let whole: [u8; 32] = self.0.finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&whole[..16]);
        Digest(first)
    }

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

    fn shuffle(&mut self, shuffle: Option<&Shuffle>) {
        match shuffle {
            Some(Shuffle::Torch { seed }) => self.number("torch", *seed),
            Some(Shuffle::Feistel { seed }) => self.number("feistel", *seed),
            Some(Shuffle::Sequential) => self.text("shuffle", "sequential"),
            Some(Shuffle::Explicit(lists)) => {
                self.number("explicit", lists.len() as u64);
                for list in lists.iter() {
                    self.number("list", list.len() as u64);
                    for sample in list {
                        self.0.update(sample.0.to_le_bytes());
                    }
                }
            }
            None => self.text("shuffle", "rewritten"),
        }
    }

    fn catalog(&mut self, brief: &Brief) {
        self.number("samples", u64::from(brief.catalog.len()));
        for sample in brief.catalog.samples() {
            self.0.update(brief.catalog.size(sample).0.to_le_bytes());
        }
    }

    fn hosts(&mut self, brief: &Brief) {
        self.number("hosts", u64::from(brief.hosts.count()));
        for ranks in brief.hosts.sizes() {
            self.number("ranks", u64::from(ranks));
        }
    }

    /// How far the job goes, and where it begins.
    fn course(&mut self, brief: &Brief) {
        self.number("epochs", u64::from(brief.orders.epochs()));
        self.number("start_epoch", u64::from(brief.start.epoch.0));
        self.number("start_step", u64::from(brief.start.step.0));
    }

    fn layout(&mut self, layout: &Layout) {
        self.number("positions", layout.positions());
        self.number("world", u64::from(layout.world()));
        self.number("global_batch", u64::from(layout.global_batch()));
        self.text("deal", deal_name(layout.deal()));
        self.number("dealt", layout.kept());
    }

    /// The tiers, with what they can hold on each rank or whoever shares them, and what they hold.
    fn tiers(&mut self, brief: &Brief) {
        self.number("tiers", brief.system.tiers.len() as u64);
        for (id, tier) in brief.system.cache_tiers() {
            self.text("scope", scope_name(tier.scope));
            for domain in 0..brief.hosts.domains(tier.scope) as usize {
                self.number("capacity_bytes", brief.domain_capacity(id, domain).0);
            }
        }
        for (sample, home) in brief.held.iter() {
            self.number("held", u64::from(sample.0));
            self.number("rank", u64::from(home.rank.0));
            self.number("tier", u64::from(home.tier.0));
        }
    }

    fn paces(&mut self, paces: &Paces) {
        self.number("network_s_per_byte", paces.network.0.to_bits());
        for pace in &paces.tiers {
            self.number("read_s_per_byte", pace.0.to_bits());
        }
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

fn assignment_name(assignment: Assignment) -> &'static str {
    match assignment {
        Assignment::Order => "order",
        Assignment::Local => "local",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::catalog::Catalog;
    use crate::held::Held;
    use crate::ids::{Epoch, Rank, SampleId, Step, TierId};
    use crate::model::{Beyond, Contention, Curve, Hosts, System, Tier};
    use crate::policy::Capacities;
    use crate::stream::{LayoutSpec, Mark, Orders, Tail};
    use crate::units::{Bytes, Pace, Rate, Seconds};

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

    fn orders(shuffle: Shuffle, samples: u32, epochs: u32) -> Orders {
        Orders::new(shuffle, samples, epochs).unwrap()
    }

    fn layout(change: impl FnOnce(&mut LayoutSpec)) -> Layout {
        let mut spec = LAYOUT;
        change(&mut spec);
        Layout::new(spec).unwrap()
    }

    fn system(tiers: Vec<Tier>) -> Arc<System> {
        Arc::new(System {
            network: Rate(1000.0),
            source_link: Rate(1000.0),
            source: Curve::new(vec![(1, 100.0)], Beyond::Clamp).unwrap(),
            source_latency: Seconds::ZERO,
            contention: Contention::Reads,
            tiers,
            cores_per_host: None,
        })
    }

    /// A small job.
    fn small() -> Brief {
        Brief {
            catalog: Arc::new(Catalog::new(vec![10, 20, 30])),
            orders: orders(Shuffle::Feistel { seed: 7 }, 3, 5),
            layout: layout(|_| ()),
            system: system(vec![tier(64, Scope::Rank), tier(1000, Scope::Rank)]),
            capacities: Capacities::Same,
            hosts: Hosts::new(2, 1),
            assignment: Assignment::Order,
            peers: true,
            start: Mark::START,
            held: Held::nothing(),
        }
    }

    fn of(brief: &Brief) -> String {
        let paces = Paces::of(&brief.system);
        Digest::by_version("1.2.3", brief, "foresee", Some(&paces)).to_string()
    }

    /// The small job's digest after one change.
    fn changed(change: impl FnOnce(&mut Brief)) -> String {
        let mut brief = small();
        change(&mut brief);
        of(&brief)
    }

    #[test]
    fn stays_what_it_was() {
        assert_eq!(of(&small()), "8932b71bff588b5966e2c227d6452a98");
    }

    #[test]
    fn changes_with_every_input() {
        let lists = |lists: &[&[u32]]| {
            let list = |list: &&[u32]| list.iter().copied().map(SampleId).collect();
            Shuffle::Explicit(lists.iter().map(list).collect())
        };
        let held = |rank, tier| Held::by_rank(Rank(rank), &[(SampleId(1), TierId(tier))]);
        let by_rank = |capacities: [u64; 2]| {
            let ranks = capacities.map(|capacity| vec![Bytes(64), Bytes(capacity)]);
            Capacities::ByRank(ranks.into())
        };
        let mark = |epoch, step| Mark {
            epoch: Epoch(epoch),
            step: Step(step),
        };
        let mut digests = vec![
            changed(|_| ()),
            changed(|job| job.orders = orders(Shuffle::Feistel { seed: 8 }, 3, 5)),
            changed(|job| job.orders = orders(Shuffle::Torch { seed: 7 }, 3, 5)),
            changed(|job| job.orders = orders(Shuffle::Sequential, 3, 5)),
            changed(|job| job.orders = orders(lists(&[&[0, 1, 2]]), 3, 5)),
            changed(|job| job.orders = orders(lists(&[&[0, 2, 1]]), 3, 5)),
            changed(|job| job.orders = orders(Shuffle::Feistel { seed: 7 }, 3, 6)),
            changed(|job| job.catalog = Arc::new(Catalog::new(vec![10, 20, 30, 0]))),
            changed(|job| job.catalog = Arc::new(Catalog::new(vec![10, 30, 20]))),
            changed(|job| job.hosts = Hosts::new(4, 1)),
            changed(|job| job.hosts = Hosts::new(2, 2)),
            changed(|job| job.hosts = Hosts::of_sizes(&[1, 3])),
            changed(|job| job.hosts = Hosts::of_sizes(&[3, 1])),
            changed(|job| job.layout = layout(|spec| spec.positions = 4)),
            changed(|job| job.layout = layout(|spec| spec.world = 3)),
            changed(|job| job.layout = layout(|spec| spec.global_batch = 3)),
            changed(|job| job.layout = layout(|spec| spec.deal = Deal::Strided)),
            changed(|job| job.layout = layout(|spec| spec.tail = Tail::Pad)),
            changed(|job| job.layout = layout(|spec| spec.tail = Tail::Drop)),
            changed(|job| job.start = mark(1, 0)),
            changed(|job| job.start = mark(0, 1)),
            changed(|job| job.capacities = by_rank([1000, 1001])),
            changed(|job| job.capacities = by_rank([1001, 1000])),
            changed(|job| job.held = held(0, 1)),
            changed(|job| job.held = held(1, 1)),
            changed(|job| job.held = held(0, 2)),
            changed(|job| job.system = system(vec![tier(64, Scope::Rank)])),
            changed(|job| {
                job.system = system(vec![tier(64, Scope::Rank), tier(1000, Scope::Host)]);
            }),
            changed(|job| {
                job.system = system(vec![tier(64, Scope::Rank), tier(1000, Scope::Global)]);
            }),
            changed(|job| job.peers = false),
            changed(|job| job.assignment = Assignment::Local),
        ];
        let all = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all);
    }

    #[test]
    fn changes_with_policy_version_and_paces_but_not_with_how_capacities_are_told() {
        let brief = small();
        let paces = Paces::of(&brief.system);
        let digest = |version, policy, paces: Option<&Paces>| {
            Digest::by_version(version, &brief, policy, paces).to_string()
        };
        let mut slower = paces.clone();
        slower.network = Pace(1.0);
        let mut slower_tier = paces.clone();
        slower_tier.tiers[1] = Pace(1.0);
        let mut digests = vec![
            digest("1.2.3", "foresee", Some(&paces)),
            digest("1.2.4", "foresee", Some(&paces)),
            digest("1.2.3", "nopfs", Some(&paces)),
            digest("1.2.3", "foresee", Some(&slower)),
            digest("1.2.3", "foresee", Some(&slower_tier)),
            digest("1.2.3", "foresee", None),
        ];
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 6);
        let told = [
            [64, 1000].map(Bytes).to_vec(),
            [64, 1000].map(Bytes).to_vec(),
        ];
        let same = changed(|job| job.capacities = Capacities::ByRank(told.into()));
        assert_eq!(same, of(&brief));
    }
}
