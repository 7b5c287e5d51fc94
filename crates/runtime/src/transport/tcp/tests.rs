//! Ranks of one process over real sockets, and one of another process; well, refused, cut off and garbled.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex};

use foresee_core::ids::SampleId;

use super::frame::Encoder;
use super::greeting::{Greeter, Step};
use super::*;
use crate::transport::conformance::{self, Member, Recorder, ask};
use crate::transport::{Done, Ticket};

const KEY: JobKey = JobKey([7; 16]);
const PATIENCE: Duration = Duration::from_secs(30);

fn meeting(rank: u32, world: u32, port: u16) -> Meeting {
    Meeting {
        rank: Rank(rank),
        world,
        first: ("127.0.0.1".to_owned(), port),
        bind: "127.0.0.1".parse().unwrap(),
        secret: Some(b"secret".to_vec()),
        launch: "launch-0".to_owned(),
        encrypt: false,
        sample_bytes_max: 16 << 20,
    }
}

/// A world of meshes, changed as the test wants it.
fn world(ranks: u32, change: impl Fn(Meeting) -> Meeting) -> Vec<Arc<Mesh>> {
    let first = Mesh::start(change(meeting(0, ranks, 0))).unwrap();
    let port = first.port();
    let others = (1..ranks).map(|rank| Mesh::start(change(meeting(rank, ranks, port))).unwrap());
    [first].into_iter().chain(others).collect()
}

fn members(meshes: &[Arc<Mesh>]) -> Vec<Member> {
    let member = |mesh: &Arc<Mesh>| Member {
        transport: mesh.transport(KEY),
    };
    meshes.iter().map(member).collect()
}

fn transports(meshes: &[Arc<Mesh>]) -> Vec<Arc<dyn Transport>> {
    meshes.iter().map(|mesh| mesh.transport(KEY)).collect()
}

fn record(transport: &Arc<dyn Transport>) -> (Arc<Recorder>, Serving) {
    let recorder = Arc::<Recorder>::default();
    let serving = transport.serve(Arc::<Recorder>::clone(&recorder)).unwrap();
    (recorder, serving)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All ranks gather the same, at once.
fn gather(
    transports: &[Arc<dyn Transport>],
    patience: Duration,
) -> Vec<Result<Vec<Vec<u8>>, Absent>> {
    std::thread::scope(|scope| {
        let begin = |transport: &Arc<dyn Transport>| {
            let transport = Arc::clone(transport);
            let own = vec![transport.rank().0 as u8];
            scope.spawn(move || transport.gather(Given::to_all(own), patience))
        };
        let threads: Vec<_> = transports.iter().map(begin).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

fn answer(ticket: u64, bytes: Vec<u8>) -> Message {
    Message::Answer(Answer {
        ticket: Ticket(ticket),
        content: Content::Sample(Payload::new(bytes)),
    })
}

fn total(troubles: &[Troubles], count: impl Fn(&Troubles) -> u64) -> u64 {
    troubles.iter().map(count).sum()
}

#[test]
fn conforms() {
    for ranks in [2, 3, 5] {
        conformance::check(&members(&world(ranks, |meeting| meeting)));
    }
}

#[test]
fn conforms_with_encryption() {
    let meshes = world(3, |meeting| Meeting {
        encrypt: true,
        ..meeting
    });
    conformance::check(&members(&meshes));
}

#[test]
fn conforms_over_ipv6_and_without_a_secret() {
    let meshes = world(3, |meeting| Meeting {
        first: ("::1".to_owned(), meeting.first.1),
        bind: "::1".parse().unwrap(),
        secret: None,
        ..meeting
    });
    conformance::check(&members(&meshes));
}

#[test]
fn conforms_under_the_wrapper_with_faults() {
    use crate::transport::faulty::{Faults, Faulty};
    /// The wrapper wants a type that has a size.
    struct Whole(Arc<dyn Transport>);
    impl Gather for Whole {
        fn gather(&self, given: Given, patience: Duration) -> Result<Vec<Vec<u8>>, Absent> {
            self.0.gather(given, patience)
        }
    }
    impl Transport for Whole {
        fn rank(&self) -> Rank {
            self.0.rank()
        }
        fn send(&self, to: Rank, message: Message) -> Sent {
            self.0.send(to, message)
        }
        fn serve(&self, receiver: Arc<dyn Receive>) -> io::Result<Serving> {
            self.0.serve(receiver)
        }
    }
    let meshes = world(2, |meeting| meeting);
    let wrap = |transport| Member {
        transport: Arc::new(Faulty::new(Whole(transport), Faults::default())),
    };
    let members: Vec<Member> = transports(&meshes).into_iter().map(wrap).collect();
    conformance::check(&members);
}

#[test]
fn without_a_secret_only_this_host_is_talked_to() {
    let far = |meeting: Meeting| Meeting {
        secret: None,
        ..meeting
    };
    let wide = Meeting {
        bind: "0.0.0.0".parse().unwrap(),
        ..far(meeting(0, 2, 0))
    };
    let said = Mesh::start(wide).err().unwrap().to_string();
    assert!(said.contains("peers.secret_file"), "{said}");
    let elsewhere = Meeting {
        first: ("192.0.2.1".to_owned(), 1),
        ..far(meeting(1, 2, 0))
    };
    let said = Mesh::start(elsewhere).err().unwrap().to_string();
    assert!(said.contains("192.0.2.1"), "{said}");
}

#[test]
fn who_is_of_another_job_is_refused_and_hinders_nobody() {
    let other_secret = |meeting: Meeting| Meeting {
        secret: Some(b"another".to_vec()),
        ..meeting
    };
    let other_launch = |meeting: Meeting| Meeting {
        launch: "launch-1".to_owned(),
        ..meeting
    };
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let port = first.port();
    let stranger = Mesh::start(other_secret(meeting(1, 2, port))).unwrap();
    let older = Mesh::start(other_launch(meeting(1, 2, port))).unwrap();
    until("a refusal at both ends", || {
        let refused = |mesh: &Arc<Mesh>| total(&mesh.troubles(), |one| one.refused);
        refused(&first) >= 2 && refused(&stranger) >= 1 && refused(&older) >= 1
    });
    assert!(
        stranger
            .transport(KEY)
            .gather(Given::to_all(vec![]), Duration::from_millis(50))
            .is_err()
    );
    let second = Mesh::start(meeting(1, 2, port)).unwrap();
    let both = transports(&[first, second]);
    let all = Ok(vec![vec![0], vec![1]]);
    assert_eq!(gather(&both, PATIENCE), [all.clone(), all]);
}

#[test]
fn a_rank_that_was_started_again_alone_is_refused() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let port = first.port();
    let second = Mesh::start(meeting(1, 2, port)).unwrap();
    let both = transports(&[Arc::clone(&first), Arc::clone(&second)]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    drop(both);
    drop(second);
    let again = Mesh::start(meeting(1, 2, port)).unwrap();
    until("a refusal", || {
        total(&again.troubles(), |one| one.refused) > 0
    });
}

#[test]
fn port_scanners_are_turned_away_in_time_and_hinder_nobody() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), first.port());
    let mut noisy = TcpStream::connect(at).unwrap();
    noisy.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    let second = Mesh::start(meeting(1, 2, first.port())).unwrap();
    let both = transports(&[Arc::clone(&first), second]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    noisy.set_read_timeout(Some(PATIENCE)).unwrap();
    // Closed with something unread is as good as closed.
    assert!(!matches!(noisy.read(&mut [0; 8]), Ok(1..)));
    silent[19].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(silent[19].read(&mut [0; 8]), Ok(0)));
    assert!(total(&first.troubles(), |one| one.refused) >= 20);
}

#[test]
fn a_rank_that_gives_up_its_handshake_is_no_stranger() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let mut late = TcpStream::connect(("127.0.0.1", first.port())).unwrap();
    let greeter = Greeter::first(&Rogue::badge(1, first.port())).unwrap();
    late.write_all(&greeter.output).unwrap();
    late.read_exact(&mut [0; 2]).unwrap();
    drop(late);
    let mut scanner = TcpStream::connect(("127.0.0.1", first.port())).unwrap();
    scanner.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let refused = || total(&first.troubles(), |one| one.refused);
    until("the stranger is refused", || refused() > 0);
    assert_eq!(refused(), 1);
}

#[test]
fn a_connection_that_is_cut_comes_back_and_all_are_told() {
    let meshes = world(2, |meeting| meeting);
    let both = transports(&meshes);
    let (seen, _serving) = record(&both[0]);
    let (other, _other_serving) = record(&both[1]);
    assert_eq!(both[0].send(Rank(1), ask(1)), Sent::Taken);
    until("a message", || other.messages().len() == 1);
    let hub = &meshes[0].hub;
    let conn = hub.state().peer(Rank(1)).best(Rank(0)).cloned().unwrap();
    conn.stream.shutdown(Shutdown::Both).unwrap();
    until("a loss at both ends", || {
        seen.lost() == [Rank(1)] && other.lost() == [Rank(0)]
    });
    until("a way again, without anybody asking for it", || {
        // Twice, where both ends make a connection.
        seen.found().contains(&Rank(1)) && other.found().contains(&Rank(0))
    });
    assert_eq!(both[0].send(Rank(1), ask(2)), Sent::Taken);
    until("another message", || {
        let _ = both[0].send(Rank(1), ask(2));
        other.messages().len() >= 2
    });
    assert_eq!(total(&meshes[0].troubles(), |one| one.lost), 1);
}

#[test]
fn a_rank_that_leaves_a_channel_is_lost_to_it_and_to_no_other() {
    let meshes = world(2, |meeting| meeting);
    let mut both = transports(&meshes);
    let more: Vec<Arc<dyn Transport>> = meshes
        .iter()
        .map(|mesh| mesh.transport(JobKey([8; 16])))
        .collect();
    let (seen, _serving) = record(&both[0]);
    let (others, _others_serving) = record(&more[0]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    assert!(gather(&more, PATIENCE).iter().all(Result::is_ok));
    drop(both.pop());
    until("a loss", || seen.lost() == [Rank(1)]);
    let first = meshes[0].transport(KEY);
    assert_eq!(first.send(Rank(1), ask(1)), Sent::Gone);
    assert_eq!(more[0].send(Rank(1), ask(1)), Sent::Taken);
    assert_eq!(others.lost(), []);
}

#[test]
fn gathering_waits_for_who_comes_late_and_ends_where_somebody_does_not() {
    let first = Mesh::start(meeting(0, 3, 0)).unwrap();
    let port = first.port();
    let second = Mesh::start(meeting(1, 3, port)).unwrap();
    let early = transports(&[Arc::clone(&first), Arc::clone(&second)]);
    let started = Instant::now();
    let third = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let mesh = Mesh::start(meeting(2, 3, port)).unwrap();
        let transport = mesh.transport(KEY);
        (
            transport.gather(Given::to_all(vec![2; 3 << 20]), PATIENCE),
            mesh,
            transport,
        )
    });
    let all = gather(&early, PATIENCE);
    assert!(started.elapsed() >= Duration::from_millis(300));
    let (last, mesh, transport) = third.join().unwrap();
    assert!(all.iter().all(|one| *one == last) && last.is_ok());
    assert_eq!(last.unwrap()[2].len(), 3 << 20);
    let none = gather(&early, Duration::from_millis(200));
    let third = || Err(Absent(vec![Rank(2)]));
    assert_eq!(none, [third(), third()]);
    // Who comes now finds that the others have left, and does not wait for them.
    let started = Instant::now();
    let late = transport.gather(Given::to_all(vec![]), PATIENCE);
    assert_eq!(late, Err(Absent(vec![Rank(0), Rank(1)])));
    assert!(started.elapsed() < Duration::from_secs(10));
    drop(mesh);
}

/// Stops at the first message until it is let go on.
#[derive(Default)]
struct Stuck {
    free: Mutex<bool>,
    changed: Condvar,
}

impl Receive for Stuck {
    fn receive(&self, _: Rank, _: Message) {
        let free = self.free.lock().unwrap();
        drop(self.changed.wait_while(free, |free| !*free).unwrap());
    }

    fn lost(&self, _: Rank) {}
}

#[test]
fn a_slow_receiver_fills_its_own_queue_and_still_sends() {
    let meshes = world(2, |meeting| meeting);
    let both = transports(&meshes);
    let stuck = Arc::new(Stuck::default());
    let _stuck_serving = both[1].serve(Arc::<Stuck>::clone(&stuck)).unwrap();
    let (seen, _serving) = record(&both[0]);
    let sample = Payload::new(vec![1; 1 << 20]);
    let sent = (0..1000).map(|number| {
        let content = Content::Sample(sample.clone());
        let sample = SampleId(number);
        both[0].send(
            Rank(1),
            Message::HandOver(HandOver::unstamped(sample, content)),
        )
    });
    let sent: Vec<Sent> = sent.collect();
    assert_eq!(sent.last(), Some(&Sent::Full));
    assert_eq!(both[0].send(Rank(1), ask(1)), Sent::Taken);
    assert_eq!(
        both[1].send(Rank(0), answer(1, vec![2; 1 << 20])),
        Sent::Taken
    );
    until("an answer", || seen.messages().len() == 1);
    *stuck.free.lock().unwrap() = true;
    stuck.changed.notify_all();
}

/// Passes bytes on between two ends, and damages what is long: the `nth` piece of more than 8 KiB, in its middle.
fn proxy(to: u16, nth: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || pass(near, far, usize::MAX));
            std::thread::spawn(move || pass(back.0, back.1, nth));
        }
    });
    port
}

fn pass(mut from: TcpStream, mut to: TcpStream, nth: usize) {
    let mut buffer = vec![0; 64 << 10];
    let mut long = 0;
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        if got > 8 << 10 {
            if long == nth {
                buffer[got / 2] ^= 4;
            }
            long += 1;
        }
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn an_answer_that_was_garbled_on_its_way_is_one_that_does_not_come() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let second = Mesh::start(meeting(1, 2, proxy(first.port(), 3))).unwrap();
    let both = transports(&[first, Arc::clone(&second)]);
    let (seen, _serving) = record(&both[1]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    for ticket in 0..4 {
        let sent = both[0].send(Rank(1), answer(ticket, vec![ticket as u8; 1 << 20]));
        assert_eq!(sent, Sent::Taken);
    }
    until("all answers", || seen.messages().len() == 4);
    for (_, message) in seen.messages() {
        let Message::Answer(Answer { ticket, content }) = message else {
            panic!("only answers were sent");
        };
        match content {
            Content::Sample(payload) => {
                assert!(payload.bytes() == vec![ticket.0 as u8; 1 << 20]);
            }
            Content::Here | Content::InFile(_) | Content::WillNotCome => {
                assert_eq!(ticket, Ticket(0));
            }
        }
    }
    assert_eq!(total(&second.troubles(), |one| one.garbled), 1);
    assert_eq!(total(&second.troubles(), |one| one.lost), 0);
}

/// No test: the other process of the one below.
#[test]
#[ignore = "run by another test"]
fn other_process() {
    let Ok(port) = std::env::var("FORESEE_TEST_PORT") else {
        return;
    };
    let mesh = Mesh::start(meeting(1, 2, port.parse().unwrap())).unwrap();
    let transport = mesh.transport(KEY);
    let _ = transport.gather(Given::to_all(vec![1]), PATIENCE);
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_process_that_is_killed_is_lost_at_once_and_then_gone() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "transport::tcp::tests::other_process",
        ])
        .env("FORESEE_TEST_PORT", first.port().to_string())
        .spawn()
        .unwrap();
    let transport = first.transport(KEY);
    let (seen, _serving) = record(&transport);
    assert!(transport.gather(Given::to_all(vec![0]), PATIENCE).is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    until("a loss", || seen.lost() == [Rank(1)]);
    until("the end of hope", || {
        transport.send(Rank(1), ask(1)) == Sent::Gone
    });
}

#[test]
fn what_was_said_last_arrives_though_all_ends() {
    let mut meshes = world(2, |meeting| meeting);
    let mut both = transports(&meshes);
    let (seen, _serving) = record(&both[0]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    let report = vec![3; 60_000];
    let done = Message::Done(Done { report });
    assert_eq!(
        both[1].send(Rank(0), answer(1, vec![1; 10 << 20])),
        Sent::Taken
    );
    assert_eq!(both[1].send(Rank(0), done.clone()), Sent::Taken);
    drop(both.pop());
    drop(meshes.pop());
    until("the last words", || seen.messages().len() == 2);
    assert_eq!(seen.messages()[1], (Rank(1), done));
    until("a loss", || !seen.lost().is_empty());
}

#[test]
fn a_receiver_can_let_go_of_everything_while_it_is_called() {
    /// Drops what it has at the first message.
    struct Last(Mutex<Option<Arc<dyn Transport>>>, mpsc::Sender<()>);
    impl Receive for Last {
        fn receive(&self, _: Rank, _: Message) {
            drop(self.0.lock().unwrap().take());
            self.1.send(()).unwrap();
        }
        fn lost(&self, _: Rank) {}
    }
    let mut meshes = world(2, |meeting| meeting);
    let first = meshes[0].transport(KEY);
    let second = meshes.remove(1).transport(KEY);
    let (said, heard) = mpsc::channel();
    let last = Last(Mutex::new(Some(Arc::clone(&second))), said);
    let serving = second.serve(Arc::new(last)).unwrap();
    drop(second);
    assert_eq!(first.send(Rank(1), ask(1)), Sent::Taken);
    heard.recv_timeout(PATIENCE).unwrap();
    drop(serving);
}

#[test]
#[allow(unsafe_code, reason = "a child that touches what it must not")]
fn a_forked_child_has_no_peers_and_leaves_its_parents_alone() {
    let meshes = world(2, |meeting| meeting);
    let both = transports(&meshes);
    let (seen, _serving) = record(&both[1]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    // SAFETY: the child calls what must not lock or wait, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_gone = both[0].send(Rank(1), ask(1)) == Sent::Gone;
        let gathers = both[0].gather(Given::to_all(vec![]), PATIENCE).is_ok();
        drop(both);
        drop(meshes);
        let wrong = i32::from(!is_gone || gathers);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: the child was just made, and nobody else waits for it.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child");
    assert_eq!(both[0].send(Rank(1), ask(2)), Sent::Taken);
    until("a message", || seen.messages() == [(Rank(0), ask(2))]);
    assert_eq!(seen.lost(), []);
}

/// Who knows the secret and is one of the ranks, but says what it likes.
struct Rogue {
    stream: TcpStream,
    encoder: Encoder,
}

impl Rogue {
    fn connect(badge: &Badge, port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeter = Greeter::first(badge).unwrap();
        let keys = loop {
            stream.write_all(&greeter.output).unwrap();
            greeter.output.clear();
            let mut bytes = vec![0; greeter.wants()];
            stream.read_exact(&mut bytes).unwrap();
            match greeter.take(&bytes) {
                Ok(Step::Done(keys)) => break keys,
                Ok(Step::Wait | Step::Met(_)) => {}
                Err(refusal) => panic!("{refusal:?}"),
            }
        };
        stream.write_all(&greeter.output).unwrap();
        Self {
            stream,
            encoder: Encoder::new(keys.seed_out),
        }
    }

    fn badge(rank: u32, port: u16) -> Badge {
        Badge::new(&meeting(rank, 2, port), 1)
    }

    fn say(&mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        let head = self.encoder.head(header, payload);
        self.stream.write_all(&head)?;
        self.stream.write_all(payload)
    }

    /// A header that announces more than follows.
    fn announce(&mut self, kind: Kind, len: u32) {
        let header = Header {
            len,
            ..Header::new(kind, KEY, 0)
        };
        self.stream
            .write_all(&self.encoder.bare_head(&header))
            .unwrap();
    }

    /// Waits until the other end has closed it, whatever it said before; false where that takes too long.
    fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(1..) => {}
                Ok(0) => return true,
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }
}

#[test]
fn who_announces_more_than_is_allowed_is_cut_off_each_time_and_may_come_again() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let badge = Rogue::badge(1, first.port());
    let tries = 50;
    for number in 0..tries {
        let mut rogue = Rogue::connect(&badge, first.port());
        let kinds = [Kind::Answer, Kind::Done, Kind::Ask, Kind::GatherPart];
        rogue.announce(kinds[number % kinds.len()], u32::MAX);
        assert!(rogue.is_closed());
    }
    until("all to be noted", || {
        total(&first.troubles(), |one| one.garbled) == tries as u64
    });
    let entries = first.hub.state().roster.len();
    assert!(entries <= 8, "the roster has {entries} entries for 2 ranks");
}

#[test]
fn what_a_rank_wants_of_channels_that_nobody_made_or_that_were_left_is_bounded() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    drop(first.transport(KEY));
    let badge = Rogue::badge(1, first.port());
    let mut rogue = Rogue::connect(&badge, first.port());
    // It does not read: all that it is told waits here, once what lies between is full.
    let left = Header::new(Kind::GatherAsk, KEY, 0);
    for _ in 0..200_000 {
        rogue.say(&left, &[]).unwrap();
    }
    let sample = vec![1; 256 << 10];
    for number in 0..400_u32 {
        let mut key = [9; 16];
        key[..4].copy_from_slice(&(number % 100).to_le_bytes());
        let header = Header {
            len: sample.len() as u32,
            ..Header::new(Kind::HandOver, JobKey(key), 0)
        };
        rogue.say(&header, &sample).unwrap();
    }
    until("all to be read", || {
        let hub = &first.hub;
        let waits = hub.state().peer(Rank(1)).queue.len();
        assert!(waits <= 2, "{waits} frames wait for it");
        hub.unopened_bytes() > 0
    });
    std::thread::sleep(Duration::from_millis(200));
    let bytes = first.hub.unopened_bytes();
    assert!(
        bytes <= 64 << 20,
        "{bytes} bytes are kept for jobs that nobody made"
    );
}

#[test]
fn hundreds_of_half_open_connections_cost_few_descriptors_and_keep_nobody_out() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), first.port());
    let open: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(at).unwrap()).collect();
    let second = Mesh::start(meeting(1, 2, first.port())).unwrap();
    let both = transports(&[Arc::clone(&first), second]);
    let began = Instant::now();
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
    assert!(began.elapsed() < Duration::from_secs(5));
    // The oldest were turned away to make room.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0; 8]), Ok(0))
    };
    until("most of them to be turned away", || {
        open.iter().filter(|stream| is_closed(stream)).count() >= 300
    });
}

#[test]
fn another_version_is_refused_and_hinders_nobody() {
    let first = Mesh::start(meeting(0, 2, 0)).unwrap();
    let mut other = TcpStream::connect(("127.0.0.1", first.port())).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.write_all(b"foresee\xff").unwrap();
    assert!(!matches!(other.read(&mut [0; 8]), Ok(1..)));
    until("it to be noted", || {
        total(&first.troubles(), |one| one.refused) == 1
    });
    let second = Mesh::start(meeting(1, 2, first.port())).unwrap();
    let both = transports(&[first, second]);
    assert!(gather(&both, PATIENCE).iter().all(Result::is_ok));
}
