//! What happened, line by line, in a file: one JSON object a line, in the order of time. Lines are buffered and written
//! out when the buffer is full; the file is whole after the job is closed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use foresee_core::engine::Read;
use foresee_core::model::Origin;
use foresee_core::units::Seconds;
use serde_json::{Value, json};

/// A trace that is being written.
pub(crate) struct Trace {
    began: Instant,
    out: Mutex<BufWriter<File>>,
}

impl Trace {
    /// A new file; one that is there is written over.
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        Ok(Self { began: Instant::now(), out: Mutex::new(BufWriter::new(File::create(path)?)) })
    }

    /// A sample was read.
    pub(crate) fn read(&self, read: &Read, origin: Origin, took: Seconds) {
        let keep = read.keep.map(|tier| tier.0);
        self.line(json!({
            "event": "read", "sample": read.sample.0, "bytes": read.bytes.0, "origin": origin_name(origin),
            "took_s": took.0, "keep_tier": keep,
        }));
    }

    /// A batch was handed over.
    pub(crate) fn batch(&self, epoch: u32, step: u32, samples: usize, stall_s: f64) {
        self.line(json!({ "event": "batch", "epoch": epoch, "step": step, "samples": samples, "stall_s": stall_s }));
    }

    /// Something else, once.
    pub(crate) fn note(&self, event: &str, what: &Value) {
        self.line(json!({ "event": event, event: what }));
        let _ = self.out().flush();
    }

    /// A trace that cannot be written is no reason to stop training.
    fn line(&self, mut value: Value) {
        value["t_s"] = json!(self.began.elapsed().as_secs_f64());
        let mut out = self.out();
        let _ = serde_json::to_writer(&mut *out, &value);
        let _ = out.write_all(b"\n");
    }

    fn out(&self) -> std::sync::MutexGuard<'_, BufWriter<File>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What people call an origin.
pub(crate) fn origin_name(origin: Origin) -> String {
    match origin {
        Origin::Source => "source".into(),
        Origin::Peer(_) => "peer".into(),
        Origin::HostPeer(_) => "host_peer".into(),
        Origin::Tier(tier) => format!("tier{tier}"),
    }
}
