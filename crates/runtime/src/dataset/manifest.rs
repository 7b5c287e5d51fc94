//! Reads a manifest: a text file with one sample a line, `path<TAB>label`, `path,label` (split at the last comma) or
//! just `path`. Blank lines and lines that begin with `#` are skipped. Paths are relative to the manifest's folder.
//!
//! People name a file that is something else: an archive, a device, a log. Nothing is read beyond what shows that.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use foresee_config::OneLine;
use rustix::fs::OFlags;

use super::error::DatasetError;

/// How much is read at a time, and the longest line: sixteen times as long as a path can be.
const CHUNK_BYTES: usize = 1 << 16;

/// What a manifest lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) paths: Vec<PathBuf>,
    /// All samples have one, or none has.
    pub(super) labels: Option<Vec<i64>>,
    /// The line of each sample, from 1.
    pub(super) lines: Vec<usize>,
}

/// A line that is no sample.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    /// From 1.
    pub(super) line: usize,
    pub(super) problem: String,
}

/// The text of a manifest.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DatasetError> {
    let unreadable = |cause: io::Error| DatasetError::Manifest {
        path: path.into(),
        cause,
    };
    let mut file = open(path)?;
    let mut text = Vec::new();
    let mut line = Line { number: 1, len: 0 };
    loop {
        let start = text.len();
        if file
            .by_ref()
            .take(CHUNK_BYTES as u64)
            .read_to_end(&mut text)
            .map_err(unreadable)?
            == 0
        {
            return Ok(text);
        }
        line.follow(&text[start..])
            .map_err(|why| not_a_manifest(path, why))?;
        if start == 0 && text.len() == CHUNK_BYTES {
            look_at_first(path, &text)?;
        }
    }
}

fn not_a_manifest(path: &Path, why: String) -> DatasetError {
    DatasetError::NotAManifest {
        path: path.into(),
        why,
    }
}

/// Opens a file, and nothing that has no end, or that waits for somebody to write.
fn open(path: &Path) -> Result<File, DatasetError> {
    let unreadable = |cause: io::Error| DatasetError::Manifest {
        path: path.into(),
        cause,
    };
    let options = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .clone();
    let file = options.open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(not_a_manifest(path, "it is not a regular file".to_owned()));
    }
    Ok(file)
}

/// A long file is not read to its end to find that its first line names no file.
fn look_at_first(path: &Path, head: &[u8]) -> Result<(), DatasetError> {
    let line_error = |line, problem| DatasetError::Line {
        path: path.into(),
        line,
        problem,
    };
    let whole_lines = head
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let listed =
        parse(&head[..whole_lines], folder).map_err(|bad| line_error(bad.line, bad.problem))?;
    let Some((first, line)) = listed.paths.into_iter().zip(listed.lines).next() else {
        return Ok(());
    };
    match fs::metadata(&first) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let problem = DatasetError::File {
                path: first,
                problem: cause.into(),
            };
            Err(line_error(line, problem.to_string()))
        }
    }
}

/// The line that is being read.
struct Line {
    /// From 1.
    number: usize,
    /// Bytes of it so far.
    len: usize,
}

impl Line {
    /// Goes on with more text, or says why it is none.
    fn follow(&mut self, more: &[u8]) -> Result<(), String> {
        if more.contains(&0) {
            return Err("it is not text".to_owned());
        }
        for (index, part) in more.split(|&byte| byte == b'\n').enumerate() {
            if index > 0 {
                *self = Self {
                    number: self.number + 1,
                    len: 0,
                };
            }
            self.len += part.len();
            if self.len > CHUNK_BYTES {
                let number = self.number;
                return Err(format!(
                    "line {number} is longer than {CHUNK_BYTES} bytes, so it is not a list of paths"
                ));
            }
        }
        Ok(())
    }
}

/// Reads all lines of `text`.
pub(super) fn parse(text: &[u8], folder: &Path) -> Result<Listed, BadLine> {
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    let mut paths = Vec::new();
    let mut labels = Vec::new();
    let mut lines = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() || line.starts_with(b"#") {
            continue;
        }
        let bad = |problem| BadLine {
            line: index + 1,
            problem,
        };
        let (path, label) = split(line).map_err(bad)?;
        if !paths.is_empty() && label.is_none() != labels.is_empty() {
            return Err(bad(mixed(label, lines[0])));
        }
        paths.push(folder.join(OsStr::from_bytes(path)));
        labels.extend(label);
        lines.push(index + 1);
    }
    Ok(Listed {
        paths,
        labels: (!labels.is_empty()).then_some(labels),
        lines,
    })
}

fn mixed(label: Option<i64>, first_line: usize) -> String {
    let (here, there) = if label.is_some() {
        ("a label", "has none")
    } else {
        ("no label", "has one")
    };
    format!("{here}, but line {first_line} {there}; give all lines one, or none")
}

/// A path and its label, where there is one.
fn split(line: &[u8]) -> Result<(&[u8], Option<i64>), String> {
    let last = |wanted: u8| line.iter().rposition(|&byte| byte == wanted);
    let Some(at) = last(b'\t').or_else(|| last(b',')) else {
        return Ok((line, None));
    };
    let path = &line[..at];
    let label = line[at + 1..].trim_ascii();
    if path.is_empty() {
        return Err("no path before the label; write path<TAB>label".to_owned());
    }
    let number = str::from_utf8(label)
        .ok()
        .and_then(|label| label.parse().ok());
    let wrong = || {
        let label = OneLine(String::from_utf8_lossy(label));
        format!("the label `{label}` is no whole number; write path<TAB>label or path,label")
    };
    number.map(|number| (path, Some(number))).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Listed {
        parse(text.as_bytes(), Path::new("/m")).unwrap()
    }

    fn refused(text: &str) -> (usize, String) {
        let BadLine { line, problem } = parse(text.as_bytes(), Path::new("/m")).unwrap_err();
        (line, problem)
    }

    #[test]
    fn reads_tabs_commas_and_plain_paths() {
        let tabs = parsed("a.jpg\t1\n/b,c.jpg\t-2\n");
        assert_eq!(tabs.paths, ["/m/a.jpg", "/b,c.jpg"].map(PathBuf::from));
        assert_eq!(tabs.labels, Some(vec![1, -2]));
        let commas = parsed("a,b.jpg,3\r\nc d.jpg, 4");
        assert_eq!(
            commas.paths,
            ["/m/a,b.jpg", "/m/c d.jpg"].map(PathBuf::from)
        );
        assert_eq!(commas.labels, Some(vec![3, 4]));
        assert_eq!(parsed("a.jpg\nb.jpg").labels, None);
    }

    #[test]
    fn skips_blank_lines_and_comments_but_counts_them() {
        let listed = parsed("\u{feff}# all\n\na.jpg\n  \nb.jpg\n\n");
        assert_eq!(listed.lines, [3, 5]);
    }

    #[test]
    fn says_which_line_is_wrong() {
        let (line, problem) = refused("a,1\n\nb,cat\n");
        assert_eq!(line, 3);
        assert!(problem.contains("`cat` is no whole number"), "{problem}");
        assert_eq!(refused("a,1\n,2").0, 2);
        assert!(
            refused("a,1\nb")
                .1
                .starts_with("no label, but line 1 has one")
        );
        assert!(
            refused("a\nb,1")
                .1
                .starts_with("a label, but line 1 has none")
        );
    }
}
