"""Trains a classifier with DistributedDataParallel, on ranks that keep each other's samples.

    torchrun --standalone --nproc-per-node 4 examples/train_ddp.py /data/imagenet/train --memory "2 GiB"
    torchrun --standalone --nproc-per-node 4 examples/train_ddp.py          # on images that are made up: runs anywhere
    mpirun -n 4 python examples/train_ddp.py                                # the same, started by MPI

Three lines differ from such a script with torch's own loader; they are marked. Ranks find each other through torchrun. Each
keeps its part of the dataset in memory (--memory, for each rank), so that the storage is read once, not once an epoch, if all
of them together have room for it. It runs on the CPU, with gloo, or on GPUs. On several hosts start it with torchrun on each, or
with one mpirun and MASTER_ADDR, the first host's name.
"""

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path

import foresee
import foresee.torch
import torch
from foresee import transforms as T  # changed: was torchvision.transforms
from torch import nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arguments():
    parser = argparse.ArgumentParser(description="Train a classifier with DistributedDataParallel")
    parser.add_argument("train", type=Path, nargs="?", help="folder with a folder of images for each class")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--size", type=int, default=32, help="edge of the images that the model sees")
    parser.add_argument("--memory", default="256 MiB", help="what each rank keeps")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def as_torchrun():
    """What torch looks for, where mpirun started this: Open MPI's variables, or MPICH's."""
    names = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
    for rank, world_size in names:
        if rank in os.environ and "RANK" not in os.environ:
            os.environ |= {"RANK": os.environ[rank], "WORLD_SIZE": os.environ[world_size]}
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29500")


def make_images(folder, classes=4, each=64, edge=48):
    """Images of noise around a colour that tells the class: portable pixmaps, which need no library to be written."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 200, (classes, 3), generator=generator)
    for number in range(classes):
        (folder / f"class{number}").mkdir()
        for image in range(each):
            noise = torch.randint(0, 56, (edge, edge, 3), generator=generator)
            pixels = (colours[number] + noise).to(torch.uint8)
            head = f"P6 {edge} {edge} 255\n".encode()
            (folder / f"class{number}" / f"{image:03}.ppm").write_bytes(head + bytes(pixels.flatten().tolist()))


@contextlib.contextmanager
def dataset_folder(given):
    """The folder to train on. One that is made up is made by rank 0, for ranks of this host."""
    if given is not None:
        yield given
        return
    with contextlib.ExitStack() as stack:
        told = [None]
        if torch.distributed.get_rank() == 0:
            told = [Path(stack.enter_context(tempfile.TemporaryDirectory()))]
            make_images(told[0])
        torch.distributed.broadcast_object_list(told)
        yield told[0]
        # Nobody reads it any more.
        torch.distributed.barrier()


def small(classes):
    """A net that trains on the CPU in no time."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def train(args, folder, device):
    steps = T.Compose([T.RandomResizedCrop(args.size), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
    loader = foresee.torch.DataLoader(  # changed: was torch's, with a DistributedSampler
        foresee.ImageFolder(folder, transform=steps),  # changed: was torchvision's
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        config={"tier": [{"kind": "memory", "capacity": args.memory}]},
    )
    model = nn.parallel.DistributedDataParallel(small(len(loader.dataset.classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    with loader:
        for epoch in range(args.epochs):
            began, total, samples = time.monotonic(), 0.0, 0
            for images, labels in loader:
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, samples = total + loss.item() * len(labels), samples + len(labels)
            if torch.distributed.get_rank() == 0:
                print(f"epoch {epoch}  loss {total / samples:.4f}  {time.monotonic() - began:.1f} s", flush=True)
        stats = loader.stats()
    read = {origin: reads["bytes"] for origin, reads in stats["origins"].items()}
    own = sum(count for origin, count in read.items() if origin.startswith("tier"))
    peers = sum(count for origin, count in read.items() if origin.endswith("peer"))
    print(
        f"rank {stats['rank']}  {own / 1e6:.1f} MB of its own, {peers / 1e6:.1f} MB of other ranks, "
        f"{stats['source_bytes'] / 1e6:.1f} MB of the storage",
        flush=True,
    )


def main():
    args = arguments()
    torch.manual_seed(0)
    as_torchrun()
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(torch.distributed.get_node_local_rank())
        device = torch.device("cuda", torch.cuda.current_device())
    with dataset_folder(args.train) as folder:
        train(args, folder, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
