//! A rank's part of a policy's plan for the smallest job there is. What is the same for all jobs of a policy can be seen in it: whether a
//! loader can carry it out, whether it keeps anything, how samples come in. So nobody needs lists of names.

use std::sync::Arc;

use super::{Assignment, Brief, Capacities, Delivery, POLICIES, Part, Policy};
use crate::catalog::Catalog;
use crate::held::Held;
use crate::ids::Rank;
use crate::model::{Beyond, Contention, Curve, Hosts, Scope, System, Tier};
use crate::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Tail};
use crate::units::{Bytes, Rate, Seconds};

/// Whether ranks keep samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// They do not.
    Nothing,
    /// Each what it likes.
    Own,
    /// Each sample that is kept has one home among all ranks.
    Homes,
}

/// What is the same for all jobs of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether a loader can carry its plans out.
    pub is_real: bool,
    /// Whether ranks keep samples.
    pub keeps: Caching,
    /// Whether samples are read when the trainer asks for them.
    pub on_demand: bool,
}

impl Traits {
    /// Of a policy.
    pub fn of(policy: &dyn Policy) -> Self {
        let Some(part) = part(policy) else {
            return Self {
                is_real: false,
                keeps: Caching::Nothing,
                on_demand: false,
            };
        };
        let keeps = match part.homes() {
            Some(_) => Caching::Homes,
            None if part.keeps() => Caching::Own,
            None => Caching::Nothing,
        };
        Self {
            // A loader delivers what the order says, and nothing else.
            is_real: part.only_simulated().is_none() && !policy.substitutes(),
            keeps,
            on_demand: part.delivery == Delivery::OnDemand,
        }
    }
}

/// The policies whose plans a loader can carry out, ours first.
pub fn real() -> impl Iterator<Item = &'static dyn Policy> {
    let all = POLICIES.into_iter().rev();
    all.filter(|policy| Traits::of(*policy).is_real)
}

fn part(policy: &dyn Policy) -> Option<Part> {
    let brief = smallest()?;
    let share = policy.share(&brief, Rank(0));
    policy.part(&brief, &[share], Rank(0)).ok()
}

/// One rank, one sample, memory for it.
fn smallest() -> Option<Brief> {
    let flat = || Curve::new(vec![(1, 1.0)], Beyond::Clamp).ok();
    let tier = || {
        Some(Tier {
            name: "memory".into(),
            capacity: Bytes(1),
            scope: Scope::Rank,
            threads: 1,
            read: flat()?,
            write: flat()?,
        })
    };
    let layout = LayoutSpec {
        positions: 1,
        world: 1,
        global_batch: 1,
        deal: Deal::Strided,
        tail: Tail::Exact,
        drop_last: false,
    };
    let system = System {
        network: Rate(1.0),
        source_link: Rate(1.0),
        source: flat()?,
        source_latency: Seconds::ZERO,
        contention: Contention::Reads,
        tiers: vec![tier()?, tier()?],
        cores_per_host: None,
    };
    Some(Brief {
        catalog: Arc::new(Catalog::new(vec![1])),
        orders: Orders::new(Shuffle::Sequential, 1, 1).ok()?,
        layout: Layout::new(layout).ok()?,
        system: Arc::new(system),
        capacities: Capacities::Same,
        hosts: Hosts::new(1, 1),
        assignment: Assignment::Order,
        peers: true,
        start: Mark::START,
        held: Held::nothing(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::by_name;

    #[test]
    fn loaders_can_run_what_keeps_the_order_reads_ahead_and_needs_no_miracle() {
        let names: Vec<&str> = real().map(super::super::Policy::name).collect();
        let expected = [
            "foresee",
            "lobster",
            "nopfs",
            "monarch",
            "locality-aware",
            "distributed-cache",
            "lbann-preload",
            "lbann-dynamic",
            "staging-buffer",
            "naive",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn policies_without_a_cache_keep_nothing_and_only_the_naive_one_reads_on_demand() {
        let keeping = real().filter(|policy| Traits::of(*policy).keeps != Caching::Nothing);
        let names: Vec<&str> = keeping.map(super::super::Policy::name).collect();
        let expected = [
            "foresee",
            "lobster",
            "nopfs",
            "monarch",
            "locality-aware",
            "distributed-cache",
            "lbann-preload",
            "lbann-dynamic",
        ];
        assert_eq!(names, expected);
        let on_demand = |name| Traits::of(by_name(name).unwrap()).on_demand;
        assert!(on_demand("naive") && !on_demand("foresee"));
    }
}
