//! The thread that connects, greets and writes (`writing`). It calls nobody else's code but the memory of what it sends, and
//! waits nowhere but for all sockets at once: a rank that is slow, silent or a stranger holds up nobody.
//!
//! Ranks take turns. What is sent in a turn is bounded, and a connection that takes no more is left alone until it does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::greet::{Greeting, Look, advance, listens};
use super::greeting::{Greeter, Keys, Refusal};
use super::hub::Hub;
use super::line::{Line, Wrote};
use super::peer::{Conn, end};
use super::socket;
use super::writing::Turn;
use crate::sync::Mutex;

/// A handshake takes no longer.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// Handshakes under way with those who connected here.
const GREETINGS_MAX: usize = 256;

/// Who connects, of those who wait, before others have their turn: the rest is found again at once.
const TURN_GUESTS: usize = 64;

/// How long nobody is let in when the system is short of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Connections beyond so many are closed, the least used first.
const CONNS_MAX: usize = 256;

/// What was taken is still sent for so long when all ends.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Looks at the clock at least so often.
const TICK: Duration = Duration::from_secs(1);

const BELL: u64 = 0;
const LISTENER: u64 = 1;

/// The thread's own.
pub(super) struct Outward {
    pub(super) hub: Arc<Hub>,
    epoll: OwnedFd,
    listener: TcpListener,
    /// Where rank 0 is.
    pub(super) first: (String, u16),
    greetings: BTreeMap<u64, Greeting>,
    conns: BTreeMap<u64, Arc<Conn>>,
    /// When ranks may be tried again.
    pub(super) waits: BTreeSet<(Instant, Rank)>,
    /// What was said of those who were refused: each once.
    said: BTreeSet<Refusal>,
    next_id: u64,
}

impl Outward {
    pub(super) fn new(
        hub: Arc<Hub>,
        listener: TcpListener,
        first: (String, u16),
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = EventData::new_u64(BELL);
        epoll::add(&epoll, hub.out_bell.fd(), bell, EventFlags::IN)?;
        let ear = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, ear, EventFlags::IN)?;
        Ok(Self {
            hub,
            epoll,
            listener,
            first,
            greetings: BTreeMap::new(),
            conns: BTreeMap::new(),
            waits: BTreeSet::new(),
            said: BTreeSet::new(),
            next_id: LISTENER + 1,
        })
    }

    /// Works until it is to stop, and a little longer for what is to be sent.
    pub(super) fn run(mut self) {
        if self.hub.rank() != Rank(0) {
            self.hub.state().mark(Rank(0));
        }
        let mut stop_by = None;
        let mut last_tick = Instant::now();
        loop {
            let (work, stop, may_sleep) = self.collect();
            for rank in work {
                self.serve(rank);
            }
            if stop {
                let by = *stop_by.get_or_insert_with(|| Instant::now() + FLUSH_MAX);
                if self.is_flushed() || Instant::now() > by {
                    break;
                }
            }
            self.wait(if may_sleep {
                self.patience(stop)
            } else {
                Duration::ZERO
            });
            if last_tick.elapsed() > TICK {
                last_tick = Instant::now();
                self.hub.forget_old();
                self.hub.shelf.forget_old(Instant::now());
            }
            self.retry();
            self.expire();
        }
        for conn in self.conns.values() {
            // The other end may have gone first.
            let _ = conn.stream.shutdown(Shutdown::Write);
        }
    }

    /// Whom something is to be done for; whether all is to end; whether there is nothing to do.
    fn collect(&mut self) -> (Vec<Rank>, bool, bool) {
        let mut state = self.hub.state();
        let work = state.take_ready();
        state.out_sleeps = false;
        let ended = std::mem::take(&mut state.ended);
        let stop = state.stop;
        let may_sleep = work.is_empty() && state.may_sleep();
        drop(state);
        for id in ended {
            self.conns.remove(&id);
        }
        (work, stop, may_sleep)
    }

    /// How long nothing needs to be looked at.
    fn patience(&self, stop: bool) -> Duration {
        let deadlines = self.greetings.values().map(|one| one.deadline);
        let retries = self.waits.first().map(|(at, _)| *at);
        let next = deadlines.chain(retries).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let most = if stop {
            Duration::from_millis(20)
        } else {
            TICK
        };
        // A little later, so that it is over then.
        left.map_or(most, |left| left + Duration::from_millis(1))
            .min(most)
    }

    fn is_flushed(&self) -> bool {
        if self.conns.values().any(|conn| !conn.line().is_empty()) {
            return false;
        }
        let state = self.hub.state();
        let own = self.hub.rank();
        let is_idle = |rank: Rank| {
            let peer = &state.peers[rank.index()];
            peer.queue.is_empty() || peer.best(own).is_none()
        };
        let is_flushed = self.hub.others().all(is_idle);
        drop(state);
        is_flushed && !self.hub.owes()
    }

    /// Waits for sockets, and does what they are ready for.
    fn wait(&mut self, patience: Duration) {
        let mut events = Vec::with_capacity(64);
        let patience = Timespec::try_from(patience).ok();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        // Interrupted: as if nothing had come.
        let _ = epoll::wait(&self.epoll, buffer, patience.as_ref());
        for event in events {
            match event.data.u64() {
                BELL => self.hub.out_bell.hush(),
                LISTENER => self.accept(),
                id => self.look(id),
            }
        }
    }

    /// A socket is ready for something.
    fn look(&mut self, id: u64) {
        if let Some(conn) = self.conns.get(&id) {
            conn.line().is_writable = true;
            self.hub.state().mark(conn.rank);
        } else if self.greetings.contains_key(&id) {
            self.greet(id);
        }
    }

    /// Does for a rank what is to be done: writes its turn, or connects.
    fn serve(&mut self, rank: Rank) {
        self.end_closing(rank);
        self.finish_spare(rank);
        match self.hub.write_turn(rank) {
            Turn::Written | Turn::Again => self.hub.state().mark(rank),
            Turn::Nothing | Turn::Later => {}
            Turn::Unconnected => {
                let hub = Arc::clone(&self.hub);
                self.arrange(rank, hub.state());
            }
        }
    }

    /// What was begun on a connection is written to its end, also where another one is taken by now: it may be the proof that
    /// a handshake ends with, or half a frame.
    fn finish_spare(&mut self, rank: Rank) {
        let own = self.hub.rank();
        let Some(spare) = self.hub.state().peer(rank).spare(own).cloned() else {
            return;
        };
        let mut line = spare.line();
        if line.is_writable && !line.is_empty() && line.write(&spare.stream).is_err() {
            end(&spare);
        }
    }

    /// Connections to a rank that are to be closed are, once nothing is left to write.
    fn end_closing(&mut self, rank: Rank) {
        self.conns.retain(|_, conn| {
            let is_closing = conn.rank == rank && conn.is_closing.load(Ordering::Relaxed);
            let ends = is_closing && !matches!(conn.line().write(&conn.stream), Ok(Wrote::Some));
            if ends {
                // The other end may have gone first.
                let _ = conn.stream.shutdown(Shutdown::Write);
            }
            !ends
        });
    }

    /// Begins a handshake.
    pub(super) fn begin(&mut self, stream: TcpStream, greeter: Greeter, wanted: Option<Rank>) {
        let id = self.next_id;
        self.next_id += 1;
        let both = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        let added = epoll::add(&self.epoll, &stream, EventData::new_u64(id), both);
        if added.is_err() {
            if let Some(rank) = wanted {
                self.failed(rank);
            }
            return;
        }
        let greeting = Greeting {
            stream,
            greeter,
            wanted,
            is_connecting: wanted.is_some(),
            deadline: Instant::now() + GREETING_MAX,
            refused: None,
        };
        self.greetings.insert(id, greeting);
    }

    /// Somebody connects.
    fn accept(&mut self) {
        for _ in 0..TURN_GUESTS {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor is left, say. Whoever waits would be found again at once.
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            let waiting = self
                .greetings
                .iter()
                .filter(|(_, one)| one.wanted.is_none());
            if waiting.clone().count() >= GREETINGS_MAX {
                // The oldest has had its time: a handshake takes milliseconds.
                let oldest = waiting.map(|(id, _)| *id).next();
                oldest.and_then(|id| self.greetings.remove(&id));
                self.refuse(None, None, Refusal::Late);
            }
            let is_far = !from.ip().to_canonical().is_loopback();
            if self.hub.is_local && is_far {
                self.refuse(None, Some(from), Refusal::Secret);
                continue;
            }
            let greeter = Greeter::second(&self.hub.badge);
            if let (Ok(()), Ok(greeter)) = (socket::tune(&stream), greeter) {
                self.begin(stream, greeter, None);
            }
        }
    }

    /// Takes a handshake as far as it goes now.
    fn greet(&mut self, id: u64) {
        let Some(greeting) = self.greetings.get_mut(&id) else {
            return;
        };
        let look = advance(greeting, &self.hub);
        let from = greeting.stream.peer_addr().ok();
        let wanted = greeting.wanted;
        match look {
            Look::Wait => {}
            Look::Done(keys) => self.settle(id, *keys),
            Look::Refused(refusal) => {
                let told = &mut greeting.refused;
                let is_told = !greeting.greeter.output.is_empty();
                // Who is told why stays until that is sent.
                *told = Some(refusal);
                if !is_told {
                    self.greetings.remove(&id);
                }
                self.refuse(wanted, from, refusal);
            }
            Look::Failed => {
                let was_refused = greeting.refused.is_some();
                self.greetings.remove(&id);
                if let Some(rank) = wanted.filter(|_| !was_refused) {
                    self.failed(rank);
                }
            }
        }
    }

    /// Both ends have proved themselves.
    fn settle(&mut self, id: u64, keys: Keys) {
        let Some(greeting) = self.greetings.remove(&id) else {
            return;
        };
        let hello = keys.other;
        let admitted = match greeting.wanted {
            Some(rank) if rank != hello.rank => Err(Refusal::Rank),
            Some(_) => self.hub.admits(&hello),
            None => Ok(()),
        };
        if let Err(refusal) = admitted {
            let from = greeting.stream.peer_addr().ok();
            self.refuse(greeting.wanted, from, refusal);
            return;
        }
        let out = EventFlags::OUT | EventFlags::ET;
        // What cannot be watched any more is found out by the thread that reads.
        let _ = epoll::modify(&self.epoll, &greeting.stream, EventData::new_u64(id), out);
        let listens = listens(&greeting, &hello);
        let conn = Arc::new(Conn {
            id,
            rank: hello.rank,
            stream: greeting.stream,
            is_ours: greeting.wanted.is_some(),
            seed_in: keys.seed_in,
            cipher: self.hub.badge.encrypt.then_some(keys.cipher),
            is_closing: AtomicBool::new(false),
            used: AtomicU64::new(self.hub.turns()),
            line: Mutex::new(Line::new(keys.seed_out, greeting.greeter.output)),
        });
        self.conns.insert(id, Arc::clone(&conn));
        self.hub.up(conn, &hello, listens);
        self.close_least_used();
    }

    /// Closes a connection for want of use where there are too many.
    fn close_least_used(&mut self) {
        if self.conns.len() <= CONNS_MAX {
            return;
        }
        let others = self.conns.values().filter(|conn| conn.rank != Rank(0));
        let mut by_use: Vec<&Arc<Conn>> = others.collect();
        by_use.sort_by_key(|conn| conn.used.load(Ordering::Relaxed));
        for conn in by_use {
            let mut line = conn.line();
            let is_idle = line.is_empty() && self.hub.state().peer(conn.rank).queue.is_empty();
            if is_idle {
                line.say_bye(conn.cipher.as_ref());
                drop(line);
                self.hub.retire(conn);
                return;
            }
        }
    }

    /// Ends handshakes that take too long.
    fn expire(&mut self) {
        let now = Instant::now();
        let late = self.greetings.iter().filter(|(_, one)| one.deadline <= now);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            let Some(greeting) = self.greetings.remove(&id) else {
                continue;
            };
            if greeting.refused.is_none() {
                let from = greeting.stream.peer_addr().ok();
                self.refuse(greeting.wanted, from, Refusal::Late);
            }
        }
    }

    /// Somebody was refused, here or there: counted, and said once for each reason.
    fn refuse(&mut self, wanted: Option<Rank>, from: Option<SocketAddr>, refusal: Refusal) {
        let mut state = self.hub.state();
        let troubles = match wanted {
            Some(rank) => &mut state.peer(rank).troubles,
            None => &mut state.strangers,
        };
        troubles.refused += 1;
        drop(state);
        if self.said.insert(refusal) {
            let own = self.hub.rank();
            let whom = from.map_or_else(|| "somebody".to_owned(), |from| from.to_string());
            let what = refusal.text();
            tracing::warn!("rank {own}: peers: no connection with {whom}: {what} (said once)");
        }
        if let Some(rank) = wanted {
            self.failed(rank);
        }
    }
}
