#!/usr/bin/env python3
"""`foresee run` beside plain runs: what it costs, and what it saves.

    bench/transparent.py costs      open + close and start-up, minima of 40 interleaved passes
    bench/transparent.py records    200 record files of 8 MB, 56 % of them cached, small reads with 1 ms of work each
    bench/transparent.py cold       the first epoch from a MooseFS behind 400 Mbit/s (50 MB/s), small files
    bench/transparent.py ahead      --sampler: source bytes beside the minimum, and waiting with 5 ms a read
    bench/transparent.py programs   ImageFolder script, tf.data over TFRecords, cp -r: 40 and 100 % of the dataset

The command is the release build, or FORESEE_BIN. All but the first two need root and MooseFS.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import moosefs

HERE = Path(__file__).resolve().parent
COMMAND = Path(os.environ.get("FORESEE_BIN", HERE.parent / "target" / "release" / "foresee")).resolve()
PASSES = 40
MBIT = 400
REST_S = 2.1


def foresee(source: Path, cache: Path, quota: int, *more: object) -> list[str]:
    pair = ["--cache", cache, "--quota", f"{quota}B", "--free-floor", "1MiB"]
    return [str(word) for word in [COMMAND, "run", "--source", source, *pair, *more, "--"]]


def drop_caches() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1\n")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="foresee-transparent-") as name:
        yield Path(name)


def made(path: Path, files: int, size: int, name: str = "{:05}.bin") -> int:
    """Files of random bytes; returns how many bytes."""
    path.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (path / name.format(number)).write_bytes(hashlib.shake_128(str(number).encode()).digest(size))
    return files * size


# --- Costs -----------------------------------------------------------------------------------------------------------


def costs() -> None:
    with folder() as here:
        program = here / "open_cost"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "open_cost.c"], check=True)
        made(here / "source" / "a" / "b", 4, 50_000)
        outside = here / "outside" / "a" / "b" / "00000.bin"
        made(outside.parent, 1, 50_000)
        covered = here / "source" / "a" / "b" / "00000.bin"
        time.sleep(REST_S)
        run = foresee(here / "source", here / "cache", 1 << 30)
        subprocess.run([*run, "cat", covered], check=True, stdout=subprocess.DEVNULL)
        # What stays behind of a run, its copying process, is not to come and go while others are measured.
        with subprocess.Popen([*run, "sleep", "600"]) as idle:
            lists: dict[str, list[float]] = {}
            for _ in range(PASSES):
                for name, words in (
                    ("plain, outside", [program, outside]),
                    ("run, uncovered", [*run, program, outside]),
                    ("plain, source", [program, covered]),
                    ("run, covered and warm", [*run, program, covered]),
                ):
                    done = subprocess.run(words, check=True, capture_output=True, text=True)
                    lists.setdefault(name, []).append(float(done.stdout))
                for name, words in (("plain, true", ["/bin/true"]), ("run, true", [*run, "/bin/true"])):
                    began = time.perf_counter()
                    subprocess.run(words, check=True)
                    lists.setdefault(name, []).append((time.perf_counter() - began) * 1e9)
            idle.kill()
        least = {name: min(values) for name, values in lists.items()}
        for name, value in least.items():
            print(f"{name:24} {value / 1e3:10.2f} us")
        print(f"uncovered: {(least['run, uncovered'] - least['plain, outside']) / 1e3:+.3f} us (at most +0.2)")
        print(f"covered:   {(least['run, covered and warm'] - least['plain, source']) / 1e3:+.3f} us (at most +4)")
        print(f"start-up:  {(least['run, true'] - least['plain, true']) / 1e6:+.2f} ms (at most +3)")


# --- Records ---------------------------------------------------------------------------------------------------------

RECORDS = """
import os, random, sys, time
folder, epochs = sys.argv[1], int(sys.argv[2])
for epoch in range(epochs):
    names = sorted(os.listdir(folder))
    random.Random(epoch).shuffle(names)
    for name in names:
        number = os.open(os.path.join(folder, name), os.O_RDONLY)
        while os.read(number, 256 << 10):
            time.sleep(0.001)
        os.close(number)
"""


def records() -> None:
    with folder() as here:
        total = made(here / "source", 200, 8_000_000)
        time.sleep(REST_S)
        reads_an_epoch = 200 * (8_000_000 // (256 << 10) + 2)
        for epochs in (1, 3):
            stats = here / "stats.json"
            # A folder for each: the copying process of a run lives a little longer than it.
            run = foresee(here / "source", here / f"cache{epochs}", total * 56 // 100, "--stats-json", stats)
            began = time.monotonic()
            subprocess.run([*run, sys.executable, "-c", RECORDS, here / "source", str(epochs)], check=True)
            took = time.monotonic() - began
            told = json.loads(stats.read_text())
            plain, now = reads_an_epoch * epochs, told["origins"][0]["reads"]
            print(
                f"{epochs} epochs: {now} reads of the source of {plain} plainly, {100 * (1 - now / plain):.1f} % fewer; "
                f"{told['moved']} descriptors moved, {told['origins'][1]['copies']} files copied; {took:.1f} s"
            )


# --- A slow source ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def slow(mbit: int = MBIT, delay_ms: float = 0) -> Iterator[moosefs.MooseFs]:
    with moosefs.locked(), moosefs.MooseFs() as shared:
        shared.limit = (mbit, delay_ms)  # type: ignore[attr-defined]
        yield shared


def slow_down(shared: moosefs.MooseFs) -> None:
    mbit, delay_ms = shared.limit  # type: ignore[attr-defined]
    if delay_ms:
        words = ["root", "netem", "delay", f"{delay_ms}ms", "rate", f"{mbit}mbit", "limit", "100000"]
        subprocess.run(["tc", "-n", moosefs.NAME, "qdisc", "replace", "dev", moosefs.LINE_THERE, *words], check=True)
    else:
        shared.slow_down(mbit)


READ_SMALL = """
import os, random, sys
folder, epochs = sys.argv[1], int(sys.argv[2])
for epoch in range(epochs):
    names = sorted(os.listdir(folder))
    random.Random(epoch).shuffle(names)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            file.read()
"""


def timed(shared: moosefs.MooseFs, words: list) -> tuple[float, int]:
    """Seconds and bytes that came from the servers, with nothing of the source cached before."""
    shared.remount()
    drop_caches()
    before = moosefs.received_bytes()
    began = time.monotonic()
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, moosefs.received_bytes() - before


def cold() -> None:
    with folder() as here, slow() as shared:
        source = shared.mount_point / "source"
        total = made(source, 1500, 110_000)
        time.sleep(REST_S)
        slow_down(shared)
        program = [sys.executable, "-c", READ_SMALL, source, "1"]
        for turn in range(3):
            plain_s, plain_bytes = timed(shared, program)
            run_s, run_bytes = timed(shared, [*foresee(source, here / f"cache{turn}", 2 * total), *program])
            print(
                f"{turn}: plain {plain_s:.2f} s, {plain_bytes / 1e6:.1f} MB; cold {run_s:.2f} s, {run_bytes / 1e6:.1f} MB; "
                f"{run_s / plain_s:.3f}x (at most 1.10)"
            )


# A loader of two processes, as torch's: each takes the batches in turn, and the trainer waits for them in order.
LOADER = """
import multiprocessing, os, sys, time
from pathlib import Path

def permutation(count, seed):
    import torch
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()

def load(paths, orders, answers):
    for batch in iter(orders.get, None):
        answers.put([len(Path(paths[index]).read_bytes()) for index in batch])

def main():
    folder, epochs, work_s, order = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    paths = sorted(str(path) for path in Path(folder).rglob("*.jpg"))
    lists = [list(map(int, line.split())) for line in Path(order).read_text().splitlines()]
    orders = [multiprocessing.Queue() for _ in range(2)]
    answers = [multiprocessing.Queue() for _ in range(2)]
    workers = [multiprocessing.Process(target=load, args=[paths, *pair], daemon=True) for pair in zip(orders, answers)]
    for worker in workers: worker.start()
    waited = []
    for epoch in range(epochs):
        batches = [lists[epoch][at:at + 8] for at in range(0, len(paths), 8)]
        waited.append(0.0)
        ahead = 0
        for at in range(len(batches)):
            while ahead < min(at + 4, len(batches)):
                orders[ahead % 2].put(batches[ahead]); ahead += 1
            began = time.perf_counter()
            answers[at % 2].get()
            waited[-1] += time.perf_counter() - began
            time.sleep(work_s)
    print(" ".join(f"{each:.3f}" for each in waited))
    for queue in orders: queue.put(None)

if __name__ == "__main__":
    main()
"""


def loaded(shared: moosefs.MooseFs, words: list) -> tuple[list[float], int]:
    shared.remount()
    drop_caches()
    before = moosefs.received_bytes()
    done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()], moosefs.received_bytes() - before


def torch_orders(count: int, seed: int, epochs: int) -> str | None:
    code = (
        "import sys, torch\ncount, seed, epochs = map(int, sys.argv[1:])\nfor epoch in range(epochs):\n"
        "  print(*torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist())"
    )
    python = os.environ.get("FORESEE_TORCH_PYTHON", sys.executable)
    done = subprocess.run(
        [python, "-c", code, str(count), str(seed), str(epochs)], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def ahead() -> None:
    files, size, epochs, seed = 1200, 50_000, 5, 3
    orders = torch_orders(files, seed, epochs)
    if orders is None:
        sys.exit("needs torch: FORESEE_TORCH_PYTHON names a Python that has it")
    for delay_ms, work_s in ((0, 0.012), (5, 0.02)):
        with folder() as here, slow(delay_ms=delay_ms) as shared:
            source = shared.mount_point / "source"
            for label in range(4):
                made(source / f"class{label}", files // 4, size, f"{label}-{{:05}}.jpg")
            total = files * size
            (here / "order").write_text(orders)
            (here / "loader.py").write_text(LOADER)
            time.sleep(REST_S)
            slow_down(shared)
            program = [sys.executable, here / "loader.py", source, epochs, work_s, here / "order"]
            sampler = ["--sampler", "torch-distributed", "--seed", seed, "--epochs", epochs]
            stats = here / "stats.json"
            for name, more in (("plain", None), ("run", []), ("run --sampler", sampler)):
                cache = here / f"cache-{name.split()[-1]}"
                words = program
                if more is not None:
                    words = [*foresee(source, cache, total // 2, "--stats-json", stats, *more), *program]
                waited, received = loaded(shared, words)
                told = ""
                if more is not None:
                    counted = json.loads(stats.read_text())
                    source_bytes = counted["origins"][0]["bytes"] + counted["origins"][1]["copied_bytes"]
                    told = f", source {source_bytes / 1e6:.1f} MB by our count, {counted['ahead']} ahead, off order {counted['off_order']}"
                print(
                    f"{delay_ms} ms: {name:14} waited {sum(waited):6.2f} s {waited}, received {received / 1e6:.1f} MB{told}"
                )
            window = max(total // 2 // 16, 32 * size)
            kept = (total // 2 - window) // size * size
            print(f"minimum of the policy: {(total + (epochs - 1) * (total - kept)) / 1e6:.1f} MB")


# --- Programs --------------------------------------------------------------------------------------------------------


def programs() -> None:
    sys.exit("see bench/transparent_programs.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["costs", "records", "cold", "ahead", "programs"])
    what = parser.parse_args().what
    if not COMMAND.is_file():
        sys.exit(f"no {COMMAND}; build it with: cargo build --release")
    if what not in ("costs", "records") and (lacking := moosefs.missing()):
        sys.exit(lacking)
    random.seed(0)
    {"costs": costs, "records": records, "cold": cold, "ahead": ahead, "programs": programs}[what]()


if __name__ == "__main__":
    main()
