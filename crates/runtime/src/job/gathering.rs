//! The trainer's side of the state: it takes staged samples in order, and is told what stands in the way of more.

use std::sync::Arc;

use foresee_core::engine::Consumed;
use foresee_core::ids::SampleId;

use super::consumer::Gathered;
use super::course::OnDemand;
use super::polling::Polled;
use super::slots::{Decoded, Head, Staged};
use super::state::{Ended, State};
use super::stores::Stores;
use super::task::Fetch;
use super::wake::Wake;
use crate::source::ReadError;

/// What came of gathering samples for the trainer.
pub(super) enum Gathering {
    /// They are all there.
    Whole,
    /// The deadline has passed.
    Late,
    /// The next one is broken.
    Broken(SampleId, Arc<ReadError>),
    /// One that the trainer is to read itself.
    Own(Fetch),
    /// Nothing can be done until something more than so many events has happened.
    Wait(u64),
    Ended(Ended),
}

/// Why no more could be taken, if more was wanted.
enum Stopped {
    /// The next sample is not there; with what the engine said last.
    Missing(Polled),
    /// The next sample is broken.
    Broken(SampleId, Arc<ReadError>),
}

impl State {
    /// Takes the next samples until there are `wanted`, or says what stands in the way. Called again after each of those.
    pub(super) fn gather(
        &mut self,
        gathered: &mut Vec<Gathered>,
        wanted: usize,
        is_late: impl Fn() -> bool,
        stores: &Stores,
    ) -> (Gathering, Wake) {
        self.wants.hungry = true;
        let (stopped, mut wake) = self.take_staged(gathered, wanted, stores);
        if gathered.len() >= wanted {
            self.wants.hungry = false;
            return (Gathering::Whole, wake);
        }
        if let Some(ended) = self.ended() {
            return (Gathering::Ended(ended.clone()), wake);
        }
        if let Stopped::Broken(sample, cause) = stopped {
            self.wants.hungry = false;
            return (Gathering::Broken(sample, cause), wake);
        }
        if matches!(stopped, Stopped::Missing(Polled::Full)) && self.forgive_if_stuck() {
            self.ledger.counts.outside += 1;
            let (gathering, more) = self.gather(gathered, wanted, is_late, stores);
            return (gathering, wake | more);
        }
        if is_late() {
            self.wants.hungry = false;
            return (Gathering::Late, wake);
        }
        let missing = (wanted - gathered.len()) as u64;
        let (own, more) = self.take_own(missing, stores);
        wake |= more;
        if let Some(fetch) = own {
            return (Gathering::Own(fetch), wake);
        }
        let until = self.course.slots.first() + missing;
        self.wants.want(until, self.course.slots.missing(missing));
        // Whoever else could help is told before the trainer sleeps.
        (Gathering::Wait(self.wants.events()), wake | Wake::ANOTHER)
    }

    /// Takes what is staged; where the next sample has no slot yet, or only lacks room, the engine is asked.
    fn take_staged(
        &mut self,
        gathered: &mut Vec<Gathered>,
        wanted: usize,
        stores: &Stores,
    ) -> (Stopped, Wake) {
        let mut wake = Wake::NOBODY;
        let mut polled = Polled::More;
        while gathered.len() < wanted {
            match self.course.slots.take() {
                Head::Staged(staged) => gathered.push(self.lend(staged)),
                Head::Failed(sample, cause) => return (Stopped::Broken(sample, cause), wake),
                Head::Missing => {
                    let waits_for_memory =
                        self.course.slots.is_empty() || self.course.lacks_room_at_head();
                    if polled != Polled::More || !waits_for_memory {
                        break;
                    }
                    let (now, more) = self.advance(stores);
                    polled = now;
                    wake |= more;
                }
            }
        }
        (Stopped::Missing(polled), wake)
    }

    /// Takes all that is wanted if it is staged; nothing otherwise.
    pub(super) fn gather_at_once(&mut self, gathered: &mut Vec<Gathered>, wanted: usize) -> bool {
        let missing = wanted.saturating_sub(gathered.len());
        if self.ended().is_some() || !self.course.slots.has_ready(missing) {
            return false;
        }
        while gathered.len() < wanted
            && let Head::Staged(staged) = self.course.slots.take()
        {
            gathered.push(self.lend(staged));
        }
        gathered.len() >= wanted
    }

    /// A staged sample passes into the trainer's hands.
    fn lend(&mut self, staged: Staged) -> Gathered {
        let Some(Consumed::Staged(counted)) = self.course.desk.consume() else {
            unreachable!("what was staged is consumed")
        };
        if staged.piece.block().is_own() {
            self.ledger.counts.outside += 1;
        }
        let loan = self.loans.lend(counted);
        Gathered::new(staged, self.course.number(), loan..loan + 1)
    }

    /// Whether the trainer waits for a sample that will not come before it gives something back; then the engine is told
    /// that it did.
    fn forgive_if_stuck(&mut self) -> bool {
        if !self.course.is_idle() || self.loans.is_empty() {
            return false;
        }
        for bytes in self.loans.forgive() {
            self.course.desk.release(bytes);
        }
        true
    }

    /// The next sample of a loader that reads on demand: one that failed before, or the stream's next.
    pub(super) fn next_on_demand(&mut self, stores: &Stores) -> Option<OnDemand> {
        if let Some(failed) = self.course.on_demand.take() {
            return Some(failed);
        }
        let Some(Consumed::OnDemand(read)) = self.course.desk.consume() else {
            return None;
        };
        self.course.desk.complete(&read);
        let places = self.course.shelf.as_mut();
        let part = places.and_then(|places| places.next(stores, true));
        Some(OnDemand {
            sample: read.sample,
            part,
        })
    }

    /// The broken sample that the trainer stands at, to be tried again.
    pub(super) fn take_broken(&mut self) -> Option<OnDemand> {
        let failure = self.course.slots.failure()?;
        Some(OnDemand {
            sample: failure.sample,
            part: failure.part.take(),
        })
    }

    /// It failed again.
    pub(super) fn still_broken(&mut self, part: Option<Decoded>) {
        if let Some(failure) = self.course.slots.failure() {
            failure.part = part;
        }
    }
}
