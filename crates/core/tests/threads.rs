//! Threads by rank against all other ways to give them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use foresee_core::threads::balance::Ahead;
use foresee_core::threads::{Balance, Demand, Division, Host, Rule, Score, Terms, allot};
use foresee_core::units::Seconds;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

const CASES: u32 = 2000;

/// Small numbers of whole tenths: ties are as frequent as they can be.
fn demand() -> impl Strategy<Value = Demand> {
    (0_u32..60, 0_u32..12, 0_u32..40, 1_u32..10).prop_map(|(work, decode, queued, most)| Demand {
        work: Seconds(f64::from(work) / 10.0),
        decode: Seconds(f64::from(decode) / 10.0),
        queued,
        least: 1,
        most,
    })
}

fn case() -> impl Strategy<Value = (Vec<Demand>, Host)> {
    let demands = prop::collection::vec(demand(), 1..5);
    (demands, 0_u32..8, 1_u32..20).prop_map(|(demands, spare, train)| {
        let host = Host {
            threads: demands.len() as u32 + spare,
            train: Seconds(f64::from(train) / 10.0),
        };
        (demands, host)
    })
}

/// The best of all that are within the bounds.
fn exhaustive(demands: &[Demand], host: Host) -> Score {
    let mut best: Option<Score> = None;
    let mut tried = vec![1; demands.len()];
    loop {
        if tried.iter().sum::<u32>() <= host.threads {
            let score = Score::of(demands, &tried, host.train);
            if best.is_none_or(|so_far| score < so_far) {
                best = Some(score);
            }
        }
        let more = (0..tried.len()).find(|&rank| tried[rank] < demands[rank].most);
        let Some(rank) = more else {
            return best.unwrap();
        };
        tried[rank] += 1;
        tried[..rank].fill(1);
    }
}

fn is_within(demands: &[Demand], host: Host, allotted: &[u32]) -> bool {
    let mut each = demands.iter().zip(allotted);
    allotted.len() == demands.len()
        && allotted.iter().sum::<u32>() <= host.threads
        && each.all(|(demand, threads)| (1..=demand.most).contains(threads))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn the_next_thread_to_the_latest_is_as_good_as_all_that_can_be_tried((demands, host) in case()) {
        let allotted = allot(&demands, host, Rule::Foresee);
        prop_assert!(is_within(&demands, host, &allotted));
        let score = Score::of(&demands, &allotted, host.train);
        let best = exhaustive(&demands, host);
        if best.latest <= host.train {
            // Nobody is late, whoever has the rest.
            prop_assert_eq!((score.latest, score.spread), (best.latest, best.spread));
        } else {
            prop_assert_eq!(score, best);
        }
    }

    #[test]
    fn a_balance_never_gives_more_than_there_is_and_settles(
        (demands, host) in case(),
        peak in 0_u32..6,
        rule in prop::sample::select(vec![Rule::Lobster, Rule::Foresee]),
    ) {
        let mut balance = Balance::new(Terms { every: 1, ..Terms::by(rule) });
        let ahead = Ahead { threads: host.threads + peak, decoding_peak: peak, train: host.train };
        let before = |_: Division| demands.clone();
        for step in 0..10 {
            let changed = balance.look(step, ahead, before).is_some();
            prop_assert!(!changed || step == 0, "it settles at once");
            let allotted = balance.current().unwrap();
            let given = allotted.loading.iter().sum::<u32>() + allotted.decoding;
            prop_assert!(given <= ahead.threads.max(demands.len() as u32 + 1));
            prop_assert!(allotted.loading.iter().all(|threads| *threads > 0));
        }
    }
}

/// How often Algorithm 1 finds what is best, and by how much the latest rank is later where it does not.
#[test]
fn the_papers_search_keeps_within_its_bounds_and_comes_close() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut best_found = 0;
    let mut ratios: Vec<f64> = Vec::new();
    for _ in 0..CASES {
        let (demands, host) = case().new_tree(&mut runner).unwrap().current();
        let allotted = allot(&demands, host, Rule::Lobster);
        assert!(
            is_within(&demands, host, &allotted),
            "{demands:?} {host:?} {allotted:?}"
        );
        let latest = Score::of(&demands, &allotted, host.train).latest;
        let best = exhaustive(&demands, host).latest;
        assert!(latest >= best);
        best_found += u32::from(latest == best);
        ratios.push(latest.0 / best.0);
    }
    let mean = ratios.iter().sum::<f64>() / f64::from(CASES);
    ratios.sort_by(f64::total_cmp);
    let p95 = ratios[ratios.len() * 95 / 100];
    println!(
        "best in {best_found} of {CASES}; latest rank {mean:.3} x the best, p95 {p95:.2}, worst {:.2}",
        ratios[ratios.len() - 1]
    );
    assert!(best_found * 2 > CASES, "{best_found} of {CASES}");
    assert!(mean < 1.2, "{mean}");
}
