//! Whether a program takes a preloaded library: one that is linked to glibc's loader does. Others ignore it, or do not even
//! start with it, so they are started without; scripts are judged by their interpreter. What cannot be looked at is started as
//! it is, and says itself what is wrong.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Scripts may name scripts; the kernel follows no more.
const SCRIPTS_MAX: usize = 4;
const HEAD_BYTES: u64 = 4096;
const LOADABLE_HEADS_MAX: u16 = 128;
const PT_INTERP: u32 = 3;
const SET_ID: u32 = 0o6000;

/// Why a library cannot be preloaded into a program, as the end of a sentence.
pub(crate) fn objection(program: &OsStr) -> Option<String> {
    let mut path = find(program)?;
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        let mut head = Vec::new();
        (&file).take(HEAD_BYTES).read_to_end(&mut head).ok()?;
        if let Some(interpreter) = interpreter(&head) {
            path = find(&interpreter)?;
            continue;
        }
        if file.metadata().ok()?.mode() & SET_ID != 0 {
            return Some(
                "runs with another user's rights, which takes no preloaded library".into(),
            );
        }
        return judge(&head, &file);
    }
    None
}

/// The program that a shell would start.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    };
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(is_program)
}

/// What a script names in its first line. For `env`, the program that it starts.
fn interpreter(head: &[u8]) -> Option<OsString> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    let first = words.next()?;
    let is_env = Path::new(OsStr::from_bytes(first)).file_name() == Some(OsStr::new("env"));
    let mut rest = words.filter(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    let named = if is_env { rest.next() } else { None };
    Some(OsString::from_vec(named.unwrap_or(first).to_vec()))
}

fn judge(head: &[u8], file: &File) -> Option<String> {
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let machine = u16_at(head, 18)?;
    if head[4] != 2 || head[5] != 1 || machine != own_machine()? {
        return Some("is for another kind of processor than the library".into());
    }
    let from = u64_at(head, 32)?;
    let size = u64::from(u16_at(head, 54)?);
    let count = u16_at(head, 56)?.min(LOADABLE_HEADS_MAX);
    for index in 0..u64::from(count) {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, from + index * size).ok()?;
        if u32::from_le_bytes(*entry.first_chunk()?) == PT_INTERP {
            let at = u64_at(&entry, 8)?;
            let mut loader = vec![0; u64_at(&entry, 32)?.min(HEAD_BYTES) as usize];
            file.read_exact_at(&mut loader, at).ok()?;
            return foreign(&loader);
        }
    }
    // Loaders and libraries that can be started have none either; neither takes a library.
    Some("is linked statically, and takes no preloaded library".into())
}

/// What is wrong with a loader that is not glibc's.
fn foreign(loader: &[u8]) -> Option<String> {
    let loader = loader.split(|byte| *byte == 0).next()?;
    let path = Path::new(OsStr::from_bytes(loader));
    let name = path.file_name()?.as_bytes();
    let is_glibc = name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.");
    (!is_glibc).then(|| format!("is loaded by {}, not by glibc's", path.display()))
}

fn own_machine() -> Option<u16> {
    let mut head = [0; 20];
    File::open("/proc/self/exe")
        .ok()?
        .read_exact(&mut head)
        .ok()?;
    u16_at(&head, 18)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_this_system_take_a_library_and_so_do_scripts_of_them() {
        assert_eq!(objection(OsStr::new("/bin/true")), None);
        assert_eq!(objection(OsStr::new("true")), None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/usr/bin/env sh\n").unwrap();
        assert_eq!(objection(script.as_os_str()), None);
        assert_eq!(objection(OsStr::new("/nowhere/at/all")), None);
    }

    #[test]
    fn loaders_are_told_apart() {
        assert_eq!(foreign(b"/lib64/ld-linux-x86-64.so.2\0"), None);
        assert_eq!(foreign(b"/lib/ld-linux-aarch64.so.1\0"), None);
        assert!(
            foreign(b"/lib/ld-musl-x86_64.so.1\0")
                .unwrap()
                .contains("ld-musl")
        );
    }

    #[test]
    fn first_lines_of_scripts_are_understood() {
        let named = |line: &[u8]| interpreter(line).map(OsStringExt::into_vec);
        assert_eq!(named(b"#!/bin/sh -e\n"), Some(b"/bin/sh".to_vec()));
        assert_eq!(
            named(b"#! /usr/bin/env -S A=1 python3 -I\n"),
            Some(b"python3".to_vec())
        );
        assert_eq!(named(b"#!/usr/bin/env\n"), Some(b"/usr/bin/env".to_vec()));
        assert_eq!(named(b"\x7fELF"), None);
    }
}
