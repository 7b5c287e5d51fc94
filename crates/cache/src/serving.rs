//! What the processes beside programs have in common, the copying one and the guide: a run with its tiers, a queue that
//! threads take from, the end of a process that is waited for, and copies that are counted. Not for use inside of programs.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::copying::{self, Copied, Skip, Wanted};
use crate::counters::Stripe;
use crate::placing::Cache;
use crate::run::Run;

/// A run that was opened, with its tiers.
pub struct Served {
    /// The run.
    pub run: Run,
    /// Its tiers.
    pub cache: Cache,
}

impl Served {
    /// Opens the run of a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let run = Run::open(path)?;
        let cache = Cache::open(run.settings())?;
        Ok(Self { run, cache })
    }

    /// Where this process counts.
    pub fn stripe(&self) -> Stripe<'_> {
        self.run.stripe(std::process::id())
    }

    /// Copies a file, if it has no copy, and counts that.
    pub fn copy(&self, wanted: Wanted<'_>) -> Result<Copied, Skip> {
        let tiers = self.cache.tiers();
        if copying::find(tiers, wanted.key).is_some() {
            return Ok(Copied::Before);
        }
        let size_bytes = wanted.identity.size_bytes;
        let path = || copying::path_of(wanted.source);
        self.cache.makes_room(size_bytes, wanted.key, path);
        let copied = copying::copy(tiers, wanted);
        match copied {
            Ok(Copied::Here(tier)) => self.stripe().copied(tier, size_bytes),
            Ok(Copied::Before | Copied::Claimed) => {}
            Err(why) => self.stripe().skip(why),
        }
        copied
    }
}

/// The next of a queue that threads share; none when nothing more can come.
pub fn next<T>(queue: &Mutex<Receiver<T>>) -> Option<T> {
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.recv().ok()
}

/// Whether a process, by its descriptor, has ended.
pub fn is_over(process: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut watched, Some(&at_once)).is_ok_and(|ready| ready > 0)
}
