//! An emulated slow storage, shared by all processes of a user that name it.
//!
//! The storage is a pipe: reads pass through it one after another, in the order they begin, each at the throughput
//! t(gamma) for as many reads as are under way when it begins. A read's latency comes before its turn and overlaps with
//! other reads. Readers book their turn in a small file (see `ledger`) under a file lock and sleep until it has passed,
//! so nothing runs in the background and there is nothing to start or stop.
//!
//! Every booking opens and locks the file anew: locks belong to the opened file, so they exclude threads and processes
//! alike, and a forked child inherits none. Processes are told apart by number and start, as `/proc` shows them; those
//! in containers with process numbers of their own must not share a storage.

mod folder;
mod ledger;
mod pipe;
mod process;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foresee_config::{OneLine, shown};
use foresee_core::model::{Beyond, Curve};
use foresee_core::units::{Bytes, Seconds};
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};

use self::ledger::{Ledger, Seat};
use self::pipe::Booking;
use self::process::Process;
use super::Speed;

/// How often processes that have reads under way are checked to be alive: what a dead one booked is missed for no
/// longer, and looking costs some ten microseconds a process.
const CHECK_NS: u64 = 100_000_000;

/// How late the kernel may end a sleep to save power. Its own 50 us are half of a read of 100 KB at 1 GB/s.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

/// Longer names are none that people give.
const NAME_BYTES_MAX: usize = 64;

/// Why a storage cannot be emulated.
#[derive(Debug, thiserror::Error)]
pub enum ThrottleError {
    /// The name cannot be a file's.
    #[error("throttle `{}`: the name must be 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, not first a `.`",
            OneLine(.0))]
    Name(String),
    /// A latency that nothing has.
    #[error("throttle {name}: a latency of {latency_s} s is not possible; give 0 or more")]
    Latency {
        /// The storage's name.
        name: String,
        /// What was given.
        latency_s: f64,
    },
    /// The folder of emulated storages is not safe to use.
    #[error("throttle folder {}: {problem}; remove it, or set XDG_RUNTIME_DIR to a folder of your own", shown(.path))]
    Folder {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another process uses the name for another storage.
    #[error(
        "throttle {name}: in use as ({theirs}), asked for as ({ours}); use the same or another name"
    )]
    Differs {
        /// The storage's name.
        name: String,
        /// How those that use it see it.
        theirs: String,
        /// How it was asked for.
        ours: String,
    },
    /// The file that is shared.
    #[error("throttle file {}: {cause}; use another name, or remove it when no process uses it", shown(.path))]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
}

/// A shared, emulated storage.
#[derive(Debug)]
pub struct Throttle {
    path: PathBuf,
    curve: Curve,
    latency_ns: u64,
    /// This process' number (upper half) and seat. A forked child has another number, and takes a seat of its own.
    seat: AtomicU64,
}

impl Throttle {
    /// The storage of this name, with throughput `curve` by the number of reads under way, and `latency` before each
    /// read. All processes that use the name at the same time must agree on both.
    pub fn open(name: &str, curve: Curve, latency: Seconds) -> Result<Self, ThrottleError> {
        Self::open_in(&folder::own()?, name, curve, latency)
    }

    pub(super) fn open_in(
        folder: &Path,
        name: &str,
        curve: Curve,
        latency: Seconds,
    ) -> Result<Self, ThrottleError> {
        check_name(name)?;
        if !(latency.0.is_finite() && latency.0 >= 0.0) {
            return Err(ThrottleError::Latency {
                name: name.to_owned(),
                latency_s: latency.0,
            });
        }
        let ours = describe(&curve, latency);
        let throttle = Self {
            path: folder.join(format!("{name}.throttle")),
            curve,
            latency_ns: (latency.0 * 1e9).round() as u64,
            seat: AtomicU64::new(0),
        };
        match throttle
            .join(&ours)
            .map_err(|cause| throttle.failed(cause))?
        {
            Ok(()) => Ok(throttle),
            Err(theirs) => Err(ThrottleError::Differs {
                name: name.to_owned(),
                theirs,
                ours,
            }),
        }
    }

    /// Blocks for as long as a read of so many bytes takes.
    pub fn charge(&self, bytes: Bytes) -> Result<(), ThrottleError> {
        self.begin(bytes)?.wait();
        Ok(())
    }

    /// How fast the storage is.
    pub fn speed(&self) -> Speed {
        Speed {
            curve: self.curve.clone(),
            latency: Seconds(self.latency_ns as f64 / 1e9),
        }
    }

    /// Books a read: it is under way until what is returned is dropped.
    pub fn begin(&self, bytes: Bytes) -> Result<Turn<'_>, ThrottleError> {
        let booking = self.book(bytes).map_err(|cause| self.failed(cause))?;
        Ok(Turn {
            throttle: self,
            booking,
            pid: std::process::id(),
        })
    }

    fn book(&self, bytes: Bytes) -> io::Result<Booking> {
        let ledger = Ledger::open(&self.path)?;
        let (index, mut seat) = match self.own_seat(&ledger)? {
            Some(own) => own,
            None => self.sit(&ledger)?,
        };
        let mut pipe = ledger.pipe()?;
        let now_ns = now_ns();
        if pipe.under_way > seat.reads && now_ns.saturating_sub(pipe.checked_ns) > CHECK_NS {
            ledger.forget_the_dead(&mut pipe, now_ns)?;
        }
        let booking = pipe.book(now_ns, self.latency_ns, |gamma| {
            self.curve.at(gamma).pace() * bytes
        });
        seat.reads += 1;
        seat.booked_ns += booking.transfer_ns;
        ledger.set_seat(index, &seat)?;
        ledger.set_pipe(&pipe)?;
        Ok(booking)
    }

    /// Takes a read that is over out of the books.
    fn end(&self, booking: &Booking) -> io::Result<()> {
        let ledger = Ledger::open(&self.path)?;
        if let Some((index, mut seat)) = self.own_seat(&ledger)? {
            let mut pipe = ledger.pipe()?;
            pipe.end(now_ns());
            seat.reads = seat.reads.saturating_sub(1);
            seat.booked_ns = seat.booked_ns.saturating_sub(booking.transfer_ns);
            ledger.set_seat(index, &seat)?;
            ledger.set_pipe(&pipe)?;
        }
        Ok(())
    }

    /// Makes the file ready and takes a seat; says what the storage is if that is something else.
    fn join(&self, ours: &str) -> io::Result<Result<(), String>> {
        let ledger = Ledger::create(&self.path)?;
        if !ledger.is_in_use()? {
            ledger.reset(ours)?;
        }
        let theirs = ledger.config()?;
        if theirs != ours {
            return Ok(Err(theirs));
        }
        self.sit(&ledger)?;
        Ok(Ok(()))
    }

    /// This process' seat, if it has taken one.
    fn own_seat(&self, ledger: &Ledger) -> io::Result<Option<(usize, Seat)>> {
        let packed = self.seat.load(Ordering::Relaxed);
        let pid = (packed >> 32) as u32;
        let index = packed as u32 as usize;
        if pid != std::process::id() {
            return Ok(None);
        }
        let seat = ledger.seat(index)?;
        Ok((seat.process.pid == pid).then_some((index, seat)))
    }

    /// Takes a seat, or a share in the one that this process has.
    fn sit(&self, ledger: &Ledger) -> io::Result<(usize, Seat)> {
        let process = Process::current()?;
        let (index, mut seat) = ledger.find_seat(process)?;
        seat.handles += 1;
        ledger.set_seat(index, &seat)?;
        self.seat.store(
            (u64::from(process.pid) << 32) | index as u64,
            Ordering::Relaxed,
        );
        Ok((index, seat))
    }

    fn stand_up(&self) -> io::Result<()> {
        let ledger = Ledger::open(&self.path)?;
        if let Some((index, mut seat)) = self.own_seat(&ledger)? {
            seat.handles = seat.handles.saturating_sub(1);
            let left = if seat.handles == 0 {
                Seat::default()
            } else {
                seat
            };
            ledger.set_seat(index, &left)?;
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> ThrottleError {
        ThrottleError::Io {
            path: self.path.clone(),
            cause,
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A child that never used what it inherited has nothing to give back.
        if (self.seat.load(Ordering::Relaxed) >> 32) as u32 == std::process::id() {
            // A seat that stays taken is found to be dead later.
            let _ = self.stand_up();
        }
    }
}

/// A read under way; over when it is dropped.
pub struct Turn<'a> {
    throttle: &'a Throttle,
    booking: Booking,
    pid: u32,
}

impl Turn<'_> {
    /// Sleeps until the storage has served the read.
    pub(super) fn wait(self) {
        sleep_until(self.booking.ends_ns);
    }

    /// Sleeps as `wait` does, but no longer than `patience`; says whether the storage has served the read.
    pub fn wait_for(&self, patience: Duration) -> bool {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        sleep_until(
            self.booking
                .ends_ns
                .min(now_ns().saturating_add(patience_ns)),
        );
        now_ns() >= self.booking.ends_ns
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // The file is gone: the next booking says so.
            let _ = self.throttle.end(&self.booking);
        }
    }
}

fn check_name(name: &str) -> Result<(), ThrottleError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(allowed);
    if is_good {
        Ok(())
    } else {
        Err(ThrottleError::Name(name.to_owned()))
    }
}

/// Tells any two storages apart: numbers are written so that they read back the same.
fn describe(curve: &Curve, latency: Seconds) -> String {
    let points = curve
        .points()
        .iter()
        .map(|(readers, rate)| format!("{readers}: {rate}"))
        .collect::<Vec<_>>();
    let beyond = match curve.beyond() {
        Beyond::Clamp => "",
        Beyond::Regression => ", beyond by regression",
    };
    format!(
        "readers: MB/s {}{beyond}; latency {} s",
        points.join(", "),
        latency.0
    )
}

/// The clock that all processes share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn sleep_until(ends_ns: u64) {
    thread_local! {
        static IS_PRECISE: Cell<bool> = const { Cell::new(false) };
    }
    if now_ns() >= ends_ns {
        return;
    }
    if !IS_PRECISE.replace(true) {
        // Where it is refused, sleeps are late and what they miss is made up for.
        let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    }
    let until = Timespec {
        tv_sec: (ends_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ends_ns % 1_000_000_000).cast_signed(),
    };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
}
