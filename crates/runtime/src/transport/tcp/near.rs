//! The handshake between two ranks of a host, on a socket that is theirs alone: the same as where ranks connect, by whoever
//! has the socket, who waits for it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use foresee_core::ids::Rank;

use super::greeting::{Greeter, Refusal, Step};
use super::hub::Hub;

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

fn refused(refusal: Refusal) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, refusal.text())
}
