//! What a tier has and what is promised of it: a few words in a file of the cache folder that all processes of the host map.
//! Room is reserved before a byte is written. A process that is killed leaves what it reserved; the count of reservations
//! under way shows that, and who starts next counts the copies anew ([`crate::folder`]).

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::path::Arg;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::shared::Shared;

/// The size of its file.
pub const LEDGER_BYTES: u64 = 4096;
const WORDS: usize = 8;
const USED: usize = 0;
const UNDER_WAY: usize = 1;
const PUBLISHED: usize = 2;
const PACE: usize = 3;
const LOOKED: usize = 4;
const BUSY: usize = 5;
const BOOT: usize = 6;
/// Two halves: how often it rang, and how many wait for it. One who was killed while it waited stays counted until the
/// folder is tidied, which costs those who ring a system call.
const BELL: usize = 7;

/// What a copy takes where none was made yet.
const FIRST_GUESS_NS: u64 = 5_000_000;
/// Of copies under way some may be of processes that were killed.
const SHARERS_MAX: u64 = 16;

/// The account of one tier.
#[derive(Debug)]
pub struct Ledger {
    shared: Shared,
}

impl Ledger {
    /// Maps the ledger at a path.
    pub fn open(path: impl Arg) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(CWD, path, flags, Mode::empty())?;
        let shared = Shared::map(&file, 0, WORDS)?;
        Ok(Self { shared })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.shared.words()[index]
    }

    /// Bytes of copies, and of those that are being made.
    pub fn used_bytes(&self) -> u64 {
        self.word(USED).load(Relaxed)
    }

    /// Whether a copy of that size would fit.
    pub fn has_room(&self, size_bytes: u64, quota_bytes: u64) -> bool {
        self.used_bytes().saturating_add(size_bytes) <= quota_bytes
    }

    /// Takes room for a copy, if there is as much. What is reserved is published or given back.
    pub fn reserve(&self, size_bytes: u64, quota_bytes: u64) -> bool {
        let fits = |used: u64| {
            used.checked_add(size_bytes)
                .filter(|used| *used <= quota_bytes)
        };
        let reserved = self.word(USED).fetch_update(AcqRel, Relaxed, fits).is_ok();
        if reserved {
            self.word(UNDER_WAY).fetch_add(1, AcqRel);
        }
        reserved
    }

    /// A reserved copy is there, after so long.
    pub fn publish(&self, took_ns: u64) {
        self.end_reservation();
        let word = self.word(PACE);
        let before_ns = word.load(Relaxed);
        // A mean over some eight copies follows a storage that slows down, and forgives one that was slow.
        let mean_ns = if before_ns == 0 {
            took_ns
        } else {
            before_ns - before_ns / 8 + took_ns / 8
        };
        word.store(mean_ns.max(1), Relaxed);
        self.word(PUBLISHED).fetch_add(1, Release);
        self.ring();
    }

    /// A reserved copy will not be there.
    pub fn give_back(&self, size_bytes: u64) {
        self.end_reservation();
        self.release(size_bytes);
    }

    /// A copy is gone.
    pub fn release(&self, size_bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(size_bytes));
        let _ = self.word(USED).fetch_update(AcqRel, Relaxed, less);
    }

    fn end_reservation(&self) {
        let less = |count: u64| Some(count.saturating_sub(1));
        let _ = self.word(UNDER_WAY).fetch_update(AcqRel, Relaxed, less);
    }

    /// Wakes all who wait for something here: a copy is there, or a claim is given up.
    pub fn ring(&self) {
        let [rung, waiting] = self.shared.halves(BELL);
        rung.fetch_add(1, SeqCst);
        if waiting.load(SeqCst) > 0 {
            let _ = futex::wake(rung, futex::Flags::empty(), i32::MAX.cast_unsigned());
        }
    }

    /// For who is about to wait: what happens from now on is not missed.
    pub fn listen(&self) -> Listening<'_> {
        let [rung, waiting] = self.shared.halves(BELL);
        waiting.fetch_add(1, SeqCst);
        Listening { rung, waiting }
    }

    /// How many copies were published: another number means that one that is awaited may be there.
    pub fn published(&self) -> u64 {
        self.word(PUBLISHED).load(Acquire)
    }

    /// Reservations under way, or of processes that were killed.
    pub fn under_way(&self) -> u64 {
        self.word(UNDER_WAY).load(Acquire)
    }

    /// What a copy that is under way now may take: as long as copies took of late, as many times as there are, since they may
    /// share a line that carries one after the other.
    pub fn copy_ns(&self) -> u64 {
        let mean_ns = match self.word(PACE).load(Relaxed) {
            0 => FIRST_GUESS_NS,
            mean_ns => mean_ns,
        };
        let sharers = self.under_way().clamp(1, SHARERS_MAX);
        mean_ns.saturating_mul(sharers)
    }

    /// What was found when the copies were counted, with nobody copying.
    pub fn count_anew(&self, used_bytes: u64) {
        self.word(USED).store(used_bytes, Release);
        self.word(UNDER_WAY).store(0, Release);
        let [_, waiting] = self.shared.halves(BELL);
        waiting.store(0, SeqCst);
    }

    /// The start of the machine that it was tidied on last.
    pub fn boot(&self) -> u64 {
        self.word(BOOT).load(Relaxed)
    }

    /// It is tidied, on this start of the machine.
    pub fn set_boot(&self, boot: u64) {
        self.word(BOOT).store(boot, Relaxed);
    }

    /// Whether the storage is too busy to be written to, by a look that all processes share for a while.
    pub fn is_busy(&self, now_ns: i64, for_ns: i64, look: impl FnOnce() -> bool) -> bool {
        let looked_ns = self.word(LOOKED).load(Relaxed).cast_signed();
        if (0..for_ns).contains(&now_ns.saturating_sub(looked_ns)) {
            return self.word(BUSY).load(Relaxed) != 0;
        }
        self.word(LOOKED).store(now_ns.cast_unsigned(), Relaxed);
        let busy = look();
        self.word(BUSY).store(u64::from(busy), Relaxed);
        busy
    }
}

/// Somebody who waits.
pub struct Listening<'a> {
    rung: &'a AtomicU32,
    waiting: &'a AtomicU32,
}

impl Listening<'_> {
    /// Waits until it has rung, for so long at most, unless `is_over` says that there is nothing to wait for. What it looks at
    /// may change at any time: it is looked at after the bell.
    pub fn wait_unless(&self, longest: Duration, is_over: impl FnOnce() -> bool) -> bool {
        let heard = self.rung.load(SeqCst);
        if is_over() {
            return true;
        }
        let longest = Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // A signal, or a bell that rang meanwhile: the caller looks again in any case.
        let _ = futex::wait(self.rung, futex::Flags::empty(), heard, Some(&longest));
        false
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        // Whoever tidies the folder sets it to zero.
        let less = |waiting: u32| waiting.checked_sub(1);
        let _ = self.waiting.fetch_update(SeqCst, SeqCst, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (tempfile::TempDir, Ledger) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        crate::shared::make(&path, b"", LEDGER_BYTES).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        (folder, ledger)
    }

    #[test]
    fn never_promises_more_than_the_quota_to_however_many() {
        let (folder, ledger) = made();
        let others: Vec<Ledger> = (0..4)
            .map(|_| Ledger::open(folder.path().join("ledger")).unwrap())
            .collect();
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter()
                .map(|other| scope.spawn(|| (0..1000).filter(|_| other.reserve(7, 7000)).count()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!((taken, ledger.used_bytes()), (1000, 7000));
        assert!(!ledger.has_room(1, 7000) && ledger.has_room(0, 7000));
    }

    #[test]
    fn what_is_reserved_is_published_or_given_back() {
        let (_folder, ledger) = made();
        assert!(ledger.reserve(10, 20) && ledger.reserve(10, 20) && !ledger.reserve(1, 20));
        ledger.publish(1_000);
        ledger.give_back(10);
        assert_eq!(
            (ledger.used_bytes(), ledger.under_way(), ledger.published()),
            (10, 0, 1)
        );
        ledger.release(99);
        assert_eq!(ledger.used_bytes(), 0);
        assert!(!ledger.reserve(u64::MAX, u64::MAX - 1) && ledger.reserve(u64::MAX, u64::MAX));
    }

    #[test]
    fn a_copy_takes_longer_among_others() {
        let (_folder, ledger) = made();
        assert_eq!(ledger.copy_ns(), FIRST_GUESS_NS);
        assert!(ledger.reserve(1, 100));
        ledger.publish(1_000);
        assert_eq!(ledger.copy_ns(), 1_000);
        for _ in 0..50 {
            assert!(ledger.reserve(1, 100));
        }
        assert_eq!(ledger.copy_ns(), 1_000 * SHARERS_MAX);
    }

    #[test]
    fn who_waits_is_woken_by_who_publishes_through_another_mapping() {
        let (folder, ledger) = made();
        let other = Ledger::open(folder.path().join("ledger")).unwrap();
        let longest = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let listening = ledger.listen();
                while !listening.wait_unless(longest, || ledger.published() > 0) {}
                ledger.published()
            });
            assert!(other.reserve(1, 1));
            other.publish(1);
            assert_eq!(waiter.join().unwrap(), 1);
        });
        // Nobody waits any more, and who has nothing to wait for does not begin.
        assert!(ledger.listen().wait_unless(longest, || true));
        let [_, waiting] = ledger.shared.halves(BELL);
        assert_eq!(waiting.load(SeqCst), 0);
    }

    #[test]
    fn one_look_serves_all_for_a_while() {
        let (folder, ledger) = made();
        let other = Ledger::open(folder.path().join("ledger")).unwrap();
        assert!(ledger.is_busy(1_000, 100, || true));
        assert!(other.is_busy(1_099, 100, || unreachable!()));
        assert!(!other.is_busy(1_100, 100, || false));
        // A clock that was set back does not make a look last.
        assert!(ledger.is_busy(5, 100, || true));
    }
}
