//! How fast the simulator simulates: accesses a second, one core, job and plan included. Every iteration makes the job
//! anew, as orders that one has made would be at hand for the next.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use foresee_core::policy::POLICIES;
use foresee_sim::job::Job;
use foresee_sim::scenario::Scenario;
use foresee_sim::sequential;

fn every_policy_at_s2(criterion: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/hdmlp-s2.toml");
    let scenario = Scenario::load(&path, &[]).expect("the shipped scenario loads");
    let job = || Job::new(black_box(&scenario)).expect("and runs");
    let mut group = criterion.benchmark_group("hdmlp-s2");
    group
        .throughput(Throughput::Elements(job().accesses()))
        .sample_size(10);
    for policy in POLICIES {
        group.bench_function(policy.name(), |bencher| {
            bencher.iter(|| sequential::run(&job(), policy, |_| ()));
        });
    }
    group.finish();
}

criterion_group!(benches, every_policy_at_s2);
criterion_main!(benches);
