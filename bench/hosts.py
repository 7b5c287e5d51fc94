#!/usr/bin/env python3
"""Several hosts on one slow shared storage: torch's DataLoader, `nopfs` and `foresee`, a rank on each host.

    bench/hosts.py [FOLDER] [--hosts 4] [--ranks 1] [--mbit 400] [--host-mbit 1000] [--cached 1.02 0.5] [--loops raw train]

Needs root and MooseFS (Debian: moosefs-master, moosefs-chunkserver, moosefs-client); the package `foresee`, and torch and
torchvision to compare with and for the loop `train`. Hosts are network namespaces (network.py): a line of 1 Gbit/s for
each, one of 400 Mbit/s for the MooseFS that has the dataset, a mount of it for each host. All is taken down in the end,
whatever happens. FOLDER has class folders of JPEG files, of which the benchmark takes as many as it is told; without it they
are made, once.

Memory of a host is limited by a cgroup that counts the page cache, too: what a loader needs for itself, which is measured
first, and the host's part of a cache for so much of the dataset (--cached, on all hosts together). For torch's loader the
kernel fills it with what was read, the others have a memory tier of that size. They never get more than the torch loader
that gets least. Every sample must come exactly once an epoch over all ranks; in the loop `raw` with the bytes of its file.
Goals: from the second epoch on, the source minimum, and 1.5 times as fast as the better of torch's loader and nopfs where
the source's line is what limits that one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import moosefs
import network
from hosts_rank import digest
from memory_group import MemoryGroup, available, watched
from shared_fs import SLACK, Stop, installed, note, source_folder

HERE = Path(__file__).resolve().parent
NAME = "foresee-hosts"
GOAL = 1.5
OURS = "foresee"
LOOPS = ["raw", "train"]
LOADERS = ["torch-2", "torch-4", "nopfs", OURS]
# Five batches or so of a rank: enough to read ahead, too little to be a cache.
STAGING = {"raw": "16 MiB", "train": "96 MiB"}
COPIES_AT_ONCE = 8
EPOCH_S_MAX = 300.0
# What torch's loader needs does not grow from then on: each worker has made some batches.
NEED_STEPS = 16
# A line that is used to this part of its rate, or more, is the bottleneck.
IS_FULL = 0.8
PORT = 29_500


@dataclass(frozen=True)
class Data:
    """The dataset on the shared storage; samples are numbered in the order of their names."""

    folder: Path
    sizes: list[int]
    digests: list[str]
    labels: list[int]

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)


@dataclass
class Epoch:
    """One epoch of all ranks."""

    #: From when all began to when the last one was done.
    took_s: float
    #: The longest that a rank's trainer waited for batches.
    waited_s: float
    #: What the storage sent over its line.
    line_bytes: int
    #: What hosts sent over theirs.
    between_bytes: int
    #: What the loaders say that they read of samples from the storage, and of other ranks; torch's does not say.
    source_bytes: int | None
    peer_bytes: int | None


@dataclass
class Run:
    loop: str
    loader: str
    #: What caches of all hosts together hold, as a part of the dataset.
    cached: float
    limit_bytes: int | None
    epochs: list[Epoch] = field(default_factory=list)
    #: The most that the ranks of a host had for themselves.
    own_bytes_max: int = 0
    #: What all ranks read from the source, and the least that they could have.
    source_bytes: int | None = None
    minimum_bytes: int | None = None
    #: Of the machine when the run ended.
    load: float = 0.0

    @property
    def later(self) -> list[Epoch]:
        return self.epochs[1:] or self.epochs

    @property
    def later_s(self) -> float:
        """An epoch from the second on."""
        return statistics.mean(epoch.took_s for epoch in self.later)


def copy_dataset(source: Path, mount: moosefs.Mount, images: int, digest: Callable[[bytes], str] = digest) -> Data:
    """As many images as asked for, spread over all classes."""
    found = sorted(path for path in source.glob("*/*") if path.is_file())
    if len(found) < images:
        raise Stop(f"{source}: {len(found)} images, fewer than --images {images}")
    chosen = [found[index * len(found) // images] for index in range(images)]
    names = sorted({path.parent.name for path in chosen})
    for name in names:
        (mount.view / "data" / name).mkdir(parents=True)

    def copy(path: Path) -> str:
        shutil.copyfile(path, mount.view / "data" / path.parent.name / path.name)
        return digest(path.read_bytes())

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        digests = list(pool.map(copy, chosen))
    sizes = [path.stat().st_size for path in chosen]
    return Data(mount.point / "data", sizes, digests, [names.index(path.parent.name) for path in chosen])


class Ranks:
    """The processes of one run, which take their epochs together."""

    def __init__(self, processes: list[subprocess.Popen], logs: list[Path]) -> None:
        self._processes, self._logs = processes, logs

    def all_say(self, event: str) -> list[dict[str, Any]]:
        """The next line of each rank."""
        said: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + EPOCH_S_MAX
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self._processes):
                waiting.register(process.stdout, selectors.EVENT_READ, rank)
            while waiting.get_map():
                ready = waiting.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    raise Stop(f"ranks {sorted(set(range(len(self._processes))) - set(said))} said nothing in time")
                for key, _ in ready:
                    # Lines are whole, and each rank says one and waits.
                    said[key.data] = self._line(key.data, event)
                    waiting.unregister(key.fileobj)
        return [said[rank] for rank in range(len(self._processes))]

    def _line(self, rank: int, event: str) -> dict[str, Any]:
        text = self._processes[rank].stdout.readline()
        if text == "":
            code = self._processes[rank].wait()
            cause = "out of memory" if code == -signal.SIGKILL else f"exit code {code}"
            last = self._logs[rank].read_text(errors="replace").splitlines()[-1:]
            raise Stop(f"rank {rank} ended before its {event}: {cause}: {' '.join(last)}")
        line = json.loads(text)
        assert line["event"] == event
        return line

    def go_on(self) -> None:
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            process.wait(EPOCH_S_MAX)


@dataclass
class Cluster:
    """The hosts, the storage, and a mount of it on each host."""

    storage: network.Host
    hosts: list[network.Host]
    mounts: list[moosefs.Mount]

    def remount(self) -> None:
        """Nothing is cached any more."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(moosefs.Mount.remount, self.mounts))

    def sent_bytes(self) -> tuple[int, int]:
        """By the storage, and by all hosts."""
        return self.storage.traffic().sent_bytes, sum(host.traffic().sent_bytes for host in self.hosts)


class Bench:
    """Runs loaders on all hosts, those of a host in a memory group, on mounts where nothing is cached."""

    def __init__(self, args: argparse.Namespace, cluster: Cluster, data: Data) -> None:
        self.args, self.cluster, self.data = args, cluster, data
        self.world = args.hosts * args.ranks
        self._needs: dict[tuple[str, str], int] = {}
        self._runs = 0

    def limits(self, loop: str, loaders: list[str], cached: float) -> dict[str, int]:
        """What each loader may have of a host's memory: what it needs without a cache, and the host's part of the cache."""
        cache_bytes = int(cached * self.data.total_bytes / self.args.hosts)
        limits = {loader: int(SLACK * self.need_bytes(loop, loader)) + cache_bytes for loader in loaders}
        least = min((limit for loader, limit in limits.items() if is_torch(loader)), default=None)
        if least is None:
            return limits
        return {loader: limit if is_torch(loader) else min(limit, least) for loader, limit in limits.items()}

    def need_bytes(self, loop: str, loader: str) -> int:
        """What the ranks of a host have for themselves, without what they cache."""
        if (loop, loader) not in self._needs:
            if is_torch(loader):
                need = self.run(loop, loader, 0, None, epochs=1, steps_max=NEED_STEPS).own_bytes_max
            else:
                # A tier is full after an epoch; from then on it also evicts.
                cached = self.args.cached[0]
                need = self.run(loop, loader, cached, None, epochs=2).own_bytes_max
                need -= int(cached * self.data.total_bytes / self.args.hosts)
            note(f"{loop}: {loader} needs {need / 1e6:.0f} MB of a host")
            self._needs[loop, loader] = need
        return self._needs[loop, loader]

    def run(
        self,
        loop: str,
        loader: str,
        cached: float,
        limit_bytes: int | None,
        epochs: int,
        steps_max: int | None = None,
    ) -> Run:
        """One run; `steps_max` is for a look at the first steps of an epoch."""
        self.cluster.remount()
        run = Run(loop, loader, cached, limit_bytes)
        with contextlib.ExitStack() as stack:
            groups = [stack.enter_context(self.group(host, limit_bytes)) for host in self.cluster.hosts]
            line = self.line(loop, loader, {**self.told(loop, loader, cached, epochs), "steps_max": steps_max})
            ranks = stack.enter_context(self.started(line, groups))
            with watched(*groups) as watch:
                self.follow(ranks, run, epochs, is_whole=steps_max is None)
            run.own_bytes_max = max(watch.own_bytes_max)
        run.load = os.getloadavg()[0]
        return run

    def group(self, host: network.Host, limit_bytes: int | None) -> contextlib.AbstractContextManager[MemoryGroup]:
        """Of the ranks of a host, from `with` to its end."""
        return MemoryGroup(f"{NAME}-{host.what}", limit_bytes)

    def line(self, loop: str, loader: str, told: dict[str, Any]) -> list[str]:
        """What a rank is started by."""
        kind = "torch" if is_torch(loader) else "foresee"
        # torch warns of more workers than cores.
        return [sys.executable, "-B", "-W", "ignore", str(HERE / "hosts_rank.py"), loop, kind, json.dumps(told)]

    def follow(self, ranks: Ranks, run: Run, epochs: int, is_whole: bool) -> None:
        """A run to its end."""
        ranks.all_say("ready")
        so_far = dict.fromkeys(("source_bytes", "peer_bytes"), 0)
        for number in range(epochs):
            line_bytes, between_bytes = self.cluster.sent_bytes()
            began_s = time.monotonic()
            ranks.go_on()
            said = ranks.all_say("epoch")
            took_s = time.monotonic() - began_s
            line_now_bytes, between_now_bytes = self.cluster.sent_bytes()
            if is_whole:
                self.check(run, number, said)
            of_all = {name: sum_of(rank[name] for rank in said) for name in so_far}
            counted = {name: None if count is None else count - so_far[name] for name, count in of_all.items()}
            so_far = of_all
            run.epochs.append(
                Epoch(
                    took_s,
                    max(rank["waited_s"] for rank in said),
                    line_now_bytes - line_bytes,
                    between_now_bytes - between_bytes,
                    **counted,
                )
            )
        stats = [rank["stats"] for rank in ranks.all_say("end")]
        ranks.end()
        run.source_bytes = so_far["source_bytes"]
        if all(stats):
            run.source_bytes = sum(each["source_bytes"] for each in stats)
            run.minimum_bytes = (stats[0]["job"] or stats[0])["source_minimum_bytes"]

    def check(self, run: Run, epoch: int, said: list[dict[str, Any]]) -> None:
        """Every sample came once, with its bytes."""
        seen = sorted((index, found) for rank in said for index, found in rank["seen"])
        expected = self.data.digests if run.loop == "raw" else [""] * len(self.data.digests)
        if [index for index, _ in seen] != list(range(len(expected))):
            raise Stop(f"{run.loop}, {run.loader}, epoch {epoch + 1}: not every sample exactly once")
        wrong = [index for index, found in seen if found != expected[index]]
        if wrong:
            raise Stop(
                f"{run.loop}, {run.loader}, epoch {epoch + 1}: {len(wrong)} samples with other bytes: {wrong[:5]}"
            )

    @contextlib.contextmanager
    def started(self, line: list[str], groups: list[MemoryGroup]) -> Iterator[Ranks]:
        """All ranks; they, and whatever they started, are gone in the end."""
        self._runs += 1
        common = {name: value for name, value in os.environ.items() if not name.startswith("FORESEE_")}
        common |= {
            "FORESEE_CONFIG": "",
            "FORESEE_NETWORK": NAME,
            "FORESEE_PEERS_SECRET": secrets.token_hex(32),
            "MASTER_ADDR": self.cluster.hosts[0].address,
            # Another one each time: connections of the run before may still be on their way out.
            "MASTER_PORT": str(PORT + 2 * self._runs),
            "GLOO_SOCKET_IFNAME": network.LINE,
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.args.ranks),
        }
        processes: list[subprocess.Popen] = []
        logs = [network.folder_of(NAME) / f"rank{rank}.log" for rank in range(self.world)]
        try:
            for rank, log in enumerate(logs):
                host, place = divmod(rank, self.args.ranks)
                command = groups[host].command(self.cluster.hosts[host].command(line))
                own = {"RANK": str(rank), "LOCAL_RANK": str(place)}
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                with log.open("wb") as errors:
                    processes.append(
                        subprocess.Popen(
                            command, **pipes, stderr=errors, text=True, start_new_session=True, env={**common, **own}
                        )
                    )
            yield Ranks(processes, logs)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for process in processes:
                process.wait()

    def told(self, loop: str, loader: str, cached: float, epochs: int) -> dict[str, Any]:
        """All that a rank is told for a loader."""
        args = self.args
        settings = {
            "folder": str(self.data.folder),
            "labels": self.data.labels,
            "batch": args.batch,
            "epochs": epochs,
            "seed": args.seed,
            "compute_ms": args.compute_ms,
            "digest": "sha256",
            "together": False,
        }
        if is_torch(loader):
            return {**settings, "workers": int(loader.partition("-")[2])}
        return {
            **settings,
            "policy": loader,
            "tier_bytes": int(cached * self.data.total_bytes / self.world),
            "staging": {"capacity": args.staging or STAGING[loop], "threads": args.threads},
        }


def sum_of(counts: Iterator[int | None]) -> int | None:
    """None where one of them is not known."""
    known = list(counts)
    return None if None in known else sum(known)


def is_torch(loader: str) -> bool:
    return loader.startswith("torch-")


@contextlib.contextmanager
def made_cluster(args: argparse.Namespace) -> Iterator[Cluster]:
    """Lines are as fast as the machine can; `slow_down` is for when the dataset is there."""
    with network.locked(NAME), network.Network(NAME) as lines:
        storage = lines.host("storage")
        hosts = [lines.host(f"host{number}") for number in range(args.hosts)]
        for host in hosts:
            host.settle()
        with moosefs.MooseFs(storage, network.folder_of(NAME)) as shared:
            yield Cluster(storage, hosts, [shared.mount_on(host) for host in hosts])


def bench(args: argparse.Namespace) -> dict:
    began_s = time.monotonic()
    loaders = chosen_loaders(args)
    # DistributedSampler would repeat samples to fill up the last batches.
    images = args.images - args.images % (args.hosts * args.ranks)
    source = source_folder(args)
    with made_cluster(args) as cluster:
        note("copying the dataset to MooseFS")
        data = copy_dataset(source, cluster.mounts[0], images)
        # Or else the disk would be busy writing files while they are read.
        os.sync()
        cluster.storage.slow_down(args.mbit)
        for host in cluster.hosts:
            host.slow_down(args.host_mbit)
        runs = Bench(args, cluster, data)
        results = [
            run for loop in args.loops for cached in args.cached for run in all_rounds(runs, loop, cached, loaders)
        ]
    note(f"took {time.monotonic() - began_s:.0f} s")
    return summary(args, data, results)


def all_rounds(runs: Bench, loop: str, cached: float, loaders: list[str]) -> Iterator[Run]:
    limits = dict.fromkeys(loaders) if runs.args.unlimited else runs.limits(loop, loaders, cached)
    for number in range(runs.args.rounds):
        for loader in loaders:
            run = runs.run(loop, loader, cached, limits[loader], runs.args.epochs)
            times = " ".join(f"{epoch.took_s:.2f}" for epoch in run.epochs)
            note(f"{loop}, K = {cached:g} S, round {number + 1}, load {run.load:.1f}: {loader}: {times} s")
            yield run


def chosen_loaders(args: argparse.Namespace) -> list[str]:
    if not installed("foresee"):
        raise Stop("the package foresee is not there: pip install . or set PYTHONPATH")
    has_torch = installed("torchvision") and installed("foresee.torch")
    asked = args.loaders or [loader for loader in LOADERS if has_torch or not is_torch(loader)]
    if not has_torch and (any(map(is_torch, asked)) or "train" in args.loops):
        raise Stop("torch and torchvision are not there; without them: --loops raw --loaders nopfs foresee")
    return asked


# --- Report ----------------------------------------------------------------------------------------------------------


def summary(args: argparse.Namespace, data: Data, results: list[Run]) -> dict:
    """What was measured, and for each loop and cache the medians of the rounds."""
    settings = {}
    for run in results:
        settings.setdefault((run.loop, run.cached), {}).setdefault(run.loader, []).append(run)
    return {
        "benchmark": "hosts",
        "hosts": args.hosts,
        "ranks": args.ranks,
        "mbit": args.mbit,
        "host_mbit": args.host_mbit,
        "batch": args.batch,
        "compute_ms": args.compute_ms,
        "rounds": args.rounds,
        **circumstances(data),
        "settings": [
            {"loop": loop, "cached": cached, "loaders": {name: figures(runs) for name, runs in loaders.items()}}
            for (loop, cached), loaders in settings.items()
        ],
        "runs": [asdict(run) for run in results],
    }


def circumstances(data: Data) -> dict[str, Any]:
    """What a result says beside what it was told."""
    from side_by_side import machine

    samples = {"samples": len(data.sizes), "bytes": data.total_bytes}
    return {**samples, "machine": machine(), "date": time.strftime("%Y-%m-%d")}


def figures(runs: list[Run]) -> dict[str, Any]:
    """Of one loader in one setting: medians over the rounds, of means over epochs from the second on."""

    def later(key: str) -> float | None:
        values = [[getattr(epoch, key) for epoch in run.later] for run in runs]
        return None if values[0][0] is None else statistics.median(map(statistics.mean, values))

    return {
        "limit_bytes": runs[0].limit_bytes,
        "first_s": statistics.median(run.epochs[0].took_s for run in runs),
        "later_s_all": [run.later_s for run in runs],
        "line_bytes_all": [statistics.mean(epoch.line_bytes for epoch in run.later) for run in runs],
        "later_s": later("took_s"),
        "waited_s": later("waited_s"),
        "line_bytes": later("line_bytes"),
        "between_bytes": later("between_bytes"),
        "source_bytes": later("source_bytes"),
        "peer_bytes": later("peer_bytes"),
        "all_source_bytes": None if runs[0].source_bytes is None else max(run.source_bytes for run in runs),
        "minimum_bytes": runs[0].minimum_bytes,
    }


def verdict(result: dict, setting: dict) -> str:
    """How foresee compares with the better of the others, and whether the source's line is what limits that one."""
    loaders = setting["loaders"]
    others = {name: each["later_s"] for name, each in loaders.items() if name != OURS}
    if OURS not in loaders or not others:
        return "nothing to compare with"
    best = min(others, key=others.__getitem__)
    ratio = others[best] / loaders[OURS]["later_s"]
    used = loaders[best]["line_bytes"] / others[best] / (result["mbit"] * 125e3)
    text = (
        f"foresee is {ratio:.2f} times as fast as {best}, from the second epoch on; {best} uses {used:.0%} of the line"
    )
    if ratio >= GOAL:
        return f"{text} (goal {GOAL}: reached)"
    if used < IS_FULL:
        return f"{text}, so that is not what limits it"
    return f"{text} (goal {GOAL}: MISSED)"


def mb(count: float | None) -> str:
    return "" if count is None else f"{count / 1e6:,.0f}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def title(result: dict, setting: dict) -> str:
    return f"{setting['loop']}, K = {setting['cached']:g} S"


def table(setting: dict) -> tuple[list[str], list[list[str]]]:
    head = ["loader", "host's memory MB", "epoch 1 s", "later s", "waited s", "line MB", "read MB", "hosts MB"]
    head += ["job MB", "minimum MB"]
    rows = [
        [
            name,
            mb(each["limit_bytes"]),
            f"{each['first_s']:.2f}",
            f"{each['later_s']:.2f}",
            f"{each['waited_s']:.2f}",
            *map(mb, (each["line_bytes"], each["source_bytes"], each["between_bytes"])),
            *map(mb, (each["all_source_bytes"], each["minimum_bytes"])),
        ]
        for name, each in setting["loaders"].items()
    ]
    return head, rows


def conditions(result: dict) -> str:
    return (
        f"{dataset_and_lines(result)}; {counted(result['ranks'], 'rank')} a host; batches of {result['batch']}; "
        f"medians of {counted(result['rounds'], 'round')}. {machine_and_date(result)}"
    )


def dataset_and_lines(result: dict) -> str:
    return (
        f"{result['samples']:,} files, {result['bytes'] / 1e6:.0f} MB; {result['hosts']} hosts, "
        f"{result['host_mbit']} Mbit/s each; storage behind {result['mbit']} Mbit/s"
    )


def machine_and_date(result: dict) -> str:
    machine = result["machine"]
    return (
        f"All on one machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}, {result['date']}."
    )


def report(result: dict) -> None:
    from side_by_side import aligned

    print(conditions(result))
    for setting in result["settings"]:
        print(f"\n{title(result, setting)}: {verdict(result, setting)}\n{aligned(*table(setting))}")


def common_arguments(description: str) -> argparse.ArgumentParser:
    """What benchmarks on hosts are told alike."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", nargs="?", help="images in class folders; without it they are made")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=400, help="of the line of the shared storage")
    parser.add_argument("--host-mbit", type=int, default=1000, help="of the line of each host")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unlimited", action="store_true", help="all the memory there is, for a quick look")
    parser.add_argument("--cache", type=Path, help="folder for images that are made")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser


def arguments() -> argparse.Namespace:
    parser = common_arguments(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument(
        "--cached", type=float, nargs="+", default=[1.02, 0.5], help="what caches of all hosts hold, of the dataset"
    )
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS)
    parser.add_argument("--loaders", nargs="+", help="of torch-N (with N workers), nopfs and foresee")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank in a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--compute-ms", type=float, default=0, help="sleep after each batch, as for an accelerator")
    parser.add_argument("--staging", help=f"a rank's staging buffer; default: {STAGING}")
    parser.add_argument("--threads", type=lambda text: int(text) if text.isdigit() else text, default=4)
    return parser.parse_args()


def no_groups() -> str | None:
    return None if available() else "needs a cgroup that limits memory"


def run_benchmark(
    name: str,
    args: argparse.Namespace,
    missing: Callable[[], str | None],
    measure: Callable[[argparse.Namespace], dict],
    show: Callable[[dict], None],
) -> None:
    """Measures and shows; what keeps it from that is said in one line, and what was begun is undone."""
    if lacking := missing():
        print(f"{name}: SKIPPED: {lacking}")
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        result = measure(args)
    except (Stop, network.SetupError) as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


def main() -> None:
    run_benchmark("hosts", arguments(), lambda: moosefs.missing() or no_groups(), bench, report)


if __name__ == "__main__":
    main()
