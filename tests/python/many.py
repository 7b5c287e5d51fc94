"""Ranks as processes: each runs `rank.py`, all step together if they are to, and what each got is compared with the files.

The parent is the barrier of a step, as a collective is in training: a rank writes a line when it has its batch, and goes on
when it is answered. A rank that is gone is not waited for.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from conftest import PACKAGE
from made import content
from traced import READS, read_bytes, strace

RANK = Path(__file__).with_name("rank.py")

#: What samples that come from other ranks are counted as, by how ranks reach each other.
ORIGINS = {"auto": "host_peer", "tcp": "peer"}


class Place(NamedTuple):
    """Where a rank is: what it is started by, and what of its environment is not as that of ranks of this host."""

    prefix: tuple[str, ...] = ()
    env: Mapping[str, object] = {}


class Ranks:
    """The processes of one job."""

    def __init__(
        self,
        paths: list[Path],
        ranks: int,
        folder: Path,
        *,
        trace: bool = False,
        traced: str = READS,
        place: Callable[[int], Place] | None = None,
        port: int | None = None,
        **options: Any,
    ):
        """`place` says where a rank is, unless all are on this host; `port` is rank 0's, unless any will do; `traced` are the
        calls that strace writes down."""
        self.ranks, self.folder = ranks, folder
        folder.mkdir(exist_ok=True)
        self.place = place or (lambda _: Place())
        self.results = [folder / f"rank{rank}.json" for rank in range(ranks)]
        self.logs = [folder / f"strace{rank}" for rank in range(ranks)]
        self.told: dict[str, Any] = {"paths": [str(path) for path in paths], **options}
        self.prefix = strace(traced) if trace else ()
        self.port = port or free_port()
        #: How many steps each rank has taken.
        self.steps = [0] * ranks
        self.processes = [self._start(rank) for rank in range(ranks)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        place = {"RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": self.ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port - 1, "PYTHONPATH": PACKAGE}
        where = self.place(rank)
        env = {**os.environ, **{key: str(value) for key, value in {**place, **meeting, **where.env}.items()}}
        told = self._tell(rank)
        prefix = [*where.prefix, *self.prefix, "-o", str(self.logs[rank])] if self.prefix else where.prefix
        with (self.folder / f"stderr{rank}").open("w") as stderr:
            return subprocess.Popen(
                [*prefix, sys.executable, "-B", str(RANK), str(told)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
            )

    def _tell(self, rank: int) -> Path:
        """Writes down what a rank is to do."""
        told = self.folder / f"told{rank}.json"
        told.write_text(json.dumps({**self.told, "result": str(self.results[rank])}))
        return told

    def step_together(self, timeout_s: float = 120, at_step: Callable[[int, "Ranks"], None] | None = None) -> None:
        """Lets all ranks that live take their steps together until they have ended."""
        end_s, step = time.monotonic() + timeout_s, 0
        living = dict(enumerate(self.processes))
        while living:
            arrived = {}
            for rank, process in list(living.items()):
                if line(process, end_s) == "":
                    del living[rank]
                else:
                    arrived[rank] = process
            if at_step is not None:
                at_step(step, self)
            for process in arrived.values():
                go_on(process)
            step += 1

    def run_free(self, timeout_s: float = 120) -> None:
        """Lets each rank take its steps alone."""
        end_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self.processes):
                waiting.register(process.stdout, selectors.EVENT_READ, (rank, process))
            while waiting.get_map():
                ready = waiting.select(max(end_s - time.monotonic(), 0))
                assert ready, "ranks did not end in time"
                for key, _ in ready:
                    rank, process = key.data
                    if process.stdout.readline() == "":
                        waiting.unregister(key.fileobj)
                    else:
                        self.steps[rank] += 1
                        go_on(process)

    def wait_for_steps(self, steps: int, timeout_s: float = 60) -> None:
        """Until all ranks have taken so many; somebody else lets them."""
        end_s = time.monotonic() + timeout_s
        while min(self.steps) < steps:
            assert time.monotonic() < end_s, f"ranks are at steps {self.steps}"
            time.sleep(0.05)

    def end(self, timeout_s: float = 60, lost: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """What the ranks that were not lost got, each checked against the files; all have ended well."""
        for rank, process in enumerate(self.processes):
            # Who is gone does not read what was written to it last.
            with suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait(timeout_s)
            assert code == 0 or rank in lost, f"rank {rank}: {code}\n{self.said(rank)}"
        return [json.loads(path.read_text()) for rank, path in enumerate(self.results) if rank not in lost]

    def said(self, rank: int) -> str:
        return (self.folder / f"stderr{rank}").read_text()

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        self.processes[rank].send_signal(number)

    def source_bytes(self) -> int:
        """Bytes of samples that all ranks read from files, as the kernel was asked for them."""
        return sum(self.source_bytes_by_file().values())

    def source_bytes_by_file(self) -> Counter[str]:
        """The same for each file that was read."""
        return sum((read_bytes(log) for log in self.logs), Counter())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


def line(process: subprocess.Popen[str], end_s: float) -> str:
    """The next line of a rank; empty when it has ended."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        assert waiting.select(max(end_s - time.monotonic(), 0)), "a rank did not take its step in time"
    return process.stdout.readline()


def go_on(process: subprocess.Popen[str]) -> None:
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return max(found.getsockname()[1], 1025)


def check_epochs(got: list[dict[str, Any]], samples: int, epochs: int) -> None:
    """Every sample was delivered exactly once an epoch over all ranks, with the bytes of its file (checked by the rank)."""
    for epoch in range(epochs):
        delivered = sorted(index for rank in got for index in rank["epochs"][epoch])
        assert delivered == list(range(samples)), f"epoch {epoch}"
    assert not any(rank["wrong"] for rank in got)


def make_files(folder: Path, samples: int, size: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{sample:05}.bin" for sample in range(samples)]
    for sample, path in enumerate(paths):
        path.write_bytes(content(sample, size))
    return paths
