//! Some of the random scenarios of the example of this name: `foresee` reads the source minimum and takes hardly longer
//! than the best other policy that trains on the whole dataset.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/random_scenarios/draw.rs"]
mod draw;

use draw::{Case, Fared};

/// Enough for two of them to be a hundredth, and a few seconds.
const SCENARIOS: u64 = 200;

#[test]
fn foresee_reads_the_minimum_and_takes_hardly_longer_than_the_best_other_policy() {
    let all: Vec<Fared> = (1..=SCENARIOS)
        .map(|seed| Fared::run(Case::draw(seed)).unwrap())
        .collect();
    for fared in &all {
        assert!(fared.reads_the_minimum(), "{fared}\n{}", fared.case.text());
        // Fewer source bytes cost time where all else is slower.
        let excused = fared.case.slow_origin().is_some();
        assert!(excused || fared.ratio() <= 1.25, "{fared}");
    }
    let longer: Vec<String> = all
        .iter()
        .filter(|fared| fared.ratio() > 1.05)
        .map(ToString::to_string)
        .collect();
    let most = SCENARIOS as usize / 100;
    assert!(longer.len() <= most, "{}", longer.join("\n"));
}

#[test]
fn a_scenario_can_be_drawn_again_by_its_number() {
    assert_eq!(Case::draw(7).text(), Case::draw(7).text());
    assert_ne!(Case::draw(7).text(), Case::draw(8).text());
}
