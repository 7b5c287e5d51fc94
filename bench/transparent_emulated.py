"""`foresee run` on an emulated source (slow_files.c): a line of 50 MB/s, where each read may take some milliseconds more.

Files are small, as images are. What the source gave is counted there, so nothing of the caches between is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transparent_common import REST_S, SHUFFLED, TORCH_PYTHON, folder, foresee, made, timed

HERE = Path(__file__).resolve().parent
MB_PER_S = 50
# The copying process of a run lives so much longer; it is not to be measured with the next.
AFTER_S = 2.5


def missing() -> str | None:
    """What keeps this machine from having an emulated source, and the remedy, in one line."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        return "needs root and FUSE (/dev/fuse)"
    if shutil.which("cc") is None:
        return "needs a C compiler: apt-get install gcc libc6-dev"
    return None


class Counted(NamedTuple):
    """What the source was asked for so far."""

    looks: int
    opens: int
    reads: int
    bytes: int


@dataclass(frozen=True)
class Done:
    took_s: float
    reads: int
    bytes: int
    stdout: str


class Emulated:
    """A folder of files, and the same as a slow source."""

    def __init__(self, files: Path, source: Path, counts: Path) -> None:
        self.files, self.source = files, source
        self._counts = counts

    def counted(self) -> Counted:
        return Counted(*struct.unpack("4Q", self._counts.read_bytes()))

    def run(self, words: list) -> Done:
        before = self.counted()
        done = timed(words)
        time.sleep(AFTER_S)
        after = self.counted()
        return Done(done.took_s, after.reads - before.reads, after.bytes - before.bytes, done.stdout)


@contextlib.contextmanager
def emulated(here: Path, files: Path, delay_ms: float = 0) -> Iterator[Emulated]:
    """The files, at 50 MB/s."""
    program, point, counts = here / "slow_files", here / f"source-{delay_ms}", here / "counts"
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, HERE / "slow_files.c"], check=True)
    point.mkdir()
    words = [program, files, point, MB_PER_S, delay_ms, counts]
    with subprocess.Popen([str(word) for word in words]) as server:
        try:
            until = time.monotonic() + 10
            while not os.path.ismount(point):
                if server.poll() is not None or time.monotonic() > until:
                    sys.exit("slow_files did not start")
                time.sleep(0.01)
            yield Emulated(files, point, counts)
        finally:
            subprocess.run(["umount", "-l", point], check=False)


# --- The first epoch -------------------------------------------------------------------------------------------------

READ_SMALL = f"""{SHUFFLED}
for path in paths:
    with open(path, "rb") as file:
        file.read()
"""


def cold(rounds: int = 9, files: int = 1500, size: int = 110_000) -> None:
    """One pass over small files with an empty cache, each read and nothing else done, beside the same pass plainly.

    Single passes differ by more than what is measured: medians of ratios within a round, and minima of all passes, are told."""
    with folder() as here, folder(Path("/dev/shm")) as memory:
        total = made(here / "files", files, size)
        time.sleep(REST_S)
        with emulated(here, here / "files") as slow:
            program = [sys.executable, "-c", READ_SMALL, slow.source, "1"]
            took_s: dict[str, list[float]] = {}
            for turn in range(rounds):
                passes = {
                    "plain": program,
                    "disk": [*foresee(slow.source, here / f"cache{turn}", 2 * total), *program],
                    "memory": [*foresee(slow.source, memory / f"cache{turn}", 2 * total), *program],
                }
                names = list(passes)
                for name in names[turn % 3 :] + names[: turn % 3]:
                    run = slow.run(passes[name])
                    took_s.setdefault(name, []).append(run.took_s)
                    print(f"{name:6} {run.took_s:.2f} s, {run.bytes / 1e6:.1f} MB", flush=True)
            for name in ("disk", "memory"):
                ratios = [run_s / plain_s for run_s, plain_s in zip(took_s[name], took_s["plain"], strict=True)]
                least = min(took_s[name]) / min(took_s["plain"])
                print(
                    f"cold first epoch, {files} files of {size // 1000} kB, cache in {name}: "
                    f"median {statistics.median(ratios):.3f}x, minima {least:.3f}x (at most 1.10)"
                )


# --- Reading ahead ---------------------------------------------------------------------------------------------------

# A loader of two processes, as torch's: each takes the batches in turn, and the trainer waits for them in order.
LOADER = """
import multiprocessing, sys, time
from pathlib import Path

def load(paths, orders, answers):
    for batch in iter(orders.get, None):
        answers.put([len(Path(paths[index]).read_bytes()) for index in batch])

def main():
    folder, epochs, work_s, order = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    paths = sorted(str(path) for path in Path(folder).rglob("*.jpg"))
    lists = [list(map(int, line.split())) for line in Path(order).read_text().splitlines()]
    orders = [multiprocessing.Queue() for _ in range(2)]
    answers = [multiprocessing.Queue() for _ in range(2)]
    workers = [multiprocessing.Process(target=load, args=[paths, *pair], daemon=True) for pair in zip(orders, answers)]
    for worker in workers: worker.start()
    waited = []
    for epoch in range(epochs):
        batches = [lists[epoch][at:at + 8] for at in range(0, len(paths), 8)]
        waited.append(0.0)
        ahead = 0
        for at in range(len(batches)):
            while ahead < min(at + 4, len(batches)):
                orders[ahead % 2].put(batches[ahead]); ahead += 1
            began = time.perf_counter()
            answers[at % 2].get()
            waited[-1] += time.perf_counter() - began
            time.sleep(work_s)
    print(" ".join(f"{each:.3f}" for each in waited))
    for queue in orders: queue.put(None)

if __name__ == "__main__":
    main()
"""

ORDERS = """
import sys, torch
count, seed, epochs = map(int, sys.argv[1:])
for epoch in range(epochs):
    print(*torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist())
"""


def torch_orders(count: int, seed: int, epochs: int) -> str:
    words = [TORCH_PYTHON, "-c", ORDERS, str(count), str(seed), str(epochs)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit("needs torch: FORESEE_TORCH_PYTHON names a Python that has it")
    return done.stdout


def ahead(files: int = 1200, size: int = 50_000, epochs: int = 5, seed: int = 3) -> None:
    orders = torch_orders(files, seed, epochs)
    total = files * size
    window = max(total // 2 // 16, 32 * size)
    kept = (total // 2 - window) // size * size
    least = total + (epochs - 1) * (total - kept)
    with folder() as here:
        for label in range(4):
            made(here / "files" / f"class{label}", files // 4, size, f"{label}-{{:05}}.jpg")
        (here / "order").write_text(orders)
        (here / "loader.py").write_text(LOADER)
        time.sleep(REST_S)
        for delay_ms, work_s in ((0, 0.012), (5, 0.02)):
            with emulated(here, here / "files", delay_ms) as slow:
                program = [sys.executable, here / "loader.py", slow.source, epochs, work_s, here / "order"]
                sampler = ["--sampler", "torch-distributed", "--seed", seed, "--epochs", epochs]
                waits = {}
                for name, more in (("plain", None), ("run", []), ("run --sampler", sampler)):
                    stats = here / "stats.json"
                    cache = here / f"cache-{delay_ms}-{name.split()[-1]}"
                    before = []
                    if more is not None:
                        before = foresee(slow.source, cache, total // 2, "--stats-json", stats, *more)
                    done = slow.run([*before, *program])
                    waited = [float(word) for word in done.stdout.split()]
                    waits[name] = sum(waited)
                    told = "" if more is None else counted(stats)
                    print(
                        f"{delay_ms} ms: {name:14} waited {sum(waited):6.2f} s {waited}, "
                        f"source {done.bytes / 1e6:.1f} MB in {done.reads} reads{told}",
                        flush=True,
                    )
                ratio = waits["run --sampler"] / waits["run"]
                print(
                    f"{delay_ms} ms: {ratio:.2f}x the wait without --sampler (at most 0.6 with 5 ms); "
                    f"the policy's minimum is {least / 1e6:.1f} MB"
                )


def counted(stats: Path) -> str:
    told = json.loads(stats.read_text())
    skips = {why: count for why, count in told["skips"].items() if count}
    return f", {told['ahead']} ahead, {told['off_order']} off order, skipped {skips}"
