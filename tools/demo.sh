#!/bin/sh
# What `make demo` shows. Takes the command from FORESEE_BIN, else from cargo's release directory.
set -eu
cd "$(dirname "$0")/.."
foresee=${FORESEE_BIN:-${CARGO_TARGET_DIR:-target}/release/foresee}

echo "Simulating the training job of scenarios/hdmlp-s2.toml: where each sample is read from, and how long the trainer stalls."
"$foresee" simulate scenarios/hdmlp-s2.toml
