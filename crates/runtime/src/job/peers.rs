//! What a job does with its peers: it asks for samples that have their home elsewhere, hands over what it read for others,
//! and serves what lives here. [`Dealings`] is the role behind the job's lock: the books of what is asked and what is parked,
//! and what is to be sent. Nothing is sent, and no tier is read, with the lock: that is done after unlocking, by whoever
//! changed the state (`serving`).
//!
//! A sample with its home elsewhere is asked for as soon as it has its slot, also before it can be there: the holder parks
//! the request. Its answer is memory of its own, so one that comes too late, or twice, writes nowhere. What is refused, or
//! given up because its rank is mute, is read from the source. A rank that is mute brings nothing either: what it was to hand
//! over is given up by who awaits it, and refused by who should have it.

use std::collections::BTreeSet;

use foresee_core::engine::{Awaited, Read};
use foresee_core::homes::Home;
use foresee_core::ids::{Rank, SampleId, TierId};

use super::awaiting::Waiting;
use super::polling::Supply;
use super::slots::Decoded;
use super::state::State;
use super::stores::Stores;
use super::wake::Wake;
use crate::peers::{Answered, Asked, NotAsked, Parked, Parking, Request, Waiting as Parker};
use crate::transport::{Answer, Ask, Content, Message, Payload, Ticket};

/// Requests of one peer that wait here at most.
const PARKED_MAX: usize = 1 << 16;

/// What a request is for.
pub(super) enum Purpose {
    /// A slot whose sample is awaited.
    Awaited { slot: u64 },
    /// A slot whose sample is at its home.
    AtHome {
        slot: u64,
        read: Read,
        part: Option<Decoded>,
    },
}

impl Purpose {
    fn slot(&self) -> u64 {
        match self {
            Self::Awaited { slot } | Self::AtHome { slot, .. } => *slot,
        }
    }
}

/// What is to be done for peers when the lock is free.
pub(super) enum Errand {
    /// Say this.
    Send(Rank, Message),
    /// Answer with what a tier holds.
    Serve {
        to: Parker,
        sample: SampleId,
        tier: TierId,
    },
}

/// A rank's dealings with its peers.
pub(super) struct Dealings {
    rank: Rank,
    asked: Asked<Purpose>,
    parked: Parked,
    /// Samples that live here and will not come before they are read here.
    missing: BTreeSet<SampleId>,
    errands: Vec<Errand>,
}

impl Dealings {
    pub(super) fn new(rank: Rank, ranks: u32) -> Self {
        Self {
            rank,
            asked: Asked::new(ranks),
            parked: Parked::new(ranks, PARKED_MAX),
            missing: BTreeSet::new(),
            errands: Vec::new(),
        }
    }

    fn send(&mut self, to: Rank, message: Message) {
        self.errands.push(Errand::Send(to, message));
    }

    fn refuse(&mut self, to: Parker) {
        let answer = Answer {
            ticket: to.ticket,
            content: Content::WillNotCome,
        };
        self.send(to.rank, Message::Answer(answer));
    }

    /// Nothing that was asked is wanted any more, and nobody here is served: the job moves, or ends.
    fn break_off(&mut self) {
        drop(self.asked.withdraw(|_| true));
        for parked in self.parked.take_all() {
            self.refuse(parked);
        }
        self.missing.clear();
    }
}

impl State {
    /// What is to be done for peers.
    pub(super) fn take_errands(&mut self) -> Vec<Errand> {
        let dealings = self.dealings.as_mut();
        dealings.map_or_else(Vec::new, |dealings| std::mem::take(&mut dealings.errands))
    }

    /// Breaks off all dealings: the job moves, or ends.
    pub(super) fn break_off(&mut self) {
        if let Some(dealings) = &mut self.dealings {
            dealings.break_off();
        }
    }

    /// A slot has its sample in another way than by asking for it.
    pub(super) fn withdraw(&mut self, slot: u64) {
        if let Some(dealings) = &mut self.dealings {
            let of_slot = |request: &Request<Purpose>| request.purpose.slot() == slot;
            drop(dealings.asked.withdraw(of_slot));
        }
    }

    /// The home of a sample on another rank.
    fn home_elsewhere(&self, sample: SampleId) -> Option<Home> {
        let own = self.dealings.as_ref()?.rank;
        self.course
            .desk
            .home(sample)
            .filter(|home| home.rank != own)
    }

    /// The tier here that is a sample's home.
    pub(super) fn home_here(&self, sample: SampleId) -> Option<TierId> {
        let own = self.dealings.as_ref()?.rank;
        let home = self.course.desk.home(sample)?;
        (home.rank == own).then_some(home.tier)
    }

    /// An awaited sample that has its home elsewhere is asked for at once. One that nobody brings is given up.
    pub(super) fn ask_for_awaited(
        &mut self,
        slot: u64,
        awaited: &Awaited,
        stores: &Stores,
    ) -> Wake {
        let Some(home) = self.home_elsewhere(awaited.sample()) else {
            let is_forsaken = self.dealings.is_some() && self.is_forsaken(awaited.sample());
            return if is_forsaken {
                self.give_up_awaited(awaited.sample(), slot, false, stores)
            } else {
                Wake::NOBODY
            };
        };
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let sample = awaited.sample();
        let bringer = self.course.desk.bringer(sample);
        if bringer.is_some_and(|bringer| dealings.asked.is_mute(bringer)) {
            // Nobody brings it there but who reads it now.
            return self.give_up_awaited(sample, slot, true, stores);
        }
        let purpose = Purpose::Awaited { slot };
        match dealings
            .asked
            .ask(home.rank, sample, awaited.bytes(), purpose)
        {
            Ok(ask) => {
                dealings.send(home.rank, Message::Ask(ask));
                Wake::NOBODY
            }
            Err(NotAsked::Mute(_) | NotAsked::Refused(_)) => {
                self.give_up_awaited(sample, slot, false, stores)
            }
        }
    }

    /// A sample that is at its home elsewhere is asked for.
    pub(super) fn ask_for(
        &mut self,
        rank: Rank,
        slot: u64,
        read: Read,
        part: Option<Decoded>,
        stores: &Stores,
    ) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            unreachable!("sample {}: a plan without peers has none", read.sample)
        };
        let purpose = Purpose::AtHome { slot, read, part };
        match dealings.asked.ask(rank, read.sample, read.bytes, purpose) {
            Ok(ask) => {
                dealings.send(rank, Message::Ask(ask));
                Wake::NOBODY
            }
            Err(NotAsked::Mute(purpose) | NotAsked::Refused(purpose)) => {
                self.read_instead(purpose, read.sample, false, stores)
            }
        }
    }

    /// A peer has answered.
    pub(super) fn answered(&mut self, from: Rank, answer: Answer, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let answered = dealings.asked.answered(from, answer);
        self.conclude(answered, stores)
    }

    /// A request could not be sent.
    pub(super) fn not_sent(&mut self, ticket: Ticket, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let answered = dealings.asked.refuse(ticket);
        self.conclude(answered, stores)
    }

    fn conclude(&mut self, answered: Answered<Purpose>, stores: &Stores) -> Wake {
        match answered {
            Answered::Came(request, payload) => self.came_from_peer(request, payload, stores),
            Answered::Refused { request, hand_over } => {
                self.course.desk.see(request.sample, false);
                self.read_instead(request.purpose, request.sample, hand_over, stores)
            }
            Answered::Ignored => Wake::NOBODY,
        }
    }

    fn came_from_peer(
        &mut self,
        request: Request<Purpose>,
        payload: Payload,
        stores: &Stores,
    ) -> Wake {
        let sample = request.sample;
        self.course.desk.see(sample, true);
        match request.purpose {
            Purpose::AtHome { slot, read, part } => {
                self.begin_resumed(slot, read, part, Supply::Here(payload), stores)
            }
            Purpose::Awaited { slot } => {
                let Some(waiting) = self.course.awaiting.take_slot(sample, slot) else {
                    return Wake::NOBODY;
                };
                if let Some(read) = self.course.desk.resume(&waiting.awaited) {
                    let supply = Supply::Here(payload);
                    return self.begin_resumed(slot, read, waiting.part, supply, stores);
                }
                // This rank reads it itself at present; that wakes the slot.
                self.course.awaiting.insert(waiting);
                Wake::NOBODY
            }
        }
    }

    /// A sample does not come from its home: it is read from the source, and handed to its home if that helps.
    fn read_instead(
        &mut self,
        purpose: Purpose,
        sample: SampleId,
        hand_over: bool,
        stores: &Stores,
    ) -> Wake {
        match purpose {
            Purpose::Awaited { slot } => self.give_up_awaited(sample, slot, hand_over, stores),
            Purpose::AtHome { slot, read, part } => {
                let home = self.home_elsewhere(sample).filter(|_| hand_over);
                self.begin_resumed(slot, read, part, Supply::Source(home), stores)
            }
        }
    }

    fn give_up_awaited(
        &mut self,
        sample: SampleId,
        slot: u64,
        hand_over: bool,
        stores: &Stores,
    ) -> Wake {
        let Some(waiting) = self.course.awaiting.take_slot(sample, slot) else {
            return Wake::NOBODY;
        };
        let Waiting { awaited, part, .. } = waiting;
        let read = self.course.desk.give_up(&awaited);
        let home = read.hand_over.filter(|_| hand_over);
        if home.is_some() {
            // It will be there, or is refused there once more.
            self.course.desk.see(sample, true);
        }
        self.begin_resumed(slot, read, part, Supply::Source(home), stores)
    }

    /// A deadline of something that was to come from a rank has passed, or the rank is lost: all that is to come from it is
    /// given up, and nothing is awaited from it until it is heard again. So it costs one deadline, not one a sample.
    pub(super) fn expired(&mut self, rank: Rank, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let asked_of_it = dealings.asked.expired(rank);
        let desk = &self.course.desk;
        let brings = |sample| desk.bringer(sample) == Some(rank);
        // Who was asked for these waits for it, too.
        let to_be_brought = dealings.asked.withdraw(|request| {
            matches!(request.purpose, Purpose::Awaited { .. }) && brings(request.sample)
        });
        for (_, to) in dealings.parked.take_where(brings) {
            dealings.refuse(to);
        }
        let own = self.course.awaiting.slots_where(|sample| {
            brings(sample)
                && desk
                    .home(sample)
                    .is_some_and(|home| home.rank == dealings.rank)
        });
        let mut wake = Wake::NOBODY;
        for request in asked_of_it {
            wake |= self.read_instead(request.purpose, request.sample, false, stores);
        }
        for request in to_be_brought {
            wake |= self.read_instead(request.purpose, request.sample, true, stores);
        }
        for (sample, slot) in own {
            wake |= self.give_up_awaited(sample, slot, false, stores);
        }
        wake
    }

    /// A rank is gone: nobody is left to answer.
    pub(super) fn lost_rank(&mut self, rank: Rank, stores: &Stores) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.parked.forget(rank);
        }
        self.expired(rank, stores)
    }

    /// What the trainer stands at, if that is to come from peers: the slot, and whose silence it is, if that is known. A
    /// holder that was heard since it was asked waits itself, for who is to bring the sample.
    pub(super) fn stands_at(&self) -> Option<(u64, Option<Rank>)> {
        let first = self.course.slots.first();
        let dealings = self.dealings.as_ref()?;
        let mut open = dealings.asked.open();
        let asked = open.find(|(_, request)| request.purpose.slot() == first);
        if let Some((ticket, request)) = asked {
            let is_parked = dealings.asked.is_heard_since(request.rank, ticket);
            let bringer = self.silent_bringer(request.sample);
            let silent = bringer.filter(|_| is_parked).unwrap_or(request.rank);
            return Some((first, Some(silent)));
        }
        let sample = self.course.awaiting.sample_at(first)?;
        let comes_from_here = self.course.desk.is_being_read(sample);
        (!comes_from_here).then(|| (first, self.silent_bringer(sample)))
    }

    /// Who is to bring a sample, if it has not been given up already.
    fn silent_bringer(&self, sample: SampleId) -> Option<Rank> {
        let dealings = self.dealings.as_ref()?;
        let bringer = self.course.desk.bringer(sample)?;
        (!dealings.asked.is_mute(bringer)).then_some(bringer)
    }

    /// Nobody hands over the sample that the trainer stands at.
    pub(super) fn give_up_head(&mut self, stores: &Stores) -> Wake {
        let first = self.course.slots.first();
        match self.course.awaiting.sample_at(first) {
            Some(sample) => self.give_up_awaited(sample, first, false, stores),
            None => Wake::NOBODY,
        }
    }

    /// A peer asks for a sample: it is answered at once, parked until the sample arrives, or refused.
    pub(super) fn asked_by(&mut self, from: Rank, ask: Ask) -> Wake {
        let here = self.home_here(ask.sample);
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        dealings.asked.heard(from);
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
    fn is_forsaken(&self, sample: SampleId) -> bool {
        let Some(dealings) = &self.dealings else {
            return true;
        };
        let desk = &self.course.desk;
        let bringer = desk.bringer(sample);
        let is_silent = bringer.is_some_and(|bringer| dealings.asked.is_mute(bringer));
        dealings.missing.contains(&sample) || (is_silent && !desk.is_being_read(sample))
    }

    /// Parks a request, unless its asker has too many here.
    fn is_busy_with(&mut self, sample: SampleId, to: Parker) -> bool {
        let dealings = self.dealings.as_mut();
        dealings.is_none_or(|dealings| dealings.parked.park(sample, to) == Parking::Busy)
    }

    fn refuse(&mut self, to: Parker) {
        if let Some(dealings) = &mut self.dealings {
            dealings.refuse(to);
        }
    }

    /// A sample has arrived at its home here, or will not: who asked for it is told.
    pub(super) fn tell_parked(&mut self, sample: SampleId, tier: TierId, arrived: bool) {
        if self.home_here(sample) != Some(tier) {
            return;
        }
        let Some(dealings) = &mut self.dealings else {
            return;
        };
        if arrived {
            dealings.missing.remove(&sample);
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

    /// A peer has handed over a sample that lives here, and whether it could be kept; or it could not read it.
    pub(super) fn handed_over(
        &mut self,
        from: Rank,
        sample: SampleId,
        tier: TierId,
        kept: bool,
        stores: &Stores,
    ) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.asked.heard(from);
        }
        if kept {
            self.course.desk.arrive(sample, tier);
        } else if !self.course.desk.is_here(sample, tier) {
            self.course.desk.lost(sample, tier);
        }
        let is_here = self.course.desk.is_here(sample, tier);
        self.tell_parked(sample, tier, is_here);
        self.resume(sample, stores) | self.wants.happened()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::Duration;

    use foresee_core::stream::Shuffle;

    use super::*;
    use crate::job::tests::{SAMPLE, SAMPLES, spec};
    use crate::job::{Asked as Got, Job, JobSpec};
    use crate::source::{ReadError, Source};
    use crate::stamp::Stamp;
    use crate::transport::memory::Network;

    const EPOCHS: u32 = 3;
    const MINUTE: Duration = Duration::from_secs(60);

    /// Samples that are full of their number, and how often one was read.
    #[derive(Default)]
    struct Counted(AtomicU64);

    impl Source for Counted {
        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            into.fill(sample.0 as u8);
            Ok(None)
        }

        fn name(&self, sample: SampleId) -> String {
            format!("number {sample}")
        }
    }

    fn rank_of(rank: u32, ranks: u32, kept: u64, source: &Arc<Counted>) -> JobSpec {
        let mut spec = spec();
        spec.source = Arc::<Counted>::clone(source);
        spec.shuffle = Shuffle::Torch { seed: 7 };
        spec.epochs = EPOCHS;
        spec.rank = rank;
        spec.world = ranks;
        spec.config.tiers[0].capacity_bytes = kept * SAMPLE;
        // Jobs of one process that have the same configuration live on one budget; ranks do not.
        spec.config.staging.capacity_bytes += u64::from(rank);
        spec
    }

    /// Samples of an epoch, of all ranks.
    fn delivered(job: &Job) -> BTreeMap<u32, Vec<u32>> {
        let mut epochs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        loop {
            let batch = match job.next_batch(MINUTE).unwrap() {
                Got::Batch(batch) => batch,
                Got::NotYet => panic!("a minute is enough: {}", job.stats()),
                Got::End => return epochs,
            };
            for sample in batch.samples.iter().filter(|sample| !sample.padded) {
                assert_eq!(sample.lease.bytes(), [sample.id.0 as u8; SAMPLE as usize]);
                epochs.entry(batch.epoch).or_default().push(sample.id.0);
            }
        }
    }

    /// Reads of the source by ranks that keep so many samples each.
    fn reads(ranks: u32, kept: u64) -> u64 {
        let source = Arc::new(Counted::default());
        let network = Network::new(ranks);
        let all_done = Barrier::new(ranks as usize);
        let parts = thread::scope(|scope| {
            let ends = (0..ranks).zip(network.ends());
            let threads: Vec<_> = ends
                .map(|(rank, end)| {
                    let spec = rank_of(rank, ranks, kept, &source);
                    let transport = Arc::new(end);
                    let all_done = &all_done;
                    scope.spawn(move || {
                        let job = Job::among(spec, transport).unwrap();
                        let epochs = delivered(&job);
                        all_done.wait();
                        epochs
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect::<Vec<_>>()
        });
        for epoch in 0..EPOCHS {
            let mut got: Vec<u32> = parts.iter().flat_map(|part| part[&epoch].clone()).collect();
            got.sort_unstable();
            assert_eq!(got, (0..SAMPLES).collect::<Vec<_>>(), "epoch {epoch}");
        }
        source.0.load(Ordering::Relaxed)
    }

    #[test]
    fn ranks_that_hold_all_together_read_each_sample_once() {
        let samples = u64::from(SAMPLES);
        for ranks in [2, 4] {
            assert_eq!(reads(ranks, samples / u64::from(ranks)), samples);
        }
    }

    #[test]
    fn what_nobody_holds_is_read_again_in_each_epoch_and_nothing_else() {
        let samples = u64::from(SAMPLES);
        let kept_each = 6;
        let uncovered = samples - 2 * kept_each;
        let minimum = samples + u64::from(EPOCHS - 1) * uncovered;
        assert_eq!(reads(2, kept_each), minimum);
    }

    #[test]
    fn a_rank_that_dies_costs_reads_of_the_source_and_no_sample() {
        let source = Arc::new(Counted::default());
        let network = Network::new(2);
        let mut ends = network.ends().into_iter();
        let mut jobs = (0..2).map(|rank| {
            let spec = rank_of(rank, 2, u64::from(SAMPLES), &source);
            let transport = Arc::new(ends.next().unwrap());
            Job::among(spec, transport).unwrap()
        });
        let living = jobs.next().unwrap();
        let dying = jobs.next().unwrap();
        // They meet when both ask.
        thread::scope(|scope| {
            for job in [&living, &dying] {
                scope.spawn(|| assert!(matches!(job.next_batch(MINUTE), Ok(Got::Batch(_)))));
            }
        });
        network.kill(Rank(1));
        drop(dying);
        let own: usize = delivered(&living).values().map(Vec::len).sum();
        let all = SAMPLES as usize / 2 * EPOCHS as usize;
        assert_eq!(own, all - 2, "two came before");
    }
}
