//! What rank 0 offers to all others: how it is given, and how it is got. The book is in `shelf`.
//!
//! Nothing is sent to who did not ask. What is long goes in parts, behind all samples, and what a broken connection or a
//! garbled part leaves out is asked for again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use super::Mesh;
use super::frame::{Header, Kind};
use super::hub::Hub;
use super::queue::{Out, Stream};
use super::shelf::{Missed, OfferName, Offered, Reply};
use crate::transport::{JobKey, Payload};

/// Rank 0 alone offers: all ranks know it.
const FIRST: Rank = Rank(0);

impl Mesh {
    /// Rank 0: what this names will be there soon. Dropping what is returned says that it will not.
    pub fn announce(self: &Arc<Self>, name: OfferName) -> Announced {
        if !self.hub.is_elsewhere() {
            self.hub.shelf.announce(name, Instant::now());
        }
        Announced {
            mesh: Arc::clone(self),
            name,
            is_settled: false,
        }
    }

    /// Rank 0: it goes on with what it has announced, so that waiting for it makes sense.
    pub fn stir(&self) {
        if !self.hub.is_elsewhere() {
            self.hub.shelf.stir();
        }
    }

    /// Other ranks: what rank 0 has by this name. Waits until it has it, while it is heard and goes on; `patience` is how long
    /// it may take to begin.
    pub fn ask_first(&self, name: OfferName, patience: Duration) -> Result<Offered, Missed> {
        if self.hub.is_elsewhere() || self.hub.rank() == FIRST {
            return Err(Missed::NotComing);
        }
        let ask = |edition: u32, has: usize| {
            let number = u64::from(edition) << 32 | has as u64;
            let header = Header::new(Kind::OfferAsk, JobKey(name.0), number);
            // What cannot be sent now is sent with the next question.
            let _ = self.hub.send(FIRST, Out::small(header));
        };
        self.hub.shelf.want(name, patience, ask)
    }
}

/// Something that rank 0 is about to offer.
pub struct Announced {
    mesh: Arc<Mesh>,
    name: OfferName,
    is_settled: bool,
}

impl Announced {
    /// It is there.
    pub fn offer(mut self, bytes: Vec<u8>) {
        self.is_settled = true;
        self.settle(Some(Payload::new(bytes)));
    }

    fn settle(&self, bytes: Option<Payload>) {
        let hub = &self.mesh.hub;
        if hub.is_elsewhere() {
            return;
        }
        let (_, askers) = hub.shelf.settle(self.name, bytes, Instant::now());
        for rank in askers {
            reply(hub, rank, self.name, (0, 0));
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle(None);
        }
    }
}

/// A frame that concerns an offer came.
pub(super) fn arrived(hub: &Hub, from: Rank, header: Header, bytes: &[u8]) {
    let name = OfferName(header.channel.0);
    let high = (header.number >> 32) as u32;
    let low = (header.number & u64::from(u32::MAX)) as usize;
    match header.kind {
        // A rank that offers nothing says so.
        Kind::OfferAsk if hub.rank() != FIRST => say_none(hub, from, name),
        Kind::OfferAsk => reply(hub, from, name, (high, low)),
        _ if from != FIRST => {}
        Kind::OfferWait => hub.shelf.told_to_wait(name, header.number),
        Kind::OfferNone => hub.shelf.told_none(name),
        Kind::OfferPart => {
            let at = header.extra as usize;
            hub.shelf.part(name, (high, low), at, bytes);
        }
        _ => {}
    }
}

fn reply(hub: &Hub, to: Rank, name: OfferName, has: (u32, usize)) {
    let key = JobKey(name.0);
    match hub.shelf.asked(to, name, has, Instant::now()) {
        Reply::Part { edition, at, bytes } => {
            let stream = Stream::new(Kind::OfferPart, key, edition, bytes);
            hub.stream(to, stream.from(at));
        }
        Reply::Wait { activity } => {
            let header = Header::new(Kind::OfferWait, key, activity);
            // The question comes again.
            let _ = hub.send(to, Out::small(header));
        }
        Reply::None => say_none(hub, to, name),
    }
}

fn say_none(hub: &Hub, to: Rank, name: OfferName) {
    let header = Header::new(Kind::OfferNone, JobKey(name.0), 0);
    // The question comes again.
    let _ = hub.send(to, Out::small(header));
}
