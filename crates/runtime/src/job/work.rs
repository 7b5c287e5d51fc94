//! What loader threads do: take a read, carry it out, bring it in and take the next, with the job's lock held between two
//! reads and never during one. The trainer does the same with one read, where it would else wait.

use std::cell::RefCell;
use std::time::Instant;

use foresee_config::OneLine;
use foresee_core::ids::SampleId;
use foresee_core::units::{Bytes, Seconds};
use foresee_image::Scratch;

use super::outcome::{Done, Outcome};
use super::reader::{Effort, Got};
use super::serving::FromSource;
use super::shared::Shared;
use super::slots::Decoded;
use super::spec::OnError;
use super::task::{Fetch, Raw};
use super::wake::Wake;
use crate::arena::Piece;
use crate::source::ReadError;
use crate::stamp::Stamp;
use crate::thread_time::ThreadTime;
use crate::tier::{Arrived, Secured, Stay};

/// What a thread keeps for itself between two reads.
#[derive(Default)]
struct Bench {
    /// A sample that is only decoded.
    raw: Vec<u8>,
    image: Scratch,
}

crate::sync::thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

/// Works for a job.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    shared: &'a Shared,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared }
    }

    /// Works until nothing is left to do, or until another job may be more urgent. False when there was nothing to do.
    pub(super) fn work(self) -> bool {
        BENCH.with(|bench| {
            let bench = &mut *bench.borrow_mut();
            let mut did = false;
            let mut outcome = None;
            // What was read is brought in and the next read is taken in one go: one lock a sample.
            while let Some(fetch) = self.settle_and_take(&mut outcome) {
                let done = self.carry_out(fetch, bench);
                did = true;
                if self.shared.shares_threads() {
                    self.settle(done);
                    return did;
                }
                outcome = Some(done);
            }
            did
        })
    }

    fn settle_and_take(self, outcome: &mut Option<Outcome>) -> Option<Fetch> {
        let stores = &self.shared.stores;
        let mut fetch = None;
        self.shared.change(|state| {
            let mut wake = state.settle_any(outcome.take(), stores);
            fetch = state.take_task(stores, &mut wake);
            ((), wake)
        });
        fetch
    }

    fn settle(self, outcome: Outcome) {
        let stores = &self.shared.stores;
        self.shared
            .change(|state| ((), state.settle(outcome, stores)));
    }

    /// Does a read, decodes what came, and keeps what is kept in files.
    fn carry_out(self, mut fetch: Fetch, bench: &mut Bench) -> Outcome {
        let measured = fetch.measured.then(ThreadTime::now);
        let mut done = Done::at_once(Instant::now(), fetch.way.origin());
        let read = self.read(&mut fetch, &mut bench.raw, &mut done);
        done.fetched = Instant::now();
        done.ready = done.fetched;
        let read = match read {
            Ok(stamp) if fetch.part.is_some() => {
                let decoded = self.decode(&mut fetch, bench);
                done.ready = Instant::now();
                decoded.map(|()| stamp)
            }
            read => read,
        };
        done.slept_s = measured.map(|before| before.slept_s(done.ready - done.began));
        match read {
            Ok(stamp) => self.bring(fetch, done, stamp, &bench.raw),
            Err(cause) => self.give_up(fetch, done, cause, &mut bench.image),
        }
    }

    /// Does a read for the trainer, in its own thread: once, so that it stays awake to its user. What cannot be had at once is
    /// left to the loader threads, and after a failure so are reads from now on. Gives what is to be brought in.
    pub(super) fn help(self, mut fetch: Fetch) -> Option<Outcome> {
        // A defect is noted; whoever asks next is told.
        self.shared.guarded(|| {
            let Raw::Fill(filling) = &mut fetch.raw else {
                unreachable!("samples that are decoded are not the trainer's")
            };
            let measured = fetch.measured.then(ThreadTime::now);
            let began = Instant::now();
            let sample = fetch.ticket.read.sample;
            let into = filling.bytes_mut();
            let stores = &self.shared.stores;
            let reader = &self.shared.reader;
            match reader.fetch(sample, fetch.way, into, stores, Effort::AtOnce) {
                Got::Here(had) => {
                    let ready = Instant::now();
                    let done = Done {
                        began,
                        slept_s: measured.map(|before| before.slept_s(ready - began)),
                        ..Done::at_once(ready, had.origin)
                    };
                    self.bring(fetch, done, had.stamp, &[])
                }
                Got::NotAtOnce => Outcome::Left {
                    fetch,
                    failed: false,
                },
                Got::Failed(..) => Outcome::Left {
                    fetch,
                    failed: true,
                },
            }
        })
    }

    /// Reads a sample; tells what it was in the source, if it was read there.
    fn read(
        self,
        fetch: &mut Fetch,
        buffer: &mut Vec<u8>,
        done: &mut Done,
    ) -> Result<Option<Stamp>, ReadError> {
        let read = &fetch.ticket.read;
        let into = match &mut fetch.raw {
            Raw::Fill(filling) => filling.bytes_mut(),
            Raw::Passing => {
                buffer.resize(read.bytes.0 as usize, 0);
                buffer
            }
            Raw::Held(_) => return Ok(None),
        };
        if let Some(came) = fetch.came.take() {
            into.copy_from_slice(came.bytes());
            return Ok(None);
        }
        let Shared { reader, stores, .. } = self.shared;
        match reader.fetch(read.sample, fetch.way, into, stores, Effort::Whole) {
            Got::Here(had) => {
                done.origin = had.origin;
                done.lost_from = had.lost_from;
                done.stale = had.stale;
                done.retries = had.retries;
                Ok(had.stamp)
            }
            Got::Failed(error, retries) => {
                done.retries = retries;
                Err(error)
            }
            Got::NotAtOnce => unreachable!("it was waited for"),
        }
    }

    /// Makes of a sample what the trainer wants of it, in its place in the batch.
    fn decode(self, fetch: &mut Fetch, bench: &mut Bench) -> Result<(), ReadError> {
        let (Some(images), Some((part, epoch))) = (&self.shared.spec.images, &mut fetch.part)
        else {
            return Ok(());
        };
        let raw = fetch.raw.bytes(&bench.raw);
        let key = images.key(*epoch, fetch.ticket.read.sample);
        let image = &mut bench.image;
        Ok(images.pipeline.run(raw, key, image, part.bytes_mut())?)
    }

    /// A sample has come, and was this in the source if it was read there. `buffer` has its bytes where they are nowhere else.
    fn bring(self, fetch: Fetch, done: Done, stamp: Option<Stamp>, buffer: &[u8]) -> Outcome {
        let Fetch {
            ticket,
            raw,
            part,
            hand_over,
            ..
        } = fetch;
        let read = &ticket.read;
        if let Some(trace) = &self.shared.trace {
            trace.read(read, done.origin, done.took());
        }
        let block = match raw {
            Raw::Fill(filling) => Some(filling.share()),
            Raw::Held(block) => Some(block),
            Raw::Passing => None,
        };
        if let Some(home) = hand_over {
            // Before the trainer has it, who may change it.
            let bytes = block.as_ref().map_or(buffer, |block| block.bytes());
            let from_source = FromSource {
                block: block.as_ref(),
                bytes,
                stamp,
            };
            self.shared.hand_over(home, read.sample, &from_source);
        }
        let decoded = part.map(|(part, _)| part.share());
        let piece = decoded.or_else(|| block.clone().map(Piece::whole));
        let Some(tier) = read.keep else {
            return Outcome::Came {
                ticket,
                done,
                piece,
                to_keep: None,
            };
        };
        let tier = self.shared.stores.tier(tier);
        let arrived = block
            .as_ref()
            .map_or(Arrived::Buffer(buffer), Arrived::Block);
        // Before the trainer has it, who may change it.
        let secured = tier.secure(arrived, Stay::of(read));
        if !tier.writes_files() {
            let to_keep = match secured {
                Secured::Block(block) => Some(block),
                Secured::Nothing | Secured::Sum(_) => None,
            };
            return Outcome::Came {
                ticket,
                done,
                piece,
                to_keep,
            };
        }
        // The trainer need not wait for the disk.
        let stores = &self.shared.stores;
        let is_due = self
            .shared
            .change(|state| state.came_to_be_written(&ticket, &done, piece, stores));
        if !is_due {
            return Outcome::Moved;
        }
        let kept = tier.keep_secured(read.sample, arrived, secured, stamp);
        let kept = self.shared.reader.is_kept(read.sample, kept);
        Outcome::Written { ticket, kept }
    }

    /// A sample could not be read or decoded.
    fn give_up(self, fetch: Fetch, done: Done, cause: ReadError, image: &mut Scratch) -> Outcome {
        let Fetch {
            ticket,
            mut part,
            hand_over,
            ..
        } = fetch;
        if let Some(home) = hand_over {
            let sample = ticket.read.sample;
            self.shared.will_not_come(home, sample);
        }
        let is_spared = || {
            // Before the first batch all files are measured again.
            let has_begun = self.shared.look(|state| state.ledger.counts.batches > 0);
            cause.is_other_size() && !has_begun
        };
        let instead = match self.shared.spec.on_error {
            OnError::Skip if ticket.slot.is_some() && !is_spared() => {
                self.substitute(ticket.read.sample, &cause, &mut part, image)
            }
            OnError::Skip | OnError::Raise => None,
        };
        Outcome::Failed {
            ticket,
            done,
            cause,
            part,
            instead,
        }
    }

    /// The next sample of the catalog that can be read.
    pub(super) fn substitute(
        self,
        sample: SampleId,
        cause: &ReadError,
        part: &mut Option<Decoded>,
        image: &mut Scratch,
    ) -> Option<(SampleId, Piece)> {
        for (_, other) in self.shared.reader.others(sample, 0) {
            if let (Ok(piece), _) = self.read_alone(other, part, image) {
                let name = OneLine(self.shared.spec.source.name(sample));
                tracing::warn!("sample {sample} ({name}): {cause}; sample {other} is in its place");
                return Some((other, piece));
            }
        }
        None
    }

    /// Reads one sample from the source into memory of its own, or decodes it into its place in the batch. Also tells how
    /// often it was tried again.
    pub(super) fn read_alone(
        self,
        sample: SampleId,
        part: &mut Option<Decoded>,
        image: &mut Scratch,
    ) -> (Result<Piece, ReadError>, u32) {
        let len = self.shared.spec.catalog.size(sample).0 as usize;
        let mut filling = self.shared.stores.arena.own(len);
        let (read, retries) = self.read_counted(sample, filling.bytes_mut());
        if let Err(error) = read {
            return (Err(error), retries);
        }
        let Some(images) = &self.shared.spec.images else {
            return (Ok(Piece::whole(filling.share())), retries);
        };
        let Some((mut place, epoch)) = part.take() else {
            // There was no memory for its batch.
            let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return (Err(cause.into()), retries);
        };
        let key = images.key(epoch, sample);
        let pipeline = &images.pipeline;
        match pipeline.run(filling.bytes(), key, image, place.bytes_mut()) {
            Ok(()) => (Ok(place.share()), retries),
            Err(error) => {
                *part = Some((place, epoch));
                (Err(error.into()), retries)
            }
        }
    }

    /// Reads a sample from the source that the engine knows nothing of, and counts it.
    pub(super) fn read_counted(
        self,
        sample: SampleId,
        into: &mut [u8],
    ) -> (Result<(), ReadError>, u32) {
        let began = Instant::now();
        let (read, retries) = self.shared.reader.read_source(sample, into);
        if read.is_ok() {
            let bytes = Bytes(into.len() as u64);
            let took = Seconds(began.elapsed().as_secs_f64());
            self.shared.change(|state| {
                state.ledger.read_apart(bytes, took);
                ((), Wake::NOBODY)
            });
        }
        (read.map(|_| ()), retries)
    }
}
