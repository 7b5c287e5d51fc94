//! Memory that samples were received into, used again for the next ones.
//!
//! Fresh memory has no pages yet, and who copies into it pays for each as it is first touched: a sample by Open MPI, for
//! which the kernel copies straight into it, then takes four times as long. So what a sample was received into comes back here
//! when the last who has the sample lets go of it. What is kept is bounded; what was used last is used first, so that it is
//! still in the processor's caches, and what is not used for a while is given back to the system.

use std::sync::Arc;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::Payload;

/// Less is not worth keeping: the allocator has memory of that size at hand.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// How many are kept: each may be looked at when one is wanted.
const ROOMS_MAX: usize = 64;

/// Memory that nobody uses now.
pub(super) struct Rooms {
    free: Mutex<Free>,
    bytes_max: usize,
}

#[derive(Default)]
struct Free {
    /// In the order in which they came back.
    rooms: Vec<Vec<u8>>,
    bytes: usize,
    /// The fewest that there were since what is unused was last let go of.
    rooms_least: usize,
}

impl Free {
    fn take_out(&mut self, at: usize) -> Vec<u8> {
        let room = self.rooms.remove(at);
        self.bytes -= room.capacity();
        self.rooms_least = self.rooms_least.min(self.rooms.len());
        room
    }

    fn put_in(&mut self, room: Vec<u8>) {
        self.bytes += room.capacity();
        self.rooms.push(room);
    }
}

impl Rooms {
    /// Keeps no more than so many bytes.
    pub(super) fn up_to(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            bytes_max,
        })
    }

    /// Waits for nobody: in a forked child the lock may be held for ever.
    fn free(&self) -> Option<MutexGuard<'_, Free>> {
        self.free.try_lock().ok()
    }

    /// Empty, with room for so many bytes; none where there is no memory for it.
    pub(super) fn take(&self, len: usize) -> Option<Vec<u8>> {
        if let Some(found) = self.find(len) {
            return Some(found);
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(len).ok()?;
        Some(memory)
    }

    /// The last that came back of those that are neither too small nor much too large.
    fn find(&self, len: usize) -> Option<Vec<u8>> {
        if len < ROOM_BYTES_MIN {
            return None;
        }
        let mut free = self.free()?;
        let fits = |room: &Vec<u8>| (len..=len.saturating_mul(2)).contains(&room.capacity());
        let at = free.rooms.iter().rposition(fits)?;
        Some(free.take_out(at))
    }

    /// A sample that came, whose memory comes back when nobody has it any more.
    pub(super) fn payload(self: &Arc<Self>, bytes: Vec<u8>) -> Payload {
        Payload::new(Received {
            bytes,
            rooms: Arc::clone(self),
        })
    }

    fn give_back(&self, mut room: Vec<u8>) {
        room.clear();
        let is_worth_it = (ROOM_BYTES_MIN..=self.bytes_max).contains(&room.capacity());
        if !is_worth_it {
            return;
        }
        let mut old = Vec::new();
        if let Some(mut free) = self.free() {
            free.put_in(room);
            while free.bytes > self.bytes_max || free.rooms.len() > ROOMS_MAX {
                old.push(free.take_out(0));
            }
        }
        // Not under the lock: that is a call of the system.
        drop(old);
    }

    /// Lets go of what was not used since this was called last.
    pub(super) fn forget_unused(&self) {
        let Some(mut free) = self.free() else {
            return;
        };
        let unused = free.rooms_least;
        let old: Vec<Vec<u8>> = (0..unused).map(|_| free.take_out(0)).collect();
        free.rooms_least = free.rooms.len();
        drop(free);
        drop(old);
    }
}

struct Received {
    bytes: Vec<u8>,
    rooms: Arc<Rooms>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.rooms.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;

    /// Where the memory of a sample lay that nobody has any more.
    fn used(rooms: &Arc<Rooms>, len: usize) -> *const u8 {
        let mut room = rooms.take(len).unwrap();
        room.resize(len, 7);
        let place = room.as_ptr();
        drop(rooms.payload(room));
        place
    }

    fn kept(rooms: &Rooms) -> (usize, usize) {
        let free = rooms.free().unwrap();
        let bytes: usize = free.rooms.iter().map(Vec::capacity).sum();
        assert_eq!(free.bytes, bytes);
        (free.rooms.len(), bytes)
    }

    #[test]
    fn memory_is_used_again_once_nobody_has_the_sample() {
        let rooms = Rooms::up_to(1 << 20);
        let place = used(&rooms, LEN);
        let again = rooms.take(LEN - 1000).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert!(again.is_empty());
        let one = rooms.payload(again);
        let other = one.clone();
        drop(one);
        let meanwhile = rooms.take(LEN).unwrap();
        assert_ne!(meanwhile.as_ptr(), place);
        drop(other);
        let again = rooms.take(LEN).unwrap();
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn what_was_used_last_is_used_first() {
        let rooms = Rooms::up_to(1 << 20);
        let both = [(); 2].map(|()| rooms.payload(vec![7; LEN]));
        let [first, last] = both.each_ref().map(|one| one.bytes().as_ptr());
        drop(both);
        let room = rooms.take(LEN).unwrap();
        assert_eq!(room.as_ptr(), last);
        let room = rooms.take(LEN).unwrap();
        assert_eq!(room.as_ptr(), first);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_fits() {
        let rooms = Rooms::up_to(3 * LEN);
        used(&rooms, LEN);
        assert_eq!(rooms.find(LEN + 1), None);
        assert_eq!(rooms.find(LEN / 2 - 1), None);
        used(&rooms, ROOM_BYTES_MIN - 1);
        used(&rooms, 4 * LEN);
        assert_eq!(kept(&rooms), (1, LEN));
        drop([(); 5].map(|()| rooms.payload(vec![7; LEN])));
        assert_eq!(kept(&rooms), (3, 3 * LEN));
        let rooms = Rooms::up_to(1 << 30);
        drop([(); 100].map(|()| rooms.payload(vec![7; ROOM_BYTES_MIN])));
        assert_eq!(kept(&rooms).0, ROOMS_MAX);
        let none = Rooms::up_to(0);
        used(&none, LEN);
        assert_eq!(kept(&none), (0, 0));
    }

    #[test]
    fn what_is_not_used_for_a_while_is_let_go_of() {
        let rooms = Rooms::up_to(1 << 20);
        drop([(); 3].map(|()| rooms.payload(vec![7; LEN])));
        rooms.forget_unused();
        assert_eq!(kept(&rooms).0, 3);
        used(&rooms, LEN);
        rooms.forget_unused();
        assert_eq!(kept(&rooms).0, 1);
        rooms.forget_unused();
        assert_eq!(kept(&rooms).0, 0);
    }
}
