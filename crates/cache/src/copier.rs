//! The copying process: one on a host for each first cache folder. Programs hand it descriptors of large files, and it copies
//! them, each in a thread of a small pool. Not for use inside of programs.
//!
//! It lives as long as a run does that named it, which it knows by descriptors of processes, and ends at most two seconds
//! later: what it was copying then is dropped. Who starts a run and who ends the process have the folder's gate, a lock, so
//! that no run is told to a process that is about to end ([`enlist`]).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock, fstat};

use crate::asking::{self, Asked, RUN_NAME_BYTES_MAX};
use crate::copying::{Skip, Wanted, Witness};
use crate::folder;
use crate::key::{self, Identity, Key};
use crate::serving::{Served, is_over, next};

/// Files that wait, each with an open descriptor.
const QUEUE: usize = 512;
/// How often it looks whether to end, where nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a read of the source may keep it from ending.
const END_S_MAX: Duration = Duration::from_secs(1);

/// Tells the copying process of a folder about a run, by the name of its file and its process. Where there is none, the folder
/// is tidied, since nobody uses it, and a new process is to be started by the caller while it has the gate.
pub fn enlist(
    path: &Path,
    run: &[u8],
    process: BorrowedFd<'_>,
    start: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> io::Result<()> {
    let gate = gate(path)?;
    flock(&gate, FlockOperation::LockExclusive)?;
    let folder = path.as_os_str().as_bytes();
    let done = asking::tell_user(folder, run, process).or_else(|_| {
        let _ = fs::remove_file(path.join("copier"));
        folder::tidy_unused(path)?;
        remove_runs(path, run);
        let socket = asking::listen(folder)?;
        asking::tell_user(folder, run, process)?;
        start(socket)
    });
    // A process that was started has the gate open, too, for a moment.
    let _ = flock(&gate, FlockOperation::Unlock);
    done
}

fn gate(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join("gate"))
}

/// Removes the files of runs that are over: nobody was there to do it.
fn remove_runs(path: &Path, but: &[u8]) {
    let entries = fs::read_dir(path.join("runs")).into_iter().flatten();
    for entry in entries.flatten() {
        if entry.file_name().as_bytes() != but {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// One file to copy.
struct Order {
    run: Arc<Open>,
    key: Key,
    source: OwnedFd,
}

/// A run that was opened.
struct Open {
    served: Served,
    /// Says to others that its folders are used.
    _users: Vec<File>,
}

impl Open {
    fn new(path: &Path) -> io::Result<Self> {
        let served = Served::open(path)?;
        let mut users = Vec::new();
        for tier in &served.run.settings().tiers {
            users.push(folder::use_tier(Path::new(OsStr::from_bytes(&tier.path)))?);
        }
        Ok(Self {
            served,
            _users: users,
        })
    }
}

/// A run that lives.
struct User {
    name: Vec<u8>,
    process: OwnedFd,
}

/// Serves until no run is left.
pub fn serve(path: &Path, socket: OwnedFd, threads: usize) -> io::Result<()> {
    let (orders, queue) = sync_channel(QUEUE);
    let pool = Pool::start(threads, queue);
    let mut copier = Copier {
        path: path.to_owned(),
        socket,
        users: Vec::new(),
        runs: HashMap::new(),
        orders: Some(orders),
    };
    let served = copier.serve();
    copier.orders = None;
    pool.end();
    served
}

struct Copier {
    path: PathBuf,
    socket: OwnedFd,
    users: Vec<User>,
    runs: HashMap<Vec<u8>, Arc<Open>>,
    orders: Option<SyncSender<Order>>,
}

impl Copier {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.hear()?;
            self.dismiss();
            if self.users.is_empty() && self.may_end()? {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Waits until something is asked or a run is over.
    fn wait(&self) -> io::Result<()> {
        let mut watched = vec![PollFd::new(&self.socket, PollFlags::IN)];
        let processes = self
            .users
            .iter()
            .map(|user| PollFd::new(&user.process, PollFlags::IN));
        watched.extend(processes);
        let longest = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY.subsec_nanos().into(),
        };
        match poll(&mut watched, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        // As many as may wait in the socket, so that runs that are over are seen, too.
        for _ in 0..QUEUE {
            match asking::hear(&self.socket)? {
                Some(Asked::User { run, process }) => {
                    // Before it asks for anything: its folders are used from now on.
                    let _ = self.run(&run);
                    self.users.push(User { name: run, process });
                }
                Some(Asked::Copy { run, key, source }) => self.order(&run, key, source),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// What does not fit the queue is dropped: the program asks again when it opens the file again.
    fn order(&mut self, name: &[u8], key: Key, source: OwnedFd) {
        if let Some(run) = self.run(name)
            && let Some(orders) = &self.orders
        {
            let _ = orders.try_send(Order { run, key, source });
        }
    }

    fn run(&mut self, name: &[u8]) -> Option<Arc<Open>> {
        if let Some(run) = self.runs.get(name) {
            return Some(Arc::clone(run));
        }
        let is_name = name.len() <= RUN_NAME_BYTES_MAX && !name.contains(&b'/');
        let path = self.run_path(name);
        let opened = is_name.then(|| Open::new(&path).ok()).flatten()?;
        let opened = Arc::new(opened);
        self.runs.insert(name.to_vec(), Arc::clone(&opened));
        Some(opened)
    }

    fn run_path(&self, name: &[u8]) -> PathBuf {
        self.path.join("runs").join(OsStr::from_bytes(name))
    }

    /// Forgets runs that are over, with their files.
    fn dismiss(&mut self) {
        let (over, alive) = std::mem::take(&mut self.users)
            .into_iter()
            .partition::<Vec<_>, _>(|user| is_over(user.process.as_fd()));
        self.users = alive;
        for user in over {
            self.runs.remove(&user.name);
            let _ = fs::remove_file(self.run_path(&user.name));
        }
    }

    /// Whether no run came meanwhile; then nobody can find the process any more.
    fn may_end(&mut self) -> io::Result<bool> {
        // The folder may be gone, and the gate with it.
        let Ok(gate) = gate(&self.path) else {
            return Ok(true);
        };
        if flock(&gate, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        self.hear()?;
        if !self.users.is_empty() {
            return Ok(false);
        }
        let _ = fs::remove_file(self.path.join("copier"));
        Ok(true)
    }
}

/// The threads that copy.
struct Pool {
    stop: Arc<AtomicBool>,
    working: Arc<AtomicUsize>,
}

impl Pool {
    fn start(threads: usize, queue: Receiver<Order>) -> Self {
        let queue = Arc::new(Mutex::new(queue));
        let stop = Arc::new(AtomicBool::new(false));
        let working = Arc::new(AtomicUsize::new(0));
        for _ in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            let stop = Arc::clone(&stop);
            let working = Arc::clone(&working);
            working.fetch_add(1, Ordering::AcqRel);
            thread::spawn(move || {
                while let Some(order) = next(&queue) {
                    if !stop.load(Ordering::Acquire) {
                        carry_out(&order, &stop);
                    }
                }
                working.fetch_sub(1, Ordering::AcqRel);
            });
        }
        Self { stop, working }
    }

    /// Stops copies between two pieces. A thread that a source keeps waiting is left behind: the process is about to end.
    fn end(&self) {
        self.stop.store(true, Ordering::Release);
        let began = Instant::now();
        while self.working.load(Ordering::Acquire) > 0 && began.elapsed() < END_S_MAX {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn carry_out(order: &Order, stop: &AtomicBool) {
    let served = &order.run.served;
    let Ok(found) = fstat(&order.source) else {
        return;
    };
    let identity = Identity::of(&found);
    // The file is what the program opened only if it is still named so.
    let roots = &served.run.settings().roots;
    let is_meant = roots
        .iter()
        .any(|root| identity.key(key::seed_of(&root.real)) == order.key);
    if !is_meant {
        served.stripe().skip(Skip::Changed);
        return;
    }
    let _ = served.copy(Wanted {
        source: order.source.as_fd(),
        identity,
        key: order.key,
        witness: Witness::Storage,
        stop,
    });
}
