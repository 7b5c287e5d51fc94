# `make demo` and `make test` set up all they need on a fresh Debian or Ubuntu machine with make, cargo and python3.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# Targets share cargo's lock and the terminal: two at once would only mix their output.
.NOTPARALLEL:

# The directory cargo builds into; relative to this directory or absolute.
BUILD_DIR := $(or $(CARGO_TARGET_DIR),target)
# The command, the package and all tests at once: built apart, most of it would be built twice, with other features.
BUILD_TESTED := cargo build --workspace --lib --bins --tests
# A rustup installed a minute ago is not yet in the PATH of this shell.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s  %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## train on an emulated slow storage without a cache, with nopfs and with foresee; write a report
	@tools/setup.sh build venv >/dev/null
	cargo build --release --package foresee-python --lib
	@venv=$$(tools/setup.sh venv) && package=$$(tools/package.sh "$(BUILD_DIR)/release") && \
	PYTHONPATH="$$package" "$$venv/bin/python" -B tools/demo.py --report "$(BUILD_DIR)/demo-report.html"

.PHONY: test
test: ## run all tests: the crates', those of schedules, the command's, the reports' in a browser, the frame's, the Python package's, torch's
	@tools/setup.sh build venv browser tools >/dev/null
	$(BUILD_TESTED)
	cargo test --workspace
	@$(MAKE) --no-print-directory test-schedules
	@venv=$$(tools/setup.sh venv) && package=$$(tools/package.sh "$(BUILD_DIR)/debug") && \
	FORESEE_BIN="$(BUILD_DIR)/debug/foresee" FORESEE_PACKAGE="$$package" "$$venv/bin/python" -I -m pytest
	@$(MAKE) --no-print-directory test-torch

# Shuttle runs each test under 10,000 schedules; bugs put in on purpose must at least still apply (see `planted`).
.PHONY: test-schedules
test-schedules: ## run what threads share under many schedules
	@tools/setup.sh build >/dev/null
	cargo test --package foresee-runtime --features shuttle --lib -- schedules::
	cargo test --package foresee-runtime --features shuttle --test schedules
	@if command -v git >/dev/null; then tools/planted.sh --check; fi

.PHONY: planted
planted: ## put bugs in on purpose, one after the other, and see that a test of schedules finds each
	@tools/setup.sh build >/dev/null
	@tools/planted.sh

# Miri looks for undefined behaviour: the unsafe code of arena and extents, on private memory. It needs a nightly Rust.
.PHONY: miri
miri: ## run the tests of arena and extents under miri, where rustup can get it
	@tools/setup.sh build >/dev/null
	@tools/miri.sh

# Coverage is rustc's own: a stable Rust is enough. SECONDS_EACH=600 fuzzes for longer.
SECONDS_EACH := 60
.PHONY: fuzz
fuzz: ## fuzz what reads bytes of other ranks: frames and handshakes; SECONDS_EACH=60
	@tools/setup.sh build >/dev/null
	@tools/fuzz.sh "$(SECONDS_EACH)"

# Other people's programs under `foresee run`, and all that `make test` leaves out of it. FORESEE_TORCH_PYTHON names a Python for those
# that need torch; without it they are skipped.
.PHONY: test-run
test-run: ## run the tests of `foresee run`, with other people's programs
	@tools/setup.sh build tools >/dev/null
	$(BUILD_TESTED)
	@python=$$(tools/setup.sh run)/bin/python && \
	FORESEE_BIN="$(BUILD_DIR)/debug/foresee" "$$python" -I -m pytest tests/run -m "long or not long"

# tf.data and DALI take gigabytes: what `make bench-setup` installed is used, or FORESEE_BENCH_PYTHON.
.PHONY: test-frameworks
test-frameworks: ## run tf.data and DALI under `foresee run`, where `make bench-setup` installed them
	@tools/setup.sh build >/dev/null
	$(BUILD_TESTED)
	@set -e; python="$(FORESEE_BENCH_PYTHON)"; \
	if [ -z "$$python" ]; then python=$$(tools/setup.sh bench-or-venv)/bin/python; fi; \
	FORESEE_BIN="$(BUILD_DIR)/debug/foresee" FORESEE_PROGRAM_PYTHON="$$python" \
	$$(tools/setup.sh run)/bin/python -I -m pytest tests/run/test_frameworks.py -m "long or not long"

# What torch needs takes 3 GB: an environment of its own, only for this. FORESEE_TORCH_PYTHON names one that is there.
.PHONY: test-torch
test-torch: ## run the tests with torch; FORESEE_SKIP_TORCH=1 leaves them out
	@if [ "$(FORESEE_SKIP_TORCH)" = 1 ]; then \
		echo "foresee: SKIPPED the tests with torch (tests/torch): FORESEE_SKIP_TORCH=1"; exit 0; fi; \
	set -e; tools/setup.sh build >/dev/null; \
	$(BUILD_TESTED); \
	python="$(FORESEE_TORCH_PYTHON)"; \
	if [ -z "$$python" ]; then python=$$(tools/setup.sh torch)/bin/python; fi; \
	package=$$(tools/package.sh "$(BUILD_DIR)/debug"); \
	FORESEE_PACKAGE="$$package" "$$python" -I -m pytest tests/torch

# The whole way of a newcomer, in a Debian made for it. What is named by FRESH must not be there yet.
FRESH := $(BUILD_DIR)/fresh
.PHONY: fresh
fresh: ## run `make demo` and `make test` in a new Debian, with empty caches; as root; FRESH=FOLDER says where
	@tools/fresh.sh "$(FRESH)"

.PHONY: check
check: ## check formatting, lints, types and documentation; change nothing
	@tools/setup.sh build lint venv >/dev/null
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	@venv=$$(tools/setup.sh venv) && set -x && \
	"$$venv/bin/ruff" check . && "$$venv/bin/ruff" format --check . && \
	"$$venv/bin/mypy" --strict --cache-dir "$(BUILD_DIR)/mypy" python/foresee

# Other loaders take 9 GB: an environment of their own, made on request. FORESEE_BENCH_PYTHON names one that is there.
.PHONY: bench-setup
bench-setup: ## install the loaders that `make bench` compares with; one that cannot be is named
	@tools/setup.sh bench

# What is not installed is left out. The slow shared file system needs root and MooseFS, and takes as long as the rest.
ROUNDS := 5
.PHONY: bench
bench: ## compare with the other loaders that are installed; DATA=FOLDER names a dataset, ROUNDS=5
	@tools/setup.sh build >/dev/null
	cargo build --release --package foresee-python --lib --package foresee-cli --bin foresee
	@set -e; python="$(FORESEE_BENCH_PYTHON)"; \
	if [ -z "$$python" ]; then python=$$(tools/setup.sh bench-or-venv)/bin/python; fi; \
	package=$$(tools/package.sh "$(BUILD_DIR)/release"); export PYTHONPATH="$$package"; \
	data="$(DATA)"; if [ -z "$$data" ]; then data=$$("$$python" -B tools/bench_data.py); fi; \
	out="$(BUILD_DIR)/bench"; \
	for each in train raw; do \
		"$$python" -B "bench/$$each.py" "$$data" --rounds "$(ROUNDS)" --json "$$out/$$each.json"; echo; done; \
	"$$python" -B bench/plot.py "$$out/train.json" "$$out/raw.json" --output "$$out"; \
	"$$python" -B bench/shared_fs.py "$$data" --json "$$out/shared_fs.json"

.PHONY: bench-docs
bench-docs: bench ## the same, and put plots and tables into docs/
	@python3 -B bench/plot.py "$(BUILD_DIR)/bench/train.json" "$(BUILD_DIR)/bench/raw.json" --docs docs

# As root, with MooseFS; elsewhere it says what it needs. Without torch, nopfs and foresee alone.
.PHONY: bench-hosts
bench-hosts: ## compare on four hosts (network namespaces) with a shared storage behind a slow line; as root; ROUNDS=5
	@tools/setup.sh build tools >/dev/null
	cargo build --release --package foresee-python --lib
	@set -e; python="$(or $(FORESEE_TORCH_PYTHON),$(FORESEE_BENCH_PYTHON))"; \
	if [ -z "$$python" ]; then python=$$(tools/setup.sh torch)/bin/python; fi; \
	package=$$(tools/package.sh "$(BUILD_DIR)/release"); export PYTHONPATH="$$package"; \
	out="$(BUILD_DIR)/bench"; mkdir -p "$$out"; \
	"$$python" -B bench/hosts.py --rounds "$(ROUNDS)" --json "$$out/hosts.json"; \
	if [ -e "$$out/hosts.json" ]; then python3 -B bench/hosts_plot.py "$$out/hosts.json" --output "$$out"; fi

# As root, with MooseFS, SLURM and Open MPI; elsewhere it says what it needs. Without torch, the others alone.
.PHONY: bench-cluster
bench-cluster: ROUNDS := 1
bench-cluster: ## compare on a cluster in a box, under SLURM, beside what the simulator predicts; as root; ROUNDS=1
	@tools/setup.sh build tools >/dev/null
	cargo build --release --package foresee-python --lib --package foresee-cli --bin foresee
	@set -e; python="$(or $(FORESEE_TORCH_PYTHON),$(FORESEE_BENCH_PYTHON))"; \
	if [ -z "$$python" ]; then python=$$(tools/setup.sh torch)/bin/python; fi; \
	package=$$(tools/package.sh "$(BUILD_DIR)/release"); export PYTHONPATH="$$package"; \
	out="$(BUILD_DIR)/bench"; mkdir -p "$$out"; \
	"$$python" -B bench/cluster_compare.py --rounds "$(ROUNDS)" --json "$$out/cluster.json"; \
	if [ -e "$$out/cluster.json" ]; then python3 -B bench/cluster_plot.py "$$out/cluster.json" --output "$$out"; fi

.PHONY: bench-crates
bench-crates: ## run the crates' own benchmarks
	@tools/setup.sh build
	cargo bench --workspace

.PHONY: clean
clean: ## remove what the other targets made in this checkout
	cargo clean
	rm -rf .pytest_cache .ruff_cache
	find bench tests tools python -name __pycache__ -type d -prune -exec rm -rf {} +
