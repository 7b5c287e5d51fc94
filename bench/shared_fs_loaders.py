"""One run of bench/shared_fs.py: a process that trains with one loader and prints a line of JSON for each epoch.

    python shared_fs_loaders.py LOADER '{"folder": ..., "epochs": ..., ...}'

The trainer is small, so that loading is what takes time, as it is with an accelerator: images are averaged and a linear
layer learns from that.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import network

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EDGE = 224
POOLED = 7

#: A loader gives for each epoch its batches of images and labels, and says at the end what it knows.
Epochs = Iterator[Iterable[tuple[Any, Any]]]
Loader = tuple[Epochs, Callable[[], dict]]


def from_torch(args: SimpleNamespace) -> Loader:
    """torch's loader with torchvision's dataset, as in its examples: PIL decodes."""
    from torchvision import datasets
    from torchvision import transforms as T

    steps = [T.RandomResizedCrop(EDGE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    return _torch_epochs(datasets.ImageFolder(args.folder, T.Compose(steps)), args)


def from_torch_io(args: SimpleNamespace) -> Loader:
    """The same with torchvision's own decoder and its newer transforms, on tensors: the fastest there is in torchvision."""
    import torch
    from torchvision import datasets
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2 as T

    def load(path: str) -> Any:
        return decode_image(path, mode=ImageReadMode.RGB)

    crop = T.RandomResizedCrop(EDGE, antialias=True)
    steps = [crop, T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    return _torch_epochs(datasets.ImageFolder(args.folder, T.Compose(steps), loader=load), args)


def _torch_epochs(dataset: Any, args: SimpleNamespace) -> Loader:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=True)
    return (loader for _ in range(args.epochs)), dict


def from_foresee(args: SimpleNamespace) -> Loader:
    """foresee's loader for torch."""
    import foresee.torch

    dataset, config = _foresee_dataset(args), _config(args)
    loader = foresee.torch.DataLoader(dataset, args.batch, shuffle=True, epochs=args.epochs, config=config)
    return (loader for _ in range(args.epochs)), loader.stats


def from_job(args: SimpleNamespace) -> Loader:
    """foresee without torch."""
    import foresee

    job = foresee.Job(_foresee_dataset(args), args.batch, args.epochs, config=_config(args))

    def batches(epoch: int) -> Iterator[tuple[Any, Any]]:
        return ((batch.data, batch.labels) for batch in job.epoch(epoch))

    return (batches(epoch) for epoch in range(args.epochs)), job.stats


def _foresee_dataset(args: SimpleNamespace) -> Any:
    import foresee
    from foresee import transforms as T

    steps = [T.RandomResizedCrop(EDGE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    return foresee.ImageFolder(args.folder, transform=T.Compose(steps), config=_config(args))


def _config(args: SimpleNamespace) -> dict[str, Any]:
    """A memory tier, and where it is asked for a disk tier that holds the rest."""
    tiers = [{"kind": "memory", "capacity": args.tier_bytes, **args.tier}]
    if args.disk_folder:
        disk = {"kind": "disk", "path": args.disk_folder, "capacity": args.disk_bytes, "free_space_floor": 0}
        tiers.append({**disk, **args.tier})
    return {"staging": args.staging, "tier": tiers, "catalog": {"path": ""}}


LOADERS: dict[str, Callable[[SimpleNamespace], Loader]] = {
    "torch": from_torch,
    "torch-io": from_torch_io,
    "foresee": from_foresee,
    "job": from_job,
}


def torch_step(classes: int) -> Callable[[Any, Any], list[int]]:
    """A step of a trainer on torch. Gives the labels back."""
    import torch

    # The loaders' threads and processes have the cores.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = torch.nn.Linear(3 * POOLED * POOLED, classes)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def step(images: Any, labels: Any) -> list[int]:
        assert images.dtype == torch.float32 and images.shape[1:] == (3, EDGE, EDGE)
        pooled = torch.nn.functional.adaptive_avg_pool2d(images, POOLED).flatten(1)
        loss = torch.nn.functional.cross_entropy(layer(pooled), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return labels.tolist()

    return step


def plain_step(images: Any, labels: Any) -> list[int]:
    """Without torch there is nothing to train; every image is there, and so are the labels."""
    assert tuple(images.shape) == (len(labels), 3, EDGE, EDGE)
    return labels.tolist()


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    args = SimpleNamespace(**json.loads(sys.argv[2]))
    sizes = Counter({int(label): count for label, count in enumerate(args.class_sizes)})
    began = time.perf_counter()
    epochs, stats = LOADERS[sys.argv[1]](args)
    step = plain_step if sys.argv[1] == "job" else torch_step(len(args.class_sizes))
    say(event="ready", took_s=time.perf_counter() - began)
    for number, epoch in enumerate(epochs):
        start, received, seen = time.perf_counter(), network.received_bytes(), Counter()
        for images, labels in epoch:
            seen.update(step(images, labels))
            del images
            time.sleep(args.compute_ms / 1e3)
        took_s = time.perf_counter() - start
        if seen != sizes:
            sys.exit(f"{sys.argv[1]}, epoch {number + 1}: {seen.total()} samples, not each of the {sizes.total()} once")
        say(event="epoch", took_s=took_s, received_bytes=network.received_bytes() - received, stats=stats())


if __name__ == "__main__":
    main()
