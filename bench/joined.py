"""Processes that a launcher starts (mpirun, srun), joined to whoever asked for them by a line of their own.

Launchers give their input to one rank, or to all, and mix what ranks print. So each rank is started as

    python joined.py PLACE COMMAND...

which connects its input and output to the socket at PLACE, says which rank and process it is, and becomes the command; `{rank}`
in a word of it is the rank. Hosts of this machine that are network namespaces share such sockets: they are files.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Which rank a process is, by launcher.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
START_S_MAX = 60


class Member:
    """A rank that a launcher started, used as a process of one's own is."""

    def __init__(self, line: socket.socket, pid: int, launcher: subprocess.Popen[str]) -> None:
        self.stdin, self.stdout = line.makefile("w", buffering=1), line.makefile("r")
        self.line, self.pid, self.launcher = line, pid, launcher

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self.launcher.poll()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.launcher.kill()

    def wait(self, timeout_s: float | None = None) -> int:
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)
        return self.launcher.wait(timeout_s)


def joined(place: Path, ranks: int, launch: Callable[[], subprocess.Popen[str]]) -> list[Member]:
    """All ranks of what is launched, in their order; TimeoutError where not all come, and then the launcher is ended."""
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(str(place))
        ear.listen(ranks)
        ear.settimeout(START_S_MAX)
        launcher = launch()
        members: dict[int, Member] = {}
        try:
            while len(members) < ranks:
                line, _ = ear.accept()
                rank, pid = line.makefile().readline().split()
                members[int(rank)] = Member(line, int(pid), launcher)
        except TimeoutError:
            launcher.kill()
            launcher.wait()
            raise TimeoutError(f"{len(members)} of {ranks} ranks were started") from None
    return [members[rank] for rank in range(ranks)]


def command(place: Path, line: list[object]) -> list[str]:
    """What a launcher is to start."""
    return [sys.executable, "-B", __file__, str(place), *map(str, line)]


def main() -> None:
    place, *line = sys.argv[1:]
    rank = next(os.environ[name] for name in RANKS if name in os.environ)
    joint = socket.socket(socket.AF_UNIX)
    joint.connect(place)
    joint.sendall(f"{rank} {os.getpid()}\n".encode())
    os.dup2(joint.fileno(), 0)
    os.dup2(joint.fileno(), 1)
    line = [word.replace("{rank}", rank) for word in line]
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
