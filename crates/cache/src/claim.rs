//! One process copies a file, and others can tell. A claim is a file in the first tier beside the place of the copy, made if it was
//! not there, and locked for as long as its process lives: a claim that nobody has locked for a second is of a process that
//! was killed, and is removed by who finds it.
//!
//! Where the copy goes to the first tier, the claim is the file that it is written to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::Errno;

use crate::key::{Identity, Key, now_ns};
use crate::ours::Ours;
use crate::run::monotonic_ns;
use crate::tier::{Kind, Tier};

/// Between making and locking a claim its process may be kept waiting by others.
const UNLOCKED_NS_MAX: i64 = 1_000_000_000;
const LOCK_TRIES: usize = 100;
/// Who publishes or gives up rings the ledger's bell; one that was killed does not.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The right to copy a file.
pub struct Claim<'a> {
    tier: &'a Tier,
    key: Key,
    file: Ours,
    /// Whether the claim has become the copy, so that there is nothing to remove.
    became_copy: bool,
}

/// Who has the claim.
pub enum Claimed<'a> {
    /// We.
    Ours(Claim<'a>),
    /// Another process, or another thread.
    Others,
}

impl<'a> Claim<'a> {
    /// Takes the claim for a key, if nobody has it.
    pub fn take(tier: &'a Tier, key: Key) -> io::Result<Claimed<'a>> {
        let path = tier.path(Kind::Claim, key);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match Ours::open(|| openat(CWD, path.as_c_str(), flags, Mode::RUSR)) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(Claimed::Others),
            Err(cause) => return Err(cause.into()),
        };
        // Before it is locked: if that fails, it is removed.
        let claim = Self {
            tier,
            key,
            file,
            became_copy: false,
        };
        lock(&claim.file)?;
        Ok(Claimed::Ours(claim))
    }

    /// The claim's own file has been renamed to the copy.
    pub fn became_copy(&mut self) {
        self.became_copy = true;
    }
}

/// Locks a claim that was just made. Who looks whether its process lives has it locked for some microseconds.
fn lock(file: &Ours) -> io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => rustix::thread::sched_yield(),
            other => return Ok(other?),
        }
    }
    Err(Errno::WOULDBLOCK.into())
}

impl AsFd for Claim<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.became_copy {
            let path = self.tier.path(Kind::Claim, self.key);
            let _ = unlinkat(CWD, path.as_c_str(), rustix::fs::AtFlags::empty());
            self.tier.ledger().ring();
        }
        // A child that is being forked off has the file, too, and would keep the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether somebody copies the file of a key. A claim whose process was killed is removed.
pub fn is_claimed(tier: &Tier, key: Key) -> bool {
    let path = tier.path(Kind::Claim, key);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = Ours::open(|| openat(CWD, path.as_c_str(), flags, Mode::empty())) else {
        return false;
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return true;
    }
    // Without a name it was removed by another who had it locked, and the name is somebody else's now.
    let is_dead = fstat(&file).is_ok_and(|found| {
        let age_ns = now_ns() - Identity::of(&found).ctime_ns;
        found.st_nlink > 0 && age_ns > UNLOCKED_NS_MAX
    });
    if is_dead {
        let _ = unlinkat(CWD, path.as_c_str(), rustix::fs::AtFlags::empty());
    }
    let _ = flock(&file, FlockOperation::Unlock);
    !is_dead
}

/// Waits until nobody copies the file of a key any more, but no longer than twice what a copy may take. Says whether it was
/// worth it.
pub fn wait(tier: &Tier, key: Key, is_there: impl Fn() -> bool) -> bool {
    let longest_ns = tier.ledger().copy_ns().saturating_mul(2);
    let began_ns = monotonic_ns();
    let listening = tier.ledger().listen();
    loop {
        let waited_ns = monotonic_ns().saturating_sub(began_ns);
        let left = Duration::from_nanos(longest_ns.saturating_sub(waited_ns));
        if left.is_zero() {
            return is_there();
        }
        // A copy that is published has no claim any more: it is looked for last.
        let is_over = || is_there() || !is_claimed(tier, key);
        if listening.wait_unless(left.min(LOOK_EVERY), is_over) {
            return is_there();
        }
    }
}
