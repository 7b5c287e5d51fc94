//! What a job's threads share, behind one lock: a type for each role (the course of the stream, what the trainer holds, what
//! it wants, the counts, the threads, the window), and here the transitions that concern several of them. Nothing here reads or
//! waits, and nothing writes a file. Each transition returns whom to wake, which is done when the lock is free again.
//!
//! `polling` asks the engine for reads, and finds memory for them; `gathering` is the trainer's side.

use std::sync::Arc;
use std::time::Instant;

use foresee_core::engine::{Lane, Read};
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::model::Origin;
use foresee_core::threads::crew::Crew;
use foresee_core::threads::window::Window;
use foresee_core::units::{Bytes, Seconds};

use super::course::Course;
use super::dealings::Dealings;
use super::ledger::Ledger;
use super::loans::{Loans, Numbers};
use super::outcome::{Done, Outcome};
use super::pace::Pace;
use super::peer_stats::Report;
use super::slots::{Failure, Slot};
use super::stores::Stores;
use super::task::{Doer, Fetch, Ticket};
use super::wake::{Call, Wake};
use super::wants::Wants;
use crate::arena::{Block, Piece};
use crate::tier::{Arrived, Kept, Secured, Tier};

/// The state of a job that runs.
pub(super) struct State {
    pub(super) course: Course,
    pub(super) loans: Loans,
    pub(super) wants: Wants,
    pub(super) ledger: Ledger,
    pub(super) crew: Crew,
    /// How much is staged ahead at most, and whether that was reached since the trainer waited last.
    pub(super) window: Window,
    /// How fast threads and the trainer are; none where nobody else wants to know.
    pub(super) pace: Option<Pace>,
    /// What the window's time counts from.
    pub(super) began: Instant,
    /// With other ranks; none without peers.
    pub(super) dealings: Option<Dealings>,
    /// Samples that are being written to a tier's files, by threads that do not have the lock.
    writing: u32,
    /// Why nothing more is done.
    ended: Option<Ended>,
}

/// How a read that was to be kept has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its tier has it.
    Kept,
    /// It was read, and its tier does not have it.
    NotKept,
    /// It was not read.
    NotRead,
}

impl End {
    fn kept(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::NotKept }
    }
}

/// Why a job does nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was closed.
    Closed,
    /// A thread of ours failed, with these words.
    Defect(String),
}

impl State {
    pub(super) fn new(course: Course, crew: Crew, tiers: usize, window: Window) -> Self {
        Self {
            course,
            loans: Loans::default(),
            wants: Wants::default(),
            ledger: Ledger::new(tiers),
            crew,
            window,
            pace: None,
            began: Instant::now(),
            dealings: None,
            writing: 0,
            ended: None,
        }
    }

    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Nothing more is done.
    pub(super) fn end(&mut self, ended: Ended) -> Wake {
        self.course.stop();
        self.break_off();
        self.ended = Some(ended);
        self.wants.happened()
    }

    /// The job is about to move: nothing more is read for where it stood.
    pub(super) fn stop(&mut self) -> Wake {
        self.course.stop();
        self.break_off();
        self.loans = Loans::default();
        self.wants.forget();
        Wake::NOBODY
    }

    /// Goes on elsewhere in the job.
    pub(super) fn go_on_with(&mut self, course: Course, stores: &Stores) -> Wake {
        self.course = course;
        self.crew.lanes.restart();
        self.evict(stores);
        Wake::ANOTHER
    }

    /// Another rank's stream is over: who lingers for it looks again.
    pub(super) fn finished(&mut self, from: Rank, report: &[u8]) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.finished(from, report);
        }
        self.wants.happened()
    }

    /// This rank's stream is over; the others are told, the first time.
    pub(super) fn finish(&mut self, report: &Report) -> Wake {
        if let Some(dealings) = &mut self.dealings {
            dealings.finish(report);
        }
        Wake::NOBODY
    }

    /// Since when this rank's stream is over.
    pub(super) fn done_since(&self) -> Option<Instant> {
        self.dealings.as_ref()?.done_since
    }

    /// Whether some rank may still want something of this one.
    pub(super) fn is_needed(&self) -> bool {
        let dealings = self.dealings.as_ref();
        dealings.is_some_and(Dealings::is_needed)
    }

    /// Whether nothing more is to be read ahead that others would have to be given: too much is on its way to them.
    pub(super) fn is_outbox_full(&self) -> bool {
        let dealings = self.dealings.as_ref();
        dealings.is_some_and(|dealings| dealings.outbox.is_full())
    }

    /// Whether nothing is being written to a tier's files.
    pub(super) fn is_written(&self) -> bool {
        self.writing == 0
    }

    /// Whether reading further ahead, or with more threads, cannot help: samples are copied from memory as they are.
    pub(super) fn copies(&self) -> bool {
        self.crew.are_quick() && self.course.shelf.is_none()
    }

    /// Tells the engine how much it may stage.
    fn stage_ahead(&mut self) {
        let bytes = Bytes(self.window.bytes());
        self.course.desk.limit_staging(bytes);
    }

    /// At most so much is staged from now on.
    pub(super) fn bound_window(&mut self, most: u64) -> Wake {
        self.window.bound(most);
        self.stage_ahead();
        Wake::NOBODY
    }

    /// The trainer asks for so many bytes at a time.
    pub(super) fn serve(&mut self, bytes: u64) {
        if self.window.serve(bytes) {
            self.stage_ahead();
        }
    }

    /// The trainer had to wait for a sample of this origin, of which its bytes took so long to come.
    pub(super) fn stalled(&mut self, origin: Origin, fetched: Seconds, stall: Seconds) {
        self.ledger.stalled(origin, fetched, stall);
        if self.window.grow(stall, self.copies()) {
            self.stage_ahead();
        }
    }

    /// Brings in what became of a read, if there was one.
    pub(super) fn settle_any(&mut self, outcome: Option<Outcome>, stores: &Stores) -> Wake {
        outcome.map_or(Wake::NOBODY, |outcome| self.settle(outcome, stores))
    }

    /// Brings in what became of a read.
    pub(super) fn settle(&mut self, outcome: Outcome, stores: &Stores) -> Wake {
        match outcome {
            Outcome::Came {
                ticket,
                done,
                piece,
                to_keep,
            } => self.came(&ticket, &done, piece, to_keep, stores),
            Outcome::Written { ticket, kept } => self.written(&ticket, kept, stores),
            Outcome::Failed {
                ticket,
                done,
                cause,
                part,
                instead,
            } => {
                self.crew.end(ticket.doer.lane());
                if !self.course.is_of(&ticket) {
                    return Wake::NOBODY;
                }
                self.ledger.counts.retries += u64::from(done.retries);
                let sample = ticket.read.sample;
                let slot = match instead {
                    Some((other, piece)) => {
                        self.ledger.counts.skipped += 1;
                        Slot::Ready(done.staged(piece, other))
                    }
                    None => Slot::Failed(Failure {
                        sample,
                        cause: Arc::new(cause),
                        part,
                    }),
                };
                self.failed(&ticket, slot, stores)
            }
            Outcome::Moved => Wake::NOBODY,
            Outcome::Left { fetch, failed } => self.left(fetch, failed),
        }
    }

    fn came(
        &mut self,
        ticket: &Ticket,
        done: &Done,
        piece: Option<Piece>,
        to_keep: Option<Arc<Block>>,
        stores: &Stores,
    ) -> Wake {
        let read = &ticket.read;
        let mut wake = self.account(read, done, stores);
        self.crew.end(ticket.doer.lane());
        if !self.course.is_of(ticket) {
            return wake;
        }
        wake |= self.fill(ticket, done, piece);
        let kept = match (read.keep, to_keep) {
            (None, _) => true,
            (Some(tier), Some(block)) => keep_block(stores.tier(tier), read.sample, &block),
            (Some(_), None) => false,
        };
        // Whoever waited for it to arrive can go on.
        let end = End::kept(kept);
        wake | self.complete(read, end, stores) | Wake::ANOTHER.when(read.keep.is_some())
    }

    /// A sample has come that is yet to be written to a tier's files: the trainer need not wait for that. False where it need
    /// not be written, since the job has moved on.
    pub(super) fn came_to_be_written(
        &mut self,
        ticket: &Ticket,
        done: &Done,
        piece: Option<Piece>,
        stores: &Stores,
    ) -> (bool, Wake) {
        let wake = self.account(&ticket.read, done, stores);
        if !self.course.is_of(ticket) {
            self.crew.end(ticket.doer.lane());
            return (false, wake);
        }
        self.writing += 1;
        (true, wake | self.fill(ticket, done, piece))
    }

    fn written(&mut self, ticket: &Ticket, kept: bool, stores: &Stores) -> Wake {
        self.crew.end(ticket.doer.lane());
        self.writing -= 1;
        // Who is about to move waits for that.
        let mut wake = Wake::TRAINER.when(self.writing == 0) | Wake::ANOTHER;
        if self.course.is_of(ticket) {
            wake |= self.complete(&ticket.read, End::kept(kept), stores);
        }
        wake
    }

    fn failed(&mut self, ticket: &Ticket, slot: Slot, stores: &Stores) -> Wake {
        let mut wake = self.complete(&ticket.read, End::NotRead, stores);
        if let Some(number) = ticket.slot {
            wake |= self.settle_slot(number, slot);
            wake |= self.wants.happened();
        }
        wake | Wake::ANOTHER
    }

    /// A read that the trainer began is left to a thread after all.
    fn left(&mut self, fetch: Fetch, failed: bool) -> Wake {
        self.crew.end(fetch.ticket.doer.lane());
        if failed {
            self.crew.doubt_quickness();
        }
        if self.course.is_of(&fetch.ticket) {
            let ticket = Ticket {
                doer: Doer::Thread(Lane::Staging),
                ..fetch.ticket
            };
            self.course.put_back(Fetch {
                ticket,
                tried: true,
                ..fetch
            });
        }
        Wake::ANOTHER
    }

    /// Counts a read, and learns from it.
    fn account(&mut self, read: &Read, done: &Done, stores: &Stores) -> Wake {
        let took = done.took();
        self.ledger.read(read, done.origin, took);
        if let Some(pace) = &mut self.pace {
            pace.note(read.bytes, done);
        }
        self.ledger.counts.retries += u64::from(done.retries);
        self.ledger.counts.stale += u64::from(done.stale);
        let mut wake = Wake::NOBODY;
        if let Some(tier) = done.lost_from {
            self.lost(read.sample, tier);
            wake |= self.resume(read.sample, stores);
        }
        let Some(slept_s) = done.slept_s else {
            self.crew.note_unmeasured(took.0);
            return wake;
        };
        let threads = self.crew.most();
        let took_s = (done.ready - done.began).as_secs_f64();
        self.crew.learn(took_s, slept_s);
        let most = self.crew.most();
        if most > threads {
            wake.threads_most = Some(most);
            wake |= Wake::ANOTHER;
        }
        wake
    }

    fn fill(&mut self, ticket: &Ticket, done: &Done, piece: Option<Piece>) -> Wake {
        match ticket.slot.zip(piece) {
            Some((slot, piece)) => {
                let staged = done.staged(piece, ticket.read.sample);
                self.settle_slot(slot, Slot::Ready(staged))
            }
            None => Wake::NOBODY,
        }
    }

    /// What a slot waited for has been read, or will not be.
    fn settle_slot(&mut self, number: u64, slot: Slot) -> Wake {
        self.course.slots.fill(number, slot);
        self.course.end_read();
        let wake = self.wants.arrived(number);
        if self.course.reads_nothing() && !self.course.has_queued() {
            // No more will come before the trainer moves.
            return wake | self.wants.happened();
        }
        wake
    }

    /// A read is over.
    pub(super) fn complete(&mut self, read: &Read, end: End, stores: &Stores) -> Wake {
        self.course.desk.complete(read);
        let Some(tier) = read.keep else {
            self.evict(stores);
            return Wake::NOBODY;
        };
        match end {
            End::Kept => {}
            End::NotKept => self.not_held(read.sample, tier),
            // Nobody has it: who brings it reads it when it is staged.
            End::NotRead => self.course.desk.lost(read.sample, tier),
        }
        let kept = end == End::Kept;
        self.ledger.counts.not_kept += u64::from(!kept && !self.is_copy(read.sample));
        if let Some(own) = self.dealings.as_ref().map(|dealings| dealings.rank) {
            self.tell_parked(read.sample, tier, kept, own);
        }
        self.evict(stores);
        // Who waited for it to arrive in its tier can go on.
        let mut wake = self.resume(read.sample, stores);
        if self.course.reads_nothing() {
            wake |= self.wants.happened();
        }
        wake
    }

    /// A tier does not have a sample that it should.
    pub(super) fn lost(&mut self, sample: SampleId, tier: TierId) {
        self.not_held(sample, tier);
        self.ledger.counts.lost += 1;
        self.tell_lost(sample, tier);
    }

    /// Who asked for a sample that is not at its home here any more is told: nobody is to bring it once more.
    fn tell_lost(&mut self, sample: SampleId, tier: TierId) {
        if let Some(own) = self.dealings.as_ref().map(|dealings| dealings.rank) {
            self.tell_parked(sample, tier, false, own);
        }
    }

    /// Drops what the engine has evicted: nobody reads it any more.
    #[inline]
    pub(super) fn evict(&mut self, stores: &Stores) {
        // It is asked twice a sample, and seldom is there any.
        if self.course.desk.has_evicted() {
            self.drop_evicted(stores);
        }
    }

    fn drop_evicted(&mut self, stores: &Stores) {
        for gone in self.course.desk.evicted() {
            stores.tier(gone.tier).evict(gone.sample);
        }
    }

    /// The trainer is done with samples of a course.
    pub(super) fn release(&mut self, course: u64, loans: Numbers) -> Wake {
        if self.course.number() != course {
            return Wake::NOBODY;
        }
        for loan in loans {
            if let Some(bytes) = self.loans.end(loan) {
                self.course.desk.release(bytes);
            }
        }
        self.has_room_again()
    }

    /// A sample that was to stay in memory, and that the trainer has given back, found no room there even now.
    pub(super) fn give_up(&mut self, course: u64, sample: SampleId, tier: TierId, stores: &Stores) {
        // While nobody plans with it.
        if self.course.number() == course && stores.tier(tier).give_up(sample) {
            self.not_held(sample, tier);
            self.ledger.counts.not_kept += u64::from(!self.is_copy(sample));
            self.tell_lost(sample, tier);
        }
    }

    /// Whether a thread could be of use now that the trainer has taken or given back something. Where all comes from
    /// memory, a quarter of the window is free first: waking a thread for each sample takes longer than staging it.
    pub(super) fn has_room_again(&self) -> Wake {
        let from_memory = self.copies() || self.course.is_from_memory();
        let (free, capacity) = self.course.desk.staging_room();
        let call = if !self.crew.has_use_for_another() || (from_memory && free.0 < capacity.0 / 4) {
            Call::Nobody
        } else if from_memory {
            Call::One
        } else {
            Call::Another
        };
        Wake::call(call)
    }
}

/// Keeps a block that nobody else can change; no file is written for it.
fn keep_block(tier: &dyn Tier, sample: SampleId, block: &Arc<Block>) -> bool {
    let secured = Secured::Block(Arc::clone(block));
    let kept = tier.keep_secured(sample, Arrived::Block(block), secured, None);
    matches!(kept, Ok(Kept::Yes))
}
