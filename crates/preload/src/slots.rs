//! What is known of each descriptor of the program that was opened in a source: a table by number, in memory of the library, all
//! of it atomic words. Nothing here takes a lock or asks for memory, so it is as safe in a signal handler or after a fork as
//! the calls that it stands behind.
//!
//! The table is a memory, not the truth: descriptors are closed in ways that nobody sees. So whoever relies on a slot
//! compares it with what the kernel says of the descriptor ([`Slot::shows`], `moving`).
//!
//! A descriptor at the source may move to a copy only while nobody else is using its place in the file. Reads that move that
//! place are counted in the slot; who wants to move the descriptor needs the count to be zero and keeps others out for the
//! few microseconds that it takes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use foresee_cache::key::{Identity, Key};
use foresee_cache::look::{LOOK_WORDS, Look};

use crate::coverage::Relation;

/// Descriptors beyond it are left at the source. 4 MB of addresses, of which only what is used becomes memory.
pub(crate) const SLOTS: usize = 1 << 14;

const KIND: u64 = 0xf;
const EMPTY: u64 = 0;
const COPY: u64 = 1;
const SOURCE: u64 = 2;
const LARGE: u64 = 3;
const FOLDER: u64 = 4;
const TIER_SHIFT: u32 = 4;
const TIER: u64 = 0xf << TIER_SHIFT;
/// Never to be moved: somebody else has the same open file, or counts on which one it is.
const FIXED: u64 = 1 << 8;
/// The copying process was asked.
const ASKED: u64 = 1 << 9;
/// Being moved.
const MOVING: u64 = 1 << 10;
/// Closed when another program is started, which cannot share its place then.
const PRIVATE: u64 = 1 << 11;
/// Reads under way that move the place in the file.
const READER: u64 = 1 << 32;

/// One descriptor.
pub(crate) struct Slot {
    state: AtomicU64,
    process: AtomicU32,
    /// How many forks there were when it was opened.
    forks: AtomicU32,
    /// How many copies had been published when its own was looked for last.
    published: AtomicU64,
    relation: AtomicU32,
    key: [AtomicU64; 2],
    look: [AtomicU64; LOOK_WORDS],
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            process: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            published: AtomicU64::new(0),
            relation: AtomicU32::new(0),
            key: [const { AtomicU64::new(0) }; 2],
            look: [const { AtomicU64::new(0) }; LOOK_WORDS],
        }
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// One more than the highest number that was ever used.
static END: AtomicU32 = AtomicU32::new(0);

/// What a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A copy in a tier.
    Copy(usize),
    /// A file at the source that stays there.
    Source,
    /// A file at the source that may be copied in the background, and the descriptor moved.
    Large {
        /// Whether programs that are started do not get it.
        private: bool,
    },
}

/// What is written down of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
    pub(crate) look: Look,
    pub(crate) process: u32,
    pub(crate) forks: u32,
}

/// The slot of a descriptor that is known; none for all others.
#[inline]
pub(crate) fn known(descriptor: i32) -> Option<&'static Slot> {
    let slot = TABLE.get(usize::try_from(descriptor).ok()?)?;
    (slot.state.load(Relaxed) != EMPTY).then_some(slot)
}

/// Whether descriptors of this number have a slot.
pub(crate) fn has_slot(descriptor: i32) -> bool {
    usize::try_from(descriptor).is_ok_and(|number| number < SLOTS)
}

fn slot(descriptor: i32) -> Option<&'static Slot> {
    let number = usize::try_from(descriptor).ok()?;
    let slot = TABLE.get(number)?;
    END.fetch_max(number as u32 + 1, Relaxed);
    Some(slot)
}

/// Writes down a descriptor that was just opened: nobody else uses it yet.
pub(crate) fn enter(descriptor: i32, entry: &Entry) {
    let Some(slot) = slot(descriptor) else { return };
    slot.state.store(EMPTY, Relaxed);
    slot.process.store(entry.process, Relaxed);
    slot.forks.store(entry.forks, Relaxed);
    slot.published.store(u64::MAX, Relaxed);
    for (word, value) in slot.key.iter().zip(entry.key.to_words()) {
        word.store(value, Relaxed);
    }
    for (word, value) in slot.look.iter().zip(entry.look.to_words()) {
        word.store(value, Relaxed);
    }
    let state = match entry.kind {
        Kind::Copy(tier) => COPY | (tier as u64) << TIER_SHIFT,
        Kind::Source => SOURCE,
        Kind::Large { private } => LARGE | if private { PRIVATE } else { 0 },
    };
    slot.state.store(state, Release);
}

/// Writes down an open folder.
pub(crate) fn enter_folder(descriptor: i32, relation: Relation, identity: Identity, process: u32) {
    let Some(slot) = slot(descriptor) else { return };
    slot.state.store(EMPTY, Relaxed);
    slot.process.store(process, Relaxed);
    slot.relation.store(relation.to_word(), Relaxed);
    slot.look[0].store(identity.device, Relaxed);
    slot.look[1].store(identity.inode, Relaxed);
    slot.state.store(FOLDER, Release);
}

/// What is left of a slot when its descriptor is closed, or becomes another one: nothing. A process that was started by
/// `vfork` has its parent's memory and closes its own descriptors: it must leave slots alone.
pub(crate) fn forget(descriptor: i32, process: impl FnOnce() -> u32) {
    if let Some(slot) = known(descriptor)
        && slot.process.load(Relaxed) == process()
    {
        slot.wait_until_moved();
        slot.state.store(EMPTY, Release);
    }
}

/// The same for all from one number to another.
pub(crate) fn forget_range(first: u32, last: u32, process: impl Fn() -> u32) {
    let end = END.load(Relaxed).min(SLOTS as u32);
    let last = last.saturating_add(1).min(end);
    for number in first..last {
        forget(number.cast_signed(), &process);
    }
}

/// A descriptor gets a second number: neither may move any more.
pub(crate) fn duplicate(old: i32, new: i32, process: u32) {
    let (Some(from), Some(to)) = (known(old), slot(new)) else {
        return;
    };
    if old == new {
        return;
    }
    to.state.store(EMPTY, Relaxed);
    to.process.store(process, Relaxed);
    to.relation.store(from.relation.load(Relaxed), Relaxed);
    for (to, from) in to
        .key
        .iter()
        .zip(&from.key)
        .chain(to.look.iter().zip(&from.look))
    {
        to.store(from.load(Relaxed), Relaxed);
    }
    let state = from.state.load(Acquire) & (KIND | TIER);
    let kind = if state & KIND == LARGE { SOURCE } else { state };
    to.state.store(kind, Release);
}

/// Says that a descriptor must stay what it is. A move that is under way is over when this returns, unless it is another
/// process's: a child that was forked off during a move would wait for ever.
pub(crate) fn fix(descriptor: i32, process: impl FnOnce() -> u32) {
    let Some(slot) = known(descriptor) else {
        return;
    };
    if slot.state.load(Relaxed) & KIND == LARGE {
        slot.state.fetch_or(FIXED, AcqRel);
        if slot.process.load(Relaxed) == process() {
            slot.wait_until_moved();
        }
    }
}

/// How a read is to be counted, and whether it could be a copy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// From a copy in a tier.
    Copy(usize),
    /// From the source, for good.
    Source,
    /// From the source, perhaps not for long.
    Large,
}

impl Slot {
    pub(crate) fn reading(&self) -> Option<Reading> {
        let state = self.state.load(Acquire);
        match state & KIND {
            COPY => Some(Reading::Copy(((state & TIER) >> TIER_SHIFT) as usize)),
            LARGE if state & FIXED == 0 => Some(Reading::Large),
            SOURCE | LARGE => Some(Reading::Source),
            _ => None,
        }
    }

    /// Whether it is of a large file at the source, whether it may move or not: later opens get the copy.
    pub(crate) fn is_large(&self) -> bool {
        self.state.load(Acquire) & KIND == LARGE
    }

    /// Whether the copying process was not asked yet; from now on it was.
    pub(crate) fn should_ask(&self) -> bool {
        self.state.load(Relaxed) & ASKED == 0 && self.state.fetch_or(ASKED, AcqRel) & ASKED == 0
    }

    /// It could not be asked: the next read may try again.
    pub(crate) fn ask_again(&self) {
        self.state.fetch_and(!ASKED, AcqRel);
    }

    /// Whether copies were published since the last look for this one's.
    pub(crate) fn should_look(&self, published: u64) -> bool {
        self.published.load(Relaxed) != published
            && self.published.swap(published, Relaxed) != published
    }

    pub(crate) fn key(&self) -> Key {
        Key::from_words([self.key[0].load(Relaxed), self.key[1].load(Relaxed)])
    }

    pub(crate) fn look(&self) -> Look {
        Look::from_words(std::array::from_fn(|index| self.look[index].load(Relaxed)))
    }

    /// Whether it may be moved by a read that moves the place in the file, or by one that does not.
    pub(crate) fn may_move(&self, process: u32, forks: u32, moves_place: bool) -> bool {
        let state = self.state.load(Acquire);
        let is_alone = self.is_alone(process, forks);
        let is_shared = moves_place && state & PRIVATE == 0;
        state & (KIND | FIXED) == LARGE && is_alone && !is_shared
    }

    /// Whether no other process has it.
    pub(crate) fn is_alone(&self, process: u32, forks: u32) -> bool {
        self.process.load(Relaxed) == process && self.forks.load(Relaxed) == forks
    }

    /// Keeps all others out, if nobody is in.
    pub(crate) fn begin_move(&self) -> bool {
        let state = self.state.load(Acquire);
        let is_free = state & (MOVING | FIXED) == 0 && state < READER && state & KIND == LARGE;
        is_free
            && self
                .state
                .compare_exchange(state, state | MOVING, AcqRel, Relaxed)
                .is_ok()
    }

    /// Lets others in: it is a copy's now, or what it was, for good.
    pub(crate) fn end_move(&self, tier: Option<usize>) {
        let state = tier.map_or(SOURCE, |tier| COPY | (tier as u64) << TIER_SHIFT);
        self.state.store(state, Release);
    }

    /// Counts a read that moves the place in the file, until it is over. Descriptors that were inherited never move.
    pub(crate) fn begin_read(&self, process: u32) -> Option<UnderWay<'_>> {
        if self.process.load(Relaxed) != process {
            return None;
        }
        loop {
            let state = self.state.load(Acquire);
            if state & KIND != LARGE {
                return None;
            }
            if state & MOVING != 0 {
                rustix::thread::sched_yield();
                continue;
            }
            let counted = self
                .state
                .compare_exchange_weak(state, state + READER, AcqRel, Relaxed);
            if counted.is_ok() {
                return Some(UnderWay(self));
            }
        }
    }

    fn wait_until_moved(&self) {
        while self.state.load(Acquire) & MOVING != 0 {
            rustix::thread::sched_yield();
        }
    }

    /// The folder that this is, unless the descriptor has become another since.
    pub(crate) fn folder(&self, identity: impl FnOnce() -> Option<Identity>) -> Option<Relation> {
        if self.state.load(Acquire) & KIND != FOLDER {
            return None;
        }
        let relation = Relation::from_word(self.relation.load(Relaxed))?;
        let now = identity()?;
        let is_same =
            now.device == self.look[0].load(Relaxed) && now.inode == self.look[1].load(Relaxed);
        is_same.then_some(relation)
    }

    /// What the program shall see of a copy, if the descriptor is still of it: copies have their files' sizes and times
    /// of modification, and may only be read by their owner.
    pub(crate) fn shows(&self, now: &Look) -> Option<Look> {
        if self.state.load(Acquire) & KIND != COPY {
            return None;
        }
        let look = self.look();
        let is_copy = now.size_bytes == look.size_bytes
            && now.mtime_ns == look.mtime_ns
            && now.mode & 0o7777 == 0o400;
        is_copy.then_some(look)
    }
}

/// A read that moves the place in the file.
pub(crate) struct UnderWay<'a>(&'a Slot);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // In a child that was forked off meanwhile the slot may be another's by now.
        let less = |state: u64| state.checked_sub(READER);
        let _ = self.0.state.fetch_update(AcqRel, Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_cache::key::path_key;

    const PROCESS: u32 = 7;

    fn entry(kind: Kind) -> Entry {
        Entry {
            kind,
            key: path_key(b"x"),
            look: Look {
                device: 1,
                inode: 2,
                size_bytes: 3,
                mtime_ns: 4,
                mode: 0o100_644,
                ..Look::default()
            },
            process: PROCESS,
            forks: 0,
        }
    }

    const LARGE_PRIVATE: Kind = Kind::Large { private: true };

    /// Each test has numbers of its own: the table is the process's.
    fn entered(descriptor: i32, kind: Kind) -> &'static Slot {
        enter(descriptor, &entry(kind));
        known(descriptor).unwrap()
    }

    #[test]
    fn a_copy_shows_its_file_as_long_as_the_descriptor_is_of_it() {
        let slot = entered(1000, Kind::Copy(2));
        let copy = Look {
            size_bytes: 3,
            mtime_ns: 4,
            mode: 0o100_400,
            inode: 99,
            ..Look::default()
        };
        assert_eq!(slot.shows(&copy).map(|look| look.inode), Some(2));
        assert_eq!(slot.reading(), Some(Reading::Copy(2)));
        let others = [
            Look {
                size_bytes: 5,
                ..copy
            },
            Look {
                mtime_ns: 5,
                ..copy
            },
            Look {
                mode: 0o100_644,
                ..copy
            },
        ];
        assert!(others.iter().all(|other| slot.shows(other).is_none()));
        assert!(entered(1001, Kind::Source).shows(&copy).is_none());
    }

    #[test]
    fn only_its_own_process_forgets_a_descriptor() {
        entered(1010, Kind::Source);
        forget(1010, || PROCESS + 1);
        assert!(known(1010).is_some());
        forget(1010, || PROCESS);
        assert!(known(1010).is_none());
        entered(1011, Kind::Source);
        forget_range(1005, u32::MAX, || PROCESS);
        assert!(known(1011).is_none());
        assert!(known(-1).is_none() && known(i32::MAX).is_none());
    }

    #[test]
    fn what_is_shared_never_moves() {
        let slot = entered(1020, LARGE_PRIVATE);
        assert!(slot.may_move(PROCESS, 0, true));
        assert!(!slot.may_move(PROCESS + 1, 0, true) && !slot.may_move(PROCESS, 1, true));
        let shared = entered(1021, Kind::Large { private: false });
        assert!(!shared.may_move(PROCESS, 0, true) && shared.may_move(PROCESS, 0, false));
        fix(1020, || PROCESS);
        duplicate(1020, 1022, PROCESS);
        assert!(!slot.may_move(PROCESS, 0, true) && !slot.begin_move());
        assert_eq!(known(1022).unwrap().reading(), Some(Reading::Source));
        assert_eq!(slot.reading(), Some(Reading::Source));
    }

    #[test]
    fn nobody_moves_what_is_being_read_in_order() {
        let slot = entered(1030, LARGE_PRIVATE);
        let first = slot.begin_read(PROCESS).unwrap();
        let second = slot.begin_read(PROCESS).unwrap();
        assert!(!slot.begin_move());
        drop(first);
        assert!(!slot.begin_move());
        drop(second);
        assert!(slot.begin_move() && !slot.begin_move());
        slot.end_move(Some(1));
        assert_eq!(slot.reading(), Some(Reading::Copy(1)));
        assert!(slot.begin_read(PROCESS).is_none());
    }

    #[test]
    fn reads_wait_for_a_move_and_children_do_not() {
        let slot = entered(1040, LARGE_PRIVATE);
        assert!(slot.begin_move());
        assert!(slot.begin_read(PROCESS + 1).is_none());
        fix(1040, || PROCESS + 1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| slot.begin_read(PROCESS).is_none());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished());
            slot.end_move(Some(0));
            assert!(reader.join().unwrap());
        });
    }

    #[test]
    fn readers_and_movers_keep_out_of_each_others_way() {
        let moves = std::sync::atomic::AtomicU32::new(0);
        let inside = AtomicU32::new(0);
        for _ in 0..200 {
            let slot = entered(1050, LARGE_PRIVATE);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let Some(_under_way) = slot.begin_read(PROCESS) else {
                                break;
                            };
                            inside.fetch_add(1, Relaxed);
                            inside.fetch_sub(1, Relaxed);
                        }
                    });
                }
                scope.spawn(|| {
                    while !slot.begin_move() {
                        std::hint::spin_loop();
                    }
                    assert_eq!(inside.load(Relaxed), 0);
                    moves.fetch_add(1, Relaxed);
                    slot.end_move(Some(0));
                });
            });
        }
        assert_eq!(moves.load(Relaxed), 200);
    }

    #[test]
    fn the_copying_process_is_asked_once_and_copies_are_looked_for_when_some_were_published() {
        let slot = entered(1060, LARGE_PRIVATE);
        assert!(slot.should_ask() && !slot.should_ask());
        slot.ask_again();
        assert!(slot.should_ask());
        assert!(slot.should_look(3) && !slot.should_look(3) && slot.should_look(4));
    }

    #[test]
    fn a_folder_is_known_until_its_number_is_anothers() {
        let identity = entry(Kind::Source).look.identity();
        let inside = Relation::Inside { prefix: 1 };
        enter_folder(1070, inside, identity, PROCESS);
        let slot = known(1070).unwrap();
        assert_eq!(slot.folder(|| Some(identity)), Some(inside));
        assert_eq!(
            slot.folder(|| Some(Identity {
                inode: 9,
                ..identity
            })),
            None
        );
        assert_eq!(slot.reading(), None);
        duplicate(1070, 1071, PROCESS);
        assert_eq!(known(1071).unwrap().folder(|| Some(identity)), Some(inside));
    }
}
