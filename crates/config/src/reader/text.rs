//! Text files from people: opened, read within bounds and parsed as TOML, or one line that says why not.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::Table;

use crate::error::InputError;

/// A file that people write is a page of text; what is longer than this is something else (a device, a dataset).
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// The text of a file; `kind` says in messages what file was wanted.
pub fn read_text(path: &Path, kind: &str) -> Result<String, InputError> {
    let fail = |what: String, remedy: String| InputError::Unreadable {
        file: path.to_owned(),
        what,
        remedy,
    };
    let mut bytes = Vec::new();
    open(path)
        .and_then(|file| file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(&error))
        .map_err(|(what, remedy)| fail(what, remedy.to_owned()))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(fail(
            format!("longer than {} MiB", TEXT_BYTES_MAX >> 20),
            format!("give a {kind} file"),
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (line, column) = position(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        fail(
            format!("line {line}, column {column} is not UTF-8"),
            "save the file as UTF-8 text".to_owned(),
        )
    })
}

/// The TOML in the text of `file`.
pub fn parse(file: &Path, text: &str) -> Result<Table, InputError> {
    text.parse().map_err(|error: toml::de::Error| {
        let at = error
            .span()
            .map_or(text.len(), |span| span.start.min(text.len()));
        let (line, column) = position(&text.as_bytes()[..at]);
        InputError::Syntax {
            file: file.to_owned(),
            line,
            column,
            what: in_our_words(error.message()).to_owned(),
        }
    })
}

/// Opens a file for reading; a folder is an error already here, on every platform.
pub fn open(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    File::open(path)
}

/// The parser's message, except where it speaks of its own types.
fn in_our_words(message: &str) -> &str {
    let is_overflow = ["value was too large", "as i128", "as u128", "overflow"]
        .iter()
        .any(|said| message.contains(said));
    if is_overflow {
        "the number is too big, at most 9223372036854775807"
    } else {
        message
    }
}

/// The line and the character in it, both from 1, that follow this text.
fn position(before: &[u8]) -> (usize, usize) {
    let is_newline = |byte: &u8| *byte == b'\n';
    let line_start = before
        .iter()
        .rposition(is_newline)
        .map_or(0, |newline| newline + 1);
    (
        before.split(is_newline).count(),
        1 + String::from_utf8_lossy(&before[line_start..])
            .chars()
            .count(),
    )
}

/// What to say, and to advise, when a file cannot be read.
pub fn unreadable(error: &io::Error) -> (String, &'static str) {
    match error.kind() {
        io::ErrorKind::NotFound => ("no such file".to_owned(), "check the path"),
        io::ErrorKind::IsADirectory => ("is a folder".to_owned(), "give a file"),
        io::ErrorKind::PermissionDenied => (
            "cannot be read: permission denied".to_owned(),
            "allow this user to read it",
        ),
        _ => (format!("cannot be read: {error}"), "check the path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_a_file_cannot_be_read_has_its_remedy() {
        let said = |kind: io::ErrorKind| {
            let (what, remedy) = unreadable(&kind.into());
            format!("{what}; {remedy}")
        };
        assert_eq!(
            said(io::ErrorKind::NotFound),
            "no such file; check the path"
        );
        assert_eq!(
            said(io::ErrorKind::IsADirectory),
            "is a folder; give a file"
        );
        assert_eq!(
            said(io::ErrorKind::PermissionDenied),
            "cannot be read: permission denied; allow this user to read it"
        );
        assert_eq!(
            said(io::ErrorKind::TimedOut),
            "cannot be read: timed out; check the path"
        );
    }
}
