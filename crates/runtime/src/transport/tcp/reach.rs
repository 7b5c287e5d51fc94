//! How ranks without a connection are reached: by whom it is wanted, where they listen, and when it is tried again.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Instant;

use foresee_core::ids::Rank;

use super::greeting::Greeter;
use super::hub::State;
use super::outward::Outward;
use super::peer::Way;
use super::socket;
use crate::sync::MutexGuard;

impl Outward {
    /// A rank without a connection: connect, or look again later.
    pub(super) fn arrange(&mut self, rank: Rank, mut state: MutexGuard<'_, State>) {
        let stop = state.stop;
        let peer = state.peer(rank);
        match peer.way {
            Way::Connecting => {}
            Way::Waiting(until) => {
                self.waits.insert((until, rank));
            }
            Way::Idle => {
                let wanted = !peer.queue.is_empty() || (rank == Rank(0)) || peer.failures > 0;
                if wanted && !stop {
                    peer.way = Way::Connecting;
                    drop(state);
                    self.connect(rank);
                }
            }
        }
    }

    /// Tries those again whose time has come.
    pub(super) fn retry(&mut self) {
        let now = Instant::now();
        while let Some((at, rank)) = self.waits.first().copied() {
            if at > now {
                return;
            }
            self.waits.pop_first();
            let mut state = self.hub.state();
            let peer = state.peer(rank);
            if peer.way == Way::Waiting(at) {
                peer.way = Way::Connecting;
                peer.troubles.retries += 1;
                drop(state);
                self.connect(rank);
            }
        }
    }

    /// Begins to connect to a rank.
    pub(super) fn connect(&mut self, rank: Rank) {
        let Some(address) = self.address(rank) else {
            let mut state = self.hub.state();
            if rank == Rank(0) {
                // Its name may be known later.
                drop(state);
                self.failed(rank);
            } else {
                // It has not come yet: the roster will say.
                state.peer(rank).way = Way::Idle;
            }
            return;
        };
        let begun = socket::reach(address).and_then(|stream| {
            Ok((
                stream,
                Greeter::first(&self.hub.badge).map_err(|_| io::ErrorKind::Unsupported)?,
            ))
        });
        match begun {
            Ok((stream, greeter)) => self.begin(stream, greeter, Some(rank)),
            Err(_) => self.failed(rank),
        }
    }

    /// Where a rank listens; several addresses are tried in turn.
    fn address(&self, rank: Rank) -> Option<SocketAddr> {
        let mut state = self.hub.state();
        let peer = state.peer(rank);
        let failures = peer.failures as usize;
        let turn = |all: &[SocketAddr]| all.get(failures % all.len().max(1)).copied();
        if let Some(address) = turn(&peer.addresses) {
            return Some(address);
        }
        if rank != Rank(0) {
            return None;
        }
        drop(state);
        // This can take a while, but before rank 0 was met there is nothing else to do.
        let found = (self.first.0.as_str(), self.first.1)
            .to_socket_addrs()
            .ok()?;
        let is_local = self.hub.is_local;
        let mut found: Vec<SocketAddr> = found
            .filter(|address| !is_local || address.ip().to_canonical().is_loopback())
            .collect();
        // A name that is an address of both kinds is mostly listened to on the older one.
        found.sort_by_key(SocketAddr::is_ipv6);
        turn(&found)
    }

    /// A rank could not be reached: later again, and what waits for it is lost, unless it never was there.
    pub(super) fn failed(&mut self, rank: Rank) {
        let mut state = self.hub.state();
        let peer = state.peer(rank);
        if peer.is_up() {
            // It connected here meanwhile.
            peer.way = Way::Idle;
            return;
        }
        peer.failures = peer.failures.saturating_add(1);
        let until = Instant::now() + peer.pause();
        peer.way = Way::Waiting(until);
        self.waits.insert((until, rank));
        // Who had a connection before was told when that ended.
        let dropped = if peer.can_be_lost() && !peer.queue.is_empty() {
            let dropped = std::mem::take(&mut peer.queue);
            state.losses.push(rank);
            Some(dropped)
        } else {
            None
        };
        drop(state);
        if dropped.is_some() {
            self.hub.in_bell.ring();
        }
    }
}
