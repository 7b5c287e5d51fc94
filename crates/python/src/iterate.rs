//! What hands over to Python without running Python: what was not returned to the caller was not delivered.
//!
//! A signal handler may raise at any bytecode. So what is to be returned is made ready first, and kept; once signals were
//! looked after it is counted as delivered and returned straight to whoever asked, without a bytecode in between. A loop
//! (`for`) has it then. With `next()` the interpreter looks after signals once more before the caller's next bytecode, so
//! the rest of the way is as short as it can be.
//!
//! - `Batches`: of a job, the base of `foresee.Job`; `EpochBatches`: of one of its epochs.
//! - `Handover`: of what Python code made ready, for an epoch of `foresee.torch`.
//! - `Watch`: of another iterator's items, with a look at the clock, for `foresee.progress`.
//!
//! Nothing here calls Python code, but for the main thread: when a program ends, the interpreter unwinds the stacks of other
//! threads that still run Python, which must not have anything of Rust below. Python puts the last two together with its own
//! `map` and `filter` instead, which run no bytecode either.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use foresee_runtime::job::Ask;
use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::batch::Batch;
use crate::job::Job;

/// The thread that ends the program.
static ENDED_BY: OnceLock<ThreadId> = OnceLock::new();

/// The program ends, says the thread that ends it. Others that iterate are not told that everything is closed: there is
/// nobody who could mend it.
#[pyfunction]
pub(crate) fn end_program() {
    let _ = ENDED_BY.set(thread::current().id());
}

/// Whether somebody else ends the program.
fn is_left_behind() -> bool {
    ENDED_BY
        .get()
        .is_some_and(|main| *main != thread::current().id())
}

/// A thread that is left behind when the program ends sleeps until it is gone.
#[pyfunction]
pub(crate) fn sleep_if_left_behind(py: Python<'_>) {
    if is_left_behind() {
        py.detach(|| {
            loop {
                thread::park();
            }
        });
    }
}

/// An answer; where the program ends, errors of others are said to nobody.
fn answer<T>(py: Python<'_>, answer: PyResult<T>) -> PyResult<T> {
    if answer.is_err() {
        sleep_if_left_behind(py);
    }
    answer
}

/// A stack of Python objects, by functions that are not written in Python: how many there are, the one at a place, and what
/// takes the last away or puts another on top.
#[derive(FromPyObject)]
pub(crate) struct Stack<'py>(
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
);

impl<'py> Stack<'py> {
    fn items(&self) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let Self(len, at, ..) = self;
        let len: usize = len.call0()?.extract()?;
        (0..len).map(|place| at.call1((place,))).collect()
    }

    /// Makes it what it was.
    fn restore(&self, before: &[Bound<'py, PyAny>]) -> PyResult<()> {
        let Self(.., pop, push) = self;
        let now = self.items()?;
        let same = now
            .iter()
            .zip(before)
            .take_while(|(now, before)| now.is(*before))
            .count();
        for _ in same..now.len() {
            pop.call0()?;
        }
        for item in &before[same..] {
            push.call1((item,))?;
        }
        Ok(())
    }
}

/// Calls `call`. Then, whatever happened, each of the stacks is made what it was, and `leave` is called: no signal handler can
/// come between. For the main thread.
///
/// An exception that breaks off a function of `held` keeps what that function works on, as long as it is kept itself. If that
/// is a generator that changes the stacks when it ends, as torch's are, it must end before they are restored, not some day.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "what Python gives is converted"
)]
pub(crate) fn call_and_restore<'py>(
    call: &Bound<'py, PyAny>,
    stacks: Vec<Stack<'py>>,
    held: Vec<Bound<'py, PyAny>>,
    leave: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let before = stacks
        .iter()
        .map(Stack::items)
        .collect::<PyResult<Vec<_>>>()?;
    let called = call.call0();
    if let Err(wrong) = &called {
        release(wrong.value(call.py()), &held)?;
    }
    for (stack, before) in stacks.iter().zip(before) {
        stack.restore(&before)?;
    }
    leave.call0()?;
    called
}

/// Empties the frames of these functions that an exception keeps, or one that was under way when it was raised.
fn release(wrong: &Bound<'_, PyAny>, held: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let mut wrong = wrong.clone();
    // More are not raised one in the course of another, but somebody may have made a circle of them.
    for _ in 0..100 {
        if wrong.is_none() {
            break;
        }
        let mut at = wrong.getattr("__traceback__")?;
        while !at.is_none() {
            let frame = at.getattr("tb_frame")?;
            let code = frame.getattr("f_code")?;
            if held.iter().any(|one| one.is(&code)) {
                // One that still runs refuses, and ends by itself.
                let _ = frame.call_method0("clear");
            }
            at = at.getattr("tb_next")?;
        }
        wrong = wrong.getattr("__context__")?;
    }
    Ok(())
}

/// The batches of a job. Until one is asked for, Python may put another job in its place.
#[pyclass(frozen, subclass, module = "foresee._native")]
pub(crate) struct Batches {
    job: Mutex<Option<Py<Job>>>,
    /// Whether it stays what it is.
    settled: AtomicBool,
}

impl Batches {
    /// The job, for whoever wants batches.
    fn begun(slf: &Bound<'_, Self>) -> PyResult<Py<Job>> {
        let this = slf.get();
        if !this.settled.load(Ordering::Acquire) {
            slf.call_method0("_settle")?;
        }
        this.native(slf.py())
    }
}

#[pymethods]
impl Batches {
    #[new]
    #[pyo3(signature = (*_args, **_options))]
    fn new(_args: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            job: Mutex::new(None),
            settled: AtomicBool::new(false),
        }
    }

    #[getter(_native)]
    fn native(&self, py: Python<'_>) -> PyResult<Py<Job>> {
        let job = lock(&self.job).as_ref().map(|job| job.clone_ref(py));
        job.ok_or_else(|| PyAttributeError::new_err("_native: the job was not made"))
    }

    #[setter(_native)]
    fn set_native(&self, job: Py<Job>) {
        let before = lock(&self.job).replace(job);
        // Here, where nothing is locked: it may be the last to know it.
        drop(before);
    }

    #[getter(_settled)]
    fn settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    #[setter(_settled)]
    fn set_settled(&self, settled: bool) {
        self.settled.store(settled, Ordering::Release);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Option<Batch>> {
        let job = Self::begun(slf)?;
        answer(slf.py(), job.get().next_batch(slf.py(), Ask::default()))
    }

    /// The next sample, or its image where the dataset has a transform, and its label; None at the end of the job.
    fn get<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<(Bound<'py, PyAny>, i64)>> {
        let job = Self::begun(slf)?;
        answer(slf.py(), job.get().next_sample(slf.py()))
    }
}

/// The batches of one epoch of a job.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct EpochBatches {
    job: Py<Job>,
    epoch: u32,
    /// Whether the job was told to go there.
    begun: AtomicBool,
}

#[pymethods]
impl EpochBatches {
    #[new]
    fn new(job: Py<Job>, epoch: u32) -> Self {
        Self {
            job,
            epoch,
            begun: AtomicBool::new(false),
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let job = self.job.get();
        if !self.begun.load(Ordering::Acquire) {
            answer(py, job.reach(py, self.epoch))?;
            self.begun.store(true, Ordering::Release);
        }
        answer(
            py,
            job.next_batch(
                py,
                Ask {
                    alone: false,
                    within: Some(self.epoch),
                },
            ),
        )
    }
}

/// What an iteration handed over. Its loader looks at it, also when the iteration is gone.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Handed {
    steps: AtomicU64,
    samples: AtomicU64,
}

#[pymethods]
impl Handed {
    #[new]
    fn new() -> Self {
        Self {
            steps: AtomicU64::new(0),
            samples: AtomicU64::new(0),
        }
    }

    /// Steps that were handed over, or given up with an error.
    #[getter]
    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Samples that were handed over.
    #[getter]
    fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }
}

/// What waits to be returned, or raised.
struct Ready {
    what: Py<PyAny>,
    is_error: bool,
    samples: u64,
    steps: u64,
}

/// What was made ready with `put` or `fail` waits here until it is taken.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Handover {
    ready: Mutex<Option<Ready>>,
    /// What the next item is being made of; nothing as soon as it is ready.
    work: Mutex<Option<Py<PyAny>>>,
    handed: Py<Handed>,
}

impl Handover {
    fn set_ready(&self, ready: Ready) {
        *lock(&self.ready) = Some(ready);
        let done = lock(&self.work).take();
        // Here, where nothing is locked: it may be anything.
        drop(done);
    }
}

#[pymethods]
impl Handover {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self {
            ready: Mutex::new(None),
            work: Mutex::new(None),
            handed: Py::new(py, Handed::new())?,
        })
    }

    #[getter]
    fn handed(&self, py: Python<'_>) -> Py<Handed> {
        self.handed.clone_ref(py)
    }

    /// Whether something waits to be taken.
    #[getter]
    fn is_ready(&self) -> bool {
        lock(&self.ready).is_some()
    }

    #[getter]
    fn work(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.work).as_ref().map(|work| work.clone_ref(py))
    }

    #[setter]
    fn set_work(&self, work: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut *lock(&self.work), work);
        drop(before);
    }

    /// This comes next: so many samples, after so many steps.
    fn put(&self, item: Py<PyAny>, samples: u64, steps: u64) {
        self.set_ready(Ready {
            what: item,
            is_error: false,
            samples,
            steps,
        });
    }

    /// This error comes next, in the place of a batch, after so many steps.
    fn fail(&self, wrong: Py<PyAny>, steps: u64) {
        self.set_ready(Ready {
            what: wrong,
            is_error: true,
            samples: 0,
            steps,
        });
    }

    /// What waits to be taken will not be.
    fn discard(&self) {
        let ready = lock(&self.ready).take();
        let work = lock(&self.work).take();
        drop((ready, work));
    }

    /// Takes what is ready, or raises it; `none` if another thread has taken it.
    fn take(&self, py: Python<'_>, none: Py<PyAny>) -> PyResult<Py<PyAny>> {
        py.check_signals()?;
        let taken = lock(&self.ready).take();
        let Some(ready) = taken else { return Ok(none) };
        let handed = self.handed.get();
        handed.steps.fetch_add(ready.steps, Ordering::Relaxed);
        handed.samples.fetch_add(ready.samples, Ordering::Relaxed);
        if ready.is_error {
            return answer(py, Err(PyErr::from_value(ready.what.into_bound(py))));
        }
        Ok(ready.what)
    }

    // An error knows where it was raised, and so the iteration that keeps it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // One that is locked is in use.
        if let Ok(ready) = self.ready.try_lock() {
            visit.call(ready.as_ref().map(|ready| &ready.what))?;
        }
        match self.work.try_lock() {
            Ok(work) => visit.call(work.as_ref()),
            Err(_) => Ok(()),
        }
    }

    fn __clear__(&self) {
        self.discard();
    }
}

/// How many items another iterator gave, and how long they were waited for.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Watch {
    asked: Mutex<Instant>,
    steps: AtomicU64,
    stall_ns: AtomicU64,
}

#[pymethods]
impl Watch {
    #[new]
    fn new() -> Self {
        Self {
            asked: Mutex::new(Instant::now()),
            steps: AtomicU64::new(0),
            stall_ns: AtomicU64::new(0),
        }
    }

    /// Items that were handed over.
    #[getter]
    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// How long they were waited for.
    #[getter]
    fn stall_s(&self) -> f64 {
        self.stall_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// One is asked for now.
    fn ask(&self) {
        *lock(&self.asked) = Instant::now();
    }

    /// It is there.
    fn hand(&self, _asked: Py<PyAny>, item: Py<PyAny>) -> Py<PyAny> {
        let waited = lock(&self.asked).elapsed();
        self.stall_ns
            .fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
        item
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
