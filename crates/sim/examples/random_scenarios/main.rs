//! How `foresee` fares in random scenarios: `cargo run --release -p foresee-sim --example random_scenarios -- 1000 1`
//! (how many, and from which number on). Prints in how many it is within which factor of the best other policy that
//! trains on the whole dataset, the worst, and for each beyond 1.25 what it comes from: without that it is within 1.25. Of a
//! single one it prints the scenario and its epochs, too.

mod draw;

use draw::{Case, Fared};

/// Beyond this a cause is looked for.
const LONG: f64 = 1.25;

/// The worst that are shown.
const SHOWN: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let first: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let mut all: Vec<Fared> = (first..first + count)
        .map(|seed| Fared::run(Case::draw(seed)))
        .collect::<Result<_, _>>()?;
    all.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    let mut lines = vec![
        summary(&all),
        "ratio | foresee | best other | lower bound | what may cost time | scenario".to_owned(),
    ];
    lines.extend(all.iter().take(SHOWN).map(ToString::to_string));
    for fared in all.iter().take_while(|fared| fared.ratio() > LONG) {
        let cause = match fared.cause_beyond(LONG)? {
            Some(cause) => format!("{cause}; without that within {LONG}"),
            None => "NO CAUSE that is known".to_owned(),
        };
        lines.push(format!(
            "#{} {:.3}: {cause}",
            fared.case.seed,
            fared.ratio()
        ));
    }
    if let [only] = &all[..] {
        lines.push(details(only));
    }
    #[allow(clippy::print_stdout, reason = "the example's output")]
    {
        println!("{}", lines.join("\n"));
    }
    Ok(())
}

fn summary(all: &[Fared]) -> String {
    let within = |most: f64| all.iter().filter(|fared| fared.ratio() <= most).count();
    let minimum = all.iter().filter(|fared| fared.reads_the_minimum()).count();
    format!(
        "{} scenarios: source bytes at the minimum in {minimum}; within 1.00 of the best other policy in {}, 1.05 in {}, \
         1.10 in {}, 1.25 in {}",
        all.len(),
        within(1.0),
        within(1.05),
        within(1.1),
        within(1.25)
    )
}

fn details(fared: &Fared) -> String {
    format!(
        "{}\nepochs {:.2?} against {:.2?}",
        fared.case.text(),
        fared.ours.epochs_s,
        fared.best.epochs_s
    )
}
