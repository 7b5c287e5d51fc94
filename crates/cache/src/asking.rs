//! How a program asks the copying process for a copy of a large file: one datagram with the file's descriptor, so that the file
//! is not opened again, and outlives the program. Nobody waits for an answer: the copy appears, or it does not.
//!
//! The socket is in the first cache folder, which nobody else may write to.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recvmsg, sendmsg_addr, socket_with,
};

use crate::key::Key;
use crate::ours::Ours;
use crate::tier;

/// The longest name of a run's file.
pub const RUN_NAME_BYTES_MAX: usize = 64;
/// The longest path of a socket.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const KEY_BYTES: usize = 16;
const COPY: u8 = 1;
const USER: u8 = 2;

/// What the copying process is told.
#[derive(Debug)]
pub enum Asked {
    /// To copy a file.
    Copy {
        /// The name of the file of the run that wants it.
        run: Vec<u8>,
        /// What the copy is to be named by.
        key: Key,
        /// The file.
        source: OwnedFd,
    },
    /// That a run has begun.
    User {
        /// The name of its file.
        run: Vec<u8>,
        /// Its process: readable once that has ended.
        process: OwnedFd,
    },
}

/// The address of the socket in a folder. Where its path is too long, by way of an open folder, which must stay open meanwhile.
struct Address {
    address: SocketAddrUnix,
    _folder: Option<OwnedFd>,
}

impl Address {
    fn new(folder: &[u8]) -> io::Result<Self> {
        let path = tier::copier_path(folder);
        if path.as_c_str().to_bytes().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(Self {
                address: SocketAddrUnix::new(path.as_c_str())?,
                _folder: None,
            });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, folder, flags, Mode::empty())?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
        Ok(Self {
            address: SocketAddrUnix::new(format!("/proc/self/fd/{number}/copier"))?,
            _folder: Some(folder),
        })
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        flags,
        None,
    )?)
}

/// Makes the socket that the copying process hears at.
pub fn listen(folder: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &Address::new(folder)?.address)?;
    Ok(socket)
}

/// Asks for a copy of what a descriptor is of.
pub fn ask(folder: &[u8], run: &[u8], key: Key, source: BorrowedFd<'_>) -> io::Result<()> {
    let [high, low] = key.to_words();
    let parts: [&[u8]; 4] = [&[COPY], &high.to_le_bytes(), &low.to_le_bytes(), run];
    send(folder, &parts, source)
}

/// Says that a run has begun, and by which process it lives.
pub fn tell_user(folder: &[u8], run: &[u8], process: BorrowedFd<'_>) -> io::Result<()> {
    send(folder, &[&[USER], run], process)
}

fn send(folder: &[u8], parts: &[&[u8]], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let socket = Ours::open(socket)?;
    let address = Address::new(folder)?;
    let slices = [0, 1, 2, 3].map(|index| IoSlice::new(parts.get(index).copied().unwrap_or(b"")));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry_on_intr(|| {
        sendmsg_addr(
            socket.as_fd(),
            &address.address,
            &slices,
            &mut ancillary,
            flags,
        )
    })?;
    Ok(())
}

/// Whether somebody hears at the socket of a folder.
pub fn is_heard(folder: &[u8]) -> bool {
    let reached = || -> io::Result<()> { Ok(connect(&socket()?, &Address::new(folder)?.address)?) };
    reached().is_ok()
}

/// Hears what was asked; none where nothing was.
pub fn hear(socket: impl AsFd) -> io::Result<Option<Asked>> {
    let mut bytes = [0; 1 + KEY_BYTES + RUN_NAME_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let heard = retry_on_intr(|| {
        recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            flags,
        )
    });
    let len = match heard {
        Ok(heard) => heard.bytes,
        Err(Errno::AGAIN) => return Ok(None),
        Err(cause) => return Err(cause.into()),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let descriptor = descriptors.into_iter().next();
    Ok(descriptor.and_then(|descriptor| understood(&bytes[..len], descriptor)))
}

fn understood(said: &[u8], descriptor: OwnedFd) -> Option<Asked> {
    let (kind, said) = said.split_first()?;
    match *kind {
        COPY => {
            let (high, said) = said.split_first_chunk()?;
            let (low, run) = said.split_first_chunk()?;
            let words = [u64::from_le_bytes(*high), u64::from_le_bytes(*low)];
            Some(Asked::Copy {
                run: run.to_vec(),
                key: Key::from_words(words),
                source: descriptor,
            })
        }
        USER => Some(Asked::User {
            run: said.to_vec(),
            process: descriptor,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::key::path_key;

    fn asked_in(folder: &std::path::Path) {
        let folder = folder.to_str().unwrap().as_bytes();
        let key = path_key(b"x");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"bytes").unwrap();
        let opened = std::fs::File::open(file.path()).unwrap();
        assert!(ask(folder, b"run-1", key, opened.as_fd()).is_err());
        assert!(!is_heard(folder));
        let socket = listen(folder).unwrap();
        assert!(is_heard(folder));
        assert!(hear(&socket).unwrap().is_none());
        ask(folder, b"run-1", key, opened.as_fd()).unwrap();
        let Some(Asked::Copy {
            run,
            key: heard,
            source,
        }) = hear(&socket).unwrap()
        else {
            panic!("nothing was heard");
        };
        assert_eq!((run.as_slice(), heard), (b"run-1".as_slice(), key));
        let mut text = String::new();
        std::fs::File::from(source)
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "bytes");
        drop(socket);
        // Nobody hears any more.
        assert!(ask(folder, b"run-1", key, opened.as_fd()).is_err());
    }

    #[test]
    fn a_file_is_handed_to_who_listens_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        asked_in(folder.path());
    }

    #[test]
    fn the_path_of_the_folder_may_be_long() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(150));
        std::fs::create_dir(&long).unwrap();
        asked_in(&long);
    }

    #[test]
    fn a_full_queue_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().as_bytes();
        let _socket = listen(path).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let sent = (0..10_000).take_while(|_| tell_user(path, b"run", file.as_fd()).is_ok());
        assert!(sent.count() < 10_000);
    }
}
