//! A transport that fails on purpose. What happens to a message follows from the seed, what the message is and how often it
//! was sent, so a run with faults can be repeated; a rank falls silent, or dies, when the test says so.
//!
//! Only what this rank sends is touched: to make all ways of a world unsafe, wrap each rank's end.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use foresee_core::ids::Rank;
use twox_hash::XxHash3_64;

use super::{
    Absent, Answer, Content, Gather, Given, HandOver, Message, Payload, Receive, Sent, Serving,
    Transport, Troubles,
};
use crate::sync::{Mutex, MutexGuard, whole};

/// A late message is overtaken by so many others at most.
const OVERTAKEN_MAX: u64 = 8;

/// What goes wrong, and how often: rates are between 0 (never) and 1 (with every message).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Another one hits other messages.
    pub seed: u64,
    /// Rate of messages that never arrive.
    pub dropped: f64,
    /// Rate of messages that arrive twice.
    pub doubled: f64,
    /// Rate of messages that others overtake.
    pub delayed: f64,
    /// Rate of samples that arrive with another length.
    pub garbled: f64,
}

/// Kinds of faults, each drawn on its own.
#[derive(Clone, Copy)]
enum Kind {
    Dropped = 1,
    Doubled = 2,
    Delayed = 3,
    Garbled = 4,
}

/// What a message is known by: its kind, its ticket or sample, and whom it is for.
type Name = (u8, u64, Rank);

fn name(to: Rank, message: &Message) -> Name {
    match message {
        Message::Ask(ask) => (0, ask.ticket.0, to),
        Message::Answer(answer) => (1, answer.ticket.0, to),
        Message::HandOver(hand_over) => (2, u64::from(hand_over.sample.0), to),
        Message::Done(_) => (3, 0, to),
    }
}

/// One sending of a message.
struct Sending {
    from: Rank,
    name: Name,
    /// How often it was sent before.
    before: u32,
}

impl Faults {
    fn drawn(&self, kind: Kind, sending: &Sending) -> u64 {
        let (message, number, to) = sending.name;
        let mut key = Vec::with_capacity(22);
        key.extend([kind as u8, message]);
        key.extend(number.to_le_bytes());
        key.extend(sending.from.0.to_le_bytes());
        key.extend(to.0.to_le_bytes());
        key.extend(sending.before.to_le_bytes());
        XxHash3_64::oneshot_with_seed(self.seed, &key)
    }

    /// Whether this sending meets this fault.
    fn meets(&self, kind: Kind, rate: f64, sending: &Sending) -> bool {
        // The upper 53 bits: all that a number below 1 has room for.
        let uniform = (self.drawn(kind, sending) >> 11) as f64 / (1_u64 << 53) as f64;
        uniform < rate
    }
}

/// How a rank fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    /// It says nothing, for now.
    Mute,
    /// It says nothing, for ever.
    Dead,
}

/// A message that is not on its way yet.
struct Withheld {
    /// Sent when this many others have been.
    due: u64,
    to: Rank,
    message: Message,
}

struct State {
    health: Health,
    sent: u64,
    held: Vec<Withheld>,
    times: BTreeMap<Name, u32>,
    injected: u64,
}

/// A transport with faults.
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
    state: Mutex<State>,
}

impl<T: Transport> Faulty<T> {
    /// `inner` with faults.
    pub fn new(inner: T, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            state: Mutex::new(State {
                health: Health::Well,
                sent: 0,
                held: Vec::new(),
                times: BTreeMap::new(),
                injected: 0,
            }),
        }
    }

    /// This rank says nothing until [`Faulty::speak`], as one that is stopped.
    pub fn mute(&self) {
        let mut state = self.state();
        if state.health == Health::Well {
            state.health = Health::Mute;
        }
    }

    /// This rank says what it could not say, and goes on.
    pub fn speak(&self) {
        let mut state = self.state();
        if state.health == Health::Mute {
            state.health = Health::Well;
        }
        drop(state);
        self.catch_up();
    }

    /// This rank says nothing any more.
    pub fn kill(&self) {
        let mut state = self.state();
        state.health = Health::Dead;
        state.held.clear();
    }

    /// Sends what others overtook and nothing has been sent after.
    pub fn catch_up(&self) {
        let mut state = self.state();
        if state.health != Health::Well {
            return;
        }
        let held = std::mem::take(&mut state.held);
        drop(state);
        for one in held {
            self.pass_on(one.to, one.message);
        }
    }

    /// How many messages met a fault so far.
    pub fn injected(&self) -> u64 {
        self.state().injected
    }

    /// A late message is refused as any other, and nobody is left to be told.
    fn pass_on(&self, to: Rank, message: Message) {
        let _ = self.inner.send(to, message);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        whole(self.state.lock())
    }

    /// What is sent now in the place of a message, which may be nothing.
    fn meet(&self, state: &mut State, to: Rank, message: Message) -> Vec<Message> {
        let name = name(to, &message);
        let times = state.times.entry(name).or_default();
        let sending = Sending {
            from: self.inner.rank(),
            name,
            before: *times,
        };
        *times += 1;
        let meets = |kind, rate| self.faults.meets(kind, rate, &sending);
        let mut now = vec![message];
        if meets(Kind::Garbled, self.faults.garbled) {
            now = now.into_iter().map(garbled).collect();
            state.injected += 1;
        }
        if meets(Kind::Doubled, self.faults.doubled) {
            now.extend(now.clone());
            state.injected += 1;
        }
        if meets(Kind::Dropped, self.faults.dropped) {
            now.clear();
            state.injected += 1;
        } else if meets(Kind::Delayed, self.faults.delayed) {
            let later = 1 + self.faults.drawn(Kind::Delayed, &sending) % OVERTAKEN_MAX;
            let due = state.sent + later;
            let held = |message| Withheld { due, to, message };
            state.held.extend(now.drain(..).map(held));
            state.injected += 1;
        }
        now
    }
}

/// The same message with another length.
fn garbled(message: Message) -> Message {
    let other = |content: Content| match content {
        Content::Sample(payload) => {
            let mut bytes = payload.bytes().to_vec();
            // Longer where it cannot be shorter.
            if bytes.pop().is_none() {
                bytes.push(0);
            }
            Content::Sample(Payload::new(bytes))
        }
        Content::Here | Content::InFile(_) | Content::WillNotCome => Content::WillNotCome,
    };
    match message {
        Message::Ask(ask) => Message::Ask(ask),
        Message::Answer(Answer { ticket, content }) => Message::Answer(Answer {
            ticket,
            content: other(content),
        }),
        Message::HandOver(handed) => Message::HandOver(HandOver {
            content: other(handed.content),
            ..handed
        }),
        Message::Done(done) => Message::Done(done),
    }
}

/// What is gathered is left alone: a rank that does not come is one that does not call.
impl<T: Transport> Gather for Faulty<T> {
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
        self.inner.gather(given, patience)
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn send(&self, to: Rank, message: Message) -> Sent {
        let mut state = self.state();
        match state.health {
            Health::Dead => return Sent::Gone,
            Health::Mute => {
                let due = state.sent;
                state.held.push(Withheld { due, to, message });
                return Sent::Taken;
            }
            Health::Well => {}
        }
        state.sent += 1;
        let sent = state.sent;
        let held = std::mem::take(&mut state.held);
        let (overtaken, held): (Vec<Withheld>, Vec<Withheld>) =
            held.into_iter().partition(|one| one.due < sent);
        state.held = held;
        let now = self.meet(&mut state, to, message);
        drop(state);
        let mut said = Sent::Taken;
        for message in now {
            said = self.inner.send(to, message);
        }
        for one in overtaken {
            self.pass_on(one.to, one.message);
        }
        said
    }

    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
        self.inner.serve(receiver)
    }

    fn greets(&self) -> bool {
        self.inner.greets()
    }

    fn greet(&self, line: &UnixStream, is_first: bool) -> io::Result<Rank> {
        self.inner.greet(line, is_first)
    }

    fn troubles(&self) -> Vec<Troubles> {
        self.inner.troubles()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::transport::conformance::{self, Member, Recorder, ask};
    use crate::transport::memory::{End, Network};

    fn world(faults: Faults) -> Vec<Member> {
        let member = |end: End| Member {
            transport: Arc::new(Faulty::new(end, faults)),
        };
        Network::new(3).ends().into_iter().map(member).collect()
    }

    #[test]
    fn conforms_without_faults_and_only_then() {
        conformance::check(&world(Faults::default()));
        let rate = 0.05;
        let each = [
            Faults {
                doubled: rate,
                ..Faults::default()
            },
            Faults {
                garbled: 1.0,
                ..Faults::default()
            },
        ];
        for faults in each {
            let members = world(faults);
            let checked = catch_unwind(AssertUnwindSafe(|| conformance::check(&members)));
            assert!(checked.is_err(), "{faults:?} are not seen");
        }
    }

    /// What comes of a hundred requests.
    fn arrivals(faults: Faults) -> Vec<Message> {
        let network = Network::new(2);
        let mut ends = network.ends();
        let end = ends.swap_remove(0);
        let sender = Faulty::new(end, faults);
        for number in 0..100 {
            assert_eq!(sender.send(Rank(1), ask(number)), Sent::Taken);
        }
        sender.catch_up();
        let seen = Recorder::default();
        while network.pump(Rank(1), &seen) {}
        seen.messages().into_iter().map(|(_, one)| one).collect()
    }

    #[test]
    fn faults_come_at_about_their_rates_and_repeat_themselves() {
        let seed = 7;
        let some = Faults {
            seed,
            dropped: 0.2,
            ..Faults::default()
        };
        let came = arrivals(some);
        assert!((70..90).contains(&came.len()), "{} came", came.len());
        assert_eq!(arrivals(some), came);
        assert_ne!(arrivals(Faults { seed: 8, ..some }), came);
        let doubled = arrivals(Faults {
            doubled: 0.2,
            dropped: 0.0,
            ..some
        });
        assert!((110..130).contains(&doubled.len()));
        let delayed = arrivals(Faults {
            delayed: 0.2,
            dropped: 0.0,
            ..some
        });
        assert_eq!(delayed.len(), 100);
        let in_order: Vec<Message> = (0..100).map(ask).collect();
        assert_ne!(delayed, in_order);
        assert!(in_order.iter().all(|one| delayed.contains(one)));
    }

    #[test]
    fn a_mute_rank_says_later_what_it_could_not_say_and_a_dead_one_never_does() {
        let network = Network::new(2);
        let mut ends = network.ends();
        let end = ends.swap_remove(0);
        let faulty = Faulty::new(end, Faults::default());
        faulty.mute();
        assert_eq!(faulty.send(Rank(1), ask(0)), Sent::Taken);
        assert_eq!(network.waiting(Rank(1)), 0);
        faulty.speak();
        assert_eq!(network.waiting(Rank(1)), 1);
        faulty.mute();
        assert_eq!(faulty.send(Rank(1), ask(1)), Sent::Taken);
        faulty.kill();
        assert_eq!(faulty.send(Rank(1), ask(2)), Sent::Gone);
        faulty.speak();
        assert_eq!(network.waiting(Rank(1)), 1);
    }
}
