#!/bin/sh
# Puts bugs into a copy of the crates, one after the other, and fails where a test of schedules does not find one.
#
#   tools/planted.sh            all of tools/planted/*.patch
#   tools/planted.sh NAME...    these
#   tools/planted.sh --check    only whether each of them still applies; builds nothing
#
# The first line of a patch says what is wrong, the second which test finds it: `Found-by: schedules::pool::...` for one
# inside the crate, `Found-by: tests/schedules ...` for one of whole jobs. Whatever else fails, such as a bug that does
# not build any more, is no find.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$root/$target ;; esac
folder=$target/planted
# Not the checkout's: cargo takes the copy's crates for the same as those there.
built=$folder/target

say() { printf 'foresee: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Patches are for the tree as it stands, committed or not.
applies() {
    git apply --check "$1" 2>/dev/null
}

# With new times: an old copy may have been built since. What no patch touches is built once.
copy_tree() {
    mkdir -p "$folder"
    rm -rf "$folder/crates"
    cp -R Cargo.toml Cargo.lock clippy.toml crates "$folder/"
}

# Inside a checkout git takes paths as its root's, and passes over what is not under this folder.
in_copy() {
    (cd "$folder" && GIT_CEILING_DIRECTORIES=$target CARGO_TARGET_DIR=$built "$@")
}

found_by() {
    sed -n 's/^Found-by: //p' "$1"
}

# The arguments of cargo that run the test, and nothing else.
arguments() {
    case $1 in
        tests/schedules\ *) echo "--test schedules -- --exact ${1#tests/schedules }" ;;
        *) echo "--lib -- --exact $1" ;;
    esac
}

find_bug() {
    patch=$1
    name=$(basename "$patch" .patch)
    test=$(found_by "$patch")
    [ -n "$test" ] || die "$patch: no line says which test finds it (Found-by:)"
    applies "$patch" || die "$patch does not apply any more: make it anew"
    in_copy git apply "$patch"
    log=$folder/log
    set -- --quiet --package foresee-runtime --features shuttle
    # shellcheck disable=SC2046 # several words
    in_copy cargo test "$@" --no-run $(arguments "$test" | sed 's/ -- .*//') >"$log" 2>&1 ||
        die "$name does not build; see $log"
    # shellcheck disable=SC2046 # several words
    if in_copy cargo test "$@" $(arguments "$test") >"$log" 2>&1; then
        die "$name was NOT found by $test"
    fi
    grep -q "panicked at" "$log" || die "$name: $test did not run; see $log"
    in_copy git apply --reverse "$patch"
    say "$name: found by $test"
}

if [ "${1:-}" = --check ]; then
    for patch in "$root"/tools/planted/*.patch; do
        [ -n "$(found_by "$patch")" ] || die "$patch: no line says which test finds it (Found-by:)"
        applies "$patch" || die "$patch does not apply any more: make it anew"
    done
    exit 0
fi
copy_tree
if [ $# -gt 0 ]; then
    for name in "$@"; do find_bug "$root/tools/planted/$name.patch"; done
else
    for patch in "$root"/tools/planted/*.patch; do find_bug "$patch"; done
fi
