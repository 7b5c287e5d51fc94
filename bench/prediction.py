#!/usr/bin/env python3
"""The predicting simulator against the real loader: epoch times side by side.

    cargo build --release --package foresee-cli
    bench/prediction.py [--samples 2000] [--size-kb 100] [--epochs 3]

Makes a dataset in a temporary folder and, for each setting, loads it with `foresee bench` from an emulated source, and
gives `foresee simulate` a scenario with the same sizes, order, source, capacities, threads and compute. Goal: every epoch
within 10 %.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import common

DEVIATION_MAX = 0.10
# Without a remainder of the samples: the bench computes as long for a small last batch as for a full one.
BATCH = 100
STAGING_MB = 64
STAGING_THREADS = 4
TIER_THREADS = 2
# What the loader does at the speed of memory is next to nothing beside the source; so it is in the scenario.
FAST_MB_PER_S = 10_000


@dataclass(frozen=True)
class Setting:
    """What differs from setting to setting."""

    name: str
    mb_per_s: dict[int, float]
    latency_ms: float = 0
    cached: float = 0
    compute_ms: float = 0


SETTINGS = [
    Setting("staging", {1: 50}),
    Setting("memory", {1: 20, 4: 50}, latency_ms=2, cached=0.4),
    # Compute takes longer than what the cache leaves to the source, but less than the whole dataset from there.
    Setting("compute", {1: 50}, cached=0.4, compute_ms=160),
]


def curve(points: dict[int, float]) -> str:
    return "{ " + ", ".join(f"{readers} = {rate}" for readers, rate in points.items()) + " }"


def scenario(setting: Setting, sizes: list[int], epochs: int) -> str:
    batch_mb = sum(sizes) / len(sizes) * BATCH / 1e6
    compute = min(FAST_MB_PER_S, batch_mb / setting.compute_ms * 1e3) if setting.compute_ms else FAST_MB_PER_S
    tiers = [("staging", STAGING_MB, STAGING_THREADS)]
    if setting.cached:
        tiers.append(("memory", setting.cached * sum(sizes) / 1e6, TIER_THREADS))
    text = f"""
        name = "{setting.name}"
        [job]
        ranks = 1
        global_batch = {BATCH}
        epochs = {epochs}
        shuffle = "torch"
        compute_mb_per_s = {compute}
        preprocess_mb_per_s = {FAST_MB_PER_S}
        [dataset]
        samples = {len(sizes)}
        size_mb = {{ file = "sizes.txt" }}
        [system]
        network_mb_per_s = {FAST_MB_PER_S}
        source_link_mb_per_s = {FAST_MB_PER_S}
        source_read_mb_per_s = {curve(setting.mb_per_s)}
        source_latency_ms = {setting.latency_ms}
        contention = "reads"
        extrapolate = "clamp"
        """
    for name, capacity_mb, threads in tiers:
        text += f"""
        [[system.tier]]
        name = "{name}"
        capacity_mb = {capacity_mb}
        threads = {threads}
        read_mb_per_s = {{ 1 = {FAST_MB_PER_S} }}
        """
    return "\n".join(line.strip() for line in text.splitlines())


def predicted(scratch: Path, setting: Setting, sizes: list[int], epochs: int) -> list[float]:
    (scratch / "sizes.txt").write_text("".join(f"{size / 1e6:.6f}\n" for size in sizes))
    file = scratch / f"{setting.name}.toml"
    file.write_text(scenario(setting, sizes, epochs))
    (result,) = common.run(scratch, "simulate", file, "--policy", "foresee")["results"]
    return result["epochs_s"]


def measured(scratch: Path, setting: Setting, sizes: list[int], epochs: int) -> list[float]:
    rates = ",".join(f"{readers}={rate}" for readers, rate in setting.mb_per_s.items())
    options: list[object] = ["--throttle", f"{setting.name}:{rates}:{setting.latency_ms}"]
    options += ["--staging", f"{STAGING_MB} MB", "--threads", STAGING_THREADS]
    if setting.cached:
        options += ["--memory", round(setting.cached * sum(sizes))]
    job = ["bench", scratch / "dataset", "--batch", BATCH, "--epochs", epochs, "--compute-ms", setting.compute_ms]
    return [epoch["total_s"] for epoch in common.run(scratch, *job, *options)["epochs"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--size-kb", type=float, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    print(f"{'setting':10} {'epoch':>5} {'predicted':>10} {'measured':>10} {'deviation':>10}")
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="foresee-prediction-") as folder:
        scratch = Path(folder)
        sizes = common.make_dataset(scratch / "dataset", args.samples, args.size_kb)
        # Or else the disk would be busy writing files while they are read.
        os.sync()
        for setting in SETTINGS:
            prediction = predicted(scratch, setting, sizes, args.epochs)
            measurement = measured(scratch, setting, sizes, args.epochs)
            for epoch, (expected, found) in enumerate(zip(prediction, measurement, strict=True)):
                deviation = expected / found - 1
                worst = max(worst, abs(deviation))
                print(f"{setting.name:10} {epoch:5} {expected:8.3f} s {found:8.3f} s {deviation:+10.1%}", flush=True)
    print(f"worst {worst:.1%}: goal {'reached' if worst <= DEVIATION_MAX else 'MISSED'}")


if __name__ == "__main__":
    main()
