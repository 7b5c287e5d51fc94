#!/usr/bin/env python3
"""Images ready for training, side by side: foresee and whatever of its peers is installed.

    bench/train.py FOLDER [--rounds 5] [--loaders foresee dali ...] [--json FILE]

Every loader decodes, takes RandomResizedCrop(224), flips, normalises, and gives shuffled batches of float32 in CHW with
their labels, as arrays that are contiguous: the benchmark checks that. FOLDER has the layout of ImageFolder and is read
once before, so that it is in the page cache. FFCV reads a file of its own that is made once beside the folder
(FOLDER.train.beton), with the JPEG data as they are. docs/bench.md says what is unequal.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from pathlib import Path

import numpy as np
from side_by_side import Benchmark, Loader, class_folders, let_go, main, options, shuffled_batches, warm_file

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Of pixels from 0 to 255.
MEAN_255 = [255 * value for value in MEAN]
STD_255 = [255 * value for value in STD]


def consume(batch, args: argparse.Namespace) -> int:
    """Reads one value of each image, and the labels."""
    images, labels = batch
    if images.shape != (args.batch, 3, SIZE, SIZE) or images.dtype != np.float32 or not images.flags.c_contiguous:
        sys.exit(f"not what was asked for: {images.shape} {images.dtype}, strides {images.strides}")
    if not math.isfinite(images[:, 1, SIZE // 2, SIZE // 2].sum() + labels.sum()):
        sys.exit("not a number")
    return len(labels)


def check(batch) -> None:
    least, most = float(batch[0].min()), float(batch[0].max())
    low = min((0 - mean) / std for mean, std in zip(MEAN, STD, strict=True))
    high = max((1 - mean) / std for mean, std in zip(MEAN, STD, strict=True))
    # Half of the range at least: what is scaled otherwise has less, or more than all of it.
    if not (low - 0.01 <= least < 0 < most <= high + 0.01 and most - least > (high - low) / 2):
        sys.exit(f"not normalised: values from {least} to {most}")


def ours():
    from foresee import transforms as T

    return T.Compose([T.RandomResizedCrop(SIZE, SCALE, RATIO), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)])


def run_foresee(folder: Path, args: argparse.Namespace):
    import foresee

    dataset = foresee.ImageFolder(folder, transform=ours())
    with foresee.Job(dataset, args.batch, 1, drop_last=True, config={}, threads=args.threads) as job:
        yield ((np.asarray(batch.data), np.asarray(batch.labels)) for batch in job)


def run_foresee_torch(folder: Path, args: argparse.Namespace):
    import foresee
    import foresee.torch

    dataset = foresee.ImageFolder(folder, transform=ours())
    loader = foresee.torch.DataLoader(
        dataset, args.batch, shuffle=True, num_workers=args.threads, drop_last=True, epochs=1, config={}
    )
    with loader:
        yield ((images.numpy(), labels.numpy()) for images, labels in loader)


def run_torch(folder: Path, args: argparse.Namespace):
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    steps = [T.RandomResizedCrop(SIZE, SCALE, RATIO), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    yield torch_batches(ImageFolder(folder, T.Compose(steps)), args)


def run_torch_v2(folder: Path, args: argparse.Namespace):
    import torch
    from torchvision import io
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    def load(path: str):
        return io.decode_image(io.read_file(path), io.ImageReadMode.RGB)

    steps = [
        v2.RandomResizedCrop(SIZE, SCALE, RATIO, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    yield torch_batches(ImageFolder(folder, v2.Compose(steps), loader=load), args)


def torch_batches(dataset, args: argparse.Namespace):
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset, args.batch, shuffle=True, num_workers=args.threads, drop_last=True, multiprocessing_context="fork"
    )
    return ((images.numpy(), labels.numpy()) for images, labels in loader)


def run_dali(folder: Path, args: argparse.Namespace):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=args.batch, num_threads=args.threads, device_id=None, seed=0)
    def pipeline():
        data, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(data, random_area=list(SCALE), random_aspect_ratio=list(RATIO))
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        flip = fn.random.coin_flip()
        images = fn.crop_mirror_normalize(
            images, mirror=flip, dtype=types.FLOAT, output_layout="CHW", mean=MEAN_255, std=STD_255
        )
        return images, labels

    built = pipeline()
    built.build()

    def batches():
        for _ in range(built.epoch_size("files") // args.batch):
            images, labels = built.run()
            yield images.as_array(), labels.as_array()

    yield batches()


def run_ffcv(folder: Path, args: argparse.Namespace):
    import torch
    from ffcv import transforms as T
    from ffcv.fields import RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FfcvLoader
    from ffcv.loader import OrderOption

    image = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE), SCALE, RATIO),
        T.RandomHorizontalFlip(),
        T.NormalizeImage(np.array(MEAN_255), np.array(STD_255), np.float32),
        T.ToTensor(),
        T.ToTorchImage(channels_last=False),
    ]
    loader = FfcvLoader(
        str(beton(folder)),
        batch_size=args.batch,
        num_workers=args.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), T.ToTensor(), T.Squeeze()]},
        custom_fields={"image": RGBImageField},
    )
    torch.set_num_threads(args.threads)
    yield ((images.numpy(), labels.numpy()) for images, labels in loader)


def beton(folder: Path) -> Path:
    return Path(f"{folder}.train.beton")


def prepare_ffcv(folder: Path, args: argparse.Namespace) -> None:
    """FFCV's own file. Its writer encodes images again; so that the work is equal, the files' own data are kept."""
    made = beton(folder)
    if not made.exists():
        make_ffcv(folder, made, args)
        let_go(made)
    warm_file(made)


def make_ffcv(folder: Path, made: Path, args: argparse.Namespace) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Stored(RGBImageField):
        def encode(self, destination, image, malloc):
            data, width, height = image
            destination["mode"], destination["width"], destination["height"] = IMAGE_MODES["jpg"], width, height
            destination["data_ptr"], storage = malloc(data.nbytes)
            storage[:] = data

    class Files:
        def __init__(self):
            self.paths, self.labels = class_folders(folder)

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            with Image.open(self.paths[index]) as image:
                size = image.size
            return (np.fromfile(self.paths[index], np.uint8), *size), self.labels[index]

    writer = DatasetWriter(f"{made}.tmp", {"image": Stored(), "label": IntField()}, num_workers=args.threads)
    writer.from_indexed_dataset(Files())
    Path(f"{made}.tmp").replace(made)


def run_spdl(folder: Path, args: argparse.Namespace):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths, labels = class_folders(folder)
    scale = np.float32([1 / std for std in STD_255])
    shift = np.float32([-mean / std for mean, std in zip(MEAN, STD, strict=True)])

    def decode(path: str, image) -> None:
        area, ratio = random.uniform(*SCALE), math.exp(random.uniform(*map(math.log, RATIO)))
        # The size of the image is only known to FFmpeg, so the window is given as a formula.
        width, height = f"min(iw,sqrt(iw*ih*{area * ratio}))", f"min(ih,sqrt(iw*ih*{area / ratio}))"
        steps = f"crop=w='{width}':h='{height}':x='(iw-ow)*{random.random()}':y='(ih-oh)*{random.random()}',"
        steps += f"scale={SIZE}:{SIZE}:flags=bilinear,format=pix_fmts=rgb24"
        pixels = spdl.io.to_numpy(spdl.io.load_image(path, filter_desc=steps))
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        for channel in range(3):
            np.multiply(pixels[..., channel], scale[channel], out=image[channel])
            image[channel] += shift[channel]

    # A task for each batch: in bench/raw.py one for each sample cost more CPU than reading it.
    def load(indices):
        images = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
        for index, image in zip(indices, images, strict=True):
            decode(paths[index], image)
        return images, np.array([labels[index] for index in indices])

    pipeline = (
        PipelineBuilder()
        .add_source(shuffled_batches(len(paths), args.batch))
        .pipe(load, concurrency=args.threads)
        .add_sink(2)
        .build(num_threads=args.threads, max_failures=0)
    )
    with pipeline.auto_stop():
        yield iter(pipeline)


def run_tf_data(folder: Path, args: argparse.Namespace):
    import tensorflow as tf

    paths, labels = class_folders(folder)

    def load(path, label):
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=SCALE,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, [SIZE, SIZE], tf.image.ResizeMethod.BILINEAR, antialias=True)
        image = tf.image.random_flip_left_right(image)
        image = (image - tf.constant(MEAN_255)) / tf.constant(STD_255)
        return tf.transpose(image, [2, 0, 1]), label

    dataset = (
        tf.data.Dataset.from_tensor_slices((paths, labels))
        .shuffle(len(paths))
        .map(load, num_parallel_calls=args.threads, deterministic=False)
        .batch(args.batch, drop_remainder=True)
        .prefetch(2)
    )
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = args.threads
    yield ((images.numpy(), labels.numpy()) for images, labels in dataset.with_options(settings))


BENCHMARK = Benchmark(
    name="train",
    title="Decode, RandomResizedCrop(224), flip, normalise: shuffled batches of float32, CHW",
    unit="images",
    loaders=[
        Loader("foresee", run_foresee, "foresee", "foresee"),
        Loader("foresee.torch", run_foresee_torch, "torch", "torch"),
        Loader("dali", run_dali, "nvidia.dali", "nvidia-dali-cuda120"),
        Loader("ffcv", run_ffcv, "ffcv", "ffcv", prepare_ffcv),
        Loader("spdl", run_spdl, "spdl.io", "spdl"),
        Loader("tf.data", run_tf_data, "tensorflow", "tensorflow-cpu"),
        Loader("torch", run_torch, "torchvision", "torch"),
        Loader("torch-v2", run_torch_v2, "torchvision", "torchvision"),
    ],
    consume=consume,
    check=check,
)


if __name__ == "__main__":
    main(BENCHMARK, options(BENCHMARK, __doc__))
