//! The book of what rank 0 offers to all others, by name, and of what this rank wants of it. No socket, and the clock is an
//! argument: who sends and waits is in `offers`.
//!
//! Rank 0 says that something is coming, then puts it here, or withdraws it; it waits for nobody. Who wants it asks, and is
//! told to wait, with a number that grows while rank 0 is at work: as long as it does, waiting makes sense. An offer that is
//! made anew is another edition, and parts of two editions are never mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foresee_core::ids::Rank;

use crate::sync::{Condvar, Mutex, MutexGuard, whole};
use crate::transport::Payload;

/// Bytes of an offer: seventeen million names of files.
pub(super) const OFFER_BYTES_MAX: usize = 1 << 30;

/// Names that are remembered: more than a program has datasets.
const NAMES_MAX: usize = 1024;

/// An offer is kept for so long after it was made or asked for last: ranks of a launch are minutes apart at most.
const KEPT: Duration = Duration::from_secs(600);

/// Who has answered once and is not heard for so long is gone, or has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long to wait for rank 0 to begin where it did not the last time: perhaps each rank has a dataset of its own.
const SECOND_PATIENCE: Duration = Duration::from_secs(3);

/// A question is repeated after so long without a part.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Names what rank 0 offers: the same on all ranks that mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferName(pub [u8; 16]);

/// What rank 0 has given.
#[derive(Debug, PartialEq, Eq)]
pub struct Offered {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Whether this process was given the same before: rank 0 has not made it anew since.
    pub is_again: bool,
}

/// Why an offer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// Rank 0 did not begin in time, or went on no more.
    #[error("rank 0 is not about to give one")]
    NotComing,
    /// Rank 0 is not heard any more.
    #[error("rank 0 is not heard any more")]
    Silent,
    /// Rank 0 has none, or one that is too long.
    #[error("rank 0 has none")]
    Withdrawn,
}

/// What became of an offer.
enum Stage {
    /// Somebody asked, rank 0 has not begun.
    Unknown,
    Coming,
    There(Payload),
    Withdrawn,
}

struct Offer {
    stage: Stage,
    edition: u32,
    /// Who is to get it as soon as it is there.
    askers: BTreeSet<Rank>,
    used: Instant,
}

/// What comes of what this rank wants.
#[derive(Default)]
struct Wanted {
    edition: u32,
    bytes: Vec<u8>,
    total: Option<usize>,
    is_withdrawn: bool,
    seen: Seen,
}

impl Wanted {
    fn is_whole(&self) -> bool {
        self.total == Some(self.bytes.len())
    }
}

/// What has been heard of rank 0, in numbers that change with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Anything at all.
    heard: u64,
    /// Parts.
    parts: u64,
    /// Rank 0's own work.
    activity: u64,
}

/// What an asker is told.
pub(super) enum Reply {
    /// The bytes from `at` on.
    Part {
        edition: u32,
        at: usize,
        bytes: Payload,
    },
    Wait {
        activity: u64,
    },
    None,
}

#[derive(Default)]
struct Book {
    offers: BTreeMap<OfferName, Offer>,
    editions: u32,
    wanted: BTreeMap<OfferName, Wanted>,
    /// The editions that came last, by name.
    had: BTreeMap<OfferName, u32>,
    /// Whether what was wanted last did not come.
    in_vain: bool,
}

/// The book, and who waits for it to change.
#[derive(Default)]
pub(super) struct Shelf {
    book: Mutex<Book>,
    changed: Condvar,
    /// Grows while this rank is at work; beside the lock, since many threads count each name that they find.
    activity: AtomicU64,
}

impl Shelf {
    fn book(&self) -> MutexGuard<'_, Book> {
        whole(self.book.lock())
    }

    /// This rank goes on with what it is to offer.
    pub(super) fn stir(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    /// Something is coming. What was offered by this name before is void.
    pub(super) fn announce(&self, name: OfferName, now: Instant) {
        self.stir();
        let mut book = self.book();
        let before = book.set(name, Stage::Coming, now);
        drop(book);
        drop(before);
    }

    /// It is there, for those who are returned, or will not come.
    pub(super) fn settle(
        &self,
        name: OfferName,
        bytes: Option<Payload>,
        now: Instant,
    ) -> (u32, BTreeSet<Rank>) {
        let bytes = bytes.filter(|bytes| bytes.bytes().len() <= OFFER_BYTES_MAX);
        self.stir();
        let mut book = self.book();
        book.editions += 1;
        let edition = book.editions;
        let before = book.set(name, bytes.map_or(Stage::Withdrawn, Stage::There), now);
        let askers = book.offers.get_mut(&name).map(|offer| {
            offer.edition = edition;
            std::mem::take(&mut offer.askers)
        });
        drop(book);
        drop(before);
        (edition, askers.unwrap_or_default())
    }

    /// What to tell a rank that has so much of an edition.
    pub(super) fn asked(
        &self,
        from: Rank,
        name: OfferName,
        (edition, has): (u32, usize),
        now: Instant,
    ) -> Reply {
        let activity = self.activity.load(Ordering::Relaxed);
        let mut book = self.book();
        if !book.offers.contains_key(&name) {
            if book.offers.len() >= NAMES_MAX {
                return Reply::None;
            }
            book.set(name, Stage::Unknown, now);
        }
        let Some(offer) = book.offers.get_mut(&name) else {
            return Reply::None;
        };
        offer.used = now;
        match &offer.stage {
            Stage::Unknown | Stage::Coming => {
                offer.askers.insert(from);
                Reply::Wait { activity }
            }
            Stage::There(bytes) => Reply::Part {
                edition: offer.edition,
                at: if edition == offer.edition { has } else { 0 },
                bytes: bytes.clone(),
            },
            Stage::Withdrawn => Reply::None,
        }
    }

    /// Lets go of what nobody has asked for in a long time.
    pub(super) fn forget_old(&self, now: Instant) {
        let mut book = self.book();
        let is_old = |offer: &Offer| {
            let rests = !matches!(offer.stage, Stage::Coming);
            rests && now.saturating_duration_since(offer.used) > KEPT
        };
        let names = book.offers.iter().filter(|(_, offer)| is_old(offer));
        let names: Vec<OfferName> = names.map(|(name, _)| *name).collect();
        let old = names.iter().filter_map(|name| book.offers.remove(name));
        let old: Vec<Offer> = old.collect();
        drop(book);
        drop(old);
    }

    /// Rank 0 has it not yet.
    pub(super) fn told_to_wait(&self, name: OfferName, activity: u64) {
        self.hear(name, |wanted| wanted.seen.activity = activity);
    }

    /// Rank 0 will not have it.
    pub(super) fn told_none(&self, name: OfferName) {
        self.hear(name, |wanted| wanted.is_withdrawn = true);
    }

    /// A part came: of `total` bytes of an edition, those from `at` on. One that does not follow what is there is dropped,
    /// and asked for again.
    pub(super) fn part(
        &self,
        name: OfferName,
        (edition, total): (u32, usize),
        at: usize,
        bytes: &[u8],
    ) {
        self.hear(name, |wanted| {
            if total > OFFER_BYTES_MAX {
                wanted.is_withdrawn = true;
                return;
            }
            if (wanted.edition, wanted.total) != (edition, Some(total)) {
                wanted.bytes = Vec::new();
                wanted.edition = edition;
                wanted.total = Some(total);
            }
            let follows = at == wanted.bytes.len() && at + bytes.len() <= total;
            if follows {
                wanted.bytes.extend_from_slice(bytes);
                wanted.seen.parts += 1;
            }
        });
    }

    fn hear(&self, name: OfferName, note: impl FnOnce(&mut Wanted)) {
        let mut book = self.book();
        if let Some(wanted) = book.wanted.get_mut(&name) {
            wanted.seen.heard += 1;
            note(wanted);
        }
        drop(book);
        self.changed.notify_all();
    }

    /// Waits for something of rank 0's: `ask` is called to ask for it, with the edition and how much of it there is.
    pub(super) fn want(
        &self,
        name: OfferName,
        patience: Duration,
        ask: impl Fn(u32, usize),
    ) -> Result<Offered, Missed> {
        let mut book = self.book();
        // Another thread may want the same; it is done within its bound.
        while book.wanted.contains_key(&name) {
            book = whole(self.changed.wait(book));
        }
        book.wanted.insert(name, Wanted::default());
        let patience = if book.in_vain {
            patience.min(SECOND_PATIENCE)
        } else {
            patience
        };
        let mut watch = Watch::new(patience, Instant::now());
        let end = loop {
            let now = Instant::now();
            let Some(wanted) = book.wanted.get(&name) else {
                break Err(Missed::NotComing);
            };
            if wanted.is_whole() {
                break Ok(());
            }
            if wanted.is_withdrawn {
                break Err(Missed::Withdrawn);
            }
            if let Some(missed) = watch.look(wanted.seen, now) {
                break Err(missed);
            }
            let there = (wanted.edition, wanted.bytes.len());
            if watch.asks(now) {
                drop(book);
                ask(there.0, there.1);
                book = self.book();
                continue;
            }
            book = whole(self.changed.wait_timeout(book, watch.rest(now))).0;
        };
        book.in_vain = end.is_err();
        let wanted = book.wanted.remove(&name).unwrap_or_default();
        let is_again = end.is_ok() && book.has_had(name, wanted.edition);
        drop(book);
        self.changed.notify_all();
        let bytes = wanted.bytes;
        end.map(|()| Offered { bytes, is_again })
    }
}

impl Book {
    /// Whether this edition came before; it has come now.
    fn has_had(&mut self, name: OfferName, edition: u32) -> bool {
        if self.had.len() >= NAMES_MAX {
            self.had.clear();
        }
        self.had.insert(name, edition) == Some(edition)
    }

    /// Enters a stage; what was there before is handed out, to be dropped without the lock.
    fn set(&mut self, name: OfferName, stage: Stage, now: Instant) -> Option<Stage> {
        if let Some(offer) = self.offers.get_mut(&name) {
            offer.used = now;
            return Some(std::mem::replace(&mut offer.stage, stage));
        }
        let offer = Offer {
            stage,
            edition: 0,
            askers: BTreeSet::new(),
            used: now,
        };
        self.offers.insert(name, offer);
        None
    }
}

/// When to ask, and when to give up.
struct Watch {
    patience: Duration,
    seen: Seen,
    heard_at: Option<Instant>,
    ask_at: Instant,
    give_up_at: Instant,
}

impl Watch {
    fn new(patience: Duration, now: Instant) -> Self {
        Self {
            patience,
            seen: Seen::default(),
            heard_at: None,
            ask_at: now,
            give_up_at: now + patience,
        }
    }

    /// Takes note of what has been heard; why there is nothing to wait for any more.
    fn look(&mut self, seen: Seen, now: Instant) -> Option<Missed> {
        let before = std::mem::replace(&mut self.seen, seen);
        if seen.heard != before.heard {
            self.heard_at = Some(now);
        }
        if seen.parts != before.parts {
            self.ask_at = now + ASK_AGAIN;
        }
        let is_at_work = seen.activity != before.activity && before.heard > 0;
        if is_at_work || seen.parts != before.parts {
            self.give_up_at = now + self.patience;
        }
        let silent = |at: Instant| now.saturating_duration_since(at) > SILENCE_MAX;
        if self.heard_at.is_some_and(silent) {
            Some(Missed::Silent)
        } else {
            (now >= self.give_up_at).then_some(Missed::NotComing)
        }
    }

    /// Whether it is time to ask.
    fn asks(&mut self, now: Instant) -> bool {
        let is_time = now >= self.ask_at;
        if is_time {
            self.ask_at = now + ASK_AGAIN;
        }
        is_time
    }

    /// How long nothing needs to be done.
    fn rest(&self, now: Instant) -> Duration {
        let next = self.ask_at.min(self.give_up_at);
        // A little later, so that it is over then.
        next.saturating_duration_since(now) + Duration::from_millis(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: OfferName = OfferName([3; 16]);
    const PATIENCE: Duration = Duration::from_secs(30);

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn reply(shelf: &Shelf, now: Instant) -> Reply {
        shelf.asked(Rank(2), NAME, (0, 0), now)
    }

    #[test]
    fn who_asks_early_is_told_to_wait_and_gets_it_when_it_is_there() {
        let shelf = Shelf::default();
        let now = Instant::now();
        assert!(matches!(reply(&shelf, now), Reply::Wait { activity: 0 }));
        shelf.announce(NAME, now);
        shelf.stir();
        assert!(matches!(reply(&shelf, now), Reply::Wait { activity: 2 }));
        let (edition, askers) = shelf.settle(NAME, Some(Payload::new(vec![7, 8])), now);
        assert_eq!(askers, BTreeSet::from([Rank(2)]));
        let Reply::Part { at: 0, bytes, .. } = reply(&shelf, now) else {
            panic!("it is there");
        };
        assert_eq!(bytes.bytes(), [7, 8]);
        let resumed = shelf.asked(Rank(2), NAME, (edition, 1), now);
        assert!(matches!(resumed, Reply::Part { at: 1, .. }));
        let other = shelf.asked(Rank(2), NAME, (edition + 1, 1), now);
        assert!(matches!(other, Reply::Part { at: 0, .. }));
    }

    #[test]
    fn what_is_withdrawn_or_too_long_is_refused_and_what_is_old_is_forgotten() {
        let shelf = Shelf::default();
        let now = Instant::now();
        shelf.announce(NAME, now);
        shelf.settle(NAME, None, now);
        assert!(matches!(reply(&shelf, now), Reply::None));
        let long = Payload::new(vec![0; OFFER_BYTES_MAX + 1]);
        shelf.settle(NAME, Some(long), now);
        assert!(matches!(reply(&shelf, now), Reply::None));
        shelf.forget_old(now + KEPT + after(1));
        assert!(matches!(reply(&shelf, now), Reply::Wait { .. }));
        shelf.announce(NAME, now);
        shelf.forget_old(now + KEPT + after(1));
        assert_eq!(
            shelf.book().offers.len(),
            1,
            "what is coming is not forgotten"
        );
    }

    #[test]
    fn names_that_nobody_knows_are_bounded() {
        let shelf = Shelf::default();
        let now = Instant::now();
        for number in 0..2 * NAMES_MAX as u128 {
            shelf.asked(Rank(1), OfferName(number.to_le_bytes()), (0, 0), now);
        }
        assert_eq!(shelf.book().offers.len(), NAMES_MAX);
    }

    #[test]
    fn parts_are_put_together_and_those_of_another_edition_begin_anew() {
        let shelf = Shelf::default();
        shelf.part(NAME, (1, 4), 0, &[1, 2]);
        shelf.book().wanted.insert(NAME, Wanted::default());
        let bytes = || shelf.book().wanted[&NAME].bytes.clone();
        shelf.part(NAME, (1, 4), 2, &[9, 9]);
        assert!(bytes().is_empty(), "nothing came before it");
        shelf.part(NAME, (1, 4), 0, &[1, 2]);
        shelf.part(NAME, (1, 4), 2, &[3, 4, 5]);
        assert_eq!(bytes(), [1, 2], "more than there is");
        shelf.part(NAME, (2, 3), 0, &[6, 7]);
        shelf.part(NAME, (2, 3), 2, &[8]);
        assert_eq!(bytes(), [6, 7, 8]);
        assert!(shelf.book().wanted[&NAME].is_whole());
        shelf.part(NAME, (3, OFFER_BYTES_MAX + 1), 0, &[1]);
        assert!(shelf.book().wanted[&NAME].is_withdrawn);
    }

    #[test]
    fn waiting_ends_unless_rank_0_is_at_work() {
        let start = Instant::now();
        let mut watch = Watch::new(PATIENCE, start);
        let mut seen = Seen::default();
        assert_eq!(watch.look(seen, start + after(29)), None);
        assert_eq!(
            watch.look(seen, start + after(30)),
            Some(Missed::NotComing),
            "it was never heard"
        );
        let mut watch = Watch::new(PATIENCE, start);
        for second in 1..1000 {
            seen.heard += 1;
            seen.activity += second % 2;
            assert_eq!(watch.look(seen, start + after(second)), None);
        }
        for second in 1000..1029 {
            seen.heard += 1;
            assert_eq!(watch.look(seen, start + after(second)), None);
        }
        seen.heard += 1;
        let end = watch.look(seen, start + after(1029));
        assert_eq!(end, Some(Missed::NotComing), "it has stopped working");
    }

    #[test]
    fn who_was_heard_and_is_silent_is_not_waited_for() {
        let start = Instant::now();
        let mut watch = Watch::new(PATIENCE, start);
        let seen = Seen {
            heard: 1,
            ..Seen::default()
        };
        assert_eq!(watch.look(seen, start), None);
        assert_eq!(watch.look(seen, start + after(10)), None);
        assert_eq!(watch.look(seen, start + after(11)), Some(Missed::Silent));
    }

    #[test]
    fn who_is_given_the_same_edition_again_is_told_so() {
        let shelf = Shelf::default();
        let given = |edition: u32| {
            let give = |_, _| shelf.part(NAME, (edition, 1), 0, &[7]);
            let offered = shelf.want(NAME, PATIENCE, give).unwrap();
            assert_eq!(offered.bytes, [7]);
            offered.is_again
        };
        assert_eq!([1, 1, 2, 2].map(given), [false, true, false, true]);
    }

    #[test]
    fn a_second_wait_in_vain_is_short() {
        let shelf = Shelf::default();
        let short = Duration::from_millis(20);
        assert_eq!(shelf.want(NAME, short, |_, _| ()), Err(Missed::NotComing));
        let began = Instant::now();
        assert_eq!(
            shelf.want(NAME, after(60), |_, _| ()),
            Err(Missed::NotComing)
        );
        assert!(began.elapsed() < after(20), "{:?}", began.elapsed());
    }
}
