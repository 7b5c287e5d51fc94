//! The order of Python's `sorted` on file names: by code point, where a byte that is no UTF-8 counts as the surrogate
//! U+DC80 to U+DCFF that Python decodes it to.

use std::cmp::Ordering;

/// Compares two names as Python does.
pub(super) fn python_order(a: &[u8], b: &[u8]) -> Ordering {
    // UTF-8 sorts by code point.
    if str::from_utf8(a).is_ok() && str::from_utf8(b).is_ok() {
        return a.cmp(b);
    }
    code_points(a).cmp(code_points(b))
}

fn code_points(name: &[u8]) -> impl Iterator<Item = u32> {
    name.utf8_chunks().flat_map(|chunk| {
        let escaped = chunk.invalid().iter().map(|&byte| 0xDC00 + u32::from(byte));
        chunk.valid().chars().map(u32::from).chain(escaped)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_python_does() {
        // Python 3: sorted(os.fsdecode(n) for n in names), each given back by os.fsencode.
        let sorted: [&[u8]; 8] = [
            b"A",
            b"a",
            b"a-b",
            b"a/b",
            "\u{e9}".as_bytes(),
            b"\xe9",
            "\u{fb01}".as_bytes(),
            "\u{1f600}".as_bytes(),
        ];
        let mut names = sorted;
        names.reverse();
        names.sort_by(|a, b| python_order(a, b));
        assert_eq!(names, sorted);
    }
}
