#!/usr/bin/env python3
"""What it costs to fetch a sample from another rank of the same host: processor time a byte, beside that of copying it once.

    bench/fetch_cost.py FORESEE [--ranks 4] [--samples 2000] [--size 105000]

FORESEE is the command, of a release build. Ranks that keep a dataset between them run for few and for many epochs; what the
many take beyond the few is what epochs cost that read nothing from the source. All of it, the trainers' steps and what comes
from a rank's own memory included, is laid on the bytes that came from other ranks. A copy is measured in this process: samples
of the same size, in any order, from one place of memory that is shared to another.
"""

import argparse
import json
import mmap
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

EPOCHS = (2, 42)


def cpu_s(command: list[str], env: dict[str, str]) -> tuple[float, dict]:
    """Processor time of a command and all that it started, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout)


def fetch_ns_per_byte(told: argparse.Namespace, folder: Path) -> float:
    kept = told.samples * told.size * 102 // 100 // told.ranks
    env = {**os.environ, "FORESEE_CATALOG_PATH": "", "FORESEE_PEERS_TRANSPORT": told.transport}
    taken = []
    for epochs in EPOCHS:
        command = [told.foresee, "bench", str(folder), "--ranks", str(told.ranks), "--epochs", str(epochs)]
        command += ["--batch", "32", "--memory", f"{kept} B", "--json"]
        cpu, said = cpu_s(command, env)
        origins = said["stats"]["origins"]
        fetched = sum(origins[peer]["bytes"] for peer in ("host_peer", "peer") if peer in origins)
        taken.append((cpu, fetched))
    (few_s, few_bytes), (many_s, many_bytes) = taken
    return (many_s - few_s) / (many_bytes - few_bytes) * 1e9


def copy_ns_per_byte(told: argparse.Namespace) -> float:
    """Samples are copied from a shared mapping to a private place, as one who fetches by copying would."""
    shared = mmap.mmap(-1, told.samples * told.size)
    # Touched, so that no page is made while it is measured.
    shared.write(os.urandom(1 << 20) * (len(shared) // (1 << 20)))
    source, into = memoryview(shared), memoryview(bytearray(64 * told.size))
    order = list(range(told.samples))
    random.Random(0).shuffle(order)
    began_s = time.process_time()
    for turn, sample in enumerate(order * 4):
        place = turn % 64 * told.size
        into[place : place + told.size] = source[sample * told.size : (sample + 1) * told.size]
    return (time.process_time() - began_s) / (4 * len(order) * told.size) * 1e9


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
        rounds = [(fetch_ns_per_byte(told, folder.parent), copy_ns_per_byte(told)) for _ in range(told.rounds)]
    for fetch, copy in rounds:
        print(f"fetch {fetch:.3f} ns/B, copy {copy:.3f} ns/B: {fetch / copy:.2f}")
    ratio = statistics.median(fetch / copy for fetch, copy in rounds)
    print(f"median: a fetched byte takes {ratio:.2f} times the processor time of copying it once")


if __name__ == "__main__":
    main()
