//! The conformance suite over processes. The suite has all ranks in one process; MPI has one in each. So rank 0 runs it, and
//! each other rank is there as a [`Remote`], which has every call made in the rank's own process, over a socket.
//!
//! A connection is a call: a line of numbers and bytes there, one back. Serving is a call that lasts, in which what arrives
//! comes back, until the other end says that it is enough.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use foresee_core::ids::{Rank, SampleId};
use foresee_runtime::stamp::Stamp;
use foresee_runtime::transport::conformance::{self, Member};
use foresee_runtime::transport::{
    Absent, Answer, Ask, Content, Done, Gather, Given, HandOver, Mesh, Message, Payload, Receive,
    Sent, Serving, Ticket, Transport,
};

use crate::ranks::KEY;

/// What is called.
const SEND: u64 = 1;
const GATHER: u64 = 2;
const SERVE: u64 = 3;
const END: u64 = 4;

/// Between two looks whether a rank listens already.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the suite on rank 0; the others do what it says until it ends.
pub(crate) fn check(mesh: &Arc<Mesh>, folder: &Path) {
    let transport = mesh.transport(KEY);
    let path = |rank: u32| folder.join(format!("{rank}.sock"));
    if mesh.rank() != Rank(0) {
        serve_calls(&transport, &path(mesh.rank().0));
        return;
    }
    let mut members = vec![Member { transport }];
    let others = (1..mesh.world()).map(|rank| Remote {
        rank: Rank(rank),
        path: path(rank),
    });
    members.extend(others.map(|remote| Member {
        transport: Arc::new(remote),
    }));
    conformance::check(&members);
    println!("conforms: {} ranks", mesh.world());
    for rank in 1..mesh.world() {
        let remote = Remote {
            rank: Rank(rank),
            path: path(rank),
        };
        remote.call().number(END);
    }
}

/// A connection that says and hears numbers and bytes.
struct Wire(UnixStream);

impl Wire {
    fn number(&mut self, number: u64) {
        self.0.write_all(&number.to_le_bytes()).expect("a socket");
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.write_all(bytes).expect("a socket");
    }

    fn hear(&mut self) -> io::Result<u64> {
        let mut number = [0; 8];
        self.0.read_exact(&mut number)?;
        Ok(u64::from_le_bytes(number))
    }

    fn heard(&mut self) -> u64 {
        self.hear().expect("a number")
    }

    fn heard_bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.heard() as usize];
        self.0.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Sample(payload) => {
                self.number(1);
                self.bytes(payload.bytes());
            }
            Content::WillNotCome => self.number(0),
            Content::Here => self.number(2),
            Content::InFile(_) => panic!("the suite sends none"),
        }
    }

    fn heard_content(&mut self) -> Content {
        match self.heard() {
            0 => Content::WillNotCome,
            2 => Content::Here,
            _ => Content::Sample(Payload::new(self.heard_bytes())),
        }
    }

    fn stamp(&mut self, stamp: Option<&Stamp>) {
        self.number(u64::from(stamp.is_some()));
        if let Some(stamp) = stamp {
            self.number(stamp.size_bytes);
            self.number(stamp.mtime_ns.cast_unsigned());
            self.number(stamp.ctime_ns.cast_unsigned());
            self.number(stamp.inode);
            self.number(stamp.mount);
            self.number(u64::from(stamp.trusted));
        }
    }

    fn heard_stamp(&mut self) -> Option<Stamp> {
        if self.heard() == 0 {
            return None;
        }
        Some(Stamp {
            size_bytes: self.heard(),
            mtime_ns: self.heard().cast_signed(),
            ctime_ns: self.heard().cast_signed(),
            inode: self.heard(),
            mount: self.heard(),
            trusted: self.heard() != 0,
        })
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::Ask(ask) => {
                self.number(1);
                self.number(ask.ticket.0);
                self.number(u64::from(ask.sample.0));
            }
            Message::Answer(answer) => {
                self.number(2);
                self.number(answer.ticket.0);
                self.content(&answer.content);
            }
            Message::HandOver(hand_over) => {
                self.number(3);
                self.number(u64::from(hand_over.sample.0));
                self.content(&hand_over.content);
                self.stamp(hand_over.stamp.as_ref());
            }
            Message::Done(done) => {
                self.number(4);
                self.bytes(&done.report);
            }
        }
    }

    fn heard_message(&mut self) -> Message {
        match self.heard() {
            1 => Message::Ask(Ask {
                ticket: Ticket(self.heard()),
                sample: SampleId(self.heard() as u32),
            }),
            2 => Message::Answer(Answer {
                ticket: Ticket(self.heard()),
                content: self.heard_content(),
            }),
            3 => Message::HandOver(HandOver {
                sample: SampleId(self.heard() as u32),
                content: self.heard_content(),
                stamp: self.heard_stamp(),
            }),
            _ => Message::Done(Done {
                report: self.heard_bytes(),
            }),
        }
    }
}

/// A rank of another process.
struct Remote {
    rank: Rank,
    path: PathBuf,
}

impl Remote {
    fn call(&self) -> Wire {
        loop {
            match UnixStream::connect(&self.path) {
                Ok(stream) => return Wire(stream),
                Err(_) => thread::sleep(LOOK),
            }
        }
    }
}

impl Transport for Remote {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&self, to: Rank, message: Message) -> Sent {
        let mut wire = self.call();
        wire.number(SEND);
        wire.number(u64::from(to.0));
        wire.message(&message);
        match wire.heard() {
            0 => Sent::Taken,
            1 => Sent::Full,
            _ => Sent::Gone,
        }
    }

    fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
        let mut wire = self.call();
        wire.number(SERVE);
        assert_eq!(wire.heard(), 1, "it serves");
        let line = wire.0.try_clone()?;
        let thread = thread::spawn(move || {
            while let Ok(kind) = wire.hear() {
                let from = Rank(wire.heard() as u32);
                match kind {
                    1 => {
                        let message = wire.heard_message();
                        receiver.receive(from, message);
                    }
                    _ => receiver.lost(from),
                }
            }
        });
        Ok(Box::new(RemoteServing {
            line,
            thread: Some(thread),
        }))
    }
}

impl Gather for Remote {
    fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
        let mut wire = self.call();
        wire.number(GATHER);
        wire.number(u64::from(given.readers.start));
        wire.number(u64::from(given.readers.end));
        wire.bytes(&given.whole);
        wire.bytes(&given.rest);
        wire.number(patience.as_millis() as u64);
        let number = wire.heard();
        let gathered = (0..number).map(|_| wire.heard_bytes());
        if number == 0 {
            // Who did not come is not told on this wire.
            return Err(Absent::default());
        }
        Ok(gathered.collect())
    }
}

/// Ends what the other end serves, and waits for it.
struct RemoteServing {
    line: UnixStream,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for RemoteServing {
    fn drop(&mut self) {
        let _ = self.line.shutdown(std::net::Shutdown::Write);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the other end what arrives.
struct Teller(Mutex<Wire>);

impl Receive for Teller {
    fn receive(&self, from: Rank, message: Message) {
        let mut wire = self.0.lock().expect("nobody panicked");
        wire.number(1);
        wire.number(u64::from(from.0));
        wire.message(&message);
    }

    fn lost(&self, rank: Rank) {
        let mut wire = self.0.lock().expect("nobody panicked");
        wire.number(2);
        wire.number(u64::from(rank.0));
    }
}

/// Makes all calls that come, until one ends it.
fn serve_calls(transport: &Arc<dyn Transport>, path: &Path) {
    let listener = UnixListener::bind(path).expect("a socket");
    for stream in listener.incoming() {
        let mut wire = Wire(stream.expect("a connection"));
        let called = wire.heard();
        if called == END {
            return;
        }
        let transport = Arc::clone(transport);
        thread::spawn(move || answer(&*transport, called, wire));
    }
}

fn answer(transport: &dyn Transport, called: u64, mut wire: Wire) {
    match called {
        SEND => {
            let to = Rank(wire.heard() as u32);
            let message = wire.heard_message();
            wire.number(match transport.send(to, message) {
                Sent::Taken => 0,
                Sent::Full => 1,
                Sent::Gone => 2,
            });
        }
        GATHER => {
            let start = wire.heard() as u32;
            let end = wire.heard() as u32;
            let given = Given {
                readers: start..end,
                whole: wire.heard_bytes(),
                rest: wire.heard_bytes(),
            };
            let patience = Duration::from_millis(wire.heard());
            let gathered = transport.gather(given, patience).unwrap_or_default();
            wire.number(gathered.len() as u64);
            for bytes in &gathered {
                wire.bytes(bytes);
            }
        }
        _ => {
            let line = wire.0.try_clone().expect("a socket");
            let told = Wire(line);
            wire.number(1);
            let teller = Arc::new(Teller(Mutex::new(told)));
            let serving = transport.serve(teller).expect("serving");
            // Until the other end has enough.
            let _ = wire.hear();
            drop(serving);
        }
    }
}
