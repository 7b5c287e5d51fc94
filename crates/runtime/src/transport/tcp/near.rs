//! The handshake between two ranks of a host, on a socket that is theirs alone: the same as where ranks connect, by whoever
//! has the socket, who waits for it. And where a sample lies in a file of the host, as bytes.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use foresee_core::ids::Rank;

use super::frame::IN_FILE_BYTES_MAX;
use super::greeting::{Greeter, Refusal, Step};
use super::hub::Hub;
use crate::tier::InFile;

/// The most that is read at a time.
const READ_BYTES: usize = 1024;

/// Proves who this rank is and learns who the other one is. The socket's own deadlines are the only ones.
pub(super) fn greet(hub: &Hub, line: &UnixStream, is_first: bool) -> io::Result<Rank> {
    let made = if is_first {
        Greeter::first(&hub.badge)
    } else {
        Greeter::second(&hub.badge)
    };
    let mut greeter = made.map_err(|_| io::ErrorKind::Unsupported)?;
    let mut line = line;
    let mut bytes = [0; READ_BYTES];
    loop {
        line.write_all(&std::mem::take(&mut greeter.output))?;
        let wants = greeter.wants().min(bytes.len());
        line.read_exact(&mut bytes[..wants])?;
        match greeter.take(&bytes[..wants]).map_err(refused)? {
            Step::Wait => {}
            Step::Met(hello) => {
                let met = hub.admits(&hello);
                met.and_then(|()| greeter.accept(hello)).map_err(refused)?;
            }
            Step::Done(keys) => {
                line.write_all(&greeter.output)?;
                return Ok(keys.other.rank);
            }
        }
    }
}

/// Where a sample lies, as bytes; none where the path is too long.
pub(super) fn encode(at: &InFile) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.extend(at.offset.to_le_bytes());
    bytes.extend(at.sum.to_le_bytes());
    bytes.extend(at.path.as_os_str().as_bytes());
    (bytes.len() <= IN_FILE_BYTES_MAX).then_some(bytes)
}

/// Where a sample lies, of such bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<InFile> {
    let (offset, rest) = bytes.split_first_chunk::<8>()?;
    let (sum, path) = rest.split_first_chunk::<8>()?;
    Some(InFile {
        path: OsStr::from_bytes(path).into(),
        offset: u64::from_le_bytes(*offset),
        sum: u64::from_le_bytes(*sum),
    })
}

fn refused(refusal: Refusal) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, refusal.text())
}
