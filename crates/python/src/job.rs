//! A job as Python uses it: waits without the interpreter, looks after signals, and goes on in a forked child.
//!
//! The lock around the job is only held while this thread has the interpreter and runs no Python, so it is free whenever
//! somebody forks. In the child the job that came along is left behind, never dropped: its locks may be held by threads
//! that are not there.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use foresee_config::{Config, Environment, Given, Threads};
use foresee_core::ids::{Epoch, SampleId, Step};
use foresee_core::policy::Assignment;
use foresee_core::stream::{Mark, Shuffle, Tail};
use foresee_image::Output;
use foresee_runtime::job::{
    self, Ask, Images, JobError, JobSpec, OnError, OnHost, Prepared, Saved, StagingMemory,
};
use foresee_runtime::{dataset, fork};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde_json::Value;

use crate::batch::{Batch, Sample};
use crate::convert::{from_python, into_toml, to_python};
use crate::dataset::Dataset;
use crate::errors::{self, Kind, error};
use crate::mesh::{self, Mesh};
use crate::tensor::Tensor;
use crate::transforms::pipeline;
use crate::{PATIENCE, log};

/// How long closing waits for reads that are under way: longer than a healthy read, shorter than a user's patience.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// How long lingering goes on before it looks after signals.
const LINGER: Duration = Duration::from_millis(100);

const TAKEN_BY_OTHERS: &str =
    "the job ended before its epoch: somebody else takes batches from loader.job";

/// What a job is made from; `python/foresee/_job.py` has checked it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Arguments<'py> {
    batch_size: u32,
    epochs: u32,
    seed: u64,
    shuffle: Bound<'py, PyAny>,
    drop_last: bool,
    tail: String,
    policy: String,
    assignment: String,
    on_error: String,
    /// Loader threads, where they are not as configured.
    threads: Option<u32>,
    /// What is done to images, where they are decoded.
    transform: Option<Bound<'py, PyAny>>,
    config: Bound<'py, PyAny>,
    rank: u32,
    world_size: u32,
    /// Which of the ranks on its host it is, and of how many.
    on_host: Option<(u32, u32)>,
    /// Which of its process's consumers it is.
    consumer: u32,
}

/// A running job.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Job {
    held: Mutex<Held>,
    dataset: Arc<dataset::Dataset>,
    /// What samples are decoded to.
    output: Option<Output>,
    takers: Takers,
}

/// Which threads have taken anything.
#[derive(Default)]
struct Takers {
    first: OnceLock<ThreadId>,
    are_several: AtomicBool,
}

impl Takers {
    fn note(&self) {
        let here = thread::current().id();
        if *self.first.get_or_init(|| here) != here {
            self.are_several.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is another one than this thread.
    fn have_others(&self) -> bool {
        let is_other = self
            .first
            .get()
            .is_some_and(|first| *first != thread::current().id());
        is_other || self.are_several.load(Ordering::Relaxed)
    }
}

struct Held {
    job: ManuallyDrop<Arc<job::Job>>,
    /// Forks before it was made.
    generation: u32,
    /// The state it was last set to, which may be of another number of ranks.
    loaded: Option<Saved>,
}

impl Held {
    /// Replaces what a fork brought along.
    fn adopt(&mut self) -> Result<(), JobError> {
        if self.generation == fork::generation() {
            return Ok(());
        }
        let fresh = self.job.after_fork()?;
        if let Some(loaded) = &self.loaded {
            let Saved {
                epoch,
                step,
                index,
                world,
                ..
            } = fresh.save();
            fresh.load(&Saved {
                epoch,
                step,
                index,
                world,
                ..loaded.clone()
            })?;
        }
        // The old one is not dropped.
        self.job = ManuallyDrop::new(Arc::new(fresh));
        self.generation = fork::generation();
        Ok(())
    }
}

impl Drop for Held {
    #[expect(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            self.job.close_within(CLOSE_MAX);
            // SAFETY: taken here, once, and not touched again.
            drop(unsafe { ManuallyDrop::take(&mut self.job) });
        }
    }
}

impl Job {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job of this process.
    fn job(&self, py: Python<'_>) -> PyResult<Arc<job::Job>> {
        let adopted = {
            let mut held = self.held();
            held.adopt().map(|()| Arc::clone(&held.job))
        };
        adopted.map_err(|wrong| errors::job(py, &wrong))
    }

    /// Waits for what is asked for; None at the end. Once it is taken nothing can raise any more but a lack of memory.
    fn ask(&self, py: Python<'_>, ask: Ask) -> PyResult<Option<job::Batch>> {
        loop {
            match self.prepare(py, ask)? {
                Prepared::Ready => {
                    if let Some(batch) = self.job(py)?.take(ask) {
                        self.takers.note();
                        return Ok(Some(batch));
                    }
                    // Another thread has taken it.
                }
                Prepared::NotYet => {}
                Prepared::End => return Ok(None),
            }
        }
    }

    /// Waits a while, then looks after signals: whatever is ready stays with the job if one of them raises. What is there
    /// is had without letting other threads of Python run first: that takes as long as to hand a sample over.
    ///
    /// Handlers of the log and of signals may fork: the job is another one after each.
    fn prepare(&self, py: Python<'_>, ask: Ask) -> PyResult<Prepared> {
        log::drain(py)?;
        let job = self.job(py)?;
        let prepared = if job.prepare_at_once(ask) {
            Prepared::Ready
        } else {
            py.detach(|| job.prepare(ask, PATIENCE))
                .map_err(|wrong| errors::job(py, &wrong))?
        };
        py.check_signals()?;
        Ok(prepared)
    }

    /// The next batch; None at the end.
    pub(crate) fn next_batch(&self, py: Python<'_>, ask: Ask) -> PyResult<Option<Batch>> {
        let batch = self.ask(py, ask)?;
        batch
            .map(|batch| Batch::new(py, batch, &self.dataset, self.output))
            .transpose()
    }

    /// The next sample and its label; None at the end of the job.
    pub(crate) fn next_sample<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, i64)>> {
        loop {
            let Some(batch) = self.ask(
                py,
                Ask {
                    alone: true,
                    within: None,
                },
            )?
            else {
                return Ok(None);
            };
            // A step may have nothing for this rank.
            let Some(id) = batch.samples.first().map(|sample| sample.id) else {
                continue;
            };
            let label = self.dataset.label(id);
            if let Some(output) = self.output {
                return Ok(Some((
                    Tensor::of_sample(batch, output).into_bound_py_any(py)?,
                    label,
                )));
            }
            let sample = batch
                .samples
                .into_iter()
                .next()
                .map(|sample| Sample::new(Arc::new(sample.lease)));
            return Ok(Some((sample.into_bound_py_any(py)?, label)));
        }
    }

    /// Goes to an epoch, if it is ahead.
    pub(crate) fn reach(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        let job = self.job(py)?;
        py.detach(|| job.reach(epoch))
            .map_err(|wrong| errors::job(py, &wrong))
    }
}

#[pymethods]
impl Job {
    #[new]
    fn new(py: Python<'_>, dataset: &Dataset, arguments: Arguments<'_>) -> PyResult<Self> {
        let pipeline = arguments
            .transform
            .as_ref()
            .map(pipeline)
            .transpose()?
            .map(Arc::new);
        let output = pipeline.as_ref().map(|pipeline| pipeline.output());
        let mut config = config(&arguments.config)?;
        dataset.refuse_other_catalogs(py, &config)?;
        if let Some(threads) = arguments.threads {
            config.staging.threads = Threads::Number(threads);
        }
        let spec = JobSpec {
            source: dataset.source(),
            catalog: dataset.inner().catalog(),
            dataset: dataset.inner().digest(),
            shuffle: shuffle(&arguments)?,
            own_order: arguments.assignment == "own",
            batch_size: arguments.batch_size,
            epochs: arguments.epochs,
            drop_last: arguments.drop_last,
            tail: match arguments.tail.as_str() {
                "drop" => Tail::Drop,
                "exact" => Tail::Exact,
                _ => Tail::Pad,
            },
            policy: arguments.policy,
            assignment: if arguments.assignment == "local" {
                Assignment::Local
            } else {
                Assignment::Order
            },
            images: pipeline.map(|pipeline| Images {
                pipeline,
                seed: arguments.seed,
            }),
            on_error: if arguments.on_error == "skip" {
                OnError::Skip
            } else {
                OnError::Raise
            },
            config,
            rank: arguments.rank,
            world: arguments.world_size,
            on_host: arguments
                .on_host
                .map(|(rank, ranks)| OnHost { rank, ranks }),
            consumer: arguments.consumer,
            record: false,
        };
        let job = py
            .detach(|| job::Job::new(spec))
            .map_err(|wrong| errors::job(py, &wrong))?;
        log::drain(py)?;
        let held = Held {
            job: ManuallyDrop::new(Arc::new(job)),
            generation: fork::generation(),
            loaded: None,
        };
        Ok(Self {
            held: Mutex::new(held),
            dataset: Arc::clone(dataset.inner()),
            output,
            takers: Takers::default(),
        })
    }

    /// Appends batches of an epoch to a list until it has `count`; says no where they are not there soon. If a sample cannot
    /// be read, all `count` are given up, and the list ends with the error.
    fn gather(
        &self,
        py: Python<'_>,
        list: &Bound<'_, PyList>,
        count: usize,
        epoch: u32,
    ) -> PyResult<bool> {
        let ask = Ask {
            alone: false,
            within: Some(epoch),
        };
        while list.len() < count {
            match self.prepare(py, ask) {
                Ok(Prepared::Ready) => {}
                Ok(Prepared::NotYet) => return Ok(false),
                Ok(Prepared::End) => return Err(error(py, Kind::Foresee, TAKEN_BY_OTHERS)),
                Err(wrong) if wrong.is_instance(py, errors::sample_error(py)?) => {
                    let left = (count - list.len()) as u32;
                    let job = self.job(py)?;
                    py.detach(|| job.pass_over(left))
                        .map_err(|wrong| errors::job(py, &wrong))?;
                    return list.append(wrong.into_value(py)).map(|()| true);
                }
                Err(wrong) => return Err(wrong),
            }
            if let Some(batch) = self.job(py)?.take(ask) {
                list.append(Batch::new(py, batch, &self.dataset, self.output)?)?;
            }
        }
        Ok(true)
    }

    /// Goes on with a step of an epoch in this order.
    fn reorder(
        &self,
        py: Python<'_>,
        epoch: u32,
        step: u32,
        samples: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let samples = numbers(samples)?;
        let job = self.job(py)?;
        let mark = Mark {
            epoch: Epoch(epoch),
            step: Step(step),
        };
        py.detach(|| job.reorder(mark, samples))
            .map_err(|wrong| errors::job(py, &wrong))
    }

    /// What can be read in the place of a sample, after `tried` others: how many were tried with it, its number, its bytes.
    fn instead_of<'py>(
        &self,
        py: Python<'py>,
        sample: u32,
        tried: u64,
    ) -> PyResult<Option<(u64, u32, Bound<'py, PyBytes>)>> {
        let job = self.job(py)?;
        let other = py.detach(|| job.instead_of(SampleId(sample), tried));
        Ok(other.map(|(tried, other, data)| (tried, other.0, PyBytes::new(py, &data))))
    }

    /// Another sample is in the place of one of which Python could make nothing.
    fn note_skipped(&self, py: Python<'_>, sample: u32, other: u32, why: &str) -> PyResult<()> {
        let job = self.job(py)?;
        py.detach(|| job.note_skipped(SampleId(sample), SampleId(other), why));
        Ok(())
    }

    /// Epoch and step of the next batch.
    fn place(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        Ok(self.job(py)?.place())
    }

    /// Whether other threads take from it, too.
    #[getter]
    fn is_shared(&self) -> bool {
        self.takers.have_others()
    }

    fn seek(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        let job = self.job(py)?;
        py.detach(|| job.seek(epoch))
            .map_err(|wrong| errors::job(py, &wrong))
    }

    fn steps(&self, py: Python<'_>) -> PyResult<u32> {
        let job = self.job(py)?;
        Ok(py.detach(|| job.steps()))
    }

    /// What happened so far; the source minimum takes as long as the job has epochs.
    fn stats<'py>(&self, py: Python<'py>, with_minimum: bool) -> PyResult<Bound<'py, PyAny>> {
        let job = self.job(py)?;
        let stats = py.detach(|| {
            serde_json::to_value(if with_minimum {
                job.stats()
            } else {
                job.counts()
            })
        });
        log::drain(py)?;
        to_python(py, &stats.unwrap_or_default())
    }

    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        let job = self.job(py)?;
        Ok(py.detach(|| job.stats().to_string()))
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let job = self.job(py)?;
        let saved = py.detach(|| serde_json::to_value(job.save()));
        to_python(py, &saved.unwrap_or_default())
    }

    fn load(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let value = from_python(state, "state", 0)?;
        let job = self.job(py)?;
        let saved = serde_json::from_value::<Saved>(value.clone()).map_err(|wrong| {
            let key =
                wrong_key(&value, &job.save()).map_or_else(String::new, |key| format!("['{key}']"));
            error(
                py,
                Kind::Config,
                format!("state{key}: {wrong}; give what state_dict() returned"),
            )
        })?;
        py.detach(|| job.load(&saved))
            .map_err(|wrong| errors::job(py, &wrong))?;
        self.held().loaded = Some(saved);
        log::drain(py)
    }

    /// The staging buffer.
    fn buffer(&self, py: Python<'_>) -> PyResult<Buffer> {
        let job = self.job(py)?;
        let staging = py
            .detach(|| job.staging())
            .map_err(|wrong| errors::job(py, &wrong))?;
        let (address, len) = staging.place();
        Ok(Buffer {
            _staging: staging,
            address,
            len,
        })
    }

    /// How it may serve other ranks, as configured; `keeps`: whether it keeps anything that others could want.
    fn peers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let spec = self.job(py)?.spec();
        let settings = mesh::settings(py, &spec.config)?;
        settings.set_item("keeps", spec.keeps())?;
        Ok(settings)
    }

    /// Serves other ranks, and is served by them, from the first batch on.
    fn meet(&self, py: Python<'_>, mesh: &Mesh) -> PyResult<()> {
        let job = self.job(py)?;
        if let Some(open) = mesh.open(job.spec().config.staging.capacity_bytes) {
            job.meet(open, job.spec().config.peers.patience);
        }
        Ok(())
    }

    /// Serves other ranks until nobody needs this one any more, or a time is over, where the trainer has all of an epoch: no
    /// longer than configured, nor than `most_s`. Looks after signals meanwhile.
    fn linger(&self, py: Python<'_>, most_s: Option<f64>) -> PyResult<()> {
        let job = self.job(py)?;
        let (epoch, step) = job.place();
        if epoch == 0 || step > 0 {
            return Ok(());
        }
        let most = most_s.map_or(Duration::MAX, Duration::from_secs_f64);
        let deadline = Instant::now() + job.spec().config.peers.linger.min(most);
        while Instant::now() < deadline && !py.detach(|| job.linger(LINGER)) {
            log::drain(py)?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Ends the job. At the end of the program (`now`) nothing under way is waited for.
    fn close(&self, py: Python<'_>, now: bool) -> PyResult<()> {
        let job = self.job(py)?;
        py.detach(|| job.close_within(if now { Duration::ZERO } else { CLOSE_MAX }));
        log::drain(py)
    }
}

/// Where the staging buffer is. There is nothing to look at as a whole: loader threads write to it, and who got at all of
/// it could change samples that are yet to be kept.
#[pyclass(frozen, module = "foresee")]
pub(crate) struct Buffer {
    /// Keeps it mapped.
    _staging: StagingMemory,
    address: usize,
    len: usize,
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Where it begins in memory.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    fn __repr__(&self) -> String {
        format!("Buffer({} bytes at {:#x})", self.len, self.address)
    }
}

/// Which value of a state is none that it can have: the one without which it could be read.
fn wrong_key(state: &Value, sound: &Saved) -> Option<String> {
    let Ok(Value::Object(sound)) = serde_json::to_value(sound) else {
        return None;
    };
    let is_wrong = |(key, value): &(String, Value)| {
        let mut mended = state.clone();
        mended[key] = value.clone();
        serde_json::from_value::<Saved>(mended).is_ok()
    };
    let had = sound
        .into_iter()
        .filter(|(key, _)| state.get(key).is_some());
    had.into_iter().find(is_wrong).map(|(key, _)| key)
}

fn shuffle(arguments: &Arguments<'_>) -> PyResult<Shuffle> {
    let seed = arguments.seed;
    if let Ok(name) = arguments.shuffle.extract::<String>() {
        return Ok(match name.as_str() {
            "feistel" => Shuffle::Feistel { seed },
            "sequential" => Shuffle::Sequential,
            _ => Shuffle::Torch { seed },
        });
    }
    let lists = arguments.shuffle.cast::<PyList>()?;
    let lists = lists
        .iter()
        .map(|list| numbers(&list))
        .collect::<PyResult<Vec<_>>>()?;
    Ok(Shuffle::Explicit(lists.into()))
}

/// The samples of one epoch's list.
fn numbers(list: &Bound<'_, PyAny>) -> PyResult<Vec<SampleId>> {
    let mut samples = Vec::with_capacity(list.len().unwrap_or(0));
    for (place, item) in list.try_iter()?.enumerate() {
        let item = item?;
        let Ok(sample) = item.extract::<u32>() else {
            let said = format!(
                "shuffle: item {place} of a list is {}; give numbers of samples, from 0",
                item.repr()?
            );
            return Err(error(list.py(), Kind::Config, said));
        };
        samples.push(SampleId(sample));
    }
    Ok(samples)
}

/// The configuration that holds, with an argument `config` as Python gives it.
pub(crate) fn config(given: &Bound<'_, PyAny>) -> PyResult<Config> {
    let py = given.py();
    let environment = Environment::of_process();
    let resolved = if given.is_none() {
        Config::resolve(Given::Nothing, &environment)
    } else if given.is_instance_of::<PyDict>() {
        let value = into_toml(from_python(given, "config", 0)?, "config");
        let toml::Value::Table(table) = value.map_err(|wrong| error(py, Kind::Config, wrong))?
        else {
            unreachable!("a dictionary is a table");
        };
        Config::resolve(Given::Table(table), &environment)
    } else {
        let path: PathBuf = given.extract()?;
        Config::resolve(Given::File(&path), &environment)
    };
    resolved
        .map(|resolved| resolved.config)
        .map_err(|wrong| errors::config(py, &wrong))
}
