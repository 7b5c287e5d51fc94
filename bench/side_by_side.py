"""What the comparisons with other loaders share: processes that take turns, measuring, and the report.

A benchmark is a list of loaders and a consumer. Every loader runs in a process of its own, which is this script again
with `--measure LOADER`; the loaders take turns, round by round, and ratios are taken within a round, so that what else
the machine does hits all of them alike. A loader that is not installed is left out, one that fails is dropped; the
others go on. What is measured is in `measure`; what has to be equal is up to the benchmark, whose consumer checks it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "foresee"
# Often enough to see the plateau that loaders reach, seldom enough to cost none of them anything.
MEMORY_INTERVAL_S = 1.0
# A machine that is never idle is not waited for.
SETTLED_AFTER_S = 5.0


@dataclass(frozen=True)
class Loader:
    """One way to load the dataset."""

    name: str
    # Yields one iterable of batches for each epoch, of what the benchmark's consumer takes.
    run: Callable[[Path, argparse.Namespace], Iterable[Iterable[Any]]]
    module: str
    # Whose version the report names.
    package: str
    # Makes a format of its own, once, or reads it into the page cache; in a process of its own, too.
    prepare: Callable[[Path, argparse.Namespace], None] | None = None

    def missing(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is None
        except ModuleNotFoundError:
            return True


@dataclass(frozen=True)
class Benchmark:
    """What is compared."""

    name: str
    title: str
    # Of samples, in the plural.
    unit: str
    loaders: list[Loader]
    # Uses a batch and returns how many samples it had.
    consume: Callable[[Any, argparse.Namespace], int]
    # Looks at the last batch when the clock has stopped; raises if it is not what was asked for.
    check: Callable[[Any], None]


class Failed(Exception):
    """A loader's process ended with an error, whose last line this is."""


# --- The measured process --------------------------------------------------------------------------------------------


def class_folders(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels, for loaders that do not list folders themselves."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    pairs = [(str(path), label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]
    return [path for path, _ in pairs], [label for _, label in pairs]


def shuffled_batches(samples: int, batch: int) -> list[list[int]]:
    """An epoch in random order, for loaders that do not shuffle themselves; without an incomplete last batch."""
    order = random.sample(range(samples), samples)
    return [order[at : at + batch] for at in range(0, samples - batch + 1, batch)]


def descendants(pid: int) -> list[int]:
    """Living processes below this one."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in below:
            found += [child, *descendants(child)]
    return found


def cpu_s() -> float:
    """What this process and all below it have used so far, user and system."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        try:
            # After the name in brackets; there utime, stime and those of children that have ended are fields 12 to 15.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def memory_bytes(pid: int) -> int:
    """What a process and those below it hold; shared pages count once, files that are mapped do not count."""
    total = 0
    for each in [pid, *descendants(pid)]:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total * 1024


def measure(benchmark: Benchmark, loader: Loader, args: argparse.Namespace) -> dict:
    """Runs a loader once. Times count from the start of the process, before any import."""
    epochs, first_batch_s, first_cpu_s, first_samples, batch = [], None, 0.0, 0, None
    for index, batches in enumerate(loader.run(args.folder, args)):
        began_s, samples = time.perf_counter(), 0
        for number, batch in enumerate(batches, 1):
            samples += benchmark.consume(batch, args)
            if first_batch_s is None:
                first_batch_s, first_samples = time.perf_counter() - args.began_s, samples
                first_cpu_s, began_s = cpu_s(), time.perf_counter()
            if number == args.batches:
                break
        ended_s = time.perf_counter()
        timed = samples - first_samples if index == 0 else samples
        epochs.append({"samples": samples, "per_s": timed / (ended_s - began_s), "ended_s": ended_s - args.began_s})
        if timed <= 0:
            raise SystemExit(f"{samples} samples: fewer than two batches of {args.batch}")
    total_cpu_s, total = cpu_s(), sum(epoch["samples"] for epoch in epochs)
    benchmark.check(batch)
    later = epochs[1:]
    return {
        "samples": total,
        "first_batch_s": first_batch_s,
        "per_s": epochs[0]["per_s"],
        "later_per_s": statistics.mean(epoch["per_s"] for epoch in later) if later else None,
        "whole_per_s": epochs[0]["samples"] / epochs[0]["ended_s"],
        "cpu_ms": 1e3 * (total_cpu_s - first_cpu_s) / (total - first_samples),
        "whole_cpu_ms": 1e3 * total_cpu_s / total,
        "memory_bytes": memory_bytes(os.getpid()),
    }


# --- Rounds ----------------------------------------------------------------------------------------------------------


def start(args: argparse.Namespace, *more: str) -> tuple[str, int]:
    """Runs this script once more; its output, and the most memory it was seen to hold."""
    # Nothing but the options may configure a loader, nobody may look for a GPU, and threads that NumPy keeps for matrices
    # spin for a while after its import: those who have begun to load by then would have a core less.
    env = {key: value for key, value in os.environ.items() if not key.startswith("FORESEE_")}
    env |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-B", *sys.argv, *more, "--began-s", repr(time.perf_counter())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        # Of its own, so that it can be ended with all its workers.
        process_group=0,
    )
    ended, most = threading.Event(), 0

    def watch() -> None:
        nonlocal most
        while not ended.wait(MEMORY_INTERVAL_S):
            most = max(most, memory_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output, errors = process.communicate(timeout=args.timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {args.timeout_s:.0f} s") from None
    finally:
        ended.set()
        watcher.join()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        raise Failed(lines[-1] if lines else f"exit code {process.returncode}")
    return output, most


def run_rounds(benchmark: Benchmark, loaders: list[Loader], args: argparse.Namespace) -> tuple[dict, dict]:
    """Runs by loader, and the error's last line of those that failed."""
    runs: dict[str, list[dict]] = {loader.name: [] for loader in loaders}
    failed: dict[str, str] = {}

    def attempt(loader: Loader, *words: str) -> tuple[str, int] | None:
        try:
            return start(args, *words, loader.name)
        except Failed as error:
            failed[loader.name] = str(error)
            say(f"{loader.name} failed: {error}")
            del runs[loader.name]
            return None

    for number in range(args.rounds):
        # Another one goes first in each round: what the machine does at the start of a round is no one's burden.
        turn = number % len(loaders)
        for loader in loaders[turn:] + loaders[:turn]:
            if loader.name in failed:
                continue
            warm(args.folder)
            if loader.prepare and not attempt(loader, "--prepare"):
                continue
            settle()
            if not (done := attempt(loader, "--measure")):
                continue
            output, most = done
            run = json.loads(output.splitlines()[-1])
            run["memory_bytes"] = max(run["memory_bytes"], most)
            runs[loader.name].append(run)
            say(f"round {number + 1} of {args.rounds}: {loader.name}: {run['per_s']:,.0f}/s")
    return runs, failed


def warm(folder: Path) -> tuple[int, int]:
    """Reads all files, so that they are in the page cache; how many there are, and their bytes."""
    paths = [path for path in folder.glob("*/*") if path.is_file()]
    with ThreadPoolExecutor() as pool:
        return len(paths), sum(pool.map(lambda path: len(path.read_bytes()), paths))


def settle() -> None:
    """Waits until the cores are idle: what a loader's end leaves to the system is not the next one's burden."""

    def ticks() -> tuple[int, int]:
        user, nice, system, idle, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
        return idle, user + nice + system

    deadline_s, before = time.monotonic() + SETTLED_AFTER_S, ticks()
    while time.monotonic() < deadline_s:
        time.sleep(0.5)
        now = ticks()
        idle, busy = now[0] - before[0], now[1] - before[1]
        if idle > 0.95 * (idle + busy):
            return
        before = now


def warm_file(path: Path) -> None:
    """Reads a loader's own file: it has the same right to the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def let_go(path: Path) -> None:
    """Leaves a loader's own file to the disk: it is read back in order, as on any day after the one it was made on."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def machine() -> dict:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # A checkout's own build, which is not installed.
        return str(getattr(importlib.import_module(package), "__version__", ""))


# --- Report ----------------------------------------------------------------------------------------------------------


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def table(result: dict) -> tuple[list[str], list[list[str]]]:
    """Head and rows, fastest first: the medians, for samples a second with the least and the most of all rounds."""
    unit, one, digits = result["unit"], result["unit"][:-1], cpu_digits(result)
    columns: list[tuple[str, str, Callable[[list[float]], str]]] = [
        (f"{unit}/s", "per_s", lambda values: spread(values, 0)),
        ("later epochs", "later_per_s", lambda values: spread(values, 0)),
        ("with start-up", "whole_per_s", lambda values: f"{statistics.median(values):,.0f}"),
        (f"CPU ms/{one}", "cpu_ms", lambda values: f"{statistics.median(values):.{digits}f}"),
        ("with start-up", "whole_cpu_ms", lambda values: f"{statistics.median(values):.{digits}f}"),
        ("first batch s", "first_batch_s", lambda values: f"{statistics.median(values):.2f}"),
        ("memory MB", "memory_bytes", lambda values: f"{statistics.median(values) / 1e6:,.0f}"),
    ]
    if not has_later(result):
        del columns[1]
    rows = [
        [name, *(form([run[key] for run in result["runs"][name]]) for _, key, form in columns)]
        for name in by_rate(result)
    ]
    return ["loader", *(head for head, _, _ in columns)], rows


def is_ours(name: str) -> bool:
    """Whether it is one of foresee's ways to load: `foresee`, `foresee.torch`."""
    return name.partition(".")[0] == OURS


def ratios(result: dict) -> tuple[list[str], list[list[str]]]:
    """Head and rows: how many times better foresee is than each other, taken round by round."""
    head = ["ratio", f"{result['unit']}/s", "later epochs", "CPU", "first batch"]
    keys = [("per_s", 1), ("later_per_s", 1), ("cpu_ms", -1), ("first_batch_s", -1)]
    if not has_later(result):
        del head[2], keys[1]
    names = by_rate(result)
    pairs = [(ours, name) for ours in filter(is_ours, names) for name in names if not is_ours(name)]
    rows = []
    for ours, name in pairs:
        rounds = list(zip(result["runs"][ours], result["runs"][name], strict=True))
        rows.append(
            [f"{ours} / {name}", *(spread([(a[key] / b[key]) ** power for a, b in rounds], 2) for key, power in keys)]
        )
    return head, rows


def cpu_digits(result: dict) -> int:
    """Digits for CPU time: reading takes hundredths of what decoding does."""
    return 2 if statistics.median(run["cpu_ms"] for runs in result["runs"].values() for run in runs) > 1 else 3


def has_later(result: dict) -> bool:
    return any(run["later_per_s"] for runs in result["runs"].values() for run in runs)


def by_rate(result: dict, key: str = "per_s") -> list[str]:
    """Loaders, fastest first."""
    rates = {name: statistics.median(run[key] for run in runs) for name, runs in result["runs"].items()}
    return sorted(rates, key=lambda name: -rates[name])


def conditions(result: dict) -> str:
    """Under what the figures were taken, in two sentences."""
    data, options, host = result["dataset"], result["options"], result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    text = (
        f"{data['files']:,} files of {data['bytes'] / data['files'] / 1e3:.0f} KB on average, in the page cache; "
        f"batches of {options['batch']}, {options['threads']} threads or workers, {result['rounds']} rounds. "
        f"{host['cpu']}, {host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB, {host['system']}, "
        f"Python {host['python']}, load {host['load']:.1f} before, {result['date']}; {versions}."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False)


def aligned(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in [head, *rows]
    )
    return "\n".join("  ".join(line) for line in lines)


def report(result: dict) -> str:
    parts = [f"{result['title']}\n{conditions(result)}"]
    head, rows = ratios(result)
    if rows:
        parts.append(f"How many times better foresee is: median (least-most) of the rounds.\n{aligned(head, rows)}")
    if result["runs"]:
        parts.append(aligned(*table(result)))
    lines = [f"{name}: not installed; {hint}" for name, hint in result["left_out"].items()]
    lines += [f"{name}: failed: {line}" for name, line in result["failed"].items()]
    return "\n\n".join(parts + (["\n".join(lines)] if lines else []))


# ---------------------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 1")
    return int(text)


def options(benchmark: Benchmark, description: str) -> argparse.ArgumentParser:
    """What all benchmarks take."""
    names = [loader.name for loader in benchmark.loaders]
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("folder", type=Path, help="class folders with JPEG images")
    parser.add_argument("--loaders", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=at_least_1, default=5, help="turns of each loader")
    parser.add_argument("--batch", type=at_least_1, default=128, help=f"{benchmark.unit} in a batch")
    parser.add_argument("--threads", type=at_least_1, default=2, help="threads or worker processes of a loader")
    parser.add_argument("--batches", type=at_least_1, help="end an epoch after so many; for trying things out")
    parser.add_argument("--timeout-s", type=float, default=900, help="a loader that takes longer has failed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all numbers there, for bench/plot.py")
    parser.add_argument("--measure", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--began-s", type=float, help=argparse.SUPPRESS)
    return parser


def main(benchmark: Benchmark, parser: argparse.ArgumentParser) -> None:
    args = parser.parse_args()
    loaders = {loader.name: loader for loader in benchmark.loaders if loader.name in args.loaders}
    if args.prepare:
        loaders[args.prepare].prepare(args.folder, args)
    elif args.measure:
        print(json.dumps(measure(benchmark, loaders[args.measure], args)))
    else:
        compare(benchmark, loaders, args)


def compare(benchmark: Benchmark, loaders: dict[str, Loader], args: argparse.Namespace) -> None:
    left_out = {
        name: "pip install ." if is_ours(name) else "make bench-setup"
        for name, loader in loaders.items()
        if loader.missing()
    }
    if left_out:
        say(f"not installed, left out: {', '.join(left_out)}")
    present = [loader for loader in loaders.values() if loader.name not in left_out]
    if not args.folder.is_dir():
        sys.exit(f"{args.folder} is no folder")
    host = machine()
    files, size = warm(args.folder)
    if not files:
        sys.exit(f"{args.folder} has no files in class folders")
    runs, failed = run_rounds(benchmark, present, args)
    result = {
        "benchmark": benchmark.name,
        "title": benchmark.title,
        "unit": benchmark.unit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": host,
        "versions": {each.package: version(each.package) for each in present if each.name in runs},
        "dataset": {"files": files, "bytes": size},
        "rounds": args.rounds,
        "options": {key: getattr(args, key) for key in ("batch", "threads", "batches")},
        "runs": runs,
        "left_out": left_out,
        "failed": failed,
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(report(result))
    if not runs:
        sys.exit("no loader was measured")
