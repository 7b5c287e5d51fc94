//! Sockets as ranks use them: nobody waits in one, a child program does not get them, and a line that is cut is noticed.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, connect, sendmsg,
    socket_with, sockopt,
};

/// A line on which nothing arrives for so long though something was sent is cut. An idle one is asked whether it is.
const CUT_AFTER: Duration = Duration::from_secs(10);
const ASK_EACH: Duration = Duration::from_secs(2);
const ASK_TIMES: u32 = 3;

/// A socket that waits for connections.
pub(super) fn listen(bind: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((bind, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Begins to connect; whether it has, a later look tells.
pub(super) fn reach(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    tune(&stream)?;
    Ok(stream)
}

/// What all connections have in common.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_tcp_user_timeout(stream, CUT_AFTER.as_millis() as u32)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASK_EACH * 2)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EACH)?;
    sockopt::set_tcp_keepcnt(stream, ASK_TIMES)?;
    Ok(())
}

/// What became of connecting, once it has been decided.
pub(super) fn outcome(stream: &TcpStream) -> io::Result<()> {
    sockopt::socket_error(stream)??;
    Ok(())
}

/// Sends as much as there is room for; a connection that is gone is an error, not a signal.
pub(super) fn send(stream: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut nothing = SendAncillaryBuffer::default();
    let sent = sendmsg(stream, pieces, &mut nothing, SendFlags::NOSIGNAL)?;
    Ok(sent)
}

/// The same for a few bytes.
pub(super) fn send_bytes(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    send(stream, &[IoSlice::new(bytes)])
}

/// Wakes a thread that waits for sockets.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(super) fn ring(&self) {
        // It can only fail where it has been rung very often already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// It was heard.
    pub(super) fn hush(&self) {
        let mut rung = [0; 8];
        // Nobody rang: nothing to hush.
        let _ = rustix::io::read(&self.0, &mut rung);
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}
