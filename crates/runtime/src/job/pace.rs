//! How fast a rank's threads and its trainer are, and how long one thread would be busy with what is before it: what ranks of a
//! host show each other (`balancing`). A job that shares its threads with nobody has none of this, and notes nothing.
//!
//! A thread reads a sample and decodes it in one go, so both are its time, and threads bring both down. They are measured apart:
//! what a read takes depends on where the sample comes from, what decoding takes on its size, and on how many threads of the
//! host are at work.

use foresee_core::engine::Scout;
use foresee_core::threads::loading::{Costs, Mean};
use foresee_core::threads::permits::{Plan, Shown};
use foresee_core::threads::{Decodes, Need};
use foresee_core::units::{Bytes, Seconds};

use super::outcome::Done;
use super::state::State;

/// So many steps are looked ahead.
const LOOKED_AHEAD: usize = 4;

/// Looks that it takes until the number of threads at work is believed: it goes up and down all the time.
const LOOKS_BELIEVED: f64 = 16.0;

/// What a job knows of its pace.
#[derive(Default)]
pub(super) struct Pace {
    /// How long threads read, by origin.
    costs: Costs,
    /// How long they decode.
    decodes: Decodes,
    /// How many of the host's are at work, about.
    at_work: f64,
    /// How long the trainer takes from one batch to asking for the next.
    trains: Mean,
    /// Looks ahead, in the course of this number.
    scout: Option<(u64, Scout)>,
}

impl Pace {
    /// A thread has carried out a read of so much.
    pub(super) fn note(&mut self, bytes: Bytes, done: &Done) {
        self.costs.note(done.origin, done.took());
        let decoded = done.ready.saturating_duration_since(done.fetched);
        if !decoded.is_zero() {
            let took = Seconds(decoded.as_secs_f64());
            self.decodes.note(bytes, self.at_work(), took);
        }
    }

    /// The trainer took so long with a batch.
    pub(super) fn trained(&mut self, took: Seconds) {
        self.trains.note(took.0);
    }

    /// So many threads of the host are at work at this moment.
    fn note_at_work(&mut self, threads: u32) {
        self.at_work += (f64::from(threads) - self.at_work) / LOOKS_BELIEVED;
    }

    fn at_work(&self) -> u32 {
        (self.at_work.round() as u32).max(1)
    }

    /// Whether all that is said of it was measured: how long such samples take, and the trainer. Before the trainer has had a
    /// batch nobody knows how much of it there is in a step.
    fn is_measured(&self, need: &Need) -> bool {
        self.trains.get().is_some() && need.is_measured(&self.costs)
    }

    /// How long one thread would be busy with it.
    fn work(&self, need: &Need) -> Seconds {
        let decoding = self.decodes.fit();
        let decoding = decoding.map(|model| need.decoding(&model, self.at_work()));
        need.measured(&self.costs) + decoding.unwrap_or_default()
    }
}

impl State {
    /// What this rank has before it. `others_busy`: threads of the host's other ranks that are at work.
    pub(super) fn shown(&mut self, follows: u64, others_busy: u32) -> Shown {
        let mut pace = self.pace.take().unwrap_or_default();
        let busy = self.crew.lanes.shareable_busy();
        pace.note_at_work(others_busy + busy);
        let need = self.need(&mut pace);
        let trains_s = pace.trains.get().unwrap_or_default();
        let shown = Shown {
            is_live: true,
            brought: self.crew.lanes.own_threads(),
            queued: need.samples(),
            work: pace.work(&need),
            train: Seconds(trains_s * LOOKED_AHEAD as f64),
            is_measured: pace.is_measured(&need),
            busy,
            follows,
            plan: Plan::default(),
        };
        self.pace = Some(pace);
        shown
    }

    /// What is not staged yet of the steps looked at.
    fn need(&mut self, pace: &mut Pace) -> Need {
        let counts = self.ledger.counts;
        let batch = counts.samples.checked_div(counts.batches).unwrap_or(0) as usize;
        let number = self.course.number();
        let desk = &mut self.course.desk;
        let mut scout = match pace.scout.take() {
            Some((of, scout)) if of == number => scout,
            Some(_) | None => desk.scout(),
        };
        let unpolled = (LOOKED_AHEAD * batch).saturating_sub(self.course.slots.len());
        let mut need = desk.need(&mut scout, unpolled);
        pace.scout = Some((number, scout));
        for read in self.course.queued() {
            need.add(read.origin, read.bytes);
        }
        need
    }

    /// The model of decoding as it was measured so far, as text; empty where nothing was decoded.
    pub(super) fn decoding_model(&self) -> String {
        let pace = self.pace.as_ref();
        let fitted = pace.and_then(|pace| pace.decodes.fit());
        fitted.map_or_else(String::new, |model| model.to_string())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::time::{Duration, Instant};

    use foresee_core::ids::TierId;
    use foresee_core::model::Origin;

    use super::*;

    #[test]
    fn reading_counts_by_origin_and_decoding_by_size() {
        let mut pace = Pace::default();
        let began = Instant::now();
        let mut done = Done::at_once(began, Origin::Source);
        done.fetched = began + Duration::from_millis(20);
        done.ready = done.fetched + Duration::from_millis(10);
        pace.note(Bytes(1000), &done);
        let mut need = Need::default();
        need.add(Origin::Source, Bytes(1000));
        assert!((pace.work(&need).0 - 0.030).abs() < 1e-6);
        // As many bytes again, of which only decoding is known to cost something.
        need.add(Origin::Tier(TierId(1)), Bytes(1000));
        assert!((pace.work(&need).0 - 0.040).abs() < 1e-6);
    }

    #[test]
    fn threads_at_work_are_believed_after_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.at_work(), 1);
        pace.note_at_work(16);
        assert_eq!(pace.at_work(), 1);
        (0..100).for_each(|_| pace.note_at_work(16));
        assert_eq!(pace.at_work(), 16);
    }
}
