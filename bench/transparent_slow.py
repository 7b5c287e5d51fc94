"""`foresee run` on a slow source: a private MooseFS behind a line of 400 Mbit/s, or one where each answer takes 5 ms."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import memory_group
import moosefs
import network
from memory_group import MemoryGroup, watched
from transparent_common import REST_S, folder, foresee, made

HERE = Path(__file__).resolve().parent
NAME = "foresee-transparent"
MBIT = 400
TORCH_PYTHON = os.environ.get("FORESEE_TORCH_PYTHON", sys.executable)
TF_PYTHON = os.environ.get("FORESEE_TF_PYTHON", sys.executable)


@dataclass(frozen=True)
class Done:
    took_s: float
    received_bytes: int
    stdout: str


class Slow:
    """A storage and a host that mounts it."""

    def __init__(self, storage: network.Host, mount: moosefs.Mount, mbit: int, delay_ms: float) -> None:
        self._storage, self._mount = storage, mount
        self._mbit, self._delay_ms = mbit, delay_ms

    @property
    def source(self) -> Path:
        """As programs on the host see it."""
        return self._mount.point / "source"

    @property
    def view(self) -> Path:
        """The same, for this process."""
        return self._mount.view / "source"

    def slow_down(self) -> None:
        """When all files are there."""
        time.sleep(REST_S)
        os.sync()
        self._storage.slow_down(self._mbit)
        if self._delay_ms:
            words = ["root", "netem", "delay", f"{self._delay_ms}ms", "rate", f"{self._mbit}mbit", "limit", "100000"]
            network.run("tc", "-n", self._storage.name, "qdisc", "replace", "dev", network.LINE, *words)

    def run(self, words: list, group: MemoryGroup | None = None) -> Done:
        """With nothing of the source cached before."""
        self._mount.remount()
        line = self._mount.host.command(words)
        before = self._mount.host.traffic().received_bytes
        began = time.monotonic()
        done = subprocess.run(group.command(line) if group else line, check=True, stdout=subprocess.PIPE, text=True)
        took_s = time.monotonic() - began
        return Done(took_s, self._mount.host.traffic().received_bytes - before, done.stdout)


@contextlib.contextmanager
def slow(mbit: int = MBIT, delay_ms: float = 0) -> Iterator[Slow]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(network.locked(NAME))
        lines = stack.enter_context(network.Network(NAME))
        storage, host = lines.host("storage"), lines.host("trainer")
        host.settle()
        mount = stack.enter_context(moosefs.MooseFs(storage, network.folder_of(NAME))).mount_on(host)
        yield Slow(storage, mount, mbit, delay_ms)


# --- The first epoch -------------------------------------------------------------------------------------------------

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


def cold(rounds: int = 3) -> None:
    with folder() as here, slow() as shared:
        total = made(shared.view, 1500, 110_000)
        shared.slow_down()
        program = [sys.executable, "-c", READ_SMALL, shared.source, "1"]
        ratios = []
        for turn in range(rounds):
            plain = shared.run(program)
            run = shared.run([*foresee(shared.source, here / f"cache{turn}", 2 * total), *program])
            ratios.append(run.took_s / plain.took_s)
            print(
                f"plain {plain.took_s:.2f} s, {plain.received_bytes / 1e6:.1f} MB; cold {run.took_s:.2f} s, "
                f"{run.received_bytes / 1e6:.1f} MB; {ratios[-1]:.3f}x",
                flush=True,
            )
        print(f"cold first epoch: {statistics.median(ratios):.3f}x (at most 1.10)")


# --- Reading ahead ---------------------------------------------------------------------------------------------------

# A loader of two processes, as torch's: each takes the batches in turn, and the trainer waits for them in order.
LOADER = """
import multiprocessing, sys, time
from pathlib import Path

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

ORDERS = """
import sys, torch
count, seed, epochs = map(int, sys.argv[1:])
for epoch in range(epochs):
    print(*torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist())
"""


def torch_orders(count: int, seed: int, epochs: int) -> str:
    words = [TORCH_PYTHON, "-c", ORDERS, str(count), str(seed), str(epochs)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit("needs torch: FORESEE_TORCH_PYTHON names a Python that has it")
    return done.stdout


def ahead() -> None:
    files, size, epochs, seed = 1200, 50_000, 5, 3
    orders = torch_orders(files, seed, epochs)
    total = files * size
    window = max(total // 2 // 16, 32 * size)
    kept = (total // 2 - window) // size * size
    least = total + (epochs - 1) * (total - kept)
    for delay_ms, work_s in ((0, 0.012), (5, 0.02)):
        with folder() as here, slow(delay_ms=delay_ms) as shared:
            for label in range(4):
                made(shared.view / f"class{label}", files // 4, size, f"{label}-{{:05}}.jpg")
            (here / "order").write_text(orders)
            (here / "loader.py").write_text(LOADER)
            shared.slow_down()
            program = [sys.executable, here / "loader.py", shared.source, epochs, work_s, here / "order"]
            sampler = ["--sampler", "torch-distributed", "--seed", seed, "--epochs", epochs]
            waits = {}
            for name, more in (("plain", None), ("run", []), ("run --sampler", sampler)):
                stats = here / "stats.json"
                before = (
                    []
                    if more is None
                    else foresee(
                        shared.source, here / f"cache-{name.split()[-1]}", total // 2, "--stats-json", stats, *more
                    )
                )
                done = shared.run([*before, *program])
                waited = [float(word) for word in done.stdout.split()]
                waits[name] = sum(waited)
                told = "" if more is None else counted(stats)
                print(
                    f"{delay_ms} ms: {name:14} waited {sum(waited):6.2f} s {waited}, "
                    f"received {done.received_bytes / 1e6:.1f} MB{told}",
                    flush=True,
                )
            ratio = waits["run --sampler"] / waits["run"]
            print(
                f"{delay_ms} ms: {ratio:.2f}x the wait without --sampler; the policy's minimum is {least / 1e6:.1f} MB"
            )


def counted(stats: Path) -> str:
    told = json.loads(stats.read_text())
    source_bytes = told["origins"][0]["bytes"] + told["origins"][1]["copied_bytes"]
    return f", source {source_bytes / 1e6:.1f} MB by our count, {told['ahead']} ahead, {told['off_order']} off order"


# --- Programs --------------------------------------------------------------------------------------------------------

IMAGE_FOLDER = """
import sys, time, torch
from torchvision import datasets, transforms
change = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
data = datasets.ImageFolder(sys.argv[1], change)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
for epoch in range(int(sys.argv[2])):
    began = time.monotonic()
    for images, labels in loader: pass
    print(time.monotonic() - began)
"""

TF_DATA = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
paths = sorted(tf.io.gfile.glob(sys.argv[1] + "/*.tfrecord"))
def image(record):
    fields = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.image.resize(tf.io.decode_jpeg(fields["image"], channels=3), [224, 224])
for epoch in range(int(sys.argv[2])):
    began = time.monotonic()
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=epoch)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    for batch in data.map(image, num_parallel_calls=2).batch(64).prefetch(2): pass
    print(time.monotonic() - began)
"""

MAKE_RECORDS = """
import os, pathlib, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
images = sorted(pathlib.Path(sys.argv[1]).rglob("*.jpg"))
target, a_file = pathlib.Path(sys.argv[2]), 80
target.mkdir(parents=True)
for at in range(0, len(images), a_file):
    with tf.io.TFRecordWriter(str(target / f"{at // a_file:04}.tfrecord")) as writer:
        for path in images[at:at + a_file]:
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
            writer.write(tf.train.Example(features=tf.train.Features(feature={"image": feature})).SerializeToString())
"""

COPY = """
import shutil, subprocess, sys, time
for epoch in range(int(sys.argv[2])):
    shutil.rmtree(sys.argv[3], ignore_errors=True)
    began = time.monotonic()
    subprocess.run(["cp", "-r", sys.argv[1], sys.argv[3]], check=True)
    print(time.monotonic() - began)
"""


def has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def images(target: Path, count: int) -> None:
    sys.path.append(str(HERE.parent / "tools"))
    import demo_data

    source = demo_data.dataset(count, lambda _: None, None)
    subprocess.run(["cp", "-r", source, target], check=True)


def records(target: Path, count: int) -> None:
    with folder() as here:
        images(here / "images", count)
        subprocess.run([TF_PYTHON, "-c", MAKE_RECORDS, here / "images", here / "records"], check=True)
        subprocess.run(["cp", "-r", here / "records", target], check=True)


def programs(count: int = 1000, epochs: int = 3) -> None:
    """A table: seconds an epoch, and what came over the line. Memory is limited so that a tenth of the dataset stays cached."""
    if not memory_group.available():
        sys.exit("needs a cgroup that limits memory")
    print("| program | cached | first epoch | later epochs | received |\n|---|---|---|---|---|")
    with folder() as here:
        if has(TORCH_PYTHON, "torchvision"):
            compared(
                "torch ImageFolder", images, count, [TORCH_PYTHON, "-W", "ignore", "-c", IMAGE_FOLDER], epochs, here
            )
        if has(TF_PYTHON, "tensorflow"):
            compared("tf.data, TFRecords", records, count, [TF_PYTHON, "-c", TF_DATA], epochs, here)
        compared("cp -r", images, count, [sys.executable, "-c", COPY], epochs, here)


def compared(name: str, make: Callable[[Path, int], None], count: int, program: list, epochs: int, here: Path) -> None:
    with slow() as shared:
        make(shared.view, count)
        total = sum(path.stat().st_size for path in shared.view.rglob("*") if path.is_file())
        words = [*program, shared.source, epochs, here / "target"]
        with MemoryGroup(f"{NAME}-need") as group, watched(group) as watch:
            shared.run([*program, shared.source, 1, here / "target"], group)
        limit = int(1.15 * watch.own_bytes_max[0]) + total // 10
        shared.slow_down()
        for part in (None, 40, 100):
            before = []
            if part is not None:
                # What files take of a disk is more than their bytes; a quota counts bytes.
                before = foresee(shared.source, here / f"{name.split()[0]}-{part}", total * part // 100)
            with MemoryGroup(f"{NAME}-{part}", limit) as group:
                done = shared.run([*before, *words], group)
            first, *later = (float(word) for word in done.stdout.split())
            shown = "plain" if part is None else f"{part} %"
            print(
                f"| {name}, {total / 1e6:.0f} MB | {shown} | {first:.1f} s | {statistics.mean(later):.1f} s | "
                f"{done.received_bytes / 1e6:.0f} MB |",
                flush=True,
            )
