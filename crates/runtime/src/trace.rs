//! What happened, line by line, in a file: one JSON object a line, in the order of time. Lines are buffered and written
//! out when the buffer is full; the file is whole after the job is closed.
//!
//! Each job has a file of its own: ranks by their number, and a job that finds its file taken by another one that runs takes
//! the next name. A trace that cannot be written is no reason to stop training, but said, and remembered for who asks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_config::shown;
use foresee_core::engine::Read;
use foresee_core::model::Origin;
use foresee_core::units::Seconds;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// More jobs than ever run at once.
const NAMES_MAX: u32 = 1000;

/// Where a rank's trace goes: `trace.jsonl` is `trace.rank3.jsonl` for rank 3 of several. What is no file, a terminal say,
/// is shared.
pub fn path_of(path: &Path, rank: u32, world: u32) -> PathBuf {
    if world < 2 || is_special(path) {
        path.to_owned()
    } else {
        marked(path, &format!("rank{rank}"))
    }
}

/// With a word before the ending of its name.
fn marked(path: &Path, word: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(word);
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A trace that is being written.
pub(crate) struct Trace {
    began: Instant,
    path: PathBuf,
    out: Mutex<Out>,
}

struct Out {
    /// Until the end, or the first failure.
    file: Option<BufWriter<File>>,
    /// The process that locked the file: a fork of it inherits the file, but must not unlock it.
    holder: u32,
    problem: Option<String>,
}

impl Trace {
    /// A new file; one that is there is written over, unless a job writes to it: then this one gets the next name.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (file, path) = open_own(path)?;
        let holder = std::process::id();
        let out = Out {
            file: Some(BufWriter::new(file)),
            holder,
            problem: None,
        };
        Ok(Self {
            began: Instant::now(),
            path,
            out: Mutex::new(out),
        })
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

    /// The job is over: nothing more is written, and others may have the name. What went wrong, if anything did.
    pub(crate) fn end(&self, what: &Value) -> Option<String> {
        self.line(json!({ "event": "end", "end": what }));
        let mut out = self.out();
        if let Some(mut writer) = out.file.take() {
            let flushed = writer
                .flush()
                .and_then(|()| self.check_place(writer.get_ref()));
            out.unlock(&writer);
            drop(out);
            self.note(flushed);
            out = self.out();
        }
        out.problem.clone()
    }

    fn line(&self, mut value: Value) {
        value["t_s"] = json!(self.began.elapsed().as_secs_f64());
        let mut out = self.out();
        let Some(file) = &mut out.file else { return };
        let written = serde_json::to_writer(&mut *file, &value).map_err(io::Error::from);
        let written = written.and_then(|()| file.write_all(b"\n"));
        drop(out);
        self.note(written);
    }

    /// Says what went wrong, once, and writes no more.
    fn note(&self, written: io::Result<()>) {
        let Err(cause) = written else { return };
        let mut out = self.out();
        if out.problem.is_some() {
            return;
        }
        let said = format!(
            "trace {}: {cause}; what happened from here on is not in it",
            shown(&self.path)
        );
        tracing::warn!("{said}");
        out.problem = Some(said);
        if let Some(writer) = out.file.take() {
            out.unlock(&writer);
            // What it still has cannot be written either.
            let (file, _) = writer.into_parts();
            drop(file);
        }
    }

    /// Whether the name still leads to what was written.
    fn check_place(&self, file: &File) -> io::Result<()> {
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        let named = fs::metadata(&self.path).map(place);
        if named.ok() == Some(place(file.metadata()?)) {
            return Ok(());
        }
        Err(io::Error::other(
            "it was removed or replaced while it was written",
        ))
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    /// Closing alone would not do: a process that was forked off has the file open, too.
    fn unlock(&self, writer: &BufWriter<File>) {
        if self.holder == std::process::id() {
            let _ = flock(writer.get_ref(), FlockOperation::Unlock);
        }
    }
}

/// The file, or the next one that no job writes to.
fn open_own(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    if is_special(path) {
        return Ok((options.open(path)?, path.to_owned()));
    }
    for number in 0..NAMES_MAX {
        let tried = if number == 0 {
            path.to_owned()
        } else {
            marked(path, &number.to_string())
        };
        let file = options.open(&tried)?;
        // On a storage without locks nothing is said to be taken.
        if flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
        {
            continue;
        }
        file.set_len(0)?;
        if number > 0 {
            let wanted = shown(path);
            let tried = shown(&tried);
            tracing::warn!("trace {wanted}: another job is writing it; this one goes to {tried}");
        }
        return Ok((file, tried));
    }
    Err(io::Error::other(format!(
        "{NAMES_MAX} jobs are writing to files of this name"
    )))
}

/// What people call an origin.
pub(crate) fn origin_name(origin: Origin) -> String {
    match origin {
        Origin::Source => "source".into(),
        Origin::Peer { .. } => "peer".into(),
        Origin::HostPeer { .. } => "host_peer".into(),
        Origin::Tier(tier) => format!("tier{tier}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> usize {
        fs::read_to_string(path).unwrap().lines().count()
    }

    #[test]
    fn each_of_two_that_run_at_once_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let first = Trace::create(&path).unwrap();
        let second = Trace::create(&path).unwrap();
        first.batch(0, 0, 1, 0.0);
        for step in 0..3 {
            second.batch(0, step, 1, 0.0);
        }
        assert_eq!(
            (second.end(&json!({})), first.end(&json!({}))),
            (None, None)
        );
        assert_eq!(
            (lines(&path), lines(&folder.path().join("trace.1.jsonl"))),
            (2, 4)
        );
        let third = Trace::create(&path).unwrap();
        assert_eq!(third.end(&json!({})), None);
        assert_eq!(lines(&path), 1, "one that is over is written over");
    }

    #[test]
    fn ranks_have_files_of_their_own() {
        assert_eq!(
            path_of(Path::new("a/trace.jsonl"), 3, 8),
            Path::new("a/trace.rank3.jsonl")
        );
        assert_eq!(
            path_of(Path::new("a/trace"), 0, 2),
            Path::new("a/trace.rank0")
        );
        assert_eq!(
            path_of(Path::new("a/trace.jsonl"), 0, 1),
            Path::new("a/trace.jsonl")
        );
        assert_eq!(
            path_of(Path::new("/dev/null"), 3, 8),
            Path::new("/dev/null")
        );
    }

    #[test]
    fn what_cannot_be_written_or_is_removed_is_remembered() {
        let full = Trace::create(Path::new("/dev/full")).unwrap();
        for step in 0..10_000 {
            full.batch(0, step, 1, 0.0);
        }
        let said = full.end(&json!({})).unwrap();
        assert!(
            said.starts_with("trace /dev/full: No space left on device"),
            "{said}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let removed = Trace::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(
            removed
                .end(&json!({}))
                .unwrap()
                .contains("it was removed or replaced")
        );
    }
}
