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
from scenario import Scenario, Tier

DEVIATION_MAX = 0.10
# Without a remainder of the samples: the bench computes as long for a small last batch as for a full one.
BATCH = 100
STAGING_MB = 64
STAGING_THREADS = 4
TIER_THREADS = 2


@dataclass(frozen=True)
class Setting:
    """What differs from setting to setting."""

    name: str
    mb_per_s: dict[int, float]
    latency_ms: float = 0
    cached: float = 0
    compute_ms: float = 0
    #: Of one host, in lockstep; each has its part of what is cached.
    ranks: int = 1


SETTINGS = [
    Setting("staging", {1: 50}),
    Setting("memory", {1: 20, 4: 50}, latency_ms=2, cached=0.4),
    # Compute takes longer than what the cache leaves to the source, but less than the whole dataset from there.
    Setting("compute", {1: 50}, cached=0.4, compute_ms=160),
    Setting("ranks", {1: 100}, cached=0.6, ranks=4),
    Setting("ranks-2ms", {1: 20, 16: 100}, latency_ms=2, cached=0.6, ranks=4),
    Setting("ranks-all", {1: 100}, cached=1.02, compute_ms=40, ranks=4),
]


def scenario(setting: Setting, sizes: list[int], epochs: int) -> Scenario:
    tiers = [Tier("staging", STAGING_MB, STAGING_THREADS)]
    if setting.cached:
        tiers.append(Tier("memory", setting.cached * sum(sizes) / setting.ranks / 1e6, TIER_THREADS))
    return Scenario(
        setting.name,
        [size / 1e6 for size in sizes],
        tiers,
        epochs=epochs,
        global_batch=BATCH,
        compute_ms=setting.compute_ms,
        source_mb_per_s=setting.mb_per_s,
        source_latency_ms=setting.latency_ms,
        ranks=setting.ranks,
        ranks_per_host=setting.ranks,
    )


def predicted(scratch: Path, setting: Setting, sizes: list[int], epochs: int) -> list[float]:
    return scenario(setting, sizes, epochs).simulate(scratch, "foresee")["epochs_s"]


def measured(scratch: Path, setting: Setting, sizes: list[int], epochs: int) -> list[float]:
    rates = ",".join(f"{readers}={rate}" for readers, rate in setting.mb_per_s.items())
    options: list[object] = ["--throttle", f"{setting.name}:{rates}:{setting.latency_ms}"]
    options += ["--staging", f"{STAGING_MB} MB", "--threads", STAGING_THREADS]
    if setting.cached:
        options += ["--memory", round(setting.cached * sum(sizes) / setting.ranks)]
    if setting.ranks > 1:
        options += ["--ranks", setting.ranks, "--lockstep"]
    batch = BATCH // setting.ranks
    job = ["bench", scratch / "dataset", "--batch", batch, "--epochs", epochs, "--compute-ms", setting.compute_ms]
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
