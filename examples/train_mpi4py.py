"""Trains a classifier with NumPy and mpi4py, on ranks that keep each other's samples.

    mpirun -n 4 python examples/train_mpi4py.py /data/imagenet/train --memory "2 GiB"
    mpirun -n 4 python examples/train_mpi4py.py          # on images that are made up: runs anywhere

mpi4py initialises MPI, so ranks meet by it and fetch samples of each other over it, those of one host through memory that they
share. Each keeps its part of the dataset in memory (--memory, for each rank). A state that is saved each epoch (--state) is
what the next run goes on from: MPI ends all ranks when one dies.
"""

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path

import foresee
import numpy as np
from foresee import transforms as T
from mpi4py import MPI


def arguments():
    parser = argparse.ArgumentParser(description="Train a classifier with NumPy and mpi4py")
    parser.add_argument("train", type=Path, nargs="?", help="folder with a folder of images for each class")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--size", type=int, default=16, help="edge of the images that the model sees")
    parser.add_argument("--memory", default="256 MiB", help="what each rank keeps")
    parser.add_argument("--state", type=Path, help="file to save to, and to go on from")
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def make_images(folder, classes=4, each=64, edge=24):
    """Images of noise around a colour that tells the class: portable pixmaps, which need no library to be written."""
    random = np.random.default_rng(0)
    colours = random.integers(0, 200, (classes, 3))
    for number in range(classes):
        (folder / f"class{number}").mkdir()
        for image in range(each):
            pixels = (colours[number] + random.integers(0, 56, (edge, edge, 3))).astype(np.uint8)
            head = f"P6 {edge} {edge} 255\n".encode()
            (folder / f"class{number}" / f"{image:03}.ppm").write_bytes(head + pixels.tobytes())


@contextlib.contextmanager
def dataset_folder(comm, given):
    """The folder to train on. One that is made up is made by rank 0, for ranks of this host."""
    if given is not None:
        yield given
        return
    with contextlib.ExitStack() as stack:
        made = None
        if comm.rank == 0:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_images(made)
        yield comm.bcast(made)
        # Nobody reads it any more.
        comm.Barrier()


def gradient(weights, images, labels):
    """Of softmax regression: the loss of a batch, and where it falls."""
    flat = images.reshape(len(images), -1)
    scores = flat @ weights
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    loss = -np.log(odds[np.arange(len(labels)), labels] + 1e-9).mean()
    odds[np.arange(len(labels)), labels] -= 1
    return loss, flat.T @ odds / len(labels)


def train(comm, args, folder):
    steps = T.Compose([T.RandomResizedCrop(args.size), T.RandomHorizontalFlip(), T.ToTensor()])
    dataset = foresee.ImageFolder(folder, transform=steps)
    config = {"tier": [{"kind": "memory", "capacity": args.memory}]}
    job = foresee.Job(dataset, batch_size=args.batch_size, epochs=args.epochs, seed=0, config=config)
    weights = np.zeros((3 * args.size**2, len(dataset.classes)))
    if args.state is not None and args.state.exists():
        saved = json.loads(args.state.read_text())
        job.load_state_dict(saved["job"])
        weights = np.array(saved["weights"])
    began, losses = time.monotonic(), []
    for batch in job:
        loss, own = gradient(weights, np.asarray(batch.data), np.asarray(batch.labels))
        mean = np.empty_like(own)
        comm.Allreduce(own, mean)
        weights -= args.lr * mean / comm.size
        losses.append(loss)
        if batch.step + 1 == job.steps_per_epoch:
            end_epoch(comm, args, job, batch.epoch, weights)
            if comm.rank == 0:
                print(f"epoch {batch.epoch}  loss {np.mean(losses):.4f}  {time.monotonic() - began:.1f} s", flush=True)
            began, losses = time.monotonic(), []
    stats = job.stats()
    job.close()
    read = {origin: reads["bytes"] for origin, reads in stats["origins"].items()}
    peers = sum(count for origin, count in read.items() if origin.endswith("peer"))
    print(
        f"rank {comm.rank}  {peers / 1e6:.2f} MB of other ranks, {stats['source_bytes'] / 1e6:.2f} MB of the storage",
        flush=True,
    )


def end_epoch(comm, args, job, epoch, weights):
    """Rank 0 saves where all of them are."""
    if comm.rank == 0 and args.state is not None:
        saved = json.dumps({"job": job.state_dict(), "weights": weights.tolist()})
        new = args.state.with_suffix(".new")
        new.write_text(saved)
        new.replace(args.state)


def main():
    args = arguments()
    comm = MPI.COMM_WORLD
    with dataset_folder(comm, args.train) as folder:
        train(comm, args, folder)


if __name__ == "__main__":
    main()
