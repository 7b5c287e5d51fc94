#!/usr/bin/env python3
"""Two builds of foresee in turns: is one slower than the other?

    bench/pairs.py FOLDER OLD NEW [--pairs 15] [--cases raw get disk ...] [--json FILE]

OLD and NEW are what PYTHONPATH needs for either build (`tools/package.sh` prints it). A process for each, and a second one
of OLD as a control, take turns epoch by epoch; those whose turn it is not are stopped. What is told is the median of new
over old, pair by pair, with the 95 % interval of that median, beside the same for old over old: equal builds differ, too.
FOLDER has the layout of ImageFolder and is read before, so that it is in the page cache.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path

import raw
import train
from side_by_side import warm

BATCH = 128
# Of these decoding takes about as long as a whole epoch without.
TRAIN_BATCHES = 8
EPOCHS_MAX = 10_000
# A process is a little faster or slower than its twin for all of its life, by where its memory lies.
PAIRS_A_PROCESS = 5
# Whoever is stopped has threads that stop a moment later.
PAUSE_S = 0.02


@functools.cache
def listed(folder: Path):
    """Listed once: what is measured is loading."""
    import foresee

    return foresee.ImageFolder(folder)


def job(folder: Path, tiers: list[dict], epochs: int):
    import foresee

    return foresee.Job(listed(folder), BATCH, epochs, drop_last=True, config={"tier": tiers})


def in_memory(folder: Path) -> list[dict]:
    return [{"kind": "memory", "capacity": raw.on_disk(folder, "")[0]["capacity"] + (64 << 20)}]


# A case yields when an epoch can begin, and again when it has ended: what lies before and after is not measured.


def batches(running, epoch: int) -> Iterator[None]:
    yield
    for batch in running.epoch(epoch):
        raw.consume(batch.data, None)
    yield


def one_by_one(running, samples: Iterator) -> Iterator[None]:
    yield
    raw.consume(itertools.islice(samples, BATCH * running.steps_per_epoch), None)
    yield


def samples_of(running) -> Iterator:
    return map(itemgetter(0), iter(running.get, None))


def of_one_job(folder: Path, tiers: list[dict]) -> Iterator[None]:
    with job(folder, tiers, EPOCHS_MAX) as running:
        for epoch in range(EPOCHS_MAX):
            yield from batches(running, epoch)


def case_raw(folder: Path, _: Path) -> Iterator[None]:
    return of_one_job(folder, [])


def case_get(folder: Path, _: Path) -> Iterator[None]:
    with job(folder, [], EPOCHS_MAX) as running:
        samples = samples_of(running)
        while True:
            yield from one_by_one(running, samples)


def case_memory_first(folder: Path, _: Path) -> Iterator[None]:
    while True:
        with job(folder, in_memory(folder), 2) as running:
            yield from batches(running, 0)


def case_memory_first_get(folder: Path, _: Path) -> Iterator[None]:
    while True:
        with job(folder, in_memory(folder), 2) as running:
            yield from one_by_one(running, samples_of(running))


def case_memory(folder: Path, _: Path) -> Iterator[None]:
    return of_one_job(folder, in_memory(folder))


def filled(folder: Path, cache: Path) -> list[dict]:
    """A tier on disk that a job has filled."""
    tiers = raw.on_disk(folder, str(cache))
    with job(folder, tiers, 2) as running:
        for _ in running.epoch(0):
            pass
    return tiers


def case_disk_first(folder: Path, cache: Path) -> Iterator[None]:
    """The first epoch of a job on what a job before it has kept."""
    tiers = filled(folder, cache)
    while True:
        with job(folder, tiers, 2) as running:
            yield from one_by_one(running, samples_of(running))


def case_disk(folder: Path, cache: Path) -> Iterator[None]:
    return of_one_job(folder, filled(folder, cache))


def case_train(folder: Path, _: Path) -> Iterator[None]:
    import foresee

    dataset = foresee.ImageFolder(folder, transform=train.ours())
    while True:
        with foresee.Job(dataset, BATCH, 1, drop_last=True, config={}, threads=2) as running:
            yield
            for _batch in itertools.islice(running, TRAIN_BATCHES):
                pass
            yield


CASES: dict[str, Callable[[Path, Path], Iterator[None]]] = {
    name.removeprefix("case_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("case_")
}


# --- Turns -----------------------------------------------------------------------------------------------------------


def child(case: str, folder: Path) -> None:
    """Runs an epoch for each line, and says how long it took."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        epochs = CASES[case](folder, Path(cache))
        # The first epoch is nobody's: what is slow once only is not what is asked.
        next(epochs)
        next(epochs)
        next(epochs)
        print("ready", flush=True)
        for _ in sys.stdin:
            began_s = time.perf_counter()
            next(epochs)
            print(time.perf_counter() - began_s, flush=True)
            next(epochs)
            print("ready", flush=True)


class Build:
    """A process of one build, which runs only when it is its turn."""

    def __init__(self, package: Path, case: str, folder: Path):
        env = {key: value for key, value in os.environ.items() if not key.startswith("FORESEE_")}
        env |= {"PYTHONPATH": str(package), "OPENBLAS_NUM_THREADS": "1", "FORESEE_CATALOG_PATH": ""}
        command = [sys.executable, "-B", __file__, str(folder), "--child", case]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line()
        self.process.send_signal(signal.SIGSTOP)

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a build ended with exit code {self.process.wait()}")
        return line

    def epoch_s(self) -> float:
        self.process.send_signal(signal.SIGCONT)
        time.sleep(PAUSE_S)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        took_s = float(self.line())
        self.line()
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        return took_s

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def compare(case: str, args: argparse.Namespace) -> dict:
    """Speed of the new build, and of the old one's twin, over that of the old one."""
    took: dict[str, list[float]] = {"old": [], "new": [], "twin": []}
    draw = random.Random(0)
    for begun in range(0, args.pairs, PAIRS_A_PROCESS):
        builds = {name: Build(args.new if name == "new" else args.old, case, args.folder) for name in took}
        for _ in range(begun, min(begun + PAIRS_A_PROCESS, args.pairs)):
            # Who comes after whom is drawn: the one before leaves the machine's memory as it was for it.
            for name in draw.sample(list(builds), len(builds)):
                took[name].append(builds[name].epoch_s())
        for build in builds.values():
            build.end()
    return {
        "case": case,
        "pairs": args.pairs,
        "new": interval([old / new for old, new in zip(took["old"], took["new"], strict=True)]),
        "control": interval([old / twin for old, twin in zip(took["old"], took["twin"], strict=True)]),
        "took_s": took,
    }


def interval(ratios: list[float]) -> list[float]:
    """The median, and between which two ratios it is with 95 % certainty: by ranks, whatever the distribution."""
    ordered, number = sorted(ratios), len(ratios)
    chance, below = 0.5**number, 0
    # How many of the ratios may lie beyond on each side so that at most 2.5 % of all medians do.
    total = chance
    while total <= 0.025 and below < number // 2:
        below += 1
        chance *= (number - below + 1) / below
        total += chance
    low = max(below - 1, 0)
    return [statistics.median(ordered), ordered[low], ordered[number - 1 - low]]


def told(result: dict) -> str:
    parts = [
        f"{name} / old {median:.3f} [{low:.3f} {high:.3f}]"
        for name, (median, low, high) in (("new", result["new"]), ("control: old", result["control"]))
    ]
    return f"{result['case']:16} {result['pairs']} pairs: " + ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.folder)
    if not args.new:
        parser.error("two builds are needed: OLD and NEW")
    warm(args.folder)
    results = []
    for case in args.cases:
        results.append(compare(case, args))
        print(told(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
