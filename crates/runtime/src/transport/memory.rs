//! Ranks of one process, joined by queues: for tests of what many ranks do together.
//!
//! Each rank has an inbox. Sending appends to it and waits for nobody; beyond its bound it is full. Who receives is either
//! a thread ([`Transport::serve`]), or the test itself, message by message ([`Network::pump`]): then nothing runs by itself,
//! and a run can be repeated.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::{Absent, Gather, Given, Message, Receive, Sent, Serving, Transport};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};

/// Messages that may wait at one rank.
const INBOX_MAX: usize = 1 << 16;

/// What happened to the way to a rank.
#[derive(Clone, Copy)]
enum Way {
    Lost(Rank),
    Found(Rank),
}

/// What waits at a rank.
#[derive(Default)]
struct Inbox {
    messages: VecDeque<(Rank, Message)>,
    /// What this one is to be told of the ways to others.
    ways: VecDeque<Way>,
    /// Whether the thread that serves is to end.
    stop: bool,
    /// Whether there ever was one.
    served: bool,
}

/// One rank's place.
#[derive(Default)]
struct Place {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Whether nothing arrives here any more, and nothing is sent.
    gone: AtomicBool,
}

impl Place {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        whole(self.inbox.lock())
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// What ranks have brought to gather, call by call.
#[derive(Default)]
struct Rounds {
    /// What was given in each call, by rank.
    given: Vec<Vec<Option<Given>>>,
    /// How often each rank has called.
    calls: Vec<usize>,
}

/// The ranks of a world.
pub struct Network {
    places: Vec<Place>,
    rounds: Mutex<Rounds>,
    all_came: Condvar,
    inbox_max: usize,
    /// Whether ranks tell each other who they are, so that they can share memory.
    greets: bool,
}

impl Network {
    /// A world of so many ranks.
    pub fn new(ranks: u32) -> Arc<Self> {
        Self::with_bound(ranks, INBOX_MAX)
    }

    /// The same, where at most so many messages wait at a rank.
    pub fn with_bound(ranks: u32, inbox_max: usize) -> Arc<Self> {
        Self::made(ranks, inbox_max, false)
    }

    /// The same, where ranks share their memory.
    pub fn of_a_host(ranks: u32, inbox_max: usize) -> Arc<Self> {
        Self::made(ranks, inbox_max, true)
    }

    fn made(ranks: u32, inbox_max: usize, greets: bool) -> Arc<Self> {
        let ranks = ranks as usize;
        Arc::new(Self {
            places: (0..ranks).map(|_| Place::default()).collect(),
            rounds: Mutex::new(Rounds {
                given: Vec::new(),
                calls: vec![0; ranks],
            }),
            all_came: Condvar::new(),
            inbox_max,
            greets,
        })
    }

    /// The ends of all ranks, in order.
    pub fn ends(self: &Arc<Self>) -> Vec<End> {
        let ranks = (0..self.places.len() as u32).map(Rank);
        let end = |rank| End {
            network: Arc::clone(self),
            rank,
            _presence: Arc::new(Presence {
                network: Arc::clone(self),
                rank,
            }),
        };
        ranks.map(end).collect()
    }

    /// Hands the next message that waits at a rank to `receiver`; false where none does.
    pub fn pump(&self, rank: Rank, receiver: &dyn Receive) -> bool {
        let next = self.place(rank).inbox().next();
        match next {
            Some(arrived) => {
                arrived.hand_to(receiver);
                true
            }
            None => false,
        }
    }

    /// How many messages wait at a rank.
    pub fn waiting(&self, rank: Rank) -> usize {
        self.place(rank).inbox().messages.len()
    }

    /// A rank dies: what waits for it is dropped, nothing more arrives there, and the others are told.
    pub fn kill(&self, rank: Rank) {
        let place = self.place(rank);
        place.gone.store(true, Ordering::SeqCst);
        place.inbox().messages.clear();
        self.tell_others(Way::Lost(rank), rank);
    }

    /// The way to a rank is broken off and there again: both ends notice, as with a connection. The others are told that it is
    /// lost, it is told so of them, and each may hear the other later.
    pub fn interrupt(&self, rank: Rank) {
        self.tell_others(Way::Lost(rank), rank);
        self.tell_of_others(Way::Lost, rank);
    }

    /// The way to a rank that was broken off is there again, and both ends are told, as with a connection.
    pub fn reconnect(&self, rank: Rank) {
        self.tell_others(Way::Found(rank), rank);
        self.tell_of_others(Way::Found, rank);
    }

    /// All others are told of a rank.
    fn tell_others(&self, way: Way, rank: Rank) {
        for (index, place) in self.places.iter().enumerate() {
            if index != rank.index() {
                place.inbox().ways.push_back(way);
                place.arrived.notify_all();
            }
        }
    }

    /// A rank is told of all others.
    fn tell_of_others(&self, way: impl Fn(Rank) -> Way, rank: Rank) {
        let others = (0..self.places.len() as u32).map(Rank);
        let place = self.place(rank);
        let others = others.filter(|other| *other != rank);
        place.inbox().ways.extend(others.map(way));
        place.arrived.notify_all();
    }

    fn place(&self, rank: Rank) -> &Place {
        &self.places[rank.index()]
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        whole(self.rounds.lock())
    }
}

/// What a receiver is told next.
enum Arrived {
    Message(Rank, Message),
    Way(Way),
}

impl Arrived {
    fn hand_to(self, receiver: &dyn Receive) {
        match self {
            Self::Message(from, message) => receiver.receive(from, message),
            Self::Way(Way::Lost(rank)) => receiver.lost(rank),
            Self::Way(Way::Found(rank)) => receiver.found(rank),
        }
    }
}

impl Inbox {
    /// A loss comes after what was sent before it.
    fn next(&mut self) -> Option<Arrived> {
        let message = self.messages.pop_front();
        let message = message.map(|(from, message)| Arrived::Message(from, message));
        message.or_else(|| self.ways.pop_front().map(Arrived::Way))
    }
}

impl Rounds {
    /// Notes what a rank gives, and says in which call.
    fn give(&mut self, rank: Rank, given: Given) -> usize {
        let ranks = self.calls.len();
        let call = self.calls[rank.index()];
        self.calls[rank.index()] += 1;
        if self.given.len() == call {
            self.given.push(vec![None; ranks]);
        }
        self.given[call][rank.index()] = Some(given);
        call
    }

    /// What all ranks gave to one in a call, once they have.
    fn all(&self, call: usize, to: Rank) -> Option<Vec<Vec<u8>>> {
        let given = self.given[call].iter();
        given
            .map(|given| Some(given.as_ref()?.for_rank(to).to_vec()))
            .collect()
    }

    /// Who has given nothing in a call.
    fn absent(&self, call: usize) -> Absent {
        let given = (0..).map(Rank).zip(&self.given[call]);
        let absent = given.filter(|(_, given)| given.is_none());
        Absent(absent.map(|(rank, _)| rank).collect())
    }
}

/// One rank's end. With the last of its clones a rank that has served is gone, and the others are told.
#[derive(Clone)]
pub struct End {
    network: Arc<Network>,
    rank: Rank,
    _presence: Arc<Presence>,
}

/// A rank that has an end.
struct Presence {
    network: Arc<Network>,
    rank: Rank,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let place = self.network.place(self.rank);
        let was_served = place.inbox().served;
        if was_served && !place.is_gone() {
            self.network.kill(self.rank);
        }
    }
}

impl Transport for End {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&self, to: Rank, message: Message) -> Sent {
        assert_ne!(to, self.rank, "a rank does not talk to itself");
        let place = self.network.place(to);
        let mut inbox = place.inbox();
        // With the lock: nobody hears a rank after it was told of its death.
        if place.is_gone() || self.network.place(self.rank).is_gone() {
            return Sent::Gone;
        }
        if inbox.messages.len() >= self.network.inbox_max {
            return Sent::Full;
        }
        inbox.messages.push_back((self.rank, message));
        drop(inbox);
        place.arrived.notify_one();
        Sent::Taken
    }

    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
        let mut inbox = self.network.place(self.rank).inbox();
        inbox.stop = false;
        inbox.served = true;
        drop(inbox);
        let end = self.clone();
        let thread = thread::Builder::new()
            .name(format!("foresee-serve-{}", self.rank))
            .spawn(move || end.run(&*receiver))?;
        Ok(Box::new(Server {
            end: self.clone(),
            thread: Some(thread),
        }))
    }

    fn greets(&self) -> bool {
        self.network.greets
    }

    /// Whoever is of this process is believed.
    fn greet(&self, line: &UnixStream, _: bool) -> io::Result<Rank> {
        let mut line = line;
        line.write_all(&self.rank.0.to_le_bytes())?;
        let mut other = [0; 4];
        line.read_exact(&mut other)?;
        Ok(Rank(u32::from_le_bytes(other)))
    }
}

impl Gather for End {
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
        let deadline = Instant::now() + patience;
        let mut rounds = self.network.rounds();
        let call = rounds.give(self.rank, given);
        self.network.all_came.notify_all();
        loop {
            if let Some(all) = rounds.all(call, self.rank) {
                return Ok(all);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(rounds.absent(call));
            }
            rounds = whole(self.network.all_came.wait_timeout(rounds, left)).0;
        }
    }
}

impl End {
    /// Hands on what arrives, until it is to stop.
    fn run(&self, receiver: &dyn Receive) {
        let place = self.network.place(self.rank);
        loop {
            let mut inbox = place.inbox();
            let next = loop {
                if inbox.stop {
                    return;
                }
                match inbox.next() {
                    Some(next) => break next,
                    None => inbox = whole(place.arrived.wait(inbox)),
                }
            };
            drop(inbox);
            next.hand_to(receiver);
        }
    }
}

/// The thread that serves a rank.
struct Server {
    end: End,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let place = self.end.network.place(self.end.rank);
        place.inbox().stop = true;
        place.arrived.notify_all();
        if let Some(thread) = self.thread.take() {
            // A receiver that panicked has said so; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::transport::conformance::{self, Member, Recorder, ask};

    fn members(network: &Arc<Network>) -> Vec<Member> {
        let member = |end: End| Member {
            transport: Arc::new(end),
        };
        network.ends().into_iter().map(member).collect()
    }

    #[test]
    fn conforms() {
        for ranks in [2, 3, 5] {
            conformance::check(&members(&Network::new(ranks)));
        }
    }

    #[test]
    fn a_full_inbox_refuses_and_goes_on_when_there_is_room() {
        let network = Network::with_bound(2, 3);
        let ends = network.ends();
        for number in 0..3 {
            assert_eq!(ends[0].send(Rank(1), ask(number)), Sent::Taken);
        }
        assert_eq!(ends[0].send(Rank(1), ask(3)), Sent::Full);
        assert!(network.pump(Rank(1), &Recorder::default()));
        assert_eq!(ends[0].send(Rank(1), ask(4)), Sent::Taken);
        assert_eq!(network.waiting(Rank(1)), 3);
    }

    #[test]
    fn a_dead_rank_is_gone_for_all_and_all_are_told() {
        let network = Network::new(3);
        let ends = network.ends();
        assert_eq!(ends[1].send(Rank(2), ask(0)), Sent::Taken);
        network.kill(Rank(1));
        assert_eq!(ends[0].send(Rank(1), ask(0)), Sent::Gone);
        assert_eq!(ends[1].send(Rank(0), ask(0)), Sent::Gone);
        let seen = Recorder::default();
        while network.pump(Rank(2), &seen) {}
        assert_eq!(seen.messages(), [(Rank(1), ask(0))]);
        assert_eq!(seen.lost(), [Rank(1)]);
    }

    #[test]
    fn gathering_ends_where_somebody_does_not_come() {
        let ends = Network::new(3).ends();
        assert_eq!(
            ends[1].gather(Given::to_all(vec![1]), Duration::from_millis(5)),
            Err(Absent(vec![Rank(0), Rank(2)]))
        );
    }
}
