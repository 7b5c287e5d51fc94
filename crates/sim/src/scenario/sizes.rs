//! The sizes of a scenario's samples: fixed, drawn from the seed, or read from a file of one size in MB per line.
//!
//! Sizes are whole bytes of MB = 10^6 bytes. A drawn size depends on the seed and the sample alone, not on how many
//! samples there are.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use foresee_config::InputError;
use foresee_config::reader::{open, quoted, unreadable};
use foresee_core::catalog::Catalog;
use foresee_core::units::Bytes;

use super::normal::{Normal, SIGMAS_MAX};
use super::{Scenario, SizeSpec};

pub(super) const ALL_ZERO: &str = "all samples are of size 0";
pub(super) const ALL_ZERO_REMEDY: &str = "give larger sizes or more samples";

/// Keeps the sizes apart from whatever else is drawn from the job's seed: "sizes" in ASCII.
const SIZES_SEED: u64 = 0x0073_697A_6573;

/// A size is a short number; a longer line is something else (a device, a binary).
const LINE_BYTES_MAX: u64 = 4096;

const LINE_REMEDY: &str = "give one size in MB per line, 0 or more";

impl Scenario {
    /// The catalog of the dataset, the same for the same seed on every machine.
    pub fn sizes(&self) -> Result<Catalog, InputError> {
        let mut sizes: Vec<u64> = Vec::new();
        if sizes
            .try_reserve_exact(self.dataset.samples as usize)
            .is_err()
        {
            let key = "dataset.samples";
            let what = format!(
                "no memory for the sizes of {} samples",
                self.dataset.samples
            );
            let remedy = "lower the number of samples".to_owned();
            return Err(InputError::Wrong {
                place: format!("scenario {}: {key}", self.name),
                what,
                remedy,
            });
        }
        if let SizeSpec::File(path) = &self.dataset.size_mb {
            sizes = from_file(path, self.dataset.samples)?;
        } else {
            sizes.extend(generated(self));
        }
        let (what, remedy) = match sizes
            .iter()
            .try_fold(0u64, |total, &size| total.checked_add(size))
        {
            Some(total) if total > 0 => return Ok(Catalog::new(sizes)),
            Some(_) => (ALL_ZERO, ALL_ZERO_REMEDY),
            None => (
                "the dataset is larger than 2^64 bytes",
                "lower the sizes or the number of samples",
            ),
        };
        let what = what.to_owned();
        let remedy = remedy.to_owned();
        Err(if let SizeSpec::File(path) = &self.dataset.size_mb {
            InputError::Wrong {
                place: path.display().to_string(),
                what,
                remedy,
            }
        } else {
            let key = "dataset.size_mb";
            InputError::Wrong {
                place: format!("scenario {}: {key}", self.name),
                what,
                remedy,
            }
        })
    }
}

/// No sample is larger than this; files are not looked into.
pub(super) fn largest_mb(spec: &SizeSpec) -> f64 {
    match *spec {
        SizeSpec::Normal { mean, stddev } => mean + SIGMAS_MAX * stddev,
        SizeSpec::Fixed(size) => size,
        SizeSpec::File(_) => 0.0,
    }
}

/// Whether the dataset, where it is not a file, is empty of bytes. With a mean of at least a byte every other draw
/// is more than nothing, so this looks at very few.
pub(super) fn are_all_zero(scenario: &Scenario) -> bool {
    !matches!(scenario.dataset.size_mb, SizeSpec::File(_))
        && generated(scenario).all(|size| size == 0)
}

/// Sizes that are not from a file, in bytes.
fn generated(scenario: &Scenario) -> impl Iterator<Item = u64> + use<> {
    let (mean, stddev) = match scenario.dataset.size_mb {
        SizeSpec::Normal { mean, stddev } => (mean, stddev),
        SizeSpec::Fixed(size) => (size, 0.0),
        SizeSpec::File(_) => (0.0, 0.0),
    };
    Normal::new(scenario.job.seed ^ SIZES_SEED)
        .take(scenario.dataset.samples as usize)
        .map(move |draw| Bytes::from_mb(mean + stddev * draw).0)
}

fn from_file(path: &Path, samples: u32) -> Result<Vec<u64>, InputError> {
    let fail = |line: Option<u64>, what: String, remedy: String| {
        let line = line.map_or_else(String::new, |line| format!(":{line}"));
        InputError::Wrong {
            place: format!("{}{line}", path.display()),
            what,
            remedy,
        }
    };
    let fail_read = |error: std::io::Error| {
        let (what, remedy) = unreadable(&error);
        fail(None, what, remedy.to_owned())
    };
    let mut lines = BufReader::new(open(path).map_err(fail_read)?);
    let mut sizes = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if lines
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .map_err(fail_read)?
            == 0
        {
            break;
        }
        let Some(size) =
            size_in(&line).map_err(|what| fail(Some(number), what, LINE_REMEDY.to_owned()))?
        else {
            continue;
        };
        if sizes.len() == samples as usize {
            let what = format!("more sizes than dataset.samples = {samples}");
            return Err(fail(
                Some(number),
                what,
                "give as many sizes as samples".to_owned(),
            ));
        }
        sizes.push(size);
    }
    if sizes.len() < samples as usize {
        let what = format!("{} sizes, but dataset.samples = {samples}", sizes.len());
        return Err(fail(None, what, "give as many sizes as samples".to_owned()));
    }
    Ok(sizes)
}

/// The size in a line, if it says one; what is wrong with it otherwise.
fn size_in(line: &[u8]) -> Result<Option<u64>, String> {
    if line.len() as u64 == LINE_BYTES_MAX {
        return Err(format!("the line is longer than {LINE_BYTES_MAX} bytes"));
    }
    let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
    let text = line
        .trim_start_matches('\u{feff}')
        .split('#')
        .next()
        .unwrap_or_default()
        .trim();
    if text.is_empty() {
        return Ok(None);
    }
    let size_mb: f64 = text
        .parse()
        .map_err(|_| format!("{} is not a number", quoted(text)))?;
    if !size_mb.is_finite() {
        return Err(format!("{text} is not finite"));
    }
    if size_mb < 0.0 {
        return Err(format!("{text} is negative"));
    }
    let bytes = Bytes::from_mb(size_mb);
    if bytes.0 == u64::MAX {
        Err(format!("{text} is too big"))
    } else {
        Ok(Some(bytes.0))
    }
}
