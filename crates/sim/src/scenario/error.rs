//! What can be wrong with a scenario, always said in one line: place, key, problem; remedy.
//!
//! Names and values that are quoted in a message come from outside and may hold anything, so the whole line passes
//! through [`OneLine`] on its way out.

use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no scenario. `Display` is one line without a line break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The scenario's file cannot be read as text.
    #[error("{}", OneLine(format_args!("{}: {what}; {remedy}", file.display())))]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What happened.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The scenario's file is not TOML.
    #[error("{}", OneLine(format_args!("{}:{line}:{column}: not valid TOML: {what}", file.display())))]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The character in the line, from 1.
        column: usize,
        /// What was found and what was expected.
        what: String,
    },
    /// A key is unknown or missing, or its value is wrong.
    #[error("{}", OneLine(format_args!("{place}: {what}; {remedy}")))]
    Key {
        /// Where the value came from, with the key: `x.toml: job.ranks` or `--set job.ranks=0`.
        place: String,
        /// The key, as `system.tier[1].threads`.
        key: String,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
    /// An override cannot be applied at all.
    #[error("{}", OneLine(format_args!("--set {text}: {what}; {remedy}")))]
    Set {
        /// The override, as given.
        text: String,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
    /// The file of sizes (`dataset.size_mb.file`) cannot be used.
    #[error("{}", OneLine(format_args!("{}{}: {what}; {remedy}", file.display(), Line(*line))))]
    Sizes {
        /// The file.
        file: PathBuf,
        /// The line, from 1, where one is to blame.
        line: Option<u64>,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
}

impl ScenarioError {
    pub(super) fn syntax(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(text.len(), |span| span.start.min(text.len()));
        let (line, column) = position(&text.as_bytes()[..at]);
        Self::Syntax { file: file.to_owned(), line, column, what: in_our_words(error.message()).to_owned() }
    }
}

/// The parser's message, except where it speaks of its own types.
fn in_our_words(message: &str) -> &str {
    let is_overflow =
        ["value was too large", "as i128", "as u128", "overflow"].iter().any(|said| message.contains(said));
    if is_overflow { "the number is too big, at most 9223372036854775807" } else { message }
}

/// The line and the character in it, both from 1, that follow this text.
pub(super) fn position(before: &[u8]) -> (usize, usize) {
    let is_newline = |byte: &u8| *byte == b'\n';
    let line_start = before.iter().rposition(is_newline).map_or(0, |newline| newline + 1);
    (before.split(is_newline).count(), 1 + String::from_utf8_lossy(&before[line_start..]).chars().count())
}

/// What to say, and to advise, when a file cannot be read.
pub(super) fn unreadable(error: &io::Error) -> (String, &'static str) {
    match error.kind() {
        io::ErrorKind::NotFound => ("no such file".to_owned(), "check the path"),
        io::ErrorKind::IsADirectory => ("is a folder".to_owned(), "give a file"),
        io::ErrorKind::PermissionDenied => {
            ("cannot be read: permission denied".to_owned(), "allow this user to read it")
        }
        _ => (format!("cannot be read: {error}"), "check the path"),
    }
}

struct Line(Option<u64>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Shows its content with every control character and line separator escaped.
struct OneLine<T>(T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for symbol in text.chars() {
            if symbol.is_control() || matches!(symbol, '\u{2028}' | '\u{2029}') {
                write!(self.0, "{}", symbol.escape_default())?;
            } else {
                self.0.write_char(symbol)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_in_a_name_is_escaped() {
        let error = ScenarioError::Unreadable {
            file: "a\nb\u{2028}\u{85}c".into(),
            what: "no such file".to_owned(),
            remedy: "check the path",
        };
        assert_eq!(error.to_string(), "a\\nb\\u{2028}\\u{85}c: no such file; check the path");
    }

    #[test]
    fn each_way_a_file_cannot_be_read_has_its_remedy() {
        let said = |kind: io::ErrorKind| {
            let (what, remedy) = unreadable(&kind.into());
            format!("{what}; {remedy}")
        };
        assert_eq!(said(io::ErrorKind::NotFound), "no such file; check the path");
        assert_eq!(said(io::ErrorKind::IsADirectory), "is a folder; give a file");
        assert_eq!(
            said(io::ErrorKind::PermissionDenied),
            "cannot be read: permission denied; allow this user to read it"
        );
        assert_eq!(said(io::ErrorKind::TimedOut), "cannot be read: timed out; check the path");
    }
}
