"""How the ImageNet script of torch's public examples loads its data, with dataset, transforms and loader of foresee in the
place of torch's, called as they are called there: alone, and with its `--multiprocessing-distributed`."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import foresee
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]

#: Each class has one image, so that labels say which sample it is; two ranks do not divide those of the validation.
TRAIN, VAL, EPOCHS = 24, 15, 2

SCRIPT = """
import argparse, json, os, pathlib
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import Subset

import foresee as datasets
import foresee.torch
from foresee import transforms

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--dist-url")
    parser.add_argument("--multiprocessing-distributed", action="store_true")
    args = parser.parse_args()
    args.batch_size, args.workers, args.epochs, args.rank, args.world_size = 4, 2, 2, 0, 1
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    if args.multiprocessing_distributed:
        args.world_size = 2 * args.world_size
        mp.spawn(main_worker, nprocs=2, args=(2, args))
    else:
        main_worker(0, 1, args)

def main_worker(gpu, ngpus_per_node, args):
    if args.distributed:
        args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(backend="gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    traindir = os.path.join(args.data, "train")
    valdir = os.path.join(args.data, "val")
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(
        traindir,
        transforms.Compose([
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]))
    val_dataset = datasets.ImageFolder(
        valdir,
        transforms.Compose([
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            normalize,
        ]))
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
        val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    else:
        train_sampler = None
        val_sampler = None
    train_loader = foresee.torch.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, pin_memory=True, sampler=train_sampler)
    val_loader = foresee.torch.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers, pin_memory=True, sampler=val_sampler)

    told = {"train": [], "val": [], "rest": [], "shapes": [], "lengths": [len(train_loader), len(val_loader)]}
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        told["train"].append(run(train_loader, told))
        told["val"].append(run(val_loader, told))
        if args.distributed and (len(val_loader.sampler) * args.world_size < len(val_loader.dataset)):
            aux_val_dataset = Subset(val_loader.dataset,
                                     range(len(val_loader.sampler) * args.world_size, len(val_loader.dataset)))
            aux_val_loader = foresee.torch.DataLoader(
                aux_val_dataset, batch_size=args.batch_size, shuffle=False,
                num_workers=args.workers, pin_memory=True)
            told["rest"].append(run(aux_val_loader, told))
    (pathlib.Path(args.out) / f"{args.rank}.json").write_text(json.dumps(told))
    if args.distributed:
        dist.destroy_process_group()

def run(loader, told):
    labels = []
    for i, (images, target) in enumerate(loader):
        images = images.to("cpu", non_blocking=True)
        target = target.to("cpu", non_blocking=True)
        assert images.size(0) == target.size(0) and images.dtype == torch.float32
        told["shapes"].append(list(images.shape[1:]))
        labels += target.tolist()
    return labels

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(3)
    for part, count in (("train", TRAIN), ("val", VAL)):
        for number in range(count):
            folder = root / part / f"n{number:04}"
            folder.mkdir(parents=True)
            Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / "one.JPEG")
    return root


def told(data, out, *options):
    (out / "main.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    package = Path(foresee.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, *map(str, (out / "main.py", data, out, "--dist-url", url, *options))],
        env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        timeout=600,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]


def orders(world, rank, samples=TRAIN, **options):
    sampler = DistributedSampler(range(samples), world, rank, **options)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield list(sampler)


def test_the_imagenet_script_loads_alone(data, tmp_path):
    (one,) = told(data, tmp_path)
    assert one["train"] == list(orders(1, 0))
    assert one["val"] == [list(range(VAL))] * EPOCHS and one["rest"] == []
    assert one["lengths"] == [6, 4] and all(shape == [3, 224, 224] for shape in one["shapes"])


def test_the_imagenet_script_loads_on_two_processes(data, tmp_path):
    ranks = told(data, tmp_path, "--multiprocessing-distributed")
    assert len(ranks) == 2
    for rank, one in enumerate(ranks):
        assert one["train"] == list(orders(2, rank))
        assert one["val"] == list(orders(2, rank, VAL, shuffle=False, drop_last=True))
        assert one["rest"] == [[VAL - 1]] * EPOCHS and one["lengths"] == [3, 2]
