//! Prints the table of docs/policies.md: what comes from where under four policies, for tiers of K in all and N ranks.

use std::path::Path;

use foresee_core::policy::by_name;
use foresee_sim::job::Job;
use foresee_sim::scenario::Template;
use foresee_sim::simulate;

const SAMPLES: u32 = 16_384;
const EPOCHS: u32 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut lines = vec![
        "| N | K / S | nopfs | lobster | foresee | foresee, local batches |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for ranks in [2u32, 4, 8, 16, 32, 64] {
        for room in [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0] {
            let mut cells = vec![ranks.to_string(), format!("{room:.2}")];
            for (policy, assignment) in [
                ("nopfs", "order"),
                ("lobster", "order"),
                ("foresee", "order"),
                ("foresee", "local"),
            ] {
                cells.push(shares(ranks, room, policy, assignment)?);
            }
            lines.push(format!("| {} |", cells.join(" | ")));
        }
    }
    #[allow(clippy::print_stdout, reason = "the example's output")]
    {
        println!("{}", lines.join("\n"));
    }
    Ok(())
}

/// Source, peer and local bytes in per cent of what is trained on.
fn shares(
    ranks: u32,
    room: f64,
    policy: &str,
    assignment: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let capacity = (room * f64::from(SAMPLES) / f64::from(ranks)).floor();
    let batch = ranks * 32;
    let text = format!(
        "name = \"table\"\n[job]\nranks = {ranks}\nglobal_batch = {batch}\nepochs = {EPOCHS}\nassignment = \"{assignment}\"\n\
         compute_mb_per_s = 100\npreprocess_mb_per_s = 200\n[dataset]\nsamples = {SAMPLES}\nsize_mb = {{ fixed = 1 }}\n\
         [system]\nnetwork_mb_per_s = 10000\nsource_link_mb_per_s = 2000\nsource_read_mb_per_s = {{ 1 = 66, 4 = 146 }}\n\
         contention = \"ranks\"\n[[system.tier]]\nname = \"staging\"\ncapacity_mb = 64\nthreads = 2\n\
         read_mb_per_s = {{ 2 = 21164 }}\n[[system.tier]]\nname = \"memory\"\ncapacity_mb = {capacity}\nthreads = 2\n\
         read_mb_per_s = {{ 2 = 21164 }}\n"
    );
    let scenario = Template::parse(Path::new("table.toml"), &text)?.with(&[])?;
    let job = Job::new(&scenario)?;
    let policy = by_name(policy).ok_or("a policy of the table is missing")?;
    let outcome = simulate(&job, policy, |_| ());
    let trained = job.accesses() as f64 * 1e6;
    let share = |origin: &str| 100.0 * outcome.bytes[origin] as f64 / trained;
    Ok(format!(
        "{:.1} / {:.1} / {:.1}",
        share("source"),
        share("peer"),
        share("tier1")
    ))
}
