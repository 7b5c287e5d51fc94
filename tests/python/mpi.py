"""Ranks that mpirun starts, with whichever MPI, in the place of processes that the tests start themselves (`many`).

mpirun gives its input to one rank only, so each rank is joined to the test by a socket (`mpi_rank.py`).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE
from many import Ranks

SHIM = Path(__file__).with_name("mpi_rank.py")
#: How each MPI's launcher is called; as root and with more ranks than cores.
LAUNCHERS = {
    "openmpi": ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
    "mpich": ("mpirun.mpich",),
}
#: What a library of each is called.
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}


def launcher(kind: str, ranks: int) -> list[str]:
    """What starts so many ranks; the test is skipped where there is no such MPI."""
    program, *options = LAUNCHERS[kind]
    if not (found := shutil.which(program)):
        pytest.skip(f"no {program}: install Debian's package {kind if kind == 'mpich' else 'openmpi-bin'}")
    return [found, *options, "-n", str(ranks)]


class Member:
    """A rank that mpirun started, as the tests use a process."""

    def __init__(self, line: socket.socket, pid: int, mpirun: subprocess.Popen[str]):
        self.stdin, self.stdout = line.makefile("w", buffering=1), line.makefile("r")
        self.line, self.pid, self.mpirun = line, pid, mpirun

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self.mpirun.poll()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.mpirun.kill()

    def wait(self, timeout_s: float | None = None) -> int:
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)
        return self.mpirun.wait(timeout_s)


class MpiRanks(Ranks):
    """The processes of one job under mpirun."""

    def __init__(self, kind: str, paths: list[Path], ranks: int, folder: Path, *, env=None, **options: Any):
        self.command, self.env = launcher(kind, ranks), env or {}
        super().__init__(paths, ranks, folder, **options)
        self.processes = self._launch()

    def _start(self, rank: int) -> None:
        self._tell(rank)

    def _launch(self) -> list[Member]:
        place = self.folder / "ranks.sock"
        place.unlink(missing_ok=True)
        prefix = [str(word) for word in self.prefix]
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        env = {name: value for name, value in os.environ.items() if name not in names}
        env |= {"PYTHONPATH": str(PACKAGE), **self.env}
        with socket.socket(socket.AF_UNIX) as ear, (self.folder / "stderr").open("w") as stderr:
            ear.bind(str(place))
            ear.listen(self.ranks)
            ear.settimeout(60)
            command = [*self.command, sys.executable, "-B", str(SHIM), str(self.folder), *prefix]
            mpirun = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
            members: dict[int, Member] = {}
            try:
                while len(members) < self.ranks:
                    line, _ = ear.accept()
                    rank, pid = line.makefile().readline().split()
                    members[int(rank)] = Member(line, int(pid), mpirun)
            except TimeoutError:
                mpirun.kill()
                raise AssertionError(f"mpirun started {len(members)} ranks\n{self.said()}") from None
        return [members[rank] for rank in range(self.ranks)]

    def said(self, rank: int = 0) -> str:
        return (self.folder / "stderr").read_text()

    def end_of_all(self, timeout_s: float = 60) -> tuple[int, float]:
        """How the job ended, and how long that took."""
        began_s = time.monotonic()
        code = self.processes[0].mpirun.wait(timeout_s)
        return code, time.monotonic() - began_s
