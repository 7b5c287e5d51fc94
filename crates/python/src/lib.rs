//! The native module of the Python package, `foresee._native`: conversions between Python and the loader, nothing else.
//! What Python people see (arguments with their checks, ranks, seeds, exits) is in `python/foresee`.
//!
//! - `job`: a running job; `mesh`: its way to other ranks; `iterate`: iterators that lose nothing; `batch`: what it hands over; `array`, `tensor`: views of it without a copy.
//! - `view`, `dlpack`: the buffer protocol and `DLPack`, the only places with `unsafe`.
//! - `dataset`, `throttle`, `transforms`: what a job is made from; `convert`: plain Python values; `errors`: exceptions; `log`.
//!
//! No thread of the loader ever runs Python: whatever waits gives the interpreter up, and looks after signals.

mod array;
mod batch;
mod convert;
mod dataset;
mod dlpack;
mod errors;
mod iterate;
mod job;
mod log;
mod mesh;
mod tensor;
mod throttle;
mod transforms;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use foresee_runtime::dataset::{FILES_ALONE_MAX, MANIFEST_ALONE_BYTES_MAX, PATIENCE_MAX};
use pyo3::prelude::*;

/// How long a call waits before it looks after signals: short enough for Ctrl-C to feel prompt.
const PATIENCE: Duration = Duration::from_millis(50);

/// Runs the `foresee` command, which `program` starts again, and whose library is `library`; returns its exit code.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "made for the call")]
fn run_command(
    py: Python<'_>,
    program: Vec<OsString>,
    library: PathBuf,
    arguments: Vec<OsString>,
) -> u8 {
    py.detach(|| foresee_cli::status_of(program, Some(&library), arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("POLICIES", foresee_runtime::job::policies())?;
    module.add("FILES_ALONE_MAX", FILES_ALONE_MAX)?;
    module.add("MANIFEST_ALONE_BYTES_MAX", MANIFEST_ALONE_BYTES_MAX)?;
    module.add("LISTING_PATIENCE_S", PATIENCE_MAX.as_secs_f64())?;
    module.add_class::<array::Array>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batch::Sample>()?;
    module.add_class::<batch::Samples>()?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<iterate::Batches>()?;
    module.add_class::<iterate::EpochBatches>()?;
    module.add_class::<iterate::Handed>()?;
    module.add_class::<iterate::Handover>()?;
    module.add_class::<iterate::Watch>()?;
    module.add_class::<job::Buffer>()?;
    module.add_class::<job::Job>()?;
    module.add_class::<mesh::Mesh>()?;
    module.add_class::<mesh::Mpi>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<throttle::Throttle>()?;
    module.add_function(wrap_pyfunction!(transforms::check_transforms, module)?)?;
    module.add_function(wrap_pyfunction!(transforms::sample_seed, module)?)?;
    module.add_function(wrap_pyfunction!(iterate::call_and_restore, module)?)?;
    module.add_function(wrap_pyfunction!(iterate::end_program, module)?)?;
    module.add_function(wrap_pyfunction!(iterate::sleep_if_left_behind, module)?)?;
    module.add_function(wrap_pyfunction!(mesh::peer_settings, module)?)?;
    module.add_function(wrap_pyfunction!(log::set_up_logging, module)?)?;
    module.add_function(wrap_pyfunction!(errors::one_line, module)?)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)
}
