//! Two ranks over queues: whatever the order of arrival, a request is answered, an answer is taken once, and letting go of a
//! receiver ends its thread.

use std::sync::Arc;

use foresee_core::ids::{Rank, SampleId};
use foresee_core::units::Bytes;

use super::explore;
use crate::peers::{Answered, Asked, Parked, Parking, Waiting};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use crate::transport::memory::{End, Network};
use crate::transport::{
    Answer, Content, HandOver, Message, Payload, Receive, Sent, Ticket, Transport,
};

const SAMPLES: u32 = 2;

/// A rank that asks, or has what is asked for once it was handed over.
struct Peer {
    end: End,
    books: Mutex<Books>,
    changed: Condvar,
}

struct Books {
    asked: Asked<()>,
    parked: Parked,
    /// What is held here.
    held: Vec<SampleId>,
    delivered: Vec<SampleId>,
    given_up: Vec<SampleId>,
}

impl Peer {
    fn new(end: End) -> Arc<Self> {
        Arc::new(Self {
            end,
            books: Mutex::new(Books {
                asked: Asked::new(2),
                parked: Parked::new(2, SAMPLES as usize),
                held: Vec::new(),
                delivered: Vec::new(),
                given_up: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        whole(self.books.lock())
    }

    fn answer(&self, waiting: Waiting, sample: SampleId) {
        let Waiting { rank, ticket } = waiting;
        let content = Content::Sample(Payload::new([sample.0 as u8]));
        // An asker that is gone waits for nothing.
        let _ = self
            .end
            .send(rank, Message::Answer(Answer { ticket, content }));
    }

    fn asked(&self, waiting: Waiting, sample: SampleId) {
        let mut books = self.books();
        if books.held.contains(&sample) {
            drop(books);
            self.answer(waiting, sample);
        } else {
            assert_eq!(books.parked.park(sample, waiting), Parking::Parked);
        }
    }

    fn handed_over(&self, sample: SampleId) {
        let mut books = self.books();
        books.held.push(sample);
        let all = books.parked.take(sample);
        drop(books);
        for waiting in all {
            self.answer(waiting, sample);
        }
    }

    fn answered(&self, from: Rank, answer: Answer) {
        let mut books = self.books();
        match books.asked.answered(from, answer) {
            Answered::Came(request, payload) => {
                assert_eq!(payload.bytes(), [request.sample.0 as u8]);
                books.delivered.push(request.sample);
            }
            Answered::Refused { request, .. } => books.given_up.push(request.sample),
            Answered::Ignored => {}
        }
        drop(books);
        self.changed.notify_all();
    }

    /// All that was asked came, or was given up.
    fn wait(&self) -> Vec<SampleId> {
        let short = |books: &mut Books| books.asked.open().next().is_some();
        let waited = self.changed.wait_while(self.books(), short);
        let books = whole(waited);
        let mut all = books.delivered.clone();
        all.extend(&books.given_up);
        all.sort_unstable();
        all
    }

    fn ask(&self, sample: SampleId) {
        let asked = self.books().asked.ask(Rank(1), sample, Bytes(1), ());
        if let Ok(ask) = asked
            && self.end.send(Rank(1), Message::Ask(ask)) != Sent::Taken
        {
            self.unsent(ask.ticket);
        }
    }

    fn unsent(&self, ticket: Ticket) {
        let mut books = self.books();
        if let Answered::Refused { request, .. } = books.asked.refuse(ticket) {
            books.given_up.push(request.sample);
        }
        drop(books);
        self.changed.notify_all();
    }
}

impl Receive for Peer {
    fn receive(&self, from: Rank, message: Message) {
        match message {
            Message::Ask(ask) => {
                let ticket = ask.ticket;
                self.asked(Waiting { rank: from, ticket }, ask.sample);
            }
            Message::Answer(answer) => self.answered(from, answer),
            Message::HandOver(HandOver { sample, .. }) => self.handed_over(sample),
            Message::Done(_) => {}
        }
    }

    fn lost(&self, rank: Rank) {
        let mut books = self.books();
        let given_up = books.asked.expired(rank);
        let samples = given_up.into_iter().map(|request| request.sample);
        books.given_up.extend(samples);
        drop(books);
        self.changed.notify_all();
    }
}

fn pair() -> (Arc<Network>, [Arc<Peer>; 2]) {
    let network = Network::new(2);
    let mut ends = network.ends();
    let second = Peer::new(ends.swap_remove(1));
    let first = Peer::new(ends.swap_remove(0));
    (network, [first, second])
}

#[test]
fn what_is_asked_before_it_is_there_is_answered_when_it_is() {
    explore(|| {
        let (_network, [asker, holder]) = pair();
        let serving = [&asker, &holder].map(|peer| {
            let receiver = Arc::<Peer>::clone(peer);
            peer.end.serve(receiver).unwrap()
        });
        let reader = Arc::clone(&asker);
        let handing = thread::spawn(move || {
            for sample in (0..SAMPLES).map(SampleId) {
                let content = Content::Sample(Payload::new([sample.0 as u8]));
                let message = Message::HandOver(HandOver::unstamped(sample, content));
                assert_eq!(reader.end.send(Rank(1), message), Sent::Taken);
            }
        });
        for sample in (0..SAMPLES).map(SampleId) {
            asker.ask(sample);
        }
        assert_eq!(asker.wait(), [0, 1].map(SampleId));
        assert_eq!(asker.books().delivered.len(), 2, "each of them once");
        handing.join().unwrap();
        drop(serving);
    });
}

#[test]
fn a_rank_that_dies_is_given_up_whatever_it_was_asked() {
    explore(|| {
        let (network, [asker, holder]) = pair();
        let serving = [&asker, &holder].map(|peer| {
            let receiver = Arc::<Peer>::clone(peer);
            peer.end.serve(receiver).unwrap()
        });
        holder.books().held.push(SampleId(0));
        let killing = thread::spawn(move || network.kill(Rank(1)));
        for sample in (0..SAMPLES).map(SampleId) {
            asker.ask(sample);
        }
        // Sample 0 may have come before the end; nobody ever handed the other one over.
        let settled = asker.wait();
        assert!(settled.contains(&SampleId(1)) || asker.books().asked.is_mute(Rank(1)));
        assert_eq!(asker.books().asked.open().count(), 0);
        killing.join().unwrap();
        drop(serving);
    });
}
