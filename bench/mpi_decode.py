#!/usr/bin/env python3
"""Ranks that outnumber the cores and decode images, with samples over MPI and over TCP: what MPI's thread costs them.

    bench/mpi_decode.py [FOLDER] [--ranks 4] [--images 1200] [--epochs 3] [--rounds 3]

Starts the ranks by the mpirun of each MPI that there is, in turns with `peers.transport` "mpi-only" and "tcp": no memory is
shared, so all samples of other ranks come that way. The memory of all holds the dataset, so from the second epoch on nothing
comes from files, and what there is to do is fetch and decode. Goal: at least 85 % of the images a second that TCP gives. FOLDER
has class folders of JPEG files; without it they are made, once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from joined import Member, command, joined
from shared_fs import note, source_folder

GOAL = 0.85
LAUNCHERS = {
    "Open MPI": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "MPICH": ["mpirun.mpich"],
}
TRANSPORTS = ("mpi-only", "tcp")
EDGE, BATCH = 224, 32
END_S_MAX = 120


def rank(folder: str, epochs: int, memory_bytes: int) -> None:
    """One rank: an epoch when it is told to, and how many images it had."""
    import foresee
    from foresee import transforms as T

    transform = T.Compose([T.RandomResizedCrop(EDGE), T.RandomHorizontalFlip()])
    tiers = [{"kind": "memory", "capacity": memory_bytes}]
    config = {"staging": {"capacity": "64 MiB", "threads": 2}, "tier": tiers, "catalog": {"path": ""}}
    dataset = foresee.ImageFolder(folder, transform=transform, config=config)
    with foresee.Job(dataset, BATCH, epochs, config=config) as job:
        for epoch in range(epochs):
            print(json.dumps(job.stats()["origins"]), flush=True)
            if sys.stdin.readline() == "":
                sys.exit("whoever started this rank is gone")
            for _ in job.epoch(epoch):
                pass
        print(json.dumps(job.stats()["origins"]), flush=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def lines(members: list[Member]) -> list[dict]:
    said = [member.stdout.readline() for member in members]
    if "" in said:
        sys.exit(f"rank {said.index('')} ended before its time")
    return [json.loads(line) for line in said]


def per_s(args: argparse.Namespace, launcher: list[str], transport: str, folder: Path, memory_bytes: int) -> float:
    """Images a second of all ranks, from the second epoch on."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FORESEE_", "SLURM_"))}
    env |= {"FORESEE_CONFIG": "", "FORESEE_PEERS_TRANSPORT": transport, "FORESEE_PEERS_SECRET": "of this benchmark"}
    # Where ranks meet that do not by MPI.
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory(prefix="foresee-decode-") as scratch:
        place = Path(scratch) / "ranks.sock"
        told = [sys.executable, "-B", __file__, "--rank", folder, args.epochs, memory_bytes]
        start = [*launcher, "-n", str(args.ranks), *command(place, told)]
        members = joined(
            place, args.ranks, lambda: subprocess.Popen(start, env=env, stdin=subprocess.DEVNULL, text=True)
        )
        try:
            at_s = []
            for done in range(args.epochs + 1):
                origins = lines(members)
                at_s.append(time.monotonic())
                for member in members if done < args.epochs else []:
                    member.stdin.write("\n")
                    member.stdin.flush()
            members[0].wait(END_S_MAX)
        finally:
            for member in members:
                if member.poll() is None:
                    member.kill()
    assert all("peer" in each for each in origins), f"{transport}: samples came another way: {origins[0]}"
    return args.images * (args.epochs - 1) / (at_s[-1] - at_s[1])


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="images in class folders; without it they are made")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="folder for images that are made")
    args = parser.parse_args()
    folder = source_folder(args)
    sizes = [path.stat().st_size for path in folder.glob("*/*")]
    args.images, memory_bytes = len(sizes), int(1.1 * sum(sizes) / args.ranks)
    for name, launcher in LAUNCHERS.items():
        if not shutil.which(launcher[0]):
            print(f"{name}: SKIPPED: no {launcher[0]}")
            continue
        ratios = []
        for number in range(args.rounds):
            rates = {each: per_s(args, launcher, each, folder, memory_bytes) for each in TRANSPORTS}
            ratios.append(rates["mpi-only"] / rates["tcp"])
            shown = ", ".join(f"{each} {rate:.0f} images/s" for each, rate in rates.items())
            note(f"{name}, round {number + 1}: {shown}, ratio {ratios[-1]:.2f}")
        ratio = statistics.median(ratios)
        print(f"{name}: ratio {ratio:.2f} (goal {GOAL}: {'reached' if ratio >= GOAL else 'MISSED'})")


if __name__ == "__main__":
    main()
