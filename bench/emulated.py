#!/usr/bin/env python3
"""A slow source, emulated: what caching a part of the dataset brings, and how well the source is used meanwhile.

    cargo build --release --package foresee-cli
    bench/emulated.py [--samples 2000] [--size-kb 100] [--mb-per-s 50] [--latency-ms 0] [--cached 0.4]

Makes a dataset in a temporary folder and loads it with `foresee bench --throttle` without compute: without a cache, with
a memory tier and with a disk tier for the same part of it. Two figures for each:

- of ideal: how many times shorter the second epoch is than without a cache, over the ideal, which is the dataset's size
  over what the cache leaves to the source. Goal: 0.93 or more with the memory tier.
- source while stalled: the bytes that the source served while the trainer waited, over those that it could have served;
  on average, and in the worst second of waiting. Goal: never under 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import common

IDEAL_SHARE_MIN = 0.93
BANDWIDTH_SHARE_MIN = 0.95
EPOCHS = 3
WINDOW_S = 1.0


def stalls(trace: list[dict]) -> list[tuple[float, float]]:
    """From when to when the trainer waited."""
    return [(line["t_s"] - line["stall_s"], line["t_s"]) for line in trace if line["event"] == "batch"]


def served(trace: list[dict], bytes_per_s: float) -> list[tuple[float, float]]:
    """From when to when the source was busy with each read: it serves one after another, the last of a read's bytes when
    the read ends."""
    reads = [line for line in trace if line["event"] == "read" and line["origin"] == "source"]
    return [(read["t_s"] - read["bytes"] / bytes_per_s, read["t_s"]) for read in reads]


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def windows(waits: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Waiting time, cut into windows of a second of waiting; what is left over belongs to the last."""
    cut: list[list[tuple[float, float]]] = [[]]
    room_s = WINDOW_S
    for since, until in waits:
        while until - since > room_s:
            cut[-1].append((since, since + room_s))
            since, room_s = since + room_s, WINDOW_S
            cut.append([])
        cut[-1].append((since, until))
        room_s -= until - since
    if len(cut) > 1:
        cut[-2:] = [cut[-2] + cut[-1]]
    return cut


def source_use(trace: list[dict], bytes_per_s: float) -> tuple[float, float]:
    """The share of the source's bandwidth that was used while the trainer waited: on average, and in the worst second."""
    busy = served(trace, bytes_per_s)
    shares = []
    for window in windows(stalls(trace)):
        waited_s = sum(until - since for since, until in window)
        shares.append((sum(overlap(wait, read) for wait in window for read in busy), waited_s))
    return sum(used for used, _ in shares) / sum(waited for _, waited in shares), min(
        used / waited for used, waited in shares
    )


def measure(scratch: Path, name: str, options: list[object], args: argparse.Namespace) -> dict:
    trace = scratch / f"{name}.trace"
    throttle = f"{name}:{args.mb_per_s}:{args.latency_ms}"
    job = ["bench", scratch / "dataset", "--epochs", EPOCHS, "--throttle", throttle, "--trace", trace]
    ran = common.run(scratch, *job, *options)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    mean, worst = source_use(lines, args.mb_per_s * 1e6)
    return {"epochs_s": [epoch["total_s"] for epoch in ran["epochs"]], "mean": mean, "worst": worst, "ran": ran}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--size-kb", type=float, default=100)
    parser.add_argument("--mb-per-s", type=float, default=50)
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--cached", type=float, default=0.4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foresee-emulated-") as folder:
        scratch = Path(folder)
        total = sum(common.make_dataset(scratch / "dataset", args.samples, args.size_kb))
        # Or else the disk would be busy writing files while they are read.
        os.sync()
        capacity = int(args.cached * total)
        disk = scratch / "disk.toml"
        disk.write_text(
            f'[[tier]]\nkind = "disk"\ncapacity = {capacity}\npath = "{scratch / "tier"}"\nfree_space_floor = 0\n'
        )
        settings = {"none": [], "memory": ["--memory", capacity], "disk": ["--config", disk]}
        results = {name: measure(scratch, name, options, args) for name, options in settings.items()}
    report(results, total, capacity, args)


def report(results: dict[str, dict], total: int, capacity: int, args: argparse.Namespace) -> None:
    ideal = total / (total - capacity)
    print(
        f"{args.samples} samples, {total / 1e6:.0f} MB, {args.mb_per_s:g} MB/s after {args.latency_ms:g} ms, "
        f"{args.cached:.0%} cached: ideal {ideal:.3f}"
    )
    print(f"{'cache':8} {'epochs (s)':>24} {'ratio':>7} {'of ideal':>9}  source while stalled: mean, worst second")
    reached = True
    for name, result in results.items():
        ratio = results["none"]["epochs_s"][1] / result["epochs_s"][1]
        of_ideal = f"{ratio / ideal:9.3f}" if name != "none" else f"{'':9}"
        epochs = " ".join(f"{epoch:7.3f}" for epoch in result["epochs_s"])
        print(f"{name:8} {epochs:>24} {ratio:7.3f} {of_ideal}  {result['mean']:.1%}, {result['worst']:.1%}")
        if name != "disk":
            reached &= result["worst"] >= BANDWIDTH_SHARE_MIN
    reached &= results["none"]["epochs_s"][1] / results["memory"]["epochs_s"][1] >= IDEAL_SHARE_MIN * ideal
    print("goals reached" if reached else "goals MISSED")


if __name__ == "__main__":
    main()
