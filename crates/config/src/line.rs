//! Text from outside in a message: names of files may hold anything, line breaks and what commands a terminal among it.
//! Whatever quotes them shows them through [`OneLine`] or [`shown`].

use std::fmt::{self, Write};
use std::path::Path;

/// Shows its content on one line: control characters, line separators and what turns the direction of writing are escaped.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// A path as messages show it.
pub fn shown(path: &Path) -> OneLine<std::path::Display<'_>> {
    OneLine(path.display())
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for symbol in text.chars() {
            if is_harmless(symbol) {
                self.0.write_char(symbol)?;
            } else {
                write!(self.0, "{}", symbol.escape_default())?;
            }
        }
        Ok(())
    }
}

fn is_harmless(symbol: char) -> bool {
    let breaks_line = matches!(symbol, '\u{2028}' | '\u{2029}');
    // They make what follows look like something else: marks, embeddings, overrides and isolates.
    let turns = matches!(symbol, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !symbol.is_control() && !breaks_line && !turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_escaped_and_names_in_any_script_are_not() {
        let name = "a\nb\u{1b}[2J\u{9b}1m\u{7f}\u{2028}\u{202e}gpj.exe\u{2066}";
        assert_eq!(
            shown(Path::new(name)).to_string(),
            "a\\nb\\u{1b}[2J\\u{9b}1m\\u{7f}\\u{2028}\\u{202e}gpj.exe\\u{2066}"
        );
        for name in [
            "/data/Käse 1.jpg",
            "图像.png",
            "صورة.jpg",
            "👩‍🚀.jpg",
            r"back\slash",
        ] {
            assert_eq!(OneLine(name).to_string(), name);
        }
    }
}
