//! What is said to other ranks. Saying it waits for nobody: what the transport cannot take now waits here, in order, and is
//! tried again by a thread of its own, which is there only once something had to wait. A sample that waits too long for its
//! home is dropped, and counted; its home is told not to wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::outbox::{Outbox, Unsent};
use super::shared::Shared;
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, thread, whole};
use crate::transport::{Content, HandOver, Message, Sent, Transport, Troubles};

/// How soon what did not fit is tried again: long beside what a message takes, short beside what anybody waits for.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Messages that may wait for one rank: requests and answers are bounded by what is staged, so this is a safeguard.
const WAITING_MAX: usize = 1 << 16;

/// What waits for a rank.
type Letters = VecDeque<(Instant, Message)>;

struct Inner {
    by_rank: Vec<Letters>,
    waiting: usize,
    stop: bool,
}

/// What is said to other ranks.
pub(super) struct Post {
    /// Until the job is closed.
    transport: RwLock<Option<Arc<dyn Transport>>>,
    /// How long samples wait.
    deadline: Duration,
    outbox: Arc<Outbox>,
    inner: Mutex<Inner>,
    changed: Condvar,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// What had gone wrong on the ways to others when the job was closed.
    troubles: Mutex<Vec<Troubles>>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was not taken will not arrive"]
pub(super) enum Posted {
    /// It is on its way, or waits to be.
    Taken,
    /// It will not be sent, and why.
    Not(Unsent),
}

impl Post {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        ranks: u32,
        deadline: Duration,
        outbox: Arc<Outbox>,
    ) -> Self {
        Self {
            transport: RwLock::new(Some(transport)),
            deadline,
            outbox,
            inner: Mutex::new(Inner {
                by_rank: (0..ranks).map(|_| Letters::new()).collect(),
                waiting: 0,
                stop: false,
            }),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            troubles: Mutex::new(Vec::new()),
        }
    }

    /// The way to other ranks, until the job is closed.
    pub(super) fn transport(&self) -> Option<Arc<dyn Transport>> {
        whole(self.transport.read()).clone()
    }

    /// What went wrong on the ways to others.
    pub(super) fn troubles(&self) -> Vec<Troubles> {
        match self.transport() {
            Some(transport) => transport.troubles(),
            None => whole(self.troubles.lock()).clone(),
        }
    }

    /// Says something to a rank.
    pub(super) fn send(&self, to: Rank, message: Message, shared: &Weak<Shared>) -> Posted {
        let Some(transport) = self.transport() else {
            return Posted::Not(Unsent::Gone);
        };
        // Behind what waits already.
        if self.is_waiting_for(to) {
            return self.wait(to, message, shared);
        }
        match transport.send(to, message.clone()) {
            Sent::Taken => Posted::Taken,
            Sent::Full => self.wait(to, message, shared),
            Sent::Gone => Posted::Not(Unsent::Gone),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        whole(self.inner.lock())
    }

    fn is_waiting_for(&self, rank: Rank) -> bool {
        !self.inner().by_rank[rank.index()].is_empty()
    }

    fn wait(&self, to: Rank, message: Message, shared: &Weak<Shared>) -> Posted {
        let mut inner = self.inner();
        let letters = &mut inner.by_rank[to.index()];
        if letters.len() >= WAITING_MAX {
            return Posted::Not(Unsent::Late);
        }
        letters.push_back((Instant::now(), message));
        inner.waiting += 1;
        let is_first = inner.waiting == 1;
        drop(inner);
        if is_first {
            self.changed.notify_one();
            self.have_thread(shared);
        }
        Posted::Taken
    }

    /// Makes the thread that tries again, the first time.
    fn have_thread(&self, shared: &Weak<Shared>) {
        let mut thread = whole(self.thread.lock());
        let is_closed = whole(self.transport.read()).is_none();
        if thread.is_some() || is_closed {
            return;
        }
        let shared = Weak::clone(shared);
        let made = thread::Builder::new()
            .name("foresee-post".into())
            .spawn(move || deliver(&shared));
        // Without a thread what waits is tried again when more is sent; who awaits it has a deadline.
        *thread = made.ok();
    }

    /// Tries all that waits again, rank by rank; gives what will not be sent. True where there may be more to do soon.
    fn try_again(&self) -> (Vec<(Rank, Message)>, bool) {
        let mut undone = Vec::new();
        let Some(transport) = self.transport() else {
            return (undone, false);
        };
        let ranks = self.inner().by_rank.len() as u32;
        for rank in (0..ranks).map(Rank) {
            while let Some(message) = self.next_for(rank) {
                match transport.send(rank, message.clone()) {
                    Sent::Taken => self.pop(rank),
                    Sent::Full => break,
                    Sent::Gone => {
                        self.pop(rank);
                        undone.push((rank, message));
                    }
                }
            }
        }
        (undone, self.inner().waiting > 0)
    }

    /// The next message for a rank. A sample that has waited too long is none: that it will not come is.
    fn next_for(&self, rank: Rank) -> Option<Message> {
        let mut inner = self.inner();
        let (since, message) = inner.by_rank[rank.index()].front_mut()?;
        if let Message::HandOver(HandOver { content, .. }) = message
            && matches!(content, Content::Sample(_))
            && since.elapsed() >= self.deadline
        {
            *content = Content::WillNotCome;
            self.outbox.drop_one(Unsent::Late);
        }
        Some(message.clone())
    }

    fn pop(&self, rank: Rank) {
        let mut inner = self.inner();
        let sent = inner.by_rank[rank.index()].pop_front();
        inner.waiting -= usize::from(sent.is_some());
        drop(inner);
        // After the lock: it may hold the last share of a sample, and then room is free again.
        drop(sent);
    }

    /// Sleeps until something waits; false where nothing ever will again.
    fn sleep(&self, is_soon: bool) -> bool {
        let inner = self.inner();
        let inner = if is_soon && !inner.stop {
            whole(self.changed.wait_timeout(inner, AGAIN_AFTER)).0
        } else {
            let is_idle = |inner: &mut Inner| inner.waiting == 0 && !inner.stop;
            whole(self.changed.wait_while(inner, is_idle))
        };
        !inner.stop
    }

    /// Nothing more is said, and the way to others is given back.
    pub(super) fn close(&self) {
        self.inner().stop = true;
        self.changed.notify_all();
        let thread = whole(self.thread.lock()).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // A thread that panicked has said so; there is nothing left to stop.
            let _ = thread.join();
        }
        let transport = whole(self.transport.write()).take();
        if let Some(transport) = &transport {
            *whole(self.troubles.lock()) = transport.troubles();
        }
        let waiting: Vec<Letters> = self
            .inner()
            .by_rank
            .iter_mut()
            .map(std::mem::take)
            .collect();
        drop(waiting);
        drop(transport);
    }
}

/// Tries again what waits, until the job is closed.
fn deliver(shared: &Weak<Shared>) {
    let mut is_soon = false;
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Some(post) = &shared.post else {
            return;
        };
        if !post.sleep(is_soon) {
            return;
        }
        let (undone, has_more) = post.try_again();
        is_soon = has_more;
        for (_, message) in undone {
            shared.not_sent(message);
        }
    }
}
