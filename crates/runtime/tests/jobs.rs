//! Several jobs in one process: they share threads, and get all that is theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::thread;

use foresee_runtime::job::Job;

use self::common::{Made, batches, job_spec};

#[test]
fn forty_open_jobs_all_deliver() {
    let source = Made::new(600, 1, 0);
    let jobs: Vec<Arc<Job>> = (0..40)
        .map(|_| {
            let mut spec = job_spec(&source);
            spec.batch_size = 4;
            spec.epochs = 3;
            Arc::new(Job::new(spec).unwrap())
        })
        .collect();
    let trainers: Vec<_> = jobs
        .iter()
        .map(|job| {
            let job = Arc::clone(job);
            thread::spawn(move || batches(&job).map(|batch| batch.samples.len()).sum::<usize>())
        })
        .collect();
    for trainer in trainers {
        assert_eq!(trainer.join().unwrap(), 3 * 600);
    }
}
