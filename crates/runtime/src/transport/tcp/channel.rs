//! One job's channel of the mesh: what arrived and nobody has taken yet, who takes it, who has left, and what is gathered.
//!
//! All calls of a receiver come from the one thread that reads, so there is at most one under way, and what waits is handed
//! on in order. A channel can be there before this rank has made its job (others were faster), and stays a while after it
//! was left, for those who still gather what was given.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use foresee_core::ids::Rank;

use super::gathering::Calls;
use crate::sync::{Condvar, Mutex, MutexGuard, whole};
use crate::transport::{Answer, Content, HandOver, JobKey, Message, Receive};

/// Messages that wait for a receiver, and their bytes; one may always wait.
const INBOX_MAX: usize = 1 << 16;
const INBOX_BYTES_MAX: usize = 64 << 20;

/// The same where this rank has not made its job: ranks send samples only when all have, so these are few.
const UNOPENED_INBOX_MAX: usize = 1024;
const UNOPENED_INBOX_BYTES_MAX: usize = 1 << 20;

/// How far a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Others have used it, this rank has not.
    Unopened,
    Open,
    Left,
}

/// What a receiver is told.
enum Arrived {
    Message(Rank, Message),
    Lost(Rank),
    Found(Rank),
}

impl Arrived {
    fn len(&self) -> usize {
        match self {
            Self::Message(
                _,
                Message::Answer(Answer { content, .. })
                | Message::HandOver(HandOver { content, .. }),
            ) => content.len(),
            Self::Message(_, Message::Done(done)) => done.report.len(),
            Self::Message(_, Message::Ask(_)) | Self::Lost(_) | Self::Found(_) => 0,
        }
    }
}

/// What became of a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    Yes,
    /// Too much waits already; it was dropped.
    Full,
    /// This rank has left.
    Left,
}

struct Inner {
    stage: Stage,
    handles: usize,
    receiver: Option<Arc<dyn Receive>>,
    /// Whether the receiver is being called.
    calling: bool,
    /// How many wait until it is not: to wake nobody is a system call, too.
    awaiting_call: usize,
    inbox: VecDeque<Arrived>,
    inbox_bytes: usize,
    /// Ranks that have left.
    left: BTreeSet<Rank>,
    /// Of them, those of whom nothing can be gathered.
    unkind: BTreeSet<Rank>,
    calls: Calls,
    /// Whether somebody came back of whom something may be gathered.
    is_to_ask: bool,
}

/// One job's channel.
pub(super) struct Channel {
    pub(super) key: JobKey,
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Channel {
    pub(super) fn new(key: JobKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            inner: Mutex::new(Inner {
                stage: Stage::Unopened,
                handles: 0,
                receiver: None,
                calling: false,
                awaiting_call: 0,
                inbox: VecDeque::new(),
                inbox_bytes: 0,
                left: BTreeSet::new(),
                unkind: BTreeSet::new(),
                calls: Calls::default(),
                is_to_ask: false,
            }),
            changed: Condvar::new(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        whole(self.inner.lock())
    }

    /// This rank takes part, by one more handle.
    pub(super) fn open(&self) {
        let mut inner = self.inner();
        inner.handles += 1;
        inner.stage = Stage::Open;
    }

    /// A handle is dropped; true where it was the last one.
    pub(super) fn close(&self) -> bool {
        let mut inner = self.inner();
        inner.handles -= 1;
        let is_last = inner.handles == 0 && inner.stage == Stage::Open;
        drop(inner);
        is_last
    }

    /// This rank leaves; what was given stays, to be gathered, unless `forget`.
    pub(super) fn leave(&self, forget: bool) {
        let mut inner = self.inner();
        inner.stage = Stage::Left;
        if forget {
            inner.calls.forget();
        }
        let waiting = std::mem::take(&mut inner.inbox);
        inner.inbox_bytes = 0;
        drop(inner);
        self.changed.notify_all();
        drop(waiting);
    }

    pub(super) fn is_open(&self) -> bool {
        self.inner().stage == Stage::Open
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn inbox_bytes(&self) -> usize {
        self.inner().inbox_bytes
    }

    pub(super) fn is_unopened(&self) -> bool {
        self.inner().stage == Stage::Unopened
    }

    /// Whether this rank or another one has left.
    pub(super) fn is_left_by(&self, rank: Rank) -> bool {
        let inner = self.inner();
        inner.stage == Stage::Left || inner.left.contains(&rank)
    }

    /// Lets a receiver have all that comes.
    pub(super) fn receive_by(&self, receiver: Arc<dyn Receive>) {
        self.inner().receiver = Some(receiver);
    }

    /// Nobody is called any more; returns when no call is under way. Who is being called itself does not wait for that.
    pub(super) fn let_go(&self, caller: Option<ThreadId>) {
        let is_called = caller == Some(thread::current().id());
        let mut inner = self.inner();
        let receiver = inner.receiver.take();
        inner.awaiting_call += 1;
        while inner.calling && !is_called {
            inner = whole(self.changed.wait(inner));
        }
        inner.awaiting_call -= 1;
        drop(inner);
        drop(receiver);
    }

    /// A message came. Called by the thread that reads alone, as is all that calls receivers.
    pub(super) fn deliver(&self, from: Rank, message: Message) -> Delivered {
        let arrived = Arrived::Message(from, message);
        let len = arrived.len();
        let mut inner = self.inner();
        if inner.stage == Stage::Left {
            return Delivered::Left;
        }
        inner.left.remove(&from);
        inner.unkind.remove(&from);
        let (messages_max, bytes_max) = match inner.stage {
            Stage::Unopened => (UNOPENED_INBOX_MAX, UNOPENED_INBOX_BYTES_MAX),
            Stage::Open | Stage::Left => (INBOX_MAX, INBOX_BYTES_MAX),
        };
        let fits = inner.inbox_bytes + len <= bytes_max || inner.inbox.is_empty();
        if !fits || inner.inbox.len() >= messages_max {
            return Delivered::Full;
        }
        inner.inbox_bytes += len;
        inner.inbox.push_back(arrived);
        drop(inner);
        self.hand_on();
        Delivered::Yes
    }

    /// A rank cannot be reached, or has left.
    pub(super) fn lost(&self, rank: Rank) {
        let mut inner = self.inner();
        if inner.stage == Stage::Open && inner.inbox.len() < INBOX_MAX {
            inner.inbox.push_back(Arrived::Lost(rank));
        }
        drop(inner);
        self.changed.notify_all();
        self.hand_on();
    }

    /// A rank that was lost can be reached again. Who gathers asks it again at once; one that has left stays so.
    pub(super) fn found(&self, rank: Rank) {
        let mut inner = self.inner();
        inner.is_to_ask = true;
        let is_there = !inner.left.contains(&rank);
        if inner.stage == Stage::Open && is_there && inner.inbox.len() < INBOX_MAX {
            inner.inbox.push_back(Arrived::Found(rank));
        }
        drop(inner);
        self.changed.notify_all();
        self.hand_on();
    }

    /// Whether somebody came back since this was asked last.
    pub(super) fn take_is_to_ask(&self) -> bool {
        std::mem::take(&mut self.inner().is_to_ask)
    }

    /// A rank has left the channel; whether what it gave can still be gathered.
    pub(super) fn rank_left(&self, rank: Rank, is_kind: bool) {
        let mut inner = self.inner();
        let is_new = inner.left.insert(rank);
        if !is_kind {
            inner.unkind.insert(rank);
        }
        drop(inner);
        if is_new {
            self.lost(rank);
        }
        self.changed.notify_all();
    }

    /// Hands on what waits, if anybody takes it.
    pub(super) fn hand_on(&self) {
        let mut inner = self.inner();
        loop {
            let Some(receiver) = inner.receiver.clone() else {
                return;
            };
            let Some(arrived) = inner.inbox.pop_front() else {
                return;
            };
            inner.inbox_bytes -= arrived.len();
            inner.calling = true;
            drop(inner);
            // A receiver that panics has said so; other jobs still want their messages.
            let _ = catch_unwind(AssertUnwindSafe(|| match arrived {
                Arrived::Message(from, message) => receiver.receive(from, message),
                Arrived::Lost(rank) => receiver.lost(rank),
                Arrived::Found(rank) => receiver.found(rank),
            }));
            drop(receiver);
            inner = self.inner();
            inner.calling = false;
            if inner.awaiting_call > 0 {
                self.changed.notify_all();
            }
        }
    }

    /// Does something with the book of what is gathered, and wakes who waits for it.
    pub(super) fn with_calls<T>(&self, change: impl FnOnce(&mut Calls) -> T) -> T {
        let mut inner = self.inner();
        let done = change(&mut inner.calls);
        drop(inner);
        self.changed.notify_all();
        done
    }

    /// Looks at the book of what is gathered.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Calls) -> T) -> T {
        look(&self.inner().calls)
    }

    /// Whether some of these ranks, who are there and have not left, still want what this one gave.
    pub(super) fn owes(&self, there: impl Fn(Rank) -> bool, others: &[Rank]) -> bool {
        let inner = self.inner();
        let waits = |rank: Rank| there(rank) && !inner.left.contains(&rank);
        inner.calls.owes(waits, others)
    }

    /// Whether one of these ranks will give nothing any more, or this one has left.
    pub(super) fn is_hopeless(&self, missing: &[Rank]) -> bool {
        let inner = self.inner();
        inner.stage == Stage::Left || missing.iter().any(|rank| inner.unkind.contains(rank))
    }

    /// Waits until something changes, or for so long. What is gathered may have changed before: `progress` says up to where
    /// the caller has looked.
    pub(super) fn wait(&self, progress: u64, for_most: std::time::Duration) {
        let inner = self.inner();
        if inner.calls.progress() == progress && !inner.is_to_ask {
            drop(whole(self.changed.wait_timeout(inner, for_most)));
        }
    }

    /// Who asks again what was given.
    pub(super) fn heard(&self, from: Rank) {
        let mut inner = self.inner();
        inner.left.remove(&from);
        inner.unkind.remove(&from);
    }
}

/// The message in the place of one whose payload was garbled on its way: whoever waits for it learns that.
pub(super) fn instead(message: Message) -> Message {
    let content = Content::WillNotCome;
    match message {
        Message::Answer(Answer { ticket, .. }) => Message::Answer(Answer { ticket, content }),
        Message::HandOver(HandOver { sample, .. }) => {
            Message::HandOver(HandOver::unstamped(sample, content))
        }
        other @ (Message::Ask(_) | Message::Done(_)) => other,
    }
}
