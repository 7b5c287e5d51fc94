//! MPI's functions as the rest of this folder calls them: what is sent or received is owned here until MPI is done with it.
//!
//! A request under way has its memory with it, in [`Pending`]. Memory whose request never ends is never given back: MPI may
//! still write to it. Calls come from several threads only where MPI grants that; who makes them sees to it.

#![expect(
    unsafe_code,
    reason = "functions of C, which take handles and memory on trust"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use foresee_core::ids::Rank;

use super::MpiError;
use super::abi::{Abi, Functions};
use crate::transport::tcp::parcel::Body;

/// All that MPI guarantees to be allowed as a message is as long as this, at most.
pub(super) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Bytes of what MPI says of an error: more than any says.
const SAID_BYTES: usize = 4096;

/// What kind of threads MPI lets call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The one that initialised it.
    Main,
    /// Any, one at a time.
    OneAtATime,
    Any,
}

impl Level {
    fn of(number: c_int) -> Self {
        match number {
            ..=1 => Self::Main,
            2 => Self::OneAtATime,
            3.. => Self::Any,
        }
    }
}

/// `MPI_THREAD_MULTIPLE`, in both kinds.
const ANY_THREAD: c_int = 3;

/// The MPI of this process.
pub(super) struct Mpi<A: Abi> {
    pub(super) functions: Functions<A>,
    /// What its library is called.
    pub(super) name: String,
}

impl<A: Abi> Mpi<A> {
    fn check(&self, what: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let said = self.said(code);
        Err(MpiError::Call { what, said })
    }

    /// What MPI says of a code.
    fn said(&self, code: c_int) -> String {
        let mut text = [0 as c_char; SAID_BYTES];
        let mut len = 0;
        // SAFETY: there is more room than any MPI wants (`MPI_MAX_ERROR_STRING`), and all of it ends with a zero.
        let written =
            unsafe { (self.functions.error_string)(code, text.as_mut_ptr(), &raw mut len) };
        if written != 0 {
            return format!("error {code}");
        }
        // SAFETY: the last byte was zero before, and MPI ends what it writes with one.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        text.to_string_lossy().trim().replace('\n', " ")
    }

    fn flag(
        &self,
        what: &'static str,
        function: unsafe extern "C" fn(*mut c_int) -> c_int,
    ) -> Result<c_int, MpiError> {
        let mut flag = 0;
        // SAFETY: the function writes one number.
        let code = unsafe { function(&raw mut flag) };
        self.check(what, code)?;
        Ok(flag)
    }

    /// Whether it can be called: it was initialised and not finalised.
    pub(super) fn is_live(&self) -> Result<bool, MpiError> {
        let began = self.flag("MPI_Initialized", self.functions.initialized)? != 0;
        Ok(began && !self.is_over()?)
    }

    /// Whether it was finalised: it cannot be called again.
    pub(super) fn is_over(&self) -> Result<bool, MpiError> {
        Ok(self.flag("MPI_Finalized", self.functions.finalized)? != 0)
    }

    /// Initialises it for calls from any thread; it may grant less.
    pub(super) fn initialise(&self) -> Result<(), MpiError> {
        let mut granted = 0;
        let arguments = ptr::null_mut();
        // SAFETY: MPI allows programs to give no arguments; it was not initialised before.
        let code = unsafe {
            (self.functions.init_thread)(ptr::null_mut(), arguments, ANY_THREAD, &raw mut granted)
        };
        self.check("MPI_Init_thread", code)
    }

    /// Finalises what [`Mpi::initialise`] began; no call may come after it.
    pub(super) fn finalise(&self) {
        // SAFETY: it is live, and nobody of ours calls it any more. There is nobody to tell of an error.
        let _ = unsafe { (self.functions.finalize)() };
    }

    /// Who may call it: threads like this one?
    pub(super) fn level(&self) -> Result<Level, MpiError> {
        self.flag("MPI_Query_thread", self.functions.query_thread)
            .map(Level::of)
    }

    /// Whether this is the thread that initialised it.
    pub(super) fn is_main(&self) -> Result<bool, MpiError> {
        let flag = self.flag("MPI_Is_thread_main", self.functions.is_thread_main)?;
        Ok(flag != 0)
    }

    /// Which of its ranks this process is, and of how many.
    pub(super) fn rank(&self) -> Result<(u32, u32), MpiError> {
        let world = self.functions.constants.world;
        let mut rank = 0;
        let mut size = 0;
        // SAFETY: the world is always there, and each function writes one number.
        let codes = unsafe {
            [
                (self.functions.comm_rank)(world, &raw mut rank),
                (self.functions.comm_size)(world, &raw mut size),
            ]
        };
        self.check("MPI_Comm_rank", codes[0])?;
        self.check("MPI_Comm_size", codes[1])?;
        Ok((rank as u32, size as u32))
    }

    /// Has `ended` called when MPI is about to be finalised, by whomever, while it can still be called.
    pub(super) fn before_end(
        &self,
        ended: unsafe extern "C" fn(A::Handle, c_int, *mut c_void, *mut c_void) -> c_int,
    ) -> Result<(), MpiError> {
        let mut key = 0;
        // SAFETY: both functions are as MPI wants them and live as long as the process; nothing is attached but a null.
        let code = unsafe {
            (self.functions.comm_create_keyval)(
                copies_nothing::<A>,
                ended,
                &raw mut key,
                ptr::null_mut(),
            )
        };
        self.check("MPI_Comm_create_keyval", code)?;
        let own = self.functions.constants.own;
        // SAFETY: the key was just made, for communicators, and this one is always there.
        let code = unsafe { (self.functions.comm_set_attr)(own, key, ptr::null_mut()) };
        self.check("MPI_Comm_set_attr", code)
    }

    /// Begins to duplicate the world: all ranks do, sooner or later.
    pub(super) fn duplicate(&'static self) -> Result<Duplicating<A>, MpiError> {
        let world = self.functions.constants.world;
        let mut duplicating = Duplicating {
            mpi: self,
            // MPI writes to both when all ranks have come: they must not move before.
            made: Box::into_raw(Box::new((world, self.functions.constants.no_request))),
        };
        let (comm, request) = duplicating.places();
        // SAFETY: both places are valid for writes, and stay so until the request has ended (see `Drop`).
        let code = unsafe { (self.functions.comm_idup)(world, comm, request) };
        self.check("MPI_Comm_idup", code)?;
        Ok(duplicating)
    }
}

/// Nothing is copied to duplicates.
unsafe extern "C" fn copies_nothing<A: Abi>(
    _: A::Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: MPI gives a place for this flag.
    unsafe { *flag = 0 };
    0
}

/// A communicator that comes about when all ranks want it. Where some never do its memory is never given back.
pub(super) struct Duplicating<A: Abi> {
    mpi: &'static Mpi<A>,
    /// The communicator and the request.
    made: *mut (A::Handle, A::Handle),
}

// SAFETY: what it points to is its own, and MPI's while the request is under way; handles may be used by any thread.
unsafe impl<A: Abi> Send for Duplicating<A> {}

impl<A: Abi> Duplicating<A> {
    fn places(&mut self) -> (*mut A::Handle, *mut A::Handle) {
        // SAFETY: it points to a live pair, of which only places are taken.
        unsafe { (&raw mut (*self.made).0, &raw mut (*self.made).1) }
    }

    /// Whether all ranks have come by now.
    pub(super) fn look(&mut self) -> Result<Option<World<A>>, MpiError> {
        let functions = &self.mpi.functions;
        let (comm, request) = self.places();
        let mut flag = 0;
        let mut status = A::BLANK;
        // SAFETY: the request is the one that was begun, or none after it has ended; flag and status are written to.
        let code = unsafe { (functions.test)(request, &raw mut flag, &raw mut status) };
        self.mpi.check("MPI_Comm_idup", code)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: the request has ended, so MPI has written the communicator and lets go of its place.
        let comm = unsafe { *comm };
        // SAFETY: errors on this communicator are returned from now on, not fatal. It was just made.
        let code =
            unsafe { (functions.comm_set_errhandler)(comm, functions.constants.errors_return) };
        self.mpi.check("MPI_Comm_set_errhandler", code)?;
        let (rank, size) = self.mpi.rank()?;
        Ok(Some(World {
            mpi: self.mpi,
            comm,
            rank: Rank(rank),
            size,
        }))
    }
}

/// The ranks of this process's world, on a communicator that nobody else has.
pub(super) struct World<A: Abi> {
    pub(super) mpi: &'static Mpi<A>,
    comm: A::Handle,
    pub(super) rank: Rank,
    pub(super) size: u32,
}

impl<A: Abi> Clone for World<A> {
    fn clone(&self) -> Self {
        Self {
            mpi: self.mpi,
            comm: self.comm,
            rank: self.rank,
            size: self.size,
        }
    }
}

/// Memory of a request.
pub(super) enum Memory {
    /// Is sent.
    Own(Vec<u8>),
    /// Is sent from where it lies.
    Body(Body),
    /// Is received into. Before the request has ended it is empty, with room.
    Room(Vec<u8>),
}

/// A number as MPI takes it; more than it can say is said as the most.
fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// What looking for a message brought.
pub(super) enum Taken {
    Nothing,
    /// It is being received.
    One,
    /// It is not received.
    TooLong(Rank),
}

/// A request that has ended, and what it was for.
pub(super) struct Done<T> {
    pub(super) what: T,
    /// What was received; none where nothing was, or not well.
    pub(super) received: Option<Vec<u8>>,
}

/// Requests under way, each with its memory.
pub(super) struct Pending<A: Abi, T> {
    world: World<A>,
    requests: Vec<A::Handle>,
    held: Vec<(Memory, T)>,
    /// For the results of looking at them.
    indices: Vec<c_int>,
    statuses: Vec<A::Status>,
}

impl<A: Abi, T> Drop for Pending<A, T> {
    fn drop(&mut self) {
        // MPI may still read or write what has not ended.
        std::mem::forget(std::mem::take(&mut self.held));
    }
}

impl<A: Abi, T> Pending<A, T> {
    pub(super) fn new(world: World<A>) -> Self {
        Self {
            world,
            requests: Vec::new(),
            held: Vec::new(),
            indices: Vec::new(),
            statuses: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Sends to a rank. `is_heard`: it has ended only when the other end receives it, so that what waits there is bounded.
    pub(super) fn send(
        &mut self,
        (to, tag): (Rank, c_int),
        memory: Memory,
        is_heard: bool,
        what: T,
    ) -> Result<(), MpiError> {
        let bytes = match &memory {
            Memory::Own(bytes) => bytes.as_slice(),
            Memory::Body(body) => body.bytes(),
            Memory::Room(_) => &[],
        };
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a message has a bound");
        let functions = &self.world.mpi.functions;
        let function = if is_heard {
            functions.issend
        } else {
            functions.isend
        };
        let mut request = functions.constants.no_request;
        // SAFETY: the bytes lie where they are, in a vector's or a payload's memory, as long as `memory` lives, which is until
        // the request has ended. Nobody writes to them: a payload's cannot be written, the vector is not touched.
        let code = unsafe {
            function(
                bytes.as_ptr().cast(),
                int(bytes.len()),
                functions.constants.byte,
                to.0.cast_signed(),
                tag,
                self.world.comm,
                &raw mut request,
            )
        };
        self.world.mpi.check("MPI_Isend", code)?;
        self.requests.push(request);
        self.held.push((memory, what));
        Ok(())
    }

    /// Receives the next message of a rank with this tag. There must be room for all of it: what MPI does with a longer one
    /// differs, and some end the program.
    pub(super) fn receive(
        &mut self,
        (from, tag): (Rank, c_int),
        mut room: Vec<u8>,
        what: T,
    ) -> Result<(), MpiError> {
        room.clear();
        let functions = &self.world.mpi.functions;
        let mut request = functions.constants.no_request;
        // SAFETY: the vector's spare memory is as large as is said and stays where it is until the request has ended: it is
        // kept with it, and not touched.
        let code = unsafe {
            (functions.irecv)(
                room.as_mut_ptr().cast(),
                int(room.capacity()),
                functions.constants.byte,
                from.0.cast_signed(),
                tag,
                self.world.comm,
                &raw mut request,
            )
        };
        self.world.mpi.check("MPI_Irecv", code)?;
        self.requests.push(request);
        self.held.push((Memory::Room(room), what));
        Ok(())
    }

    /// Begins to receive a message with this tag from whomever, if one is there. One of more than `most` bytes stays where it
    /// is. `what` it is for is asked with whom it is from.
    pub(super) fn take_any(
        &mut self,
        tag: c_int,
        most: usize,
        what: impl FnOnce(Rank) -> T,
    ) -> Result<Taken, MpiError> {
        let Some((mut message, from, len)) = self.find_any(tag)? else {
            return Ok(Taken::Nothing);
        };
        if len > most {
            return Ok(Taken::TooLong(from));
        }
        let mpi = self.world.mpi;
        let mut room: Vec<u8> = Vec::with_capacity(len);
        let mut request = mpi.functions.constants.no_request;
        // SAFETY: the message was just found and is received once; the memory has room for all of it and is kept with the
        // request, as in `receive`.
        let code = unsafe {
            (mpi.functions.imrecv)(
                room.as_mut_ptr().cast(),
                int(len),
                mpi.functions.constants.byte,
                &raw mut message,
                &raw mut request,
            )
        };
        mpi.check("MPI_Imrecv", code)?;
        self.requests.push(request);
        self.held.push((Memory::Room(room), what(from)));
        Ok(Taken::One)
    }

    /// A message with this tag that is there, whom it is from and its length.
    fn find_any(&self, tag: c_int) -> Result<Option<(A::Handle, Rank, usize)>, MpiError> {
        let functions = &self.world.mpi.functions;
        let mut flag = 0;
        let mut message = functions.constants.no_message;
        let mut status = A::BLANK;
        // SAFETY: flag, message and status are places of the kinds that MPI writes to.
        let code = unsafe {
            (functions.improbe)(
                A::ANY_SOURCE,
                tag,
                self.world.comm,
                &raw mut flag,
                &raw mut message,
                &raw mut status,
            )
        };
        self.world.mpi.check("MPI_Improbe", code)?;
        if flag == 0 {
            return Ok(None);
        }
        let from = Rank(A::source(&status) as u32);
        Ok(Some((message, from, self.count(&status)?)))
    }

    /// How many bytes a message has.
    fn count(&self, status: &A::Status) -> Result<usize, MpiError> {
        let functions = &self.world.mpi.functions;
        let mut count = 0;
        // SAFETY: the status was written by MPI, for a message of bytes.
        let code = unsafe {
            (functions.get_count)(&raw const *status, functions.constants.byte, &raw mut count)
        };
        self.world.mpi.check("MPI_Get_count", code)?;
        usize::try_from(count).map_err(|_| MpiError::Call {
            what: "MPI_Get_count",
            said: format!("a message of {count} bytes"),
        })
    }

    /// What has ended by now.
    pub(super) fn look(&mut self) -> Result<Vec<Done<T>>, MpiError> {
        if self.requests.is_empty() {
            return Ok(Vec::new());
        }
        let number = self.requests.len();
        self.indices.resize(number, 0);
        self.statuses.resize(number, A::BLANK);
        let mut ended = 0;
        // SAFETY: there are as many requests, indices and statuses as is said; MPI writes to no more.
        let code = unsafe {
            (self.world.mpi.functions.testsome)(
                int(number),
                self.requests.as_mut_ptr(),
                &raw mut ended,
                self.indices.as_mut_ptr(),
                self.statuses.as_mut_ptr(),
            )
        };
        if ended <= 0 {
            self.world.mpi.check("MPI_Testsome", code)?;
            return Ok(Vec::new());
        }
        // Each has a code of its own, but only where one of them is not zero.
        let has_errors = code != 0;
        let mut order: Vec<(usize, usize)> = self.indices[..ended as usize]
            .iter()
            .enumerate()
            .map(|(at, index)| (*index as usize, at))
            .collect();
        // From the end, so that taking one out moves none of the others.
        order.sort_unstable_by(|one, other| other.cmp(one));
        let mut done = Vec::with_capacity(order.len());
        for (index, at) in order {
            let status = self.statuses[at];
            let is_whole = !has_errors || A::error(&status) == 0;
            self.requests.swap_remove(index);
            let (memory, what) = self.held.swap_remove(index);
            let received = match memory {
                Memory::Room(room) if is_whole => self.filled(room, &status)?,
                Memory::Own(_) | Memory::Body(_) | Memory::Room(_) => None,
            };
            done.push(Done { what, received });
        }
        Ok(done)
    }

    /// What was received, with its length.
    fn filled(&self, mut room: Vec<u8>, status: &A::Status) -> Result<Option<Vec<u8>>, MpiError> {
        let len = self.count(status)?;
        if len > room.capacity() {
            return Ok(None);
        }
        // SAFETY: the request has ended and MPI has written so many bytes from the start; there was room for them.
        unsafe { room.set_len(len) };
        Ok(Some(room))
    }
}
