"""A private MooseFS behind a slow network, on this machine: master and chunkserver in a network namespace, a mount outside.

What goes from the servers to the mount passes a `tc tbf`, so reads are as slow as over such a line. Everything has one
name, so that a run finds what another left behind, and a lock, so that it is not taken from a run that is alive. Nothing
of the system's own MooseFS, if it has one, is used or changed: ports, folders and configuration are this one's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

NAME = "foresee-mfs"
# Of the range that RFC 2544 sets aside for benchmarks. The chunkserver refuses 127.0.0.1.
HERE, THERE, BITS = "198.18.213.1", "198.18.213.2", 30
LINE_HERE, LINE_THERE = "foresee-mfs0", "foresee-mfs1"
# What the kernel hands to a device at once. With less, the shaper cuts packets up and the line is never full; with more, a
# whole file comes in a burst.
BURST = "64kb"
COMMANDS = {
    "mfsmaster": "moosefs-master",
    "mfschunkserver": "moosefs-chunkserver",
    "mfsmount": "moosefs-client",
    "ip": "iproute2",
    "tc": "iproute2",
}
# What a master that has never run finds in place of its metadata.
EMPTY_METADATA = b"MFSM NEW"
START_S_MAX = 30.0
STOP_S_MAX = 10.0


class SetupError(Exception):
    """What could not be set up, in one line."""


def missing() -> str | None:
    """What keeps this machine from having one, and the remedy, in one line."""
    packages = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if packages:
        return f"needs MooseFS: apt-get install {' '.join(sorted(packages))}"
    if os.geteuid() != 0:
        return "needs root: it makes a network namespace and a mount"
    if not Path("/dev/fuse").exists():
        return "needs FUSE: there is no /dev/fuse"
    return None


def folder() -> Path:
    """Where servers keep what they have, and where it is mounted."""
    return Path(tempfile.gettempdir()) / NAME


def received_bytes() -> int:
    """What came from the servers so far, over the slow line."""
    return int(Path(f"/sys/class/net/{LINE_HERE}/statistics/rx_bytes").read_text())


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """For one run at a time. What a run that was killed left behind is removed first."""
    path = Path(tempfile.gettempdir()) / f"{NAME}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    line = socket.socket(socket.AF_UNIX)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another run holds {path}: wait for it to end") from None
        # Containers with folders of their own can share a network, and so the line. A name without a path is the
        # network's, too, and goes with the process that holds it.
        try:
            line.bind(f"\0{NAME}")
        except OSError:
            raise SetupError(f"another run holds {LINE_HERE}: wait for it to end") from None
        remove()
        yield
    finally:
        line.close()
        os.close(descriptor)


class MooseFs:
    """Servers and mount, from `with` to its end."""

    def __init__(self) -> None:
        self.root = folder()
        self.mount_point = self.root / "mount"
        self._servers: list[subprocess.Popen] = []
        self._mount: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        try:
            self._make_folders()
            self._make_line()
            self._serve("mfsmaster", "master.cfg")
            self._serve("mfschunkserver", "chunkserver.cfg")
            self.mount()
            self._until(lambda: os.statvfs(self.mount_point).f_bavail > 0, "the chunkserver did not register")
            # There is but one server, so there can be but one copy.
            _run("mfssetgoal", "1", self.mount_point)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
        for server in reversed(self._servers):
            _end(server)
        self._servers = []
        remove()

    def slow_down(self, mbit: int) -> None:
        """From now on the line carries no more than this from the servers to the mount."""
        shaper = ["root", "tbf", "rate", f"{mbit}mbit", "burst", BURST, "latency", "100ms"]
        _run("tc", "-n", NAME, "qdisc", "replace", "dev", LINE_THERE, *shaper)

    def mount(self) -> None:
        """With all of a user's defaults. Nothing is cached in the beginning, neither by the kernel nor by the mount."""
        options = ["-f", "-H", THERE, "-o", "mfscfgfile=/dev/null"]
        self._mount = self._start(["mfsmount", *options, str(self.mount_point)], "mount.log")
        self._until(lambda: os.path.ismount(self.mount_point), "the mount did not come up")

    def unmount(self) -> None:
        """Also forgets whatever was cached of it."""
        _unmount(self.mount_point)
        if self._mount is not None:
            _end(self._mount)
        self._mount = None

    def remount(self) -> None:
        self.unmount()
        self.mount()

    def _make_folders(self) -> None:
        # Fails if there is one: `remove` was called before, so it would be somebody else's.
        self.root.mkdir(mode=0o700)
        for name in ["master", "chunkserver", "chunks", "mount"]:
            (self.root / name).mkdir()
        (self.root / "master" / "metadata.mfs").write_bytes(EMPTY_METADATA)
        self._write("exports.cfg", "* / rw,alldirs,admin,maproot=0:0")
        self._write("topology.cfg", "")
        self._write("disks.cfg", f"{self.root / 'chunks'}")
        self._write(
            "master.cfg",
            *self._common("master"),
            f"EXPORTS_FILENAME = {self.root / 'exports.cfg'}",
            f"TOPOLOGY_FILENAME = {self.root / 'topology.cfg'}",
        )
        self._write(
            "chunkserver.cfg",
            *self._common("chunkserver"),
            f"HDD_CONF_FILENAME = {self.root / 'disks.cfg'}",
            f"MASTER_HOST = {THERE}",
            "MASTER_RECONNECTION_DELAY = 1",
        )

    def _common(self, data: str) -> list[str]:
        return ["WORKING_USER = root", "WORKING_GROUP = root", f"DATA_PATH = {self.root / data}"]

    def _write(self, name: str, *lines: str) -> None:
        (self.root / name).write_text("".join(f"{line}\n" for line in lines))

    def _make_line(self) -> None:
        _run("ip", "netns", "add", NAME)
        _run("ip", "link", "add", LINE_HERE, "type", "veth", "peer", "name", LINE_THERE, "netns", NAME)
        _run("ip", "address", "add", f"{HERE}/{BITS}", "dev", LINE_HERE)
        _run("ip", "link", "set", LINE_HERE, "up")
        _run("ip", "-n", NAME, "address", "add", f"{THERE}/{BITS}", "dev", LINE_THERE)
        _run("ip", "-n", NAME, "link", "set", LINE_THERE, "up")
        _run("ip", "-n", NAME, "link", "set", "lo", "up")

    def _serve(self, command: str, config: str) -> None:
        # `ip netns exec` becomes the command, so what is started is the server itself.
        line = ["ip", "netns", "exec", NAME, command, "-f", "-c", str(self.root / config), "start"]
        log = f"{command}.log"
        self._servers.append(self._start(line, log))
        ready = "initialized properly"
        self._until(lambda: ready in (self.root / log).read_text(errors="replace"), f"{command} did not start")

    def _start(self, line: list[str], log: str) -> subprocess.Popen:
        # A session of their own: Ctrl-C is for the benchmark, which ends them in order.
        with (self.root / log).open("wb") as output:
            return subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _until(self, is_there: Callable[[], bool], otherwise: str) -> None:
        started = [*self._servers, *([self._mount] if self._mount else [])]
        deadline = time.monotonic() + START_S_MAX
        while not is_there():
            ended = [process.args for process in started if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = " | ".join(_last_line(log) for log in sorted(self.root.glob("*.log")))
                raise SetupError(f"MooseFS: {otherwise}: {logs}")
            time.sleep(0.05)


def remove() -> None:
    """Takes down whatever there is under this name."""
    _unmount(folder() / "mount")
    for pid in _output("ip", "netns", "pids", NAME).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    if Path(f"/sys/class/net/{LINE_HERE}").exists():
        _output("ip", "link", "delete", LINE_HERE)
    if Path(f"/run/netns/{NAME}").exists():
        _output("ip", "netns", "delete", NAME)
    if folder().is_dir() and not folder().is_symlink() and folder().stat().st_uid == os.geteuid():
        shutil.rmtree(folder())


def _unmount(point: Path) -> None:
    # Lazily: a process that was killed may still be on its way out of it.
    if str(point) in _mounted():
        _output("umount", "--lazy", str(point))


def _mounted() -> list[str]:
    return [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return f"{log.stem}: {lines[-1] if lines else 'silent'}"


def _run(*line: object) -> None:
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(map(str, line))}: {(done.stderr or done.stdout).strip()}")


def _output(*line: str) -> str:
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout
