//! What loader threads do: take a read, do it, bring it in. The lock is held before and after a read, never during it.

use crate::sync::atomic::Ordering;
use crate::sync::thread;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::OneLine;
use foresee_core::engine::Read;
use foresee_core::ids::{Epoch, SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::tally::Event;
use foresee_core::units::{Bytes, Seconds};
use foresee_image::Scratch;

use super::Shared;
use super::spec::OnError;
use super::state::{Call, Failure, Raw, Slot, Staged, State, Task, Way};
use crate::arena::{Part, Piece};
use crate::pool::Work;
use crate::source::ReadError;
use crate::stamp::Stamp;
use crate::thread_time::ThreadTime;
use crate::tier::{Arrived, Found, Kept, Tier, TierError};

/// A storage that stumbles gets this many more chances, each after a longer pause.
const TRIES_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_FACTOR: u32 = 5;

/// How many samples are tried in the place of one that cannot be read.
const SUBSTITUTES_MAX: u64 = 1000;

/// Of so many reads one is measured, after the first ones.
const MEASURE_EVERY: u64 = 4;
const MEASURE_FIRST: u64 = 32;

impl Work for Shared {
    fn work(&self) -> bool {
        self.guarded(|| self.work_on()).unwrap_or(false)
    }

    fn urgency(&self) -> f64 {
        if self.waiting.load(Ordering::Relaxed) {
            return -1.0;
        }
        let staged = self.state.try_lock().map_or(0, |state| state.slots.len());
        staged as f64
    }

    fn share(&self, jobs: usize) {
        self.limit_staging(jobs);
    }

    fn budget(&self) -> &foresee_config::Config {
        &self.spec.config
    }
}

impl Shared {
    /// Does something that may panic: that is a defect, and ends the job, but neither the thread nor the program.
    fn guarded<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.map_err(|cause| {
            let said = cause.downcast_ref::<String>().cloned();
            let said = said.or_else(|| cause.downcast_ref::<&str>().map(|&said| said.to_owned()));
            let mut state = self.state();
            state.close();
            state.defect = Some(said.unwrap_or_else(|| "for no known reason".to_owned()));
            drop(state);
            self.ready.notify_all();
        })
        .ok()
    }

    fn work_on(&self) -> bool {
        let mut state = self.state();
        let mut did = false;
        loop {
            let events = state.events;
            let task = state.take_task(&self.stores);
            let (more, woken) = (task.is_some() && state.has_more(), state.events != events);
            drop(state);
            if woken {
                self.wake_trainer();
            }
            if more {
                self.pool.signal();
            }
            let Some(task) = task else { return did };
            state = self.perform(task);
            did = true;
            if self.pool.is_shared() {
                // Somebody else may be more urgent.
                return did;
            }
        }
    }
}

/// A read that was done.
struct Done {
    began: Instant,
    /// When its bytes were there, and when it was decoded.
    fetched: Instant,
    ready: Instant,
    origin: Origin,
    lost_from: Option<TierId>,
    /// Whether a tier held what the sample was before.
    stale: bool,
    /// What the sample was in the source when it was read there.
    stamp: Option<Stamp>,
    retries: u32,
    /// Time the thread slept, if it was measured.
    slept_s: Option<f64>,
}

impl Done {
    /// A read of what is in memory.
    fn at_once(now: Instant, origin: Origin) -> Self {
        Self {
            began: now,
            fetched: now,
            ready: now,
            origin,
            lost_from: None,
            stale: false,
            stamp: None,
            retries: 0,
            slept_s: None,
        }
    }

    fn staged(&self, piece: Piece, sample: SampleId) -> Staged {
        Staged {
            piece,
            sample,
            origin: self.origin,
            fetched: self.fetched,
            ready: self.ready,
        }
    }
}

/// What a loader thread keeps for itself between two reads.
#[derive(Default)]
struct Bench {
    /// A sample that is only decoded.
    raw: Vec<u8>,
    image: Scratch,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

impl Shared {
    /// Does a read, decodes what came, and brings it in.
    fn perform(&self, mut task: Task) -> crate::sync::MutexGuard<'_, State> {
        let measured = self.measure();
        let state = BENCH.with_borrow_mut(|bench| {
            let (mut done, read) = self.fetch(&mut task, &mut bench.raw);
            let read = read.and_then(|()| self.decode(&mut task, bench));
            done.ready = Instant::now();
            done.slept_s = measured.map(|before| before.slept_s(done.ready - done.began));
            match read {
                Ok(()) => self.bring_in(task, &done, &bench.raw),
                Err(cause) => self.fail(task, &done, cause, bench),
            }
        });
        self.wake_trainer();
        state
    }

    /// Does a read for the trainer, in its own thread: once, so that it stays awake to its user. What cannot be had at once is
    /// left to the loader threads, and after a failure so are reads from now on.
    pub(super) fn help(&self, mut task: Task) {
        // A defect is noted; whoever asks next is told.
        let _ = self.guarded(|| {
            let Raw::Fill(filling) = &mut task.raw else {
                unreachable!("samples that are decoded are not the trainer's")
            };
            let (measured, began) = (self.measure(), Instant::now());
            let (sample, into) = (task.read.sample, filling.bytes_mut());
            let mut stamp = None;
            let found = match task.way {
                Way::Tier(tier) => {
                    let tier = self.stores.tier(tier);
                    if self.is_known_at_once(tier, sample) {
                        tier.read_at_once(sample, into)
                            .map_err(|error| error.cause.into())
                    } else {
                        Ok(false)
                    }
                }
                Way::Source => {
                    let read = self.spec.source.read(sample, into);
                    read.map(|found| {
                        stamp = found;
                        true
                    })
                }
            };
            let ready = Instant::now();
            let slept_s = measured.map(|before| before.slept_s(ready - began));
            let done = Done {
                began,
                stamp,
                slept_s,
                ..Done::at_once(ready, task.way.origin())
            };
            if matches!(found, Ok(true)) {
                drop(self.bring_in(task, &done, &[]));
                return;
            }
            let mut state = self.state();
            if found.is_err() {
                state.lanes.doubt_quickness();
            }
            state.put_back(task);
            drop(state);
            self.pool.signal();
        });
    }

    /// The trainer has taken something or given it back: there is room again, or more to read.
    pub(super) fn go_on(&self, state: crate::sync::MutexGuard<'_, State>) {
        let call = state.calls();
        drop(state);
        match call {
            Call::Nobody => {}
            Call::One => self.pool.signal_once(),
            Call::Another => self.pool.signal(),
        }
    }

    /// Begins to measure a read, if it is one of those that are.
    fn measure(&self) -> Option<ThreadTime> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        (read < MEASURE_FIRST || read.is_multiple_of(MEASURE_EVERY)).then(ThreadTime::now)
    }

    /// Wakes the trainer if it sleeps; it looks for itself whether anything happened that it waits for.
    fn wake_trainer(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.ready.notify_one();
        }
    }

    /// Reads a sample: from its tier, if that has it and it is what the sample is, else from the source.
    fn fetch(&self, task: &mut Task, buffer: &mut Vec<u8>) -> (Done, Result<(), ReadError>) {
        let mut done = Done::at_once(Instant::now(), task.way.origin());
        let into = match &mut task.raw {
            Raw::Fill(filling) => filling.bytes_mut(),
            Raw::Passing => {
                buffer.resize(task.read.bytes.0 as usize, 0);
                buffer
            }
            Raw::Held(_) => return (done, Ok(())),
        };
        let read = match task.way {
            Way::Tier(tier) => self.fetch_from_tier(tier, task.read.sample, into, &mut done),
            Way::Source => self.fetch_from_source(task.read.sample, into, &mut done),
        };
        done.fetched = Instant::now();
        done.ready = done.fetched;
        (done, read)
    }

    fn fetch_from_source(
        &self,
        sample: SampleId,
        into: &mut [u8],
        done: &mut Done,
    ) -> Result<(), ReadError> {
        let (read, retries) = self.read_source(sample, into);
        (done.origin, done.retries) = (Origin::Source, retries);
        done.stamp = read?;
        Ok(())
    }

    /// What a tier lost is read from the source; what it holds of another time is replaced, too.
    fn fetch_from_tier(
        &self,
        tier: TierId,
        sample: SampleId,
        into: &mut [u8],
        done: &mut Done,
    ) -> Result<(), ReadError> {
        let store = self.stores.tier(tier);
        if !self.is_known(store, sample) {
            done.stale = true;
            self.fetch_from_source(sample, into, done)?;
            if !self.is_kept(sample, store.keep(sample, into, done.stamp)) {
                done.lost_from = Some(tier);
            }
            return Ok(());
        }
        let found = store.read(sample, into);
        if let Err(error) = &found {
            tracing::warn!("{error}; reading from the source");
        }
        if matches!(found, Ok(Found::Yes)) {
            return Ok(());
        }
        done.lost_from = Some(tier);
        self.fetch_from_source(sample, into, done)
    }

    /// Whether what a tier holds of a sample is known to be what the source has, or had during this job; looks there the
    /// first time, if it may be of an earlier one. What cannot be looked at is read: that says why.
    fn is_known(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        if !self.is_look_due(tier, sample) {
            return true;
        }
        let began = Instant::now();
        let now = self.spec.source.look(sample);
        self.looks.took(began.elapsed());
        let known = match now {
            Ok(Some(now)) => tier.is_current(sample, &now),
            Ok(None) => true,
            Err(_) => false,
        };
        if known {
            self.looks.note(sample);
        }
        known
    }

    /// The same for the trainer, which looks only where that has been quick.
    fn is_known_at_once(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        !self.is_look_due(tier, sample) || (self.looks.are_quick() && self.is_known(tier, sample))
    }

    fn is_look_due(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        tier.outlasts_jobs() && self.looks.are_due(sample)
    }

    /// Makes of a sample what the trainer wants of it, in its place in the batch.
    fn decode(&self, task: &mut Task, bench: &mut Bench) -> Result<(), ReadError> {
        let (Some(images), Some((part, epoch))) = (&self.spec.images, &mut task.part) else {
            return Ok(());
        };
        let raw = bytes_of(&task.raw, &bench.raw);
        let key = images.key(*epoch, task.read.sample);
        Ok(images
            .pipeline
            .run(raw, key, &mut bench.image, part.bytes_mut())?)
    }

    /// Reads a sample from the source that the engine knows nothing of, and counts it.
    pub(super) fn read_counted(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> (Result<Option<Stamp>, ReadError>, u32) {
        let began = Instant::now();
        let (read, retries) = self.read_source(sample, into);
        if read.is_ok() {
            let (bytes, took) = (
                Bytes(into.len() as u64),
                Seconds(began.elapsed().as_secs_f64()),
            );
            self.state().tally.record(Event::Read {
                origin: Origin::Source,
                bytes,
                took,
            });
        }
        (read, retries)
    }

    /// Reads a sample from the source; what may pass is tried again.
    pub(super) fn read_source(
        &self,
        sample: SampleId,
        into: &mut [u8],
    ) -> (Result<Option<Stamp>, ReadError>, u32) {
        let mut pause = PAUSE_FIRST;
        let mut tries = 0;
        loop {
            match self.spec.source.read(sample, into) {
                Err(error) if error.is_transient() && tries < TRIES_MAX && !self.is_closed() => {
                    let name = OneLine(self.spec.source.name(sample));
                    tracing::debug!("sample {sample} ({name}): {error}; trying again");
                    thread::sleep(pause);
                    pause *= PAUSE_FACTOR;
                    tries += 1;
                }
                outcome => {
                    if outcome.as_ref().is_err_and(ReadError::is_other_size) {
                        self.forget_catalog();
                    }
                    return (outcome, tries);
                }
            }
        }
    }

    /// A sample has another size than the catalog says. The next start lists again, and so does this one if it can.
    fn forget_catalog(&self) {
        if !self.void.swap(true, Ordering::Relaxed)
            && let Some(dataset) = self.spec.source.dataset()
        {
            dataset.forget();
        }
    }

    /// A sample has come. `buffer` has its bytes where they are nowhere else.
    fn bring_in(
        &self,
        task: Task,
        done: &Done,
        buffer: &[u8],
    ) -> crate::sync::MutexGuard<'_, State> {
        let Task {
            generation,
            lane,
            place,
            read,
            raw,
            part,
            ..
        } = task;
        let block = match raw {
            Raw::Fill(filling) => Some(filling.share()),
            Raw::Held(block) => Some(block),
            Raw::Passing => None,
        };
        let arrived = block
            .as_ref()
            .map_or(Arrived::Buffer(buffer), Arrived::Block);
        // Before the trainer has it, who may change it.
        let to_keep = read.keep.map(|tier| {
            let tier = self.stores.tier(tier);
            (tier, tier.secure(arrived))
        });
        let mut state = self.state();
        self.account(&mut state, &read, done);
        if state.generation != generation {
            state.lanes.end(lane);
            return state;
        }
        let whole = || block.clone().map(Piece::whole);
        if let Some((place, piece)) = place.zip(part.map(|(part, _)| part.share()).or_else(whole)) {
            state.settle_slot(place, Slot::Ready(done.staged(piece, read.sample)));
        }
        let Some((tier, secured)) = to_keep else {
            state.complete(&read, true);
            state.lanes.end(lane);
            return state;
        };
        let keep = || {
            let kept = tier.keep_secured(read.sample, arrived, secured, done.stamp);
            self.is_kept(read.sample, kept)
        };
        let kept = if tier.writes_files() {
            state.keeping += 1;
            drop(state);
            self.wake_trainer();
            let kept = keep();
            state = self.state();
            state.keeping -= 1;
            if state.keeping == 0 {
                self.ready.notify_all();
            }
            kept
        } else {
            keep()
        };
        state.lanes.end(lane);
        if state.generation == generation {
            state.complete(&read, kept);
        }
        // Whoever waited for it to arrive can go on.
        self.pool.signal();
        state
    }

    fn account(&self, state: &mut State, read: &Read, done: &Done) {
        let took = Seconds((done.fetched - done.began).as_secs_f64());
        state.tally.record(Event::Read {
            origin: done.origin,
            bytes: read.bytes,
            took,
        });
        state.counts.retries += u64::from(done.retries);
        state.counts.stale += u64::from(done.stale);
        if let Some(tier) = done.lost_from {
            state.lost(read.sample, tier);
        }
        if let Some(slept_s) = done.slept_s {
            let threads = state.lanes.most();
            state
                .lanes
                .learn((done.ready - done.began).as_secs_f64(), slept_s);
            if state.lanes.most() > threads {
                self.pool
                    .grow(std::ptr::from_ref(self).cast(), state.lanes.most());
                self.pool.signal();
            }
        }
        if let Some(trace) = &self.trace {
            trace.read(read, done.origin, took);
        }
    }

    /// A sample could not be read or decoded.
    fn fail(
        &self,
        task: Task,
        done: &Done,
        cause: ReadError,
        bench: &mut Bench,
    ) -> crate::sync::MutexGuard<'_, State> {
        let Task {
            generation,
            lane,
            place,
            read,
            mut part,
            ..
        } = task;
        let instead = match self.spec.on_error {
            // Before the first batch all files are measured again.
            OnError::Skip
                if place.is_some()
                    && !(cause.is_other_size() && self.state().counts.batches == 0) =>
            {
                self.substitute(read.sample, &cause, &mut part, &mut bench.image)
            }
            OnError::Skip | OnError::Raise => None,
        };
        let mut state = self.state();
        state.lanes.end(lane);
        if state.generation != generation {
            return state;
        }
        state.counts.retries += u64::from(done.retries);
        state.complete(&read, false);
        if let Some(place) = place {
            let slot = match instead {
                Some((other, piece)) => {
                    state.counts.skipped += 1;
                    Slot::Ready(done.staged(piece, other))
                }
                None => Slot::Failed(Failure {
                    sample: read.sample,
                    cause: Arc::new(cause),
                    part,
                }),
            };
            state.settle_slot(place, slot);
            state.events += 1;
        }
        self.pool.signal();
        state
    }

    /// Whether a tier has what was read during this job.
    fn is_kept(&self, sample: SampleId, outcome: Result<Kept, TierError>) -> bool {
        match outcome {
            Ok(Kept::Yes) => {
                self.looks.note(sample);
                true
            }
            Ok(Kept::NoRoom) => false,
            Err(error) => {
                tracing::warn!("{error}; going on without");
                false
            }
        }
    }

    /// The next sample of the catalog that can be read: the same on every rank and in every run.
    pub(super) fn substitute(
        &self,
        sample: SampleId,
        cause: &ReadError,
        part: &mut Option<(Part, Epoch)>,
        image: &mut Scratch,
    ) -> Option<(SampleId, Piece)> {
        for (_, other) in self.others(sample, 0) {
            if let (Ok(piece), _) = self.read_alone(other, part, image) {
                let name = OneLine(self.spec.source.name(sample));
                tracing::warn!("sample {sample} ({name}): {cause}; sample {other} is in its place");
                return Some((other, piece));
            }
        }
        None
    }

    /// What may take the place of a sample, after `tried` that could not, each with how many were tried with it.
    pub(super) fn others(
        &self,
        sample: SampleId,
        tried: u64,
    ) -> impl Iterator<Item = (u64, SampleId)> + use<> {
        let samples = u64::from(self.spec.catalog.len());
        let steps = tried.saturating_add(1)..samples.min(SUBSTITUTES_MAX);
        steps.map(move |step| {
            (
                step,
                SampleId(((u64::from(sample.0) + step) % samples) as u32),
            )
        })
    }

    /// Reads one sample from the source into memory of its own, or decodes it into its place in the batch. Also tells how
    /// often it was tried again.
    pub(super) fn read_alone(
        &self,
        sample: SampleId,
        part: &mut Option<(Part, Epoch)>,
        image: &mut Scratch,
    ) -> (Result<Piece, ReadError>, u32) {
        let mut filling = self
            .stores
            .arena
            .own(self.spec.catalog.size(sample).0 as usize);
        let (read, retries) = self.read_counted(sample, filling.bytes_mut());
        if let Err(error) = read {
            return (Err(error), retries);
        }
        let Some(images) = &self.spec.images else {
            return (Ok(Piece::whole(filling.share())), retries);
        };
        let Some((mut place, epoch)) = part.take() else {
            return (Err(ReadError::Empty), retries);
        };
        let key = images.key(epoch, sample);
        match images
            .pipeline
            .run(filling.bytes(), key, image, place.bytes_mut())
        {
            Ok(()) => (Ok(place.share()), retries),
            Err(error) => {
                *part = Some((place, epoch));
                (Err(error.into()), retries)
            }
        }
    }
}

/// What a task has read.
fn bytes_of<'a>(raw: &'a Raw, buffer: &'a [u8]) -> &'a [u8] {
    match raw {
        Raw::Fill(filling) => filling.bytes(),
        Raw::Held(block) => block.bytes(),
        Raw::Passing => buffer,
    }
}
