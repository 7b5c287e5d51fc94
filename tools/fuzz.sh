#!/bin/sh
# Fuzzes what reads bytes of other ranks: `tools/fuzz.sh [SECONDS]`, that long for each target.
#
# libFuzzer comes with the crate libfuzzer-sys and needs a C++ compiler; coverage is rustc's own (LLVM's sancov), which a stable
# Rust has. What cannot be had is said in one line. Inputs that were found are kept in the build folder, crashes, too.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
if ! command -v c++ >/dev/null; then
	echo "foresee: no C++ compiler, which libFuzzer needs; install Debian's package g++" >&2
	exit 1
fi
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
host=$(rustc -vV | sed -n 's/^host: //p')
# With a target, flags are for what is fuzzed alone, not for build scripts and macros.
if ! CARGO_TARGET_DIR=$build cargo build --release --target "$host" --manifest-path fuzz/Cargo.toml; then
	echo "foresee: the fuzzer could not be built; is crates.io to be reached (libfuzzer-sys)?" >&2
	exit 1
fi
for target in frames handshake; do
	mkdir -p "$build/corpus/$target" "$build/crashes"
	"$build/$host/release/$target" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 -verbosity=1 \
		-artifact_prefix="$build/crashes/$target-" "$build/corpus/$target" >"$build/$target.log" 2>&1 || {
		tail -n 30 "$build/$target.log" >&2
		echo "foresee: $target: the fuzzer found something; its input is in $build/crashes" >&2
		exit 1
	}
	executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
	covered=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$build/$target.log" | tail -n 1)
	echo "$target: $executions executions in $seconds s, $covered places covered, nothing found"
done
