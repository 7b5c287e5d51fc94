//! Drives the engine on real time: polls it for what to bring, has threads copy files, hears what the program opens, and removes
//! what only passed through the window.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use foresee_cache::copying::{self, Copied, Skip, Wanted, Witness};
use foresee_cache::counters::Count;
use foresee_cache::key::Identity;
use foresee_cache::serving::{Served, is_over, next};
use foresee_core::engine::{Awaited, Consumed, Engine, Lane, Next, Outlook, Read};
use foresee_core::ids::{Epoch, SampleId, TierId};
use foresee_core::model::{Model, Origin, SourceLoad};
use foresee_core::units::Pace;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::follow::{Following, Open};
use super::order::{Course, File};
use super::tell;

/// How long it rests where there is nothing to do: opens are heard of by looking.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What is known outside of the engine: nothing, but what has arrived.
struct Sight<'a> {
    model: &'a Model,
    arrived: Vec<bool>,
}

impl Outlook for Sight<'_> {
    fn source(&mut self, _: Epoch) -> Pace {
        self.model.source(SourceLoad { readers: 1, own: 1 })
    }

    fn elsewhere(&mut self, _: SampleId) -> Option<Origin> {
        None
    }

    fn is_at(&mut self, sample: SampleId, _: TierId) -> bool {
        self.arrived[sample.index()]
    }

    fn is_last_copy(&mut self, _: SampleId) -> bool {
        true
    }
}

/// A copy that was tried.
struct Done {
    read: Read,
    is_there: bool,
}

struct Driver<'a> {
    files: &'a [File],
    engine: Engine,
    stream: foresee_core::stream::Stream,
    sight: Sight<'a>,
    following: Following,
    awaited: Vec<Awaited>,
    served: &'a Served,
    by_inode: HashMap<u64, SampleId>,
    /// What the engine keeps, or is about to.
    kept: Vec<bool>,
    /// What the program opened before it was brought, and opens no more soon: threads look at it.
    late: &'a [AtomicBool],
    heard: u64,
    under_way: usize,
    is_done: bool,
    /// A read that found no thread.
    waiting: Option<Read>,
}

pub(super) fn drive(course: Course, served: &Served, process: BorrowedFd<'_>, threads: usize) {
    let Course {
        files,
        engine,
        stream,
        model,
    } = course;
    let stop = AtomicBool::new(false);
    let late: Vec<AtomicBool> = files.iter().map(|_| AtomicBool::new(false)).collect();
    let (orders, queue) = sync_channel(threads);
    let (results, done) = channel();
    let queue = Mutex::new(queue);
    let by_inode = files
        .iter()
        .enumerate()
        .map(|(index, file)| (file.identity.inode, SampleId(index as u32)));
    let mut driver = Driver {
        files: &files,
        engine,
        stream,
        sight: Sight {
            model: &model,
            arrived: vec![false; files.len()],
        },
        following: Following::default(),
        awaited: Vec::new(),
        served,
        by_inode: by_inode.collect(),
        kept: vec![false; files.len()],
        late: &late,
        heard: 0,
        under_way: 0,
        is_done: false,
        waiting: None,
    };
    driver.remove_evicted();
    thread::scope(|scope| {
        for _ in 0..threads {
            let results = results.clone();
            let queue = &queue;
            let files = &files;
            let late = &late;
            let stop = &stop;
            scope.spawn(move || {
                while let Some(read) = next(queue) {
                    let index = read_index(&read);
                    // Who only passes through is of no use any more.
                    let is_late = read.keep.is_none() && late[index].load(Acquire);
                    let is_there = !is_late && bring(&files[index], served, stop);
                    let _ = results.send(Done { read, is_there });
                }
            });
        }
        driver.drive(&orders, &done, process);
        stop.store(true, Release);
        // Threads end when nothing more can be ordered.
        drop(orders);
    });
}

fn read_index(read: &Read) -> usize {
    read.sample.index()
}

impl Driver<'_> {
    fn drive(&mut self, orders: &SyncSender<Read>, done: &Receiver<Done>, process: BorrowedFd<'_>) {
        loop {
            while let Ok(done) = done.try_recv() {
                self.complete(&done);
            }
            self.look_ahead();
            self.hear();
            if self.following.is_lost() {
                tell(
                    "the program opens files in another order; they are cached as they are opened",
                );
                return;
            }
            self.pass();
            self.ask(orders);
            if self.is_done && self.under_way == 0 && self.following.is_empty() {
                return;
            }
            if is_over(process) {
                return;
            }
            if let Ok(done) = done.recv_timeout(LOOK_EVERY) {
                self.complete(&done);
            }
        }
    }

    /// Asks the engine for as much as threads can take.
    fn ask(&mut self, orders: &SyncSender<Read>) {
        self.resume(orders);
        while self.waiting.is_none() && !self.is_done {
            match self.engine.poll(Lane::Staging, &mut self.sight) {
                Next::Read(read) => {
                    if self.following.poll() {
                        self.begin_opened(read);
                    } else {
                        self.begin(read, orders);
                    }
                }
                Next::Await(awaited) => {
                    self.following.poll();
                    self.awaited.push(awaited);
                }
                Next::Full => break,
                Next::Done => self.is_done = true,
            }
            self.remove_evicted();
        }
        if let Some(read) = self.waiting.take() {
            self.send(read, orders);
        }
    }

    fn resume(&mut self, orders: &SyncSender<Read>) {
        let mut still = Vec::new();
        for awaited in std::mem::take(&mut self.awaited) {
            match self.engine.resume(&awaited, &mut self.sight) {
                Some(read) => self.begin(read, orders),
                None => still.push(awaited),
            }
        }
        self.awaited = still;
        self.remove_evicted();
    }

    /// The stream's accesses are the engine's, and are known before that is asked for them.
    fn look_ahead(&mut self) {
        while self.following.wants_more()
            && let Some(access) = self.stream.peek()
        {
            self.following.push(access.sample);
            self.stream.advance();
        }
    }

    /// A read that comes too late: the program has opened the file, and copied it if there was room.
    fn begin_opened(&mut self, read: Read) {
        let is_there = self.has_copy(read.sample);
        self.kept[read_index(&read)] |= is_there && read.keep.is_some();
        self.under_way += 1;
        self.complete(&Done { read, is_there });
    }

    fn begin(&mut self, read: Read, orders: &SyncSender<Read>) {
        if read.keep.is_some() || matches!(read.origin, Origin::Tier(_)) {
            self.kept[read_index(&read)] = true;
        }
        self.note_late(read.sample);
        self.under_way += 1;
        if read.origin == Origin::Source {
            self.send(read, orders);
        } else {
            let is_there = self.has_copy(read.sample);
            self.complete(&Done { read, is_there });
        }
    }

    fn send(&mut self, read: Read, orders: &SyncSender<Read>) {
        if let Err(std::sync::mpsc::TrySendError::Full(read)) = orders.try_send(read) {
            self.waiting = Some(read);
        }
    }

    fn complete(&mut self, done: &Done) {
        let Done { read, is_there } = done;
        self.under_way -= 1;
        self.engine.complete(read);
        let tier = match (read.keep, read.origin) {
            (Some(tier), _) | (None, Origin::Tier(tier)) => Some(tier),
            _ => None,
        };
        if let Some(tier) = tier {
            self.sight.arrived[read_index(read)] = *is_there;
            if !is_there {
                self.kept[read_index(read)] = false;
                self.engine.lost(read.sample, tier);
            }
        }
        // One that came too late: nobody else would remove it.
        self.let_go(read.sample);
        self.remove_evicted();
    }

    fn hear(&mut self) {
        let mut opened = Vec::new();
        self.heard = self
            .served
            .run
            .hear_opens(self.heard, |inode| opened.push(inode));
        for inode in opened {
            // Files beside the order, such as a list of classes, say nothing of it.
            let Some(&sample) = self.by_inode.get(&inode) else {
                continue;
            };
            match self.following.open(sample) {
                Open::InOrder => {}
                // The engine says whether it is kept, when it is asked.
                Open::Early => continue,
                Open::OffOrder => self.served.stripe().count(Count::OffOrder),
            }
            // Before its copy goes: who is about to bring it would find none.
            self.note_late(sample);
            self.let_go(sample);
        }
    }

    fn note_late(&self, sample: SampleId) {
        let is_late = !self.following.is_ahead(sample);
        self.late[sample.index()].store(is_late, Release);
    }

    /// What has been opened and is neither kept nor opened again soon makes room: who opened it can read on.
    fn let_go(&self, sample: SampleId) {
        if !self.kept[sample.index()] && !self.following.is_ahead(sample) {
            self.served.cache.remove(self.files[sample.index()].key);
        }
    }

    /// Tells the engine what the program has behind it.
    fn pass(&mut self) {
        while let Some(sample) = self.following.pass() {
            self.let_go(sample);
            match self.engine.consume(&mut self.sight) {
                Some(Consumed::Staged(bytes)) => self.engine.release(bytes),
                Some(Consumed::OnDemand(_) | Consumed::Instant(_)) | None => {}
            }
            self.remove_evicted();
        }
    }

    fn remove_evicted(&mut self) {
        let evicted: Vec<SampleId> = self
            .engine
            .evicted()
            .map(|evicted| evicted.sample)
            .collect();
        for sample in evicted {
            self.kept[sample.index()] = false;
            self.sight.arrived[sample.index()] = false;
            if !self.following.is_ahead(sample) {
                self.served.cache.remove(self.files[sample.index()].key);
            }
        }
    }

    fn has_copy(&self, sample: SampleId) -> bool {
        copying::find(self.served.cache.tiers(), self.files[sample.index()].key).is_some()
    }
}

/// Copies a file, if it has no copy; says whether it has one.
fn bring(file: &File, served: &Served, stop: &AtomicBool) -> bool {
    if stop.load(Acquire) {
        return false;
    }
    // Before it is opened: a source that answers slowly is not asked for what is here. Nor for what the program itself copies
    // at this moment: to some storages an open is a reason to forget what was read of a file, and it would be read again.
    let is_here = copying::find(served.cache.tiers(), file.key).is_some();
    if is_here || served.cache.is_claimed(file.key) {
        return true;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let Ok(source) = openat(CWD, &file.path, flags, Mode::empty()) else {
        served.stripe().skip(Skip::Failed);
        return false;
    };
    let Ok(found) = rustix::fs::fstat(&source) else {
        return false;
    };
    let identity = Identity::of(&found);
    // The key is of what was listed, and of nothing else.
    if identity != file.identity {
        served.stripe().skip(Skip::Changed);
        return false;
    }
    let copied = served.copy(Wanted {
        source: source.as_fd(),
        identity,
        key: file.key,
        witness: Witness::Storage,
        stop,
    });
    if let Ok(Copied::Here(_)) = copied {
        served.stripe().count(Count::Ahead);
    }
    // Or the program itself copies it, at this moment.
    copied.is_ok()
}
