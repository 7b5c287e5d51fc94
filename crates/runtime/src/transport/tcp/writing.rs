//! Writing to a rank, a turn at a time.
//!
//! The thread that writes does it (`outward`), and so does the one that reads (`inward`), for what those whom it calls have
//! to say: most answers are given while a request is handed on. To wake another thread for each of them takes as long as to
//! send it. What is more than a turn, or does not go out now, is left to the thread that writes: so much at a time is worth a
//! second thread. Whoever writes has the connection's line locked, and takes from the queue only then: frames go out in the
//! order in which they were queued.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foresee_core::ids::Rank;

use super::frame::{Header, Kind};
use super::hub::{Hub, State};
use super::line::Wrote;
use super::peer::{Conn, end};
use super::queue::Out;
use super::roster;
use crate::transport::{JobKey, Payload};

/// What became of a rank's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It was written, and there may be more.
    Written,
    /// There is another connection by now.
    Again,
    /// There is nothing to write.
    Nothing,
    /// The connection takes no more now; when it does, the thread that writes is told.
    Later,
    /// There is no connection.
    Unconnected,
}

impl Hub {
    /// Writes what those have said who were called by the thread that reads, which calls this. Where the thread that writes is
    /// awake, it does.
    pub(super) fn write_answers(&self) {
        let mut state = self.state();
        if !state.out_sleeps {
            return;
        }
        let ranks = state.take_ready();
        drop(state);
        let mut left = Vec::new();
        for rank in ranks {
            match self.write_turn(rank) {
                Turn::Nothing | Turn::Later => {}
                Turn::Written if self.state().peer(rank).queue.is_empty() => {}
                Turn::Written | Turn::Again | Turn::Unconnected => left.push(rank),
            }
        }
        if !left.is_empty() {
            self.change(|state| left.iter().for_each(|rank| state.mark(*rank)));
        }
    }

    /// Writes a turn of what waits for a rank.
    pub(super) fn write_turn(&self, rank: Rank) -> Turn {
        let own = self.rank();
        let Some(conn) = self.state().peer(rank).best(own).cloned() else {
            return Turn::Unconnected;
        };
        let mut line = conn.line();
        if !line.is_writable {
            return Turn::Later;
        }
        if line.is_empty() {
            let mut state = self.state();
            let is_best = |best: &Arc<Conn>| best.id == conn.id;
            if !state.peer(rank).best(own).is_some_and(is_best) {
                return Turn::Again;
            }
            let roster = roster_for(&mut state, &conn);
            let mut turn = state.peer(rank).queue.turn();
            drop(state);
            turn.extend(roster);
            if turn.is_empty() {
                return Turn::Nothing;
            }
            conn.used.store(self.next_turn(), Ordering::Relaxed);
            line.fill(turn, conn.cipher.as_ref());
        }
        match line.write(&conn.stream) {
            Ok(Wrote::All) => Turn::Written,
            Ok(Wrote::Some) => Turn::Later,
            Err(_) => {
                end(&conn);
                Turn::Nothing
            }
        }
    }
}

/// What a rank has not been told of the roster. Who is on rank 0's own host is, for others, where they reach rank 0.
fn roster_for(state: &mut State, conn: &Conn) -> Option<Out> {
    let all = state.roster.len();
    let sent = std::mem::replace(&mut state.peer(conn.rank).roster_sent, all);
    let news = state.roster.get(sent..all)?;
    let news = news.get(..news.len().min(roster::ENTRIES_MAX))?;
    if news.is_empty() {
        return None;
    }
    let told = sent + news.len();
    let near: Option<IpAddr> = conn
        .stream
        .local_addr()
        .ok()
        .map(|own| own.ip().to_canonical());
    let bytes = roster::encode(news, near);
    let peer = state.peer(conn.rank);
    peer.roster_sent = told;
    let header = Header::new(Kind::Roster, JobKey([0; 16]), 0);
    Some(Out::large(header, Payload::new(bytes)))
}
