//! How many loading threads each rank of a host gets for what is before it.
//!
//! A rank is late if it loads and decodes for longer than a step of training takes. What counts is a [`Score`]: first how
//! late the latest is, since all wait for it; then how far the ranks are apart (Lobster's equation 3); then how few threads
//! do it. Where nobody is late anyway threads go by queue lengths; else by one of two rules:
//!
//! - [`Rule::Lobster`] is the paper's Algorithm 1: a bisection for each rank, for the number that brings it nearest to a step of
//!   training. It is repaired in four places. The bisection moves to more threads for a late rank, not to fewer; it starts
//!   anew from what it tried last; nobody gets less than one thread, so nothing is divided by none; and the sum is kept: ranks
//!   with time to spare come first, and the others have what these leave. The best that was tried is kept, for each rank and
//!   for the host.
//! - [`Rule::Foresee`] gives the next thread to the latest rank, as long as that helps. A thread more never makes a rank
//!   later, so what is given early is never wrong: no other allotment has a better score. In the end each gives back what
//!   does not make the host later.

use std::ops::RangeInclusive;

use crate::units::Seconds;

/// What a rank has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// How long one thread would load.
    pub work: Seconds,
    /// What comes on top whatever the number of loading threads: decoding.
    pub decode: Seconds,
    /// Samples that are asked for and not staged.
    pub queued: u32,
    /// It has so many threads whatever comes; at least one.
    pub least: u32,
    /// More threads than this are of no use to it; at least as many as it has whatever comes.
    pub most: u32,
}

impl Demand {
    /// How long it takes with so many threads.
    pub fn takes(&self, threads: u32) -> Seconds {
        self.work / f64::from(threads.max(1)) + self.decode
    }

    /// Fewer threads than this it never has.
    fn fewest(&self) -> u32 {
        self.least.max(1)
    }
}

/// What there is to give, and by when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Loading threads of all its ranks.
    pub threads: u32,
    /// How long training takes meanwhile: the least over its ranks, since that of the others contains their waiting.
    pub train: Seconds,
}

/// How to allot where somebody is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Algorithm 1 of the paper, repaired.
    Lobster,
    /// The next thread to the latest rank.
    Foresee,
}

/// How good an allotment is; less is better, the first difference counts.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score {
    /// Until the last rank can go on.
    pub latest: Seconds,
    /// From the first rank that can go on to the last.
    pub spread: Seconds,
    /// Threads that are given.
    pub threads: u32,
}

impl Score {
    /// Of one allotment.
    pub fn of(demands: &[Demand], allotted: &[u32], train: Seconds) -> Self {
        let mut latest = train;
        let mut first = Seconds::NEVER;
        for (demand, threads) in demands.iter().zip(allotted) {
            let goes_on = demand.takes(*threads).max(train);
            latest = latest.max(goes_on);
            if goes_on < first {
                first = goes_on;
            }
        }
        Self {
            latest,
            spread: if demands.is_empty() {
                Seconds::ZERO
            } else {
                latest - first
            },
            threads: allotted.iter().sum(),
        }
    }
}

/// Within so small a part of a step of training the paper's search looks no further.
const TAU: f64 = 0.01;

/// Threads by rank: at least those that it has whatever comes, at most those that are of use to it, and at most the host's in
/// all, if it has the former for each rank.
pub fn allot(demands: &[Demand], host: Host, rule: Rule) -> Vec<u32> {
    let by_queue = by_queue(demands, host.threads);
    let is_late = |(demand, threads): (&Demand, &u32)| demand.takes(*threads) > host.train;
    if !demands.iter().zip(&by_queue).any(is_late) {
        return by_queue;
    }
    match rule {
        Rule::Lobster => algorithm_1(demands, host, by_queue),
        Rule::Foresee => to_the_latest(demands, host),
    }
}

/// What each rank has whatever comes.
fn fewest(demands: &[Demand]) -> Vec<u32> {
    demands.iter().map(Demand::fewest).collect()
}

/// In proportion to what is queued.
pub fn by_queue(demands: &[Demand], threads: u32) -> Vec<u32> {
    let mut allotted = fewest(demands);
    let mut left = threads.saturating_sub(allotted.iter().sum());
    // The next one to whoever has most waiting for each of its threads (D'Hondt): no remainders, and it never takes back.
    while left > 0 {
        // One more than there is, so that ranks without a queue share evenly.
        let waits = |rank: usize| f64::from(demands[rank].queued + 1) / f64::from(allotted[rank]);
        let takers = (0..demands.len()).filter(|&rank| allotted[rank] < demands[rank].most);
        let Some(next) = most_of(takers, waits) else {
            break;
        };
        allotted[next] += 1;
        left -= 1;
    }
    allotted
}

/// The first of those with the most.
fn most_of(ranks: impl Iterator<Item = usize>, of: impl Fn(usize) -> f64) -> Option<usize> {
    ranks.fold(None, |best, rank| match best {
        Some(so_far) if of(so_far) >= of(rank) => Some(so_far),
        _ => Some(rank),
    })
}

fn to_the_latest(demands: &[Demand], host: Host) -> Vec<u32> {
    let mut allotted = fewest(demands);
    let mut left = host.threads.saturating_sub(allotted.iter().sum());
    let latest = loop {
        let takes = |rank: usize| demands[rank].takes(allotted[rank]).0;
        let Some(rank) = most_of(0..demands.len(), takes) else {
            return allotted;
        };
        let latest = Seconds(takes(rank)).max(host.train);
        let helps = takes(rank) > host.train.0 && allotted[rank] < demands[rank].most;
        if left == 0 || !helps {
            break latest;
        }
        allotted[rank] += 1;
        left -= 1;
    };
    for (demand, threads) in demands.iter().zip(&mut allotted) {
        while *threads > demand.fewest() && demand.takes(*threads - 1) <= latest {
            *threads -= 1;
        }
    }
    allotted
}

fn algorithm_1(demands: &[Demand], host: Host, initial: Vec<u32>) -> Vec<u32> {
    let tau = Seconds(host.train.0 * TAU);
    let differs = |rank: usize, threads: u32| demands[rank].takes(threads) - host.train;
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|a, b| {
        let [a, b] = [*a, *b].map(|rank| differs(rank, initial[rank]).0);
        a.total_cmp(&b)
    });
    let mut allotted = initial.clone();
    for rank in order {
        let given: u32 = allotted.iter().sum();
        let free = host.threads.saturating_sub(given);
        let fewest = demands[rank].fewest();
        let most = (allotted[rank] + free).min(demands[rank].most.max(fewest));
        let differs = |threads| differs(rank, threads);
        allotted[rank] = nearest(allotted[rank], fewest..=most, tau, differs);
    }
    let score = |allotted: &[u32]| Score::of(demands, allotted, host.train);
    if score(&allotted) <= score(&initial) {
        allotted
    } else {
        initial
    }
}

/// The number of threads, of those that the bisection tries, with which a rank differs least from a step of training.
fn nearest(
    initial: u32,
    bounds: RangeInclusive<u32>,
    tau: Seconds,
    differs: impl Fn(u32) -> Seconds,
) -> u32 {
    let (mut low, mut high) = bounds.into_inner();
    let mut threads = initial;
    let mut best = initial;
    loop {
        let difference = differs(threads);
        if difference.0.abs() < differs(best).0.abs() {
            best = threads;
        }
        if difference.0.abs() < tau.0 {
            return best;
        }
        if difference.0 > 0.0 {
            low = threads + 1;
        } else {
            high = threads - 1;
        }
        if low > high {
            return best;
        }
        threads = low + (high - low) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(work_s: f64, queued: u32) -> Demand {
        Demand {
            work: Seconds(work_s),
            decode: Seconds(0.1),
            queued,
            least: 1,
            most: 16,
        }
    }

    const HOST: Host = Host {
        threads: 8,
        train: Seconds(1.0),
    };

    #[test]
    fn threads_go_by_queue_where_nobody_is_late() {
        let demands = [demand(1.0, 30), demand(0.5, 10), demand(0.5, 0)];
        for rule in [Rule::Lobster, Rule::Foresee] {
            assert_eq!(allot(&demands, HOST, rule), [5, 2, 1]);
        }
        let mut bounded = demands;
        bounded[0].most = 2;
        assert_eq!(by_queue(&bounded, 8), [2, 5, 1]);
        assert_eq!(by_queue(&[demand(0.0, 0); 3], 8), [3, 3, 2]);
    }

    #[test]
    fn the_latest_rank_gets_the_next_thread_and_nobody_more_than_helps() {
        let demands = [demand(4.5, 1), demand(0.8, 1), demand(0.8, 1)];
        assert_eq!(allot(&demands, HOST, Rule::Foresee), [5, 1, 1]);
        let too_much = [demand(90.0, 1), demand(0.8, 9), demand(2.0, 9)];
        assert_eq!(allot(&too_much, HOST, Rule::Foresee), [6, 1, 1]);
    }

    #[test]
    fn the_search_of_the_paper_takes_from_who_has_time_to_spare() {
        let demands = [demand(4.5, 1), demand(0.8, 1), demand(0.8, 1)];
        let allotted = allot(&demands, HOST, Rule::Lobster);
        assert_eq!(allotted, [5, 1, 1]);
    }

    #[test]
    fn what_a_rank_has_whatever_comes_is_neither_taken_nor_added_to() {
        let mut demands = [demand(4.5, 9), demand(0.0, 9), demand(0.8, 9)];
        demands[1].least = 3;
        demands[1].most = 3;
        for rule in [Rule::Lobster, Rule::Foresee] {
            assert_eq!(allot(&demands, HOST, rule), [4, 3, 1]);
        }
        demands[0].work = Seconds::ZERO;
        assert_eq!(by_queue(&demands, 8), [3, 3, 2]);
    }

    #[test]
    fn fewer_threads_than_ranks_are_one_each() {
        let host = Host { threads: 2, ..HOST };
        let demands = [demand(4.5, 1); 3];
        for rule in [Rule::Lobster, Rule::Foresee] {
            assert_eq!(allot(&demands, host, rule), [1, 1, 1]);
        }
        assert_eq!(allot(&[], host, Rule::Foresee), [0; 0]);
    }

    #[test]
    fn what_no_thread_can_help_takes_none() {
        let mut demands = [demand(0.0, 4), demand(0.5, 4)];
        demands[0].decode = Seconds(5.0);
        assert_eq!(allot(&demands, HOST, Rule::Foresee), [1, 1]);
    }
}
