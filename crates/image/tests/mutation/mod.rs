//! Damage to image files, for the tests and for the example `fuzz`.

use std::path::Path;

/// One change. Places are taken modulo the length at hand.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Turns one bit over.
    Flip(usize, u8),
    /// Sets one byte: extremes and markers are worth more than random ones.
    Set(usize, u8),
    /// Drops everything from here.
    Truncate(usize),
    /// Takes out this many bytes.
    Cut(usize, usize),
    /// Puts in bytes of another file: where, which, from where, how many.
    Splice(usize, usize, usize, usize),
}

/// Applies edits one after the other.
pub(crate) fn mutate(file: &[u8], files: &[Vec<u8>], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for edit in edits {
        let len = bytes.len().max(1);
        match *edit {
            _ if bytes.is_empty() => {}
            Edit::Flip(at, bit) => bytes[at % len] ^= 1 << (bit % 8),
            Edit::Set(at, value) => bytes[at % len] = value,
            Edit::Truncate(at) => bytes.truncate(at % len),
            Edit::Cut(at, count) => {
                drop(bytes.drain(at % len..(at % len + count % 64).min(bytes.len())));
            }
            Edit::Splice(at, which, from, count) => {
                let other = &files[which % files.len()];
                let from = from % other.len();
                let part = &other[from..(from + count % 512).min(other.len())];
                bytes.splice(at % len..at % len, part.iter().copied());
            }
        }
    }
    bytes
}

/// All images in `tests/data`, sorted by name.
pub(crate) fn fixtures() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let kinds = ["jpg", "png", "webp", "gif", "bmp", "pnm", "tif"];
        let is_image = |kind: &str| {
            name.starts_with(&format!("{kind}_")) && name.ends_with(&format!(".{kind}"))
        };
        !name.ends_with(".rgb.png") && kinds.into_iter().any(is_image)
    });
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}
