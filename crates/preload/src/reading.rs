//! What happens when the program reads a descriptor: it is counted, and one of a large file at the source moves to the copy once
//! there is one.
//!
//! A move is made by the program's own thread, inside its own call, and only if nobody else can notice: the descriptor
//! was opened by this process, which was not forked since, it was not duplicated, passed on, locked or made a stream,
//! and no other read is under way that moves its place in the file. The file must still be what was opened.

use foresee_cache::asking;
use foresee_cache::copying::{self, Skip};
use foresee_cache::counters::{By, Count, Origin};
use foresee_cache::key::Key;
use foresee_cache::look::Look;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, SeekFrom, fstat, seek};

use crate::session::{self, Session};
use crate::slots::{Reading, Slot, UnderWay};

/// A read, as far as moving is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Of the place that the descriptor is at, which it moves.
    InOrder,
    /// Of a place that is named.
    Placed,
}

/// A read that is about to be made.
pub(crate) struct Prepared<'a> {
    origin: Origin,
    /// Kept until the read is over.
    _under_way: Option<UnderWay<'a>>,
}

/// What takes care of the program's own numbers and signals.
pub(crate) struct Hands<'a> {
    /// Makes the descriptor that of a copy, at once, with what the program set of it. Says whether that was done.
    pub(crate) replace: &'a dyn Fn(OwnedFd) -> bool,
    /// Does something while no signal comes: a handler that reads the same descriptor would wait for ever.
    pub(crate) undisturbed: &'a dyn Fn(&mut dyn FnMut()),
}

/// Called before a read; the descriptor may be another file's afterwards.
pub(crate) fn before<'a>(
    session: &Session,
    slot: &'a Slot,
    descriptor: BorrowedFd<'_>,
    sort: Sort,
    hands: &Hands<'_>,
) -> Option<Prepared<'a>> {
    ask_if_large(session, slot, descriptor);
    let mut reading = slot.reading()?;
    if reading == Reading::Large && slot.should_look(session.cache.published()) {
        try_move(session, slot, descriptor, sort, hands);
        reading = slot.reading()?;
    }
    let origin = match reading {
        Reading::Copy(tier) => Origin::Tier(tier),
        Reading::Source | Reading::Large => Origin::Source,
    };
    let is_counted = reading == Reading::Large && sort == Sort::InOrder;
    let under_way = if is_counted {
        slot.begin_read(session::process())
    } else {
        None
    };
    Some(Prepared {
        origin,
        _under_way: under_way,
    })
}

/// Called after it, with what it gave.
pub(crate) fn after(session: &Session, prepared: &Prepared<'_>, got: isize) {
    let stripe = session.stripe();
    stripe.add(By::Reads, prepared.origin, 1);
    stripe.add(
        By::Bytes,
        prepared.origin,
        got.max(0).cast_unsigned() as u64,
    );
    session.run.note_read();
}

/// A file is mapped: counted, and a large one is asked for. What is mapped stays where it is.
pub(crate) fn mapped(session: &Session, slot: &Slot, descriptor: BorrowedFd<'_>, len: usize) {
    ask_if_large(session, slot, descriptor);
    let Some(reading) = slot.reading() else {
        return;
    };
    let origin = match reading {
        Reading::Copy(tier) => Origin::Tier(tier),
        Reading::Source | Reading::Large => Origin::Source,
    };
    let stripe = session.stripe();
    stripe.add(By::Maps, origin, 1);
    stripe.add(By::MappedBytes, origin, len as u64);
    session.run.note_read();
}

/// Asks the copying process for a copy of a large file, once a descriptor; also where that itself will never move.
pub(crate) fn ask_if_large(session: &Session, slot: &Slot, descriptor: BorrowedFd<'_>) {
    if !slot.is_large() || !slot.should_ask() {
        return;
    }
    if !ask_for(session, slot.look().size_bytes, slot.key(), descriptor) {
        slot.ask_again();
    }
}

/// Asks for a copy; false if that might work later: the copying process has too much to do, or is not there.
pub(crate) fn ask_for(
    session: &Session,
    size_bytes: u64,
    key: Key,
    descriptor: BorrowedFd<'_>,
) -> bool {
    let stripe = session.stripe();
    let path = || copying::path_of(descriptor);
    if !session.cache.makes_room(size_bytes, key, path) {
        stripe.skip(Skip::Quota);
        return true;
    }
    let Some(first) = session.run.settings().tiers.first() else {
        return true;
    };
    let asked = asking::ask(&first.path, &session.run_name, key, descriptor).is_ok();
    if asked {
        stripe.count(Count::Asked);
    }
    asked
}

fn try_move(
    session: &Session,
    slot: &Slot,
    descriptor: BorrowedFd<'_>,
    sort: Sort,
    hands: &Hands<'_>,
) {
    let moves_place = sort == Sort::InOrder;
    if !slot.may_move(session::process(), session::forks(), moves_place) {
        return;
    }
    let Some((copy, tier)) = session.cache.open_copy(slot.key(), OFlags::CLOEXEC) else {
        return;
    };
    let mut copy = Some(copy);
    (hands.undisturbed)(&mut || {
        if !slot.begin_move() {
            return;
        }
        let _no_fork = session::no_fork();
        let is_moved = slot.is_alone(session::process(), session::forks())
            && is_still(slot, descriptor)
            && copy.take().is_some_and(|copy| {
                is_at_same_place(descriptor, copy.as_fd()) && (hands.replace)(copy)
            });
        slot.end_move(is_moved.then_some(tier));
        if is_moved {
            session.stripe().count(Count::Moved);
        }
    });
}

/// Whether the descriptor is of the file that was opened, and that was not written to since.
fn is_still(slot: &Slot, descriptor: BorrowedFd<'_>) -> bool {
    let now = fstat(descriptor).map(|found| Look::of(&found).identity());
    now.is_ok_and(|now| now == slot.look().identity())
}

/// Puts the copy at the place in the file that the program's descriptor is at.
fn is_at_same_place(descriptor: BorrowedFd<'_>, copy: BorrowedFd<'_>) -> bool {
    debug_assert_ne!(descriptor.as_raw_fd(), copy.as_raw_fd());
    let Ok(place) = seek(descriptor, SeekFrom::Current(0)) else {
        return false;
    };
    seek(copy, SeekFrom::Start(place)).is_ok()
}
