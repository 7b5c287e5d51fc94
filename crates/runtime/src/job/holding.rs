//! The holder's side of a rank's dealings with its peers: requests for what lives here are answered, parked until the sample
//! has come, or refused; what others read and hand over is taken in; who is to bring something that somebody else brought is
//! told so.

use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::units::Bytes;

use super::dealings::Errand;
use super::state::State;
use super::stores::Stores;
use super::wake::Wake;
use crate::peers::{Parking, Waiting as Parker};
use crate::transport::Ask;

/// A sample that a peer has handed over to its home here.
pub(super) struct HandedOver {
    pub(super) from: Rank,
    pub(super) sample: SampleId,
    pub(super) tier: TierId,
    /// What was kept of it; nothing where its reader could not read it, or there was no room.
    pub(super) kept: Option<Bytes>,
}

impl State {
    /// The tier here that is a sample's home.
    pub(super) fn home_here(&self, sample: SampleId) -> Option<TierId> {
        let own = self.dealings.as_ref()?.rank;
        let home = self.course.desk.home(sample)?;
        (home.rank == own).then_some(home.tier)
    }

    /// Whether what this rank keeps of a sample is a copy of what lives on another one.
    pub(super) fn is_copy(&self, sample: SampleId) -> bool {
        let Some(dealings) = &self.dealings else {
            return false;
        };
        let home = self.course.desk.home(sample);
        home.is_some_and(|home| home.rank != dealings.rank)
    }

    /// A tier does not have what it should. A copy of what lives on another rank is had from there; to lose it costs a fetch,
    /// no read.
    pub(super) fn not_held(&mut self, sample: SampleId, tier: TierId) {
        if self.is_copy(sample) {
            self.course.desk.not_copied(sample, tier);
        } else {
            self.course.desk.lost(sample, tier);
        }
    }

    /// A peer asks for a sample: it is answered at once, parked until the sample arrives, or refused.
    pub(super) fn asked_by(&mut self, from: Rank, ask: Ask) -> Wake {
        let here = self.home_here(ask.sample);
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        dealings.heard(from);
        let to = Parker {
            rank: from,
            ticket: ask.ticket,
        };
        let Some(tier) = here.filter(|_| !self.course.is_stopped()) else {
            dealings.refuse(to);
            return Wake::NOBODY;
        };
        if self.course.desk.is_here(ask.sample, tier) {
            dealings.errands.push(Errand::Serve {
                to,
                sample: ask.sample,
                tier,
            });
        } else if self.is_forsaken(ask.sample) || self.is_busy_with(ask.sample, to) {
            self.refuse(to);
        }
        Wake::NOBODY
    }

    /// Whether a sample that lives here will not come before it is read here, or somebody else thinks of it.
    pub(super) fn is_forsaken(&self, sample: SampleId) -> bool {
        let Some(dealings) = &self.dealings else {
            return true;
        };
        let desk = &self.course.desk;
        let bringer = desk.bringer(sample);
        let is_silent = bringer.is_some_and(|bringer| dealings.asked.is_mute(bringer));
        if !desk.parks() {
            return true;
        }
        dealings.missing.contains(&sample) || (is_silent && !desk.is_being_read(sample))
    }

    /// Parks a request, unless its asker has too many here.
    fn is_busy_with(&mut self, sample: SampleId, to: Parker) -> bool {
        let Some(dealings) = &mut self.dealings else {
            return true;
        };
        let parking = dealings.parked.park(sample, to);
        dealings.parked_here += u64::from(parking == Parking::Parked);
        parking == Parking::Busy
    }

    fn refuse(&mut self, to: Parker) {
        if let Some(dealings) = &mut self.dealings {
            dealings.refuse(to);
        }
    }

    /// A sample has arrived at its home here, or will not: who asked for it is told. `from`: who brought it.
    pub(super) fn tell_parked(
        &mut self,
        sample: SampleId,
        tier: TierId,
        arrived: bool,
        from: Rank,
    ) {
        if self.home_here(sample) != Some(tier) {
            return;
        }
        let bringer = self.course.desk.bringer(sample);
        let Some(dealings) = &mut self.dealings else {
            return;
        };
        if arrived {
            dealings.missing.remove(&sample);
            if let Some(bringer) = bringer.filter(|bringer| *bringer != from) {
                dealings.need_not_bring(bringer, sample);
            }
        } else {
            dealings.missing.insert(sample);
        }
        for to in dealings.parked.take(sample) {
            if arrived {
                dealings.errands.push(Errand::Serve { to, sample, tier });
            } else {
                dealings.refuse(to);
            }
        }
    }

    /// The home of a sample that this rank is to bring has it already: it is fetched from there in its turn.
    pub(super) fn need_not_bring(&mut self, from: Rank, sample: SampleId) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.heard(from);
        }
        let home = self.course.desk.home(sample);
        if home.is_some_and(|home| home.rank == from) && !self.course.is_stopped() {
            self.course.desk.see(sample, true);
        }
        Wake::NOBODY
    }

    /// A peer has handed over a sample that lives here, and whether it could be kept; or it could not read it.
    pub(super) fn handed_over(&mut self, handed: &HandedOver, stores: &Stores) -> Wake {
        let HandedOver {
            from,
            sample,
            tier,
            kept,
        } = *handed;
        if let Some(dealings) = &mut self.dealings {
            dealings.heard(from);
            if let Some(bytes) = kept {
                dealings.received.samples += 1;
                dealings.received.bytes += bytes.0;
            }
        }
        if kept.is_some() {
            self.course.desk.arrive(sample, tier);
        } else if !self.course.desk.is_here(sample, tier) {
            self.course.desk.lost(sample, tier);
        }
        let is_here = self.course.desk.is_here(sample, tier);
        self.tell_parked(sample, tier, is_here, from);
        self.resume(sample, stores) | self.wants.happened()
    }
}
