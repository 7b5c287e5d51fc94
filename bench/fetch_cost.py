#!/usr/bin/env python3
"""What it costs to fetch a sample from another rank of the same host: processor time a byte, beside that of copying it once.

    bench/fetch_cost.py FORESEE [--ranks 4] [--samples 2000] [--size 105000]

FORESEE is the command, of a release build. Ranks that keep a dataset between them run for some and for more epochs; what the
more take beyond the some is what epochs cost that read nothing from the source. The same ranks then run without each other,
each with memory for all of the dataset: what a byte costs that comes from a rank's own memory, the trainer's look at it
included. What the first took beyond that is laid on the bytes that came from other ranks. A copy is measured in as many
processes at a time as there are ranks: samples of the same size, in any order, from shared memory to memory of one's own.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

# By the first, ranks of up to 8 that have memory for all have seen nearly every sample.
EPOCHS = (26, 66)
PEERS = ("host_peer", "peer")
COPIES = 10


class Taken(NamedTuple):
    """Of a run: processor time, bytes that the trainers were given, and those of them that came from other ranks."""

    cpu_s: float
    delivered_bytes: int
    fetched_bytes: int


def run(told: argparse.Namespace, folder: Path, epochs: int, transport: str, memory_bytes: int) -> Taken:
    env = {**os.environ, "FORESEE_CATALOG_PATH": "", "FORESEE_PEERS_TRANSPORT": transport}
    command = [told.foresee, "bench", str(folder), "--ranks", str(told.ranks), "--epochs", str(epochs)]
    command += ["--batch", "32", "--memory", f"{memory_bytes} B", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    origins = json.loads(done.stdout)["stats"]["origins"]
    return Taken(
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        sum(origin["bytes"] for origin in origins.values()),
        sum(origins[peer]["bytes"] for peer in PEERS if peer in origins),
    )


def later_epochs(told: argparse.Namespace, folder: Path, transport: str, memory_bytes: int) -> Taken:
    some, more = (run(told, folder, epochs, transport, memory_bytes) for epochs in EPOCHS)
    return Taken(*(later - sooner for sooner, later in zip(some, more, strict=True)))


def copying_s(told: argparse.Namespace) -> float:
    """Samples are copied from a shared mapping to a private place, as one who fetches by copying would."""
    shared = mmap.mmap(-1, told.samples * told.size)
    # Touched, so that no page is made while it is measured.
    shared.write(os.urandom(1 << 20) * (len(shared) // (1 << 20)))
    source, into = memoryview(shared), memoryview(bytearray(64 * told.size))
    order = list(range(told.samples))
    random.Random(0).shuffle(order)
    began_s = time.process_time()
    for turn, sample in enumerate(order * COPIES):
        place = turn % 64 * told.size
        into[place : place + told.size] = source[sample * told.size : (sample + 1) * told.size]
    return time.process_time() - began_s


def copy_ns_per_byte(told: argparse.Namespace) -> float:
    with multiprocessing.Pool(told.ranks) as pool:
        taken = pool.map(copying_s, [told] * told.ranks, chunksize=1)
    return statistics.mean(taken) / (COPIES * told.samples * told.size) * 1e9


def measure(told: argparse.Namespace, folder: Path) -> float:
    """One round, printed; how many times a copy's processor time a fetched byte takes."""
    all_bytes = told.samples * told.size * 102 // 100
    own = later_epochs(told, folder, "none", all_bytes)
    shared = later_epochs(told, folder, told.transport, all_bytes // told.ranks)
    own_ns = own.cpu_s / own.delivered_bytes * 1e9
    fetching_s = shared.cpu_s - own_ns * shared.delivered_bytes / 1e9
    fetch_ns = fetching_s / shared.fetched_bytes * 1e9
    copy_ns = copy_ns_per_byte(told)
    fetched = shared.fetched_bytes / shared.delivered_bytes
    print(
        f"own memory {own_ns:.3f} ns/B; {fetched:.0%} fetched, {fetch_ns:.3f} ns/B more; copy {copy_ns:.3f} ns/B",
        flush=True,
    )
    return fetch_ns / copy_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("foresee")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--size", type=int, default=105_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transport", default="auto")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "class"
        folder.mkdir()
        for sample in range(told.samples):
            (folder / f"{sample:06}.jpg").write_bytes(sample.to_bytes(4, "little") * (told.size // 4))
        ratios = [measure(told, folder.parent) for _ in range(told.rounds)]
    ratio = statistics.median(ratios)
    least, most = min(ratios), max(ratios)
    print(f"to fetch a byte takes {ratio:.2f} times the processor time of copying it once ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()
