//! Handing samples over: the trainer's side of the staging buffer. What it asks for is taken in the order of the stream as
//! it arrives, kept until the batch is whole, and counted; the wait for it is blamed on what came last.

use crate::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use foresee_core::causes::Cause;
use foresee_core::ids::SampleId;
use foresee_core::model::Origin;
use foresee_core::stream::Mark;
use foresee_core::units::Seconds;
use foresee_image::Scratch;

use super::Job;
use super::consumer::{Consumer, Gathered, Verdict};
use super::course::OnDemand;
use super::error::JobError;
use super::gathering::Gathering;
use super::handed::{Ask, Batch, Prepared, Sample};
use super::lease::{Lease, Lender};
use super::shared::Shared;
use super::slots::Staged;
use super::spec::OnError;
use super::state::{Ended, State};
use super::wake::Wake;
use super::work::Worker;
use crate::host::Stepped;
use crate::source::ReadError;
use crate::tier::forbid_writes;

impl Job {
    /// Gathers what is asked for.
    pub(super) fn prepare_for(
        &self,
        consumer: &mut Consumer,
        ask: Ask,
        deadline: Instant,
    ) -> Result<Prepared, JobError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        if self.is_over(consumer, ask) {
            return Ok(Prepared::End);
        }
        loop {
            let Some(shared) = self.running(consumer, deadline)? else {
                return Ok(Prepared::NotYet);
            };
            let prepared = self.gather_for(consumer, &shared, ask, deadline);
            if !self.is_void(&shared) {
                return prepared;
            }
            let is_mended = self.measure_again(consumer, &shared)?;
            // From now on samples that cannot be read are skipped, if they are to be.
            let is_skipped = prepared.is_err() && shared.spec.on_error == OnError::Skip;
            if !is_mended && !is_skipped {
                return prepared;
            }
        }
    }

    /// Gathers what is asked for if all of it is staged; waits for nobody and reads nothing.
    pub(super) fn prepare_staged(&self, consumer: &mut Consumer, ask: Ask) -> bool {
        let is_settled =
            consumer.skip == 0 && !consumer.reported && !self.closed.load(Ordering::Relaxed);
        if !is_settled || self.is_over(consumer, ask) {
            return false;
        }
        let running = self.running.try_lock().ok();
        let Some(shared) = running.and_then(|running| running.clone()) else {
            return false;
        };
        if self.is_void(&shared) {
            return false;
        }
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        let bytes = shared.mean_bytes.saturating_mul(wanted as u64);
        let is_there = shared.change_at_once(|state| {
            let is_there = state.gather_at_once(&mut consumer.gathered, wanted);
            if is_there {
                state.serve(bytes);
            }
            (is_there, Wake::NOBODY)
        });
        let is_there = is_there.unwrap_or(false);
        if is_there {
            consumer.since.get_or_insert_with(Instant::now);
        }
        is_there
    }

    fn gather_for(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        ask: Ask,
        deadline: Instant,
    ) -> Result<Prepared, JobError> {
        let _trainer = forbid_writes();
        while consumer.skip > 0 {
            if !self.gather(consumer, shared, 1, deadline)? {
                return Ok(Prepared::NotYet);
            }
            shared.change(|state| ((), state.has_room_again()));
            for passed in consumer.gathered.drain(..) {
                drop(Lease::alone(shared, passed));
            }
            consumer.skip -= 1;
        }
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        let is_whole = self.gather(consumer, shared, wanted, deadline)?;
        Ok(if is_whole {
            Prepared::Ready
        } else {
            Prepared::NotYet
        })
    }

    /// Hands over what was gathered, if it is what is asked for.
    pub(super) fn taken(&self, consumer: &mut Consumer, ask: Ask) -> Option<Batch> {
        if self.is_over(consumer, ask) || consumer.skip > 0 {
            return None;
        }
        let shared = self.lock_running().clone()?;
        let wanted = consumer.wanted(shared.spec.rank(), ask);
        if consumer.gathered.len() < wanted || self.is_void(&shared) {
            return None;
        }
        Some(self.hand_over(consumer, &shared, wanted))
    }

    fn is_over(&self, consumer: &Consumer, ask: Ask) -> bool {
        let epoch = consumer.mark.epoch.0;
        epoch >= self.epochs() || ask.within.is_some_and(|within| epoch != within)
    }

    /// Takes the next samples until there are `wanted`; says no where the deadline passes before.
    fn gather(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        wanted: usize,
        deadline: Instant,
    ) -> Result<bool, JobError> {
        consumer.since.get_or_insert_with(Instant::now);
        if shared.on_demand {
            return self.gather_on_demand(consumer, shared, wanted, deadline);
        }
        if std::mem::take(&mut consumer.reported) {
            // Somebody may have mended it.
            self.mend(shared);
        }
        let bytes = shared.mean_bytes.saturating_mul(wanted as u64);
        let mut own = None;
        loop {
            let gathered = &mut consumer.gathered;
            let is_late = || Instant::now() >= deadline;
            let stores = &shared.stores;
            // What was read here is brought in and the next read is taken in one go, as threads do.
            let gathering = shared.change(|state| {
                let settled = state.settle_any(own.take(), stores);
                state.serve(bytes);
                let (gathering, wake) = state.gather(gathered, wanted, is_late, stores);
                (gathering, settled | wake)
            });
            match gathering {
                Gathering::Whole => return Ok(true),
                Gathering::Late => return Ok(false),
                Gathering::Own(fetch) => own = Worker::new(shared).help(fetch),
                Gathering::Wait(events) => {
                    let until = stand(consumer, shared, Instant::now());
                    let until = until.map_or(deadline, |until| until.min(deadline));
                    shared.sleep(until, |state| state.wants.events() != events);
                }
                Gathering::Broken(sample, cause) => {
                    if self.was_spared(shared, &cause) && self.mend(shared) {
                        continue;
                    }
                    consumer.reported = true;
                    return Err(self.broken(sample, cause));
                }
                Gathering::Ended(Ended::Closed) => return Err(JobError::Closed),
                Gathering::Ended(Ended::Defect(said)) => return Err(JobError::Defect(said)),
            }
        }
    }

    /// Tries the broken sample that is next once more.
    fn mend(&self, shared: &Shared) -> bool {
        let broken = shared.change(|state| (state.take_broken(), Wake::NOBODY));
        let Some(broken) = broken else {
            return false;
        };
        let tried = self.read_here(shared, broken);
        shared.change(|state| {
            let is_mended = tried.is_ok();
            match tried {
                Ok(staged) => state.course.slots.mend(staged),
                Err((broken, _)) => state.still_broken(broken.part),
            }
            (is_mended, Wake::NOBODY)
        })
    }

    /// Whether a sample is skipped now that was not while all files might have been measured again.
    fn was_spared(&self, shared: &Shared, cause: &ReadError) -> bool {
        shared.spec.on_error == OnError::Skip && cause.is_other_size() && !self.is_void(shared)
    }

    /// Reads the next samples here and now, as a loader without a staging buffer would.
    fn gather_on_demand(
        &self,
        consumer: &mut Consumer,
        shared: &Arc<Shared>,
        wanted: usize,
        deadline: Instant,
    ) -> Result<bool, JobError> {
        let before = consumer.gathered.len();
        while consumer.gathered.len() < wanted {
            // One at least, or a caller without patience would never get any.
            if consumer.gathered.len() > before && Instant::now() >= deadline {
                return Ok(false);
            }
            let next = shared.change(|state| {
                let next = state.next_on_demand(&shared.stores);
                ((next, state.course.number()), Wake::NOBODY)
            });
            let (Some(next), course) = next else {
                break;
            };
            match self.read_here(shared, next) {
                Ok(staged) => {
                    // The engine counts nothing that it did not stage.
                    consumer.gathered.push(Gathered::new(staged, course, 0..0));
                }
                Err((failed, cause)) => {
                    let sample = failed.sample;
                    shared.change(|state| {
                        // It comes first the next time.
                        state.course.on_demand = Some(failed);
                        ((), Wake::NOBODY)
                    });
                    return Err(self.broken(sample, Arc::new(cause)));
                }
            }
        }
        Ok(true)
    }

    /// Reads a sample in the trainer's own thread: one that was reported as broken, or is read on demand. Another one takes
    /// its place if it is to.
    fn read_here(
        &self,
        shared: &Shared,
        wanted: OnDemand,
    ) -> Result<Staged, (OnDemand, ReadError)> {
        let worker = Worker::new(shared);
        let OnDemand { sample, mut part } = wanted;
        let image = &mut Scratch::default();
        let (read, retries) = worker.read_alone(sample, &mut part, image);
        let read = match read {
            Ok(piece) => Ok((sample, piece)),
            Err(cause) => {
                let skips = shared.spec.on_error == OnError::Skip && !self.is_void(shared);
                let instead = if skips {
                    worker.substitute(sample, &cause, &mut part, image)
                } else {
                    None
                };
                instead.ok_or(cause)
            }
        };
        let is_skipped = matches!(&read, Ok((found, _)) if *found != sample);
        shared.change(|state| {
            state.ledger.counts.retries += u64::from(retries);
            state.ledger.counts.skipped += u64::from(is_skipped);
            ((), Wake::NOBODY)
        });
        let now = Instant::now();
        match read {
            Ok((sample, piece)) => Ok(Staged {
                piece,
                sample,
                origin: Origin::Source,
                fetched: now,
                ready: now,
            }),
            Err(cause) => Err((OnDemand { sample, part }, cause)),
        }
    }

    fn broken(&self, sample: SampleId, cause: Arc<ReadError>) -> JobError {
        let spec = self.spec();
        JobError::Sample {
            rank: spec.rank,
            sample,
            name: spec.source.name(sample),
            cause,
        }
    }

    /// Makes a batch of the first that were gathered, and steps on.
    fn hand_over(&self, consumer: &mut Consumer, shared: &Arc<Shared>, wanted: usize) -> Batch {
        let (number, step) = shared.change(|state| {
            let number = state.ledger.counts.batches;
            let step = self.count(consumer, state, wanted);
            ((number, step), state.has_room_again())
        });
        let stall_s = step.waited.0;
        if let Some(balancing) = &shared.balancing {
            balancing.stepped(number, step);
        }
        let Mark { epoch, step } = consumer.mark;
        let rank = shared.spec.rank();
        let first = consumer.index;
        let layout = &consumer.layout;
        let leases = Lender::new(shared, &consumer.gathered[..wanted]);
        let samples = consumer.gathered.drain(..wanted).zip(first..);
        let samples = samples.map(|(one, index)| Sample {
            id: one.sample,
            padded: layout.dealt(rank, step, index).padded,
            lease: leases.lend(one),
        });
        let batch = Batch {
            epoch: epoch.0,
            step: step.0,
            samples: samples.collect(),
        };
        consumer.pass(batch.samples.len() as u32, rank);
        self.note_place(consumer);
        if consumer.mark.epoch.0 >= self.epochs() {
            self.finish(shared);
        }
        if let Some(trace) = &shared.trace {
            trace.batch(batch.epoch, batch.step, batch.samples.len(), stall_s);
        }
        batch
    }

    /// Counts what is about to be handed over, and blames the wait for it. How long that was, and how long the trainer was
    /// busy with what it had before.
    fn count(&self, consumer: &mut Consumer, state: &mut State, wanted: usize) -> Stepped {
        let now = Instant::now();
        let since = consumer.since.take().unwrap_or(now);
        let handed = consumer.handed.replace(now);
        let trained = handed.map_or(Seconds::ZERO, |handed| {
            let trained = Seconds(since.saturating_duration_since(handed).as_secs_f64());
            if let Some(pace) = &mut state.pace {
                pace.trained(trained);
            }
            trained
        });
        let samples = &consumer.gathered[..wanted];
        let last = samples.iter().max_by_key(|one| one.ready);
        let mut stall = Seconds::ZERO;
        let mut cause = None;
        if let Some(last) = last.filter(|last| last.ready > since) {
            stall = Seconds((now - since).as_secs_f64());
            let fetched = last.fetched.saturating_duration_since(since).as_secs_f64();
            let fetched = Seconds(fetched);
            cause = Some(Cause::of(last.origin, fetched, stall));
            state.stalled(last.origin, fetched, stall);
        }
        let bytes = samples.iter().map(|one| one.piece.bytes().len() as u64);
        state.ledger.counts.batches += 1;
        state.ledger.counts.samples += wanted as u64;
        state.ledger.counts.bytes += bytes.sum::<u64>();
        let first_ns = (now - self.made).as_nanos() as u64;
        let (once, order) = (first_ns.max(1), Ordering::Relaxed);
        let _ = self.first_batch_ns.compare_exchange(0, once, order, order);
        Stepped {
            waited: stall,
            cause,
            trained,
        }
    }
}

/// The trainer is about to wait. Where it waits for a peer, its deadline runs only while it stands there: gives when it ends,
/// and does without the peer once it has.
fn stand(consumer: &mut Consumer, shared: &Shared, now: Instant) -> Option<Instant> {
    shared.post.as_ref()?;
    let standing = shared.look(|state| state.stands_at(consumer.stand.forsaken));
    let blamed = match consumer.stand.judge(standing, now) {
        Verdict::NotForPeers => return None,
        Verdict::Until(end) => return Some(end),
        Verdict::Expired(blamed) => blamed,
    };
    shared.change(|state| {
        let wake = match blamed {
            Some(rank) => state.expired(rank, &shared.stores),
            None => state.give_up_head(&shared.stores),
        };
        ((), wake)
    });
    Some(now)
}
