#!/bin/sh
# Runs `make demo` and `make test` on a machine that never saw the project: a new Debian 12 in a folder, with nothing in
# it but what the README asks for, and empty caches. Says how long each took, and fails if one does. Needs root and a
# network.
#
#   tools/fresh.sh FOLDER    where the machine is made: a folder that is not there yet, or one that an earlier run left
#
# What goes in: the source as it was committed last, the Rust of this machine (mounted, read-only), and its settings for
# package managers: names, proxies, certificates, pip's and cargo's mirrors. Other variables stay out.
#
# All mounts are made in a mount namespace and all commands run in a process namespace, so that neither outlives this
# script, however it ends; and the folder is removed from outside, where nothing is mounted in it. A folder in which a
# command failed is kept to look at.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
suite=bookworm # Debian 12: the oldest with a Python that is new enough
included=ca-certificates,make,python3

say() { printf 'foresee: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# --- The folder ------------------------------------------------------------------------------------------------------

# Takes $1 if it is ours. Only root may look into it: settings can hold passwords. What is mounted inside cannot be seen
# from here, so a lock tells whether another run is in it; the process that waits for what is inside has it, too.
make_folder() {
    if [ -e "$1" ] && [ ! -e "$1/.foresee-fresh" ]; then
        die "$1 is there already and was not made by \`make fresh\`; give another folder with FRESH=FOLDER"
    fi
    mkdir -p "$1"
    chmod 700 "$1"
    : >"$1/.foresee-fresh"
    folder=$(cd "$1" && pwd -P)
    exec 9<"$folder"
    flock -n 9 || die "another \`make fresh\` is in $folder; wait for it, or give another folder with FRESH=FOLDER"
    remove "$folder/root"
}

# The mounts of a run are its own. What somebody mounted there by hand is left alone.
remove() {
    if awk -v under="$1/" 'index($2 "/", under) == 1 { found = 1 } END { exit !found }' /proc/self/mounts; then
        die "something is mounted in $1; unmount it first"
    fi
    rm -rf --one-file-system "$1"
}

# --- What goes in ----------------------------------------------------------------------------------------------------

# Where this machine gets its own packages from, if it is a Debian of this kind; else the choice is debootstrap's.
mirror() {
    # shellcheck disable=SC2016 # apt-get's variables, not the shell's
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 2>/dev/null | head -n 1
}

make_debian() {
    say "making a Debian ($suite) in $folder"
    # A namespace here, too: debootstrap mounts, and starts processes.
    # shellcheck disable=SC2046 # one word or none
    apart debootstrap --variant=minbase --force-check-gpg --include="$included" "$suite" "$folder/root" $(mirror) \
        >"$folder/debootstrap.log" 2>&1 || die "debootstrap failed; see $folder/debootstrap.log"
}

# The checkout may belong to the user who called sudo.
git_here() { git -c safe.directory="$root" -C "$root" "$@"; }

put_source() {
    [ -z "$(git_here status --porcelain)" ] || say "WARNING: what is not committed does not go in"
    mkdir "$folder/root/foresee"
    git_here archive --output="$folder/source.tar" HEAD || die "cannot take the source: git archive failed in $root"
    tar -x -f "$folder/source.tar" -C "$folder/root/foresee"
}

# Copies file $1 to the same place inside, or to $2 there.
put_file() {
    inside=$folder/root${2:-$1}
    [ -f "$1" ] || return 0
    mkdir -p "$(dirname "$inside")"
    cp -L "$1" "$inside"
}

# So that apt-get, pip and cargo reach what they reach outside.
put_settings() {
    put_file /etc/resolv.conf
    put_file /etc/hosts
    put_file /etc/pip.conf
    put_file "$HOME/.pip/pip.conf" /root/.config/pip/pip.conf
    put_file "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf" /root/.config/pip/pip.conf
    put_file "${CARGO_HOME:-$HOME/.cargo}/config.toml" /root/.cargo/config.toml
    for certificate in /usr/local/share/ca-certificates/*.crt; do put_file "$certificate"; done
    for certificate in "${SSL_CERT_FILE:-}" "${CURL_CA_BUNDLE:-}" "${REQUESTS_CA_BUNDLE:-}" "${PIP_CERT:-}" \
        "${CARGO_HTTP_CAINFO:-}"; do
        [ -e "$folder/root$certificate" ] || put_file "$certificate"
    done
    ! have apt-config || apt-config dump | grep -E '^Acquire::(https?|Check|Retries|ForceIPv)' \
        >"$folder/root/etc/apt/apt.conf.d/99outside" || :
    chroot "$folder/root" update-ca-certificates >/dev/null 2>&1 || die "update-ca-certificates failed in $folder/root"
}

# --- Inside ----------------------------------------------------------------------------------------------------------

# Runs a command with mounts and processes of its own. If this script is stopped, they all are. In the background,
# because the shell answers no signal while a command is in the foreground.
apart() {
    unshare --mount --pid --ipc --fork --kill-child -- "$@" </dev/null &
    running=$!
    trap 'kill -KILL "$running"; die "stopped; $folder is kept"' HUP INT TERM
    code=0
    wait "$running" || code=$?
    trap - HUP INT TERM
    return "$code"
}

# Of the devices only what every machine has, and what a shared file system needs. What is in shared memory outside must
# not be seen.
mount_devices() {
    mount -t tmpfs -o mode=755 tmpfs dev
    for device in null zero full random urandom tty fuse; do
        [ -e "/dev/$device" ] || continue
        : >"dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    ln -s fd/0 dev/stdin
    ln -s fd/1 dev/stdout
    ln -s fd/2 dev/stderr
}

# Of all variables those stay that tell package managers where to get packages, or this project what to leave out.
clear_variables() {
    # shellcheck disable=SC2013 # names are words
    for name in $(awk 'BEGIN { for (name in ENVIRON) print name }'); do
        case $name in
            *[!A-Za-z0-9_]*) ;; # the shell does not know it, and so does not pass it on
            TERM | FORESEE_SKIP_TORCH) ;;
            HTTP_PROXY | HTTPS_PROXY | ALL_PROXY | NO_PROXY | http_proxy | https_proxy | all_proxy | no_proxy) ;;
            SSL_CERT_FILE | SSL_CERT_DIR | CURL_CA_BUNDLE | REQUESTS_CA_BUNDLE) ;;
            PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_TRUSTED_HOST | PIP_PROXY | PIP_CERT) ;;
            PIP_DEFAULT_TIMEOUT | PIP_TIMEOUT | PIP_RETRIES) ;;
            CARGO_HTTP_* | CARGO_NET_* | CARGO_SOURCE_* | CARGO_REGISTRIES_*_INDEX | CARGO_REGISTRIES_*_PROTOCOL) ;;
            *) unset "$name" ;;
        esac
    done
    export HOME=/root LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
}

# Leaves the machine outside for the one in folder $1, with the Rust of $2.
enter() {
    mount --bind "$1" "$1" # only what is mounted can become the root
    cd "$1"
    mkdir -p opt/rust
    mount --bind -o ro "$2" opt/rust
    mount -t proc proc proc
    mount --rbind /sys sys
    mount_devices
    clear_variables
    pivot_root . mnt
    cd /foresee
    umount --lazy /mnt
}

run_both() {
    cargo --version >/dev/null 2>&1 ||
        die "this machine's Rust does not run on Debian ($suite); put one of rustup's (https://rustup.rs) first in PATH"
    failed=0 summary=
    for target in demo test; do
        echo "==> make $target"
        start_s=$(date +%s)
        code=0
        make "$target" || code=$?
        summary="$summary==> make $target: $(($(date +%s) - start_s)) s, exit $code
"
        [ "$code" = 0 ] || failed=1
    done
    printf '%s' "$summary"
    exit "$failed"
}

# ---------------------------------------------------------------------------------------------------------------------

# How this script calls itself, once it is apart.
if [ "${1:-}" = --inside ]; then
    exec 9<&-
    enter "$2" "$3"
    run_both
fi
[ $# = 1 ] || die "usage: tools/fresh.sh FOLDER"
# shellcheck disable=SC2016 # for the user's shell
by_sudo='sudo env "HOME=$HOME" "PATH=$PATH" make fresh'
[ "$(id -u)" = 0 ] || die "needs root, because it mounts; run: $by_sudo"
rust=$(rustc --print sysroot 2>/dev/null) ||
    die "root has no rustc in PATH; install Rust with rustup (https://rustup.rs), or run: $by_sudo"
"$root/tools/setup.sh" fresh
make_folder "$1"
make_debian
put_source
put_settings
code=0
apart "$root/tools/fresh.sh" --inside "$folder/root" "$rust" || code=$?
[ "$code" = 0 ] || die "failed; $folder is kept to look at"
remove "$folder"
