//! What the loader has to say. Warnings and errors wait here until a call from Python picks them up for the logger
//! `foresee`, so that no loader thread ever waits for the interpreter; the rest goes to stderr where `RUST_LOG` asks.
//!
//! The lock is never waited for without end: in a forked child it may be held by a thread that is not there.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_config::OneLine;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Messages that may wait: enough for a burst, few enough for a program that never looks.
const WAITING_MAX: usize = 256;

/// Tries to get the lock before a message is given up.
const TRIES: usize = 1000;

static WAITING: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());
static ANY: AtomicBool = AtomicBool::new(false);

struct Queue;

impl<S: Subscriber> Layer<S> for Queue {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        for _ in 0..TRIES {
            if let Ok(mut waiting) = WAITING.try_lock() {
                waiting.truncate(WAITING_MAX - 1);
                waiting.push_back((*event.metadata().level(), OneLine(&text.0).to_string()));
                ANY.store(true, Ordering::Release);
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// The message, and the fields beside it.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Listens to the loader from now on; `filter` is what `RUST_LOG` says.
#[pyfunction]
#[pyo3(signature = (filter=None))]
pub(crate) fn set_up_logging(filter: Option<&str>) {
    let to_stderr = filter
        .and_then(|filter| filter.parse::<Targets>().ok())
        .map(|targets| {
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false)
                .with_filter(targets)
        });
    let queue = Queue.with_filter(LevelFilter::WARN);
    // Somebody else who listens was first, and stays.
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(queue).with(to_stderr),
    );
}

/// Hands over what waits.
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    if !ANY.load(Ordering::Acquire) {
        return Ok(());
    }
    let messages = match WAITING.try_lock() {
        Ok(mut waiting) => {
            ANY.store(false, Ordering::Release);
            std::mem::take(&mut *waiting)
        }
        Err(_) => return Ok(()),
    };
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("foresee",))?;
    for (level, message) in messages {
        let method = if level == Level::ERROR {
            "error"
        } else {
            "warning"
        };
        logger.call_method1(method, ("%s", message))?;
    }
    Ok(())
}
