//! imagenet-22k (14.2 million samples, 5 epochs, 16 ranks) once for a few policies: seconds and memory. Too long for many
//! rounds, so it measures one. Held to: under 90 s a policy and 1.5 GB.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::path::Path;
use std::time::Instant;

use foresee_core::policy::by_name;
use foresee_sim::job::Job;
use foresee_sim::scenario::Scenario;
use foresee_sim::simulate;

/// The most memory this process ever had, in MB; nothing where the system does not say.
fn resident_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

fn main() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/imagenet-22k.toml");
    let job = Job::new(&Scenario::load(&path, &[]).expect("the shipped scenario loads"))
        .expect("and runs");
    for name in ["staging-buffer", "nopfs", "foresee"] {
        let policy = by_name(name).expect("a policy of this name");
        let started = Instant::now();
        let outcome = simulate(&job, policy, |_| ());
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "imagenet-22k/{name}: {seconds:.1} s, {:.2} million accesses/s, up to {:.0} MB so far; simulated {:.3} h",
            job.accesses() as f64 / seconds / 1e6,
            resident_mb().unwrap_or(f64::NAN),
            outcome.total_s.unwrap_or(f64::NAN) / 3600.0,
        );
    }
}
