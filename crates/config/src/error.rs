//! What can be wrong with a file, an override or a variable, always said in one line: place, key, problem; remedy.
//!
//! Names and values that are quoted in a message come from outside and may hold anything, so the whole line passes
//! through [`OneLine`] on its way out.

use std::path::PathBuf;

use crate::line::OneLine;

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
        assert_eq!(
            error.to_string(),
            "a\\nb\\u{2028}\\u{85}c: no such file; check the path"
        );
    }
}
