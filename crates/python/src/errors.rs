//! Errors of the loader as exceptions of `foresee._errors`: one line each, with the cause that the system named.

use std::io;

use foresee_config::{InputError, OneLine};
use foresee_runtime::dataset::{DatasetError, FileProblem};
use foresee_runtime::job::JobError;
use foresee_runtime::source::{ReadError, ThrottleError};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// An exception class of the package.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// What no other says better.
    Foresee,
    /// A value, in an argument or in the configuration.
    Config,
    /// A value of the wrong type.
    Type,
    /// Something is wrong with the dataset.
    Dataset,
    /// Something is wrong with one sample.
    Sample,
    /// Something is wrong with a cache folder.
    Cache,
}

impl Kind {
    fn class(self, py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 6] = [const { PyOnceLock::new() }; 6];
        let name = match self {
            Self::Foresee => "ForeseeError",
            Self::Config => "ConfigError",
            Self::Type => "ArgumentTypeError",
            Self::Dataset => "DatasetError",
            Self::Sample => "SampleError",
            Self::Cache => "CacheError",
        };
        CLASSES[self as usize].import(py, "foresee._errors", name)
    }
}

/// An exception of this kind.
pub(crate) fn error(py: Python<'_>, kind: Kind, said: impl Into<String>) -> PyErr {
    match kind.class(py) {
        Ok(class) => PyErr::from_type(class.clone(), (one_line(&said.into()),)),
        Err(missing) => missing,
    }
}

/// The class of errors about one sample.
pub(crate) fn sample_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    Kind::Sample.class(py)
}

/// What messages that Python makes quote of names, made harmless.
#[pyfunction]
pub(crate) fn one_line(text: &str) -> String {
    OneLine(text).to_string()
}

/// What the system said, as Python would say it.
fn system(py: Python<'_>, cause: &io::Error, path: Option<&str>) -> PyErr {
    let Some(number) = cause.raw_os_error() else {
        return PyOSError::new_err(cause.to_string());
    };
    let said = py
        .import("os")
        .and_then(|os| os.call_method1("strerror", (number,))?.extract::<String>());
    // With a number, OSError makes the class that fits it.
    PyOSError::new_err((
        number,
        said.unwrap_or_else(|_| cause.to_string()),
        path.map(str::to_owned),
    ))
}

fn caused(py: Python<'_>, error: PyErr, cause: Option<PyErr>) -> PyErr {
    error.set_cause(py, cause);
    error
}

/// What is wrong with a job.
pub(crate) fn job(py: Python<'_>, wrong: &JobError) -> PyErr {
    let said = wrong.to_string();
    match wrong {
        JobError::Sample {
            sample,
            name,
            cause,
            ..
        } => {
            let inner = match &**cause {
                ReadError::Io(cause) => Some(system(py, cause, Some(name))),
                ReadError::Empty
                | ReadError::Torn
                | ReadError::Shrank { .. }
                | ReadError::Grew { .. }
                | ReadError::Image(_) => None,
            };
            let raised = caused(py, error(py, Kind::Sample, said), inner);
            let value = raised.value(py);
            match value
                .setattr("sample", sample.0)
                .and_then(|()| value.setattr("path", name))
            {
                Ok(()) => raised,
                Err(worse) => worse,
            }
        }
        JobError::System { cause, .. } | JobError::Threads { cause } => caused(
            py,
            error(py, Kind::Foresee, said),
            Some(system(py, cause, None)),
        ),
        JobError::Disk(_) => error(py, Kind::Cache, said),
        JobError::Defect(_) => error(py, Kind::Foresee, said),
        JobError::Closed => error(py, Kind::Foresee, "the job is closed: make another one"),
        JobError::Rank { .. }
        | JobError::NoEpochs
        | JobError::SharedTier { .. }
        | JobError::SharedByNobody { .. }
        | JobError::BatchTooLarge
        | JobError::Policy(_)
        | JobError::TooLarge { .. }
        | JobError::TwoMemoryTiers { .. }
        | JobError::Memory { .. }
        | JobError::Config(_)
        | JobError::Stream(_)
        | JobError::Unsupported { .. }
        | JobError::Agreement(_)
        | JobError::Curve(_)
        | JobError::Trace { .. }
        | JobError::ThreadPlan { .. }
        | JobError::MidBatch { .. }
        | JobError::BeganWith { .. }
        | JobError::OtherJob { .. }
        | JobError::Seek { .. } => error(py, Kind::Config, said),
    }
}

/// What is wrong with a dataset.
pub(crate) fn dataset(py: Python<'_>, wrong: &DatasetError) -> PyErr {
    let inner = match wrong {
        DatasetError::Unreadable { path, cause }
        | DatasetError::Manifest { path, cause }
        | DatasetError::File {
            path,
            problem: FileProblem::Io(cause),
        } => Some(system(py, cause, Some(&path.display().to_string()))),
        _ => None,
    };
    caused(py, error(py, Kind::Dataset, wrong.to_string()), inner)
}

/// What is wrong with a configuration.
pub(crate) fn config(py: Python<'_>, wrong: &InputError) -> PyErr {
    error(py, Kind::Config, wrong.to_string())
}

/// What is wrong with an emulated storage.
pub(crate) fn throttle(py: Python<'_>, wrong: &ThrottleError) -> PyErr {
    let inner = match wrong {
        ThrottleError::Io { path, cause } => {
            Some(system(py, cause, Some(&path.display().to_string())))
        }
        _ => None,
    };
    caused(py, error(py, Kind::Config, wrong.to_string()), inner)
}

/// Not even one thread is to be had to list a dataset.
pub(crate) fn no_thread(py: Python<'_>, cause: &io::Error) -> PyErr {
    let said = format!(
        "cannot start a thread to list files: {cause}; raise the limit of processes (ulimit -u)"
    );
    caused(
        py,
        error(py, Kind::Dataset, said),
        Some(system(py, cause, None)),
    )
}

/// A file that could not be read.
pub(crate) fn file(py: Python<'_>, cause: &io::Error, path: &std::path::Path) -> PyErr {
    system(py, cause, Some(&path.display().to_string()))
}
