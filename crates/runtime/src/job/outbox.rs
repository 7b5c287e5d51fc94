//! Samples on their way to their homes. Each is charged here before it is given to the transport, until that lets go of it:
//! they take a part of what the staging buffer has, no more. What finds no room is not sent, and counted: the home is told
//! that it will not come, and who needs it reads the source. So a slow network costs reads, never memory, and nobody waits.

use std::sync::Arc;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::transport::Payload;

/// Of the staging buffer, samples on their way may take one part in so many.
const PART: u64 = 4;

/// What may be on its way at least: one message of the largest size, however small the staging buffer is.
const LEAST_BYTES: u64 = 1 << 20;

/// Samples on their way to their homes.
pub(super) struct Outbox {
    most_bytes: u64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl Outbox {
    /// For a job with so large a staging buffer.
    pub(super) fn new(staging_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            most_bytes: (staging_bytes / PART).max(LEAST_BYTES),
            bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// Room for so many bytes; none where too many are on their way, which is counted.
    pub(super) fn room(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let bytes = bytes as u64;
        let taken = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
                there
                    .checked_add(bytes)
                    .filter(|all| *all <= self.most_bytes)
            });
        if taken.is_err() {
            self.drop_one();
            return None;
        }
        Some(Room {
            outbox: Arc::clone(self),
            bytes,
        })
    }

    /// A sample was not sent.
    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// How many samples were not sent.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
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
        self.outbox.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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

    fn send(outbox: &Arc<Outbox>, bytes: usize) -> Option<Payload> {
        let room = outbox.room(bytes)?;
        Some(room.fill(Payload::new(vec![7; bytes])))
    }

    #[test]
    fn a_quarter_of_staging_is_on_its_way_at_most_and_the_rest_is_dropped_and_counted() {
        let outbox = Outbox::new(16 * MIB as u64);
        let sent: Vec<_> = (0..6).filter_map(|_| send(&outbox, MIB)).collect();
        assert_eq!(sent.len(), 4);
        assert_eq!(outbox.dropped(), 2);
        assert_eq!(sent[0].bytes(), vec![7; MIB]);
    }

    #[test]
    fn there_is_room_again_when_the_last_one_lets_go() {
        let outbox = Outbox::new(0);
        let sent = send(&outbox, MIB);
        let twice = sent.clone();
        drop(sent);
        assert!(send(&outbox, 1).is_none(), "it is sent a second time");
        drop(twice);
        assert!(send(&outbox, MIB).is_some());
    }
}
