"""One rank of bench/hosts.py: a process on its host that loads with one loader and says how each epoch went.

    python hosts_rank.py LOOP LOADER '{"folder": ..., "epochs": ..., ...}'

Lines of JSON on its output: `ready` when it could be asked for batches, `epoch` after each. It begins an epoch when it is told
to by a line on its input, and ends when there is none any more: then whoever started it is gone. Where it is told to be
`together`, it initialises MPI, and ranks take each step together.

The loop `raw` hashes the bytes of each sample as it is stored. The loop `train` decodes and augments images and trains a
small model on them with DistributedDataParallel: ranks step together, gradients go over the same lines as samples.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpi_steps

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EDGE = 224
POOLED = 7
DIGEST_BYTES = 8

#: A loader gives the batches of each epoch, and says what it knows when it is asked; a batch is what the loop takes.
Loader = tuple[Iterator[Iterable[Any]], Callable[[], dict[str, Any]], Callable[[], None]]
#: What a rank saw: numbers of samples, and digests of their bytes where the loop has these.
Seen = list[tuple[int, str]]


def digest(sample: Any) -> str:
    """What tells one content of a sample from another; SHA-256, as processors have it built in."""
    return hashlib.sha256(sample).digest()[:DIGEST_BYTES].hex()


def short_digest(sample: Any) -> str:
    """The same, quick to take and in programs without a library for it."""
    return f"{zlib.adler32(sample):08x}"


DIGESTS = {"sha256": digest, "adler32": short_digest}


def files(folder: Path) -> list[str]:
    """All samples, in the order of their numbers."""
    return sorted(str(path) for path in folder.glob("*/*"))


# --- Loaders ---------------------------------------------------------------------------------------------------------


def torch_raw(args: SimpleNamespace) -> Loader:
    """torch's loader on files as they are, numbered."""

    class Raw:
        def __init__(self) -> None:
            self.paths = files(Path(args.folder))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> tuple[int, bytes]:
            return index, Path(self.paths[index]).read_bytes()

    return _of_torch(Raw(), args, collate_fn=list)


def torch_train(args: SimpleNamespace) -> Loader:
    """torchvision's own decoder and its newer transforms, on tensors: the fastest there is in torchvision."""
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2 as T

    crop = T.RandomResizedCrop(EDGE, antialias=True)
    steps = [crop, T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    transform = T.Compose(steps)

    class Images:
        def __init__(self) -> None:
            self.paths = files(Path(args.folder))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return transform(decode_image(self.paths[index], mode=ImageReadMode.RGB)), index

    return _of_torch(Images(), args)


def _of_torch(dataset: Any, args: SimpleNamespace, **options: Any) -> Loader:
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    sampler = DistributedSampler(dataset, args.world, args.rank, shuffle=True, seed=args.seed)
    loader = DataLoader(
        dataset, args.batch, sampler=sampler, num_workers=args.workers, persistent_workers=True, **options
    )

    def epochs() -> Iterator[Iterable[Any]]:
        for number in range(args.epochs):
            sampler.set_epoch(number)
            yield loader

    return epochs(), dict, lambda: None


def foresee_raw(args: SimpleNamespace) -> Loader:
    import foresee

    dataset = foresee.Files(files(Path(args.folder)), config=_config(args))
    job = foresee.Job(dataset, args.batch, args.epochs, seed=args.seed, policy=args.policy, config=_config(args))

    def batches(epoch: int) -> Iterator[list[tuple[int, Any]]]:
        for batch in job.epoch(epoch):
            real = zip(batch.indices, batch.data, batch.mask, strict=True)
            yield [(int(index), data) for index, data, is_real in real if is_real]

    return (batches(epoch) for epoch in range(args.epochs)), job.stats, job.close


def foresee_train(args: SimpleNamespace) -> Loader:
    import foresee.torch
    from foresee import transforms as T

    steps = [T.RandomResizedCrop(EDGE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    paths = files(Path(args.folder))
    dataset = foresee.Files(paths, range(len(paths)), transform=T.Compose(steps), config=_config(args))
    loader = foresee.torch.DataLoader(
        dataset,
        args.batch,
        shuffle=True,
        seed=args.seed,
        epochs=args.epochs,
        policy=args.policy,
        config=_config(args),
    )
    return (loader for _ in range(args.epochs)), loader.stats, loader.close


def _config(args: SimpleNamespace) -> dict[str, Any]:
    tiers = [{"kind": "memory", "capacity": args.tier_bytes}] if args.tier_bytes else []
    return {"staging": args.staging, "tier": tiers, "catalog": {"path": ""}}


LOADERS = {
    ("raw", "torch"): torch_raw,
    ("raw", "foresee"): foresee_raw,
    ("train", "torch"): torch_train,
    ("train", "foresee"): foresee_train,
}


# --- Loops -----------------------------------------------------------------------------------------------------------


def raw_step(args: SimpleNamespace) -> Callable[[Iterable[tuple[int, Any]]], Seen]:
    """Every byte is looked at."""
    digest_of = DIGESTS[args.digest]
    return lambda batch: [(index, digest_of(sample)) for index, sample in batch]


def train_step(args: SimpleNamespace) -> Callable[[Any], Seen]:
    """A step of a small model, so that loading is what takes time, as it is with an accelerator."""
    import torch
    from torch import nn

    # The loaders' threads and processes have the cores.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    labels_of = torch.tensor(args.labels)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(POOLED), nn.Flatten(), nn.Linear(3 * POOLED**2, max(args.labels) + 1))
    ranks = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ranks.parameters(), lr=0.01)

    def step(batch: Any) -> Seen:
        images, indices = batch
        assert images.dtype == torch.float32 and images.shape[1:] == (3, EDGE, EDGE)
        loss = nn.functional.cross_entropy(ranks(images), labels_of[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [(int(index), "") for index in indices]

    return step


# ---------------------------------------------------------------------------------------------------------------------


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def is_told_to_go_on() -> bool:
    return sys.stdin.readline() != ""


def trained(
    batches: Iterable[Any], step: Callable[[Any], Seen], meet: Callable[[], None], args: SimpleNamespace
) -> tuple[Seen, float]:
    """What an epoch, or the first steps of it, had, and how long the trainer waited for its batches."""
    seen: Seen = []
    waited_s, asked_s = 0.0, time.perf_counter()
    for batch in islice(batches, args.steps_max):
        waited_s += time.perf_counter() - asked_s
        seen += step(batch)
        del batch
        time.sleep(args.compute_ms / 1e3)
        meet()
        asked_s = time.perf_counter()
    return seen, waited_s + time.perf_counter() - asked_s


def counted(stats: dict[str, Any]) -> dict[str, int | None]:
    """Bytes so far, as a loader counts them that does: from the source, and from other ranks."""
    origins = stats.get("origins", {})
    peer_bytes = sum(origins[name]["bytes"] for name in ("peer", "host_peer") if name in origins)
    return {"source_bytes": stats.get("source_bytes"), "peer_bytes": peer_bytes if stats else None}


def place() -> dict[str, int]:
    """Which rank this is, and of how many, by whatever started it."""
    rank, world = ("RANK", "WORLD_SIZE") if "RANK" in os.environ else ("SLURM_PROCID", "SLURM_NTASKS")
    return {"rank": int(os.environ[rank]), "world": int(os.environ[world])}


def main() -> None:
    loop, kind = sys.argv[1:3]
    args = SimpleNamespace(**json.loads(sys.argv[3]), **place())
    with mpi_steps.together() if args.together else contextlib.nullcontext(lambda: None) as meet:
        run(loop, kind, args, meet)


def run(loop: str, kind: str, args: SimpleNamespace, meet: Callable[[], None]) -> None:
    """All epochs; `meet` is called after each step."""
    step: Callable[[Any], Seen] = raw_step(args)
    if loop == "train":
        import torch

        torch.distributed.init_process_group("gloo")
        step = train_step(args)
    epochs, stats, close = LOADERS[loop, kind](args)
    say(event="ready")
    for batches in epochs:
        if not is_told_to_go_on():
            sys.exit("whoever started this rank is gone")
        seen, waited_s = trained(batches, step, meet, args)
        say(event="epoch", seen=seen, waited_s=waited_s, **counted(stats()))
    close()
    say(event="end", stats=stats())
    if loop == "train":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
