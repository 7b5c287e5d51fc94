#!/usr/bin/env python3
"""Raw samples, side by side: foresee, FFCV and torch's DataLoader, whatever of them is installed.

    bench/raw.py FOLDER [--rounds 5] [--epochs 3] [--batch 128] [--threads 2]

FOLDER has the layout of ImageFolder and should be in the page cache. Each loader runs in a process of its own, the
loaders take turns, and ratios are of the medians over all rounds. The consumer touches every cache line of every
sample. FFCV reads a file of its own that is made once beside the folder (FOLDER.beton).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LOADERS = ["foresee", "ffcv", "torch"]


def touch(sample) -> int:
    """Reads a word of every cache line."""
    words = np.frombuffer(sample, np.uint64, len(sample) // 8)
    return int(np.bitwise_xor.reduce(words[::8]))


def run_foresee(folder: str, args: argparse.Namespace):
    import foresee

    config = {"staging": {"capacity": args.staging, "threads": args.threads}}
    if args.memory:
        config["tier"] = [{"kind": "memory", "capacity": args.memory}]
    job = foresee.Job(foresee.ImageFolder(folder), args.batch, args.epochs, config=config)
    for epoch in range(args.epochs):
        yield ((len(batch), sum(map(touch, batch.data))) for batch in job.epoch(epoch))


def run_torch(folder: str, args: argparse.Namespace):
    from torch.utils import data
    from torchvision.datasets import ImageFolder

    class Raw(ImageFolder):
        def __getitem__(self, index):
            path, label = self.samples[index]
            return Path(path).read_bytes(), label

    loader = data.DataLoader(
        Raw(folder), args.batch, shuffle=True, num_workers=args.threads, collate_fn=list, persistent_workers=True
    )
    for _ in range(args.epochs):
        yield ((len(batch), sum(touch(sample) for sample, _ in batch)) for batch in loader)


def run_ffcv(folder: str, args: argparse.Namespace):
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.bytes import BytesDecoder
    from ffcv.loader import Loader, OrderOption

    loader = Loader(
        f"{folder}.beton",
        batch_size=args.batch,
        num_workers=args.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines={"data": [BytesDecoder()], "size": [IntDecoder()]},
    )
    for _ in range(args.epochs):
        yield (
            (len(rows), sum(touch(row[: size[0]]) for row, size in zip(rows, sizes, strict=True)))
            for rows, sizes in loader
        )


def write_beton(folder: str, threads: int) -> None:
    """FFCV's own file, samples as they are."""
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter
    from torchvision.datasets import ImageFolder

    class Raw(ImageFolder):
        def __getitem__(self, index):
            content = np.fromfile(self.samples[index][0], np.uint8)
            return content, len(content)

    target = Path(f"{folder}.beton")
    if not target.exists():
        writer = DatasetWriter(f"{target}.tmp", {"data": BytesField(), "size": IntField()}, num_workers=threads)
        writer.from_indexed_dataset(Raw(folder))
        Path(f"{target}.tmp").replace(target)


def measure(loader: str, folder: str, args: argparse.Namespace) -> None:
    """One process: samples a second, epoch by epoch, as a line of JSON."""
    began = time.perf_counter()
    rates, first = [], None
    for epoch in {"foresee": run_foresee, "ffcv": run_ffcv, "torch": run_torch}[loader](folder, args):
        start, samples = time.perf_counter(), 0
        for count, _ in epoch:
            first = first or time.perf_counter() - began
            samples += count
        rates.append(samples / (time.perf_counter() - start))
    usage = os.times()
    cpu_s = usage.user + usage.system + usage.children_user + usage.children_system
    print(json.dumps({"rates": rates, "first_batch_s": first, "cpu_s": cpu_s}))


def installed(loader: str) -> bool:
    module = {"foresee": "foresee", "ffcv": "ffcv", "torch": "torchvision"}[loader]
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--staging", default="32 MiB")
    parser.add_argument("--memory", default="")
    parser.add_argument("--loaders", nargs="+", default=LOADERS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.folder.rstrip("/")
    if args.measure:
        measure(args.measure, folder, args)
        return
    loaders = [loader for loader in args.loaders if installed(loader)]
    if "ffcv" in loaders:
        write_beton(folder, args.threads)
    results: dict[str, list[dict]] = {loader: [] for loader in loaders}
    for _ in range(args.rounds):
        for loader in loaders:
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", loader]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results[loader].append(json.loads(output.splitlines()[-1]))
    report(results, args)


def report(results: dict[str, list[dict]], args: argparse.Namespace) -> None:
    first = {loader: statistics.median(run["rates"][0] for run in runs) for loader, runs in results.items()}
    later = {
        loader: statistics.median(statistics.mean(run["rates"][1:]) for run in runs) for loader, runs in results.items()
    }
    print(
        f"{'loader':10} {'first epoch':>12} {'later':>12} {'first batch':>12} {'CPU ms/sample':>14} | foresee is so many times faster"
    )
    for loader, runs in results.items():
        batch = statistics.median(run["first_batch_s"] for run in runs)
        ratios = ""
        if "foresee" in first and loader != "foresee":
            ratios = f"first {first['foresee'] / first[loader]:.2f}  later {later['foresee'] / later[loader]:.2f}"
        print(f"{loader:10} {first[loader]:10.0f}/s {later[loader]:10.0f}/s {batch:10.3f} s | {ratios}")


if __name__ == "__main__":
    main()
