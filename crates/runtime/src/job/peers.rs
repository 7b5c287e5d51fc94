//! The asker's side of a rank's dealings with its peers: it asks for samples that have their home elsewhere, and decides what
//! becomes of those that do not come.
//!
//! A sample with its home elsewhere is asked for as soon as it has its slot, also before it can be there: the holder parks
//! the request. Its answer is memory of its own, so one that comes too late, or twice, writes nowhere. What is refused, or
//! given up because its rank is mute, is read from the source. A rank that is mute brings nothing either: what it was to hand
//! over is given up by who awaits it, and refused by who should have it.
//!
//! A rank that is heard but behind its time is slow, not mute: what it is to bring is read in its stead, handed to its home,
//! and the home tells it that it need not (`holding`). So a slow rank costs neither data nor reads, and one deadline first.

use std::time::Duration;

use foresee_core::engine::{Awaited, Read};
use foresee_core::homes::Home;
use foresee_core::ids::{Rank, SampleId};

use super::awaiting::Waiting;
use super::dealings::{Errand, Purpose, Wanted};
use super::polling::Supply;
use super::slots::Decoded;
use super::state::State;
use super::stores::Stores;
use super::wake::Wake;
use crate::peers::{Answered, Request};
use crate::transport::{Answer, Payload, Ticket};

/// What the trainer stands at, where that is to come from peers.
pub(super) struct Standing {
    pub(super) slot: u64,
    /// Whose silence it is, if that is known.
    pub(super) rank: Option<Rank>,
    /// How long it is waited for.
    pub(super) patience: Duration,
}

/// Whose silence something is, if that is known.
struct Blamed(Option<Rank>);

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
            let of_slot = |request: &Request<Wanted>| request.purpose.purpose.slot() == Some(slot);
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

    /// An awaited sample that has its home elsewhere is asked for at once. One that nobody brings is given up.
    pub(super) fn ask_for_awaited(
        &mut self,
        slot: u64,
        awaited: &Awaited,
        stores: &Stores,
    ) -> Wake {
        let sample = awaited.sample();
        let Some(home) = self.home_elsewhere(sample) else {
            let is_forsaken = self.dealings.is_some() && self.is_forsaken(sample);
            return if is_forsaken {
                self.give_up_awaited(sample, slot, false, stores)
            } else {
                Wake::NOBODY
            };
        };
        if let Some(payload) = stores.near(home.rank, sample, awaited.bytes()) {
            // Nobody has to be asked.
            return self.awaited_came(sample, slot, payload, stores);
        }
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let bringer = self.course.desk.bringer(sample);
        if bringer.is_some_and(|bringer| dealings.asked.is_mute(bringer)) {
            // Nobody brings it there but who reads it now.
            return self.give_up_awaited(sample, slot, true, stores);
        }
        let purpose = Purpose::Awaited { slot };
        match dealings.ask(home.rank, sample, awaited.bytes(), purpose) {
            Ok(()) => Wake::NOBODY,
            Err(_) => self.give_up_awaited(sample, slot, false, stores),
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
        match dealings.ask(rank, read.sample, read.bytes, purpose) {
            Ok(()) => Wake::NOBODY,
            Err(purpose) => self.read_instead(purpose, read.sample, false, stores),
        }
    }

    /// A peer has answered.
    pub(super) fn answered(&mut self, from: Rank, answer: Answer, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        dealings.heard(from);
        let answer = dealings.looked_up(from, answer, stores);
        let garbled = dealings.asked.counts().garbled;
        let answered = dealings.asked.answered(from, answer);
        let garbled = dealings.asked.counts().garbled - garbled;
        dealings.peers[from.index()].faults.garbled += garbled;
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

    fn conclude(&mut self, answered: Answered<Wanted>, stores: &Stores) -> Wake {
        match answered {
            Answered::Came(request, payload) => self.came_from_peer(request, payload, stores),
            Answered::Refused { request, hand_over } => {
                let purpose = request.purpose.purpose;
                if let Purpose::Probe = purpose {
                    return Wake::NOBODY;
                }
                self.course.desk.see(request.sample, false);
                let hand_over = hand_over && self.course.desk.hands_over();
                self.read_instead(purpose, request.sample, hand_over, stores)
            }
            Answered::Ignored => Wake::NOBODY,
        }
    }

    fn came_from_peer(
        &mut self,
        request: Request<Wanted>,
        payload: Payload,
        stores: &Stores,
    ) -> Wake {
        let sample = request.sample;
        let Wanted { at, purpose } = request.purpose;
        if let Purpose::Probe = purpose {
            return Wake::NOBODY;
        }
        if let Some(dealings) = &mut self.dealings {
            let now = dealings.clock.now();
            dealings.times.add(now.saturating_duration_since(at));
        }
        match purpose {
            Purpose::Probe => Wake::NOBODY,
            Purpose::AtHome { slot, read, part } => {
                self.course.desk.see(sample, true);
                self.begin_resumed(slot, read, part, Supply::Here(payload), stores)
            }
            Purpose::Awaited { slot } => self.awaited_came(sample, slot, payload, stores),
        }
    }

    /// A sample that a slot waits for is at its home, and here, too.
    fn awaited_came(
        &mut self,
        sample: SampleId,
        slot: u64,
        payload: Payload,
        stores: &Stores,
    ) -> Wake {
        self.course.desk.see(sample, true);
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

    /// A sample does not come from its home: it is read from the source, and handed to its home if that helps.
    fn read_instead(
        &mut self,
        purpose: Purpose,
        sample: SampleId,
        hand_over: bool,
        stores: &Stores,
    ) -> Wake {
        match purpose {
            Purpose::Probe => Wake::NOBODY,
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

    /// The deadline of something that was to come from a rank has passed.
    pub(super) fn expired(&mut self, rank: Rank, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        if dealings.is_slow(rank) {
            return self.give_up_overdue(rank, stores);
        }
        dealings.falls_silent(rank, false);
        self.give_up_rank(rank, stores)
    }

    /// A rank is gone: nobody is left to answer.
    pub(super) fn lost_rank(&mut self, rank: Rank, stores: &Stores) -> Wake {
        if let Some(neighbours) = stores.arena.neighbours() {
            neighbours.lost(rank);
        }
        if let Some(dealings) = &mut self.dealings {
            dealings.parked.forget(rank);
            dealings.falls_silent(rank, true);
        }
        // Who lingers for it need not.
        self.give_up_rank(rank, stores) | self.wants.happened()
    }

    /// A rank that was lost is there again: it is asked as before.
    pub(super) fn found_rank(&mut self, rank: Rank) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.found(rank);
        }
        Wake::NOBODY
    }

    /// All that is to come from a rank is given up, and nothing is awaited from it until it is heard again. So it costs one
    /// deadline, not one a sample.
    fn give_up_rank(&mut self, rank: Rank, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let asked_of_it = dealings.asked.expired(rank);
        let desk = &self.course.desk;
        for (_, to) in dealings
            .parked
            .take_where(|sample| desk.bringer(sample) == Some(rank))
        {
            dealings.refuse(to);
        }
        let mut wake = Wake::NOBODY;
        for request in asked_of_it {
            wake |= self.read_instead(request.purpose.purpose, request.sample, false, stores);
        }
        wake | self.give_up_brought_by(rank, stores)
    }

    /// A rank is slow: what it was asked for longer ago than it is waited for, and what it is to bring, is read here.
    fn give_up_overdue(&mut self, rank: Rank, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let now = dealings.clock.now();
        let patience = dealings.patience(rank);
        let overdue = dealings.asked.give_up(|request| {
            request.rank == rank && now.saturating_duration_since(request.purpose.at) >= patience
        });
        let mut wake = Wake::NOBODY;
        for request in overdue {
            wake |= self.read_instead(request.purpose.purpose, request.sample, false, stores);
        }
        wake | self.give_up_brought_by(rank, stores)
    }

    /// What a rank is to bring is read here, and handed to its home.
    fn give_up_brought_by(&mut self, rank: Rank, stores: &Stores) -> Wake {
        let Some(dealings) = &mut self.dealings else {
            return Wake::NOBODY;
        };
        let desk = &self.course.desk;
        let brings = |sample| desk.bringer(sample) == Some(rank);
        // Who was asked for these waits for it, too.
        let to_be_brought = dealings.asked.give_up(|request| {
            let is_awaited = matches!(request.purpose.purpose, Purpose::Awaited { .. });
            is_awaited && brings(request.sample)
        });
        let own = self.course.awaiting.slots_where(|sample| {
            let home = desk.home(sample).map(|home| home.rank);
            brings(sample) && home == Some(dealings.rank) && !desk.is_being_read(sample)
        });
        let mut wake = Wake::NOBODY;
        for request in to_be_brought {
            wake |= self.read_instead(request.purpose.purpose, request.sample, true, stores);
        }
        for (sample, slot) in own {
            wake |= self.give_up_awaited(sample, slot, false, stores);
        }
        wake
    }

    /// What the trainer stands at, if that is to come from peers. A holder that was heard since it was asked waits itself, for
    /// who is to bring the sample.
    pub(super) fn stands_at(&self, forsaken: u32) -> Option<Standing> {
        let slot = self.course.slots.first();
        let dealings = self.dealings.as_ref()?;
        let Blamed(rank) = self.blamed_for(slot)?;
        let patience = rank.map_or_else(
            || dealings.patience_with_nobody(forsaken),
            |rank| dealings.patience(rank),
        );
        Some(Standing {
            slot,
            rank,
            patience,
        })
    }

    /// Whose silence it is that a slot is not filled, if it is to come from peers and that can be told.
    fn blamed_for(&self, slot: u64) -> Option<Blamed> {
        let dealings = self.dealings.as_ref()?;
        let mut open = dealings.asked.open();
        let asked = open.find(|(_, request)| request.purpose.purpose.slot() == Some(slot));
        if let Some((ticket, request)) = asked {
            let is_awaited = matches!(request.purpose.purpose, Purpose::Awaited { .. });
            let is_parked = is_awaited && dealings.asked.is_heard_since(request.rank, ticket);
            let bringer = self.silent_bringer(request.sample);
            let silent = bringer.filter(|_| is_parked).unwrap_or(request.rank);
            return Some(Blamed(Some(silent)));
        }
        let sample = self.course.awaiting.sample_at(slot)?;
        let comes_from_here = self.course.desk.is_being_read(sample);
        (!comes_from_here).then(|| Blamed(self.silent_bringer(sample)))
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::{self, Write};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;
    use std::time::Duration;

    use foresee_core::ids::TierId;
    use foresee_core::stream::Shuffle;
    use tracing::field::Field;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata};

    use super::*;
    use crate::job::serving::FromSource;
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

    /// What is said in this thread while something is done.
    fn said(act: impl FnOnce()) -> String {
        struct Ear(Arc<Mutex<String>>);
        impl tracing::Subscriber for Ear {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn event(&self, event: &Event<'_>) {
                let mut heard = self.0.lock().unwrap();
                event.record(&mut |_: &Field, value: &dyn fmt::Debug| {
                    let _ = writeln!(heard, "{value:?}");
                });
            }
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }
        let heard = Arc::<Mutex<String>>::default();
        tracing::subscriber::with_default(Ear(Arc::clone(&heard)), act);
        let heard = heard.lock().unwrap();
        heard.clone()
    }

    #[test]
    fn ranks_that_stop_before_their_end_do_not_say_that_something_is_read_again() {
        let source = Arc::new(Counted::default());
        let network = Network::new(2);
        let mut ends = network.ends().into_iter();
        let jobs: Vec<Job> = (0..2)
            .map(|rank| {
                let spec = rank_of(rank, 2, u64::from(SAMPLES) / 2, &source);
                Job::among(spec, Arc::new(ends.next().unwrap())).unwrap()
            })
            .collect();
        thread::scope(|scope| {
            for job in &jobs {
                scope.spawn(|| assert!(matches!(job.next_batch(MINUTE), Ok(Got::Batch(_)))));
            }
        });
        let [stays, leaves] = &jobs[..] else {
            unreachable!("two ranks")
        };
        leaves.close();
        // The other one has not heard of it, and has read something that lives there.
        let shared = stays.lock_running().clone().unwrap();
        let home = Home {
            rank: Rank(1),
            tier: TierId(0),
        };
        let read = FromSource {
            block: None,
            bytes: &[0; SAMPLE as usize],
            stamp: None,
        };
        shared.hand_over(home, SampleId(0), &read);
        assert!(shared.outbox.dropped() > 0, "nobody is there for it");
        assert_eq!(said(|| stays.close()), "");
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
