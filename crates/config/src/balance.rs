//! The table `[balance]`: how threads are shared among the ranks of a host.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::InputError;
use crate::peers::{file, wait};
use crate::reader::{Keys, Section, key};

pub(crate) const BALANCE: Keys = Keys {
    place: "in [balance]",
    all: &[
        key(
            "every",
            r#""200 ms""#,
            "how often threads of a host are planned anew",
        ),
        key(
            "record",
            r#""threads.txt""#,
            "the file that the plan of threads is written to",
        ),
        key(
            "replay",
            r#""threads.txt""#,
            "the file with the plan of threads to follow",
        ),
    ],
};

/// Threads that were moved are to be of use before they are moved again.
const EVERY: Duration = Duration::from_millis(200);

/// How threads are shared among the ranks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// From one plan to the next.
    pub every: Duration,
    /// Where the plan is written at the end of a job; none: nowhere.
    pub record: Option<PathBuf>,
    /// The plan of an earlier job, to be followed; none: plans are made.
    pub replay: Option<PathBuf>,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            every: EVERY,
            record: None,
            replay: None,
        }
    }
}

impl Balance {
    pub(crate) fn read(section: &Section<'_>) -> Result<Self, InputError> {
        Ok(Self {
            every: wait(section, "every", EVERY)?,
            record: file(section, "record")?,
            replay: file(section, "replay")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Given};

    fn balance(text: &str, variables: &[(&str, &str)]) -> Result<Balance, String> {
        let environment = variables.iter().copied().collect();
        Config::resolve(Given::Table(text.parse().unwrap()), &environment)
            .map(|resolved| resolved.config.balance)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read_and_variables_win() {
        let text = "[balance]\nevery = \"1 s\"\nrecord = \"a\"\nreplay = \"b\"";
        let expected = Balance {
            every: Duration::from_secs(1),
            record: Some("a".into()),
            replay: Some("b".into()),
        };
        assert_eq!(balance(text, &[]), Ok(expected));
        let given = [
            ("FORESEE_BALANCE_EVERY", "200 ms"),
            ("FORESEE_BALANCE_RECORD", ""),
            ("FORESEE_BALANCE_REPLAY", ""),
        ];
        assert_eq!(balance(text, &given), Ok(Balance::default()));
        assert_eq!(balance("", &[]), Ok(Balance::default()));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let said = balance("[balance]\nevery = \"often\"", &[]).unwrap_err();
        assert!(
            said.contains("balance.every") && said.contains("is not a time"),
            "{said}"
        );
        let said = balance("[balance]\nrecords = \"a\"", &[]).unwrap_err();
        assert!(said.contains("did you mean balance.record?"), "{said}");
    }
}
