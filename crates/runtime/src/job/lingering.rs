//! The end of a job. A rank whose stream is over tells the others, with what it did, and serves them until they are over too,
//! have left, or a time has passed. One that ends before leaves at once, and the others are told by the transport.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peer_stats::Report;
use super::shared::Shared;
use super::state::State;
use super::stats::Stats;
use super::{CLOSE_MAX, Job};
use crate::sync::atomic::Ordering;
use crate::sync::whole;

impl Job {
    /// This rank's stream is over; the others are told, the first time.
    pub(super) fn finish(&self, shared: &Shared) {
        if shared.post.is_none() {
            return;
        }
        let report = Report::of(&Stats::of(self, Some(shared)));
        shared.change(|state| ((), state.finish(&report)));
    }

    /// Serves other ranks, where the trainer has all of an epoch and may want no more, no longer than `patience`; whether
    /// nobody needs this one any more, or `peers.linger` has passed since its end. One that stands within an epoch is not at
    /// its end: others do without it.
    pub fn linger(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let Some(shared) = self.lock_running().clone() else {
            return true;
        };
        let (epoch, step) = self.place();
        let is_within = step > 0 || self.at[1].load(Ordering::Acquire) > 0;
        if shared.post.is_none() || epoch == 0 || is_within {
            return true;
        }
        self.finish(&shared);
        let since = shared.look(State::done_since);
        let Some(end) = since.map(|since| since + shared.spec.config.peers.linger) else {
            return true;
        };
        shared.sleep(deadline.min(end), |state| !state.is_needed());
        Instant::now() >= end || !shared.look(State::is_needed)
    }

    /// Ends the job: threads do nothing more for it. Samples in the trainer's hands stay as they are. One that has handed over
    /// all of its stream serves other ranks first, until they need nothing more, or `peers.linger` has passed.
    pub fn close(&self) {
        while self.is_at_end() && !self.linger(CLOSE_MAX) {}
        self.leave(CLOSE_MAX);
    }

    /// The same, where neither other ranks nor reads that are under way are waited for longer than `patience`.
    pub fn close_within(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if self.is_at_end() {
            self.linger(patience);
        }
        self.leave(deadline.saturating_duration_since(Instant::now()));
    }

    /// Whether the trainer has all of the stream.
    fn is_at_end(&self) -> bool {
        self.place().0 >= self.epochs()
    }

    /// Ends the job at once, but for reads that are under way: they are waited for no longer than `patience`.
    pub(super) fn leave(&self, patience: Duration) {
        self.closed.store(true, Ordering::Relaxed);
        let running = self.lock_running().take();
        if let Some(opened) = whole(self.opened.lock()).take() {
            opened.close();
        }
        if let Some(shared) = &running {
            self.end(shared);
        }
        if let Some(peers) = self.peers() {
            peers.leave();
        }
        if let Some(shared) = running {
            shared.give_back(patience);
        }
    }

    fn end(&self, shared: &Arc<Shared>) {
        shared.close(self.is_at_end());
        let ended = (Stats::of(self, Some(shared)), shared.stores.capacities());
        *whole(self.ended.lock()) = Some(ended);
        if let Some(trace) = &shared.trace {
            let problem = trace.end(&serde_json::to_value(self.stats()).unwrap_or_default());
            *whole(self.untraced.lock()) = problem;
        }
    }
}
