//! Samples on their way to their homes. Each is charged here until the transport lets go of it. While they take a quarter of
//! what the staging buffer has, nothing more is read ahead that would have to be handed over; what the trainer waits for is
//! read all the same. Beyond twice that they are not sent, and counted: the home is told that they will not come, and who
//! needs them reads the source. So a slow network costs reading ahead first, then reads, never memory.

use std::sync::Arc;

use super::peer_stats::Moved;
use crate::pool::Pool;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::transport::Payload;

/// Of the staging buffer, samples on their way may take one part in so many before reading ahead slows.
const PART: u64 = 4;

/// What may be on its way at least: one message of the largest size, however small the staging buffer is.
const LEAST_BYTES: u64 = 1 << 20;

/// Reads that may be under way when it is full: as many as there can be threads.
const UNDER_WAY_MAX: u64 = 64;

/// Why a sample was not sent to its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// Too much is on its way, or it waited for too long.
    Late,
    /// There is nobody to send it to: that rank has left, or is lost, or this job is closed.
    Gone,
}

/// Samples on their way to their homes.
pub(super) struct Outbox {
    /// From here on it is full.
    full_bytes: u64,
    /// Beyond this nothing is taken.
    most_bytes: u64,
    bytes: AtomicU64,
    /// Samples that were not sent, by [`Unsent`].
    dropped: [AtomicU64; 2],
    sent: [AtomicU64; 2],
    /// Whose threads are told that there is room again.
    pool: Arc<Pool>,
}

impl Outbox {
    /// For a job with so large a staging buffer, and samples of so many bytes at most.
    pub(super) fn new(staging_bytes: u64, largest_bytes: u64, pool: Arc<Pool>) -> Arc<Self> {
        let full_bytes = Self::full_bytes(staging_bytes);
        let under_way = largest_bytes.saturating_mul(UNDER_WAY_MAX);
        Arc::new(Self {
            full_bytes,
            most_bytes: full_bytes.saturating_mul(2).saturating_add(under_way),
            bytes: AtomicU64::new(0),
            dropped: [AtomicU64::new(0), AtomicU64::new(0)],
            sent: [AtomicU64::new(0), AtomicU64::new(0)],
            pool,
        })
    }

    /// How many bytes fill it, beside so large a staging buffer.
    pub(super) fn full_bytes(staging_bytes: u64) -> u64 {
        (staging_bytes / PART).max(LEAST_BYTES)
    }

    /// Whether nothing more is to be read ahead for others.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.full_bytes
    }

    /// Room for so many bytes; none where far too many are on their way, which is counted.
    pub(super) fn room(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let bytes = bytes as u64;
        let order = Ordering::Relaxed;
        let taken = self.bytes.fetch_update(order, order, |there| {
            let all = there.checked_add(bytes)?;
            (all <= self.most_bytes).then_some(all)
        });
        if taken.is_err() {
            self.drop_one(Unsent::Late);
            return None;
        }
        Some(Room {
            outbox: Arc::clone(self),
            bytes,
        })
    }

    /// A sample was not sent.
    pub(super) fn drop_one(&self, why: Unsent) {
        self.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A sample was given to the transport.
    pub(super) fn sent_one(&self, bytes: usize) {
        self.sent[0].fetch_add(1, Ordering::Relaxed);
        self.sent[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How many samples were not sent.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped_as(Unsent::Late) + self.dropped_as(Unsent::Gone)
    }

    /// How many of them for that reason.
    fn dropped_as(&self, why: Unsent) -> u64 {
        self.dropped[why as usize].load(Ordering::Relaxed)
    }

    /// How many of them may have cost somebody a read. Who ends a job before its end is told of none whose home had gone:
    /// ranks that stop together leave one after another, and nobody reads anything again.
    pub(super) fn missed(&self, is_over: bool) -> u64 {
        if is_over {
            self.dropped()
        } else {
            self.dropped_as(Unsent::Late)
        }
    }

    /// What was sent.
    pub(super) fn sent(&self) -> Moved {
        Moved {
            samples: self.sent[0].load(Ordering::Relaxed),
            bytes: self.sent[1].load(Ordering::Relaxed),
        }
    }
}

/// Room that a sample takes until it has been sent.
pub(super) struct Room {
    outbox: Arc<Outbox>,
    bytes: u64,
}

impl Room {
    /// The sample, which has this room until the transport is done with it.
    pub(super) fn fill(self, sample: Payload) -> Payload {
        Payload::new(Charged {
            sample,
            _room: self,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Outbox {
            bytes, full_bytes, ..
        } = &*self.outbox;
        let before = bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if before >= *full_bytes && before - self.bytes < *full_bytes {
            self.outbox.pool.signal();
        }
    }
}

struct Charged {
    sample: Payload,
    _room: Room,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        self.sample.bytes()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn outbox(staging: usize) -> Arc<Outbox> {
        Outbox::new(staging as u64, 0, Arc::new(Pool::new(0)))
    }

    fn send(outbox: &Arc<Outbox>, bytes: usize) -> Option<Payload> {
        let room = outbox.room(bytes)?;
        Some(room.fill(Payload::new(vec![7; bytes])))
    }

    #[test]
    fn a_quarter_of_staging_fills_it_and_twice_that_is_the_most() {
        let outbox = outbox(16 * MIB);
        let mut sent: Vec<_> = (0..3).filter_map(|_| send(&outbox, MIB)).collect();
        assert!(!outbox.is_full());
        sent.extend((0..7).filter_map(|_| send(&outbox, MIB)));
        assert!(outbox.is_full());
        assert_eq!(sent.len(), 8);
        assert_eq!(outbox.dropped(), 2);
        assert_eq!(sent[0].bytes(), vec![7; MIB]);
    }

    #[test]
    fn what_nobody_was_there_for_is_missed_only_by_who_went_on_to_the_end() {
        let outbox = outbox(0);
        outbox.drop_one(Unsent::Gone);
        assert_eq!((outbox.missed(false), outbox.missed(true)), (0, 1));
        outbox.drop_one(Unsent::Late);
        assert_eq!((outbox.missed(false), outbox.missed(true)), (1, 2));
        assert_eq!(outbox.dropped(), 2);
    }

    #[test]
    fn there_is_room_again_when_the_last_one_lets_go() {
        let outbox = outbox(0);
        let sent = send(&outbox, MIB);
        let twice = sent.clone();
        drop(sent);
        assert!(outbox.is_full(), "it is sent a second time");
        drop(twice);
        assert!(!outbox.is_full());
    }
}
