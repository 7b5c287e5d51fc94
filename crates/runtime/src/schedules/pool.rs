//! The pool: no signal is lost, whoever sleeps or is about to; jobs come and go while threads work; threads end with the last
//! job, or shuttle would find them asleep at the end.

use std::sync::Arc;

use foresee_config::Config;

use super::explore;
use crate::machine::Place;
use crate::pool::{Budget, Pool, Work};
use crate::sync::{Condvar, Mutex, thread, whole};

/// A job that counts.
struct Chores {
    left: Mutex<u32>,
    done: Mutex<u32>,
    one_done: Condvar,
}

impl Chores {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            left: Mutex::new(0),
            done: Mutex::new(0),
            one_done: Condvar::new(),
        })
    }

    fn add(&self) {
        *whole(self.left.lock()) += 1;
    }

    fn wait_until_done(&self, chores: u32) {
        let done = whole(self.done.lock());
        let done = self.one_done.wait_while(done, |done| *done < chores);
        assert_eq!(*whole(done), chores, "no chore is done twice");
    }
}

impl Work for Chores {
    fn work(&self) -> bool {
        let mut left = whole(self.left.lock());
        if *left == 0 {
            return false;
        }
        *left -= 1;
        drop(left);
        *whole(self.done.lock()) += 1;
        self.one_done.notify_all();
        true
    }

    fn urgency(&self) -> f64 {
        f64::from(*whole(self.left.lock()))
    }

    fn divide_budget(&self, _: usize) {}

    fn budget(&self) -> Budget {
        Budget {
            config: Config::default(),
            consumer: 0,
        }
    }
}

#[test]
fn no_signal_is_lost() {
    explore(|| {
        let pool = Arc::new(Pool::new(0));
        let job = Chores::new();
        let work: Arc<dyn Work> = Arc::<Chores>::clone(&job);
        let member = pool.join(&work, 2, Place::default()).unwrap();
        let signals: [fn(&Pool); 2] = [Pool::signal, Pool::signal_once];
        let busy = signals.map(|signal| {
            let pool = Arc::clone(&pool);
            let job = Arc::clone(&job);
            thread::spawn(move || {
                for _ in 0..2 {
                    job.add();
                    signal(&pool);
                }
            })
        });
        job.wait_until_done(4);
        for one in busy {
            one.join().unwrap();
        }
        drop(member);
    });
}

#[test]
fn a_signal_after_the_last_chore_of_another_job_is_not_lost() {
    explore(|| {
        let pool = Arc::new(Pool::new(0));
        let jobs = [1, 2].map(|threads| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let job = Chores::new();
                let work: Arc<dyn Work> = Arc::<Chores>::clone(&job);
                let member = pool.join(&work, threads, Place::default()).unwrap();
                for chores in 1..=2 {
                    job.add();
                    pool.signal_once();
                    job.wait_until_done(chores);
                }
                drop(member);
            })
        });
        for job in jobs {
            job.join().unwrap();
        }
    });
}

#[test]
fn a_job_that_grows_gets_its_threads_while_others_leave() {
    explore(|| {
        let pool = Arc::new(Pool::new(0));
        let job = Chores::new();
        let work: Arc<dyn Work> = Arc::<Chores>::clone(&job);
        let member = pool.join(&work, 1, Place::default()).unwrap();
        let other = Arc::clone(&pool);
        let leaving = thread::spawn(move || {
            let work: Arc<dyn Work> = Chores::new();
            let member = other.join(&work, 2, Place::default()).unwrap();
            drop(member);
        });
        member.grow(3);
        job.add();
        pool.signal();
        job.wait_until_done(1);
        leaving.join().unwrap();
        drop(member);
    });
}
