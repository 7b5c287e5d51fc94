#!/bin/sh
# Makes sure that what a make target needs is there, and says in one line what to do where it cannot.
#
#   tools/setup.sh build    a linker, what builds libjpeg-turbo, and a cargo new enough for Cargo.toml's rust-version
#   tools/setup.sh lint     rustfmt and clippy
#   tools/setup.sh venv     a virtual environment with tools/requirements-test.txt; prints its path
#   tools/setup.sh torch    the same with tools/requirements-torch.txt, 3 GB; alone, not with venv
#   tools/setup.sh run      as venv, with what tests/run reads files with (h5py, Arrow); alone
#   tools/setup.sh bench    an environment with the loaders to compare with, tools/requirements-bench.txt, 9 GB; alone. A
#                           loader that cannot be installed is named and left out; the next call tries it again
#   tools/setup.sh bench-or-venv    the path of bench's environment if it was made, else as venv; alone
#   tools/setup.sh browser  Chromium, for the tests of reports; where there is none they are skipped, so this never fails
#   tools/setup.sh tools    strace, git, g++, musl, Open MPI, MPICH and, for root, MooseFS and SLURM, for the tests that want them; as browser
#   tools/setup.sh fresh    debootstrap and git, for `make fresh`
#
# Words can be combined, so that one apt-get run (or one line) covers all missing packages. Only the path of the
# virtual environment goes to stdout; all else goes to stderr.
#
# The environment lives in the user's cache, under a name made of the requirements and the interpreter, so every
# checkout with the same pins shares it. It is built in place, because its scripts carry absolute paths: a lock keeps
# two builders apart, and a `.complete` file written last tells a whole environment from an interrupted one.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
requirements=$root/tools/requirements-test.txt
python_min=3.11
lock_wait_s=900 # longer than any install that still makes progress on a slow line

say() { printf 'foresee: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# --- What is missing -------------------------------------------------------------------------------------------------

linker_works() {
    have cc || return 1
    # A compiler without libc's start files cannot link. Asking for their path takes 2 ms, a real link 40 ms.
    case $(cc -print-file-name=crt1.o 2>/dev/null) in /*) return 0 ;; esac
    link_dir=$(mktemp -d)
    link_code=0
    echo 'int main(void) { return 0; }' | cc -x c -o "$link_dir/out" - >/dev/null 2>&1 || link_code=1
    rm -rf "$link_dir"
    return "$link_code"
}

# libjpeg-turbo's vector code is in assembler on these processors; on others a C compiler does.
needs_nasm() {
    case $(uname -m) in
        x86_64 | amd64 | i?86) ! have nasm ;;
        *) return 1 ;;
    esac
}

# Sets python_ok (version), python_venv (venv and ensurepip are there) and python_id (what a venv depends on).
probe_python() {
    python_ok=0 python_venv=0 python_id=
    have python3 || return 1
    # shellcheck disable=SC2016 # Python, not shell
    probe='import sys, importlib.machinery as machinery, importlib.util as util
least = tuple(int(part) for part in sys.argv[1].split("."))
whole = all(util.find_spec(name) for name in ("venv", "ensurepip"))
version = "%d.%d.%d" % sys.version_info[:3]
print(int(sys.version_info >= least), int(whole), version, machinery.EXTENSION_SUFFIXES[0], sys.base_prefix)'
    probed=$(python3 -I -c "$probe" "$python_min") || return 1
    python_ok=${probed%% *}
    probed=${probed#* }
    python_venv=${probed%% *}
    python_id=${probed#* }
}

# Settles which python3 and which venv are meant. A missing python3 is no error here: it is a missing package.
find_python() {
    probe_python || :
    if have python3 && [ "$python_ok" = 0 ]; then
        die "$(command -v python3) is not Python $python_min or newer; put one first in PATH"
    fi
    name_venv
}

# Prints the Debian packages that are missing for the asked words.
missing_packages() {
    if [ "$want_build" = 1 ] && ! linker_works; then
        printf ' gcc libc6-dev'
    fi
    if [ "$want_build" = 1 ]; then
        have cmake || printf ' cmake'
        ! needs_nasm || printf ' nasm'
    fi
    if [ "$want_venv" = 1 ]; then
        if ! have python3; then
            printf ' python3 python3-venv'
        elif [ "$python_ok" = 1 ] && [ "$python_venv" = 0 ] && ! venv_complete; then
            printf ' python3-venv'
        fi
        have flock || printf ' util-linux'
    fi
    if [ "$want_fresh" = 1 ]; then
        # With the keys that show whether what it gets is Debian's: Ubuntu has them apart.
        have debootstrap || printf ' debootstrap debian-archive-keyring'
        have git || printf ' git'
    fi
}

# --- Debian packages -------------------------------------------------------------------------------------------------

# Whether packages can be installed. Sets what goes before apt-get: nothing for root, `sudo -n` for others.
may_install() {
    have apt-get || return 1
    as=
    [ "$(id -u)" != 0 ] || return 0
    as="sudo -n"
    have sudo && sudo -n true >/dev/null 2>&1
}

# Once a call of this script is enough.
apt_update() {
    [ "$updated" = 0 ] || return 0
    updated=1
    # shellcheck disable=SC2086 # a list of plain words
    $as env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2 ||
        say "apt-get update failed; trying with the package lists at hand"
}

# Installs $packages; false if it cannot.
apt_install() {
    say "installing$packages with apt-get"
    apt_update
    # shellcheck disable=SC2086 # $as and $packages are lists of plain words
    $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 $packages </dev/null >&2 && return 0
    say "apt-get could not install:$packages"
    return 1
}

ensure_packages() {
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    may_install || die "missing packages; install them with: sudo apt-get install$packages"
    apt_install || exit 1
    hash -r
    [ "$want_venv" = 0 ] || find_python
    packages=$(missing_packages)
    [ -z "$packages" ] || die "still missing after apt-get install:$packages (is another cc or python3 first in PATH?)"
}

# For what is good to have: installs $packages, or says in one line what follows without them.
try_packages() {
    may_install || {
        say "$1; install what is missing with: sudo apt-get install$packages"
        return 1
    }
    apt_install || {
        say "$1"
        return 1
    }
}

# --- Browser and tools -----------------------------------------------------------------------------------------------

# The names that tests/report/conftest.py looks for.
have_browser() { have chromium || have chromium-browser || have google-chrome; }

# A machine without a browser, or a system whose Chromium is no package, still runs all other tests.
ensure_browser() {
    have_browser && return 0
    packages=" chromium"
    try_packages "without a browser the tests of reports in a browser are skipped" || :
}

# What builds a program against Open MPI: its compiler comes without the headers.
builds_mpi() { printf '#include <mpi.h>\n' | mpicc.openmpi -E -x c - >/dev/null 2>&1; }

# MPI and MooseFS apart: a system that has no packages of them has the rest.
ensure_tools() {
    packages=
    have strace || packages=" strace"
    have git || packages="$packages git"
    have g++ || packages="$packages g++"
    have musl-gcc || packages="$packages musl-tools"
    [ -z "$packages" ] || try_packages "the tests that need one of these are skipped:$packages" || :
    # Both at once: each has launchers and libraries of its own names.
    packages=
    have mpirun.openmpi || packages=" openmpi-bin"
    have mpirun.mpich || packages="$packages mpich"
    builds_mpi || packages="$packages libopenmpi-dev"
    [ -z "$packages" ] || try_packages "without these tests and programs under mpirun are skipped:$packages" || :
    # Only root can use it, so others need not install it. The names are those of bench/moosefs.py.
    [ "$(id -u)" = 0 ] || return 0
    packages=
    have mfsmaster || packages="$packages moosefs-master"
    have mfschunkserver || packages="$packages moosefs-chunkserver"
    have mfsmount || packages="$packages moosefs-client"
    if ! have ip || ! have tc; then packages="$packages iproute2"; fi
    [ -n "$packages" ] || return 0
    try_packages "without MooseFS the tests on a shared file system are skipped" || :
}

# The names are those of bench/cluster.py. Debian starts none of its daemons unless it is configured.
ensure_slurm() {
    [ "$(id -u)" = 0 ] || return 0
    packages=
    # SLURM opens PMIx by a name that only its package for developers has.
    if ! have slurmctld || ! have slurmd || ! have srun; then packages=" slurm-wlm libpmix-dev"; fi
    have munged || packages="$packages munge"
    [ -n "$packages" ] || return 0
    try_packages "without SLURM the tests of a cluster are skipped" || :
}

# --- Rust ------------------------------------------------------------------------------------------------------------

# True if version $1 is at least version $2; the first two numbers count.
at_least() {
    major=${1%%.*} minor=${1#*.}
    minor=${minor%%.*}
    [ "$major" -gt "${2%%.*}" ] && return 0
    least_minor=${2#*.}
    [ "$major" -eq "${2%%.*}" ] && [ "$minor" -ge "${least_minor%%.*}" ]
}

ensure_cargo() {
    rust_min=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
    [ -n "$rust_min" ] || die "Cargo.toml names no rust-version"
    have cargo || die "cargo is missing; install Rust $rust_min or newer with rustup (https://rustup.rs)"
    cargo_version=$(cargo --version 2>/dev/null) ||
        die "cargo does not run; repair it with: rustup default stable (https://rustup.rs)"
    cargo_version=${cargo_version#cargo }
    cargo_version=${cargo_version%% *}
    at_least "$cargo_version" "$rust_min" ||
        die "cargo $cargo_version is too old; get $rust_min or newer with: rustup update stable (https://rustup.rs)"
}

ensure_lint() {
    lint_missing=
    cargo fmt --version >/dev/null 2>&1 || lint_missing=" rustfmt"
    cargo clippy --version >/dev/null 2>&1 || lint_missing="$lint_missing clippy"
    [ -n "$lint_missing" ] || return 0
    have rustup || die "cargo lacks:$lint_missing; use a Rust from rustup (https://rustup.rs), which can add them"
    # shellcheck disable=SC2086 # a list of plain words
    rustup component add $lint_missing >&2 || die "failed: rustup component add$lint_missing"
}

# --- Virtual environment ---------------------------------------------------------------------------------------------

# Sets $venv. The name covers all a venv depends on: the pins, and the interpreter's version, platform and place.
name_venv() {
    case ${XDG_CACHE_HOME:-} in
        /*) cache=$XDG_CACHE_HOME/foresee ;;
        *) # unset, or relative, which the XDG specification says to ignore
            [ -n "${HOME:-}" ] || die "set HOME or XDG_CACHE_HOME, so that the test tools have a place"
            cache=$HOME/.cache/foresee
            ;;
    esac
    key=$({ cat "$requirements" && printf '%s\n' "$python_id"; } | sha256sum | cut -c 1-16)
    venv=$cache/venv-$key
}

venv_complete() { [ -n "${venv:-}" ] && [ -e "$venv/.complete" ] && [ -x "$venv/bin/python" ]; }

build_venv() {
    say "making the environment $venv"
    rm -rf "$venv"
    python3 -I -m venv "$venv" >&2 || die "python3 -m venv failed in $venv"
    if [ "$want_bench" = 1 ]; then
        bench_pip --only-binary :all: numpy pillow || die "pip could not install numpy and pillow; check the network"
        : >"$venv/.complete"
        return 0
    fi
    # Wheels only: a source build would run code that no hash covers. What torch brings along differs by machine, so its
    # pins have no hashes; nor have those of what is only run, in tests of other people's programs.
    hashes=--require-hashes
    [ "$want_torch" = 0 ] && [ "$want_run" = 0 ] || hashes=
    # shellcheck disable=SC2086 # one plain word, or none
    "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-input \
        $hashes --only-binary :all: -r "$requirements" >&2 ||
        die "pip could not install ${requirements#"$root"/}; check the network and run again$without"
    : >"$venv/.complete"
}

# --- Other loaders ---------------------------------------------------------------------------------------------------

# pip with the pins as limits, so that a part brings only what it needs. No hashes: what torch brings differs by machine.
bench_pip() {
    "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-input -c "$requirements" "$@" >&2
}

# A loader that is there is marked, so that only what failed is tried again. FFCV is built from source, and SPDL needs
# FFmpeg's libraries.
bench_part() {
    part=$1
    shift
    [ ! -e "$venv/.has-$part" ] || return 0
    say "installing $part"
    packages=
    case $part in
        ffcv)
            have g++ || packages=" g++"
            pkg-config --exists opencv4 libturbojpeg 2>/dev/null ||
                packages="$packages pkg-config libopencv-dev libturbojpeg0-dev"
            headers=$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')
            [ -e "$headers/Python.h" ] || packages="$packages python3-dev"
            ;;
        spdl) have ffmpeg || packages=" ffmpeg" ;;
    esac
    without="without $part, until the next \`make bench-setup\` can install it"
    if [ -n "$packages" ]; then
        try_packages "$without" || return 0
    fi
    bench_pip "$@" || {
        say "$without"
        return 0
    }
    : >"$venv/.has-$part"
}

bench_parts() {
    bench_part torch --only-binary :all: torch torchvision
    bench_part dali --only-binary :all: nvidia-dali-cuda120
    bench_part spdl --only-binary :all: spdl
    bench_part tf.data --only-binary :all: tensorflow-cpu
    bench_part ffcv ffcv opencv-python-headless
}

ensure_venv() {
    if ! venv_complete || [ "$want_bench" = 1 ]; then
        mkdir -p "$cache" || die "cannot make $cache; set XDG_CACHE_HOME to a writable directory"
        # A subshell, so that the lock goes with it.
        (
            flock -n 9 || {
                say "waiting for another run that makes $venv"
                flock -w "$lock_wait_s" 9 || die "gave up waiting for the lock $venv.lock"
            }
            # Settings that would send the packages elsewhere.
            unset PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER
            venv_complete || build_venv
            [ "$want_bench" = 0 ] || bench_parts
        ) 9>"$venv.lock"
    fi
    printf '%s\n' "$venv"
}

# ---------------------------------------------------------------------------------------------------------------------

want_build=0 want_lint=0 want_venv=0 want_browser=0 want_torch=0 want_run=0 want_bench=0 want_tools=0 want_fresh=0
updated=0 without=
words="build, lint, venv, torch, run, bench, bench-or-venv, browser, tools, fresh"
[ $# -gt 0 ] || die "usage: tools/setup.sh WORD ..., of $words"
for word in "$@"; do
    case $word in
        build) want_build=1 ;;
        lint) want_lint=1 ;;
        venv) want_venv=1 ;;
        torch)
            want_venv=1 want_torch=1
            requirements=$root/tools/requirements-torch.txt
            without=", or leave these tests out with FORESEE_SKIP_TORCH=1"
            ;;
        run)
            want_venv=1 want_run=1
            requirements=$root/tools/requirements-run.txt
            ;;
        bench)
            want_venv=1 want_bench=1
            requirements=$root/tools/requirements-bench.txt
            ;;
        bench-or-venv)
            want_venv=1
            requirements=$root/tools/requirements-bench.txt
            find_python
            venv_complete || requirements=$root/tools/requirements-test.txt
            ;;
        browser) want_browser=1 ;;
        tools) want_tools=1 ;;
        fresh) want_fresh=1 ;;
        *) die "tools/setup.sh: no such word: $word; give some of $words" ;;
    esac
done

if [ "$want_build" = 1 ] || [ "$want_lint" = 1 ]; then ensure_cargo; fi
if [ "$want_venv" = 1 ]; then find_python; fi
ensure_packages
if [ "$want_browser" = 1 ]; then ensure_browser; fi
if [ "$want_tools" = 1 ]; then
    ensure_tools
    ensure_slurm
fi
if [ "$want_lint" = 1 ]; then ensure_lint; fi
if [ "$want_venv" = 1 ]; then ensure_venv; fi
