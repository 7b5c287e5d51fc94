#!/bin/sh
# Puts the Python package together from cargo's build, as an installed one would look, without installing anything.
#
#   tools/package.sh DIRECTORY    what cargo made there of foresee-python and, where it is to have `foresee run`, of
#                                 foresee-preload; prints what PYTHONPATH needs
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
[ ! -e "$1/libforesee_preload.so" ] || cp "$1/libforesee_preload.so" "$folder/foresee/libforesee_preload.so"
printf '%s\n' "$folder"
