//! Sharing memory with the ranks of this host (`crate::host`): the exchange before a job starts, and samples that are left
//! for other ranks until they have fetched them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::Transport as Wanted;
use foresee_core::ids::{Rank, SampleId};

use super::agreement::Apart;
use super::outbox::{Outbox, Room};
use super::spec::JobSpec;
use crate::arena::{Arena, Block};
use crate::host::{self, Card, Listener, Offer, exchange};
use crate::sync::{Mutex, MutexGuard, whole};
use crate::transport::{Given, Transport};

/// The exchange takes milliseconds; who does not come in this time is reached by other ways.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// Largest samples that are left for others beyond what fills the outbox: reads that were under way when it was full.
const UNDER_WAY: u64 = 16;

/// Shares memory with the ranks of this host, where that is wanted and can be done. All ranks of a job call it, each once.
/// Only that somebody did not come any more is a reason not to go on with them.
pub(super) fn share(
    spec: &JobSpec,
    transport: &dyn Transport,
    arena: &Arc<Arena>,
    patience: Duration,
) -> Result<(), Apart> {
    let wanted = spec.config.peers.transport;
    let does_share = wanted.shares_memory() && transport.greets();
    let listener = does_share.then(Listener::new);
    let listener = listener.and_then(|made| said(spec, "cannot listen", made));
    let card = listener.as_ref().map(|listener| listener.card().encode());
    let given = Given::to_all(card.unwrap_or_default());
    let all = transport.gather(given, patience).map_err(Apart::Late)?;
    let Some(listener) = listener else {
        return Ok(());
    };
    let cards: Vec<Option<Card>> = all.iter().map(|bytes| Card::decode(bytes)).collect();
    let own = listener.card();
    let near = cards.iter().flatten().filter(|card| card.is_near(&own));
    if near.count() < 2 {
        say(spec, "no other rank is on this host");
        return Ok(());
    }
    let left_bytes = left_bytes(spec);
    let memory = arena.offer(left_bytes, spec.catalog.largest().0);
    let Some(memory) = said(spec, "cannot offer memory", memory) else {
        return Ok(());
    };
    let samples = spec.catalog.len();
    let offer = Offer { samples, memory };
    let deadline = Instant::now() + patience.min(EXCHANGE_MAX);
    let exchanged = exchange(transport, &listener, &cards, &offer, deadline);
    let Some(exchanged) = said(spec, "cannot exchange memory", exchanged) else {
        return Ok(());
    };
    for (rank, cause) in &exchanged.failed {
        say(spec, &format!("not with rank {rank}: {cause}"));
    }
    tracing::debug!(
        "rank {}: shares memory with {} other ranks of this host",
        spec.rank,
        exchanged.neighbours.len()
    );
    arena.share(exchanged);
    Ok(())
}

/// What sharing memory takes of a rank's, among so many of its host: its board, a table of pins for each of the others, and
/// what lies about for them. What it uses of the others is theirs.
pub(super) fn bytes(spec: &JobSpec, ranks: u32) -> u64 {
    let does_share = matches!(spec.config.peers.transport, Wanted::Auto | Wanted::Shared);
    if ranks < 2 || !does_share || !spec.keeps() {
        return 0;
    }
    host::tables_bytes(spec.catalog.len(), ranks).saturating_add(left_bytes(spec))
}

/// How much may lie about for other ranks.
fn left_bytes(spec: &JobSpec) -> u64 {
    let full_bytes = Outbox::full_bytes(spec.config.staging.capacity_bytes);
    let largest = spec.catalog.largest().0.next_multiple_of(64);
    full_bytes.saturating_add(largest.saturating_mul(UNDER_WAY))
}

/// What came of something; where that is nothing, why.
fn said<T>(spec: &JobSpec, what: &str, outcome: std::io::Result<T>) -> Option<T> {
    outcome
        .inspect_err(|cause| say(spec, &format!("{what}: {cause}")))
        .ok()
}

/// Who asked for shared memory is told why there is none.
fn say(spec: &JobSpec, why: &str) {
    let rank = spec.rank;
    if spec.config.peers.transport == Wanted::Shared {
        tracing::warn!(
            "rank {rank}: memory is not shared: {why}; samples go over TCP (peers.transport = \"shared\")"
        );
    } else {
        tracing::debug!("rank {rank}: memory is not shared: {why}");
    }
}

/// A sample that lies here for another rank.
struct One {
    since: Instant,
    _block: Arc<Block>,
    /// What it takes of the outbox meanwhile, if it is on its way to its home.
    _room: Option<Room>,
}

#[derive(Default)]
struct Lying {
    samples: BTreeMap<(Rank, SampleId), One>,
    /// Oldest first; some may have been fetched.
    order: VecDeque<(Instant, Rank, SampleId)>,
}

/// Samples that lie here for their homes until they were fetched.
pub(super) struct Left {
    patience: Duration,
    lying: Mutex<Lying>,
}

impl Left {
    /// Nothing yet; a home that does not fetch its samples in this time goes without.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            lying: Mutex::default(),
        }
    }

    fn lying(&self) -> MutexGuard<'_, Lying> {
        whole(self.lying.lock())
    }

    /// A sample lies here for a rank.
    pub(super) fn put(&self, rank: Rank, sample: SampleId, block: Arc<Block>, room: Option<Room>) {
        let since = Instant::now();
        let one = One {
            since,
            _block: block,
            _room: room,
        };
        let mut lying = self.lying();
        let before = lying.samples.insert((rank, sample), one);
        lying.order.push_back((since, rank, sample));
        drop(lying);
        // After the lock: its memory is given back.
        drop(before);
    }

    /// What was not fetched in time does not lie here any longer. Before anybody looks for room: those who were told to
    /// fetch something may say nothing for ever.
    pub(super) fn expire(&self) {
        let mut lying = self.lying();
        let mut over = Vec::new();
        while let Some(&(since, rank, sample)) = lying.order.front() {
            if since.elapsed() < self.patience {
                break;
            }
            lying.order.pop_front();
            let key = (rank, sample);
            if lying
                .samples
                .get(&key)
                .is_some_and(|one| one.since == since)
            {
                over.extend(lying.samples.remove(&key));
            }
        }
        drop(lying);
        // After the lock: their memory is given back.
        drop(over);
    }

    /// A rank has fetched its sample, or will not.
    pub(super) fn forget(&self, rank: Rank, sample: SampleId) {
        let fetched = self.lying().samples.remove(&(rank, sample));
        drop(fetched);
    }

    /// A rank is gone.
    pub(super) fn forget_all(&self, rank: Rank) {
        let mut lying = self.lying();
        let of_rank = (rank, SampleId(0))..=(rank, SampleId(u32::MAX));
        let keys: Vec<_> = lying.samples.range(of_rank).map(|(key, _)| *key).collect();
        let gone: Vec<_> = keys
            .iter()
            .filter_map(|key| lying.samples.remove(key))
            .collect();
        drop(lying);
        drop(gone);
    }
}

#[cfg(all(test, not(any(feature = "shuttle", miri))))]
mod tests {
    use super::*;
    use crate::arena::Keeps;
    use crate::pool::Pool;
    use crate::tier::Stay;

    const LEN: usize = 1 << 20;

    #[test]
    fn what_nobody_fetches_in_time_makes_room_though_nothing_more_is_put() {
        let keeps = Keeps {
            bytes: LEN as u64,
            samples: 1,
            largest: LEN as u64,
        };
        let arena = Arena::new(64, keeps).unwrap();
        let outbox = Outbox::new(0, 0, Arc::new(Pool::new(0)));
        let taken = std::iter::from_fn(|| outbox.room(LEN)).collect::<Vec<_>>();
        let block = arena.keep(LEN, Stay::Lasting).unwrap().share();
        let [patient, hasty] = [Duration::MAX, Duration::ZERO].map(Left::new);
        let put = |left: &Left, room: Room| {
            let sample = SampleId(left.lying().samples.len() as u32);
            left.put(Rank(1), sample, Arc::clone(&block), Some(room));
        };
        for (room, left) in taken
            .into_iter()
            .zip([&patient, &hasty].into_iter().cycle())
        {
            put(left, room);
        }
        patient.expire();
        assert!(outbox.room(LEN).is_none(), "it may still be fetched");
        hasty.expire();
        assert!(outbox.room(LEN).is_some());
        assert!(hasty.lying().samples.is_empty() && hasty.lying().order.is_empty());
    }
}
