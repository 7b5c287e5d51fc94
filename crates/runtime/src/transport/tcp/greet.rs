//! A handshake on a socket: reads and writes what the two ends have to say to each other, as far as it goes without waiting.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use foresee_core::ids::Rank;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::greeting::{Greeter, Hello, Keys, Refusal, Step};
use super::hub::Hub;
use super::socket;

/// A handshake under way.
pub(super) struct Greeting {
    pub(super) stream: TcpStream,
    pub(super) greeter: Greeter,
    /// Whom this rank wants to reach; none for who connected here.
    pub(super) wanted: Option<Rank>,
    /// Whether it is not known yet if there is a connection.
    pub(super) is_connecting: bool,
    pub(super) deadline: Instant,
    /// It was refused, and is only told why.
    pub(super) refused: Option<Refusal>,
}

/// What became of a look at a handshake.
pub(super) enum Look {
    Wait,
    Done(Box<Keys>),
    Refused(Refusal),
    /// The connection failed.
    Failed,
}

/// Where who is at the other end listens: the address of the socket to rank 0, and the port that it says.
pub(super) fn listens(greeting: &Greeting, hello: &Hello) -> Option<SocketAddr> {
    let far = greeting.stream.peer_addr().ok()?;
    match greeting.wanted {
        // The address that was just used.
        Some(_) => Some(far),
        None => Some(SocketAddr::new(far.ip().to_canonical(), hello.port)),
    }
}

/// Reads and writes what a handshake has to, until it has to wait.
pub(super) fn advance(greeting: &mut Greeting, hub: &Hub) -> Look {
    if greeting.is_connecting {
        if socket::outcome(&greeting.stream).is_err() {
            return Look::Failed;
        }
        if greeting.stream.peer_addr().is_err() {
            return Look::Wait;
        }
        greeting.is_connecting = false;
    }
    loop {
        if flush(greeting).is_err() {
            return Look::Failed;
        }
        if greeting.refused.is_some() {
            let is_told = greeting.greeter.output.is_empty();
            return if is_told { Look::Failed } else { Look::Wait };
        }
        let mut bytes = [0; 1024];
        let wants = greeting.greeter.wants().min(bytes.len());
        let got = match recv(&greeting.stream, &mut bytes[..wants], RecvFlags::empty()) {
            Ok((got, _)) if got > 0 => got,
            Err(Errno::AGAIN | Errno::INTR) => return Look::Wait,
            Ok(_) if greeting.wanted.is_some() => return Look::Refused(Refusal::Closed),
            // A rank of this job that had waited long enough: it comes again.
            Ok(_) if greeting.greeter.has_met() => return Look::Failed,
            Ok(_) => return Look::Refused(Refusal::Stranger),
            Err(_) => return Look::Failed,
        };
        match greeting.greeter.take(&bytes[..got]) {
            Ok(Step::Wait) => {}
            Ok(Step::Met(hello)) => {
                let met = hub.admits(&hello);
                let met = met.and_then(|()| greeting.greeter.accept(hello));
                if let Err(refusal) = met {
                    greeting.greeter.refuse(refusal);
                    return refused(greeting, refusal);
                }
            }
            Ok(Step::Done(keys)) => return Look::Done(keys),
            Err(refusal) => return refused(greeting, refusal),
        }
    }
}

/// Tells the other end why, as far as that goes at once.
fn refused(greeting: &mut Greeting, refusal: Refusal) -> Look {
    // If it cannot be told it sees a connection that ends.
    let _ = flush(greeting);
    Look::Refused(refusal)
}

fn flush(greeting: &mut Greeting) -> io::Result<()> {
    let output = &mut greeting.greeter.output;
    while !output.is_empty() {
        match socket::send_bytes(&greeting.stream, output) {
            Ok(sent) => drop(output.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
