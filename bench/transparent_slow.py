"""`foresee run` on a shared file system: a private MooseFS behind a line of 400 Mbit/s."""

from __future__ import annotations

import contextlib
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
from transparent_common import REST_S, TORCH_PYTHON, folder, foresee, timed

HERE = Path(__file__).resolve().parent
NAME = "foresee-transparent"
MBIT = 400
TF_PYTHON = os.environ.get("FORESEE_TF_PYTHON", sys.executable)


@dataclass(frozen=True)
class Done:
    took_s: float
    received_bytes: int
    stdout: str


class Slow:
    """A storage and a host that mounts it."""

    def __init__(self, storage: network.Host, mount: moosefs.Mount) -> None:
        self._storage, self._mount = storage, mount

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
        self._storage.slow_down(MBIT)

    def run(self, words: list, group: MemoryGroup | None = None) -> Done:
        """With nothing of the source cached before."""
        self._mount.remount()
        line = self._mount.host.command(words)
        before = self._mount.host.traffic().received_bytes
        done = timed(group.command(line) if group else line)
        return Done(done.took_s, self._mount.host.traffic().received_bytes - before, done.stdout)


@contextlib.contextmanager
def slow() -> Iterator[Slow]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(network.locked(NAME))
        lines = stack.enter_context(network.Network(NAME))
        storage, host = lines.host("storage"), lines.host("trainer")
        host.settle()
        mount = stack.enter_context(moosefs.MooseFs(storage, network.folder_of(NAME))).mount_on(host)
        yield Slow(storage, mount)


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
