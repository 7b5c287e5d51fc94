#!/usr/bin/env python3
"""Samples as they are stored, side by side: foresee and whatever of its peers is installed.

    bench/raw.py FOLDER [--rounds 5] [--epochs 3] [--memory "2 GiB"] [--json FILE]

FOLDER has the layout of ImageFolder and is read before each turn, so that it is in the page cache. The consumer touches
every cache line of every sample. All loaders give batches; foresee also gives the same samples one by one
(`foresee.get`). FFCV reads a file of its own that is made once beside the folder (FOLDER.beton), and `foresee.disk` one
by one what a job before it kept in a tier on disk (FOLDER.foresee).
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np
from side_by_side import Benchmark, Loader, class_folders, let_go, main, options, shuffled_batches, warm_file


def consume(samples, args: argparse.Namespace) -> int:
    """Looks at a byte of every cache line of every sample: counting them is what costs NumPy least."""
    number, view, count, dtype = 0, np.frombuffer, np.count_nonzero, np.bool_
    for sample in samples:
        count(view(sample, dtype)[::64])
        number += 1
    return number


def make_job(folder: Path, args: argparse.Namespace, epochs: int, tiers: list[dict]):
    """A job with nothing configured but its tiers: one thread reads, and the trainer helps it."""
    import foresee

    return foresee.Job(foresee.ImageFolder(folder), args.batch, epochs, drop_last=True, config={"tier": tiers})


def in_memory(args: argparse.Namespace) -> list[dict]:
    return [{"kind": "memory", "capacity": args.memory}] if args.memory else []


def on_disk(folder: Path, cache: str) -> list[dict]:
    """A tier with room for all of the dataset."""
    capacity = sum(path.stat().st_size for path in folder.glob("*/*"))
    return [{"kind": "disk", "capacity": capacity, "path": cache}]


def run_foresee(folder: Path, args: argparse.Namespace):
    with make_job(folder, args, args.epochs, in_memory(args)) as job:
        for epoch in range(args.epochs):
            yield (batch.data for batch in job.epoch(epoch))


def run_foresee_get(folder: Path, args: argparse.Namespace):
    return one_by_one(folder, args, in_memory(args))


def run_foresee_disk(folder: Path, args: argparse.Namespace):
    return one_by_one(folder, args, on_disk(folder, f"{folder}.foresee"))


def one_by_one(folder: Path, args: argparse.Namespace, tiers: list[dict]):
    # An epoch more than is read: the first sample of it is looked at in the place of those that are gone by then.
    with make_job(folder, args, args.epochs + 1, tiers) as job:
        samples = map(itemgetter(0), iter(job.get, None))
        for _ in range(args.epochs):
            yield (islice(samples, args.batch) for _ in range(job.steps_per_epoch))
        check(islice(samples, 1))


def run_torch(folder: Path, args: argparse.Namespace):
    from torch.utils.data import DataLoader

    class Raw:
        def __init__(self):
            self.paths, self.labels = class_folders(folder)

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            return Path(self.paths[index]).read_bytes(), self.labels[index]

    loader = DataLoader(
        Raw(),
        args.batch,
        shuffle=True,
        num_workers=args.threads,
        drop_last=True,
        collate_fn=list,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for _ in range(args.epochs):
        yield ([data for data, _ in batch] for batch in loader)


def run_dali(folder: Path, args: argparse.Namespace):
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=args.batch, num_threads=args.threads, device_id=None, seed=0)
    def pipeline():
        data, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="files")
        return data, labels

    built = pipeline()
    built.build()
    for _ in range(args.epochs):
        # Views of the batch, no copies.
        yield (list(map(np.asarray, built.run()[0])) for _ in range(built.epoch_size("files") // args.batch))


def run_spdl(folder: Path, args: argparse.Namespace):
    from spdl.pipeline import PipelineBuilder

    paths, labels = class_folders(folder)

    def load(indices):
        return [Path(paths[index]).read_bytes() for index in indices], [labels[index] for index in indices]

    for _ in range(args.epochs):
        pipeline = (
            PipelineBuilder()
            .add_source(shuffled_batches(len(paths), args.batch))
            .pipe(load, concurrency=args.threads)
            .add_sink(2)
            .build(num_threads=args.threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield (data for data, _ in pipeline)


def run_tf_data(folder: Path, args: argparse.Namespace):
    import tensorflow as tf

    paths, labels = class_folders(folder)
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = args.threads
    dataset = (
        tf.data.Dataset.from_tensor_slices((paths, labels))
        .shuffle(len(paths))
        .map(lambda path, label: (tf.io.read_file(path), label), args.threads, deterministic=False)
        .batch(args.batch, drop_remainder=True)
        .prefetch(2)
        .with_options(settings)
    )
    for _ in range(args.epochs):
        yield (data.numpy() for data, _ in dataset)


def run_ffcv(folder: Path, args: argparse.Namespace):
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.bytes import BytesDecoder
    from ffcv.loader import Loader as FfcvLoader
    from ffcv.loader import OrderOption

    loader = FfcvLoader(
        f"{folder}.beton",
        batch_size=args.batch,
        num_workers=args.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"data": [BytesDecoder()], "size": [IntDecoder()]},
    )
    for _ in range(args.epochs):
        yield ([row[: size[0]] for row, size in zip(rows, sizes, strict=True)] for rows, sizes in loader)


def prepare_foresee_disk(folder: Path, args: argparse.Namespace) -> None:
    """What a job before this one has read and kept."""
    made = Path(f"{folder}.foresee")
    if not made.exists():
        with make_job(folder, args, 2, on_disk(folder, f"{made}.tmp")) as job:
            for _ in job.epoch(0):
                pass
        Path(f"{made}.tmp").replace(made)
        for path in made.glob("*/data-*"):
            let_go(path)
    for path in made.glob("*/data-*"):
        warm_file(path)


def prepare_ffcv(folder: Path, args: argparse.Namespace) -> None:
    """FFCV's own file, samples as they are; it does not tell their sizes, so they are a field, too."""
    made = Path(f"{folder}.beton")
    if not made.exists():
        make_ffcv(folder, made, args)
        let_go(made)
    warm_file(made)


def make_ffcv(folder: Path, made: Path, args: argparse.Namespace) -> None:
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    class Files:
        def __init__(self):
            self.paths, _ = class_folders(folder)

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            data = np.fromfile(self.paths[index], np.uint8)
            return data, len(data)

    writer = DatasetWriter(f"{made}.tmp", {"data": BytesField(), "size": IntField()}, num_workers=args.threads)
    writer.from_indexed_dataset(Files())
    Path(f"{made}.tmp").replace(made)


def check(samples) -> None:
    """Samples are whole if they end as JPEG files do."""
    for sample in samples:
        if bytes(memoryview(sample)[-2:]) != b"\xff\xd9":
            sys.exit("a sample is not a whole JPEG file")


BENCHMARK = Benchmark(
    name="raw",
    title="Samples as they are stored: shuffled batches of files' bytes",
    unit="samples",
    loaders=[
        Loader("foresee.get", run_foresee_get, "foresee", "foresee"),
        Loader("foresee.disk", run_foresee_disk, "foresee", "foresee", prepare_foresee_disk),
        Loader("foresee", run_foresee, "foresee", "foresee"),
        Loader("ffcv", run_ffcv, "ffcv", "ffcv", prepare_ffcv),
        Loader("spdl", run_spdl, "spdl.pipeline", "spdl"),
        Loader("dali", run_dali, "nvidia.dali", "nvidia-dali-cuda120"),
        Loader("tf.data", run_tf_data, "tensorflow", "tensorflow-cpu"),
        Loader("torch", run_torch, "torch", "torch"),
    ],
    consume=consume,
    check=check,
)


if __name__ == "__main__":
    parser = options(BENCHMARK, __doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--memory", default="", help="capacity of a memory tier of foresee's; else it keeps nothing")
    main(BENCHMARK, parser)
