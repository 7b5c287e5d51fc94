//! What a rank tells the others so that those on its host can find it: what names the host, and a socket.
//!
//! The socket is abstract: it has a name that is drawn, in the network's namespace and in no file system, and is gone with the
//! process. Who connects must be of the same user; who it is it proves as it does to the transport.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

/// Bytes of a host's digest, and of a socket's name.
const HOST_BYTES: usize = 32;
const NAME_BYTES: usize = 16;

/// Namespaces that must be the same: where sockets are found, and where files are.
const NAMESPACES: [&str; 2] = ["/proc/self/ns/net", "/proc/self/ns/mnt"];

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a rank tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    host: [u8; HOST_BYTES],
    name: [u8; NAME_BYTES],
}

impl Card {
    /// As bytes. A rank that shares nothing gives none.
    pub(crate) fn encode(self) -> Vec<u8> {
        [&self.host[..], &self.name[..]].concat()
    }

    /// What another rank gave; none where it shares nothing.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != HOST_BYTES + NAME_BYTES {
            return None;
        }
        let (host, name) = bytes.split_at(HOST_BYTES);
        Some(Self {
            host: host.try_into().ok()?,
            name: name.try_into().ok()?,
        })
    }

    /// Whether two ranks are on one host.
    pub(crate) fn is_near(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// Connects to who gave it.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&address(&self.name)?)?;
        check_user(&stream)?;
        Ok(stream)
    }
}

/// Where the others of a host find this rank.
pub(crate) struct Listener {
    socket: UnixListener,
    card: Card,
}

impl Listener {
    /// Listens from now on. An error where the system does not say which host this is.
    pub(crate) fn new() -> io::Result<Self> {
        let card = Card {
            host: host()?,
            name: drawn(),
        };
        let socket = UnixListener::bind_addr(&address(&card.name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, card })
    }

    pub(crate) fn card(&self) -> Card {
        self.card
    }

    /// The next who connects and is of the same user; none at the deadline.
    pub(super) fn accept(&self, deadline: Instant) -> io::Result<Option<UnixStream>> {
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    if check_user(&stream).is_ok() {
                        stream.set_nonblocking(false)?;
                        return Ok(Some(stream));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    wait_for(&self.socket, left)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn wait_for(socket: &UnixListener, left: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(left).ok();
    let mut watched = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut watched, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

fn address(name: &[u8; NAME_BYTES]) -> io::Result<SocketAddr> {
    let number = u128::from_le_bytes(*name);
    SocketAddr::from_abstract_name(format!("foresee-{number:032x}"))
}

/// A name that nobody else has.
fn drawn() -> [u8; NAME_BYTES] {
    use std::hash::{BuildHasher, RandomState};

    let mut name = [0; NAME_BYTES];
    for half in name.chunks_exact_mut(8) {
        let drawn = RandomState::new().hash_one(std::process::id());
        half.copy_from_slice(&drawn.to_le_bytes());
    }
    name
}

/// Names this host: its boot, the namespaces of this process, and the user.
fn host() -> io::Result<[u8; HOST_BYTES]> {
    let mut hash = Sha256::new();
    hash.update(b"foresee host\0");
    hash.update(fs::read(BOOT_ID)?);
    for namespace in NAMESPACES {
        let found = fs::metadata(namespace)?;
        hash.update(found.dev().to_le_bytes());
        hash.update(found.ino().to_le_bytes());
    }
    hash.update(geteuid().as_raw().to_le_bytes());
    Ok(hash.finalize().into())
}

/// Whoever is at the other end is of this process's user.
fn check_user(stream: &UnixStream) -> io::Result<()> {
    if socket_peercred(stream)?.uid == geteuid() {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_card_comes_back_from_its_bytes_and_nothing_else_is_one() {
        let card = Listener::new().unwrap().card();
        assert_eq!(Card::decode(&card.encode()), Some(card));
        assert_eq!(Card::decode(&[]), None);
        assert_eq!(Card::decode(&card.encode()[1..]), None);
    }

    #[test]
    fn processes_of_a_host_have_different_names_and_the_same_host() {
        let cards = [(); 2].map(|()| Listener::new().unwrap().card());
        assert!(cards[0].is_near(&cards[1]));
        assert_ne!(cards[0].name, cards[1].name);
        let elsewhere = Card {
            host: [0; HOST_BYTES],
            ..cards[0]
        };
        assert!(!cards[0].is_near(&elsewhere));
    }

    #[test]
    fn who_has_a_card_finds_its_giver_and_nobody_is_waited_for_long() {
        let listener = Listener::new().unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(listener.accept(soon).unwrap().is_none());
        let _stream = listener.card().connect().unwrap();
        let later = Instant::now() + Duration::from_secs(10);
        assert!(listener.accept(later).unwrap().is_some());
    }
}
