//! What the threads of a mesh and its users share: for each rank the way to it and what waits to be sent, and all channels.
//!
//! One lock, never held while a socket, a receiver or a payload's memory is touched: what is dropped is handed out first.
//! Two threads work on it. One connects, greets and writes (`outward`), the other reads and hands on (`inward`). A
//! connection belongs to both; when it ends, the one that reads says so, after what it had read before.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::channel::Channel;
use super::frame::{Bounds, Header, Kind};
use super::greeting::{Badge, Hello, Refusal};
use super::peer::{Conn, Peer, Way, end};
use super::queue::{Out, Stream};
use super::rooms::Rooms;
use super::shelf::Shelf;
use super::socket::Bell;
use crate::fork;
use crate::sync::{Mutex, MutexGuard, whole};
use crate::transport::{JobKey, Sent, Troubles};

/// Channels that others have used and this rank has not made: as many jobs as may be begun elsewhere first.
const UNOPENED_MAX: usize = 64;

/// Entries of the roster for each rank, before those that do not hold any more are forgotten.
const ROSTER_MOST: usize = 4;

/// Channels that were left and are remembered, so that others can be told.
const LEFT_MAX: usize = 1024;

/// What a left channel gave can be gathered for so long.
const LINGER: Duration = Duration::from_secs(60);

/// What the lock protects.
pub(super) struct State {
    pub(super) peers: Vec<Peer>,
    channels: BTreeMap<JobKey, Arc<Channel>>,
    /// Channels that were left, and when.
    left: VecDeque<(Instant, JobKey)>,
    /// Ranks that something is to be done for, in turn.
    ready: VecDeque<Rank>,
    /// Whether the thread that writes is to be woken.
    pub(super) out_sleeps: bool,
    /// Connections for the thread that reads.
    pub(super) newcomers: Vec<Arc<Conn>>,
    /// Connections that the thread that writes is to forget.
    pub(super) ended: Vec<u64>,
    /// Ranks that could not be reached, and those that can be again, for the thread that reads to tell.
    pub(super) losses: Vec<Rank>,
    pub(super) finds: Vec<Rank>,
    /// Channels in which something waits that can be handed on.
    pub(super) handing: Vec<Arc<Channel>>,
    /// Where ranks listen, as they came; what comes later holds. Only rank 0 has it.
    pub(super) roster: Vec<(Rank, SocketAddr)>,
    pub(super) strangers: Troubles,
    pub(super) stop: bool,
}

impl State {
    pub(super) fn peer(&mut self, rank: Rank) -> &mut Peer {
        &mut self.peers[rank.index()]
    }

    /// Something is to be done for a rank.
    pub(super) fn mark(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank.index()];
        if !peer.is_ready {
            peer.is_ready = true;
            self.ready.push_back(rank);
        }
    }

    /// All ranks that something is to be done for, by whoever takes them.
    pub(super) fn take_ready(&mut self) -> Vec<Rank> {
        let ranks = std::mem::take(&mut self.ready);
        for rank in &ranks {
            self.peers[rank.index()].is_ready = false;
        }
        ranks.into()
    }

    /// Whether the thread that writes has anything to do; if not, it is to be woken from now on.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.out_sleeps = self.ready.is_empty() && self.ended.is_empty();
        self.out_sleeps
    }

    /// Where a rank listens.
    pub(super) fn learn(&mut self, rank: Rank, address: SocketAddr) {
        self.peer(rank).addresses = vec![address];
        if !self.peer(rank).queue.is_empty() {
            self.mark(rank);
        }
    }

    /// Rank 0 tells all others where a rank listens. Who comes again and again makes it no longer: what was said before of
    /// the same ranks is forgotten then, and all of it is sent anew.
    fn enrol(&mut self, rank: Rank, address: SocketAddr) {
        if self.roster.len() >= ROSTER_MOST * self.peers.len() {
            let latest: BTreeMap<Rank, SocketAddr> = self.roster.drain(..).collect();
            self.roster.extend(latest);
            self.peers.iter_mut().for_each(|peer| peer.roster_sent = 0);
        }
        self.roster.push((rank, address));
        for other in (0..self.peers.len() as u32).map(Rank) {
            if self.peer(other).is_up() {
                self.mark(other);
            }
        }
    }
}

/// What is shared.
pub(super) struct Hub {
    pub(super) badge: Badge,
    /// Jobs may come with larger ones.
    sample_bytes_max: AtomicU64,
    /// No larger ones are carried, whatever jobs say.
    pub(super) sample_bytes_cap: u64,
    /// What rank 0 offers to all.
    pub(super) shelf: Shelf,
    /// Memory of samples that came.
    pub(super) rooms: Arc<Rooms>,
    /// Without a secret only this host is talked to.
    pub(super) is_local: bool,
    state: Mutex<State>,
    pub(super) out_bell: Bell,
    pub(super) in_bell: Bell,
    /// The thread that reads, once it runs.
    pub(super) reader: std::sync::OnceLock<std::thread::ThreadId>,
    /// Turns that were written.
    turns: AtomicU64,
    generation: u32,
}

impl Hub {
    pub(super) fn new(badge: Badge, is_local: bool) -> std::io::Result<Self> {
        let state = State {
            peers: (0..badge.world).map(|rank| Peer::new(Rank(rank))).collect(),
            channels: BTreeMap::new(),
            left: VecDeque::new(),
            ready: VecDeque::new(),
            out_sleeps: false,
            newcomers: Vec::new(),
            ended: Vec::new(),
            losses: Vec::new(),
            finds: Vec::new(),
            handing: Vec::new(),
            roster: Vec::new(),
            strangers: Troubles::default(),
            stop: false,
        };
        Ok(Self {
            badge,
            sample_bytes_max: AtomicU64::new(0),
            sample_bytes_cap: u64::from(u32::MAX),
            shelf: Shelf::default(),
            // Connections are read into memory as it is.
            rooms: Rooms::up_to(0),
            is_local,
            state: Mutex::new(state),
            out_bell: Bell::new()?,
            in_bell: Bell::new()?,
            reader: std::sync::OnceLock::new(),
            turns: AtomicU64::new(0),
            generation: fork::generation(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        whole(self.state.lock())
    }

    /// Whether this process is a child of the one whose mesh it is: it has no threads, and its locks may be held for ever.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn rank(&self) -> Rank {
        self.badge.rank
    }

    /// Samples may be as large as this, and as any that was allowed before.
    pub(super) fn allow(&self, sample_bytes_max: u64) {
        let most = sample_bytes_max.min(self.sample_bytes_cap);
        self.sample_bytes_max.fetch_max(most, Ordering::Relaxed);
    }

    /// What frames may be like by now.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            sample_bytes_max: self.sample_bytes_max.load(Ordering::Relaxed),
        }
    }

    /// All other ranks.
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let own = self.badge.rank;
        (0..self.badge.world)
            .map(Rank)
            .filter(move |rank| *rank != own)
    }

    /// Turns that were written so far.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// The number of a turn that is written.
    pub(super) fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether the caller is the thread that reads, or called by it: it writes itself, soon.
    fn is_reader(&self) -> bool {
        self.reader.get() == Some(&std::thread::current().id())
    }

    /// Does something with the state, and wakes the thread that writes if that left it something to do.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let done = change(&mut state);
        let has_work = !state.ready.is_empty() || !state.ended.is_empty() || state.stop;
        let wake = state.out_sleeps && has_work;
        if wake {
            state.out_sleeps = false;
        }
        drop(state);
        if wake {
            self.out_bell.ring();
        }
        done
    }

    /// Takes a frame to be sent.
    pub(super) fn send(&self, to: Rank, out: Out) -> Sent {
        let push = |state: &mut State| {
            let peer = state.peer(to);
            if peer.is_gone() {
                return (Sent::Gone, Some(out));
            }
            let pushed = peer.queue.push(out);
            state.mark(to);
            pushed
        };
        let (sent, refused) = if self.is_reader() {
            push(&mut self.state())
        } else {
            self.change(push)
        };
        drop(refused);
        sent
    }

    /// Takes something long to be sent.
    pub(super) fn stream(&self, to: Rank, stream: Stream) {
        self.change(|state| {
            if !state.peer(to).is_gone() {
                state.peer(to).queue.stream(stream);
                state.mark(to);
            }
        });
    }

    /// Says that this rank has left a channel, after all that was sent on it.
    pub(super) fn say_left(&self, to: Rank, key: JobKey, is_kind: bool) {
        let header = Header {
            extra: u32::from(!is_kind),
            ..Header::new(Kind::Leave, key, 0)
        };
        self.change(|state| {
            // Who never had a connection asks when it wants to know.
            if state.peer(to).is_up() {
                state.peer(to).queue.push_last(header);
                state.mark(to);
            }
        });
    }

    /// The channel of a job that this rank takes part in from now on.
    pub(super) fn open(&self, key: JobKey) -> Arc<Channel> {
        let mut state = self.state();
        let channel = state.channels.entry(key);
        let channel = Arc::clone(channel.or_insert_with(|| Channel::new(key)));
        channel.open();
        channel
    }

    /// The channel that a frame names; none where too many are not known here.
    pub(super) fn channel(&self, key: JobKey) -> Option<Arc<Channel>> {
        let mut state = self.state();
        if let Some(channel) = state.channels.get(&key) {
            return Some(Arc::clone(channel));
        }
        let all = state.channels.values();
        let unopened = all.filter(|channel| channel.is_unopened()).count();
        if unopened >= UNOPENED_MAX {
            return None;
        }
        let channel = Channel::new(key);
        state.channels.insert(key, Arc::clone(&channel));
        Some(channel)
    }

    /// What is kept of channels that this rank never made.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn unopened_bytes(&self) -> usize {
        let state = self.state();
        let all = state.channels.values();
        let unopened = all.filter(|channel| channel.is_unopened());
        unopened.map(|channel| channel.inbox_bytes()).sum()
    }

    /// Somebody has left a channel that this rank never made: nothing of it needs to be kept, the others ask again.
    pub(super) fn forget_unopened(&self, key: JobKey) {
        let mut state = self.state();
        let is_unopened = |channel: &Arc<Channel>| channel.is_unopened();
        let dropped = if state.channels.get(&key).is_some_and(is_unopened) {
            state.channels.remove(&key)
        } else {
            None
        };
        drop(state);
        drop(dropped);
    }

    /// All channels that this rank takes part in.
    pub(super) fn open_channels(&self) -> Vec<Arc<Channel>> {
        let state = self.state();
        let all = state.channels.values();
        all.filter(|channel| channel.is_open()).cloned().collect()
    }

    /// This rank leaves a channel, and tells the others. `is_kind`: what it gave can be gathered for a while.
    pub(super) fn leave(&self, channel: &Channel, is_kind: bool) {
        channel.leave(!is_kind);
        for rank in self.others() {
            self.say_left(rank, channel.key, is_kind);
        }
        let mut old = Vec::new();
        let mut state = self.state();
        state.left.push_back((Instant::now(), channel.key));
        while state.left.len() > LEFT_MAX {
            let Some((_, key)) = state.left.pop_front() else {
                break;
            };
            // It may have been made again since.
            if state.channels.get(&key).is_some_and(|one| !one.is_open()) {
                old.extend(state.channels.remove(&key));
            }
        }
        drop(state);
        drop(old);
    }

    /// Forgets what left channels gave, after a while.
    pub(super) fn forget_old(&self) {
        let state = self.state();
        let is_old = |left: &&(Instant, JobKey)| left.0.elapsed() > LINGER;
        let old = state.left.iter().take_while(is_old);
        let old = old.filter_map(|(_, key)| state.channels.get(key).cloned());
        let old: Vec<Arc<Channel>> = old.collect();
        drop(state);
        for channel in old.iter().filter(|channel| !channel.is_open()) {
            channel.with_calls(super::gathering::Calls::forget);
        }
    }

    /// Whether somebody who is connected still wants what this rank gave.
    pub(super) fn owes(&self) -> bool {
        let state = self.state();
        let channels: Vec<Arc<Channel>> = state.channels.values().cloned().collect();
        let up: Vec<bool> = state.peers.iter().map(Peer::is_up).collect();
        drop(state);
        let others: Vec<Rank> = self.others().collect();
        let there = |rank: Rank| up[rank.index()];
        let owes = |channel: &Arc<Channel>| channel.owes(there, &others);
        channels.iter().any(owes)
    }

    /// Whether a process may be the rank that it says it is.
    pub(super) fn admits(&self, hello: &Hello) -> Result<(), Refusal> {
        match self.state().peer(hello.rank).instance {
            Some(instance) if instance != hello.instance => Err(Refusal::Returned),
            Some(_) | None => Ok(()),
        }
    }

    /// A connection has come about. An older one of the same making is ended: whoever made it does not believe in it.
    pub(super) fn up(&self, conn: Arc<Conn>, hello: &Hello, listens: Option<SocketAddr>) {
        let is_first = self.badge.rank == Rank(0);
        let rank = conn.rank;
        let older = self.change(|state| {
            let peer = state.peer(rank);
            let older = peer.conns[usize::from(conn.is_ours)].replace(Arc::clone(&conn));
            peer.way = Way::Idle;
            peer.failures = 0;
            let was_met = peer.instance.replace(hello.instance).is_some();
            // It may have lost what it was sent before.
            peer.roster_sent = 0;
            if let Some(address) = listens {
                peer.addresses = vec![address];
                if is_first {
                    state.enrol(rank, address);
                }
            }
            state.mark(rank);
            state.newcomers.push(conn);
            if was_met {
                state.finds.push(rank);
            }
            older
        });
        self.in_bell.ring();
        if let Some(older) = older {
            end(&older);
        }
    }

    /// A connection is not sent on any more, without being lost.
    pub(super) fn retire(&self, conn: &Conn) {
        conn.is_closing.store(true, Ordering::Relaxed);
        self.change(|state| {
            let slot = &mut state.peer(conn.rank).conns[usize::from(conn.is_ours)];
            if slot.as_ref().is_some_and(|there| there.id == conn.id) {
                *slot = None;
            }
            // The thread that writes looks what is left to do on it.
            state.mark(conn.rank);
        });
    }

    /// A connection has ended. True where the rank is to be called lost.
    pub(super) fn down(&self, conn: &Conn) -> bool {
        let was_lost = !conn.is_closing.load(Ordering::Relaxed);
        let dropped = self.change(|state| {
            state.ended.push(conn.id);
            let stops = state.stop;
            let peer = state.peer(conn.rank);
            let slot = &mut peer.conns[usize::from(conn.is_ours)];
            if slot.as_ref().is_some_and(|there| there.id == conn.id) {
                *slot = None;
            }
            if !was_lost || stops {
                return None;
            }
            peer.troubles.lost += 1;
            if peer.is_up() {
                // What waits goes out on the other connection.
                state.mark(conn.rank);
                return None;
            }
            let dropped = std::mem::take(&mut peer.queue);
            if peer.way == Way::Idle {
                peer.way = Way::Waiting(Instant::now() + peer.pause());
            }
            // The thread that writes sets its clock by it.
            state.mark(conn.rank);
            Some(dropped)
        });
        drop(dropped);
        was_lost
    }

    /// Tells all channels that a rank is lost. Only the thread that reads does.
    pub(super) fn tell_lost(&self, rank: Rank) {
        for channel in self.open_channels() {
            channel.lost(rank);
        }
    }

    /// Tells all channels that a rank is there again, if it is. Only the thread that reads does.
    pub(super) fn tell_found(&self, rank: Rank) {
        if self.state().peer(rank).is_up() {
            for channel in self.open_channels() {
                channel.found(rank);
            }
        }
    }

    /// What went wrong so far.
    pub(super) fn troubles(&self) -> Vec<Troubles> {
        if self.is_elsewhere() {
            return Vec::new();
        }
        let state = self.state();
        let peers = state.peers.iter().map(|peer| peer.troubles);
        let all = peers.chain([state.strangers]);
        let is_any = |one: &Troubles| one.lost + one.garbled + one.refused + one.retries > 0;
        all.filter(is_any).collect()
    }
}
