//! The handshake: two ranks prove to each other that they know the job's secret and are of the same launch, before a single
//! frame is read. Pure: bytes in, bytes out.
//!
//! It is Noise's `NNpsk0`: fresh keys each time, and a key that is made from the secret. Who connects says in the first
//! message who it is, the other answers who it is or why it refuses. Then the first one proves that it has read that: else
//! whoever recorded a first message could repeat it, and be taken for a rank.
//!
//! What can differ without the secret being wrong (launch, world, ...) is told to the other end by a number, so that both
//! can say what is the matter.

use sha2::{Digest, Sha256};
use snow::{Builder, HandshakeState, StatelessTransportState};

use foresee_core::ids::Rank;

use super::Meeting;
use super::frame::VERSION;

/// What a connection begins with, in the clear: who is something else is seen at once.
const PREAMBLE: [u8; 8] = [b'f', b'o', b'r', b'e', b's', b'e', b'e', VERSION];

/// Bytes of a message of the handshake.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of a launch's name that are compared: a digest, so that any name fits.
const LAUNCH_BYTES: usize = 32;

/// Bytes of what an end says of itself.
const HELLO_BYTES: usize = 1 + 4 + 4 + 8 + 2 + LAUNCH_BYTES;

/// What the third message says.
const PROOF: &[u8] = b"here";

/// What the two ends must have in common, and what each is.
#[derive(Clone)]
pub(super) struct Badge {
    pub(super) rank: Rank,
    pub(super) world: u32,
    /// Names this process among all that ever were this rank.
    pub(super) instance: u64,
    /// Where it listens.
    pub(super) port: u16,
    pub(super) encrypt: bool,
    launch: [u8; LAUNCH_BYTES],
    key: [u8; 32],
}

impl Badge {
    pub(super) fn new(meeting: &Meeting, port: u16) -> Self {
        let mut key = Sha256::new();
        key.update(b"foresee peers: key of the job's secret\0");
        key.update(meeting.secret.as_deref().unwrap_or_default());
        Self {
            rank: meeting.rank,
            world: meeting.world,
            instance: super::random(),
            port,
            encrypt: meeting.encrypt,
            launch: Sha256::digest(meeting.launch.as_bytes()).into(),
            key: key.finalize().into(),
        }
    }

    fn hello(&self, code: u8) -> Vec<u8> {
        let mut hello = Vec::with_capacity(HELLO_BYTES);
        hello.push(code);
        hello.extend(self.rank.0.to_le_bytes());
        hello.extend(self.world.to_le_bytes());
        hello.extend(self.instance.to_le_bytes());
        hello.extend(self.port.to_le_bytes());
        hello.extend(self.launch);
        hello
    }

    /// What is wrong with somebody who knows the secret.
    fn compare(&self, other: &Hello) -> Result<(), Refusal> {
        if other.launch != self.launch {
            Err(Refusal::Launch)
        } else if other.world != self.world {
            Err(Refusal::World)
        } else if other.rank == self.rank || other.rank.0 >= self.world {
            Err(Refusal::Rank)
        } else if (other.code == ENCRYPT) != self.encrypt {
            Err(Refusal::Encryption)
        } else {
            Ok(())
        }
    }
}

/// What a hello begins with, unless it is a refusal's number.
const PLAIN: u8 = 0;
const ENCRYPT: u8 = 1;

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// It does not talk as a rank does.
    Stranger = 10,
    Version = 11,
    Secret = 12,
    Launch = 13,
    World = 14,
    Rank = 15,
    Encryption = 16,
    /// Another process than the one that was this rank so far.
    Returned = 17,
    /// It said nothing more in time.
    Late = 18,
    /// It ended the connection.
    Closed = 19,
}

impl Refusal {
    const SAID: [Self; 6] = [
        Self::Secret,
        Self::Launch,
        Self::World,
        Self::Rank,
        Self::Encryption,
        Self::Returned,
    ];

    /// What it is, and what helps.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Stranger => {
                "it is no rank of foresee (a port scanner?); bind peers to an inner network if it goes on"
            }
            Self::Version => {
                "it runs another version of foresee; install the same one for all ranks"
            }
            Self::Secret => "it has another secret; give all ranks of the job the same one",
            Self::Launch => {
                "it is of another launch; give jobs that run at the same time different ports"
            }
            Self::World => "it counts another number of ranks; start all ranks with the same world",
            Self::Rank => {
                "it says that it is a rank that it cannot be; give each rank its own number"
            }
            Self::Encryption => {
                "one end encrypts and the other does not; configure all ranks alike"
            }
            Self::Returned => {
                "that rank was started again alone; start all ranks again, its old peers go on without it"
            }
            Self::Closed => {
                "it ended the handshake; most likely its secret is another one: give all ranks of the job the same"
            }
            Self::Late => "it did not finish the handshake in time",
        }
    }
}

/// What an end said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hello {
    code: u8,
    pub(super) rank: Rank,
    world: u32,
    pub(super) instance: u64,
    pub(super) port: u16,
    launch: [u8; LAUNCH_BYTES],
}

impl Hello {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        Some(Self {
            code: bytes[0],
            rank: Rank(u32::from_le_bytes(bytes[1..5].try_into().ok()?)),
            world: u32::from_le_bytes(bytes[5..9].try_into().ok()?),
            instance: u64::from_le_bytes(bytes[9..17].try_into().ok()?),
            port: u16::from_le_bytes(bytes[17..19].try_into().ok()?),
            launch: bytes[19..].try_into().ok()?,
        })
    }
}

/// What both ends have after the handshake.
pub(super) struct Keys {
    pub(super) other: Hello,
    /// For what this end sends, and for what it gets.
    pub(super) seed_out: u64,
    pub(super) seed_in: u64,
    pub(super) cipher: StatelessTransportState,
}

/// What is awaited next.
enum Stage {
    /// The preamble and the length of the message behind it.
    Opening,
    /// The length of a message.
    Length,
    Message(usize),
}

/// One end of a handshake under way.
pub(super) struct Greeter {
    noise: Option<HandshakeState>,
    badge: Badge,
    is_first: bool,
    stage: Stage,
    input: Vec<u8>,
    /// What is to be sent.
    pub(super) output: Vec<u8>,
    /// Once all but the proof has come.
    keys: Option<Keys>,
}

/// What became of a step.
pub(super) enum Step {
    /// More is to come.
    Wait,
    /// Somebody knows the secret and is who it should be; the other end still asks whether it is wanted.
    Met(Hello),
    /// Both have proved themselves; what is in the output still has to be sent.
    Done(Box<Keys>),
}

impl Greeter {
    /// The end that connects.
    pub(super) fn first(badge: &Badge) -> Result<Self, snow::Error> {
        let mut noise = builder(badge)?.build_initiator()?;
        let mut message = [0; MESSAGE_BYTES_MAX];
        let code = if badge.encrypt { ENCRYPT } else { PLAIN };
        let len = noise.write_message(&badge.hello(code), &mut message)?;
        let mut greeter = Self::new(noise, badge, true);
        greeter.output.extend(PREAMBLE);
        greeter.say(&message[..len]);
        Ok(greeter)
    }

    /// The end that was connected to.
    pub(super) fn second(badge: &Badge) -> Result<Self, snow::Error> {
        let noise = builder(badge)?.build_responder()?;
        Ok(Self::new(noise, badge, false))
    }

    fn new(noise: HandshakeState, badge: &Badge, is_first: bool) -> Self {
        Self {
            noise: Some(noise),
            badge: badge.clone(),
            is_first,
            stage: if is_first {
                Stage::Length
            } else {
                Stage::Opening
            },
            input: Vec::new(),
            output: Vec::new(),
            keys: None,
        }
    }

    /// Whether the other end has said who it is, and that it knows the secret.
    pub(super) fn has_met(&self) -> bool {
        self.keys.is_some()
    }

    /// How many bytes it can take: no more, since what follows the handshake is not for it.
    pub(super) fn wants(&self) -> usize {
        let all = match self.stage {
            Stage::Opening => PREAMBLE.len() + 2,
            Stage::Length => 2,
            Stage::Message(len) => len,
        };
        all - self.input.len()
    }

    /// Takes bytes in, as many as it wants at most.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        assert!(bytes.len() <= self.wants(), "what follows is not for it");
        self.input.extend(bytes);
        if matches!(self.stage, Stage::Opening) {
            self.check_preamble()?;
        }
        if self.wants() > 0 {
            return Ok(Step::Wait);
        }
        let input = std::mem::take(&mut self.input);
        if let Stage::Message(_) = self.stage {
            self.stage = Stage::Length;
            return self.read(&input);
        }
        let at = input.len() - 2;
        let len = usize::from(u16::from_le_bytes([input[at], input[at + 1]]));
        if len == 0 || len > MESSAGE_BYTES_MAX {
            return Err(Refusal::Stranger);
        }
        self.stage = Stage::Message(len);
        Ok(Step::Wait)
    }

    fn check_preamble(&self) -> Result<(), Refusal> {
        let there = self.input.len().min(PREAMBLE.len());
        let name = PREAMBLE.len() - 1;
        if self.input[..there.min(name)] != PREAMBLE[..there.min(name)] {
            return Err(Refusal::Stranger);
        }
        if there == PREAMBLE.len() && self.input[name] != VERSION {
            return Err(Refusal::Version);
        }
        Ok(())
    }

    fn read(&mut self, message: &[u8]) -> Result<Step, Refusal> {
        if let Some(keys) = self.keys.take() {
            return prove(keys, message);
        }
        let noise = self.noise.as_mut().ok_or(Refusal::Stranger)?;
        let mut payload = [0; MESSAGE_BYTES_MAX];
        let len = noise
            .read_message(message, &mut payload)
            .map_err(|_| Refusal::Secret)?;
        let hello = Hello::parse(&payload[..len]).ok_or(Refusal::Stranger)?;
        if self.is_first {
            let said = Refusal::SAID
                .into_iter()
                .find(|refusal| *refusal as u8 == hello.code);
            if let Some(refusal) = said {
                return Err(refusal);
            }
            self.badge.compare(&hello)?;
            return self.finish(hello);
        }
        match self.badge.compare(&hello) {
            Ok(()) => Ok(Step::Met(hello)),
            Err(refusal) => {
                self.refuse(refusal);
                Err(refusal)
            }
        }
    }

    /// The second end lets the first one in.
    pub(super) fn accept(&mut self, hello: Hello) -> Result<(), Refusal> {
        let code = if self.badge.encrypt { ENCRYPT } else { PLAIN };
        self.reply(code).ok_or(Refusal::Stranger)?;
        self.keys = Some(self.keys(hello).ok_or(Refusal::Stranger)?);
        Ok(())
    }

    /// The second end says why it does not.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        // If that cannot be said the other end sees a connection that ends.
        let _ = self.reply(refusal as u8);
    }

    fn reply(&mut self, code: u8) -> Option<()> {
        let hello = self.badge.hello(code);
        let mut message = [0; MESSAGE_BYTES_MAX];
        let noise = self.noise.as_mut()?;
        let len = noise.write_message(&hello, &mut message).ok()?;
        self.say(&message[..len]);
        Some(())
    }

    /// The first end proves that it has read the reply.
    fn finish(&mut self, hello: Hello) -> Result<Step, Refusal> {
        let keys = self.keys(hello).ok_or(Refusal::Stranger)?;
        let mut message = [0; 64];
        let proof = keys.cipher.write_message(0, PROOF, &mut message);
        let len = proof.map_err(|_| Refusal::Stranger)?;
        self.say(&message[..len]);
        Ok(Step::Done(Box::new(keys)))
    }

    fn keys(&mut self, other: Hello) -> Option<Keys> {
        let noise = self.noise.take()?;
        let hash = noise.get_handshake_hash();
        let seed = |at: usize| Some(u64::from_le_bytes(hash.get(at..at + 8)?.try_into().ok()?));
        let (of_first, of_second) = (seed(0)?, seed(8)?);
        Some(Keys {
            other,
            seed_out: if self.is_first { of_first } else { of_second },
            seed_in: if self.is_first { of_second } else { of_first },
            cipher: noise.into_stateless_transport_mode().ok()?,
        })
    }

    fn say(&mut self, message: &[u8]) {
        self.output.extend((message.len() as u16).to_le_bytes());
        self.output.extend(message);
    }
}

fn prove(keys: Keys, message: &[u8]) -> Result<Step, Refusal> {
    let mut proof = [0; MESSAGE_BYTES_MAX];
    match keys.cipher.read_message(0, message, &mut proof) {
        Ok(len) if proof[..len] == *PROOF => Ok(Step::Done(Box::new(keys))),
        _ => Err(Refusal::Secret),
    }
}

fn builder(badge: &Badge) -> Result<Builder<'_>, snow::Error> {
    let params = "Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse()?;
    Builder::new(params).prologue(&PREAMBLE)?.psk(0, &badge.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn badge(rank: u32, secret: &[u8], launch: &str) -> Badge {
        let meeting = Meeting {
            rank: Rank(rank),
            world: 3,
            first: ("127.0.0.1".to_owned(), 0),
            bind: "127.0.0.1".parse().unwrap(),
            secret: Some(secret.to_vec()),
            launch: launch.to_owned(),
            encrypt: false,
            sample_bytes_max: 0,
        };
        Badge::new(&meeting, 0)
    }

    /// Hands what one end says to the other, in pieces as they are wanted.
    fn carry(from: &mut Greeter, to: &mut Greeter) -> Result<Step, Refusal> {
        let said = std::mem::take(&mut from.output);
        let mut rest = &said[..];
        let mut step = Step::Wait;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(to.wants().min(rest.len()));
            step = to.take(now)?;
            rest = later;
        }
        Ok(step)
    }

    fn meet(first: &Badge, second: &Badge) -> Result<(Keys, Keys), (Refusal, Option<Refusal>)> {
        let mut a = Greeter::first(first).unwrap();
        let mut b = Greeter::second(second).unwrap();
        match carry(&mut a, &mut b) {
            Ok(Step::Met(hello)) => b.accept(hello).unwrap(),
            Ok(_) => panic!("the first message is whole"),
            Err(refusal) => {
                let told = if b.output.is_empty() {
                    None
                } else {
                    carry(&mut b, &mut a).err()
                };
                return Err((refusal, told));
            }
        }
        let Ok(Step::Done(of_first)) = carry(&mut b, &mut a) else {
            panic!("the reply is whole")
        };
        let Ok(Step::Done(of_second)) = carry(&mut a, &mut b) else {
            panic!("the proof is whole")
        };
        Ok((*of_first, *of_second))
    }

    #[test]
    fn ranks_of_a_job_meet_and_have_the_same_keys() {
        let (first, second) = meet(&badge(2, b"s", "l"), &badge(0, b"s", "l"))
            .ok()
            .unwrap();
        assert_eq!(first.other.rank, Rank(0));
        assert_eq!(second.other.rank, Rank(2));
        assert_eq!(first.seed_out, second.seed_in);
        assert_eq!(first.seed_in, second.seed_out);
        let mut sealed = [0; 64];
        let len = first.cipher.write_message(1, b"text", &mut sealed).unwrap();
        let mut opened = [0; 64];
        let len = second.cipher.read_message(1, &sealed[..len], &mut opened);
        assert_eq!(&opened[..len.unwrap()], b"text");
    }

    #[test]
    fn what_differs_is_named_at_both_ends() {
        let here = badge(0, b"s", "l");
        let other_secret = meet(&badge(1, b"t", "l"), &here);
        assert_eq!(other_secret.err(), Some((Refusal::Secret, None)));
        let both = |refusal| Some((refusal, Some(refusal)));
        let other_launch = meet(&badge(1, b"s", "m"), &here);
        assert_eq!(other_launch.err(), both(Refusal::Launch));
        let same_rank = meet(&badge(0, b"s", "l"), &here);
        assert_eq!(same_rank.err(), both(Refusal::Rank));
        let world = Badge {
            world: 4,
            ..badge(1, b"s", "l")
        };
        assert_eq!(meet(&world, &here).err(), both(Refusal::World));
        let sealed = Badge {
            encrypt: true,
            ..badge(1, b"s", "l")
        };
        assert_eq!(meet(&sealed, &here).err(), both(Refusal::Encryption));
    }

    #[test]
    fn strangers_and_other_versions_are_seen_at_once() {
        let mut ear = Greeter::second(&badge(0, b"s", "l")).unwrap();
        assert_eq!(ear.take(b"GET / HTT").err(), Some(Refusal::Stranger));
        let mut ear = Greeter::second(&badge(0, b"s", "l")).unwrap();
        let newer = [&PREAMBLE[..7], &[VERSION + 1]].concat();
        assert_eq!(ear.take(&newer).err(), Some(Refusal::Version));
    }

    #[test]
    fn who_repeats_a_first_message_gets_no_further() {
        let mut a = Greeter::first(&badge(1, b"s", "l")).unwrap();
        let mut b = Greeter::second(&badge(0, b"s", "l")).unwrap();
        let Ok(Step::Met(hello)) = carry(&mut a, &mut b) else {
            panic!("the first message is whole")
        };
        b.accept(hello).unwrap();
        b.take(&[20, 0]).ok().unwrap();
        assert_eq!(b.take(&[7; 20]).err(), Some(Refusal::Secret));
    }
}
