//! What every transport must do where nothing fails, as a function that any implementation can be run against in its tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use foresee_core::ids::{Rank, SampleId};

use super::{
    Answer, Ask, Content, Done, Given, HandOver, Message, Payload, REPORT_BYTES_MAX, Receive, Sent,
    Serving, Ticket, Transport,
};
use crate::stamp::Stamp;

/// How long anything may take to arrive: far more than any machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that each thread of each rank sends to each other rank.
const EACH: u64 = 50;
const SENDERS: u64 = 2;

/// Lengths of samples that were ever a special case: none, one, around a page, more than a socket takes at once.
const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 65_537, 3 << 20];

/// One rank as the suite needs it.
pub struct Member {
    /// Its way to the others.
    pub transport: Arc<dyn Transport>,
}

/// Checks that
///
/// - ranks are numbered in order,
/// - each kind of message arrives as it was sent, whatever its length, with the sender's rank, once, and nowhere else,
/// - what is sent before there is a receiver waits for it,
/// - several threads of several ranks can send at once, and answers can be sent from within a receiver,
/// - after a receiver was let go of nothing is handed to it, and another one can take over,
/// - gathering gives each rank what all gave, in order, time after time.
///
/// # Panics
///
/// With a sentence that says what the transport does wrong.
pub fn check(members: &[Member]) {
    for (rank, member) in (0..).map(Rank).zip(members) {
        let said = member.transport.rank();
        assert_eq!(said, rank, "ranks are in order");
    }
    check_gather(members);
    check_gather_for_some(members);
    check_kinds(members);
    check_crowd(members);
    check_answers(members);
    check_end(members);
}

/// A request with a number.
pub fn ask(number: u64) -> Message {
    Message::Ask(Ask {
        ticket: Ticket(number),
        sample: SampleId(number as u32),
    })
}

fn payload(seed: usize, len: usize) -> Content {
    let bytes: Vec<u8> = (0..len)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect();
    Content::Sample(Payload::new(bytes))
}

/// Notes all that arrives.
#[derive(Default)]
pub struct Recorder {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    messages: Vec<(Rank, Message)>,
    lost: Vec<Rank>,
    found: Vec<Rank>,
}

impl Recorder {
    /// What arrived so far, in order.
    pub fn messages(&self) -> Vec<(Rank, Message)> {
        self.seen().messages.clone()
    }

    /// Who was lost so far.
    pub fn lost(&self) -> Vec<Rank> {
        self.seen().lost.clone()
    }

    /// Who came back so far.
    pub fn found(&self) -> Vec<Rank> {
        self.seen().found.clone()
    }

    /// Waits until so many messages have arrived.
    fn wait_for(&self, number: usize) -> Vec<(Rank, Message)> {
        let short = |seen: &mut Seen| seen.messages.len() < number;
        let waited = self
            .changed
            .wait_timeout_while(self.seen(), PATIENCE, short);
        let (seen, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let came = seen.messages.len();
        assert!(came >= number, "{number} messages were sent, {came} came");
        seen.messages.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receive for Recorder {
    fn receive(&self, from: Rank, message: Message) {
        self.seen().messages.push((from, message));
        self.changed.notify_all();
    }

    fn lost(&self, rank: Rank) {
        self.seen().lost.push(rank);
    }

    fn found(&self, rank: Rank) {
        self.seen().found.push(rank);
    }
}

fn send(member: &Member, to: Rank, message: Message) {
    let sent = member.transport.send(to, message);
    assert_eq!(
        sent,
        Sent::Taken,
        "a message must be taken where all is well"
    );
}

fn serve(member: &Member, receiver: Arc<dyn Receive>) -> Serving {
    let serving = member.transport.serve(receiver);
    serving.expect("a rank must be able to serve")
}

/// A recorder at each rank.
fn serve_all(members: &[Member]) -> (Vec<Arc<Recorder>>, Vec<Serving>) {
    let record = |member: &Member| {
        let recorder = Arc::<Recorder>::default();
        let serving = serve(member, Arc::<Recorder>::clone(&recorder));
        (recorder, serving)
    };
    members.iter().map(record).unzip()
}

fn check_gather(members: &[Member]) {
    for round in 0..3_u8 {
        let expected: Vec<Vec<u8>> = (0..members.len())
            .map(|rank| vec![round; rank * 1000])
            .collect();
        thread::scope(|scope| {
            for (member, share) in members.iter().zip(&expected) {
                scope.spawn(|| {
                    let given = Given::to_all(share.clone());
                    let gathered = member.transport.gather(given, PATIENCE);
                    assert_eq!(
                        gathered.as_ref(),
                        Ok(&expected),
                        "each rank must get what all gave, in order"
                    );
                });
            }
        });
    }
}

/// Each rank has something for itself and those behind it, and less for the others.
fn check_gather_for_some(members: &[Member]) {
    let ranks = members.len() as u32;
    thread::scope(|scope| {
        for (rank, member) in (0..ranks).zip(members) {
            let given = Given {
                readers: rank..ranks,
                whole: vec![1; 10 + rank as usize],
                rest: vec![2; rank as usize],
            };
            scope.spawn(move || {
                let gathered = member.transport.gather(given, PATIENCE);
                let expected = (0..ranks).map(|from| {
                    let is_reader = from <= rank;
                    if is_reader {
                        vec![1; 10 + from as usize]
                    } else {
                        vec![2; from as usize]
                    }
                });
                assert_eq!(
                    gathered,
                    Ok(expected.collect()),
                    "each rank must get what is for it"
                );
            });
        }
    });
}

fn stamp(number: usize) -> Stamp {
    Stamp {
        size_bytes: number as u64,
        mtime_ns: -1,
        ctime_ns: i64::MAX,
        inode: u64::MAX,
        mount: 7,
        trusted: true,
    }
}

fn check_kinds(members: &[Member]) {
    let last = Rank(members.len() as u32 - 1);
    let mut sent = vec![ask(u64::MAX)];
    for (number, len) in LENGTHS.into_iter().enumerate() {
        sent.push(Message::Answer(Answer {
            ticket: Ticket(number as u64),
            content: payload(number, len),
        }));
        sent.push(Message::HandOver(HandOver {
            sample: SampleId(number as u32),
            content: payload(number + 1, len),
            stamp: (number % 2 == 0).then(|| stamp(number)),
        }));
    }
    sent.push(Message::HandOver(HandOver {
        sample: SampleId(8),
        content: Content::Here,
        stamp: Some(stamp(8)),
    }));
    sent.push(Message::HandOver(HandOver::unstamped(
        SampleId(7),
        Content::Here,
    )));
    sent.push(Message::Answer(Answer {
        ticket: Ticket(9),
        content: Content::WillNotCome,
    }));
    sent.push(Message::HandOver(HandOver::unstamped(
        SampleId(9),
        Content::WillNotCome,
    )));
    for len in [0, 1, REPORT_BYTES_MAX] {
        let report = vec![len as u8; len];
        sent.push(Message::Done(Done { report }));
    }
    for message in &sent {
        send(&members[0], last, message.clone());
    }
    let (recorders, serving) = serve_all(members);
    let came = recorders[last.index()].wait_for(sent.len());
    drop(serving);
    assert_eq!(came.len(), sent.len(), "no message may come twice");
    for (from, message) in &came {
        assert_eq!(*from, Rank(0), "a message names who sent it");
        let place = sent.iter().position(|one| one == message);
        let place = place.expect("a message must arrive as it was sent");
        sent.swap_remove(place);
    }
    let elsewhere = &recorders[..last.index()];
    assert!(
        elsewhere.iter().all(|other| other.messages().is_empty()),
        "a message must arrive nowhere else"
    );
}

/// All send to all, from several threads.
fn check_crowd(members: &[Member]) {
    let (recorders, serving) = serve_all(members);
    let ranks = || (0..members.len() as u32).map(Rank);
    thread::scope(|scope| {
        for member in members {
            for sender in 0..SENDERS {
                scope.spawn(move || {
                    let from = member.transport.rank();
                    for number in 0..EACH {
                        for to in ranks().filter(|to| *to != from) {
                            send(member, to, ask(sender * EACH + number));
                        }
                    }
                });
            }
        }
    });
    let expected = (members.len() as u64 - 1) * SENDERS * EACH;
    for (rank, recorder) in ranks().zip(&recorders) {
        let mut times: BTreeMap<(Rank, u64), u32> = BTreeMap::new();
        for (from, message) in recorder.wait_for(expected as usize) {
            let Message::Ask(ask) = message else {
                panic!("only requests were sent, not {message:?}")
            };
            *times.entry((from, ask.ticket.0)).or_default() += 1;
        }
        assert_eq!(times.len() as u64, expected, "rank {rank} must get all");
        assert!(
            times.values().all(|times| *times == 1),
            "rank {rank} must get each message once"
        );
    }
    drop(serving);
}

/// Answers each request from within the call.
struct Echo(Arc<dyn Transport>);

impl Receive for Echo {
    fn receive(&self, from: Rank, message: Message) {
        if let Message::Ask(Ask { ticket, .. }) = message {
            let content = payload(ticket.0 as usize, 100);
            let answer = Message::Answer(Answer { ticket, content });
            let sent = self.0.send(from, answer);
            assert_eq!(sent, Sent::Taken, "an answer must be taken");
        }
    }

    fn lost(&self, rank: Rank) {
        panic!("rank {rank} is not lost");
    }
}

fn check_answers(members: &[Member]) {
    let holder = &members[1];
    let echo = Arc::new(Echo(Arc::clone(&holder.transport)));
    let holding = serve(holder, echo);
    let recorder = Arc::<Recorder>::default();
    let asking = serve(&members[0], Arc::<Recorder>::clone(&recorder));
    for number in 0..EACH {
        send(&members[0], Rank(1), ask(number));
    }
    for (_, message) in recorder.wait_for(EACH as usize) {
        let Message::Answer(Answer { ticket, content }) = message else {
            panic!("only answers were sent, not {message:?}")
        };
        let expected = payload(ticket.0 as usize, 100);
        assert_eq!(content, expected, "each answer is that of its request");
    }
    drop(holding);
    drop(asking);
}

/// One receiver after the other, at the same rank.
fn check_end(members: &[Member]) {
    let first = Arc::<Recorder>::default();
    let serving = serve(&members[1], Arc::<Recorder>::clone(&first));
    send(&members[0], Rank(1), ask(1));
    first.wait_for(1);
    drop(serving);
    send(&members[0], Rank(1), ask(2));
    let second = Arc::<Recorder>::default();
    let serving = serve(&members[1], Arc::<Recorder>::clone(&second));
    let came = second.wait_for(1);
    drop(serving);
    assert_eq!(came, [(Rank(0), ask(2))], "another receiver takes over");
    assert_eq!(
        first.messages().len(),
        1,
        "nothing comes after the receiver was let go of"
    );
}
