//! The file that the processes of an emulated storage share: the pipe, a seat for each process, and what the storage is.
//!
//! Whoever has the file open as a [`Ledger`] holds its lock. Numbers are in little endian at fixed places: 64 bytes of
//! magic and pipe, then the seats, then the text of the storage behind its length.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;

use super::pipe::Pipe;
use super::process::Process;

/// More than there are loader processes on any host; the file has 32 bytes for each.
const SEATS: usize = 1024;

const MAGIC: &[u8; 8] = b"foreseeT";
const PIPE_BYTES: usize = 64;
const SEAT_BYTES: usize = 32;
const CONFIG_AT: u64 = (PIPE_BYTES + SEATS * SEAT_BYTES) as u64;
/// Room for a curve of thousands of points; a longer length is not ours.
const CONFIG_BYTES_MAX: usize = 1 << 16;

/// What a process has booked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) process: Process,
    /// Throttles of this name in the process.
    pub(super) handles: u32,
    /// Reads under way.
    pub(super) reads: u32,
    /// Time of the pipe that these reads take.
    pub(super) booked_ns: u64,
}

impl Seat {
    fn is_free(&self) -> bool {
        self.process.pid == 0
    }

    fn encode(&self) -> [u8; SEAT_BYTES] {
        let mut bytes = [0; SEAT_BYTES];
        bytes[..4].copy_from_slice(&self.process.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.handles.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.reads.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.process.started.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.booked_ns.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; SEAT_BYTES]) -> Self {
        Self {
            process: Process {
                pid: u32_at(bytes, 0),
                started: u64_at(bytes, 16),
            },
            handles: u32_at(bytes, 4),
            reads: u32_at(bytes, 8),
            booked_ns: u64_at(bytes, 24),
        }
    }
}

/// The shared file, locked.
pub(super) struct Ledger {
    file: File,
}

impl Ledger {
    /// Opens and locks a file that is there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, false)
    }

    /// Opens and locks a file, which is empty if it was not there.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::open_with(path, true)
    }

    fn open_with(path: &Path, create: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(create)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(path)?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Self { file })
    }

    /// Begins anew, with all seats free.
    pub(super) fn reset(&self, config: &str) -> io::Result<()> {
        if config.len() > CONFIG_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the curve has too many points",
            ));
        }
        self.file.set_len(0)?;
        self.file.set_len(CONFIG_AT)?;
        self.file
            .write_all_at(&(config.len() as u64).to_le_bytes(), CONFIG_AT)?;
        self.file.write_all_at(config.as_bytes(), CONFIG_AT + 8)?;
        self.set_pipe(&Pipe::default())
    }

    /// What the storage is.
    pub(super) fn config(&self) -> io::Result<String> {
        let mut length = [0; 8];
        self.file.read_exact_at(&mut length, CONFIG_AT)?;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > CONFIG_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut config = vec![0; length];
        self.file.read_exact_at(&mut config, CONFIG_AT + 8)?;
        String::from_utf8(config).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn pipe(&self) -> io::Result<Pipe> {
        let mut bytes = [0; PIPE_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        if bytes[..8] != *MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Pipe {
            under_way: u32_at(&bytes, 8),
            free_ns: u64_at(&bytes, 16),
            woken_ns: u64_at(&bytes, 24),
            checked_ns: u64_at(&bytes, 32),
        })
    }

    pub(super) fn set_pipe(&self, pipe: &Pipe) -> io::Result<()> {
        let mut bytes = [0; PIPE_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&pipe.under_way.to_le_bytes());
        bytes[16..24].copy_from_slice(&pipe.free_ns.to_le_bytes());
        bytes[24..32].copy_from_slice(&pipe.woken_ns.to_le_bytes());
        bytes[32..40].copy_from_slice(&pipe.checked_ns.to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }

    pub(super) fn seat(&self, index: usize) -> io::Result<Seat> {
        let mut bytes = [0; SEAT_BYTES];
        self.file.read_exact_at(&mut bytes, seat_at(index))?;
        Ok(Seat::decode(&bytes))
    }

    pub(super) fn set_seat(&self, index: usize, seat: &Seat) -> io::Result<()> {
        self.file.write_all_at(&seat.encode(), seat_at(index))
    }

    fn seats(&self) -> io::Result<Vec<Seat>> {
        let mut bytes = vec![0; SEATS * SEAT_BYTES];
        self.file.read_exact_at(&mut bytes, seat_at(0))?;
        let (seats, _) = bytes.as_chunks::<SEAT_BYTES>();
        Ok(seats.iter().map(Seat::decode).collect())
    }

    /// The seat of `process`, or one that it can have: a free one, or a dead process'.
    pub(super) fn find_seat(&self, process: Process) -> io::Result<(usize, Seat)> {
        let seats = self.seats()?;
        if let Some(index) = seats.iter().position(|seat| seat.process == process) {
            return Ok((index, seats[index]));
        }
        let is_idle = |seat: &Seat| seat.is_free() || (seat.reads == 0 && !seat.process.is_alive());
        let fresh = Seat {
            process,
            ..Seat::default()
        };
        let index = seats.iter().position(is_idle);
        let full = || io::Error::other(format!("more than {SEATS} processes share it"));
        Ok((index.ok_or_else(full)?, fresh))
    }

    /// Whether a process that is alive has a seat. A file that is not ours is not in use.
    pub(super) fn is_in_use(&self) -> io::Result<bool> {
        match self.pipe() {
            Err(error)
                if [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData]
                    .contains(&error.kind()) =>
            {
                return Ok(false);
            }
            pipe => pipe?,
        };
        match self.seats() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            seats => Ok(seats?
                .iter()
                .any(|seat| !seat.is_free() && seat.process.is_alive())),
        }
    }

    /// Frees the seats of dead processes, and takes their reads out of the pipe.
    pub(super) fn forget_the_dead(&self, pipe: &mut Pipe, now_ns: u64) -> io::Result<()> {
        let mut under_way = 0;
        let mut lost_ns = 0;
        for (index, seat) in self
            .seats()?
            .iter()
            .enumerate()
            .filter(|(_, seat)| seat.reads > 0)
        {
            if seat.process.is_alive() {
                under_way += seat.reads;
            } else {
                lost_ns += seat.booked_ns;
                self.set_seat(index, &Seat::default())?;
            }
        }
        pipe.forget(under_way, lost_ns);
        pipe.checked_ns = now_ns;
        Ok(())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Closing is not enough: a child forked meanwhile has the file open too, and would keep the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn seat_at(index: usize) -> u64 {
    (PIPE_BYTES + index * SEAT_BYTES) as u64
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
