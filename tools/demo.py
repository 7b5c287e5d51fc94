#!/usr/bin/env python3
"""What `make demo` shows: the same training job on a slow shared storage, without a cache, with nopfs and with foresee; first
on one rank, then on four that serve each other.

    tools/demo.py [--images N] [--mb-per-s R] [--compute-ms T] [--report FILE.html] ...

The images are real files, read, decoded and augmented by the real loader; the storage is emulated (a read takes as long
as it would), and the trainer sleeps instead of computing. What the simulator says of the same job stands beside what was measured, and
`foresee report` makes a page of both. Needs the package `foresee` and the tools of tools/requirements-test.txt; no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import demo_data
import foresee
from foresee import transforms

# What the demo calls it, and the policy. The first is what the others are compared with.
RUNS = {"plain": "staging-buffer", "nopfs": "nopfs", "foresee": "foresee"}
MEMORY_THREADS = 2  # the loader's default for a tier
# Reading memory is not what the demo is about: as fast as that of any machine, for the simulator.
MEMORY_MB_PER_S = 5_000
# What a batch holds of an image: its colours as bytes, as for a trainer that normalises on its accelerator.
EDGE = 224
DECODED_BYTES = 3 * EDGE * EDGE
# The second act: processes on this machine that read one storage together, with `foresee bench --ranks`.
RANKS = 4
ONE_RANK, FOUR_RANKS = "Demo: a slow shared storage", f"Demo: {RANKS} ranks on a slow shared storage"
BAR_WIDTH = 30
REDRAW_S = 0.1


class Bar:
    """A line of progress on a terminal; nothing elsewhere."""

    def __init__(self, title: str, total: int):
        self.title, self.total = title, total
        self.is_shown = sys.stderr.isatty()
        self.drawn_at = 0.0

    def show(self, done: int, text: str = "") -> None:
        now = time.monotonic()
        if not self.is_shown or (now - self.drawn_at < REDRAW_S and done < self.total):
            return
        self.drawn_at = now
        filled = BAR_WIDTH * done // max(self.total, 1)
        bar = "\u2588" * filled + "\u2591" * (BAR_WIDTH - filled)
        print(f"\r\x1b[K  {self.title:<10} {bar} {text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_shown:
            print(file=sys.stderr)


def whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 to 1,000,000")
    return int(text)


def number(text: str) -> float:
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if not 0 <= given <= 1e6:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 0 to 1,000,000")
    return given


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=whole, default=1_200)
    parser.add_argument("--epochs", type=whole, default=3)
    parser.add_argument("--batch", type=whole, default=32)
    parser.add_argument("--compute-ms", type=number, default=60, help="how long the trainer computes for a batch")
    parser.add_argument("--mb-per-s", type=number, default=25, help="what the storage gives to all readers together")
    parser.add_argument("--latency-ms", type=number, default=2, help="what a read of it takes before its first byte")
    parser.add_argument("--memory-share", type=number, default=0.45, help="of the dataset, what memory may keep")
    parser.add_argument("--threads", type=whole, default=4, help="that read ahead")
    parser.add_argument(
        "--ranks-share", type=number, default=0.6, help="of the dataset, what memory of all ranks may keep"
    )
    parser.add_argument("--cache", type=Path, default=None, help="folder for the dataset; default: the user's cache")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="the page to write")
    return parser.parse_args()


def images(folder: Path, throttle: foresee.Throttle | None = None) -> foresee.ImageFolder:
    augment = transforms.Compose([transforms.RandomResizedCrop(EDGE), transforms.RandomHorizontalFlip()])
    return foresee.ImageFolder(folder, transform=augment, throttle=throttle)


def config(args: argparse.Namespace, memory_bytes: int) -> dict[str, Any]:
    return {
        "staging": {"capacity": staging_bytes(args), "threads": args.threads},
        "tier": [{"kind": "memory", "capacity": memory_bytes, "threads": MEMORY_THREADS}],
    }


def staging_bytes(args: argparse.Namespace) -> int:
    """Four batches: enough to read ahead, too little to be a cache."""
    return 4 * args.batch * DECODED_BYTES


def train(name: str, policy: str, folder: Path, args: argparse.Namespace, memory_bytes: int) -> dict[str, Any]:
    """One run, in the form that `foresee report` takes."""
    # A storage of its own for each run, so that none inherits another's queue.
    storage = foresee.emulate(f"demo-{os.getpid()}-{name}", args.mb_per_s, args.latency_ms)
    dataset = images(folder, storage)
    epochs: list[dict[str, Any]] = []
    with foresee.Job(dataset, args.batch, args.epochs, policy=policy, config=config(args, memory_bytes)) as job:
        bar = Bar(name, len(job))
        before, began = {"stall_s": 0.0, "origins": {}}, time.monotonic()
        for epoch in range(args.epochs):
            for batch in job.epoch(epoch):
                del batch  # A trainer would have it on its accelerator by now.
                time.sleep(args.compute_ms / 1e3)
                now = job.stats()
                waited = now["stall_s"] / max(now["elapsed_s"], 1e-9)
                text = f"epoch {epoch + 1}/{args.epochs}  {now['elapsed_s']:5.1f} s  stall {waited:4.0%}"
                bar.show(now["batches"], f"{text}  source {now['source_bytes'] / 1e6:4.0f} MB")
            now, ended = job.stats(), time.monotonic()
            epochs.append(lap(before, now, ended - began))
            before, began = now, ended
        bar.end()
        return {"name": name, "epochs": epochs, "stats": job.stats()}


def train_together(name: str, policy: str, folder: Path, args: argparse.Namespace, memory_bytes: int) -> dict[str, Any]:
    """One run of all ranks, each with so much memory, in step with each other as in training."""
    bar = Bar(f"{RANKS} x {name}", 1)
    bar.show(0)
    words = {
        "ranks": RANKS,
        "policy": policy,
        "epochs": args.epochs,
        "batch": args.batch,
        "staging": f"{staging_bytes(args)} B",
        "memory": f"{memory_bytes} B",
        "threads": args.threads,
        "throttle": f"demo-{os.getpid()}-{RANKS}-{name}:{args.mb_per_s:g}:{args.latency_ms:g}",
        "compute-ms": f"{args.compute_ms:g}",
    }
    told = [word for key, value in words.items() for word in (f"--{key}", str(value))]
    run = json.loads(command("bench", folder, "--lockstep", "--json", *told))
    bar.show(1)
    bar.end()
    return {**run, "name": name}


def lap(before: dict[str, Any], now: dict[str, Any], total_s: float) -> dict[str, Any]:
    """What an epoch took, from the job's statistics at its two ends."""
    read = {
        origin: reads["bytes"] - before["origins"].get(origin, {"bytes": 0})["bytes"]
        for origin, reads in now["origins"].items()
    }
    return {"total_s": total_s, "stall_s": now["stall_s"] - before["stall_s"], "read_bytes": read}


def decoding_mb_per_s(folder: Path, args: argparse.Namespace) -> float:
    """What the threads decode of files together, on this machine: the storage is not emulated here."""
    dataset = images(folder)
    with foresee.Job(dataset, args.batch, 1, config=config(args, 0)) as job:
        began = time.monotonic()
        for _ in job:
            pass
        return sum(dataset.sizes) / 1e6 / (time.monotonic() - began)


def scenario(
    args: argparse.Namespace, sizes: list[int], memory_bytes: int, decoding_mb_per_s: float | None, ranks: int = 1
) -> str:
    """The same job and machine, for the simulator (docs/scenarios.md); without a rate of decoding, of samples as they are."""
    compute_s = -(-len(sizes) // args.batch) * args.compute_ms / 1e3
    tiers = [("staging", staging_bytes(args), args.threads), ("memory", memory_bytes, MEMORY_THREADS)]
    decoding = f"""
preprocess_mb_per_s = {{ {args.threads} = {decoding_mb_per_s} }}
decoded_mb_per_mb = {DECODED_BYTES * len(sizes) / sum(sizes)}
"""
    tier = """
[[system.tier]]
name = "{}"
capacity_mb = {}
threads = {}
read_mb_per_s = {{ 1 = {} }}
"""
    return f"""
name = "demo"
[job]
ranks = {ranks}
ranks_per_host = {ranks}
global_batch = {args.batch * ranks}
epochs = {args.epochs}
shuffle = "torch"
compute_mb_per_s = {sum(sizes) / 1e6 / max(compute_s, 1e-9)}
{decoding if decoding_mb_per_s else "preprocess_mb_per_s = " + str(MEMORY_MB_PER_S)}
[dataset]
samples = {len(sizes)}
size_mb = {{ file = "sizes.txt" }}
[system]
network_mb_per_s = {MEMORY_MB_PER_S}
source_link_mb_per_s = {MEMORY_MB_PER_S}
source_read_mb_per_s = {{ 1 = {args.mb_per_s} }}
source_latency_ms = {args.latency_ms}
contention = "reads"
extrapolate = "clamp"
""" + "".join(tier.format(name, size / 1e6, threads, MEMORY_MB_PER_S) for name, size, threads in tiers)


def command(*words: str | Path) -> str:
    """Runs `foresee`; ends the demo with its message where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "foresee._command", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(Path(foresee.__file__).parents[1])},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def predict(
    args: argparse.Namespace, sizes: list[int], memory_bytes: int, decoding: float | None, ranks: int = 1
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.toml"
        path.write_text(scenario(args, sizes, memory_bytes, decoding, ranks))
        path.with_name("sizes.txt").write_text("".join(f"{size / 1e6}\n" for size in sizes))
        chosen = [word for policy in RUNS.values() for word in ("--policy", policy)]
        return json.loads(command("simulate", path, "--json", *chosen))


def table(runs: list[dict[str, Any]]) -> str:
    """The runs side by side; the last columns are against the first run and against the simulator."""
    total_s = [sum(epoch["total_s"] for epoch in run["epochs"]) for run in runs]
    # A run without a cache has a minimum of its own; all had the same memory to use.
    minimum_bytes = min(run["stats"]["source_minimum_bytes"] for run in runs)
    epochs = len(runs[0]["epochs"])
    head = ["", *(f"epoch {at + 1}" for at in range(epochs)), "total", "predicted", "stall", "from source", "minimum"]
    rows = [[*head, "speed-up"]]
    for run, took_s in zip(runs, total_s, strict=True):
        stall_s = sum(epoch["stall_s"] for epoch in run["epochs"])
        rows.append(
            [
                run["name"],
                *(f"{epoch['total_s']:.1f} s" for epoch in run["epochs"]),
                f"{took_s:.1f} s",
                f"{run['prediction']['total_s']:.1f} s",
                f"{stall_s / took_s:.0%}",
                f"{run['stats']['source_bytes'] / 1e6:.0f} MB",
                f"{minimum_bytes / 1e6:.0f} MB",
                f"{total_s[0] / took_s:.2f}x",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  " + line for line in lines)


def later_epochs(runs: list[dict[str, Any]]) -> str:
    """What a long training looks like: without the first epoch, in which nothing can be in a cache."""
    rest_s = [sum(epoch["total_s"] for epoch in run["epochs"][1:]) for run in runs]
    faster = (f"{run['name']} {rest_s[0] / took_s:.2f}x" for run, took_s in zip(runs[1:], rest_s[1:], strict=True))
    return f"From the second epoch on, against {runs[0]['name']}: {', '.join(faster)}."


def inputs(args: argparse.Namespace, sizes: list[int], memory_bytes: int) -> dict[str, Any]:
    return {
        "dataset.samples": f"{len(sizes):,} JPEG images, {demo_data.WIDTH} x {demo_data.HEIGHT}",
        "dataset.bytes": f"{sum(sizes) / 1e6:.1f} MB",
        "job.batch": args.batch,
        "job.compute": f"{args.compute_ms:g} ms a batch",
        "job.epochs": args.epochs,
        "memory.capacity": f"{memory_bytes / 1e6:.1f} MB",
        "memory.threads": MEMORY_THREADS,
        "staging.capacity": f"{staging_bytes(args) / 1e6:.1f} MB",
        "staging.threads": args.threads,
        "storage.latency": f"{args.latency_ms:g} ms",
        "storage.throughput": f"{args.mb_per_s:g} MB/s for all readers together",
    }


def main() -> None:
    args = arguments()
    bar = Bar("dataset", args.images)
    folder = demo_data.dataset(args.images, lambda done: bar.show(done, f"{done} images"), args.cache)
    if bar.drawn_at:
        bar.end()
    sizes = list(foresee.ImageFolder(folder).sizes)
    memory_bytes = int(sum(sizes) * args.memory_share)
    print(f"Dataset:  {len(sizes):,} JPEG images, {sum(sizes) / 1e6:.0f} MB, in {folder}")
    print(f"Storage:  emulated, {args.mb_per_s:g} MB/s for all readers together, {args.latency_ms:g} ms a read")
    print(f"Memory:   {memory_bytes / 1e6:.0f} MB for samples, {args.memory_share:.0%} of the dataset")
    print(
        f"Trainer:  {args.epochs} epochs, batches of {args.batch}, computes {args.compute_ms:g} ms for each", flush=True
    )
    print()
    runs = [train(name, policy, folder, args, memory_bytes) for name, policy in RUNS.items()]
    predicted = predict(args, sizes, memory_bytes, decoding_mb_per_s(folder, args))
    for run, (name, policy) in zip(runs, RUNS.items(), strict=True):
        assert run["name"] == name
        run["prediction"] = next(result for result in predicted["results"] if result["policy"] == policy)
    if sys.stderr.isatty():
        print()
    print(table(runs))
    if args.epochs > 1:
        print(later_epochs(runs))
    write_report(args.report, ONE_RANK, runs, predicted["lower_bound_s"], inputs(args, sizes, memory_bytes))
    print(f"Report:   {args.report}")
    print()
    many_ranks(folder, args, sizes)


def many_ranks(folder: Path, args: argparse.Namespace, sizes: list[int]) -> None:
    """The second act: ranks that read one storage, alone or together."""
    memory_bytes = int(sum(sizes) * args.ranks_share / RANKS)
    print(f"Ranks:    {RANKS} processes on the same storage, {memory_bytes / 1e6:.0f} MB of memory each,", end=" ")
    print(f"{args.ranks_share:.0%} of the dataset together; samples as they are", flush=True)
    print()
    runs = [train_together(name, policy, folder, args, memory_bytes) for name, policy in RUNS.items()]
    predicted = predict(args, sizes, memory_bytes, None, RANKS)
    for run, policy in zip(runs, RUNS.values(), strict=True):
        run["prediction"] = next(result for result in predicted["results"] if result["policy"] == policy)
    print(table(runs))
    if args.epochs > 1:
        print(later_epochs(runs))
    report = args.report.with_stem(f"{args.report.stem}-ranks")
    told = inputs(args, sizes, memory_bytes) | {"job.ranks": RANKS}
    write_report(report, FOUR_RANKS, runs, predicted["lower_bound_s"], told)
    print(f"Report:   {report}")


def write_report(report: Path, name: str, runs: list[dict], lower_bound_s: float, told: dict[str, Any]) -> None:
    page = {"name": name, "lower_bound_s": lower_bound_s, "inputs": told, "runs": runs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.json"
        path.write_text(json.dumps(page))
        command("report", path, "--output", report)


if __name__ == "__main__":
    try:
        main()
    except foresee.ForeseeError as error:
        sys.exit(f"demo: {error}")
