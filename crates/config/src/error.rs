//! What can be wrong with a file, an override or a variable, always said in one line: place, key, problem; remedy.
//!
//! Names and values that are quoted in a message come from outside and may hold anything, so the whole line passes
//! through [`OneLine`] on its way out.

use std::fmt::{self, Write};
use std::path::PathBuf;

/// What is wrong with what was given. `Display` is one line without a line break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The file cannot be read as text.
    #[error("{}", OneLine(format_args!("{}: {what}; {remedy}", file.display())))]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What happened.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The file is not TOML.
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
    /// A key is unknown or missing, or a value is wrong.
    #[error("{}", OneLine(format_args!("{place}: {what}; {remedy}")))]
    Wrong {
        /// Who gave it, with the key: `x.toml: job.ranks` or `--set job.ranks=0`.
        place: String,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
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
        let error = InputError::Unreadable {
            file: "a\nb\u{2028}\u{85}c".into(),
            what: "no such file".to_owned(),
            remedy: "check the path".to_owned(),
        };
        assert_eq!(error.to_string(), "a\\nb\\u{2028}\\u{85}c: no such file; check the path");
    }
}
