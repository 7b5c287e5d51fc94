//! Reads TOML with care: a table has known keys ([`Keys`]), its values are checked as they are taken ([`Section`]), and
//! what is wrong is blamed on whoever gave it, the document or an override ([`Document`]). It knows no format: keys,
//! bounds and rules are the caller's.

mod keys;
mod section;
mod text;

pub use keys::{Key, Keys, key};
pub use section::{Document, Limits, Override, Section, as_number, kind_of, named, quoted, shown};
pub use text::{open, parse, read_text, unreadable};
