//! What other ranks want of disks: done by a thread of its own, so that a slow disk holds up neither what arrives for memory
//! (the transport has one thread that reads), nor loader threads, nor the trainer.
//!
//! What waits is bounded. Samples that are handed over faster than a disk takes them fill the queue; then whoever brings them
//! in waits, and by that the rank that hands them over: it reads ahead less. That ends with the deadline: a disk that has
//! taken nothing for so long is not waited for again until it does, and what comes for it is not kept. The thread is there
//! only once there was something to do.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use foresee_core::ids::{Rank, SampleId, TierId};

use super::shared::Shared;
use crate::peers::Waiting as Parker;
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use crate::transport::{Answer, HandOver};

/// Bytes of samples that wait for a disk; one may always wait. As many as a disk of 100 MB/s takes in a sixth of a second.
const BYTES_MAX: usize = 16 << 20;

/// Chores that wait. Requests are bounded by what peers can have parked, so this is a safeguard.
const CHORES_MAX: usize = 1 << 16;

/// Something that touches a disk, or the source.
pub(super) enum Chore {
    /// A peer is to get what a tier on disk holds.
    Serve {
        to: Parker,
        sample: SampleId,
        tier: TierId,
    },
    /// A peer of this host has told in which file a sample lies.
    Fetch { from: Rank, answer: Answer },
    /// A peer has handed over a sample that lives on a disk here.
    Keep { from: Rank, handed: HandOver },
}

impl Chore {
    /// Bytes that it holds while it waits.
    fn len(&self) -> usize {
        match self {
            Self::Keep { handed, .. } => handed.content.len(),
            Self::Serve { .. } | Self::Fetch { .. } => 0,
        }
    }
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Chore>,
    bytes: usize,
    /// Whether one is being done.
    busy: bool,
    /// Whether the disk had taken nothing when it was waited for last.
    stuck: bool,
    stop: bool,
}

impl Inner {
    fn has_room(&self, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= BYTES_MAX || self.bytes == 0;
        fits && self.waiting.len() < CHORES_MAX
    }
}

/// What is to be done, and who does it.
#[derive(Default)]
pub(super) struct Chores {
    inner: Mutex<Inner>,
    changed: Condvar,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Chores {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        whole(self.inner.lock())
    }

    /// Takes a chore; gives it back where it will not be done. One with bytes waits for room, no longer than `patience`.
    pub(super) fn add(
        &self,
        chore: Chore,
        patience: Duration,
        shared: &Weak<Shared>,
    ) -> Result<(), Chore> {
        if !self.has_thread(shared) {
            return Err(chore);
        }
        let bytes = chore.len();
        let mut inner = self.inner();
        if bytes > 0 && !inner.stuck {
            let is_full = |inner: &mut Inner| !inner.has_room(bytes) && !inner.stop;
            let waited = self.changed.wait_timeout_while(inner, patience, is_full);
            inner = whole(waited).0;
            inner.stuck = !inner.has_room(bytes);
        }
        if inner.stop || !inner.has_room(bytes) {
            return Err(chore);
        }
        inner.bytes += bytes;
        inner.waiting.push_back(chore);
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// Makes the thread the first time; false where there is none.
    fn has_thread(&self, shared: &Weak<Shared>) -> bool {
        let mut thread = whole(self.thread.lock());
        if thread.is_none() {
            let shared = Weak::clone(shared);
            let made = thread::Builder::new()
                .name("foresee-chores".into())
                .spawn(move || work(&shared));
            *thread = made.ok();
        }
        thread.is_some()
    }

    /// The next one; none where nothing is left to do and nothing will come.
    fn next(&self) -> Option<Chore> {
        let is_idle = |inner: &mut Inner| inner.waiting.is_empty() && !inner.stop;
        let mut inner = whole(self.changed.wait_while(self.inner(), is_idle));
        let chore = inner.waiting.pop_front();
        inner.busy = chore.is_some();
        chore
    }

    /// One was done, which held so many bytes.
    fn done(&self, bytes: usize) {
        let mut inner = self.inner();
        inner.bytes -= bytes;
        inner.busy = false;
        inner.stuck = false;
        drop(inner);
        self.changed.notify_all();
    }

    /// Whether something is being done, or will be.
    pub(super) fn is_busy(&self) -> bool {
        let inner = self.inner();
        inner.busy || !inner.waiting.is_empty()
    }

    /// Nothing more is taken. What was handed over is still kept: the next job finds it. Others do not wait for this rank.
    pub(super) fn close(&self) {
        let mut inner = self.inner();
        inner.stop = true;
        inner
            .waiting
            .retain(|chore| matches!(chore, Chore::Keep { .. }));
        drop(inner);
        self.changed.notify_all();
    }

    /// Ends the thread, which has nothing to do any more.
    pub(super) fn join(&self) {
        let thread = whole(self.thread.lock()).take();
        if let Some(thread) = thread {
            // One that panicked has said so; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// Does chores until the job is closed.
fn work(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Some(chore) = shared.chores.next() else {
            return;
        };
        let bytes = chore.len();
        shared.guarded(|| shared.do_chore(chore));
        shared.chores.done(bytes);
    }
}
