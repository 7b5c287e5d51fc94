#!/bin/sh
# Puts the Python package together from cargo's build, as an installed one would look, without installing anything.
#
#   tools/package.sh DIRECTORY    what `cargo build --package foresee-python` made there; prints what PYTHONPATH needs
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: tools/package.sh DIRECTORY" >&2; exit 1; }
mkdir -p "$1/python"
folder=$(cd "$1/python" && pwd)
rm -rf "$folder/foresee"
cp -R python/foresee "$folder/foresee"
find "$folder/foresee" -name __pycache__ -type d -prune -exec rm -rf {} +
# A copy: cargo may write a new one while a process still has this one open.
cp "$1/lib_native.so" "$folder/foresee/_native.abi3.so"
printf '%s\n' "$folder"
