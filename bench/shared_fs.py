#!/usr/bin/env python3
"""A real slow shared file system: training with foresee and with torch's DataLoader, under the same memory limit.

    bench/shared_fs.py [FOLDER] [--images 6000] [--mbit 400] [--cached 0.4] [--epochs 4] [--rounds 3] [--compute-ms 0]

Needs root and MooseFS (Debian: moosefs-master, moosefs-chunkserver, moosefs-client); the package `foresee`, and torch and
torchvision to compare with. Makes a private MooseFS behind a network of 400 Mbit/s, copies images into it and trains on
them from there; takes everything down in the end, whatever happens. FOLDER has class folders of JPEG files, of which the
benchmark takes as many as it is told; without it they are made, once.

Memory is limited by a cgroup that counts the page cache, too. Each loader may have what it needs for itself, which is
measured first, and room for 40 % of the dataset: for torch's the kernel fills it with what was read, foresee has a memory
tier of that size. foresee never gets more than the torch loader that gets least; `foresee-same` gets exactly that.
Goal: from the second epoch on 1.4 times as fast as the fastest torch loader.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import moosefs
import network
from memory_group import MemoryGroup, available, watched

HERE = Path(__file__).resolve().parent
NAME = "foresee-mfs"
GOAL = 1.4
# foresee with all the memory that torch's most modest loader has.
SAME = "foresee-same"
LOADERS = ["torch-2", "torch-8", "torch-io-2", "torch-io-8", "foresee", SAME]
OTHERS = ["foresee-disk", "job"]
# What a memory limit is set above what was measured: a process is not the same to the page in every run.
SLACK = 1.15
COPIES_AT_ONCE = 8


class Stop(Exception):
    """The benchmark cannot go on; says why in one line."""


@dataclass
class Data:
    """The dataset on the shared file system."""

    folder: Path
    class_sizes: list[int]
    total_bytes: int

    @property
    def images(self) -> int:
        return sum(self.class_sizes)


@dataclass
class Epoch:
    took_s: float
    received_bytes: int
    #: Page cache of the loader's group when the epoch ended.
    cached_bytes: int


@dataclass
class Run:
    loader: str
    limit_bytes: int | None
    epochs: list[Epoch] = field(default_factory=list)
    #: From the start of the loader's set-up to when it could be asked for batches: it lists the dataset.
    ready_s: float = 0.0
    #: The most that the process and its workers had for themselves.
    own_bytes_max: int = 0
    stats: dict = field(default_factory=dict)
    #: Of the machine when the run ended: others' work makes every loader slower, and those most that need most of it.
    load: float = 0.0

    @property
    def later_s(self) -> float:
        """An epoch from the second on."""
        return statistics.mean(epoch.took_s for epoch in self.epochs[1:] or self.epochs)


def copy_dataset(source: Path, mount: moosefs.Mount, images: int) -> Data:
    """As many images as asked for, spread over all classes."""
    target = mount.view / "data"
    found = sorted(path for path in source.glob("*/*") if path.is_file())
    if len(found) < images:
        raise Stop(f"{source}: {len(found)} images, fewer than --images {images}")
    chosen = [found[index * len(found) // images] for index in range(images)]
    names = sorted({path.parent.name for path in chosen})
    for name in names:
        (target / name).mkdir(parents=True)
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(lambda path: shutil.copyfile(path, target / path.parent.name / path.name), chosen))
    sizes = [sum(path.parent.name == name for path in chosen) for name in names]
    return Data(mount.point / "data", sizes, sum(path.stat().st_size for path in chosen))


class Bench:
    """Runs loaders, each in a process and a memory group of its own, on a mount where nothing is cached."""

    def __init__(self, args: argparse.Namespace, mount: moosefs.Mount, data: Data) -> None:
        self.args, self.mount, self.data = args, mount, data
        self.tier_bytes = int(args.cached * data.total_bytes)

    def limits(self, loaders: list[str]) -> dict[str, int]:
        """The memory limit of each loader: what it needs without a cache, and the cache."""
        limits = {}
        for loader in loaders:
            if loader == SAME:
                continue
            need = self.need_bytes(loader)
            limits[loader] = int(SLACK * need) + self.tier_bytes
            note(f"{loader}: needs {need / 1e6:.0f} MB, may have {limits[loader] / 1e6:.0f} MB")
        of_torch = [limit for loader, limit in limits.items() if loader.startswith("torch")]
        if not of_torch:
            return limits
        least = min(of_torch)
        return {
            loader: limits[loader] if loader.startswith("torch") else min(limits.get(loader, least), least)
            for loader in loaders
        }

    def need_bytes(self, loader: str) -> int:
        """What a loader has for itself, without what it caches."""
        if loader.startswith("torch"):
            return self.run(loader, None, epochs=1, tier_bytes=0).own_bytes_max
        # A tier is full after an epoch; from then on it also evicts.
        return self.run(loader, None, epochs=2, tier_bytes=self.tier_bytes).own_bytes_max - self.tier_bytes

    def run(self, loader: str, limit_bytes: int | None, epochs: int, tier_bytes: int) -> Run:
        self.mount.remount()
        run = Run(loader, limit_bytes)
        with tempfile.TemporaryDirectory(prefix="disk-tier-", dir=network.folder_of(NAME)) as disk:
            kind, settings = self.settings(loader, epochs, tier_bytes, disk)
            # torch warns of more workers than cores.
            python = [sys.executable, "-B", "-W", "ignore"]
            line = self.mount.host.command([*python, HERE / "shared_fs_loaders.py", kind, json.dumps(settings)])
            with MemoryGroup(f"{NAME}-{loader}", limit_bytes) as group, started(line, group) as process:
                self.follow(process, group, run)
        run.load = os.getloadavg()[0]
        if len(run.epochs) < epochs or process.returncode != 0:
            cause = "out of memory" if process.returncode == -signal.SIGKILL else f"exit code {process.returncode}"
            raise Stop(f"{loader}: ended after {len(run.epochs)} of {epochs} epochs: {cause}")
        return run

    def settings(self, loader: str, epochs: int, tier_bytes: int, disk: str) -> tuple[str, dict[str, Any]]:
        """Which loader a name means, and all that it is told."""
        args = self.args
        kind, _, rest = loader.rpartition("-") if "-" in loader else (loader, "", "")
        return kind, {
            "workers": int(rest) if rest.isdigit() else 0,
            "folder": str(self.data.folder),
            "class_sizes": self.data.class_sizes,
            "batch": args.batch,
            "epochs": epochs,
            "compute_ms": args.compute_ms,
            "tier_bytes": tier_bytes,
            "disk_folder": disk if loader == "foresee-disk" else "",
            "disk_bytes": self.data.total_bytes,
            "staging": {"capacity": args.staging, "threads": args.threads},
            "tier": {"threads": args.tier_threads} if args.tier_threads is not None else {},
        }

    def follow(self, process: subprocess.Popen, group: MemoryGroup, run: Run) -> None:
        """A run to its end."""
        assert process.stdout is not None
        with watched(group) as watch:
            for line in map(json.loads, process.stdout):
                if line["event"] == "ready":
                    run.ready_s = line["took_s"]
                else:
                    run.epochs.append(Epoch(line["took_s"], line["received_bytes"], group.use().cached_bytes))
                    run.stats = line["stats"]
            process.wait()
        (run.own_bytes_max,) = watch.own_bytes_max


@contextlib.contextmanager
def started(line: list[str], group: MemoryGroup) -> Iterator[subprocess.Popen]:
    """A process in a memory group; it and whatever it started is gone in the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORESEE_")}
    process = subprocess.Popen(
        group.command(line),
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C is for the benchmark, which ends what it started.
        start_new_session=True,
        env={**environment, "FORESEE_CONFIG": ""},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def installed(module: str) -> bool:
    """Imports it in a process of its own, so that what it reads is in the page cache and nobody's memory limit pays for it."""
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def chosen_loaders(asked: list[str] | None) -> list[str]:
    if not installed("foresee"):
        raise Stop("the package foresee is not there: pip install . or set PYTHONPATH")
    has_torch = installed("torchvision") and installed("foresee.torch")
    if asked is None:
        if not has_torch:
            note("torch and torchvision are not there: nothing to compare with")
        return LOADERS if has_torch else ["job"]
    if SAME in asked and not any(loader.startswith("torch") for loader in asked):
        raise Stop(f"--loaders {SAME}: has torch's memory limit, so it needs a torch loader beside it")
    wants_torch = [loader for loader in asked if loader != "job"]
    if wants_torch and not has_torch:
        raise Stop(f"--loaders {' '.join(wants_torch)}: needs torch and torchvision; job does not")
    return asked


def source_folder(args: argparse.Namespace) -> Path:
    if args.folder:
        return Path(args.folder)
    sys.path.append(str(HERE.parent / "tools"))
    import demo_data

    note(f"{args.images} images, made unless they are there")
    return demo_data.dataset(args.images, lambda _: None, args.cache)


def bench(args: argparse.Namespace) -> dict:
    loaders, source = chosen_loaders(args.loaders), source_folder(args)
    with contextlib.ExitStack() as stack:
        stack.enter_context(network.locked(NAME))
        lines = stack.enter_context(network.Network(NAME))
        storage, trainer = lines.host("storage"), lines.host("trainer")
        trainer.settle()
        mount = stack.enter_context(moosefs.MooseFs(storage, network.folder_of(NAME))).mount_on(trainer)
        note("copying the dataset to MooseFS")
        data = copy_dataset(source, mount, args.images)
        # Or else the disk would be busy writing files while they are read.
        os.sync()
        storage.slow_down(args.mbit)
        runs = Bench(args, mount, data)
        limits = runs.limits(loaders)
        results = []
        for number in range(args.rounds):
            for loader in loaders:
                run = runs.run(loader, limits[loader], args.epochs, runs.tier_bytes)
                times = " ".join(f"{epoch.took_s:.2f}" for epoch in run.epochs)
                note(f"round {number + 1}, load {run.load:.1f}: {loader}: {times} s")
                results.append(run)
    return summary(args, data, results)


def summary(args: argparse.Namespace, data: Data, results: list[Run]) -> dict:
    """What was measured, and the medians of the rounds."""
    by_loader: dict[str, list[Run]] = {}
    for run in results:
        by_loader.setdefault(run.loader, []).append(run)
    later_s = {loader: statistics.median(run.later_s for run in runs) for loader, runs in by_loader.items()}
    torch = [loader for loader in by_loader if loader.startswith("torch")]
    best = min(torch, key=lambda loader: later_s[loader], default=None)
    ratio = later_s[best] / later_s["foresee"] if best and "foresee" in later_s else None
    return {
        "images": data.images,
        "bytes": data.total_bytes,
        "mbit": args.mbit,
        "cached": args.cached,
        "compute_ms": args.compute_ms,
        "ratio": ratio,
        "best_torch": best,
        "later_s": later_s,
        "runs": [asdict(run) for run in results],
    }


def report(result: dict) -> None:
    """The ratio first, then a line for each loader and epoch: medians over the rounds."""
    if result["ratio"] is not None:
        reached = "reached" if result["ratio"] >= GOAL else "MISSED"
        print(
            f"foresee is {result['ratio']:.2f} times as fast as {result['best_torch']}, the fastest torch loader of this "
            f"run, from the second epoch on (goal {GOAL}: {reached})"
        )
    total = result["bytes"]
    print(
        f"{result['images']} images, {total / 1e6:.0f} MB, {result['mbit']} Mbit/s, {result['cached']:.0%} fit into memory, "
        f"{result['compute_ms']:g} ms of compute a batch"
    )
    print(
        f"{'loader':13} {'limit':>8} {'epoch':>5} {'time':>8} {'images/s':>9} {'network':>9} {'of dataset':>10} {'page cache':>10}"
    )
    for loader in result["later_s"]:
        runs = [run for run in result["runs"] if run["loader"] == loader]
        for number in range(len(runs[0]["epochs"])):
            epochs = [run["epochs"][number] for run in runs]
            took_s, received, cached = (
                statistics.median(epoch[key] for epoch in epochs)
                for key in ["took_s", "received_bytes", "cached_bytes"]
            )
            first = f"{loader:13} {runs[0]['limit_bytes'] / 1e6:5.0f} MB" if number == 0 else f"{'':22}"
            print(
                f"{first} {number + 1:5} {took_s:6.2f} s {result['images'] / took_s:9.0f} {received / 1e6:6.0f} MB "
                f"{received / total:10.0%} {cached / total:10.0%}"
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="images in class folders; without it they are made")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--mbit", type=int, default=400, help="of the network between file system and loader")
    parser.add_argument("--cached", type=float, default=0.4, help="part of the dataset that fits into memory")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute-ms", type=float, default=0, help="sleep after each batch, as for an accelerator")
    parser.add_argument(
        "--loaders", nargs="+", choices=[*LOADERS, *OTHERS], help="default: all of torch's, and foresee"
    )
    parser.add_argument("--staging", default="256 MiB", help="foresee's staging buffer: three batches")
    # A fixed number: with "auto" the need differed from run to run by more than the slack.
    parser.add_argument("--threads", type=lambda text: int(text) if text.isdigit() else text, default=8)
    parser.add_argument("--tier-threads", type=int, help="of foresee's memory tier")
    parser.add_argument("--cache", type=Path, help="folder for images that are made")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    lacking = moosefs.missing() or (None if available() else "needs a cgroup that limits memory")
    if lacking:
        print(f"shared_fs: SKIPPED: {lacking}")
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        result = bench(args)
    except (Stop, network.SetupError) as error:
        sys.exit(f"shared_fs: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
