#!/bin/sh
# Runs the tests of arena and extents under miri. Miri comes with a nightly Rust: where rustup has one, or can get it, it is
# installed; elsewhere this says so in one line and is no failure.
#
# Miri knows no files without a name: under it all memory is private (`pages`). Properties are tried with few cases, as it
# takes some hundred times as long.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'foresee: %s\n' "$*" >&2; }
skip() {
    say "SKIPPED miri: $*"
    exit 0
}

command -v rustup >/dev/null 2>&1 || skip "there is no rustup, which would get a nightly Rust with it"
has_miri() { cargo +nightly miri --version >/dev/null 2>&1; }
if ! has_miri; then
    rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1 ||
        rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1 || :
    has_miri || skip "rustup cannot get a nightly Rust with miri and rust-src; is there a network?"
fi
cargo +nightly miri setup >/dev/null 2>&1 || skip "its standard library cannot be built; rustup component add --toolchain nightly rust-src"

# Reading files and the clock is allowed: temporary folders and seeds need them.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}"
export PROPTEST_CASES="${PROPTEST_CASES:-4}"
exec cargo +nightly miri test --package foresee-runtime --lib -- arena:: extents::
