#!/usr/bin/env python3
"""A bare MPI program, torch's DataLoader, `nopfs` and `foresee` on a cluster in a box, beside what the simulator predicts.

    bench/cluster_compare.py [FOLDER] [--hosts 4] [--ranks 1 2] [--cached 0.5 1.02 2] [--epochs 3] [--json FILE]

Needs root, MooseFS, SLURM and Open MPI with its headers (tools/setup.sh tools); the package `foresee` and its command, and torch
to compare with. The cluster is that of tools/cluster.sh: hosts with lines of 1 Gbit/s, a MooseFS behind 400 Mbit/s, SLURM. All
ranks are started by `srun --mpi=pmix`, step together by MPI, look at each byte and then sleep, as if an accelerator computed.
All programs have the same global batch and the same time for a step, however many ranks there are. FOLDER has class folders
of files; without it they are made, once.

Memory of a host is limited as in bench/hosts.py: what a loader needs for itself and the host's part of a cache for so much of
the dataset (--cached), which is page cache for torch's loader and a memory tier for nopfs and foresee. The bare program
(bench/bare_mpi.c) has none: it reads each sample from the source every epoch, with as many threads as foresee.

The simulator is told what the storage gives to so many readers, which is measured first, the rates of the lines, the sizes,
and what the programs are told. Goals, where the cache holds the dataset: foresee reads the minimum, is twice as fast as the bare
program from the second epoch on, and the prediction for it is within 20 %.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cluster
import cluster_prediction
import common
import hosts
import joined
import network
from hosts import OURS, Data, Ranks, Run
from hosts_rank import short_digest
from memory_group import MemoryGroup
from shared_fs import Stop, installed, note, source_folder

HERE = Path(__file__).resolve().parent
BARE = "bare"
LOADERS = [BARE, "torch-2", "nopfs", OURS]
# The words of the kind of loop in bench/hosts_rank.py: samples as they are stored.
LOOP = "raw"
COMPILER = "mpicc.openmpi"
GOAL, DEVIATION_MAX = 2.0, 0.2
# Enough to read ahead, too little to be a cache.
STAGED_BATCHES = 5
# Which part of the files so many threads read to see what the storage gives them; others each time.
READ_BY = {1: 48, 4: 12, 16: 4}
END_S_MAX = 60.0


class Bench(hosts.Bench):
    """Runs programs on the cluster by srun."""

    def __init__(self, args: argparse.Namespace, box: cluster.Cluster, data: Data, program: Path | None) -> None:
        lines = hosts.Cluster(box.storage, box.hosts, box.mounts)
        super().__init__(args, lines, data)
        self._box, self._program = box, program
        self._list = box.root / "samples.txt"
        names = sorted(str(path.relative_to(box.mounts[0].view)) for path in (box.mounts[0].view / "data").glob("*/*"))
        self._list.write_text("".join(f"{box.mounts[0].point / name}\n" for name in names))

    def limits(self, loop: str, loaders: list[str], cached: float) -> dict[str, int | None]:
        others = [loader for loader in loaders if loader != BARE]
        return {**super().limits(loop, others, cached), BARE: None}

    def need_bytes(self, loop: str, loader: str) -> int:
        # The same loader, but for its policy.
        return super().need_bytes(loop, OURS if loader == "nopfs" else loader)

    @contextlib.contextmanager
    def group(self, host: network.Host, limit_bytes: int | None) -> Iterator[MemoryGroup]:
        """Of all that SLURM starts there."""
        group = self._box.group(host)
        group.limit(limit_bytes)
        try:
            yield group
        finally:
            group.limit(None)

    def told(self, loop: str, loader: str, cached: float, epochs: int) -> dict[str, Any]:
        return {**super().told(loop, loader, cached, epochs), "digest": "adler32", "together": True}

    def line(self, loop: str, loader: str, told: dict[str, Any]) -> list[str]:
        if loader != BARE:
            return super().line(loop, loader, told)
        args = self.args
        assert self._program is not None
        words = [args.batch, told["epochs"], args.seed, args.threads, STAGED_BATCHES * args.batch, args.compute_ms]
        return [str(self._program), str(self._list), *map(str, words)]

    @contextlib.contextmanager
    def started(self, line: list[str], groups: list[MemoryGroup]) -> Iterator[Ranks]:
        place, log = self._box.root / "ranks.sock", self._box.root / "log" / "ranks"
        number = [f"--nodes={self.args.hosts}", f"--ntasks-per-node={self.args.ranks}"]
        srun = ["srun", "--mpi=pmix", *number, "--mem=0", "--kill-on-bad-exit=1", "--input=none", "--output=none"]
        command = self._box.command([*srun, f"--error={log}", *joined.command(place, line)])
        kept = {name: value for name, value in cluster.environment().items() if name != "FORESEE_CONFIG"}
        # Of its ways between ranks the one that the lines are.
        env = {**kept, "FORESEE_CONFIG": "", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}

        def launch() -> subprocess.Popen[str]:
            log.write_text("")
            with log.open("ab") as errors:
                return subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True
                )

        try:
            yield Ranks(joined.joined(place, self.world, launch), [log] * self.world)
        except TimeoutError as error:
            raise Stop(f"srun: {error}: {' '.join(log.read_text().splitlines()[-1:])}") from None
        finally:
            self._end_jobs()

    def _end_jobs(self) -> None:
        """Whatever SLURM still runs is ended."""
        deadline = time.monotonic() + END_S_MAX
        while network.run(*self._box.command(["squeue", "--noheader"])) != "":
            if time.monotonic() > deadline:
                raise Stop("a job does not end")
            network.run(*self._box.command(["scancel", "--quiet", "--user=root"]))
            time.sleep(0.2)


def measured_curve(box: cluster.Cluster) -> dict[int, float]:
    """MB/s of the storage for so many threads on all hosts that read files at a time; the better of two looks, since whatever
    else the machine does makes it less."""
    mounts = box.mounts[1:]
    paths = [path.relative_to(mounts[0].view) for path in sorted((mounts[0].view / "data").glob("*/*"))]
    left = iter(paths)
    rates = dict.fromkeys(READ_BY, 0.0)
    for (threads, part), _ in itertools.product(READ_BY.items(), range(2)):
        chosen = itertools.islice(left, len(paths) // part)
        wanted = [mounts[at % len(mounts)].view / path for at, path in enumerate(chosen)]
        began_s = time.monotonic()
        with ThreadPoolExecutor(threads) as pool:
            read = sum(pool.map(lambda path: len(path.read_bytes()), wanted))
        rates[threads] = max(rates[threads], read / 1e6 / (time.monotonic() - began_s))
    note("the storage gives " + ", ".join(f"{rate:.1f} MB/s to {number}" for number, rate in rates.items()))
    return rates


def bench(args: argparse.Namespace) -> dict:
    began_s = time.monotonic()
    loaders = chosen_loaders(args)
    source = source_folder(args)
    # As fast as the machine can until the dataset is there.
    with cluster.lasting(args.hosts, None, None) as box:
        note("copying the dataset to MooseFS")
        images = args.images - args.images % args.global_batch
        data = hosts.copy_dataset(source, box.mounts[0], images, short_digest)
        # Or else the disk would be busy writing files while they are read.
        os.sync()
        box.slow_down(args.mbit, args.host_mbit)
        curve = measured_curve(box)
        program = built(box.root / "bare_mpi") if BARE in loaders else None
        measured = [
            (ranks, run)
            for ranks in args.ranks
            for run in all_runs(Bench(with_ranks(args, ranks), box, data, program), loaders)
        ]
    note(f"measured in {time.monotonic() - began_s:.0f} s")
    result = summary(args, data, curve, measured)
    with tempfile.TemporaryDirectory(prefix="foresee-cluster-") as scratch:
        cluster_prediction.add(result, data.sizes, Path(scratch))
    note(f"took {time.monotonic() - began_s:.0f} s")
    return result


def with_ranks(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """The same job on so many ranks a host."""
    batch = args.global_batch // (args.hosts * ranks)
    return argparse.Namespace(**{**vars(args), "ranks": ranks, "batch": batch, "staging": args.staging // ranks})


def all_runs(runs: Bench, loaders: list[str]) -> Iterator[Run]:
    """The bare program has no cache: once is enough."""
    if BARE in loaders:
        yield from hosts.all_rounds(runs, LOOP, 0, [BARE])
    others = [loader for loader in loaders if loader != BARE]
    for cached in runs.args.cached:
        yield from hosts.all_rounds(runs, LOOP, cached, others)


def built(program: Path) -> Path:
    """The bare program."""
    line = [COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, HERE / "bare_mpi.c"]
    try:
        network.run(*line)
    except FileNotFoundError:
        raise Stop(f"no {COMPILER}: install Debian's libopenmpi-dev, or leave out --loaders {BARE}") from None
    return program


def chosen_loaders(args: argparse.Namespace) -> list[str]:
    if not installed("foresee"):
        raise Stop("the package foresee is not there: pip install . or set PYTHONPATH")
    # Which predicts in the end: better to know now that it is not there.
    common.command()
    return args.loaders or [loader for loader in LOADERS if installed("torch") or not hosts.is_torch(loader)]


# --- Report ----------------------------------------------------------------------------------------------------------


def summary(args: argparse.Namespace, data: Data, curve: dict[int, float], measured: list[tuple[int, Run]]) -> dict:
    """What was measured, and for each number of ranks and each cache the medians of the rounds."""
    by_setting: dict[tuple[int, float], dict[str, list[Run]]] = {}
    for ranks, run in measured:
        places = args.cached if run.loader == BARE else [run.cached]
        for cached in places:
            by_setting.setdefault((ranks, cached), {}).setdefault(run.loader, []).append(run)
    settings = [
        {"ranks": ranks, "cached": cached, "loaders": {name: hosts.figures(runs) for name, runs in loaders.items()}}
        for (ranks, cached), loaders in by_setting.items()
    ]
    for setting in settings:
        give_minimum(setting["loaders"])
    told = (
        "hosts",
        "mbit",
        "host_mbit",
        "global_batch",
        "compute_ms",
        "epochs",
        "threads",
        "staging",
        "rounds",
        "more_ranks",
    )
    return {
        "benchmark": "cluster",
        **{name: getattr(args, name) for name in told},
        **hosts.circumstances(data),
        "source_mb_per_s": curve,
        "settings": settings,
        "runs": [{"ranks": ranks, **hosts.asdict(run)} for ranks, run in measured],
    }


def give_minimum(loaders: dict[str, dict]) -> None:
    """The least that could have been read is the same for all; foresee knows it."""
    if OURS in loaders:
        for each in loaders.values():
            each["minimum_bytes"] = loaders[OURS]["minimum_bytes"]


def title(result: dict, setting: dict) -> str:
    return f"{result['hosts']} hosts of {hosts.counted(setting['ranks'], 'rank')}, K = {setting['cached']:g} S"


def deviations(figures: dict) -> list[float]:
    """Of the prediction, for the first epoch and for later ones."""
    predicted = figures["predicted"]
    return [predicted["first_s"] / figures["first_s"] - 1, predicted["later_s"] / figures["later_s"] - 1]


def verdict(result: dict, setting: dict) -> str:
    """How foresee compares with the bare program, and with what was predicted for it."""
    loaders = setting["loaders"]
    if not {OURS, BARE} <= loaders.keys():
        return "nothing to compare with"
    ours, others = loaders[OURS], [name for name in loaders if name != OURS]
    times = ", ".join(f"{loaders[name]['later_s'] / ours['later_s']:.2f} times as fast as {name}" for name in others)
    first, later = deviations(ours)
    text = f"from the second epoch on foresee is {times}; predicted for it {first:+.0%} in the first epoch, {later:+.0%} later"
    if setting["cached"] < 1:
        return text
    reached = {
        "the minimum": ours["all_source_bytes"] == ours["minimum_bytes"],
        f"{GOAL:g} times the bare program": loaders[BARE]["later_s"] / ours["later_s"] >= GOAL,
        f"a prediction within {DEVIATION_MAX:.0%}": max(map(abs, (first, later))) <= DEVIATION_MAX,
    }
    return f"{text}. Goals: " + ", ".join(
        f"{what}: {'reached' if held else 'MISSED'}" for what, held in reached.items()
    )


def table(setting: dict) -> tuple[list[str], list[list[str]]]:
    head = ["program", "epoch 1 s", "predicted", "later s", "predicted", "stall s", "line MB", "source MB", "peers MB"]
    head += ["job MB", "minimum MB"]
    rows = [
        [
            name,
            f"{each['first_s']:.2f}",
            f"{each['predicted']['first_s']:.2f}",
            f"{each['later_s']:.2f}",
            f"{each['predicted']['later_s']:.2f}",
            f"{each['waited_s']:.2f}",
            *map(hosts.mb, (each["line_bytes"], each["source_bytes"], each["peer_bytes"])),
            *map(hosts.mb, (each["all_source_bytes"], each["minimum_bytes"])),
        ]
        for name, each in setting["loaders"].items()
    ]
    return head, rows


def conditions(result: dict) -> str:
    rates = ", ".join(f"{rate:.0f} MB/s to {number}" for number, rate in result["source_mb_per_s"].items())
    return (
        f"{hosts.dataset_and_lines(result)}; it gives {rates} readers; global batches of {result['global_batch']}, "
        f"{result['compute_ms']:g} ms a step; medians of {hosts.counted(result['rounds'], 'round')}. {hosts.machine_and_date(result)}"
    )


def report(result: dict) -> None:
    from side_by_side import aligned

    print(conditions(result))
    for setting in result["settings"]:
        print(f"\n{title(result, setting)}: {verdict(result, setting)}\n{aligned(*table(setting))}")
    print(f"\n{cluster_prediction.TITLE}\n{aligned(*cluster_prediction.table(result))}")


def arguments() -> argparse.Namespace:
    parser = hosts.common_arguments(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="on each host")
    parser.add_argument("--images", type=int, default=3072)
    parser.add_argument(
        "--cached", type=float, nargs="+", default=[0.5, 1.02, 2], help="what caches hold, of the dataset"
    )
    parser.add_argument("--loaders", nargs="+", help="of bare, torch-N (with N workers), nopfs and foresee")
    parser.add_argument("--global-batch", type=int, default=128, help="samples of all ranks in a step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--compute-ms", type=float, default=75, help="sleep after each batch, as for an accelerator")
    parser.add_argument("--staging", type=int, default=16 << 20, help="bytes of staging buffers of a host")
    parser.add_argument("--threads", type=int, default=4, help="that read ahead, of a rank")
    parser.add_argument("--more-ranks", type=int, nargs="*", default=[64, 1024], help="to predict for")
    args = parser.parse_args()
    for ranks in args.ranks:
        if args.global_batch % (args.hosts * ranks):
            parser.error(f"--global-batch {args.global_batch} is no multiple of {args.hosts * ranks} ranks")
    return args


def main() -> None:
    args = arguments()
    hosts.run_benchmark("cluster", args, lambda: cluster.missing() or hosts.no_groups(), bench, report)


if __name__ == "__main__":
    main()
