//! A mesh that something else than connections carries: what `outward` and `inward` do for sockets is split here between
//! this file, which knows the hub and the frames, and who carries the messages (`transport::mpi`), which knows neither.
//!
//! One thread has it, and does all: it sends what waits, brings in what came, and calls receivers. All ranks are there when
//! it begins. A rank that says good-bye is lost, and stays so.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{Event, Kind};
use super::greeting::Badge;
use super::hub::Hub;
use super::inward;
use super::parcel::{self, Expected, Packer, Parcel, Unpacker};
use super::peer::Carriage;
use super::rooms::Rooms;
use super::{Meeting, Mesh, MeshError};

/// What is old is looked for so often.
const TICK: Duration = Duration::from_secs(1);

/// Memory of samples that came, kept for the next ones.
const ROOMS_BYTES_MAX: usize = 16 << 20;

/// What is to be done.
pub(in crate::transport) struct Work {
    /// Ranks that something waits for.
    pub(in crate::transport) ranks: Vec<Rank>,
    /// Whether all is to end.
    pub(in crate::transport) stop: bool,
}

/// The way to one rank and from it.
struct Way {
    packer: Packer,
    unpacker: Unpacker,
}

/// A mesh's side of what carries it.
pub(in crate::transport) struct Carrier {
    hub: Arc<Hub>,
    ways: Vec<Way>,
    ticked: Instant,
}

/// Ends what a carrier does, from elsewhere.
#[derive(Clone)]
pub(in crate::transport) struct Stopper(Weak<Hub>);

impl Stopper {
    pub(in crate::transport) fn stop(&self) {
        if let Some(hub) = self.0.upgrade() {
            hub.change(|state| state.stop = true);
            hub.in_bell.ring();
        }
    }
}

impl Mesh {
    /// A mesh whose messages `carry` brings to others, on a thread of this name; none is longer than `message_bytes_max`.
    pub(in crate::transport) fn carried(
        meeting: &Meeting,
        message_bytes_max: usize,
        name: &str,
        carry: impl FnOnce(Carrier) + Send + 'static,
    ) -> Result<(Arc<Self>, Stopper), MeshError> {
        let badge = Badge::new(meeting, 0);
        let mut hub = Hub::new(badge, meeting.secret.is_none())?;
        hub.sample_bytes_cap = message_bytes_max as u64;
        hub.rooms = Rooms::up_to(ROOMS_BYTES_MAX);
        let hub = Arc::new(hub);
        hub.allow(meeting.sample_bytes_max);
        let mut mesh = Self {
            hub: Arc::clone(&hub),
            port: 0,
            threads: Vec::new(),
        };
        let carrier = Carrier::new(Arc::clone(&hub));
        mesh.run(name, move || carry(carrier))?;
        Ok((Arc::new(mesh), Stopper(Arc::downgrade(&hub))))
    }
}

impl Carrier {
    fn new(hub: Arc<Hub>) -> Self {
        let own = hub.rank();
        let way = |other| Way {
            packer: Packer::new(own, other),
            unpacker: Unpacker::new(other, own, Arc::clone(&hub.rooms)),
        };
        let ways = (0..hub.badge.world).map(|rank| way(Rank(rank))).collect();
        for rank in hub.others() {
            hub.state().peer(rank).carriage = Carriage::Other;
        }
        Self {
            hub,
            ways,
            ticked: Instant::now(),
        }
    }

    /// The thread that calls this calls receivers from now on.
    pub(in crate::transport) fn begin(&self) {
        let _ = self.hub.reader.set(std::thread::current().id());
    }

    pub(in crate::transport) fn rank(&self) -> Rank {
        self.hub.rank()
    }

    /// All other ranks.
    pub(in crate::transport) fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        self.hub.others()
    }

    /// What is to be done; what others want of this thread is done.
    pub(in crate::transport) fn work(&mut self) -> Work {
        let mut state = self.hub.state();
        let ranks = state.take_ready();
        let handing = std::mem::take(&mut state.handing);
        // There are no connections to come, to end or to be found again.
        state.ended.clear();
        let stop = state.stop;
        drop(state);
        for channel in handing {
            channel.hand_on();
        }
        if self.ticked.elapsed() > TICK {
            self.ticked = Instant::now();
            self.hub.forget_old();
            self.hub.shelf.forget_old(Instant::now());
            self.hub.rooms.forget_unused();
        }
        Work { ranks, stop }
    }

    /// What goes to a rank next.
    pub(in crate::transport) fn turn(&mut self, to: Rank) -> Option<Parcel> {
        let turn = self.hub.state().peer(to).queue.turn();
        let way = &mut self.ways[to.index()];
        (!turn.is_empty()).then(|| way.packer.pack(turn))
    }

    /// The last that goes to a rank.
    pub(in crate::transport) fn bye(&mut self, to: Rank) -> Parcel {
        self.ways[to.index()].packer.pack(vec![parcel::bye()])
    }

    /// A head came; which messages come after it from that rank. None where it is none: nothing more of it can be relied on.
    pub(in crate::transport) fn head(&mut self, from: Rank, bytes: &[u8]) -> Option<Vec<Expected>> {
        let unpacker = &mut self.ways[from.index()].unpacker;
        let Ok(expected) = unpacker.head(bytes, self.hub.bounds()) else {
            self.hub.state().peer(from).troubles.garbled += 1;
            return None;
        };
        let too_long = expected.iter().filter(|one| one.is_too_long);
        if let Some(one) = too_long.max_by_key(|one| one.len) {
            tracing::warn!(
                "peers: rank {from} sent a sample of {} B, more than is allowed: it is dropped",
                one.len
            );
        }
        Some(expected)
    }

    /// A message that was expected came; none where it was dropped.
    pub(in crate::transport) fn body(&mut self, from: Rank, number: u64, bytes: Option<Vec<u8>>) {
        self.ways[from.index()].unpacker.body(number, bytes);
    }

    /// Hands on what is whole, in order; true where the rank has said good-bye.
    pub(in crate::transport) fn deliver(&mut self, from: Rank) -> bool {
        let mut is_bye = false;
        while let Some(event) = self.ways[from.index()].unpacker.next() {
            is_bye |= matches!(&event, Event::Frame(header, _) if header.kind == Kind::Bye);
            inward::arrived(&self.hub, from, event);
        }
        is_bye
    }

    /// A rank is not reached any more.
    pub(in crate::transport) fn lose(&mut self, rank: Rank) {
        let dropped = self.hub.change(|state| {
            let stops = state.stop;
            let peer = state.peer(rank);
            peer.carriage = Carriage::Over;
            peer.troubles.lost += u64::from(!stops);
            std::mem::take(&mut peer.queue)
        });
        drop(dropped);
        self.hub.tell_lost(rank);
    }

    /// Whether somebody still wants what this rank gave.
    pub(in crate::transport) fn owes(&self) -> bool {
        self.hub.owes()
    }

    /// Waits for so long, or until there is something to send or to do; says whether that is so.
    pub(in crate::transport) fn wait(&self, patience: Duration) -> bool {
        let may_sleep = self.hub.state().may_sleep();
        if !may_sleep {
            return true;
        }
        let patience = Timespec::try_from(patience).ok();
        let bells = [self.hub.out_bell.fd(), self.hub.in_bell.fd()];
        let mut bells = bells.map(|bell| PollFd::new(bell, PollFlags::IN));
        // Interrupted: as if nothing had come.
        let rung = poll(&mut bells, patience.as_ref()).unwrap_or(0) > 0;
        if rung {
            self.hub.out_bell.hush();
            self.hub.in_bell.hush();
        }
        rung
    }
}
