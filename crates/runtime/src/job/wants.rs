//! What the trainer wants: it says how far it waits for samples and is woken when the last of them is there, or when
//! something else happened that it can make use of. Each such event is counted, so that a trainer that looked before one
//! and goes to sleep after it wakes at once.

use super::wake::Wake;

/// What the trainer wants.
#[derive(Debug, Default)]
pub(super) struct Wants {
    /// Slots before this one are waited for.
    until: u64,
    /// How many of them are not there.
    missing: u64,
    /// Whether it waits: only then does a sample without room get memory of its own. While it trains it may still give back
    /// what it holds.
    pub(super) hungry: bool,
    events: u64,
}

impl Wants {
    /// The trainer waits for all slots before `until`, of which so many are missing.
    pub(super) fn want(&mut self, until: u64, missing: u64) {
        self.until = until;
        self.missing = missing;
    }

    /// Whether the trainer waits for this slot.
    pub(super) fn wants(&self, slot: u64) -> bool {
        self.hungry && slot < self.until
    }

    /// What was wanted of another course is not wanted any more.
    pub(super) fn forget(&mut self) {
        self.until = 0;
        self.missing = 0;
    }

    /// A slot has been filled.
    pub(super) fn arrived(&mut self, slot: u64) -> Wake {
        if slot >= self.until {
            return Wake::NOBODY;
        }
        self.missing -= 1;
        if self.missing > 0 {
            return Wake::NOBODY;
        }
        self.happened()
    }

    /// Something happened that the trainer should look at.
    pub(super) fn happened(&mut self) -> Wake {
        self.events += 1;
        Wake::TRAINER
    }

    /// What happened so far, as a number.
    pub(super) fn events(&self) -> u64 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_woken_by_the_last_sample_that_it_waits_for() {
        let mut wants = Wants::default();
        wants.want(3, 2);
        assert_eq!(wants.arrived(5), Wake::NOBODY, "nobody waits for it");
        assert_eq!(wants.arrived(2), Wake::NOBODY);
        assert_eq!((wants.arrived(0), wants.events()), (Wake::TRAINER, 1));
    }

    #[test]
    fn nothing_is_wanted_of_a_course_that_was_left() {
        let mut wants = Wants::default();
        wants.want(3, 1);
        wants.forget();
        assert_eq!(wants.arrived(0), Wake::NOBODY);
    }
}
