//! Whether a folder or file is this user's alone. Samples and catalogs come from such ones only, or whoever else may write
//! there decides what is trained on; those who trust others say so in the configuration.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::process::geteuid;

/// Why something is not this user's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Somebody else owns it.
    Owner {
        /// Who.
        user: u32,
        /// Who runs this.
        here: u32,
    },
    /// Its group or everybody may write to it.
    Open {
        /// Its permissions.
        mode: u32,
    },
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { user, here } => {
                write!(f, "belongs to user {user}, and this is user {here}")
            }
            Self::Open { mode } => write!(f, "can be written by others (mode {mode:o})"),
        }
    }
}

/// Nothing where it is this user's alone. Of the open descriptor where there is one: a name may lead elsewhere later.
pub(crate) fn objection(found: &Metadata) -> Option<Foreign> {
    let user = found.uid();
    let here = geteuid().as_raw();
    if user != here {
        return Some(Foreign::Owner { user, here });
    }
    let mode = found.mode() & 0o7777;
    (mode & 0o022 != 0).then_some(Foreign::Open { mode })
}
