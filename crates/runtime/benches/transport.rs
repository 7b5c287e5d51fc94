//! Samples of 100 KB asked for over loopback, 8 at a time: the transport between ranks against plain blocking sockets that
//! compute the same checksums. In alternating rounds; held to: at least 0.80 of plain sockets.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use foresee_core::ids::{Rank, SampleId};
use foresee_runtime::transport::{
    Answer, Ask, Content, JobKey, Meeting, Mesh, Message, Payload, Receive, Sent, Ticket, Transport,
};
use twox_hash::XxHash3_64;

const SAMPLE_BYTES: usize = 100_000;
const IN_FLIGHT: u64 = 8;
const REQUESTS: u64 = 20_000;
const ROUNDS: usize = 5;
const HEAD_BYTES: usize = 56;

/// Answers each request with the same sample.
struct Holder {
    transport: Arc<dyn Transport>,
    sample: Payload,
}

impl Receive for Holder {
    fn receive(&self, from: Rank, message: Message) {
        if let Message::Ask(Ask { ticket, .. }) = message {
            let content = Content::Sample(self.sample.clone());
            let answer = Message::Answer(Answer { ticket, content });
            assert_eq!(self.transport.send(from, answer), Sent::Taken);
        }
    }

    fn lost(&self, _: Rank) {}
}

/// Asks for the next sample when one has come.
struct Asker {
    transport: Arc<dyn Transport>,
    came: Mutex<u64>,
    all: Condvar,
}

impl Asker {
    fn ask(&self, number: u64) {
        let ask = Ask {
            ticket: Ticket(number),
            sample: SampleId(0),
        };
        assert_eq!(self.transport.send(Rank(1), Message::Ask(ask)), Sent::Taken);
    }
}

impl Receive for Asker {
    fn receive(&self, _: Rank, message: Message) {
        let Message::Answer(answer) = message else {
            return;
        };
        assert_eq!(answer.content.len(), SAMPLE_BYTES);
        let mut came = self.came.lock().expect("nobody panicked");
        *came += 1;
        let next = *came + IN_FLIGHT - 1;
        if *came == REQUESTS {
            self.all.notify_all();
        }
        drop(came);
        if next < REQUESTS {
            self.ask(next);
        }
    }

    fn lost(&self, _: Rank) {}
}

fn mesh(rank: u32, port: u16, encrypt: bool) -> Arc<Mesh> {
    let meeting = Meeting {
        rank: Rank(rank),
        world: 2,
        first: ("127.0.0.1".to_owned(), port),
        bind: "127.0.0.1".parse().expect("an address"),
        secret: None,
        launch: "bench".to_owned(),
        encrypt,
        sample_bytes_max: 1 << 20,
    };
    Mesh::start(meeting).expect("a mesh")
}

/// MB/s of the transport.
fn ours(encrypt: bool) -> f64 {
    let first = mesh(0, 0, encrypt);
    let second = mesh(1, first.port(), encrypt);
    let holder = Holder {
        transport: second.transport(JobKey([1; 16])),
        sample: Payload::new(vec![7; SAMPLE_BYTES]),
    };
    let asker = Arc::new(Asker {
        transport: first.transport(JobKey([1; 16])),
        came: Mutex::new(0),
        all: Condvar::new(),
    });
    let at_holder = Arc::clone(&holder.transport);
    let holding = at_holder.serve(Arc::new(holder)).expect("serving");
    let receiver = Arc::<Asker>::clone(&asker);
    let asking = asker.transport.serve(receiver).expect("serving");
    let started = Instant::now();
    for number in 0..IN_FLIGHT {
        asker.ask(number);
    }
    let came = asker.came.lock().expect("nobody panicked");
    let short = |came: &mut u64| *came < REQUESTS;
    drop(asker.all.wait_while(came, short).expect("nobody panicked"));
    let elapsed = started.elapsed();
    drop((holding, asking));
    rate(elapsed)
}

fn rate(elapsed: std::time::Duration) -> f64 {
    (REQUESTS as usize * SAMPLE_BYTES) as f64 / 1e6 / elapsed.as_secs_f64()
}

fn plain_holder(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let sample = vec![7_u8; SAMPLE_BYTES];
    let mut request = [0; HEAD_BYTES];
    for _ in 0..REQUESTS {
        stream.read_exact(&mut request).expect("a request");
        let mut head = request;
        head[..8].copy_from_slice(&XxHash3_64::oneshot(&sample).to_le_bytes());
        let all = HEAD_BYTES + SAMPLE_BYTES;
        let pieces = [IoSlice::new(&head), IoSlice::new(&sample)];
        let mut sent = stream.write_vectored(&pieces).expect("a reply");
        while sent < all {
            sent += stream
                .write(&sample[sent - HEAD_BYTES..])
                .expect("the rest of a reply");
        }
    }
}

/// MB/s of plain sockets, one thread at each end.
fn plain() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    thread::scope(|scope| {
        scope.spawn(|| plain_holder(&listener));
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        // One buffer for all: the least that a program can do.
        let mut sample = vec![0; SAMPLE_BYTES];
        let started = Instant::now();
        for _ in 0..IN_FLIGHT {
            stream.write_all(&[0; HEAD_BYTES]).expect("a request");
        }
        for number in 0..REQUESTS {
            let mut head = [0; HEAD_BYTES];
            stream.read_exact(&mut head).expect("a head");
            stream.read_exact(&mut sample).expect("a sample");
            let sum = XxHash3_64::oneshot(&sample).to_le_bytes();
            assert_eq!(head[..8], sum, "the checksum");
            if number + IN_FLIGHT < REQUESTS {
                stream.write_all(&[0; HEAD_BYTES]).expect("a request");
            }
        }
        rate(started.elapsed())
    })
}

fn main() {
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let plain = plain();
        let ours = ours(false);
        ratios.push(ours / plain);
        println!(
            "transport/round {round}: {ours:.0} MB/s, plain sockets {plain:.0} MB/s, ratio {:.2}",
            ours / plain
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("transport: ratio {:.2} (median)", ratios[ROUNDS / 2]);
    println!("transport/encrypted: {:.0} MB/s", ours(true));
}
