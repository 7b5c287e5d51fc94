//! Threads of a host as permits that its ranks hold, decided by each rank for itself from what all show of themselves. Nobody
//! has a lock, nobody waits, and who is gone holds nothing.
//!
//! - The lowest rank that lives plans: from its ranks' demands, whenever a look is due or somebody has come or gone. A plan has
//!   a generation, higher than any that was ever shown.
//! - Whoever sees a newer plan gives up at once what it has too much; once no more of its threads are at work than it may
//!   have, it says that it follows this plan.
//! - Who is to have more takes it when all that live follow the plan. So what all hold together is never more than the plan
//!   has, whatever the order in which they look.
//! - What ranks share is what they brought, those that live: who goes takes its own along, and leaves the rest what they had.
//!   Who comes, or was stopped and goes on, finds a plan without it, has no more than it brought, and is in the next plan.
//! - What nobody has measured is nothing to plan on. A rank that cannot say how long its work takes has the threads that it had
//!   before, or else brought, and only the others share theirs: nobody waits for a rank that never measures anything. So a job
//!   starts with what each brought, and without a plan as long as none gains something over that.
//! - A plan of an earlier job is followed ([`Permits::replaying`]) while all ranks live and have brought as many threads as it
//!   gives out; else, and before its first step, plans are made.

use super::allot::Demand;
use super::balance::{Ahead, Allotted, Balance, Division, Terms};
use super::plan::ThreadPlan;
use crate::units::Seconds;

/// A plan as it is shown: threads by place on the host, none for who is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Later ones are higher; 0 is none.
    pub generation: u64,
    /// By place on the host.
    pub threads: Vec<u32>,
}

/// What a rank of the host shows of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Whether it lives, takes part, and was heard of lately.
    pub is_live: bool,
    /// Threads that it brought.
    pub brought: u32,
    /// Samples that it is to stage in the steps looked at.
    pub queued: u32,
    /// How long one thread would be busy with them.
    pub work: Seconds,
    /// How long its trainer takes for these steps, what it waits for others included.
    pub train: Seconds,
    /// Whether both were measured. Who has no work at all has nothing to measure of it.
    pub is_measured: bool,
    /// Threads that are at work.
    pub busy: u32,
    /// The last plan that it follows.
    pub follows: u64,
    /// The plan that it made last.
    pub plan: Plan,
}

/// One rank's view of it.
#[derive(Clone, Debug)]
pub struct Permits {
    place: usize,
    /// So many threads it may have at work.
    held: u32,
    follows: u64,
    balance: Balance,
    /// What an earlier job did.
    replayed: Option<ThreadPlan>,
    made: Plan,
    /// The highest generation that was ever seen.
    seen: u64,
    /// Who lived at the last look.
    lived: Vec<bool>,
    looks: u64,
}

/// What a rank does after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// So many threads it may have at work.
    pub permits: u32,
    /// The plan that it follows, to be shown.
    pub follows: u64,
    /// The plan that it made, to be shown before the rest.
    pub plan: Option<Plan>,
}

impl Plan {
    /// What it has for the rank at this place; none for who is not in it.
    fn of(&self, place: usize) -> Option<u32> {
        let threads = self.threads.get(place).copied();
        threads.filter(|threads| *threads > 0)
    }
}

impl Permits {
    /// Of the rank at this place of its host, with the threads that it brought.
    pub fn new(place: usize, brought: u32, terms: Terms) -> Self {
        Self {
            place,
            held: brought.max(1),
            follows: 0,
            balance: Balance::new(terms),
            replayed: None,
            made: Plan::default(),
            seen: 0,
            lived: Vec::new(),
            looks: 0,
        }
    }

    /// The same, with the plan of an earlier job to follow.
    #[must_use]
    pub fn replaying(self, plan: ThreadPlan) -> Self {
        Self {
            replayed: Some(plan),
            ..self
        }
    }

    /// Looks at what all show, this rank included, of which so many threads are at work, after so many of its steps.
    pub fn look(&mut self, all: &[Shown], busy: u32, step: u64) -> Decided {
        self.looks += 1;
        let newest = newest(all.iter().map(|shown| &shown.plan).chain([&self.made]));
        self.seen = self.seen.max(newest.generation);
        let planner = all.iter().position(|shown| shown.is_live);
        let made = if planner == Some(self.place) {
            self.plan(all, &newest, step)
        } else {
            // Who plans next starts from what it finds then.
            self.balance.forget();
            self.lived.clear();
            None
        };
        let newest = made.clone().unwrap_or(newest);
        if self.seen == 0 {
            self.held = all[self.place].brought.max(1);
        } else if newest.generation == self.seen && is_shown(&newest, all) {
            // Else a newer one is being shown, or about to come, and older ones are over.
            self.follow(&newest, all, busy);
        }
        Decided {
            permits: self.held,
            follows: self.follows,
            plan: made,
        }
    }

    fn follow(&mut self, plan: &Plan, all: &[Shown], busy: u32) {
        // A plan gives out what those in it brought: who is not in it takes from nobody by having its own.
        let target = plan.of(self.place).unwrap_or(all[self.place].brought);
        let target = target.max(1);
        self.held = self.held.min(target);
        if busy <= self.held {
            self.follows = plan.generation;
        }
        let follows = |(place, shown): (usize, &Shown)| {
            let follows = if place == self.place {
                self.follows
            } else {
                shown.follows
            };
            !shown.is_live || follows >= plan.generation
        };
        if all.iter().enumerate().all(follows) {
            self.held = target;
        }
    }

    /// A new plan, where it is another one than what all have been told.
    fn plan(&mut self, all: &[Shown], newest: &Plan, step: u64) -> Option<Plan> {
        let live: Vec<bool> = all.iter().map(|shown| shown.is_live).collect();
        if live != self.lived {
            self.balance.forget();
            self.lived = live;
        }
        let threads = match self.replayed(all, step) {
            // What is planned after it starts from what it finds then.
            Some(threads) => {
                self.balance.forget();
                threads
            }
            None => self.balanced(all, newest)?,
        };
        if newest.generation == self.seen && threads == told_by(newest, all) {
            return None;
        }
        self.seen = self.next_generation(all.len());
        self.made = Plan {
            generation: self.seen,
            threads,
        };
        Some(self.made.clone())
    }

    /// A higher one, which no other rank gives to a plan of its own: one that was stopped while it planned may go on after
    /// another has planned.
    fn next_generation(&self, ranks: usize) -> u64 {
        let round = self.seen / ranks as u64 + 1;
        round * ranks as u64 + self.place as u64
    }

    /// What the plan of an earlier job has for this step, where it can be had.
    fn replayed(&self, all: &[Shown], step: u64) -> Option<Vec<u32>> {
        let Allotted { loading, .. } = self.replayed.as_ref()?.at(step)?;
        let brought: u64 = all
            .iter()
            .map(|shown| u64::from(shown.brought.max(1)))
            .sum();
        let given: u64 = loading.iter().map(|threads| u64::from(*threads)).sum();
        let fits =
            loading.len() == all.len() && all.iter().all(|shown| shown.is_live) && given <= brought;
        fits.then(|| loading.clone())
    }

    /// Threads by place, where it is time to look.
    fn balanced(&mut self, all: &[Shown], newest: &Plan) -> Option<Vec<u32>> {
        if !self.balance.is_due(self.looks) {
            return None;
        }
        let ranks = Known::of(all, newest);
        let threads = ranks.iter().map(|rank| rank.brought).sum();
        let kept: Vec<u32> = ranks.iter().map(|rank| rank.kept).collect();
        // What ranks have needs a reason to change, also before the first plan; what a rank left behind is shared at once.
        let is_first = newest.generation == 0 || self.balance.current().is_none();
        if is_first && kept.iter().sum::<u32>() == threads {
            self.balance.hold(Allotted {
                loading: kept,
                decoding: 0,
            });
        }
        let trains = ranks.iter().filter(|rank| rank.is_measured);
        let trains = trains.map(|rank| rank.train.0);
        let ahead = Ahead {
            threads,
            decoding_peak: 0,
            train: Seconds(trains.reduce(f64::min).unwrap_or_default()),
        };
        let demands = |_: Division| Known::demands(&ranks, threads);
        self.balance.look(self.looks, ahead, demands);
        let mut given = self.balance.current()?.loading.iter().copied();
        let of_place = |shown: &Shown| {
            if shown.is_live {
                given.next().unwrap_or(0)
            } else {
                0
            }
        };
        Some(all.iter().map(of_place).collect())
    }
}

/// Whether the rank that made a plan lives: by its generation, which is one of its own.
fn is_shown(plan: &Plan, all: &[Shown]) -> bool {
    let maker = plan.generation % all.len() as u64;
    all[maker as usize].is_live
}

fn newest<'a>(plans: impl Iterator<Item = &'a Plan>) -> Plan {
    let newest = plans.max_by_key(|plan| plan.generation);
    newest.cloned().unwrap_or_default()
}

/// Who is to have how many threads as all have been told, by place; none for who does not live, or is not in the plan.
pub fn told(all: &[Shown]) -> Vec<u32> {
    let newest = newest(all.iter().map(|shown| &shown.plan));
    told_by(&newest, all)
}

/// By the newest plan, or without any what each brought.
fn told_by(newest: &Plan, all: &[Shown]) -> Vec<u32> {
    if newest.generation > 0 {
        return newest.threads.clone();
    }
    let brought = |shown: &Shown| {
        if shown.is_live {
            shown.brought.max(1)
        } else {
            0
        }
    };
    all.iter().map(brought).collect()
}

/// What is known of a rank that lives.
struct Known {
    brought: u32,
    /// What it was to have so far.
    kept: u32,
    is_measured: bool,
    train: Seconds,
    work: Seconds,
    queued: u32,
}

impl Known {
    fn of(all: &[Shown], newest: &Plan) -> Vec<Self> {
        let live = all.iter().enumerate().filter(|(_, shown)| shown.is_live);
        let known = live.map(|(place, shown)| {
            let brought = shown.brought.max(1);
            Self {
                brought,
                kept: newest.of(place).unwrap_or(brought),
                is_measured: shown.is_measured,
                train: shown.train,
                work: shown.work,
                queued: shown.queued,
            }
        });
        known.collect()
    }

    /// What these have before them, who share so many threads.
    fn demands(ranks: &[Self], threads: u32) -> Vec<Demand> {
        // Others have at least one. Where that is not left, ranks that went have taken along what they had given away.
        let kept = |rank: &Self| if rank.is_measured { 1 } else { rank.kept };
        let fits = ranks.iter().map(kept).sum::<u32>() <= threads;
        let demand = |rank: &Self| {
            let has = if fits { rank.kept } else { rank.brought };
            if rank.is_measured {
                Demand {
                    work: rank.work,
                    decode: Seconds::ZERO,
                    queued: rank.queued,
                    least: 1,
                    most: threads,
                }
            } else {
                Demand {
                    least: has,
                    most: has,
                    ..Demand::default()
                }
            }
        };
        ranks.iter().map(demand).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Rule;

    /// Ranks of a host whose looks come in any order, with what each shows.
    struct Ranks {
        shown: Vec<Shown>,
        permits: Vec<Permits>,
        held: Vec<u32>,
        step: u64,
    }

    const BROUGHT: u32 = 4;

    impl Ranks {
        fn new(number: usize) -> Self {
            let shown = Shown {
                is_live: true,
                brought: BROUGHT,
                queued: 10,
                work: Seconds(1.0),
                train: Seconds(1.0),
                is_measured: true,
                ..Shown::default()
            };
            let terms = Terms {
                every: 1,
                ..Terms::by(Rule::Foresee)
            };
            let of = |place| Permits::new(place, BROUGHT, terms);
            Self {
                shown: vec![shown; number],
                permits: (0..number).map(of).collect(),
                held: vec![BROUGHT; number],
                step: 0,
            }
        }

        /// One rank looks while so many of its threads are at work, at most as many as it may have.
        fn look(&mut self, place: usize, busy: u32) {
            let busy = busy.min(self.held[place]);
            let decided = self.permits[place].look(&self.shown, busy, self.step);
            let shown = &mut self.shown[place];
            if let Some(plan) = decided.plan {
                shown.plan = plan;
            }
            shown.follows = decided.follows;
            // Threads that are at work beyond the permits are held on to until they end.
            self.held[place] = decided.permits.max(busy);
        }

        fn look_all(&mut self, times: usize) {
            for _ in 0..times {
                for place in 0..self.shown.len() {
                    if self.shown[place].is_live {
                        self.look(place, 0);
                    }
                }
            }
        }

        fn permits(&self) -> Vec<u32> {
            self.permits.iter().map(|one| one.held).collect()
        }

        fn held_by_the_living(&self) -> u32 {
            let held = self.shown.iter().zip(&self.held);
            held.filter(|(shown, _)| shown.is_live)
                .map(|(_, held)| held)
                .sum()
        }
    }

    #[test]
    fn threads_go_to_the_rank_that_is_late_and_come_back() {
        let mut ranks = Ranks::new(4);
        ranks.look_all(2);
        assert_eq!(ranks.permits(), [4; 4]);
        ranks.shown[2].work = Seconds(9.0);
        ranks.look_all(3);
        assert!(ranks.permits()[2] >= 9, "{:?}", ranks.permits());
        ranks.shown[2].work = Seconds(1.0);
        ranks.shown[0].work = Seconds(9.0);
        ranks.look_all(3);
        assert!(ranks.permits()[0] >= 9, "{:?}", ranks.permits());
    }

    #[test]
    fn before_all_have_measured_each_has_what_it_brought() {
        let mut ranks = Ranks::new(4);
        for shown in &mut ranks.shown {
            shown.is_measured = false;
            shown.train = Seconds::ZERO;
            shown.work = Seconds::ZERO;
        }
        ranks.look_all(3);
        // The first one to measure looks late beside ranks that know of no work.
        ranks.shown[0].is_measured = true;
        ranks.shown[0].work = Seconds(2.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [4; 4]);
        for shown in &mut ranks.shown {
            shown.is_measured = true;
            shown.work = Seconds(2.0);
        }
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [4; 4]);
        assert_eq!(ranks.shown[0].plan, Plan::default(), "nothing to be told");
        ranks.shown[3].work = Seconds(9.0);
        ranks.look_all(3);
        assert!(ranks.permits()[3] > 4, "{:?}", ranks.permits());
    }

    #[test]
    fn before_a_plan_who_finds_that_it_needs_more_threads_has_them() {
        let mut ranks = Ranks::new(2);
        ranks.shown[1].is_measured = false;
        ranks.look_all(1);
        for shown in &mut ranks.shown {
            shown.brought = 9;
        }
        ranks.look_all(1);
        assert_eq!(ranks.permits(), [9, 9]);
    }

    #[test]
    fn who_comes_late_has_what_it_brought_from_the_start() {
        let mut ranks = Ranks::new(3);
        ranks.shown[2].is_live = false;
        ranks.shown[0].work = Seconds(9.0);
        ranks.look_all(3);
        let before = ranks.permits();
        assert!(before[0] > BROUGHT, "{before:?}");
        ranks.shown[2].is_live = true;
        ranks.shown[2].is_measured = false;
        // It looks before whoever plans has seen it.
        ranks.look(2, 0);
        assert_eq!(ranks.permits(), before);
        assert_eq!(before[2], BROUGHT);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), before, "nothing is known of it");
        assert_eq!(ranks.shown[0].plan.threads, before);
        ranks.shown[2].is_measured = true;
        ranks.look_all(3);
        assert!(ranks.permits()[0] > before[0], "it has threads to spare");
    }

    #[test]
    fn a_rank_that_never_measures_keeps_its_own_and_holds_up_nobody() {
        let mut ranks = Ranks::new(3);
        ranks.shown[0].is_measured = false;
        ranks.shown[0].train = Seconds::ZERO;
        ranks.shown[2].work = Seconds(9.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [4, 1, 7]);
        // Who has nothing left to do, and knows it, has threads for the others.
        ranks.shown[0].is_measured = true;
        ranks.shown[0].train = Seconds(1.0);
        ranks.shown[0].work = Seconds::ZERO;
        ranks.shown[0].queued = 0;
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [1, 1, 9]);
    }

    #[test]
    fn who_meets_what_it_has_not_measured_keeps_the_threads_that_it_has() {
        let mut ranks = Ranks::new(3);
        ranks.shown[2].work = Seconds(20.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [1, 1, 10]);
        ranks.shown[2].is_measured = false;
        ranks.shown[2].work = Seconds::ZERO;
        ranks.shown[0].work = Seconds(9.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [1, 1, 10]);
        // Of what it has, a part was brought by a rank that goes.
        ranks.shown[1].is_live = false;
        ranks.look_all(3);
        let permits = ranks.permits();
        assert_eq!((permits[0], permits[2]), (BROUGHT, BROUGHT));
    }

    #[test]
    fn plans_of_two_ranks_are_told_apart() {
        let mut ranks = Ranks::new(3);
        for seen in 0..10 {
            let next = ranks.permits.iter_mut().map(|permits| {
                permits.seen = seen;
                permits.next_generation(3)
            });
            let next: Vec<u64> = next.collect();
            assert!(next.iter().all(|generation| *generation > seen));
            assert!(next[0] != next[1] && next[1] != next[2] && next[2] != next[0]);
        }
    }

    #[test]
    fn a_plan_that_is_being_shown_is_not_taken_for_none() {
        let mut ranks = Ranks::new(3);
        ranks.shown[2].work = Seconds(20.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [1, 1, 10]);
        let shown = std::mem::take(&mut ranks.shown[0].plan);
        ranks.look(1, 0);
        ranks.look(2, 0);
        assert_eq!(ranks.permits(), [1, 1, 10]);
        // Who was showing it is gone for good: another one follows, newer than what nobody can see any more.
        ranks.shown[0].is_live = false;
        ranks.look_all(3);
        assert!(ranks.shown[1].plan.generation > shown.generation);
        assert_eq!(ranks.permits()[1..].iter().sum::<u32>(), 2 * BROUGHT);
    }

    #[test]
    fn a_plan_from_before_another_planned_is_over() {
        let mut ranks = Ranks::new(3);
        // The first is away for a while, and the second plans.
        ranks.shown[0].is_live = false;
        ranks.shown[2].work = Seconds(20.0);
        ranks.look_all(3);
        assert_eq!(ranks.permits()[1..], [1, 7]);
        ranks.shown[0].is_live = true;
        ranks.shown[2].work = Seconds(1.0);
        ranks.shown[1].work = Seconds(20.0);
        ranks.look_all(4);
        assert_eq!(ranks.permits(), [1, 10, 1]);
        // The first is gone, and the second has not seen that: its own plan of then gives nobody anything.
        ranks.shown[0].is_live = false;
        ranks.look(2, 0);
        assert_eq!(ranks.permits(), [1, 10, 1]);
    }

    #[test]
    fn nobody_has_more_before_others_have_less() {
        let mut ranks = Ranks::new(2);
        ranks.look_all(2);
        ranks.shown[0].work = Seconds(9.0);
        ranks.look(0, 4);
        ranks.look(1, 4);
        ranks.look(0, 4);
        assert_eq!(
            ranks.permits()[0],
            4,
            "threads of the other are still at work"
        );
        assert!(ranks.permits()[1] < 4);
        ranks.look(1, 1);
        ranks.look(0, 4);
        assert!(ranks.permits()[0] > 4);
        assert_eq!(ranks.held_by_the_living(), 2 * BROUGHT);
    }

    #[test]
    fn who_is_gone_strands_nothing_and_who_comes_back_takes_part() {
        let mut ranks = Ranks::new(3);
        ranks.shown[1].work = Seconds(20.0);
        ranks.look_all(3);
        assert!(ranks.permits()[1] > 4);
        ranks.shown[1].is_live = false;
        ranks.look_all(3);
        let [first, _, last] = ranks.permits()[..] else {
            unreachable!("there are three")
        };
        assert_eq!(first + last, 2 * BROUGHT, "two of them brought so many");
        // The planner itself is gone: the next one plans.
        ranks.shown[0].is_live = false;
        ranks.look_all(3);
        assert_eq!(ranks.permits()[2], BROUGHT);
        // Both come back, with permits of long ago, and see that plans went on without them.
        ranks.shown[0].is_live = true;
        ranks.shown[1].is_live = true;
        ranks.shown[1].work = Seconds(1.0);
        ranks.look_all(4);
        let permits = ranks.permits();
        assert_eq!(permits.iter().sum::<u32>(), 3 * BROUGHT, "{permits:?}");
    }

    #[test]
    fn a_plan_of_an_earlier_job_is_followed_as_long_as_all_are_there() {
        let text = "step 5: 2 8 2, decoding 0\nstep 9: 1 10 1, decoding 0\n";
        let plan: ThreadPlan = text.parse().unwrap();
        let mut ranks = Ranks::new(3);
        ranks.permits = std::mem::take(&mut ranks.permits)
            .into_iter()
            .map(|permits| permits.replaying(plan.clone()))
            .collect();
        ranks.shown[0].work = Seconds(20.0);
        ranks.look_all(3);
        assert!(
            ranks.permits()[0] > 4,
            "before its first step plans are made"
        );
        ranks.step = 5;
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [2, 8, 2]);
        let made = ranks.shown[0].plan.generation;
        ranks.look_all(3);
        assert_eq!(ranks.shown[0].plan.generation, made, "it is shown once");
        ranks.step = 9;
        ranks.look_all(3);
        assert_eq!(ranks.permits(), [1, 10, 1]);
        ranks.shown[1].is_live = false;
        ranks.look_all(3);
        let permits = ranks.permits();
        assert!(
            permits[0] > permits[2],
            "{permits:?}: who is late has more again"
        );
        assert_eq!(permits[0] + permits[2], 2 * BROUGHT);
        ranks.shown[1].is_live = true;
        ranks.look_all(4);
        assert_eq!(ranks.permits(), [1, 10, 1]);
    }

    #[test]
    fn a_plan_that_gives_out_more_than_there_is_is_not_followed() {
        for given in ["1 12", "4294967295 2"] {
            let text = format!("step 0: {given}, decoding 0\n");
            let plan: ThreadPlan = text.parse().unwrap();
            let mut ranks = Ranks::new(2);
            let first = ranks.permits.remove(0);
            ranks.permits.insert(0, first.replaying(plan));
            ranks.look_all(4);
            assert_eq!(ranks.permits(), [4, 4]);
        }
    }

    #[test]
    fn whatever_the_order_the_living_never_hold_more_than_they_brought() {
        // Drawn by a small generator: who looks, how busy it is, and whose work changes.
        let mut drawn = 12345_u64;
        let mut draw = |below: u64| {
            drawn = drawn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (drawn >> 33) % below
        };
        for number in [2, 3, 5, 8] {
            let mut ranks = Ranks::new(number);
            for _ in 0..5000 {
                let place = draw(number as u64) as usize;
                match draw(10) {
                    0 => ranks.shown[place].work = Seconds(draw(20) as f64 / 2.0),
                    1 => ranks.shown[place].queued = draw(50) as u32,
                    2 => ranks.shown[place].is_measured = draw(2) > 0,
                    3 if draw(8) == 0 => ranks.shown[place].is_live = false,
                    _ => {
                        // Who was stopped looks first thing when it goes on: until then it does not know what it missed.
                        let was_live = std::mem::replace(&mut ranks.shown[place].is_live, true);
                        let busy = if was_live { draw(12) } else { 0 };
                        ranks.look(place, busy as u32);
                    }
                }
                let most = BROUGHT * number as u32;
                assert!(ranks.held_by_the_living() <= most, "{:?}", ranks.held);
            }
            for shown in &mut ranks.shown {
                shown.is_live = true;
            }
            ranks.look_all(4);
            let permits = ranks.permits();
            assert!(permits.iter().all(|threads| *threads > 0), "{permits:?}");
        }
    }
}
