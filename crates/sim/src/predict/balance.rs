//! Moves threads of a host to the rank that would be late. Before a step, every few of them, what each rank needs next is
//! looked at, and threads are allotted anew where that gains something. A thread that goes elsewhere ends what it does
//! first: nobody has more before others have less.

use std::ops::Range;

use foresee_core::engine::Scout;
use foresee_core::ids::{Host, Rank, Step};
use foresee_core::policy::Policy;
use foresee_core::threads::balance::Ahead;
use foresee_core::threads::{Balance, Crowd, Demand, Need, Rule, Terms, ThreadPlan};
use foresee_core::units::{Bytes, Seconds};

use super::Prediction;
use super::rank::RankState;
use super::sight::Sight;
use crate::job::{Balancing, Job};

/// So many steps are looked ahead. With more of them threads come to a rank before it is late, and are gone when it is: in
/// `examples/balanced_hosts` 34 % of steps are imbalanced with 1, 42 % with 2 and 44 % with 4, in the same time.
const LOOKED_AHEAD: u32 = 1;

/// The threads of one host.
struct Shared {
    ranks: Range<u32>,
    balance: Balance,
    /// Threads that its ranks share.
    threads: u32,
    scouts: Vec<Scout>,
    /// What each rank is to have, while some have not given up what others are to get.
    target: Option<Vec<u32>>,
}

/// The threads of all hosts.
#[derive(Default)]
pub(super) struct Sharing {
    hosts: Vec<Shared>,
}

impl Sharing {
    /// Hosts with several ranks share threads, if the policy or the job says so.
    pub(super) fn new(job: &Job, policy: &dyn Policy, ranks: &[RankState]) -> Self {
        let balances = |host: Host| match &job.balance {
            Balancing::Off => None,
            Balancing::Policy => policy.balances().map(by),
            Balancing::By(rule) => Some(by(*rule)),
            Balancing::Replay(plans) => plans.get(host.index()).cloned().map(Balance::replaying),
        };
        let hosts = (0..job.brief.hosts.count()).map(Host);
        let shared = hosts.filter_map(|host| {
            let numbers = job.brief.hosts.ranks_of(host);
            let balance = balances(host).filter(|_| numbers.len() > 1)?;
            let states = &ranks[numbers.start as usize..numbers.end as usize];
            Some(Shared {
                ranks: numbers,
                balance,
                threads: states.iter().map(|state| state.lanes.shareable()).sum(),
                scouts: states.iter().map(|state| state.engine.scout()).collect(),
                target: None,
            })
        });
        Self {
            hosts: shared.collect(),
        }
    }

    /// What was decided, host by host.
    pub(super) fn plans(&self) -> Vec<ThreadPlan> {
        let hosts = self.hosts.iter();
        hosts.map(|host| host.balance.noted().clone()).collect()
    }
}

fn by(rule: Rule) -> Balance {
    Balance::new(Terms::by(rule))
}

impl Prediction<'_> {
    /// Looks whether threads are to be moved before a step.
    pub(super) fn balance(&mut self, step: Step) {
        let mut sharing = std::mem::take(&mut self.sharing);
        for host in &mut sharing.hosts {
            if host.balance.is_due(self.steps.number()) {
                self.look(host, step);
            }
        }
        self.sharing = sharing;
    }

    fn look(&mut self, host: &mut Shared, step: Step) {
        let numbers = host.ranks.clone().map(Rank);
        let scouts = host.scouts.iter_mut();
        let needs: Vec<(Need, u32)> = numbers
            .zip(scouts)
            .map(|(rank, scout)| self.need(rank, step, scout))
            .collect();
        let ahead = Ahead {
            threads: host.threads,
            decoding_peak: 0,
            train: self.shortest_training(host.ranks.clone(), step),
        };
        let others = self.job.brief.hosts.ranks() / host.ranks.len() as u32;
        let crowd = Crowd {
            all: host.threads * others,
            own: (host.threads / host.ranks.len() as u32).max(1),
        };
        let model = &self.model;
        let demands = |_| {
            let demand = |(need, queued): &(Need, u32)| Demand {
                work: need.loading(model, crowd) + need.staging(model),
                decode: Seconds::ZERO,
                queued: *queued,
                least: 1,
                most: host.threads,
            };
            needs.iter().map(demand).collect()
        };
        if let Some(allotted) = host.balance.look(self.steps.number(), ahead, demands) {
            host.target = Some(allotted.loading.clone());
            self.move_threads(host);
        }
    }

    /// What a rank needs in the steps looked at that is not staged or on its way, and how many samples are.
    fn need(&self, rank: Rank, step: Step, scout: &mut Scout) -> (Need, u32) {
        let state = &self.ranks[rank.index()];
        let samples = self.job.brief.layout.local_len(rank, step) * LOOKED_AHEAD;
        let polled = state.ready.len();
        let unpolled = (samples as usize).saturating_sub(polled);
        let mut sight = Sight {
            copies: &self.copies,
            source: &self.source,
            model: &self.model,
            rank,
        };
        let need = state.engine.need(scout, unpolled, &mut sight);
        let queued = need.samples() + state.lanes.shareable_busy();
        (need, queued)
    }

    /// How long training takes in the steps looked at, at the rank where that is shortest.
    fn shortest_training(&self, ranks: Range<u32>, step: Step) -> Seconds {
        let brief = &self.job.brief;
        let mean = brief.catalog.total().0 / u64::from(brief.catalog.len()).max(1);
        let samples = ranks.map(|rank| brief.layout.local_len(Rank(rank), step));
        let fewest = u64::from(samples.min().unwrap_or(0) * LOOKED_AHEAD);
        self.model.compute(Bytes(mean * fewest))
    }

    /// Ranks that are to have fewer threads have them from now on; the others as far as threads have become free.
    fn move_threads(&mut self, host: &mut Shared) {
        let Some(target) = &host.target else {
            return;
        };
        let first = host.ranks.start as usize;
        let states = &mut self.ranks[first..host.ranks.end as usize];
        // A rank has what it may begin with, or what is at work if that is still more.
        let held = |state: &RankState, threads: u32| state.lanes.shareable_busy().max(threads);
        let mut taken = 0;
        for (state, threads) in states.iter_mut().zip(target) {
            let fewer = state.lanes.shareable().min(*threads);
            state.lanes.permit(fewer);
            taken += held(state, fewer);
        }
        let mut whole = true;
        let mut raised = Vec::new();
        for (place, (state, threads)) in states.iter_mut().zip(target).enumerate() {
            let has = state.lanes.shareable();
            let free = host.threads.saturating_sub(taken);
            let more = (threads - has).min(free);
            whole &= has + more == *threads;
            if more > 0 {
                state.lanes.permit(has + more);
                taken += more;
                raised.push(Rank((first + place) as u32));
            }
        }
        if whole {
            host.target = None;
        }
        for rank in raised {
            self.poll(rank);
        }
    }

    /// A thread of a rank has become free: another rank may be to have it.
    pub(super) fn go_on_moving(&mut self, rank: Rank) {
        let waits = |host: &Shared| host.target.is_some() && host.ranks.contains(&rank.0);
        let Some(place) = self.sharing.hosts.iter().position(waits) else {
            return;
        };
        let mut sharing = std::mem::take(&mut self.sharing);
        self.move_threads(&mut sharing.hosts[place]);
        self.sharing = sharing;
    }
}
