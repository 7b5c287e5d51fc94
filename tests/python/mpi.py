"""Ranks that mpirun starts, with whichever MPI, in the place of processes that the tests start themselves (`many`).

mpirun gives its input to one rank only, so each rank is joined to the test by a socket (bench/joined.py).
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE
from many import RANK, Ranks

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from joined import Member, command, joined

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


class MpiRanks(Ranks):
    """The processes of one job under mpirun."""

    def __init__(self, kind: str, paths: list[Path], ranks: int, folder: Path, *, env=None, **options: Any):
        self.command, self.env = launcher(kind, ranks), env or {}
        super().__init__(paths, ranks, folder, **options)
        self.processes = self._launch()

    def _start(self, rank: int) -> None:
        self._tell(rank)

    def _launch(self) -> list[Member]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        env = {name: value for name, value in os.environ.items() if name not in names}
        env |= {"PYTHONPATH": str(PACKAGE), **self.env}
        place = self.folder / "ranks.sock"
        log = ["-o", self.folder / "strace{rank}"] if self.prefix else []
        rank = [*self.prefix, *log, sys.executable, "-B", RANK, self.folder / "told{rank}.json"]
        with (self.folder / "stderr").open("w") as stderr:

            def launch() -> subprocess.Popen[str]:
                line = [*self.command, *command(place, rank)]
                return subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)

            try:
                return joined(place, self.ranks, launch)
            except TimeoutError as error:
                raise AssertionError(f"mpirun: {error}\n{self.said()}") from None

    def said(self, rank: int = 0) -> str:
        return (self.folder / "stderr").read_text()

    def end_of_all(self, timeout_s: float = 60) -> tuple[int, float]:
        """How the job ended, and how long that took."""
        began_s = time.monotonic()
        code = self.processes[0].launcher.wait(timeout_s)
        return code, time.monotonic() - began_s
