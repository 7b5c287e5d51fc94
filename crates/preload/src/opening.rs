//! What happens when the program opens a file of a source. For reading: the kernel says what the file is now, and if there is
//! a copy of just that, the program gets the copy's descriptor. If not, it gets the source's; a small file is copied
//! first, in one pass, so that its bytes are read once. For writing: the source, and the copy is removed.
//!
//! The program's own call is made by `real`, mostly once or not at all, and its failures are the program's. The descriptor that it gets is
//! the lowest that is free, as ever: nothing of ours is open at that moment.

use std::ffi::CStr;

use foresee_cache::copying::{self, GOES_ON, Skip, Wanted, Witness};
use foresee_cache::counters::{By, Count, Origin};
use foresee_cache::key::Key;
use foresee_cache::look::Look;
use foresee_cache::placing::{Placed, Waited};
use foresee_cache::settings::{SMALL_BYTES, Validation};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags, fstat, statat};

use crate::coverage::{self, Relation};
use crate::reading;
use crate::session::{self, Session};
use crate::slots::{self, Entry, Kind};

/// Flags that mean the same for a copy. With any other the source is opened.
const HARMLESS: OFlags = OFlags::CLOEXEC
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOATIME)
    .union(OFlags::LARGEFILE);

/// The folder that a relative path begins at.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Working,
    Folder(BorrowedFd<'a>),
}

/// A call that names a file.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) at: At<'a>,
    pub(crate) path: &'a CStr,
    pub(crate) flags: OFlags,
}

/// A file of a source.
#[derive(Clone, Copy)]
pub(crate) struct Covered {
    pub(crate) key: Key,
    pub(crate) look: Look,
}

/// How a file is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looking {
    /// The storage is asked what it is now.
    Afresh,
    /// The kernel may say what it remembers: for what is compared with the storage later.
    Remembered,
}

/// What a path is to us.
enum Found {
    /// A file that may have a copy.
    File(Covered),
    /// A folder in a source or above one.
    Folder(Relation),
    /// Nothing of ours.
    Other,
}

impl Call<'_> {
    fn folder(&self) -> BorrowedFd<'_> {
        match self.at {
            At::Working => rustix::fs::CWD,
            At::Folder(folder) => folder,
        }
    }

    fn relation(&self, session: &Session) -> Relation {
        let path = self.path.to_bytes();
        let coverage = &session.coverage;
        if path.first() == Some(&b'/') {
            return coverage.of_absolute(path);
        }
        match self.at {
            At::Working => {
                let folder = coverage.of_working(working_path);
                coverage.of_relative(folder, path, working_path)
            }
            At::Folder(folder) => {
                let identity = || Some(Look::of(&fstat(folder).ok()?).identity());
                let known = slots::known(folder.as_raw_fd()).and_then(|slot| slot.folder(identity));
                known.map_or(Relation::Outside, |known| {
                    coverage.of_relative(known, path, |into| folder_path(folder, into))
                })
            }
        }
    }

    /// A look at the file, as the kernel finds it.
    fn look(&self, session: &Session, looking: Looking) -> Option<Look> {
        let follows = !self.flags.contains(OFlags::NOFOLLOW);
        let trusted_key = coverage::trusted_key(self.path.to_bytes()).filter(|_| follows);
        if let Some(look) = trusted_key.and_then(|key| session.run.trusted(key)) {
            return Some(look);
        }
        let follow = if follows {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        if looking == Looking::Remembered {
            let found = statat(self.folder(), self.path, follow).ok()?;
            return Some(Look::of(&found));
        }
        session.stripe().count(Count::Looks);
        let look = Look::at(self.folder(), self.path, follow).ok()?;
        if let Some(key) = trusted_key {
            session.run.trust(key, Some(&look));
        }
        Some(look)
    }

    fn find(&self, session: &Session, looking: Looking) -> Found {
        let relation = self.relation(session);
        let prefix = match relation {
            Relation::Inside { prefix } => prefix,
            Relation::Above { .. } => return Found::Folder(relation),
            Relation::Outside => return Found::Other,
        };
        if self.flags.intersects(OFlags::DIRECTORY | OFlags::PATH) {
            return Found::Folder(relation);
        }
        match self.look(session, looking) {
            Some(look) if look.is_file() => Found::File(Covered {
                key: look.identity().key(session.coverage.seed(prefix)),
                look,
            }),
            Some(_) => Found::Folder(relation),
            None => Found::Other,
        }
    }

    /// Whether the program only wants to read, in a way that a copy can serve.
    fn only_reads(&self) -> bool {
        let others = HARMLESS | OFlags::DIRECTORY | OFlags::PATH;
        !self.flags.intersects(!others)
    }

    /// Whether the program may write to the file. Other reads, past the page cache say, are the source's, and change nothing.
    fn may_change(&self) -> bool {
        let writes = OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC;
        self.flags.intersects(writes)
    }
}

fn working_path(into: &mut [u8]) -> Option<usize> {
    let path = rustix::process::getcwd(Vec::new()).ok()?;
    copy_path(path.as_bytes(), into)
}

fn folder_path(folder: BorrowedFd<'_>, into: &mut [u8]) -> Option<usize> {
    let own = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let path = rustix::fs::readlink(own, Vec::new()).ok()?;
    copy_path(path.as_bytes(), into)
}

fn copy_path(path: &[u8], into: &mut [u8]) -> Option<usize> {
    into.get_mut(..path.len())?.copy_from_slice(path);
    Some(path.len())
}

/// Opens a file for the program.
pub(crate) fn open(
    session: &Session,
    call: Call<'_>,
    real: impl Fn() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    if !call.only_reads() {
        if call.may_change() {
            changes(session, call);
        }
        return real();
    }
    let looking = first_looking(session);
    match call.find(session, looking) {
        // A child of `vfork` would write down its descriptors in its parent's memory.
        Found::File(_) | Found::Folder(_) if !session::is_own_memory() => real(),
        Found::File(covered) if looking == Looking::Remembered => {
            open_remembered(session, call, covered, real)
        }
        Found::File(covered) => open_file(session, call, covered, real),
        Found::Folder(relation) => {
            let opened = real()?;
            enter_folder(&opened, relation);
            Some(opened)
        }
        Found::Other => real(),
    }
}

fn enter_folder(opened: &OwnedFd, relation: Relation) {
    if let Ok(found) = fstat(opened) {
        let identity = Look::of(&found).identity();
        slots::enter_folder(opened.as_raw_fd(), relation, identity, session::process());
    }
}

/// A folder that was opened in another way.
pub(crate) fn note_folder(session: &Session, call: Call<'_>, opened: BorrowedFd<'_>) {
    let relation = call.relation(session);
    if relation == Relation::Outside || !session::is_own_memory() {
        return;
    }
    if let Ok(found) = fstat(opened) {
        let identity = Look::of(&found).identity();
        slots::enter_folder(opened.as_raw_fd(), relation, identity, session::process());
    }
}

fn open_file(
    session: &Session,
    call: Call<'_>,
    covered: Covered,
    real: impl Fn() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    if let Some(copy) = open_copy(session, call.flags, covered) {
        return Some(copy);
    }
    let is_in_vain = match others_copy(session, covered) {
        Waited::Nobody => false,
        Waited::There => return open_others(session, call, real),
        Waited::InVain => true,
    };
    let opened = real()?;
    let placed = if is_in_vain {
        None
    } else {
        place(session, opened.as_fd(), covered)
    };
    // Closed before a copy is opened, so that it gets its number.
    match placed {
        None => Some(at_source(session, call, covered, opened)),
        Some(Placed::Here(_)) => {
            drop(opened);
            open_made(session, call, covered, real)
        }
        Some(Placed::Elsewhere) => {
            drop(opened);
            open_others(session, call, real)
        }
    }
}

/// Opens a copy that somebody else has made since the file was looked at. It may have been changed while they read it, and only
/// the storage knows ([`Witness::Kernel`]).
fn open_others(
    session: &Session,
    call: Call<'_>,
    real: impl Fn() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    match call.find(session, Looking::Afresh) {
        Found::File(covered) => open_made(session, call, covered, real),
        Found::Folder(_) | Found::Other => real(),
    }
}

/// Opens a copy that has just been made.
fn open_made(
    session: &Session,
    call: Call<'_>,
    covered: Covered,
    real: impl Fn() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    open_copy(session, call.flags, covered)
        .or_else(|| Some(at_source(session, call, covered, real()?)))
}

/// How a file is looked at first. What the kernel remembers tells whether there may be a copy. If there is none, the program gets
/// what it would have got without us, and so does its copy: the storage is asked before anybody is given that.
fn first_looking(session: &Session) -> Looking {
    let settings = session.run.settings();
    if settings.are_looks_remembered && settings.validation == Validation::Always {
        Looking::Remembered
    } else {
        Looking::Afresh
    }
}

/// Opens a file that is what the kernel remembers of it, or not any more.
fn open_remembered(
    session: &Session,
    call: Call<'_>,
    covered: Covered,
    real: impl Fn() -> Option<OwnedFd>,
) -> Option<OwnedFd> {
    if is_unknown(session, covered) {
        let opened = real()?;
        match place(session, opened.as_fd(), covered) {
            None => return Some(at_source(session, call, covered, opened)),
            Some(Placed::Here(_)) => {
                drop(opened);
                return open_made(session, call, covered, real);
            }
            // Somebody else's: whether it is right is to be asked.
            Some(Placed::Elsewhere) => drop(opened),
        }
    }
    match call.find(session, Looking::Afresh) {
        Found::File(covered) => open_file(session, call, covered, real),
        Found::Folder(_) | Found::Other => real(),
    }
}

/// Whether a small file has no copy and nobody makes one.
fn is_unknown(session: &Session, covered: Covered) -> bool {
    let size_bytes = covered.look.size_bytes;
    (1..=SMALL_BYTES).contains(&size_bytes)
        && copying::find(session.cache.tiers(), covered.key).is_none()
        && !session.cache.is_claimed(covered.key)
}

/// Waits for a copy of a small file that somebody else makes at this moment, and counts that.
fn others_copy(session: &Session, covered: Covered) -> Waited {
    if covered.look.size_bytes > SMALL_BYTES {
        return Waited::Nobody;
    }
    let waited = session.cache.wait_for_others(covered.key);
    match waited {
        Waited::Nobody => {}
        Waited::There => session.stripe().count(Count::Awaited),
        Waited::InVain => session.stripe().skip(Skip::Claimed),
    }
    waited
}

/// The program's descriptor stays at the source.
fn at_source(session: &Session, call: Call<'_>, covered: Covered, opened: OwnedFd) -> OwnedFd {
    let kind = if covered.look.size_bytes > SMALL_BYTES {
        let private = call.flags.contains(OFlags::CLOEXEC);
        Kind::Large { private }
    } else {
        Kind::Source
    };
    enter(session, opened.as_raw_fd(), kind, covered);
    opened
}

/// Opens a copy for the program.
fn open_copy(session: &Session, flags: OFlags, covered: Covered) -> Option<OwnedFd> {
    let flags = flags & (OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::LARGEFILE);
    let (copy, tier) = session.cache.open_copy(covered.key, flags)?;
    // What cannot be written down would be seen as what it is.
    if !slots::has_slot(copy.as_raw_fd()) {
        return None;
    }
    enter(session, copy.as_raw_fd(), Kind::Copy(tier), covered);
    Some(copy)
}

/// Writes down and counts what the program got.
fn enter(session: &Session, descriptor: i32, kind: Kind, covered: Covered) {
    let entry = Entry {
        kind,
        key: covered.key,
        look: covered.look,
        process: session::process(),
        forks: session::forks(),
    };
    slots::enter(descriptor, &entry);
    let origin = match kind {
        Kind::Copy(tier) => Origin::Tier(tier),
        Kind::Source | Kind::Large { .. } => Origin::Source,
    };
    session.stripe().add(By::Opens, origin, 1);
    session.run.tell_open(covered.look.inode);
}

/// Makes a copy of a small file that had none, or waits for who does; none where there is none now.
fn place(session: &Session, source: BorrowedFd<'_>, covered: Covered) -> Option<Placed> {
    let size_bytes = covered.look.size_bytes;
    if size_bytes == 0 || size_bytes > SMALL_BYTES {
        return None;
    }
    let stripe = session.stripe();
    let path = || copying::path_of(source);
    if !session.cache.makes_room(size_bytes, covered.key, path) {
        stripe.skip(Skip::Quota);
        return None;
    }
    let is_same =
        fstat(source).is_ok_and(|found| Look::of(&found).identity() == covered.look.identity());
    if !is_same {
        return None;
    }
    let wanted = Wanted {
        source,
        identity: covered.look.identity(),
        key: covered.key,
        witness: match first_looking(session) {
            Looking::Afresh => Witness::Storage,
            Looking::Remembered => Witness::Kernel,
        },
        stop: &GOES_ON,
    };
    let placed = session.cache.place(wanted);
    match placed {
        Ok(Placed::Here(tier)) => {
            stripe.copied(tier, size_bytes);
            session.run.note_read();
        }
        Ok(Placed::Elsewhere) => stripe.count(Count::Awaited),
        Err(why) => stripe.skip(why),
    }
    placed.ok()
}

/// A file may be changed or lose its name: what was copied of it is of no use soon.
pub(crate) fn changes(session: &Session, call: Call<'_>) {
    let Relation::Inside { prefix } = call.relation(session) else {
        return;
    };
    if let Some(key) = coverage::trusted_key(call.path.to_bytes()) {
        session.run.trust(key, None);
    }
    let Ok(found) = statat(call.folder(), call.path, AtFlags::empty()) else {
        return;
    };
    let look = Look::of(&found);
    let key = look.identity().key(session.coverage.seed(prefix));
    if look.is_file() && session.cache.remove(key) {
        session.stripe().count(Count::Removed);
    }
}

/// What a stream is opened from.
pub(crate) enum Stream {
    /// A copy, by its path.
    Copy {
        /// The tier that has it.
        tier: usize,
        /// Its file.
        covered: Covered,
    },
    /// The source, as the program said.
    Source(Covered),
    /// Nothing of ours.
    Other,
}

/// What the program's stream shall be opened from; the file is copied first if it can be.
pub(crate) fn stream(session: &Session, call: Call<'_>) -> Stream {
    if !call.only_reads() {
        if call.may_change() {
            changes(session, call);
        }
        return Stream::Other;
    }
    let Found::File(covered) = call.find(session, Looking::Afresh) else {
        return Stream::Other;
    };
    if let Some(copy) = stream_of_copy(session, covered) {
        return copy;
    }
    match others_copy(session, covered) {
        Waited::Nobody => {}
        Waited::There => return stream_of_others(session, call),
        Waited::InVain => return Stream::Source(covered),
    }
    let size_bytes = covered.look.size_bytes;
    let path = || coverage::trusted_key(call.path.to_bytes());
    if size_bytes > SMALL_BYTES || !session.cache.makes_room(size_bytes, covered.key, path) {
        return Stream::Source(covered);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(call.folder(), call.path, flags, rustix::fs::Mode::empty());
    let Ok(source) = opened else {
        return Stream::Source(covered);
    };
    match place(session, source.as_fd(), covered) {
        None => Stream::Source(covered),
        Some(Placed::Here(_)) => {
            stream_of_copy(session, covered).unwrap_or(Stream::Source(covered))
        }
        Some(Placed::Elsewhere) => stream_of_others(session, call),
    }
}

fn stream_of_copy(session: &Session, covered: Covered) -> Option<Stream> {
    let tier = copying::find(session.cache.tiers(), covered.key)?;
    Some(Stream::Copy { tier, covered })
}

/// As [`open_others`].
fn stream_of_others(session: &Session, call: Call<'_>) -> Stream {
    match call.find(session, Looking::Afresh) {
        Found::File(covered) => stream_of_copy(session, covered).unwrap_or(Stream::Source(covered)),
        Found::Folder(_) | Found::Other => Stream::Other,
    }
}

/// Writes down the descriptor of a stream: it never moves, as what was read ahead is of its place.
pub(crate) fn enter_stream(
    session: &Session,
    descriptor: i32,
    tier: Option<usize>,
    covered: Covered,
) {
    let kind = tier.map_or(Kind::Source, Kind::Copy);
    enter(session, descriptor, kind, covered);
}

/// A stream's reads are not seen: a large file is asked for when it is opened.
pub(crate) fn ask_for_stream(session: &Session, covered: Covered, descriptor: BorrowedFd<'_>) {
    let size_bytes = covered.look.size_bytes;
    if size_bytes > SMALL_BYTES {
        reading::ask_for(session, size_bytes, covered.key, descriptor);
    }
}
