//! A host's threads between loading and decoding, and among its ranks, over time.
//!
//! Decoding has as many threads as reach its peak, the rest load. While the step is late all the same and decoding is not
//! what it waits for, decoding gives away one thread after the other ([`divide`]). What is planned is kept as long as nobody is
//! late by it, and a new plan is taken only where it gains something ([`Balance`]): who measures a little more or a little less
//! than last time moves no thread.

use super::allot::{Demand, Host, Rule, Score, allot};
use super::plan::ThreadPlan;
use crate::units::Seconds;

/// How a host's threads are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Threads that load, of all ranks.
    pub loading: u32,
    /// Threads that decode, for all ranks; 0 where the threads that load decode as well.
    pub decoding: u32,
}

/// Who has how many threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Threads that load, by rank of the host.
    pub loading: Vec<u32>,
    /// Threads that decode, for all ranks.
    pub decoding: u32,
}

/// What a host has before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// Threads that load or decode, of all ranks.
    pub threads: u32,
    /// As many decode as fast as any number would; 0 where the threads that load decode as well.
    pub decoding_peak: u32,
    /// How long training takes meanwhile, at the rank where that is shortest.
    pub train: Seconds,
}

/// Divides a host's threads. `demands` tells what each rank has before it under a division.
pub fn divide(ahead: Ahead, rule: Rule, demands: impl Fn(Division) -> Vec<Demand>) -> Allotted {
    let ranks = demands(Division {
        loading: ahead.threads,
        decoding: 0,
    })
    .len() as u32;
    let spare = ahead.threads.saturating_sub(ranks);
    let mut decoding = ahead.decoding_peak.min(spare.max(1));
    let mut best: Option<(Score, Allotted)> = None;
    loop {
        let loading = ahead.threads.saturating_sub(decoding);
        let demands = demands(Division { loading, decoding });
        let host = Host {
            threads: loading,
            train: ahead.train,
        };
        let by_rank = allot(&demands, host, rule);
        let score = Score::of(&demands, &by_rank, ahead.train);
        let waits_for_loading = is_late_by_loading(&demands, &by_rank, ahead.train);
        if best.as_ref().is_none_or(|(so_far, _)| score < *so_far) {
            let loading = by_rank;
            best = Some((score, Allotted { loading, decoding }));
        }
        if decoding <= 1 || !waits_for_loading {
            break;
        }
        decoding -= 1;
    }
    best.map(|(_, allotted)| allotted).unwrap_or_default()
}

/// Whether the latest rank is late, and loads for longer than it decodes.
fn is_late_by_loading(demands: &[Demand], allotted: &[u32], train: Seconds) -> bool {
    let all = demands.iter().zip(allotted);
    let latest = all.max_by(|a, b| a.0.takes(*a.1).0.total_cmp(&b.0.takes(*b.1).0));
    latest.is_some_and(|(demand, threads)| {
        let takes = demand.takes(*threads);
        takes > train && takes - demand.decode > demand.decode
    })
}

/// How a host's threads are planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// How threads are allotted where somebody is late.
    pub rule: Rule,
    /// From one plan to the next, in steps; at least one.
    pub every: u64,
    /// A new plan that brings the latest rank forward by a smaller part than this is not taken.
    pub gain: f64,
}

impl Terms {
    /// What is used where nobody says otherwise.
    pub fn by(rule: Rule) -> Self {
        Self {
            rule,
            every: 1,
            gain: 0.05,
        }
    }
}

/// The threads of a host over time.
#[derive(Clone, Debug)]
pub struct Balance {
    terms: Terms,
    current: Option<Allotted>,
    next: u64,
    replayed: Option<ThreadPlan>,
    noted: ThreadPlan,
}

impl Balance {
    /// Planned as the job goes.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            current: None,
            next: 0,
            replayed: None,
            noted: ThreadPlan::default(),
        }
    }

    /// As an earlier run had it, whatever is before the ranks now.
    pub fn replaying(plan: ThreadPlan) -> Self {
        Self {
            replayed: Some(plan),
            ..Self::new(Terms::by(Rule::Foresee))
        }
    }

    /// Whether it is time to look again.
    pub fn is_due(&self, step: u64) -> bool {
        self.current.is_none() || step >= self.next
    }

    /// Looks again, at this step of the job, counted from its start. Who has how many threads from now on, if that changes.
    pub fn look(
        &mut self,
        step: u64,
        ahead: Ahead,
        demands: impl Fn(Division) -> Vec<Demand>,
    ) -> Option<&Allotted> {
        self.next = step + self.terms.every.max(1);
        let planned = match &self.replayed {
            Some(plan) => plan.at(step)?.clone(),
            None => divide(ahead, self.terms.rule, &demands),
        };
        if self.replayed.is_none() && self.stays(&planned, ahead, demands) {
            return None;
        }
        if self.current.as_ref() == Some(&planned) {
            return None;
        }
        self.noted.note(step, &planned);
        self.current = Some(planned);
        self.current.as_ref()
    }

    /// Whether what holds is about as good as what was planned.
    fn stays(
        &self,
        planned: &Allotted,
        ahead: Ahead,
        demands: impl Fn(Division) -> Vec<Demand>,
    ) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        let given = current.loading.iter().sum::<u32>() + current.decoding;
        if current.loading.len() != planned.loading.len() || given > ahead.threads {
            return false;
        }
        let latest = |allotted: &Allotted| {
            let demands = demands(Division {
                loading: ahead.threads.saturating_sub(allotted.decoding),
                decoding: allotted.decoding,
            });
            Score::of(&demands, &allotted.loading, ahead.train).latest
        };
        latest(current).0 <= latest(planned).0 * (1.0 + self.terms.gain)
    }

    /// Who has how many threads; none before the first look.
    pub fn current(&self) -> Option<&Allotted> {
        self.current.as_ref()
    }

    /// All that was decided so far.
    pub fn noted(&self) -> &ThreadPlan {
        &self.noted
    }

    /// A rank has come or gone: the next look is due at once, and nothing holds until then.
    pub fn forget(&mut self) {
        self.current = None;
        self.next = 0;
    }

    /// Threads are so divided, whoever decided it; it stays so as long as nothing better is found.
    pub fn hold(&mut self, allotted: Allotted) {
        self.current = Some(allotted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rank loads for so long with one thread, and decodes for 4 s divided by the decoding threads.
    fn demands(work_s: &[f64]) -> impl Fn(Division) -> Vec<Demand> {
        move |division| {
            let decode = Seconds(4.0 / f64::from(division.decoding.max(1)));
            let demand = |work_s: &f64| Demand {
                work: Seconds(*work_s),
                decode,
                queued: 10,
                least: 1,
                most: 64,
            };
            work_s.iter().map(demand).collect()
        }
    }

    const AHEAD: Ahead = Ahead {
        threads: 16,
        decoding_peak: 8,
        train: Seconds(1.0),
    };

    #[test]
    fn decoding_gives_threads_away_while_loading_is_what_the_step_waits_for() {
        let on_time = divide(AHEAD, Rule::Foresee, demands(&[1.0, 1.0]));
        assert_eq!(on_time.decoding, 8, "nobody is late");
        let late = divide(AHEAD, Rule::Foresee, demands(&[6.0, 5.0]));
        assert!(late.decoding < 8, "{late:?}");
        assert_eq!(late.decoding + late.loading.iter().sum::<u32>(), 16);
        let decodes = divide(AHEAD, Rule::Foresee, demands(&[0.5, 0.5]));
        assert_eq!(decodes.decoding, 8, "decoding is the bottleneck");
    }

    #[test]
    fn a_constant_setting_moves_threads_once() {
        let terms = Terms {
            every: 4,
            ..Terms::by(Rule::Foresee)
        };
        let mut balance = Balance::new(terms);
        let mut moves = 0;
        for step in (0..1000).filter(|step| step % 4 == 0) {
            assert!(balance.is_due(step));
            // What is measured differs by up to 3 % from look to look.
            let noise = 1.0 + 0.03 * f64::from((step * 7 % 13) as u32) / 12.0;
            let changed = balance.look(step, AHEAD, demands(&[9.0 * noise, 3.0]));
            moves += u32::from(changed.is_some());
            assert!(!balance.is_due(step + 3));
        }
        assert_eq!(moves, 1);
        assert_eq!(balance.noted().changes().len(), 1);
    }

    #[test]
    fn threads_follow_the_rank_that_is_late_now() {
        let mut balance = Balance::new(Terms::by(Rule::Foresee));
        let first = balance.look(0, AHEAD, demands(&[9.0, 3.0])).cloned();
        let other = balance.look(4, AHEAD, demands(&[3.0, 9.0])).cloned();
        let [first, other] = [first, other].map(|at| at.unwrap().loading);
        assert_eq!(first, [other[1], other[0]]);
        assert!(first[0] > first[1]);
    }

    #[test]
    fn a_plan_of_threads_is_done_again() {
        let mut made = Balance::new(Terms::by(Rule::Foresee));
        made.look(0, AHEAD, demands(&[9.0, 3.0]));
        made.look(4, AHEAD, demands(&[3.0, 9.0]));
        let text = made.noted().to_string();
        let mut again = Balance::replaying(text.parse().unwrap());
        for step in 0..8 {
            again.look(step, AHEAD, demands(&[1.0, 1.0]));
        }
        assert_eq!(again.noted(), made.noted());
    }

    #[test]
    fn who_has_come_or_gone_has_threads_at_the_next_look() {
        let mut balance = Balance::new(Terms::by(Rule::Foresee));
        balance.look(0, AHEAD, demands(&[9.0, 3.0]));
        balance.forget();
        assert!(balance.is_due(1));
        let three = balance.look(1, AHEAD, demands(&[9.0, 3.0, 3.0])).unwrap();
        assert_eq!(three.loading.len(), 3);
        let alone = balance.look(5, AHEAD, demands(&[9.0])).unwrap();
        assert_eq!(
            alone.loading.len(),
            1,
            "also if nobody said that somebody went"
        );
    }
}
