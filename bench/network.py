"""Hosts that are network namespaces of this machine: each has a line to one switch, which is as slow as it is told to be.

A network has a name, and all that is made for it begins with that name: namespaces (`NAME-switch`, `NAME-WHAT`), a folder. So
what a run that was killed left is found and removed by the next one (`remove`). The switch is a namespace, too: nothing of
the machine's own network is used or changed, and addresses can be the same in each. A host also has mounts and a name of its
own, which live as long as a process that does nothing (`Host.settle`). Only root can make any of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

COMMANDS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
NAMESPACES = Path("/run/netns")
#: A host's end of its line; the switch's ends are `port0`, `port1` ...
LINE = "line"
# What the kernel hands to a device at once is up to 64 KiB. With less, the shaper cuts packets up and a line is never full;
# with more, a whole file comes in a burst.
BURST = "64kb"
# How long a packet may wait at the shaper before it is dropped.
QUEUE = "100ms"
START_S_MAX = 30.0
STOP_S_MAX = 10.0
HOSTS_MAX = 250


class SetupError(Exception):
    """What could not be set up, in one line."""


def missing(commands: dict[str, str] = COMMANDS) -> str | None:
    """What keeps this machine from having such hosts, and the remedy, in one line."""
    packages = {package for command, package in commands.items() if shutil.which(command) is None}
    if packages:
        return f"needs Debian's packages: apt-get install {' '.join(sorted(packages))}"
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    return None


def folder_of(name: str) -> Path:
    """Where a network keeps its files."""
    return Path(tempfile.gettempdir()) / name


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """For one network of a name at a time. What a run that was killed left behind is removed first."""
    path = Path(tempfile.gettempdir()) / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    claim = socket.socket(socket.AF_UNIX)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another run holds {path}: wait for it to end") from None
        # Containers with folders of their own can share what names namespaces. A name without a path is the network's of
        # this process, and goes with it.
        try:
            claim.bind(f"\0{name}")
        except OSError:
            raise SetupError(f"another run holds the network {name}: wait for it to end") from None
        remove(name)
        yield
    finally:
        claim.close()
        os.close(descriptor)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a host has sent and received so far, as its port of the switch counts them."""

    sent_bytes: int
    received_bytes: int


class Host:
    """One host of a network; made by `Network.host`."""

    def __init__(self, network: Network, number: int, what: str) -> None:
        self._network, self._number = network, number
        self.what = what
        self.name = f"{network.name}-{what}"
        self.address = f"10.77.0.{number + 1}"
        self.address6 = f"fd77::{number + 1:x}"
        #: Of the process that keeps its mounts and its name; None: it has none of its own.
        self.holder_pid: int | None = None
        self._holder: subprocess.Popen | None = None

    def settle(self) -> None:
        """From now on the host has mounts of its own, and its name."""
        line = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c"]
        script = 'hostname "$0" && echo settled && exec sleep infinity'
        self._holder = subprocess.Popen(
            [*self._enter_network(), *line, script, self.what],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Not this process's: it would stay open where this process is killed.
            stderr=subprocess.STDOUT,
            # Ctrl-C is for who made the network, and takes it down in order.
            start_new_session=True,
            env=self.environment(),
            text=True,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        if said != "settled\n":
            raise SetupError(f"{self.name}: no mounts of its own: {said.strip()}")
        self.holder_pid = self._holder.pid

    def leave(self) -> None:
        """It has no mounts any more, and none of its processes lives."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def command(self, line: list[Any]) -> list[str]:
        """The same command on this host. It becomes the command: its process is the command's."""
        where = self._enter_network()
        if self.holder_pid is not None:
            where = ["nsenter", f"--target={self.holder_pid}", "--net", "--mount", "--uts", "--"]
        return [*where, *map(str, line)]

    def start(self, line: list[Any], **options: Any) -> subprocess.Popen:
        """Starts a command on this host, in a session of its own."""
        options = {"stdin": subprocess.DEVNULL, "env": self.environment(), "start_new_session": True, **options}
        return subprocess.Popen(self.command(line), **options)

    def environment(self) -> dict[str, str]:
        """For a process of this host: it shows whose it is."""
        return {**os.environ, "FORESEE_NETWORK": self._network.name}

    def run(self, *line: object) -> str:
        """What a command on this host printed."""
        return run(*self.command(list(line)))

    def view(self, path: Path) -> Path:
        """A file or folder of this host, as it is reached from outside."""
        assert self.holder_pid is not None
        return Path(f"/proc/{self.holder_pid}/root{path}")

    def slow_down(self, mbit: int) -> None:
        """From now on the line carries no more than this, either way."""
        shaper = ["root", "tbf", "rate", f"{mbit}mbit", "burst", BURST, "latency", QUEUE]
        run("tc", "-n", self.name, "qdisc", "replace", "dev", LINE, *shaper)
        run("tc", "-n", self._network.switch, "qdisc", "replace", "dev", self._port, *shaper)

    def cut(self) -> None:
        """Pulls the cable: what is sent is lost, and nobody is told."""
        run("ip", "-n", self._network.switch, "link", "set", self._port, "down")

    def mend(self) -> None:
        run("ip", "-n", self._network.switch, "link", "set", self._port, "up")

    def switch_off(self) -> None:
        """Switches the interface itself off, on the host: who sends there is told that there is no way."""
        run("ip", "-n", self.name, "link", "set", LINE, "down")

    def traffic(self) -> Traffic:
        (link,) = json.loads(run("ip", "-n", self._network.switch, "-s", "-j", "link", "show", "dev", self._port))
        # What the switch receives, the host has sent.
        return Traffic(link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"])

    def make(self) -> None:
        switch, port = self._network.switch, self._port
        run("ip", "netns", "add", self.name)
        run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", LINE, "netns", self.name)
        run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", self.name, "address", "add", f"{self.address}/24", "dev", LINE)
        # Where IPv6 is switched off, hosts have none.
        with contextlib.suppress(SetupError):
            run("ip", "-n", self.name, "address", "add", f"{self.address6}/64", "dev", LINE, "nodad")
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        run("ip", "-n", self.name, "link", "set", LINE, "up")

    def _enter_network(self) -> list[str]:
        # Not `ip netns exec`, which hides /sys/fs/cgroup.
        return ["nsenter", f"--net={NAMESPACES / self.name}", "--"]

    @property
    def _port(self) -> str:
        return f"port{self._number}"


class Network:
    """A switch and its hosts, from `with` to its end; then all that runs on them is ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.switch = f"{name}-switch"
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remove(self.name)
        for host in self.hosts:
            host.leave()

    def host(self, what: str, mbit: int | None = None) -> Host:
        """One more host, with a line of so many Mbit/s, or as fast as the machine can."""
        assert len(self.hosts) < HOSTS_MAX
        host = self._next(what)
        host.make()
        if mbit is not None:
            host.slow_down(mbit)
        return host

    def found(self, what: str, holder_pid: int | None) -> Host:
        """The next host again, which another process made."""
        host = self._next(what)
        host.holder_pid = holder_pid
        return host

    def _next(self, what: str) -> Host:
        host = Host(self, len(self.hosts), what)
        self.hosts.append(host)
        return host


def received_bytes() -> int:
    """What this process's own host has received over its line so far."""
    for text in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = text.partition(":")
        if name.strip() == LINE:
            return int(numbers.split()[0])
    raise SetupError(f"this process is on no host: there is no {LINE}")


def remove(name: str) -> None:
    """Takes down whatever there is of a network: processes on its hosts first, then the hosts, then its folder."""
    namespaces = sorted(path.name for path in NAMESPACES.glob(f"{name}-*")) if NAMESPACES.is_dir() else []
    deadline = time.monotonic() + STOP_S_MAX
    while (left := [pid for each in namespaces for pid in _pids(each)]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for each in namespaces:
        _output("ip", "netns", "delete", each)
    folder = folder_of(name)
    if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
        shutil.rmtree(folder)


def _pids(namespace: str) -> list[int]:
    """Processes of a namespace. Those that have ended but were not waited for have none any more."""
    return [int(pid) for pid in _output("ip", "netns", "pids", namespace).split()]


def until(is_there: Callable[[], bool], otherwise: Callable[[], str], *needed: subprocess.Popen) -> None:
    """Waits for something that processes bring about; they must live."""
    deadline = time.monotonic() + START_S_MAX
    while not is_there():
        ended = any(process.poll() is not None for process in needed)
        if ended or time.monotonic() > deadline:
            raise SetupError(otherwise())
        time.sleep(0.05)


def end(process: subprocess.Popen) -> None:
    """Asks a process to end, and makes it after a while."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(*line: object) -> str:
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(map(str, line))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _output(*line: str) -> str:
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout
